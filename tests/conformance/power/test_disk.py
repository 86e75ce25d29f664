"""The disk model allows what POSIX leaves open, and excludes what a sync excludes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conformance.power.disk import Event, Made, Node, Removed, Renamed, Synced, Tree, Written, cuts
from tests.conformance.power.recording import cannot_trace, record

START: Tree = {"/": Node(0o755, 0, 0, None), "/f": Node(0o644, 0, 0, b"old")}
WRITTEN = (Made("/t", 0o644), Written("/t", 0, b"new!"))


def possible_contents(*events: Event, path: str = "/f") -> set[bytes | None]:
    """Return the contents possible at ``path`` after the last of ``events``; None for no file."""
    trees = [cut.tree for cut in cuts(START, events, at=[len(events)])]
    return {tree[path].data if path in tree else None for tree in trees}


def test_new_file_may_be_missing_empty_torn_or_zeroed() -> None:
    torn = {b"n", b"ne", b"new", b"n\0\0\0", b"ne\0\0", b"new\0"}
    assert possible_contents(*WRITTEN, path="/t") == {None, b"", *torn, bytes(4), b"new!"}


def test_synced_file_is_complete_but_its_name_may_be_missing() -> None:
    assert possible_contents(*WRITTEN, Synced("/t"), path="/t") == {None, b"new!"}
    assert possible_contents(*WRITTEN, Synced("/t"), Synced("/"), path="/t") == {b"new!"}


def test_rename_before_the_sync_may_leave_an_empty_file() -> None:
    assert {b"old", b"", bytes(4), b"new!"} < possible_contents(*WRITTEN, Renamed("/t", "/f"))


def test_rename_after_the_sync_leaves_the_old_or_the_new_file() -> None:
    assert possible_contents(*WRITTEN, Synced("/t"), Renamed("/t", "/f")) == {b"old", b"new!"}
    assert possible_contents(*WRITTEN, Synced("/t"), Renamed("/t", "/f"), Synced("/")) == {b"new!"}


def test_write_over_a_sector_may_lack_its_beginning() -> None:
    long = b"x" * 700
    assert bytes(512) + b"x" * 188 in possible_contents(Made("/t", 0o644), Written("/t", 0, long), path="/t")


def test_folder_entries_reach_the_disk_in_any_order() -> None:
    events = (Made("/a", 0o644), Made("/b", 0o644), Removed("/f"))
    names = {frozenset(cut.tree) - {"/"} for cut in cuts(START, events, at=[3])}
    assert {frozenset({"/b"}), frozenset({"/a", "/f"}), frozenset({"/b", "/f"}), frozenset()} <= names


CALLS = """
import os, sys
root = sys.argv[1]
os.mkdir(f"{root}/a", 0o700)
os.chmod(f"{root}/a", 0o750)
folder = os.open(f"{root}/a", os.O_RDONLY)
with open(f"{root}/a/x", "wb", buffering=0) as file:
    file.write(b"one ")
    file.write(b"two")
    os.pwrite(file.fileno(), b"T", 4)
    os.fchmod(file.fileno(), 0o600)
    os.fsync(file)
with open(f"{root}/a/x", "ab") as file:
    file.write(b" three")
os.rename("x", "y", src_dir_fd=folder, dst_dir_fd=folder)
os.truncate(f"{root}/a/y", 5) if len(sys.argv) > 2 else None
os.unlink(f"{root}/f")
os.fsync(folder)
"""


def run(root: Path, *more: str) -> list[Event]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the files of the modelled disk are root's")
    if reason := cannot_trace():
        pytest.skip(reason)
    root.mkdir()
    (root / "f").write_bytes(b"old")
    return record([sys.executable, "-c", CALLS, os.fspath(root), *more], root, root.with_suffix(".strace"))


def test_recording_matches_the_kernel_calls(tmp_path: Path) -> None:
    events = run(tmp_path / "root")
    assert Renamed("/a/x", "/a/y") in events
    assert [event.path for event in events if isinstance(event, Synced)] == ["/a/x", "/a"]
    assert [event.data for event in events if isinstance(event, Written)] == [b"one ", b"two", b"T", b" three"]


def test_unmodelled_call_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="truncate on /a/y is not modelled"):
        run(tmp_path / "root", "truncate")


def test_failing_command_is_no_recording(tmp_path: Path) -> None:
    if reason := cannot_trace():
        pytest.skip(reason)
    with pytest.raises(AssertionError, match="false exited with 1"):
        record(["false"], tmp_path, tmp_path.with_suffix(".strace"))
