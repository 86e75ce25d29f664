"""A disk that is really full, read-only, or accepts only part of a write: tmpfs of every size, file size limits."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import mounts
from tests.conformance.faults.node import (
    CASES,
    CONFIG,
    CREATE,
    REPLACE,
    VERBS,
    Case,
    Course,
    Courses,
    Verb,
    check,
    tree,
)
from tests.conformance.faults.runs import run
from tests.conformance.mounts import in_own_mounts, mount, unmount
from tests.fakes.examples import examples

_PAGE = 4096


pytestmark = pytest.mark.skipif(bool(mounts.why_not()), reason=mounts.why_not())


def _mount_with_room(course: Course, root: Path, what: str, free: int) -> None:
    """Mount a copy of the course's start at ``root``, with room for ``free`` more pages or inodes."""
    root.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "tmpfs", root)
    shutil.copytree(course.start, root, symlinks=True, dirs_exist_ok=True)
    now = os.statvfs(root)
    if what == "size":
        mount("-o", f"remount,size={(now.f_blocks - now.f_bfree + free) * _PAGE}", root)
    else:
        mount("-o", f"remount,nr_inodes={now.f_files - now.f_ffree + free}", root)


@pytest.mark.parametrize("what", ["size", "nr_inodes"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_full_disk_of_every_size_loses_nothing(
    courses: Courses, tmp_path: Path, case: Case, verb: Verb, what: str
) -> None:
    course, root = courses(case, verb), tmp_path / "root"

    def body() -> None:
        for free in _until_enough():
            _mount_with_room(course, root, what, free)
            answer = run(course.case.arguments(course.verb, root))
            check(course, root, answer)
            unmount(root)
            if answer.exit_code == 0 and free > 0:
                return
        raise AssertionError("no size was enough")

    in_own_mounts(body)


def _until_enough() -> Iterator[int]:
    """Yield every number of pages or inodes in the long run of the tests, else every fourth."""
    yield from range(0, 60, 4 if examples(1) == 1 else 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("below", "exit_code"), [("", 6), ("etc", 3), ("var/lib/gpunode", 6)])
def test_read_only_disk_is_reported_before_any_change(
    courses: Courses, tmp_path: Path, case: Case, below: str, exit_code: int
) -> None:
    course, root = courses(case, "setup"), tmp_path / "root"
    shutil.copytree(course.start, root, symlinks=True)
    (root / below).mkdir(parents=True, exist_ok=True)

    def body() -> None:
        mount("--bind", root / below, root / below)
        mount("-o", "remount,bind,ro", root / below)
        answer = run(case.arguments("setup", root))
        assert answer.exit_code == exit_code, answer
        assert "ead-only" in str(answer)
        assert "findmnt" in str(answer) or "write access" in str(answer)
        unmount(root / below)
        assert not [*root.glob("var/lib/gpunode/runs/*")]
        check(course, root, answer)

    in_own_mounts(body)


# A limit inside each written file: lock, journal, backups, file, log, answer.
@pytest.mark.parametrize("limit", [0, 60, 300, 700, 10_499, 11_000, 20_000])
def test_file_size_limit_loses_nothing(courses: Courses, tmp_path: Path, limit: int) -> None:
    course, root = courses(REPLACE, "setup"), tmp_path / "root"
    shutil.copytree(course.start, root, symlinks=True)

    answer = run(
        REPLACE.arguments("setup", root), prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )

    check(course, root, answer)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_short_writes_are_continued(courses: Courses, tmp_path: Path, case: Case, verb: Verb) -> None:
    course, root = courses(case, verb), tmp_path / "root"
    shutil.copytree(course.start, root, symlinks=True)

    answer = run(case.arguments(verb, root), prepare=_write_seven_bytes_at_a_time)

    assert answer.exit_code == 0
    check(course, root, answer)


def _write_seven_bytes_at_a_time() -> None:
    whole = os.write
    os.write = lambda fd, data: whole(fd, memoryview(data)[:7])


def test_full_standard_output_leaves_the_node_in_order(courses: Courses, tmp_path: Path) -> None:
    course, root = courses(CREATE, "setup"), tmp_path / "root"
    shutil.copytree(course.start, root, symlinks=True)

    def into_a_full_device() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    answer = run(CREATE.arguments("setup", root), prepare=into_a_full_device)

    assert answer.exit_code == 2
    assert "cannot be written" in answer.stderr
    assert tree(root) == course.former
    assert not (root / CONFIG).exists()
