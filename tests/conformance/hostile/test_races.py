"""A user who owns a folder swaps what stands in it, thousands of times, while root writes there."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpunode.change import FileState
from gpunode.errors import GpunodeError
from gpunode.host import files

STATE = FileState(b"written by gpunode\n", 0o644, os.geteuid(), os.getegid())
# Of ours; the attacker makes several in the time of each.
ATTEMPTS = 800


@contextmanager
def attacker(swap: Callable[[], None]) -> Iterator[None]:
    """A process of its own calls ``swap`` all the while."""
    child = os.fork()
    if not child:
        while True:
            with suppress(OSError):
                swap()
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Victim:
    """A file and a folder outside of what gpunode writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "outside"
        self.folder.mkdir()
        self.file = self.folder / "name"
        self.file.write_text("mine\n")
        self.file.chmod(0o640)
        self.before = self._look()

    def _look(self) -> tuple[object, ...]:
        status = self.file.lstat()
        return (
            sorted(os.listdir(self.folder)),
            self.file.read_bytes(),
            status.st_ino,
            status.st_mode,
            status.st_mtime_ns,
        )

    def is_untouched(self) -> bool:
        return self._look() == self.before


def swap_links(place: Path, victim: Path) -> Callable[[], None]:
    """``place`` is in turn a file, a link to the victim, and nothing."""
    draft = place.with_name("draft")

    def swap() -> None:
        draft.write_text("theirs\n")
        draft.replace(place)
        draft.symlink_to(victim)
        draft.replace(place)
        place.unlink()

    return swap


def swap_folders(place: Path, victim: Path) -> Callable[[], None]:
    """``place`` is in turn a folder and a link to the victim's folder; whatever gpunode makes there is put aside."""
    real, link, numbers = place.with_name("real"), place.with_name("link"), itertools.count()

    def begin() -> None:
        for path in (place, real, link):
            with suppress(OSError):
                os.rename(path, place.with_name(f"aside{next(numbers)}"))
        (place / "inner").mkdir(parents=True)
        link.symlink_to(victim)

    def swap() -> None:
        try:
            for here, there in ((place, real), (link, place), (place, link), (real, place)):
                os.rename(here, there)
        except OSError:
            begin()

    return swap


def attempts(act: Callable[[], object], victim: Victim) -> None:
    for _ in range(ATTEMPTS):
        with suppress(GpunodeError, OSError):
            act()
        assert victim.is_untouched()


@pytest.mark.parametrize("verb", ["replace", "remove", "read", "candidate"])
@pytest.mark.parametrize("what", ["the file", "its folder", "a folder above"])
def test_what_lies_outside_of_the_root_is_never_touched(tmp_path: Path, verb: str, what: str) -> None:
    victim = Victim(tmp_path)
    (victim.folder / "inner").mkdir()
    (victim.folder / "inner/name").write_text("mine\n")
    victim.before = victim._look()
    root = tmp_path / "root"
    folder = root / "world/inner"
    folder.mkdir(parents=True)
    place, outside = {
        "the file": (folder / "name", victim.file),
        "its folder": (folder, victim.folder),
        "a folder above": (root / "world", victim.folder),
    }[what]
    swap = (swap_links if what == "the file" else swap_folders)(place, outside)

    def act() -> None:
        match verb:
            case "replace":
                files.replace("/world/inner/name", STATE, root=str(root))
            case "remove":
                files.remove("/world/inner/name", root=str(root))
            case "read":
                assert b"mine" not in files.read("/world/inner/name", root=str(root)).data
            case _:
                with files.candidate("/world/inner/name", b"x", root=str(root)):
                    pass

    with attacker(swap):
        attempts(act, victim)
    assert [path.name for path in root.rglob(".gpunode-*")] == []
    assert (victim.folder / "inner/name").read_text() == "mine\n"
    assert os.listdir(victim.folder / "inner") == ["name"]
    shutil.rmtree(root)


def test_a_new_file_replaces_nothing_that_came_there_meanwhile(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    place = tmp_path / "world/new"
    place.parent.mkdir()
    with attacker(swap_links(place, victim.file)):
        attempts(lambda: files.create(place, b"secret"), victim)
    assert [path.name for path in place.parent.glob(".gpunode-*")] == []
