"""Parallel jobs, one for each of many reports, in processes with limits of their own.

A damaged or malicious report loses only its own result. Only results are returned, so a thousand reports take no more
memory than one.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import FrameType
from typing import Any, Final, TypeVar

from gpunode.errors import GpunodeError
from gpunode.fast_dataclass import dataclass

# A report takes a fraction of a second and some 10 MB; a few need more, and get it alone.
_JOB_MEMORY_BYTES: Final = 1 << 30
_LONE_JOB_MEMORY_BYTES: Final = 3 << 30
_CPU_LIMIT_S: Final = 60
_MAX_PROCESSES: Final = 16
_SET_PARENT_DEATH_SIGNAL: Final = 1  # <linux/prctl.h>

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobFailure:
    """The reason why a job has no answer."""

    why: str


def run_parallel(items: Sequence[T], job: Callable[[T], R]) -> Iterator[R | JobFailure]:
    """Yield the result of ``job`` for each of ``items``, in their order, as soon as it is known.

    The items are pickled; ``job`` is inherited and may hold anything.
    """
    gc.freeze()
    processes = min(len(os.sched_getaffinity(0)), _MAX_PROCESSES, max(1, len(items)))
    with _make_pool(processes, _JOB_MEMORY_BYTES, job) as pool:
        try:
            running = [_submit(pool, item) for item in items]
            running.reverse()
            for item in items:
                yield _job_result(item, running.pop(), job)
        except BaseException:  # the caller has left: drop what has not begun, and what runs
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _make_pool(processes: int, memory: int, job: Callable[[T], R]) -> ProcessPoolExecutor:
    # Forked processes share what is loaded and need not spend half a second on imports.
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=(memory, job))


_job: Callable[[Any], object]


def _start_worker(memory: int, job: Callable[[Any], object]) -> None:
    """Limit the memory of this process, leave Ctrl-C to its parent, and die with it."""
    global _job
    _job = job
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGVTALRM, _raise_cpu_time_exceeded)


class _CpuTimeExceeded(BaseException):
    """A report has used up its processor time; derived from BaseException so that no handler swallows it."""


def _raise_cpu_time_exceeded(_: int, __: FrameType | None) -> None:
    raise _CpuTimeExceeded


def _submit(pool: ProcessPoolExecutor, item: object) -> Future[Any] | None:
    try:
        return pool.submit(_run_job, item)
    except BrokenProcessPool:
        return None


def _job_result(item: T, future: Future[Any] | None, job: Callable[[T], R]) -> R | JobFailure:
    """Return the result for ``item``; if its process was killed or ran out of memory, run it again alone.

    Another job may have got the process killed.
    """
    try:
        if future is not None and (answer := future.result()) is not None:
            return answer  # type: ignore[no-any-return]
    except BrokenProcessPool:
        pass
    try:
        with _make_pool(1, _LONE_JOB_MEMORY_BYTES, job) as pool:
            answer = pool.submit(_run_job, item).result()
    except BrokenProcessPool:
        return JobFailure("the process that read it was killed; it may need too much memory")
    if answer is None:
        return JobFailure(f"it takes more memory than it may: at most {_LONE_JOB_MEMORY_BYTES >> 30} GiB")
    return answer  # type: ignore[no-any-return]


def _run_job(item: object) -> Any:
    """Return the job's answer, which is never None, or its failure; None if this process ran out of memory."""
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_LIMIT_S)
    try:
        return _job(item)
    except GpunodeError as error:
        return JobFailure(error.what_and_why)
    except _CpuTimeExceeded:
        return JobFailure(f"it took more than {_CPU_LIMIT_S} s of processor time")
    except MemoryError:
        return None
    except Exception as error:  # a bug of ours must not cost other reports their answers
        return JobFailure(f"a bug in gpunode: {type(error).__name__}: {error}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # gpunode rarely collects reference cycles; those of a report would stay until many more have been read.
        gc.collect()
