"""The place of the laws' journals."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

_MEMORY = "/dev/shm"


@pytest.fixture(scope="session", autouse=True)
def keep_journals_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write temporary folders to memory, where this machine has such a place.

    The laws sync thousands of journals, which took a fifth of their time; none of them turns a machine off.
    """
    tmp_path_factory.getbasetemp()  # pytest keeps its folders after the run, so they stay on the disk
    if not (os.path.ismount(_MEMORY) and os.access(_MEMORY, os.W_OK)):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", _MEMORY)
        yield
