"""Measure commands: processor time and peak memory of a command and its children, as the kernel counts them."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run of a command.

    Attributes:
        cpu_s: user and system time, children included.
        peak_mb: the largest resident set of any of its processes.
    """

    cpu_s: float
    wall_s: float
    peak_mb: float
    exit_status: int


def measure_command(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Cost:
    """Run ``argv`` once and return its cost; its output is discarded.

    This process must stay small: until a child calls exec, the kernel counts memory that it shares with its parent.
    """
    started = time.monotonic()
    devnull = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=devnull, stdout=devnull, stderr=devnull, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - started
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, process.returncode)


def measure_in_turns(runs: Mapping[str, Callable[[], Cost]], times: int) -> dict[str, Cost]:
    """Return the median cost of each run, in turns, so that other load on the machine affects all of them equally."""
    for run in runs.values():
        run()
    rounds = [{name: run() for name, run in runs.items()} for _ in range(times)]
    return {name: median_cost([costs[name] for costs in rounds]) for name in runs}


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Return the median of each time, and the largest peak and exit status."""
    return Cost(
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.wall_s for cost in costs),
        max(cost.peak_mb for cost in costs),
        max(cost.exit_status for cost in costs),
    )


def print_title(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}")


def print_row(name: str, *cells: str) -> None:
    """Print a row of a table."""
    print(f"  {name:38}", *(f"{cell:>14}" for cell in cells), flush=True)
