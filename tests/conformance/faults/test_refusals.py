"""Files that setup and rollback refuse to change, reported before a run begins."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.journal.store import Store
from tests.conformance.faults.node import CONFIG, REPLACE, VERBS, Courses, Verb, tree
from tests.conformance.faults.runs import run
from tests.needs import lacking

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: setup does")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("why", ["hard links", "immutable"])
def test_file_that_cannot_be_preserved_stops_the_command(
    courses: Courses, tmp_path: Path, verb: Verb, why: str
) -> None:
    if why == "immutable" and (reason := lacking("chattr")):
        pytest.skip(reason)
    root = tmp_path / "root"
    shutil.copytree(courses(REPLACE, verb).start, root, symlinks=True)
    if why == "hard links":
        os.link(root / CONFIG, root / "etc/containerd/other")
    elif subprocess.run(["chattr", "+i", root / CONFIG], check=False, capture_output=True).returncode != 0:
        pytest.skip(f"no chattr on {tmp_path}")
    before, runs = tree(root), Store(root).ids()
    try:
        answer = run(REPLACE.arguments(verb, root))
    finally:
        if why == "immutable":
            subprocess.run(["chattr", "-i", root / CONFIG], check=False, capture_output=True)

    assert answer.exit_code == 3
    assert why in answer.stdout
    assert (tree(root), Store(root).ids()) == (before, runs)
