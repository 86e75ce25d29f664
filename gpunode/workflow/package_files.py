"""verify's check that the programs and libraries that GPU work needs are those of their packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpunode.check import Check
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Facts, known
from gpunode.host.port import HostView
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import matches
from gpunode.steps.packages import wants_toolkit
from gpunode.workflow.converge import look

_TITLE = "programs and libraries are those of their packages"
# What a node's programs reach the driver by: Debian's and NVIDIA's names, and Ubuntu's.
_OF_DRIVER = re.compile(r"libcuda1|libnvidia-ml1|nvidia-smi|(?:libnvidia-compute|nvidia-utils)(?:-\d{3}(?:-server)?)?")
_CODE = re.compile(r"/s?bin/[^/]+\Z|\.so(?:\.[\d.]+)?\Z")


def package_file_checks(recipe: Recipe, facts: Facts, host: HostView) -> Iterator[Check]:
    """Yield the check of the toolkit's programs and the driver's libraries against their packages' checksums.

    A wrapper in place of the container runtime, or a library that somebody copied, is found. It may be meant.
    """
    packages = tuple(_packages(recipe, facts))
    if not packages:
        return
    probes = {package: system(facts).changed_files(package) for package in packages}
    answers = look(host, tuple(probes.values()))
    changed: dict[PackageId, list[str]] = {}
    for package, probe in probes.items():
        if (answer := answers[probe.key]).outcome != "ok":
            why = f"{probe.source}: {answer.error or answer.outcome}"
            yield Check("package-files", _TITLE, "not run", why, f"see what it says: {probe.source}")
            return
        if paths := [path for path in system(facts).changed_in(answer.text) if _CODE.search(path)]:
            changed[package] = paths
    if not changed:
        yield Check("package-files", _TITLE, "passed", f"by the checksums of {', '.join(map(str, packages))}")
        return
    named = ", ".join(path for paths in changed.values() for path in paths)
    hint = f"look at them; if nobody meant it, install them anew:\nsudo {_reinstall(facts, changed)}"
    yield Check("package-files", _TITLE, "failed", f"changed or missing: {named}", hint)


def _reinstall(facts: Facts, packages: Iterable[PackageId]) -> str:
    installed = known(facts.packages, {})
    return system(facts).reinstall({package: installed[package] for package in packages})


def _packages(recipe: Recipe, facts: Facts) -> Iterator[PackageId]:
    installed = known(facts.packages, {})
    for package in sorted(installed):
        is_of_toolkit = wants_toolkit(recipe) and package in TOOLKIT_PACKAGES
        is_of_driver = not package.arch and _OF_DRIVER.fullmatch(package.name) is not None
        if (is_of_toolkit or is_of_driver) and matches(installed[package], ""):
            yield package
