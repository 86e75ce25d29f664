"""An image full of untrusted programs: none runs without consent, and with consent none escapes."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from tests.conformance.hostile.image import Image, gpunode, make_image, needs_root

pytestmark = [
    needs_root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the canary is a program of x86-64"),
]

# open("/CANARY", O_CREAT|O_WRONLY, 0600); exit(0): without a library or an interpreter, so nothing else is needed.
_CODE = bytes.fromhex("48c7c002000000488d3d1c00000048c7c64100000048c7c2800100000f0548c7c03c00000031ff0f05")
_AT = 0x400000
PROGRAMS = (
    *(
        "apt-cache",
        "apt-config",
        "apt-get",
        "apt-mark",
        "cat",
        "chroot",
        "containerd",
        "crio",
        "crio-status",
        "debconf",
    ),
    *("dkms", "docker", "dockerd", "dpkg", "dpkg-query", "env", "find", "lspci", "modprobe", "mount", "nvidia-ctk"),
    *("nvidia-smi", "podman", "prlimit", "python3", "sh", "systemctl", "systemd-detect-virt", "true", "umount"),
    *("uname", "update-initramfs"),
)
RUNTIME = ("ctk", "runtime")


def _program() -> bytes:
    """Return an ELF file of one segment."""
    text = b"/CANARY\0"
    code = _CODE + text
    start = 64 + 56
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (62).to_bytes(2, "little")
    header += (1).to_bytes(4, "little") + (_AT + start).to_bytes(8, "little") + (64).to_bytes(8, "little")
    header += bytes(12) + b"".join(n.to_bytes(2, "little") for n in (64, 56, 1, 0, 0, 0))
    size = start + len(code)
    segment = (1).to_bytes(4, "little") + (5).to_bytes(4, "little")
    segment += b"".join(n.to_bytes(8, "little") for n in (0, _AT, _AT, size, size, 0x1000))
    return header + segment + code


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """Return an image with package sources, so that gpunode asks apt for missing packages."""
    made = make_image(tmp_path)
    status = "Package: {}\nStatus: install ok installed\nArchitecture: {}\nVersion: 1\nDescription: x\n\n"
    made.path("var/lib/dpkg/status").write_text(status.format("dpkg", "amd64"))
    for folder in ("usr/bin", "usr/sbin", "bin", "sbin", "usr/lib/apt", "proc", "sys", "dev", "tmp", "usr/share"):
        made.path(folder).mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
            made.path(f"{folder}/{name}").write_bytes(_program())
            made.path(f"{folder}/{name}").chmod(0o755)
    return made


def canary(image: Image) -> bool:
    return os.path.lexists(image.path("CANARY")) or os.path.lexists("/CANARY")


def test_canary_program_works(image: Image) -> None:
    subprocess.run(["chroot", image.root, "/usr/bin/apt-get"], check=True)
    assert image.path("CANARY").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "RECIPE"),
        ("plan", "RECIPE", "-v", "--check"),
        ("plan", "containerd", "--gpu", "10de:1b80"),
        ("setup", "RECIPE"),
        ("rollback",),
        ("rollback", "--list"),
        ("remove",),
        ("log",),
        *((*RUNTIME, "check", f"--runtime={name}") for name in ("containerd", "docker", "crio", "podman")),
        *((*RUNTIME, "configure", f"--runtime={name}", "--dry-run") for name in ("containerd", "docker", "crio")),
        *((*RUNTIME, "configure", f"--runtime={name}") for name in ("containerd", "docker", "crio")),
        (*RUNTIME, "configure", "--runtime=containerd", "--config-source=command"),
        (*RUNTIME, "unconfigure", "--runtime=docker"),
        ("ctk", "config", "--dry-run"),
    ],
    ids=" ".join,
)
def test_no_program_of_an_image_runs_without_consent(image: Image, words: tuple[str, ...]) -> None:
    recipe = str(image.recipe("containerd"))
    answer = gpunode(*(recipe if word == "RECIPE" else word for word in words), "--root", str(image.root))
    assert not canary(image), answer.said
    assert answer.exit_code != 1, answer.said
    if words[0] == "plan":
        assert "package index" in answer.said or answer.exit_code == 3
    if words == ("setup", "RECIPE"):
        assert f"runs programs of {image.root}" in answer.err


def test_programs_run_only_inside_the_image_with_consent(image: Image) -> None:
    answer = image.setup("containerd")
    assert image.path("CANARY").exists(), answer.said
    assert not os.path.lexists("/CANARY")
