"""The identity of a package, on the node, in changes, journals and locks. Pure."""

from __future__ import annotations

from gpunode.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PackageId:
    """A package by its name and architecture, and by its version if several versions are installed side by side.

    Attributes:
        arch: a foreign architecture, in the package system's terms (``i386``). Empty for the host's own and for
            packages for any architecture: a package that changes between these stays the same package.
        version: only for a package that is installed beside its other versions and never upgraded, as RPM installs
            kernels: each version is a package. Empty for all others, whose version is part of their state.
    """

    name: str
    arch: str = ""
    version: str = ""

    @staticmethod
    def of(text: str) -> PackageId:
        """Parse the result of ``str``, which journals, locks and JSON contain."""
        known, _, version = text.partition("=")
        name, _, arch = known.partition(":")
        return PackageId(name, arch, version)

    def __lt__(self, other: PackageId) -> bool:
        return (self.name, self.arch, self.version) < (other.name, other.arch, other.version)

    def __str__(self) -> str:
        return f"{self.name}{self.arch and f':{self.arch}'}{self.version and f'={self.version}'}"
