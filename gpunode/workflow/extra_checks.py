"""Optional checks of verify: ``[expect]`` of a recipe, and the packages' files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpunode.check import Check, Status
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Facts, known
from gpunode.facts.nvml import NvmlInventory
from gpunode.host.port import HostView
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.recipe import Expect, Recipe
from gpunode.steps.installed_driver import matches
from gpunode.steps.packages import wants_toolkit
from gpunode.workflow.converge import run_probes

_RESEAT = "replace or reseat the hardware"


def expectation_checks(expect: Expect, inventory: NvmlInventory | None) -> Iterator[Check]:
    """Yield a check for each key of ``[expect]``, compared with NVML's answer."""
    for name, wanted, seen, agrees in _comparisons(expect, inventory):
        status: Status = "skipped" if inventory is None else "passed" if agrees else "failed"
        detail = f"expected {wanted}, " + ("NVML does not answer" if inventory is None else f"found {seen}")
        cure = "set driver.version in the recipe and run gpunode setup" if name == "driver" else _RESEAT
        yield Check(f"expect-{name}", f"expected {name}", status, detail, f"{cure}, or correct [expect]")


def _comparisons(expect: Expect, inventory: NvmlInventory | None) -> Iterator[tuple[str, object, object, bool]]:
    gpus = inventory.gpus if inventory else ()
    if expect.gpus is not None:
        yield "gpus", expect.gpus, len(gpus), len(gpus) == expect.gpus
    if expect.model:
        names = sorted({str(gpu.name) for gpu in gpus})
        yield "model", expect.model, ", ".join(names), bool(names) and all(expect.model in name for name in names)
    if expect.driver:
        seen = str(inventory.driver) if inventory else ""
        yield "driver", expect.driver, seen, f"{seen}.".startswith(f"{expect.driver}.")
    if expect.min_memory_mib is not None:
        sizes = [gpu.memory_mib if isinstance(gpu.memory_mib, int) else 0 for gpu in gpus]
        yield (
            "min_memory_mib",
            f"at least {expect.min_memory_mib}",
            sizes,
            bool(sizes) and min(sizes) >= expect.min_memory_mib,
        )
    if expect.ecc is not None:
        modes = [gpu.ecc for gpu in gpus]
        yield "ecc", expect.ecc, modes, bool(modes) and all(mode is expect.ecc for mode in modes)


_TITLE = "programs and libraries are those of their packages"
# What a node's programs reach the driver by: Debian's and NVIDIA's names, and Ubuntu's.
_DRIVER_LIBRARIES = re.compile(
    r"libcuda1|libnvidia-ml1|nvidia-smi|(?:libnvidia-compute|nvidia-utils)(?:-\d{3}(?:-server)?)?"
)
_CODE = re.compile(r"/s?bin/[^/]+\Z|\.so(?:\.[\d.]+)?\Z")


def package_file_checks(recipe: Recipe, facts: Facts, host: HostView) -> Iterator[Check]:
    """Yield the check of the toolkit's programs and the driver's libraries against their packages' checksums.

    A wrapper in place of the container runtime, or a library that somebody copied, is found. It may be meant.
    """
    packages = tuple(_packages(recipe, facts))
    if not packages:
        return
    probes = {package: system(facts).changed_files(package) for package in packages}
    answers = run_probes(host, tuple(probes.values()))
    changed: dict[PackageId, list[str]] = {}
    for package, probe in probes.items():
        if (answer := answers[probe.key]).outcome != "ok":
            why = f"{probe.source}: {answer.error or answer.outcome}"
            yield Check("package-files", _TITLE, "skipped", why, f"see what it says: {probe.source}")
            return
        if paths := [path for path in system(facts).changed_in(answer.text) if _CODE.search(path)]:
            changed[package] = paths
    if not changed:
        yield Check("package-files", _TITLE, "passed", f"by the checksums of {', '.join(map(str, packages))}")
        return
    named = ", ".join(path for paths in changed.values() for path in paths)
    hint = (
        f"look at them; if nobody changed them on purpose, reinstall the packages:\nsudo {_reinstall(facts, changed)}"
    )
    yield Check("package-files", _TITLE, "failed", f"changed or missing: {named}", hint)


def _reinstall(facts: Facts, packages: Iterable[PackageId]) -> str:
    installed = known(facts.packages, {})
    return system(facts).reinstall({package: installed[package] for package in packages})


def _packages(recipe: Recipe, facts: Facts) -> Iterator[PackageId]:
    installed = known(facts.packages, {})
    for package in sorted(installed):
        is_of_toolkit = wants_toolkit(recipe) and package in TOOLKIT_PACKAGES
        is_of_driver = not package.arch and _DRIVER_LIBRARIES.fullmatch(package.name) is not None
        if (is_of_toolkit or is_of_driver) and matches(installed[package], ""):
            yield package
