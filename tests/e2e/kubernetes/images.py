"""Container images without a registry, with the references that manifests name."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any, Final

from tests.e2e.lab.commands import run
from tests.e2e.lab.node import Node

# The behaviour of an image's program, by a part of its reference.
_BEHAVIOUR: Final = {"k8s-device-plugin": "beat", "cuda-sample": "compute"}
_SANDBOX: Final = re.compile(r"""sandbox(?:_image)? = ["'](.+:.+)["']""")
_ARCHIVE: Final = "/root/images.tar"


def import_images(node: Node, *references: str) -> None:
    """Import stand-ins for the images, and for the pause image, into containerd."""
    found = _SANDBOX.search(node.run("containerd", "config", "dump").stdout)
    assert found, "containerd names no sandbox image"
    archive = node.path(_ARCHIVE)
    _write_archive(node.sandbox.scratch, archive, (found[1], *references))
    node.run("ctr", "--namespace", "k8s.io", "images", "import", _ARCHIVE)
    archive.unlink()


def _write_archive(scratch: Path, archive: Path, references: tuple[str, ...]) -> None:
    """Write several images of one layer in the format of ``docker save``."""
    program = scratch / "pod"
    run(["gcc", "-static", "-Os", "-o", os.fspath(program), os.fspath(Path(__file__).with_name("pod.c"))])
    layer = _tar({"pod": program.read_bytes()})
    files, manifest = {"layer.tar": layer}, []
    for number, reference in enumerate(references):
        behaviour = next((act for part, act in _BEHAVIOUR.items() if part in reference), "pause")
        files[f"{number}.json"] = json.dumps(_config(behaviour, layer)).encode()
        manifest.append({"Config": f"{number}.json", "RepoTags": [reference], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    archive.write_bytes(_tar(files))


def _config(behaviour: str, layer: bytes) -> dict[str, Any]:
    layers = [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    return {
        "architecture": "amd64",
        "os": "linux",
        # As in NVIDIA's image of the device plugin, which requests the driver from NVIDIA's runtime.
        "config": {"Entrypoint": ["/pod", behaviour], "Env": ["NVIDIA_VISIBLE_DEVICES=all"] * (behaviour == "beat")},
        "rootfs": {"type": "layers", "diff_ids": layers},
    }


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
