"""Paths inside a root, compared with the kernel's own openat2(2) and its RESOLVE_IN_ROOT."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpunode.host import rooted_paths
from tests.fakes.examples import examples

_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_IN_ROOT = 0x10
_libc = ctypes.CDLL(None, use_errno=True)


def kernel_inode(root: Path, path: str) -> int | None:
    """Return the inode that the kernel reaches; None when it reaches none."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        fd = _libc.syscall(_OPENAT2, folder, path.encode(), how, len(how))
    finally:
        os.close(folder)
    if fd < 0:
        return None
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def our_inode(root: Path, path: str) -> int | None:
    try:
        with rooted_paths.open_path(path, str(root)) as place:
            return os.lstat(f"{root}{place.path}").st_ino
    except OSError:
        return None


def _has_openat2(tmp_path: Path) -> bool:
    return kernel_inode(tmp_path, "/") is not None


# Without ".": "file/." resolves here and not in the kernel, which does no harm.
NAMES = st.sampled_from(["a", "b", "c", ".."])
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)
LINKS = st.tuples(st.sampled_from(["", "/"]), PATHS).map("".join)
NODES = st.tuples(PATHS, st.one_of(st.just("folder"), st.just("file"), LINKS.map(lambda target: f"link:{target}")))


def make_tree(root: Path, nodes: list[tuple[str, str]]) -> Path:
    """Make ``nodes`` below a new ``root``; impossible ones are skipped."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, kind in nodes:
        place = Path(os.path.normpath(f"/{name}")).relative_to("/")
        with suppress(OSError, RuntimeError):
            target = root / place
            if not target.parent.resolve().is_relative_to(root):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                target.mkdir()
            elif kind == "file":
                target.touch(exist_ok=False)
            else:
                target.symlink_to(kind.removeprefix("link:"))
    return root


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300), deadline=None)
@given(nodes=st.lists(NODES, max_size=12), path=PATHS)
def test_path_resolution_agrees_with_the_kernel(tmp_path: Path, nodes: list[tuple[str, str]], path: str) -> None:
    if not _has_openat2(tmp_path):
        pytest.skip("this kernel has no openat2(2), or this container forbids it")
    root = make_tree(tmp_path / "root", nodes)
    assert our_inode(root, f"/{path}") == kernel_inode(root, f"/{path}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300), deadline=None)
@given(nodes=st.lists(NODES, max_size=12), path=PATHS)
# The link is next to the missing folder, not in it.
@example(nodes=[("a", "link:/b"), ("b", "folder")], path="missing/a/c")
def test_missing_folders_are_those_a_write_makes(tmp_path: Path, nodes: list[tuple[str, str]], path: str) -> None:
    """Behind a dangling link, too: an undo removes the folders recorded as made."""
    root = make_tree(tmp_path / "root", nodes)
    try:
        expected = rooted_paths.missing_folders(f"/{path}", root=str(root))
        leads = rooted_paths.resolve_path(f"/{path}", root=str(root))
    except OSError:
        return
    with suppress(OSError), rooted_paths.open_path(f"/{path}", str(root), make=True) as place:
        assert (expected, leads) == (tuple(place.made_folders), place.path)
