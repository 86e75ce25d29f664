"""The identity of a package, on the node, in changes, journals and locks. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PackageId:
    """A package by its name and architecture, and by its version where several stand beside one another.

    Attributes:
        arch: a foreign one, in the package system's words (``i386``). Empty for the host's own and for packages that
            run on any: one that becomes the other stays the same package.
        version: of a package that is installed beside its other versions and never upgraded, as RPM installs kernels:
            each is a package of its own. Empty for all others, whose version is a part of their state.
    """

    name: str
    arch: str = ""
    version: str = ""

    @staticmethod
    def of(text: str) -> PackageId:
        """The inverse of ``str``, which journals, locks and JSON hold."""
        known, _, version = text.partition("=")
        name, _, arch = known.partition(":")
        return PackageId(name, arch, version)

    def __str__(self) -> str:
        return f"{self.name}{self.arch and f':{self.arch}'}{self.version and f'={self.version}'}"
