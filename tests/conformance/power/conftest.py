"""The story that all tests of this folder use, recorded once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.power.node import Story, small_system, start
from tests.conformance.power.recording import cannot_trace
from tests.conformance.warming import warm_up

_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder in memory if possible: thousands of small nodes are made, and syncing them is pointless."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        yield tmp_path_factory.mktemp("crash")
        return
    folder = Path(tempfile.mkdtemp(prefix="gpunode-crash-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def story(scratch: Path) -> Story:
    """Record a runtime set up, set up differently and rolled back; then a new one set up and rolled back."""
    if os.geteuid() != 0:
        pytest.skip("needs root: gpunode changes nothing without it")
    if reason := cannot_trace():
        pytest.skip(reason)
    told = start(scratch / "story", small_system())
    rehearsed = start(scratch / "rehearsal", small_system())
    for runtime in ("containerd", "docker"):
        for argv in (rehearsed.recipe(runtime), ("rollback", "--yes")):
            warm_up((*argv, "--root", str(rehearsed.root)))
    told.run(told.recipe("containerd"))
    told.run(told.recipe("containerd", default=True))
    told.undo()
    told.run(told.recipe("docker"))
    told.undo()
    return told
