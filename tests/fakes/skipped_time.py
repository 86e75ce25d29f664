"""Time that gpunode skips instead of waiting."""

from __future__ import annotations

import time

import pytest


class SkippedTime:
    """Lets no time pass when gpunode waits, and moves its clock on instead.

    Attributes:
        waits: the seconds of every wait.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[float] = []
        monkeypatch.setattr("time.sleep", self.waits.append)
        monkeypatch.setattr("time.monotonic", lambda now=time.monotonic: now() + self.total_s)

    @property
    def total_s(self) -> float:
        """The seconds of all waits."""
        return sum(self.waits)
