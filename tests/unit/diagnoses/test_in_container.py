"""Evidence from inside a container without a GPU: it does not show the state of the node's driver."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

BARE = (
    ("nvidia-smi", "bash: nvidia-smi: command not found"),
    ("ls /dev/nvidia*", "ls: cannot access '/dev/nvidia*': No such file or directory"),
    ("lsmod", "Module              Size  Used by\nnvidia_uvm       1540096  0\nnvidia          56717312  1 nvidia_uvm"),
    (
        "lspci -nnk",
        "07:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0]\n\tKernel driver in use: nvidia\n",
    ),
    ("ldconfig -p", "42 libs found in cache `/etc/ld.so.cache'\n\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6\n"),
)


@pytest.mark.parametrize(
    ("sign", "is_node"),
    [
        (("ls /.dockerenv", "/.dockerenv"), False),
        (("ls -l /run/.containerenv", "-rwx------ 1 root root 0 Nov 21 /run/.containerenv"), False),
        (("systemd-detect-virt", "podman"), False),
        (("ls /.dockerenv", "ls: cannot access '/.dockerenv': No such file or directory"), True),
        (("systemd-detect-virt", "kvm"), True),
    ],
)
def test_container_without_driver_files_is_no_fault_of_the_node(sign: tuple[str, str], *, is_node: bool) -> None:
    found = diagnose(take_snapshot(pasted.collect_pieces((*BARE, sign))))
    assert ("driver-userspace-incomplete" in [one.cause for one in found.findings]) == is_node
    assert is_node or not found.roots


NO_FILE = ("modinfo nvidia", "modinfo: ERROR: Module nvidia not found.")


@pytest.mark.parametrize(("sign", "confidence"), [((), "certain"), ((NO_FILE,), "likely")])
def test_module_without_a_file_may_be_of_another_root(sign: tuple[tuple[str, str], ...], confidence: str) -> None:
    """Neither a container nor the node of a driver container has the file of the loaded module."""
    seen = (("nvidia-smi", "bash: nvidia-smi: command not found"), ("lsmod | grep nvidia", "nvidia 62713856 0"), *sign)
    (found,) = diagnose(take_snapshot(pasted.collect_pieces(seen))).findings
    assert (found.cause, found.confidence) == ("driver-userspace-incomplete", confidence)


def test_program_that_a_container_cannot_start_is_not_missing_on_the_node() -> None:
    loaded = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Wed May 14 21:05:20 UTC 2025"
    post = f"{loaded}\n\nMy pod says:\n```\nexec /usr/bin/nvidia-smi: no such file or directory\n```\n"
    found = diagnose(take_snapshot(pasted.parse_text_report(post)))
    assert "driver-userspace-incomplete" not in [one.cause for one in found.findings]
