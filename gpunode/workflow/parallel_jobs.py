"""Parallel jobs, one for each of many reports, in processes with limits of their own.

A damaged or malicious report loses only its own result. Only results are returned, so a thousand reports take no more
memory than one.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from gpunode.errors import GpunodeError
from gpunode.values import dataclass

# A report takes a fraction of a second and some 10 MB; the largest that is accepted (256 MiB) takes somewhat more.
_MAX_JOB_MEMORY_BYTES: Final = 3 << 30
# No report can be read with less.
_MIN_JOB_MEMORY_BYTES: Final = 512 << 20
_CPU_LIMIT_S: Final = 60
_MAX_PROCESSES: Final = 16

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobFailure:
    """The reason why a job has no answer."""

    why: str


def run_parallel(items: Sequence[T], job: Callable[[T], R], processes: int = 0) -> Iterator[R | JobFailure]:
    """Yield the result of ``job`` for each of ``items``, in their order, as soon as it is known.

    The items are pickled; ``job`` is inherited and may hold anything. ``processes`` 0 means one per core.
    """
    gc.freeze()
    # All workers share half of the free memory; the other half is for jobs that need more, run one at a time.
    half = available_memory_bytes() // 2
    cores = len(os.sched_getaffinity(0))
    beside = min(processes or min(cores, _MAX_PROCESSES), max(1, half // _MIN_JOB_MEMORY_BYTES), max(1, len(items)))
    alone = _clamp_memory(half)
    with _make_pool(beside, _clamp_memory(half // beside), job) as pool:
        try:
            running = [_submit(pool, item) for item in items]
            running.reverse()
            for item in items:
                yield _job_result(item, running.pop(), alone, job)
        except BaseException:  # the caller has left: drop what has not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _clamp_memory(size: int) -> int:
    return max(_MIN_JOB_MEMORY_BYTES, min(_MAX_JOB_MEMORY_BYTES, size))


def _make_pool(processes: int, memory: int, job: Callable[[T], R]) -> ProcessPoolExecutor:
    # Forked processes share what is loaded and need not spend half a second on imports.
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=(memory, job))


_job: Callable[[Any], object]


def _start_worker(memory: int, job: Callable[[Any], object]) -> None:
    """Limit the memory of this process, and leave Ctrl-C to its parent."""
    global _job
    _job = job
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    needed = memory + own_address_space_bytes()  # loaded pages are shared, yet count for each process
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
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


def _job_result(item: T, future: Future[Any] | None, memory: int, job: Callable[[T], R]) -> R | JobFailure:
    """Return the result for ``item``; if its process was killed or ran out of memory, run it again alone.

    Another job may have got the process killed.
    """
    try:
        if future is not None and (answer := future.result()) is not None:
            return answer  # type: ignore[no-any-return]
    except BrokenProcessPool:
        pass
    try:
        with _make_pool(1, memory, job) as pool:
            answer = pool.submit(_run_job, item).result()
    except BrokenProcessPool:
        return JobFailure("the process that read it was killed; it may need too much memory")
    if answer is None:
        return JobFailure(f"it took more than {memory / (1 << 30):.1f} GiB of memory")
    return answer  # type: ignore[no-any-return]


def _run_job(item: object) -> Any:
    """Return the job's answer, which is never None, or its failure; None if this process ran out of memory."""
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_LIMIT_S)
    try:
        return _job(item)
    except GpunodeError as error:
        return JobFailure(f"{error.what}: {error.why}" if error.why else error.what)
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


# Without /proc/meminfo: what a small machine has free.
_FALLBACK_FREE_BYTES: Final = 2 << 30
_MEM_AVAILABLE_LINE: Final = re.compile(r"^MemAvailable:\s+(\d{1,18}) kB$", re.MULTILINE)


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Return the free memory: the lower of the kernel's and the cgroup's values."""
    available = _MEM_AVAILABLE_LINE.search(_read_text(root / "proc/meminfo"))
    free = int(available[1]) << 10 if available else _FALLBACK_FREE_BYTES
    return min([free, *_cgroup_free_bytes(root / "sys/fs/cgroup")])


def own_address_space_bytes(root: Path = Path("/")) -> int:
    """Return the address space of this process; 0 if unknown."""
    pages = _read_text(root / "proc/self/statm").partition(" ")[0]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") if _is_number(pages) else 0


def _cgroup_free_bytes(folder: Path) -> list[int]:
    """Return the free bytes of a container's own cgroup (version 2 or 1, mounted as the root); none on a host."""
    names = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    pairs = [tuple(_read_text(folder / name).strip() for name in pair) for pair in names]
    return [max(0, int(most) - int(used)) for most, used in pairs if _is_number(most) and _is_number(used)]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,19}", text) is not None


def _read_text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
