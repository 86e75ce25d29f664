"""No two entries of one archive contradict each other after a run that wrote a list of package sources."""

from __future__ import annotations

from hypothesis import given, settings

from gpunode.facts.model import value_or
from tests.fakes.examples import examples
from tests.laws.source_lists import PATHS, Undone, contradictions, undone
from tests.unit.steps.machines import CUDA_LIST

quick = settings(max_examples=examples(150), deadline=None)


@quick
@given(undone())
def test_sources_are_valid_after_a_setup_and_its_undo(node: Undone) -> None:
    if node.set_up != node.before:
        assert contradictions(node.set_up) == []
        assert contradictions(node.after) == []


@quick
@given(undone())
def test_former_list_is_restored_or_named_with_its_backup(node: Undone) -> None:
    for change in node.undoing:
        is_back = value_or(node.after.file(change.path), None) == change.after
        assert is_back == (change.path not in {one.subject for one in node.kept})
    for one in node.kept:
        if one.subject in PATHS:
            assert "/var/lib/gpunode/objects/" in one.reason
            assert "sudo install -m 0644 /var/lib/gpunode/objects/" in one.reason


@quick
@given(undone())
def test_former_list_is_restored_where_ours_is_removed(node: Undone) -> None:
    former = {path: value_or(node.before.file(path), None) for path in PATHS}
    if not contradictions(node.before) and CUDA_LIST in {change.path for change in node.undoing}:
        assert {path: value_or(node.after.file(path), None) for path in PATHS} == former
