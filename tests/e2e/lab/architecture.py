"""The architecture of the test nodes: this machine's, or arm64 by qemu's user mode if GPUNODE_LAB_ARCH says so."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture, by everybody's names for it.

    Attributes:
        deb: dpkg's and the kernel packages'.
        machine: the kernel's, and so that of dkms.
        folder: that of NVIDIA's CUDA repositories; ``sbsa`` is theirs for servers.
        triplet: of the folder of libraries, and of the compiler.
    """

    deb: str
    machine: str
    folder: str
    triplet: str


_KNOWN: Final = {
    "amd64": Architecture("amd64", "x86_64", "x86_64", "x86_64-linux-gnu"),
    "arm64": Architecture("arm64", "aarch64", "sbsa", "aarch64-linux-gnu"),
}
NODES: Final = _KNOWN[os.environ.get("GPUNODE_LAB_ARCH", "amd64")]
