"""The drivers in a distribution's own archive, and which of them a node gets. Source: distro_drivers.csv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import cast

from gpunode.catalog import branches, tables
from gpunode.catalog.branches import ModuleFlavour
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.catalog.gpus import GpuModel
from gpunode.catalog.releases import release
from gpunode.facts.model import Distro
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Refusal
from gpunode.recipe import Driver

_NVIDIA_HINT = 'take NVIDIA\'s packages: --driver-source nvidia, or source = "nvidia" under [driver]'


@dataclass(frozen=True, slots=True)
class DistroDriver:
    """A driver branch in a release's own archive.

    Attributes:
        flavours: the kernel modules that have the version of the rest.
        components: the components of the archive that have its packages, beside main.
    """

    branch: int
    flavours: frozenset[ModuleFlavour]
    components: tuple[str, ...]


def list_distro_drivers(distro: Distro) -> tuple[DistroDriver, ...]:
    """Return the drivers of a release's own archive, the preferred one first; none for an unknown release."""
    supported_release = release(distro)
    return _list_drivers(supported_release.distribution, supported_release.version) if supported_release else ()


@cache
def _list_drivers(distribution: str, version: str) -> tuple[DistroDriver, ...]:
    return tuple(
        DistroDriver(
            int(row["branch"]),
            frozenset(cast("list[ModuleFlavour]", row["flavours"].split())),
            tuple(row["components"].split()),
        )
        for row in tables.rows("distro_drivers.csv")
        if (row["distribution"], row["version"]) == (distribution, version)
    )


def choose_from_distro(models: Sequence[GpuModel], request: Driver, distro: Distro) -> DriverChoice | Refusal:
    """Return the driver of the release's own archive for all of ``models``, or why there is none."""
    here = list_distro_drivers(distro)
    limit = choose_driver(models, Driver())
    if not here:
        why = "the table of distributions' own drivers (gpunode/catalog/distro_drivers.csv) has no row for it"
        return Refusal(f"no driver of {_short_distro_name(distro)}'s own is known", why, _NVIDIA_HINT)
    if isinstance(limit, Refusal):
        return limit
    wanted = [driver for driver in here if _branch_satisfies(driver.branch, request.version)]
    if not wanted:
        listed = " and ".join(str(driver.branch) for driver in here)
        why = f"its own archive has branch {listed}"
        return Refusal(f"{_short_distro_name(distro)} has no driver {request.version} of its own", why, _NVIDIA_HINT)
    choices = [_try_distro_driver(models, request, driver, distro) for driver in wanted]
    return next((choice for choice in choices if isinstance(choice, DriverChoice)), choices[0])


def _short_distro_name(distro: Distro) -> str:
    return distro.name.partition(" (")[0]


def _branch_satisfies(branch: int, version: str) -> bool:
    """Return whether a branch satisfies a recipe's ``driver.version``."""
    row = branches.find(branch)
    return version == "auto" or version.partition(".")[0] == str(branch) or (row is not None and row.kind == version)


def _try_distro_driver(
    models: Sequence[GpuModel], request: Driver, driver: DistroDriver, distro: Distro
) -> DriverChoice | Refusal:
    version = request.version if request.version[0].isdigit() else str(driver.branch)
    branch_reason = f"{driver.branch} is in {_short_distro_name(distro)}'s own archive"
    asked = replace(request, version=version)
    choice = choose_driver(models, asked, branch_reason)
    if (
        isinstance(choice, DriverChoice)
        and choice.flavour not in driver.flavours
        and request.kernel_module_type == "auto"
    ):
        choice = choose_driver(models, replace(asked, kernel_module_type=next(iter(driver.flavours))), branch_reason)
    if isinstance(choice, Refusal):
        return replace(choice, hint=_NVIDIA_HINT)
    if choice.flavour not in driver.flavours:
        why = f"branch {driver.branch} of its own archive has the {' and '.join(sorted(driver.flavours))} modules only"
        return Refusal(
            f"{_short_distro_name(distro)} has no {choice.flavour} kernel modules of its own", why, _NVIDIA_HINT
        )
    return choice
