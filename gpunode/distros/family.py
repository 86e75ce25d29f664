"""What a distribution family answers, and what all that use apt have in common."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpunode.catalog.conflicts import pinned_names
from gpunode.catalog.driver import Choice
from gpunode.change import PackageState
from gpunode.recipe import Scope

PIN_FILE = "/etc/apt/preferences.d/gpunode-nvidia"

TOOLKIT_PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
"""The container toolkit; always all four, at one version."""

# Above 1000 apt goes back to an older version where a newer one is installed; below 0 it never takes a version.
_WANTED, _NEVER = 1001, -1


@dataclass(frozen=True, slots=True)
class Family:
    """The words of one distribution family.

    Attributes:
        id: as in os-release.
        origins: how the Origin begins of those archives whose own driver packages are never mixed with NVIDIA's.
        driver_packages: what apt is asked for: the fewest names that bring the driver of a scope.
        dkms_package: the one of them that builds the kernel modules.
        headers: the headers of exactly this kernel.
        headers_meta: the package that brings the headers of later kernels too, as the kernel's own meta package brings
            later kernels; None when no such kernel package is installed.
    """

    id: str
    name: str
    origins: tuple[str, ...]
    driver_packages: Callable[[Choice, Scope], tuple[str, ...]]
    dkms_package: Callable[[Choice], str]
    headers: Callable[[str], str]
    headers_meta: Callable[[str, Mapping[str, PackageState]], str | None]

    def pin(self, choice: Choice) -> bytes:
        """The text of PIN_FILE: driver packages come from NVIDIA's repository and in the chosen version, or not at all.

        Of the records that match a version, apt takes the first (apt_preferences(5)): the distribution's own packages
        are out even where their version would fit, then what fits is wanted, then the rest is out, so that a name that
        the chosen branch lacks never brings in another branch. NVIDIA's repository is not named by its origin: a mirror
        may have another. ``:any`` holds foreign architectures too. The globs catch what NVIDIA may add to the branch;
        they stand in one record alone, since every apt command on the node pays for each of them.
        """
        names = pinned_names(choice.branch)
        version = f"{choice.exact}-*" if choice.exact else f"{choice.branch}.*"
        records = [
            _record(names, f"release o=/^({'|'.join(self.origins)})/", _NEVER),
            _record((*_GLOBS, *names), f"version {version}", _WANTED),
            _record(names, "release *", _NEVER),
        ]
        return "\n".join([_PIN_HEADER, *records]).encode()


_GLOBS = ("libnvidia-*", "nvidia-*")
_PIN_HEADER = """\
# Written by gpunode: NVIDIA driver packages come from NVIDIA's repository, in one branch.
# `gpunode setup` rewrites this file when it is edited; without it apt may move the driver to another branch.
"""


def repository_list(uri: str, suite: str, signed_by: str, arch: str = "") -> bytes:
    """A source list of one line, as NVIDIA's own packages and instructions write it."""
    options = [f"arch={arch}"] if arch else []
    return f"deb [{' '.join([*options, f'signed-by={signed_by}'])}] {uri} {suite}\n".encode()


@lru_cache(maxsize=16)
def _record(names: tuple[str, ...], pin: str, priority: int) -> str:
    # Remembered: on a node that is held at an exact version every driver step compares the file with its text.
    listed = " ".join(f"{name}:any" for name in names)
    package = textwrap.fill(
        f"Package: {listed}", width=120, subsequent_indent=" ", break_on_hyphens=False, break_long_words=False
    )
    return f"{package}\nPin: {pin}\nPin-Priority: {priority}\n"
