from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpunode.change import Change, FileChange, Trigger, sort_changes, sort_triggers
from gpunode.change import triggers_of as owed_by
from tests.laws.strategies import changes, settled_changes, settled_files, triggers


@given(settled_changes)
def test_double_inverse_is_the_change(change: Change) -> None:
    back = change.inverse()
    assert back is not None
    assert back.inverse() == change


@given(changes)
def test_inverse_swaps_before_and_after_or_does_not_exist(change: Change) -> None:
    back = change.inverse()
    if back is not None and not hasattr(change, "argv"):
        assert (back.before, back.after) == (change.after, change.before)  # type: ignore[union-attr]


@given(st.lists(settled_files))
def test_inverse_has_the_same_triggers(there: Sequence[FileChange]) -> None:
    back = [back for change in reversed(there) if (back := change.inverse()) is not None]
    assert owed_by(back) == owed_by(there)


@given(st.lists(changes), st.randoms())
def test_stage_order_is_total_between_kinds_and_stable_within(some: list[Change], rng: random.Random) -> None:
    first = sort_changes(some)
    assert sort_changes(first) == first
    assert sorted(map(repr, first)) == sorted(map(repr, some))
    for kind in {type(change) for change in some}:
        assert [c for c in first if type(c) is kind] == [c for c in some if type(c) is kind]
    rng.shuffle(some)
    assert [type(change) for change in sort_changes(some)] == [type(change) for change in first]


@given(st.lists(triggers), st.randoms())
def test_triggers_are_settled_once_in_a_fixed_order(some: list[Trigger], rng: random.Random) -> None:
    order = sort_triggers(some)
    rng.shuffle(some)
    assert sort_triggers(some) == order
    assert len(order) == len(set(some))
    kinds = [trigger.kind for trigger in order]
    assert kinds == sorted(kinds, key=["index-refresh", "daemon-reload", "initramfs", "cdi", "reload", "restart"].index)
