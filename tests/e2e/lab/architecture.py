"""The architecture of the test nodes: this machine's, or arm64 in qemu's user mode if GPUNODE_LAB_ARCH says so."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Architecture:
    """The names of an architecture.

    Attributes:
        deb: in dpkg and in names of kernel packages.
        machine: in the kernel, and therefore in dkms.
        folder: in NVIDIA's CUDA repositories, which use ``sbsa`` for servers.
        triplet: in the library folder's and the compiler's names.
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
