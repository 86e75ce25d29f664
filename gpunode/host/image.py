"""A container image that contains only what nvidia-smi needs, as bytes. Pure.

It holds the dynamic loader and the C library of the host and no NVIDIA file: nvidia-smi and its library must come
from the container runtime, which is what is tested. No compiler, no registry and no network are needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

# What libnvidia-ml.so.1 of every branch is linked with beside libc, in whose folder they are.
_GLIBC = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_INJECTED = ("libnvidia", "libcuda")
_ETC = {"/etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n", "/etc/passwd": b"root:x:0:0:root:/:/\n"}
_FOLDERS = ("/tmp", "/proc", "/sys", "/dev", "/run", "/usr/bin", "/usr/lib", "/etc/ld.so.conf.d")  # noqa: S108
# What uname(2) calls an architecture → Debian's and Ubuntu's multiarch folder, and OCI's name of it.
_ARCHITECTURES = {"x86_64": ("x86_64-linux-gnu", "amd64"), "aarch64": ("aarch64-linux-gnu", "arm64")}
_MEDIA = "application/vnd.oci.image."


def library_paths(listing: str) -> frozenset[str]:
    """Return the paths of the loader and the libraries in what ldd(1) printed, and of the rest of glibc.

    NVIDIA's libraries are left out.

    Raises:
        ValueError: a library is missing on the host, or its C library is not glibc.
    """
    found: dict[str, str] = {}
    for name, path in re.findall(r"^\s+(?:(\S+) => )?(/\S+(?= \()|not found)", listing, re.MULTILINE):
        name = name or PurePosixPath(path).name
        if name.startswith(_INJECTED):
            continue
        if path == "not found":
            raise ValueError(f"{name} is missing on this host")
        found[name] = path
    if "libc.so.6" not in found:
        raise ValueError("nvidia-smi needs glibc, and ldd finds no libc.so.6 on this host (musl is not supported)")
    folder = PurePosixPath(found["libc.so.6"]).parent
    return frozenset(found.values()) | {str(folder / name) for name in _GLIBC}


def image(libraries: Mapping[str, bytes], machine: str, reference: str, command: Iterable[str]) -> bytes:
    """Return an archive for ``ctr images import`` and ``docker load``; the same bytes for the same arguments.

    It is an OCI layout (image-spec 1.0) that also holds the manifest.json of ``docker save``, which docker before 25
    asks for.

    Args:
        libraries: their bytes, by path.
        machine: the architecture, as uname(2) calls it.
        reference: the image's name and tag.
        command: what a container runs.

    Raises:
        ValueError: NVIDIA has no driver for this architecture.
    """
    if machine not in _ARCHITECTURES:
        raise ValueError(f"the architecture is {machine}, not one of {', '.join(_ARCHITECTURES)}")
    architecture = _ARCHITECTURES[machine][1]
    layer = _tar({**libraries, **_ETC}, _FOLDERS)
    config = _config(architecture, layer, command)
    manifest = _manifest(config, layer)
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _index(architecture, manifest, reference),
        "manifest.json": _json([{"Config": _blob(config), "RepoTags": [reference], "Layers": [_blob(layer)]}]),
        **{_blob(data): data for data in (config, layer, manifest)},
    }
    return _tar(files)


def _config(architecture: str, layer: bytes, command: Iterable[str]) -> bytes:
    # Where toolkits of various ages and modes mount the libraries; not all of them refresh ld.so.cache.
    folders = (*(f"/{triplet}" for triplet, _ in _ARCHITECTURES.values()), "64")
    places = ":".join(f"{root}{folder}" for folder in folders for root in ("/usr/lib", "/lib"))
    environment = ["PATH=/usr/bin:/bin:/usr/sbin:/sbin", f"LD_LIBRARY_PATH={places}"]
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


def _tar(files: Mapping[str, bytes], folders: Iterable[str] = ()) -> bytes:
    """Return an archive of ``files`` and ``folders`` with the folders above them, sorted; of root, and of 1970."""
    above = {str(parent) for path in (*files, *folders) for parent in PurePosixPath(path).parents}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted({*files, *folders, *above} - {"/", "."}):
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = 0o644 if path in _ETC else 0o755
            member.type = tarfile.REGTYPE if path in files else tarfile.DIRTYPE
            member.size = len(files.get(path, b""))
            archive.addfile(member, io.BytesIO(files.get(path, b"")))
    return out.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(data: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}
