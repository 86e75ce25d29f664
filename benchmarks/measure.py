"""What a command costs: processor time and peak memory of it and all that it waited for, as the kernel counts them."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of a command.

    Attributes:
        cpu_s: user and system time, children included.
        peak_mb: the largest resident set that any one of its processes had.
    """

    cpu_s: float
    wall_s: float
    peak_mb: float
    exit_status: int


def cost(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Cost:
    """What one run of ``argv`` costs; its output is thrown away.

    This process must stay small: until a child calls exec, the kernel counts what it has of its parent's memory.
    """
    started = time.monotonic()
    nothing = subprocess.DEVNULL
    child = subprocess.Popen(argv, stdin=nothing, stdout=nothing, stderr=nothing, env=env)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - started
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, child.returncode)


def side_by_side(runs: Mapping[str, Callable[[], Cost]], times: int) -> dict[str, Cost]:
    """As ``median`` for each, in turns, so that a busy moment of the machine meets them all alike."""
    for run in runs.values():
        run()
    rounds = [{name: run() for name, run in runs.items()} for _ in range(times)]
    return {name: median_of([one[name] for one in rounds]) for name in runs}


def median_of(costs: Sequence[Cost]) -> Cost:
    """The median of each figure; the largest of peaks and exit statuses."""
    return Cost(
        statistics.median(one.cpu_s for one in costs),
        statistics.median(one.wall_s for one in costs),
        max(one.peak_mb for one in costs),
        max(one.exit_status for one in costs),
    )


def title(text: str) -> None:
    """A heading on the screen."""
    print(f"\n{text}")


def row(name: str, *cells: str) -> None:
    """A line of a table on the screen."""
    print(f"  {name:38}", *(f"{cell:>14}" for cell in cells), flush=True)
