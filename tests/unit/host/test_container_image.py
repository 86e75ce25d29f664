from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpunode.facts import elf
from gpunode.host.image import RootFs, image, rootfs

LOADER = "/lib64/ld-linux-x86-64.so.2"
LIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")


def make_elf(needed: tuple[str, ...] = (), interpreter: str = "", machine: int = 62) -> bytes:
    """A smallest ELF file that says what it needs; loaded 0x1000 above where it stands in the file."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    places = [strings.index(b"\0" + name.encode() + b"\0") + 1 for name in needed]
    path = interpreter.encode() + b"\0" if interpreter else b""
    start = 64 + 3 * 56
    rows = [(1, place) for place in places] + [(5, 0x1000 + start), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *row) for row in rows)
    at_dynamic, at_path = start + len(strings), start + len(strings) + len(dynamic)
    size = at_path + len(path)

    def segment(kind: int, offset: int, length: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, 4, offset, 0x1000 + offset, 0, length, length, 8)

    table = (
        segment(1, 0, size)
        + segment(2, at_dynamic, len(dynamic))
        + segment(3 if interpreter else 0, at_path, len(path))
    )
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    )
    return head + table + strings + dynamic + path


@dataclass
class FakeTree:
    files: dict[str, bytes]
    links: dict[str, str] = field(default_factory=dict)

    def _real(self, path: str) -> str:
        for _ in range(50):
            found = next((link for link in self.links if path == link or path.startswith(link + "/")), None)
            if found is None:
                return path
            target = self.links[found]
            path = (target if target.startswith("/") else f"{found.rpartition('/')[0]}/{target}") + path[len(found) :]
        return ""

    def read(self, path: str, /) -> bytes | None:
        return self.files.get(self._real(path))

    def link(self, path: str, /) -> str | None:
        return self.links.get(path)


def merged_host(program: bytes) -> FakeTree:
    """A host as Debian makes it: /lib and /lib64 are links into /usr, the loader is a link too."""
    folder = "/usr/lib/x86_64-linux-gnu"
    files = {f"{folder}/{name}": make_elf(("ld-linux-x86-64.so.2",)) for name in LIBC}
    files |= {f"{folder}/ld-linux-x86-64.so.2": make_elf(), "/usr/bin/nvidia-smi": program}
    links = {
        "/lib": "usr/lib",
        "/lib64": "usr/lib64",
        "/usr/lib64/ld-linux-x86-64.so.2": f"/lib{folder[8:]}/ld-linux-x86-64.so.2",
    }
    return FakeTree(files, links)


SMI = make_elf(("libpthread.so.0", "libm.so.6", "libdl.so.2", "libc.so.6", "libnvidia-ml.so.1"), LOADER)


def _by_path(root: RootFs) -> dict[str, str]:
    return {entry.path: entry.kind for entry in root.entries}


def test_it_holds_the_loader_and_libc_behind_the_hosts_own_links() -> None:
    root = rootfs(merged_host(SMI), "/usr/bin/nvidia-smi")
    found = _by_path(root)
    assert root.architecture == "amd64"
    assert (found["/lib"], found["/lib64"]) == ("link", "link")
    assert found["/usr/lib64/ld-linux-x86-64.so.2"] == "link"
    assert all(found[f"/usr/lib/x86_64-linux-gnu/{name}"] == "file" for name in (*LIBC, "ld-linux-x86-64.so.2"))


def test_it_holds_nothing_of_nvidia_so_the_runtime_must_bring_it() -> None:
    assert not [path for path in _by_path(rootfs(merged_host(SMI), "/usr/bin/nvidia-smi")) if "nvidia" in path]


def test_folders_come_before_what_is_in_them() -> None:
    seen: set[str] = {"/"}
    for entry in rootfs(merged_host(SMI), "/usr/bin/nvidia-smi").entries:
        assert entry.path.rpartition("/")[0] in seen | {""}, entry.path
        seen.add(entry.path)


def test_libraries_of_libraries_are_followed() -> None:
    host = merged_host(make_elf(("libfirst.so.1",), LOADER))
    host.files["/usr/lib/libfirst.so.1"] = make_elf(("libsecond.so.2",))
    host.files["/usr/lib64/libsecond.so.2"] = make_elf(("libfirst.so.1",))
    found = _by_path(rootfs(host, "/usr/bin/nvidia-smi"))
    assert found["/usr/lib/libfirst.so.1"] == found["/usr/lib64/libsecond.so.2"] == "file"


def test_what_is_missing_is_named() -> None:
    host = merged_host(make_elf(("libgone.so.1",), LOADER))
    with pytest.raises(ValueError, match=r"libgone\.so\.1: in none of"):
        rootfs(host, "/usr/bin/nvidia-smi")
    with pytest.raises(ValueError, match="/usr/bin/other: no such file"):
        rootfs(host, "/usr/bin/other")
    host.files["/usr/bin/nvidia-smi"] = b"#!/bin/sh\n"
    with pytest.raises(ValueError, match="nvidia-smi: not a 64-bit"):
        rootfs(host, "/usr/bin/nvidia-smi")


def test_links_in_a_circle_end() -> None:
    host = FakeTree({}, {"/a": "b", "/b": "a"})
    with pytest.raises(ValueError, match="lead nowhere"):
        rootfs(host, "/a")


def _open(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}  # type: ignore[union-attr]


def test_the_image_is_whole_for_oci_and_for_docker() -> None:
    files = _open(image(rootfs(merged_host(SMI), "/usr/bin/nvidia-smi"), "localhost/gpunode-check:t", ["nvidia-smi"]))
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files["blobs/" + entry["digest"].replace(":", "/")])
    (saved,) = json.loads(files["manifest.json"])
    for described, name in ((manifest["config"], saved["Config"]), (manifest["layers"][0], saved["Layers"][0])):
        assert "blobs/" + described["digest"].replace(":", "/") == name
        assert described["size"] == len(files[name])
    config = json.loads(files[saved["Config"]])
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert saved["RepoTags"] == [entry["annotations"]["io.containerd.image.name"]] == ["localhost/gpunode-check:t"]


def test_the_same_files_are_the_same_bytes() -> None:
    one = image(rootfs(merged_host(SMI), "/usr/bin/nvidia-smi"), "localhost/x:1", ["a"])
    host = merged_host(SMI)
    host.files = dict(reversed(host.files.items()))
    assert image(rootfs(host, "/usr/bin/nvidia-smi"), "localhost/x:1", ["a"]) == one


def test_an_elf_file_says_what_it_needs() -> None:
    assert elf.parse(SMI) == elf.Elf(
        62, LOADER, ("libpthread.so.0", "libm.so.6", "libdl.so.2", "libc.so.6", "libnvidia-ml.so.1")
    )
    assert elf.parse(make_elf(machine=183)).needed == ()
    with pytest.raises(ValueError, match="machine 40"):
        elf.parse(make_elf(machine=40))


@example(39, 0x80, 0)
@example(135, 0xFF, 0)
@given(st.integers(0, len(SMI) - 1), st.integers(0, 255), st.integers(0, len(SMI)))
def test_a_damaged_elf_file_is_read_or_refused(place: int, byte: int, length: int) -> None:
    for data in (SMI[:place] + bytes([byte]) + SMI[place + 1 :], SMI[:length]):
        try:
            found = elf.parse(data)
        except ValueError:
            continue
        assert all(found.needed)
