"""Every file that a step reads in a test is one that gpunode reads from a node."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gpunode.change import FileState
from gpunode.facts.model import Fact, Facts
from gpunode.facts.probes import FILES, FOLDERS

# Files named in a runtime's files are read after those, and the file of `[mig]` once the recipe is known.
_OF_THE_RECIPE = "/etc/mig.yaml"
_READ_RUNTIMES = frozenset(
    f"gpunode.{name}" for name in ("facts.access", "runtimes.file_states", "runtimes.installations", "steps.runtime")
)


@pytest.fixture(autouse=True)
def reads_only_what_is_probed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    read, look = set[str](), Facts.file

    def file(facts: Facts, path: str) -> Fact[FileState | None]:
        if sys._getframe(1).f_globals["__name__"] not in _READ_RUNTIMES:
            read.add(path)
        return look(facts, path)

    monkeypatch.setattr(Facts, "file", file)
    yield
    unprobed = {path for path in read - {"", _OF_THE_RECIPE, *FILES} if path.rpartition("/")[0] not in FOLDERS.values()}
    assert not unprobed, f"no node is asked for {sorted(unprobed)}: add them to STEP_FILES in facts/probes.py"
