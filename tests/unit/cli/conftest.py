from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the screen Unicode, whatever the machine's locale, and no configured width."""
    for name in ("LC_ALL", "LC_CTYPE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setattr(sys, "argv", ["gpunode"])
