"""Package databases that cannot be read, and the command that finishes the work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import PackageChange, PackageState
from gpunode.facts.model import Known
from gpunode.package_id import PackageId
from gpunode.packages.deb import status as dpkg
from gpunode.packages.deb.repair import REPAIR_COMMAND
from gpunode.recipe import Recipe
from gpunode.steps.packages import REPAIR
from gpunode.workflow.undo import find_repair, is_superseded
from tests.unit.steps.machines import machine, planned

WHOLE = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
STATES = ("not-installed", "config-files", "installed", "half-installed", "unpacked", "half-configured")


@pytest.mark.parametrize("flag", ["ok", "reinstreq"])
@pytest.mark.parametrize("state", STATES)
def test_setup_and_rollback_agree_on_unfinished_dpkg_states(state: str, flag: str) -> None:
    status = f"{WHOLE}\nPackage: lab\nStatus: install {flag} {state}\nArchitecture: amd64\n"
    facts = replace(machine(), packages_interrupted=Known(dpkg.was_interrupted(dpkg.entries(status), ()), "test"))
    is_unfinished = state in {"half-installed", "unpacked", "half-configured"}
    assert find_repair(facts) == (REPAIR_COMMAND if is_unfinished else None)
    assert planned(REPAIR.plan(Recipe("test"), facts)).changes == ((REPAIR_COMMAND,) if is_unfinished else ())


@pytest.mark.parametrize(
    ("after", "others", "expected"),
    [
        (None, (), True),
        (PackageState("570.1"), (), True),
        (PackageState("580.1", auto=True), (), False),
        (None, (PackageId("somebodys"),), False),
    ],
    ids=["removed", "replaced", "only-marked", "another-stays"],
)
def test_repair_is_superseded_where_all_that_is_unconfigured_goes(
    after: PackageState | None, others: tuple[PackageId, ...], expected: bool
) -> None:
    driver = PackageId("nvidia-dkms-580")
    facts = replace(machine(), unconfigured=frozenset((driver, *others)))
    assert is_superseded(facts, [PackageChange(driver, PackageState("580.1"), after)]) is expected


def test_nothing_supersedes_a_repair_of_what_dpkg_cannot_remove() -> None:
    assert not is_superseded(machine(), [PackageChange(PackageId("nvidia-smi"), PackageState("580.1"), None)])
