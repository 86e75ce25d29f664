"""The laws of remedies: ``gpunode setup`` does, on the very node it was printed for, what the remedy says it does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from gpunode.diagnoses import diagnose, rules
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot, snapshot
from gpunode.facts import pasted
from tests.laws.remedied import STATES, node_of, parsed, planned, steps
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
    for setup, facts in steps(remedy, node_of(node, cause)):
        plans = planned(setup.recipe, facts, setup.only)
        refused = next((stage.refusal for stage in plans if stage.refusal), None)
        assert refused is None, (setup.command, refused)
        acting = {step.step.id for stage in plans for step in stage.steps if step.changes}
        assert acting, (setup.command, [(s.step.id, getattr(s.outcome, "reason", "")) for p in plans for s in p.steps])
        assert not setup.only or acting & set(setup.only), (setup.command, acting)


def test_every_cause_with_such_a_command_has_its_state() -> None:
    assert {cause for _, cause, _, _ in cases()} == set(STATES)
