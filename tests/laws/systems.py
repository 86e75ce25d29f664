"""Known facts of nodes of every kind of system: their os-release."""

from __future__ import annotations

from typing import Final


def _release(name: str, version: str, like: str = "") -> tuple[tuple[str, str], ...]:
    return (
        ("/etc/os-release", f'ID={name}\nVERSION_ID="{version}"\nID_LIKE="{like}"\nPRETTY_NAME="{name} {version}"\n'),
    )


SYSTEMS: Final = {
    "": (),
    "ubuntu": _release("ubuntu", "24.04", "debian"),
    "debian": _release("debian", "12"),
    "bullseye": _release("debian", "11"),
    "rocky": _release("rocky", "9.4", "rhel centos fedora"),
    "fedora": _release("fedora", "41"),
    "amzn": _release("amzn", "2023", "fedora"),
    "sles": _release("sles", "15.6", "suse"),
    "arch": _release("arch", "", ""),
}

# A vGPU as a virtual machine sees it: a T4's device id, and the subsystem of GRID T4-8Q.
VGPU: Final = (
    (
        "lspci -nnk -d 10de:",
        (
            "02:00.0 VGA compatible controller [0300]: NVIDIA Corporation TU104GL [Tesla T4] [10de:1eb8] (rev a1)\n"
            "\tSubsystem: NVIDIA Corporation Device [10de:130f]\n"
        ),
    ),
)
