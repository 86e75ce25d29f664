"""The laws of remedies: ``gpunode setup`` does, on the very node it was printed for, what the remedy says it does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from gpunode.diagnoses import diagnose, rules
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot, snapshot
from gpunode.facts import pasted
from tests.laws.remedied import (
    STATES,
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
from tests.laws.systems import SYSTEMS
from tests.scenarios.reports import reports


@cache
def cases() -> tuple[tuple[str, str, Snapshot, tuple[Fix, ...]], ...]:
    """Every remedy with a command of ``gpunode setup``: where it was printed, its cause, the node."""
    return tuple(one for one in _every() if any(parsed(command) for fix in one[3] for command in fix.commands))


def _every() -> Iterator[tuple[str, str, Snapshot, tuple[Fix, ...]]]:
    for report in reports():
        node = snapshot(pasted.evidence(tuple((one["source"], one["text"]) for one in report.evidence)))
        for finding in diagnose(node).findings:
            yield report.name, finding.cause, node, finding.remedy
    for system in ("ubuntu", "debian"):
        node = snapshot(pasted.evidence(SYSTEMS[system]))
        for cause, rule in rules().items():
            yield system, cause, node, tuple(rule.remedy(node))


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case[0]}-{case[1]}")
def test_setup_does_something_where_a_remedy_names_it(case: tuple[str, str, Snapshot, tuple[Fix, ...]]) -> None:
    _, cause, node, remedy = case
    for setup, facts in (step for one in nodes_of(node, cause) for step in steps(remedy, one)):
        plans = planned(setup.recipe, facts, setup.only)
        refused = next((stage.refusal for stage in plans if stage.refusal), None)
        assert refused is None, (setup.command, refused)
        acting = {step.step.id for stage in plans for step in stage.steps if step.changes}
        assert acting, (setup.command, [(s.step.id, getattr(s.outcome, "reason", "")) for p in plans for s in p.steps])
        assert not setup.only or acting & set(setup.only), (setup.command, acting)


# What another release of the driver has to be: any but the installed, a newer one, or one of a newer branch.
ANOTHER = {
    "xid-31-driver-regression": lambda old, new: new != old,
    "cuda-init-802-kaslr-or-hmm": lambda old, new: new > old,
    "dkms-build-kernel-api": lambda old, new: new > old,
    "driver-too-old-for-image": lambda old, new: new[0] > old[0],
    "cuda-compat-lib-mismatch": lambda old, new: new[0] > old[0],
    "cuda-compat-not-supported-hw": lambda old, new: new[0] > old[0],
}
# Of a maintained branch, the newest of one, and of one that nobody maintains.
INSTALLED = ("580.95.05", "580.178.04", "550.163.01", "610.57.04")


@pytest.mark.parametrize(
    "case", [case for case in cases() if case[1] in ANOTHER], ids=lambda case: f"{case[0]}-{case[1]}"
)
def test_another_driver_is_another_one(case: tuple[str, str, Snapshot, tuple[Fix, ...]]) -> None:
    _, cause, node, remedy = case
    for version in (told,) if (told := version_told(node)) else INSTALLED:
        facts = node_with(node, cause, version)
        brought = [driver_of(after(now, planned(setup.recipe, now, setup.only))) for setup, now in steps(remedy, facts)]
        assert any(ANOTHER[cause](driver_of(facts), one) for one in brought), (version, brought)


def test_ctk_writes_something_where_a_remedy_names_it() -> None:
    named = 0
    for report in reports():
        evidence = pasted.evidence(tuple((one["source"], one["text"]) for one in report.evidence))
        for fix in (fix for finding in diagnose(snapshot(evidence)).findings for fix in finding.remedy):
            for asked in filter(None, map(ctk_of, fix.commands)):
                named += 1
                assert ctk_changes(without_moved(evidence, fix.commands), *asked).changes, (report.name, fix)
    assert named > 30


def test_every_cause_with_such_a_command_has_its_state() -> None:
    assert {cause for _, cause, _, _ in cases()} == set(STATES)
