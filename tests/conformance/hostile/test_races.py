"""A user who owns a folder swaps its content thousands of times while root writes there."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileState
from gpunode.errors import GpunodeError
from gpunode.host import files, output

STATE = FileState(b"written by gpunode\n", 0o644, os.geteuid(), os.getegid())
# The number of our writes; the attacker swaps several times during each.
ATTEMPTS = 800
NOBODY = 65534


@contextmanager
def attacker(swap: Callable[[], None]) -> Iterator[None]:
    """Call ``swap`` continuously in its own process."""
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
    """A file and a folder outside the places that gpunode writes to."""

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
    """Return a swap: ``place`` is in turn a file, a link to the victim, and nothing."""
    draft = place.with_name("draft")

    def swap() -> None:
        draft.write_text("theirs\n")
        draft.replace(place)
        draft.symlink_to(victim)
        draft.replace(place)
        place.unlink()

    return swap


def swap_folders(place: Path, victim: Path) -> Callable[[], None]:
    """Return a swap: ``place`` is in turn a folder and a link to the victim's; gpunode's files there are moved."""
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
def test_nothing_outside_the_root_is_changed_during_symlink_races(tmp_path: Path, verb: str, what: str) -> None:
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
                files.replace_file("/world/inner/name", STATE, root=str(root))
            case "remove":
                files.remove_file("/world/inner/name", root=str(root))
            case "read":
                assert b"mine" not in files.read_file("/world/inner/name", root=str(root)).data
            case _:
                with files.candidate_file("/world/inner/name", b"x", root=str(root)):
                    pass

    with attacker(swap):
        attempts(act, victim)
    assert [path.name for path in root.rglob(".gpunode-*")] == []
    assert (victim.folder / "inner/name").read_text() == "mine\n"
    assert os.listdir(victim.folder / "inner") == ["name"]
    shutil.rmtree(root)


def test_create_output_never_replaces_a_racing_symlink(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    place = tmp_path / "world/new"
    place.parent.mkdir()
    with attacker(swap_links(place, victim.file)):
        attempts(lambda: output.create_output(place, b"secret"), victim)
    assert [path.name for path in place.parent.glob(".gpunode-*")] == []


@pytest.fixture
def theirs() -> Iterator[Path]:
    """Yield a folder that the user nobody owns and can reach."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        theirs = Path(folder, "theirs")
        theirs.mkdir()
        os.chown(theirs, NOBODY, NOBODY)
        yield theirs


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the attacker is nobody")
def test_output_in_a_foreign_folder_does_not_follow_symlinks(theirs: Path, tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    numbers = itertools.count()

    def swap() -> None:
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        for name in os.listdir(theirs):
            if name.startswith(".cap."):
                os.rename(theirs / name, theirs / f"aside{next(numbers)}")
                (theirs / name).mkdir()
                (theirs / name / "data").symlink_to(victim.folder)

    def act() -> None:
        path = theirs / "cap"
        output.write_output(path, b"secret")

    with attacker(swap):
        attempts(act, victim)


OWNERS = [(link, target) for link in (0, NOBODY, 1234) for target in (None, 0, NOBODY, 1234)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives files to others")
@pytest.mark.parametrize(("link", "target"), OWNERS)
@pytest.mark.parametrize("through", ["the file", "a folder"])
def test_symlink_is_followed_only_for_its_owner(tmp_path: Path, through: str, link: int, target: int | None) -> None:
    """Apply the kernel's rule for /tmp everywhere: otherwise a folder's owner could redirect root's writes."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for made in (outside, inside):
        made.mkdir()
    leads = outside / "name"
    if target is not None and through == "a folder":
        leads.mkdir()
    elif target is not None:
        leads.write_text("mine\n")
    if target is not None:
        os.chown(leads, target, target)
    os.chown(outside, NOBODY, NOBODY)
    (inside / "link").symlink_to("../outside/name")
    os.lchown(inside / "link", link, link)
    path = "/inside/link" if through == "the file" else "/inside/link/new"
    is_followed = link in {0, target}

    with suppress(GpunodeError):
        files.replace_file(path, replace(STATE, uid=target or 0), root=str(tmp_path))

    written = leads if through == "the file" else leads / "new"
    assert (written.is_file() and written.read_bytes() == STATE.content) == is_followed
    assert (files.read_file(path, root=str(tmp_path)).outcome == "ok") == is_followed
