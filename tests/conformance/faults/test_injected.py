"""ENOSPC, EIO, EROFS and EDQUOT as the result of every writing call of setup and rollback, one at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.conformance.faults import runs
from tests.conformance.faults.node import CASES, VERBS, Case, Course, Courses, Verb, check
from tests.conformance.faults.runs import Call, Fault
from tests.fakes.examples import sample

pytestmark = pytest.mark.skipif(bool(runs.why_not()), reason=runs.why_not())
ERRORS = ("ENOSPC", "EIO", "EROFS", "EDQUOT")
# The kinds of calls of the runs; the first test fails if this list becomes incomplete.
KINDS = ("open", "write", "size", "sync", "rename", "unlink", "mkdir", "mode", "owner", "attribute")

Watched: TypeAlias = Callable[[Course], tuple[Call, ...]]


@pytest.fixture(scope="module")
def watched() -> Watched:
    """Return the writing calls of a run, looked up once."""
    return cache(lambda course: course.calls())


def test_every_kind_of_writing_call_is_tested(courses: Courses, watched: Watched) -> None:
    made = {call.kind for case in CASES for verb in VERBS for call in watched(courses(case, verb))}

    assert made <= set(KINDS)
    assert len(made) >= len(KINDS) - 1, "without extended attributes there is one kind less"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fresh_python_makes_the_same_calls(
    courses: Courses, watched: Watched, tmp_path: Path, case: Case, verb: Verb
) -> None:
    course, root = courses(case, verb), tmp_path / "root"
    shutil.copytree(course.start, root, symlinks=True)

    own, others = runs.calls_of_python(case.arguments(verb, root))

    assert [call.name for call in own if not call.answers] == [c.name for c in watched(course) if not c.answers]
    assert not [call for call in others if str(root) in call.arguments], "no thread and no child writes there"


def _of_kind(kind: str, calls: tuple[Call, ...]) -> tuple[tuple[int, Call], ...]:
    """Return the calls of that kind, each with its index among all calls, by which the errors alternate."""
    return tuple((place, call) for place, call in enumerate(calls) if call.kind == kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_failed_call_loses_nothing(
    courses: Courses, watched: Watched, tmp_path: Path, case: Case, verb: Verb, kind: str
) -> None:
    course = courses(case, verb)
    calls = _of_kind(kind, watched(course))
    for place, call in sample(calls, f"{case.name} {verb}", lambda one: str(one[0]), 2):
        _try(course, call, ERRORS[place % len(ERRORS)], tmp_path / "root")


@pytest.mark.long
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_call_failing_with_every_error_loses_nothing(
    courses: Courses, watched: Watched, tmp_path: Path, case: Case, verb: Verb, kind: str, error: str
) -> None:
    course = courses(case, verb)
    for place, call in _of_kind(kind, watched(course)):
        if ERRORS[place % len(ERRORS)] != error:
            _try(course, call, error, tmp_path / "root")


def _try(course: Course, call: Call, error: str, root: Path) -> None:
    answer = course.disturbed(root, Fault(call.name, call.number, error))
    try:
        check(course, root, answer)
    except AssertionError as problem:
        raise AssertionError(f"{error} at {call}; {answer}\n{problem}") from problem
