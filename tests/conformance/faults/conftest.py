"""The runs that the tests of this folder disturb."""

from __future__ import annotations

import pytest

from tests.conformance.faults.node import Case, Course, Courses, Verb, prepared


@pytest.fixture(scope="package")
def courses(tmp_path_factory: pytest.TempPathFactory) -> Courses:
    """Return each verb of each case, prepared once."""
    known: dict[tuple[str, Verb], Course] = {}

    def look_up(case: Case, verb: Verb) -> Course:
        if (case.name, verb) not in known:
            known[case.name, verb] = prepared(case, verb, tmp_path_factory.mktemp(f"{case.name}-{verb}"))
        return known[case.name, verb]

    return look_up
