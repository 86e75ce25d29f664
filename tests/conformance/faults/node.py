"""A root small enough to be made a thousand times, and its invariants whatever the disk does."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from gpunode.journal.record import Intent
from gpunode.journal.store import Store
from tests.conformance.faults.runs import AnotherCall, Answer, Call, Fault, calls, run
from tests.conformance.warming import warm_up

Verb: TypeAlias = Literal["setup", "rollback"]
VERBS: tuple[Verb, ...] = ("setup", "rollback")
Entry: TypeAlias = tuple[int, int, int, bytes, dict[str, bytes]]
Tree: TypeAlias = dict[str, Entry]

CONFIG = "etc/containerd/config.toml"
_OS_RELEASE = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
_DPKG_STATUS = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n\n"
_TEMPORARY = re.compile(r"\.gpunode-[0-9a-f]{8}|\.[0-9a-f]{64}\.\d+")
_SETUP = ("setup", "--gpu", "10de:1b80", "--only", "runtime-config", "--runtime", "containerd", "--yes")
_ROLLBACK = ("rollback", "--yes")
# Nothing was begun (usage, refused), or a change failed; 141 if the reader of the answer is gone.
_TRIES = 4
_FAILED = frozenset({2, 3, 6, 141})
_UNCHANGED = ("the file is as it was", "nothing was changed", "this change was not made")


@dataclass(frozen=True, slots=True)
class Case:
    """The initial content of the root, and the requested form of the answer."""

    name: str
    config: bytes | None
    json: bool = True

    def make(self, root: Path) -> None:
        """Make ``root`` a tree that gpunode accepts as a system."""
        for path, text in (("etc/os-release", _OS_RELEASE), ("var/lib/dpkg/status", _DPKG_STATUS)):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        (root / "run").mkdir()
        if self.config is not None:
            (root / CONFIG).parent.mkdir(parents=True)
            (root / CONFIG).write_bytes(self.config)
            with suppress(OSError):  # a container may forbid it
                os.setxattr(root / CONFIG, "trusted.note", b"kept")

    def arguments(self, verb: Verb, root: Path) -> tuple[str, ...]:
        """Return the command line of ``verb`` on ``root``."""
        words = _SETUP if verb == "setup" else _ROLLBACK
        return (*words, "--root", str(root), *(["--json"] if self.json else []))


# One replaces a file and answers a program; the other creates a file with its folder and answers a person.
REPLACE = Case("replace", (b"# " + b"written by hand " * 6 + b"by me.\n") * 100)
CREATE = Case("create", None, json=False)
CASES = (REPLACE, CREATE)


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A case in progress: the root before a verb, and the permitted states of /etc.

    Attributes:
        start: the root as the verb finds it.
        former: /etc before any setup; ``wanted`` is /etc after an undisturbed one.
    """

    case: Case
    verb: Verb
    start: Path
    former: Tree
    wanted: Tree

    @property
    def goal(self) -> Tree:
        """Return /etc as it must be after the verb."""
        return self.wanted if self.verb == "setup" else self.former

    def calls(self) -> tuple[Call, ...]:
        """Return the writing calls of an undisturbed run."""
        with _copy(self.start, "watched") as root:
            return calls(self.case.arguments(self.verb, root))

    def disturbed(self, root: Path, fault: Fault) -> Answer:
        """Return the answer of the verb on a new copy at ``root`` while ``fault`` happens."""
        for _ in range(_TRIES):
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(self.start, root, symlinks=True)
            with suppress(AnotherCall):
                return run(self.case.arguments(self.verb, root), fault)
        raise AssertionError(f"{fault} met another call each time")


Courses: TypeAlias = Callable[[Case, Verb], Course]


def prepared(case: Case, verb: Verb, folder: Path) -> Course:
    """Return the run of ``verb``, with its root below ``folder`` and its modules loaded, so that all runs are alike."""
    start, after = folder / "start", folder / "after"
    case.make(start)
    former = tree(start)
    shutil.copytree(start, after)
    _succeed(case, "setup", after)
    wanted = tree(after)
    with _copy(after, "undone") as undone:
        _succeed(case, "rollback", undone)
        assert tree(undone) == former, "without any fault a rollback leaves nothing behind, not even an empty folder"
    course = Course(case, verb, start if verb == "setup" else after, former, wanted)
    with _copy(course.start, "first") as root:
        warm_up(case.arguments(verb, root))
    return course


