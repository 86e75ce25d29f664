"""Packages of a foreign architecture, and several installed versions of one package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.facts.model import Known
from gpunode.facts.project import project_changes
from gpunode.fast_dataclass import dataclass
from gpunode.journal.footprint import footprint_of_node
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Begin, Commit, Intent, decode, encode
from gpunode.package_id import PackageId
from gpunode.packages.deb.status import Database
from gpunode.packages.simulation import Action, Simulation, differences_from_plan
from gpunode.workflow.undo_plan import plan_package_restore
from tests.unit.steps.machines import machine

OLD, NEW = (PackageId("kernel-devel", version=f"5.14.0-{build}.el9") for build in (427, 503))
THERE, COMES = PackageState(OLD.version), PackageState(NEW.version)
INSTALL = PackageChange(NEW, None, COMES)


@dataclass(frozen=True, slots=True)
class Rpm(Database):
    """A package database without dependencies."""

    def find_needed(self, leaving: Collection[PackageId], changing: Collection[PackageId]) -> Mapping[PackageId, str]:
        return {}


@pytest.mark.parametrize(
    ("package", "text"),
    [
        (PackageId("libcuda1"), "libcuda1"),
        (PackageId("libcuda1", "i386"), "libcuda1:i386"),
        (NEW, "kernel-devel=5.14.0-503.el9"),
        (PackageId("kernel-devel", "i686", "1:5.14.0-503.el9"), "kernel-devel:i686=1:5.14.0-503.el9"),
    ],
)
def test_package_id_round_trips_through_text_and_journal(package: PackageId, text: str) -> None:
    assert str(package) == text
    assert PackageId.of(text) == package
    entry = Intent(1, "packages", "headers", PackageChange(package, None, None))
    assert decode(encode(entry), str.encode) == (entry,)


def test_second_version_is_installed_and_removed_beside_the_first() -> None:
    node = replace(machine(), packages=Known({OLD: THERE}, "rpm"))
    both = project_changes(node, [INSTALL])
    assert both.packages == Known({OLD: THERE, NEW: COMES}, "plan")
    back = INSTALL.inverse()
    assert back is not None
    assert project_changes(both, [back]).packages == Known({OLD: THERE}, "plan")


def test_removal_only_removes_the_version_that_was_added() -> None:
    begin = Begin("1", 0.0, "setup", "", "", "", "", "", ())
    added = footprint_of_node([RunRecord((begin, Intent(1, "packages", "headers", INSTALL), Commit("done")))]).packages
    newest = PackageId("kernel-devel", version="5.14.0-570.el9")
    there = {OLD: THERE, NEW: COMES, newest: PackageState(newest.version)}
    changes, notes = plan_package_restore({NEW: added[NEW].change.before}, there, Rpm(""))
    assert changes == (PackageChange(NEW, COMES, None),)
    assert notes == ()


def test_removal_of_another_version_is_not_in_the_plan() -> None:
    plan = [PackageChange(NEW, None, KnownAfter(why="headers"))]
    comes = Action("install", NEW, NEW.version)
    assert differences_from_plan(plan, Simulation((comes,), manager="dnf")) == ()
    goes = Action("remove", OLD, former=OLD.version)
    (said,) = differences_from_plan(plan, Simulation((comes, goes), manager="dnf"))
    assert said.startswith("dnf would remove kernel-devel=5.14.0-427.el9")
