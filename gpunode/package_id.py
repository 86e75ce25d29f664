"""What a package is known by, on the node, in changes, journals and locks. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PackageId:
    """A package by its name and architecture.

    Attributes:
        arch: a foreign one, in the package system's words (``i386``). Empty for the host's own and for packages that
            run on any: one that becomes the other stays the same package.
    """

    name: str
    arch: str = ""

    @staticmethod
    def of(text: str) -> PackageId:
        """The inverse of ``str``, which journals, locks and JSON hold."""
        name, _, arch = text.partition(":")
        return PackageId(name, arch)

    def __str__(self) -> str:
        return f"{self.name}:{self.arch}" if self.arch else self.name
