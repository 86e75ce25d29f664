"""A fleet: many reports, each diagnosed by itself, side by side on the cores.

Each is read in a process of its own making, with a limit of memory and of processor time: one that is damaged, or was
made to do harm, costs its own row and no other. What comes back of a report is its row, so a thousand take no more
memory than one.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from types import FrameType
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses import rules
from gpunode.diagnoses.model import Confidence, Layer, Severity
from gpunode.errors import GpunodeError
from gpunode.facts.evidence import Evidence
from gpunode.host import reports
from gpunode.host.bugs import keep_those_of_rules
from gpunode.host.memory import available_bytes, own_bytes
from gpunode.workflow.doctor import Examined, Verdict, diagnosed

Status: TypeAlias = Literal["healthy", "problem", "unknown", "unreadable"]
# A report takes a fraction of a second and some ten megabytes; the largest that is read at all (256 MiB) some more.
_MEMORY_BYTES: Final = 3 << 30
# Less is too little for any report.
_LEAST_BYTES: Final = 512 << 20
_PROCESSOR_S: Final = 60
_MOST_PROCESSES: Final = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One report's answer.

    Attributes:
        report: as it was named, or its path below the folder that was.
        path: where it is.
        node: the host's own name, where the report tells it.
        cause: the root cause; empty where none was found.
        others: further root causes.
        unknown: the questions that the evidence leaves open.
        error: why it could not be read or diagnosed.
    """

    report: str
    path: str
    status: Status
    node: str = ""
    cause: str = ""
    title: str = ""
    layer: Layer | None = None
    severity: Severity | None = None
    confidence: Confidence | None = None
    summary: str = ""
    others: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """A cause, and the reports whose root it is, be it one of several."""

    cause: str
    title: str
    reports: tuple[str, ...]


def rows(found: Sequence[reports.Found], processes: int = 0) -> Iterator[Row]:
    """A row for each report, in their order, as soon as it is known.

    Args:
        found: the reports.
        processes: how many work side by side; 0 takes one for each core.
    """
    rules()  # loaded once, here, not by every process
    gc.freeze()
    readable = [one for one in found if not one.problem]
    # Half of what is free is shared by all of them; the other half is for those that need more, one at a time.
    half = available_bytes() // 2
    beside = min(processes or min(_cores(), _MOST_PROCESSES), max(1, half // _LEAST_BYTES), max(1, len(readable)))
    alone = _between(half)
    with _pool(beside, _between(half // beside)) as pool:
        try:
            running = {one: _submitted(pool, one) for one in readable}
            for one in found:
                yield _unread(one, one.problem) if one.problem else _result(one, running.pop(one), alone)
        except BaseException:  # whoever asked has gone: what has not begun need not
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _unread(one: reports.Found, why: str) -> Row:
    return Row(one.name, one.path, "unreadable", error=why)


def tallies(answers: Iterable[Row]) -> tuple[Tally, ...]:
    """The root causes across the fleet, the most frequent first."""
    pairs = [(cause, row.report) for row in answers for cause in ((row.cause, *row.others) if row.cause else ())]
    counted = Counter(cause for cause, _ in pairs)
    ordered = sorted(counted, key=lambda cause: (-counted[cause], cause))
    return tuple(
        Tally(one, rules()[one].title, tuple(name for cause, name in pairs if cause == one)) for one in ordered
    )


def worst(answers: Iterable[Row]) -> Verdict:
    """``problem`` where any node has one, else ``unknown`` where anything could not be told or read."""
    statuses = {row.status for row in answers}
    if "problem" in statuses:
        return "problem"
    return "unknown" if statuses & {"unknown", "unreadable"} else "healthy"


def row_of(one: reports.Found, evidence: Evidence) -> Row:
    """What the report comes to."""
    examined = diagnosed(evidence)
    keep_those_of_rules(examined.diagnosis.bugs)
    row = Row(one.name, one.path, examined.verdict, _node(examined))
    row = replace(row, unknown=tuple(doubt.question for doubt in examined.diagnosis.unknown))
    roots = [finding for finding in examined.diagnosis.roots if finding.severity != "info"]
    if not roots:
        return row
    told = {name: getattr(roots[0], name) for name in ("cause", "title", "layer", "severity", "confidence", "summary")}
    return replace(row, **told, others=tuple(other.cause for other in roots[1:]))


def _node(examined: Examined) -> str:
    name = examined.snapshot.file("/proc/sys/kernel/hostname")
    return name.text.strip()[:253] if name is not None and name.outcome == "ok" else ""


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _between(size: int) -> int:
    return max(_LEAST_BYTES, min(_MEMORY_BYTES, size))


def _pool(processes: int, memory: int) -> ProcessPoolExecutor:
    # Forked: what is loaded is shared, and no process spends its first half second on imports.
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_limited, initargs=(memory,))


def _limited(memory: int) -> None:
    """This process ends before it takes the machine's memory, and leaves Ctrl-C to the one that started it."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = memory + own_bytes()  # what is loaded is shared with the others, and counts for each
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGVTALRM, _too_long)


class _TooLong(BaseException):
    """A report has had its share of processor time; none of those that catch exceptions on the way may keep it."""


def _too_long(_: int, __: FrameType | None) -> None:
    raise _TooLong


def _submitted(pool: ProcessPoolExecutor, one: reports.Found) -> Future[Row | None] | None:
    try:
        return pool.submit(_row, one)
    except BrokenProcessPool:
        return None


def _result(one: reports.Found, future: Future[Row | None] | None, memory: int) -> Row:
    """The row of ``one``; where its process was killed, or its share of memory did not do, that of a second try alone.

    Another may have had the process killed.
    """
    try:
        if future is not None and (row := future.result()) is not None:
            return row
    except BrokenProcessPool:
        pass
    try:
        with _pool(1, memory) as pool:
            row = pool.submit(_row, one).result()
    except BrokenProcessPool:
        return _unread(one, "the process that read it was killed; it may need too much memory")
    return row or _unread(one, f"it took more than {memory / (1 << 30):.1f} GiB of memory")


def _row(one: reports.Found) -> Row | None:
    """Its row; None where the memory of this process did not do."""
    signal.setitimer(signal.ITIMER_VIRTUAL, _PROCESSOR_S)
    try:
        return row_of(one, reports.read(one.path))
    except GpunodeError as error:
        return _unread(one, f"{error.what}: {error.why}" if error.why else error.what)
    except _TooLong:
        return _unread(one, f"it took more than {_PROCESSOR_S} s of processor time")
    except MemoryError:
        return None
    except Exception as error:  # a bug of ours, which must not cost the others their rows
        return _unread(one, f"a bug in gpunode: {type(error).__name__}: {error}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # gpunode seldom looks for dead circles; here a report's would stay until many more have been read.
        gc.collect()
