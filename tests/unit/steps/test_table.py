"""Properties of the rows of the table of steps."""

from __future__ import annotations

from gpunode.facts.probes import STEP_FILES
from gpunode.steps.table import STEPS


def test_step_files_match_the_files_that_steps_read() -> None:
    """A step that reads a file without a probe is "cannot tell" everywhere; see tests/unit/steps/conftest.py."""
    named = {path: step.id for step in STEPS for path in step.files}
    assert named.keys() - set(STEP_FILES) == set(), "add it to STEP_FILES in facts/probes.py"
    assert set(STEP_FILES) - named.keys() == set(), "add it to `files` of the step that reads it"
