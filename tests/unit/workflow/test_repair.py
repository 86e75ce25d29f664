"""Package databases that cannot be read, and the command that finishes the work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import PackageChange, PackageState
from gpunode.facts.model import Known
from gpunode.package_id import PackageId
from gpunode.packages.deb import REPAIR_COMMAND
from gpunode.packages.deb import status as dpkg
from gpunode.recipe import Recipe
from gpunode.steps.packages import REPAIR_STEP, find_packages_leaving_first
from gpunode.workflow.undo import find_package_repair
from tests.unit.steps.machines import machine, planned

WHOLE = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
STATES = ("not-installed", "config-files", "installed", "half-installed", "unpacked", "half-configured")


@pytest.mark.parametrize("flag", ["ok", "reinstreq"])
@pytest.mark.parametrize("state", STATES)
def test_setup_and_rollback_agree_on_unfinished_dpkg_states(state: str, flag: str) -> None:
    status = f"{WHOLE}\nPackage: lab\nStatus: install {flag} {state}\nArchitecture: amd64\n"
    facts = replace(machine(), packages_interrupted=Known(dpkg.was_interrupted(dpkg.parse_status(status), ()), "test"))
    is_unfinished = state in {"half-installed", "unpacked", "half-configured"}
    assert find_package_repair(facts) == (REPAIR_COMMAND if is_unfinished else None)
    assert planned(REPAIR_STEP.plan(Recipe("test"), facts)).changes == ((REPAIR_COMMAND,) if is_unfinished else ())


DRIVER, TOOL, KERNEL = map(PackageId, ("nvidia-dkms-580", "nvidia-smi", "linux-headers-6.8.0-99-generic"))
OTHER = PackageId("somebodys")


@pytest.mark.parametrize(
    ("changed", "after", "unconfigured", "leaving"),
    [
        (TOOL, None, {TOOL}, {TOOL}),
        (TOOL, PackageState("570.1"), {TOOL}, {TOOL}),
        (TOOL, PackageState("580.1", auto=True), {TOOL}, {}),
        (TOOL, None, {TOOL, OTHER}, {}),
        (DRIVER, None, {DRIVER, OTHER}, {DRIVER}),
        (DRIVER, None, {KERNEL}, {DRIVER}),
        (TOOL, None, {KERNEL}, {}),
        (DRIVER, None, {OTHER}, {}),
        (DRIVER, None, {}, {}),
    ],
    ids=[
        "removed",
        "replaced",
        "only-marked",
        "another-stays",
        "module-would-be-built",
        "kernel-would-build-it",
        "kernel-builds-what-stays",
        "builds-nothing",
        "nothing-unconfigured",
    ],
)
def test_packages_that_would_be_built_in_vain_leave_before_a_repair(
    changed: PackageId, after: PackageState | None, unconfigured: set[PackageId], leaving: set[PackageId]
) -> None:
    facts = replace(machine(), unconfigured=frozenset(unconfigured))
    found = find_packages_leaving_first(facts, [PackageChange(changed, PackageState("580.1"), after)])
    assert found == frozenset(leaving)
