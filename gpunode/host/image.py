"""A container image that contains only what nvidia-smi needs, as bytes. Pure.

It holds the dynamic loader and the C library of the host and no NVIDIA file: nvidia-smi and its library must come
from the container runtime, which is what is tested. No compiler, no registry and no network are needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol

from gpunode.facts import elf

# What libnvidia-ml.so.1 and nvidia-smi of every branch are linked with, and what the runtime itself must bring.
_LIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_INJECTED = ("libnvidia", "libcuda")
_LINKS_AT_MOST = 40
_ETC = {"/etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n", "/etc/passwd": b"root:x:0:0:root:/:/\n"}
_MEDIA = "application/vnd.oci.image."


class Tree(Protocol):
    """Files as a host has them."""

    def read(self, path: str, /) -> bytes | None:
        """The file's bytes; None where there is none."""
        ...

    def link(self, path: str, /) -> str | None:
        """What the symbolic link ``path`` itself points to; None where it is none."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an image; ``data`` is a link's target, and nothing for a folder."""

    path: str
    kind: Literal["file", "link", "folder"]
    data: bytes = b""
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class RootFs:
    """The files of an image, and the architecture that they are for, as OCI calls it."""

    entries: tuple[Entry, ...]
    architecture: str


def rootfs(tree: Tree, program: str) -> RootFs:
    """The files that ``program`` needs to start, without itself and without NVIDIA's libraries.

    Every file stands where the host has it, behind the same symbolic links.

    Raises:
        ValueError: the program or a library that it needs is missing or not understood; the sentence names it.
    """
    start = _elf(tree, program)
    entries: dict[str, Entry] = {}
    waiting, seen = [start.interpreter, *start.needed, *_LIBC], set[str]()
    while waiting:
        name = waiting.pop(0)
        if not name or name in seen or name.startswith(_INJECTED):
            continue
        seen.add(name)
        path = name if "/" in name else _library(tree, name, elf.MACHINES[start.machine][0])
        found = tuple(_along(tree, path))
        entries.update((entry.path, entry) for entry in found)
        waiting.extend(elf.parse(found[-1].data).needed)
    entries.update((path, Entry(path, "file", data, 0o644)) for path, data in _ETC.items())
    return RootFs(tuple(_with_folders(entries)), elf.MACHINES[start.machine][1])


def _elf(tree: Tree, path: str) -> elf.Elf:
    try:
        return elf.parse(tuple(_along(tree, path))[-1].data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _library(tree: Tree, name: str, triplet: str) -> str:
    folders = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    for folder in folders:
        if tree.read(f"{folder}/{name}") is not None:
            return f"{folder}/{name}"
    raise ValueError(f"{name}: in none of {', '.join(folders)}")


def _along(tree: Tree, path: str) -> Iterator[Entry]:
    """The symbolic links on the way to ``path``, then the file itself, each at its own place."""
    links = 0
    done, rest = PurePosixPath("/"), list(PurePosixPath(path).parts[1:])
    while rest:
        part = rest.pop(0)
        here = done.parent if part == ".." else done / part
        target = tree.link(str(here))
        if target is None:
            done = here
            continue
        links += 1
        if links > _LINKS_AT_MOST:
            raise ValueError(f"{path}: symbolic links that lead nowhere")
        yield Entry(str(here), "link", target.encode("utf-8", "surrogateescape"), 0o777)
        if target.startswith("/"):
            done = PurePosixPath("/")
        rest = [p for p in PurePosixPath(target).parts if p != "/"] + rest
    data = tree.read(str(done))
    if data is None:
        raise ValueError(f"{path}: no such file")
    yield Entry(str(done), "file", data)


def _with_folders(entries: Mapping[str, Entry]) -> Iterator[Entry]:
    """Every entry behind the folders that it stands in, in one order whatever the host's was."""
    wanted = {"/tmp", "/proc", "/sys", "/dev", "/run", "/usr/bin", "/etc/ld.so.conf.d"}  # noqa: S108
    folders = {str(p) for path in (*entries, *wanted) for p in PurePosixPath(path).parents} | wanted
    for path in sorted({*folders - {"/"}, *entries}):
        yield entries.get(path) or Entry(path, "folder")


def image(root: RootFs, reference: str, command: Iterable[str]) -> bytes:
    """An archive for ``ctr images import`` and ``docker load``; the same bytes for the same arguments.

    It is an OCI layout (image-spec 1.0) that also holds the manifest.json of ``docker save``, which docker before 25
    asks for.
    """
    layer = _tar((_member(entry), entry.data if entry.kind == "file" else b"") for entry in root.entries)
    config = _config(root.architecture, layer, command)
    manifest = _manifest(config, layer)
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _index(root.architecture, manifest, reference),
        "manifest.json": _json([{"Config": _blob(config), "RepoTags": [reference], "Layers": [_blob(layer)]}]),
        **{_blob(data): data for data in (config, layer, manifest)},
    }
    return _tar((_member(Entry(f"/{name}", "file", data, 0o644)), data) for name, data in files.items())


def _config(architecture: str, layer: bytes, command: Iterable[str]) -> bytes:
    # Where toolkits of various ages and modes mount the libraries; not all of them refresh ld.so.cache.
    folders = (*(f"/usr/lib/{triplet}" for triplet, _ in elf.MACHINES.values()), "/usr/lib64")
    environment = ["PATH=/usr/bin:/bin:/usr/sbin:/sbin", f"LD_LIBRARY_PATH={':'.join(folders)}"]
    return _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Cmd": list(command), "Env": environment},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            "history": [{"created_by": "gpunode verify --container"}],
        }
    )


def _manifest(config: bytes, layer: bytes) -> bytes:
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}manifest.v1+json",
            "config": _descriptor(f"{_MEDIA}config.v1+json", config),
            "layers": [_descriptor(f"{_MEDIA}layer.v1.tar", layer)],
        }
    )


def _index(architecture: str, manifest: bytes, reference: str) -> bytes:
    # The first is containerd's name for an image, the second the OCI layout's.
    names = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference.rpartition(":")[2]}
    entry = _descriptor(f"{_MEDIA}manifest.v1+json", manifest)
    platform = {"architecture": architecture, "os": "linux"}
    return _json({"schemaVersion": 2, "manifests": [{**entry, "platform": platform, "annotations": names}]})


def _member(entry: Entry) -> tarfile.TarInfo:
    """Owner root and the first second of 1970, so that the bytes do not depend on when and where."""
    member = tarfile.TarInfo(entry.path.lstrip("/"))
    member.mode = entry.mode
    if entry.kind == "file":
        member.size = len(entry.data)
    elif entry.kind == "link":
        member.type, member.linkname = tarfile.SYMTYPE, entry.data.decode("utf-8", "surrogateescape")
    else:
        member.type = tarfile.DIRTYPE
    return member


def _tar(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(data: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}