def _succeed(case: Case, verb: Verb, root: Path) -> None:
    answer = run(case.arguments(verb, root))
    assert answer.exit_code == 0, f"{verb} without any fault: {answer}"


def tree(root: Path) -> Tree:
    """Return mode, owner, content and extended attributes of everything in /etc."""
    return {str(path.relative_to(root)): _entry(path) for path in sorted((root / "etc").rglob("*"))}


def _entry(path: Path) -> Entry:
    status = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return status.st_mode, status.st_uid, status.st_gid, content, attributes


def temporaries(root: Path) -> list[str]:
    """Return the remaining drafts of files and backups."""
    return [str(path.relative_to(root)) for path in root.rglob(".*") if _TEMPORARY.fullmatch(path.name)]


def check(course: Course, root: Path, answer: Answer) -> None:
    """Assert that ``root`` lost nothing, the answer is true, and both a setup and a rollback succeed from there."""
    _says_what_happened(answer, json=course.case.json)
    if any(claim in f"{answer}" for claim in _UNCHANGED):
        assert _without_drafts(tree(root)) == tree(course.start), "it says that nothing changed, and something did"
    _is_whole(course, root)
    _every_backup_is_there(root)
    if answer.exit_code == 0:
        assert tree(root) == course.goal, "exit 0, and the node is not as it was to be"
        assert _commits(root), "exit 0, and the journal does not say that the run is done"
    with _copy(root, "onward") as onward:
        _leads_to(course, "setup", onward, course.wanted)
        _leads_to(course, "rollback", onward, course.former)
    with _copy(root, "back") as back:
        _leads_to(course, "rollback", back, course.former)


@contextmanager
def _copy(root: Path, name: str) -> Iterator[Path]:
    copy = root.with_name(name)
    shutil.copytree(root, copy, symlinks=True)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def _says_what_happened(answer: Answer, *, json: bool) -> None:
    assert "Traceback" not in answer.stderr, answer.stderr
    assert answer.exit_code in {0, *_FAILED}, answer
    if answer.exit_code in {0, 141}:
        return
    if json and answer.stdout.endswith("\n"):
        parts = _first_error(answer.stdout)
        assert all(parts), f"what, why and what next: {parts}"
    elif not json:
        lines = answer.stderr.splitlines()
        assert any(line.startswith("gpunode: ") for line in lines), answer
        assert any(line.strip().startswith("next: ") for line in lines), answer


def _first_error(stdout: str) -> tuple[str, str, str]:
    envelope = json.loads(stdout)
    assert envelope["status"] != "ok", envelope
    error = envelope["errors"][0]
    return error["what"], error["why"], error["hint"]


def _is_whole(course: Course, root: Path) -> None:
    """Assert that each file is as before or as after, and that others are drafts, which the next run removes."""
    for path, entry in _without_drafts(tree(root)).items():
        assert entry in (course.former.get(path), course.wanted.get(path)), f"{path} is neither: {entry}"


def _without_drafts(found: Tree) -> Tree:
    return {path: entry for path, entry in found.items() if not _TEMPORARY.fullmatch(Path(path).name)}


def _every_backup_is_there(root: Path) -> None:
    store = Store(root)
    for name in store.ids():
        for entry in store.read_with_contents(name):
            if isinstance(entry, Intent):
                assert all(content is not None for content in entry.change.contents)


def _commits(root: Path) -> bool:
    newest = Store(root).read_runs()[-1]
    return newest.commit is not None and newest.commit.result == "done"


def _leads_to(course: Course, verb: Verb, root: Path, goal: Tree) -> None:
    answer = run(course.case.arguments(verb, root))
    nothing_to_undo = verb == "rollback" and answer.exit_code == 2 and "nothing to roll back" in str(answer)
    assert answer.exit_code == 0 or nothing_to_undo, f"{verb} afterwards: {answer}"
    found = _without_drafts(tree(root)) if nothing_to_undo else tree(root)
    found = {path: entry for path, entry in found.items() if path in goal or not _is_empty_folder(root / path)}
    assert found == goal, f"{verb} afterwards leads elsewhere: {sorted(_differing(found, goal))}"
    if not nothing_to_undo:
        assert not temporaries(root)


def _is_empty_folder(path: Path) -> bool:
    """True for a folder that may stay when the very call that removes it fails, or the one before it."""
    return path.is_dir() and not any(path.iterdir())


def _differing(one: Tree, other: Tree) -> Iterator[str]:
    yield from (path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
