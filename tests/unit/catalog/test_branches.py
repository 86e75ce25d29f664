from __future__ import annotations

import pytest

from gpunode.catalog import branches

OPEN: frozenset[branches.ModuleFlavour] = frozenset({"open"})


def test_named_branches_are_current() -> None:
    assert branches.production().number == 595
    assert [branch.number for branch in branches.maintained_lts_branches()] == [620, 580]
    assert branches.newest_maintained_branch().number == 620


def test_branches_are_sorted_and_unique() -> None:
    numbers = [branch.number for branch in branches.all_branches()]

    assert numbers == sorted(set(numbers))


def test_lts_branches_580_and_620_have_their_properties() -> None:
    newest, former = branches.maintained_lts_branches()

    assert (former.has_suffixed_packages, former.flavours) == (True, frozenset({"open", "proprietary"}))
    assert (newest.has_suffixed_packages, newest.flavours) == (False, OPEN)
    assert (former.eol, former.newest_seen) == ("2028-06", "580.178.04")
    assert (newest.eol, newest.newest_seen) == ("2029-09", "620.70.06")


def test_no_branch_from_615_has_proprietary_modules() -> None:
    known = [branch for branch in branches.all_branches() if branch.number >= branches.FIRST_OPEN_ONLY_BRANCH]

    assert known
    assert all(branch.flavours == OPEN for branch in known)


def test_branch_newer_than_the_table_is_like_its_newest() -> None:
    future = branches.find(640)

    assert future is not None
    assert (future.number, future.newest_seen, future.has_suffixed_packages, future.flavours) == (640, "", False, OPEN)


@pytest.mark.parametrize("number", [0, 1, 471, 581, 599])
def test_gap_in_the_table_is_no_branch(number: int) -> None:
    assert branches.find(number) is None


def test_ended_branch_is_inactive() -> None:
    branch = branches.find(535)

    assert branch is not None
    assert (branch.kind, branch.is_maintained, branch.eol) == ("lts", False, "2026-06")
