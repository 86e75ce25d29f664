from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from gpunode.host.container import build_image, find_host_libraries

FOLDER = "/lib/x86_64-linux-gnu"
LOADER = "/lib64/ld-linux-x86-64.so.2"
GLIBC = {f"{FOLDER}/{name}" for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")}
# As glibc 2.36 prints it; the addresses are shortened.
LISTING = f"""\
\tlinux-vdso.so.1 (0x00007f8a)
\tlibpthread.so.0 => {FOLDER}/libpthread.so.0 (0x00007f8a)
\tlibnvidia-ml.so.1 => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 (0x00007f8a)
\tlibcuda.so.1 => not found
\tlibc.so.6 => {FOLDER}/libc.so.6 (0x00007f8a)
\t{LOADER} (0x00007f8a)
"""
LIBRARIES = {path: path.encode() for path in find_host_libraries(LISTING)}


def test_image_has_loader_and_glibc_but_no_nvidia_library() -> None:
    assert find_host_libraries(LISTING) == {LOADER, *GLIBC}


def test_libraries_beside_glibc_are_included() -> None:
    assert "/opt/a/libz.so.1" in find_host_libraries(f"{LISTING}\tlibz.so.1 => /opt/a/libz.so.1 (0x1)\n")


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        (f"{LISTING}\tlibgone.so.1 => not found\n", r"libgone\.so\.1 is missing"),
        (
            "\t/lib/ld-musl-x86_64.so.1 (0x1)\n\tlibc.musl-x86_64.so.1 => /lib/ld-musl-x86_64.so.1 (0x1)\n",
            "needs glibc",
        ),
        ("\tstatically linked\n", "needs glibc"),
        ("", "needs glibc"),
    ],
)
def test_missing_library_is_named(listing: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_host_libraries(listing)


def test_unsupported_architecture_is_named() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        build_image(LIBRARIES, "riscv64", "localhost/x:1", ["a"])


def _open(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}  # type: ignore[union-attr]


def test_image_is_named_by_its_digests() -> None:
    files = _open(build_image(LIBRARIES, "x86_64", "localhost/gpunode-check:t", ["nvidia-smi"]))
    (saved,) = json.loads(files["manifest.json"])
    (layer_path,) = saved["Layers"]
    layer = files[layer_path]
    assert files.keys() == {"manifest.json", saved["Config"], layer_path}
    assert saved["Config"] == f"{hashlib.sha256(files[saved['Config']]).hexdigest()}.json"
    assert saved["RepoTags"] == ["localhost/gpunode-check:t"]
    config = json.loads(files[saved["Config"]])
    assert config["architecture"] == "amd64"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert _open(layer).keys() == {"etc/passwd", "etc/ld.so.conf", *(path[1:] for path in LIBRARIES)}
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        names = tar.getnames()
    assert names == sorted(set(names))
    assert {name.rpartition("/")[0] for name in names} <= {"", *names}
    assert {"usr/bin", "proc", "tmp"} < {*names}


def test_image_is_reproducible() -> None:
    one = build_image(LIBRARIES, "x86_64", "localhost/x:1", ["a"])
    assert build_image(dict(reversed(LIBRARIES.items())), "x86_64", "localhost/x:1", ["a"]) == one
