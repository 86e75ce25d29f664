"""The laws of remedies: on the node they were printed for, gpunode's commands do what the remedy says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import pytest

from gpunode.catalog import branches
from gpunode.catalog.gpus import find_model
from gpunode.diagnoses import remedies, rules_by_cause
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.facts import pasted
from gpunode.facts.model import Facts
from tests.laws.remedied import (
    STATES,
    Setup,
    after,
    ctk_changes,
    ctk_of,
    driver_of,
    node_with,
    nodes_of,
    parsed,
    planned,
    steps,
    version_told,
    without_moved,
)
from tests.laws.systems import SYSTEMS, VGPU
from tests.scenarios.reports import diagnosed_reports


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A remedy with ``gpunode setup``, and the node that it was printed for.

    Attributes:
        where: the report, or the system if there is no report.
    """

    where: str
    cause: str
    node: Snapshot
    remedy: tuple[Fix, ...]


@cache
def cases() -> Mapping[str, list[Case]]:
    """Return every such remedy, by its cause."""
    found: dict[str, list[Case]] = {}
    for one in _every_case():
        if any(parsed(command) for fix in one.remedy for command in fix.commands):
            found.setdefault(one.cause, []).append(one)
    return found


def _every_case() -> Iterator[Case]:
    for one in diagnosed_reports():
        for finding in one.diagnosis.findings:
            yield Case(one.report.name, finding.cause, one.node, finding.remedy)
    for system in ("ubuntu", "debian"):
        for where, more in ((system, ()), (f"{system}, a vGPU's guest", VGPU)):
            node = take_snapshot(pasted.collect_pieces((*SYSTEMS[system], *more)))
            for cause, rule in rules_by_cause().items():
                yield Case(where, cause, node, tuple(rule.remedy(node)))


@pytest.mark.parametrize("cause", STATES)
def test_setup_named_by_a_remedy_changes_the_node(cause: str) -> None:
    for case in cases()[cause]:
        for facts in nodes_of(case.node, cause):
            for setup, now in steps(case.remedy, facts):
                _does_something(case.where, setup, now)


def _does_something(where: str, setup: Setup, facts: Facts) -> None:
    """Assert that the plan refuses nothing and has a change of one of the named steps."""
    plans = planned(setup.recipe, facts, setup.only)
    refused = next((stage.refusal for stage in plans if stage.refusal), None)
    assert refused is None, (where, setup.command, refused)
    acting = {step.step.id for stage in plans for step in stage.steps if step.changes}
    outcomes = [(step.step.id, step.outcome) for stage in plans for step in stage.steps]
    assert acting, (where, setup.command, outcomes)
    assert not setup.only or acting & set(setup.only), (where, setup.command, acting)


def test_every_cause_with_a_setup_remedy_has_a_node_state() -> None:
    assert cases().keys() == STATES.keys()


Version = tuple[int, ...]
# The required release of the driver: any other than the installed one, a newer one, or one of a newer branch.
ANOTHER: Final[Mapping[str, Callable[[Version, Version], bool]]] = {
    "xid-31-driver-regression": lambda old, new: new != old,
    "cuda-init-802-kaslr-or-hmm": lambda old, new: new > old,
    "dkms-build-kernel-api": lambda old, new: new > old,
    "driver-too-old-for-image": lambda old, new: new[0] > old[0],
    "cuda-compat-lib-mismatch": lambda old, new: new[0] > old[0],
    "cuda-compat-not-supported-hw": lambda old, new: new[0] > old[0],
}
# A release of a maintained branch, the newest release of one, and a release of an unmaintained branch.
INSTALLED = ("580.95.05", "580.178.04", "550.163.01", "610.57.04")


@pytest.mark.parametrize("cause", ANOTHER)
def test_remedy_installs_another_driver(cause: str) -> None:
    for case in cases()[cause]:
        for version in (told,) if (told := version_told(case.node)) else INSTALLED:
            facts = node_with(case.node, cause, version)
            brought = [driver_of(run_setup(setup, now)) for setup, now in steps(case.remedy, facts)]
            is_another = [ANOTHER[cause](driver_of(facts), one) for one in brought]
            assert any(is_another), (case.where, version, brought)


def run_setup(setup: Setup, facts: Facts) -> Facts:
    """Return the node after the command."""
    return after(facts, planned(setup.recipe, facts, setup.only))


# Releases of maintained and unmaintained branches; the GPUs are a GTX 1080, a T4, an H100 and a B200.
RELEASES = ("535.288.01", "550.163.01", "580.95.05", "580.178.04", "590.48.01", "595.58.03", "595.91.07", "610.57.04")
DRIVEN = [
    (device, version)
    for device in ("1b80", "1eb8", "2330", "2901")
    for version in (*RELEASES, "615.71.09")
    if find_model(device).first_branch <= int(version[:3]) <= (find_model(device).last_branch or 999)
]


@pytest.mark.parametrize("wish", ["newer", "branch", "any"])
@pytest.mark.parametrize(("device", "version"), DRIVEN)
def test_newer_driver_is_newer_and_supports_the_gpu(wish: str, device: str, version: str) -> None:
    rows = (
        *SYSTEMS["ubuntu"],
        ("lspci -nn", f"01:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:{device}] (rev a1)"),
        ("modinfo nvidia", f"filename: /lib/modules/6.8.0-79-generic/updates/dkms/nvidia.ko\nversion: {version}\n"),
        ("uname -r", "6.8.0-79-generic"),
    )
    node = take_snapshot(pasted.collect_pieces(rows))
    (fix,) = remedies.change_driver(node, "a newer one", other_branch=wish == "branch", allow_older=wish == "any")
    facts = node_with(node, "driver-too-old-for-image", version)
    if not fix.commands:
        last = find_model(device).last_branch or 999
        assert int(version[:3]) == max(
            row.number for row in branches.all_branches() if row.is_maintained and row.number <= last
        )
        return
    ((setup, now),) = steps((fix,), facts)
    before, brought = driver_of(facts), driver_of(run_setup(setup, now))
    assert brought != before
    assert brought > before or wish == "any"
    assert brought[0] > before[0] or wish != "branch"


def test_ctk_named_by_a_remedy_writes_files() -> None:
    named = 0
    for one in diagnosed_reports():
        for fix in (fix for finding in one.diagnosis.roots for fix in finding.remedy):
            for asked in filter(None, map(ctk_of, fix.commands)):
                named += 1
                node = without_moved(pasted.collect_pieces(one.rows), fix.commands)
                assert ctk_changes(node, *asked).files, (one.report.name, fix)
    assert named > 30
