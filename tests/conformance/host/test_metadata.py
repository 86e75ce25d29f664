"""Metadata of files on a real ext4: kept, or refused before anything is written."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpunode.change import FileChange, FileState
from gpunode.errors import ChangeFailed, Refused
from gpunode.host import files
from gpunode.host.local import LocalHost
from gpunode.journal.record import Intent
from gpunode.journal.store import Store
from tests.conformance import mounts
from tests.conformance.mounts import in_own_mounts, mount
from tests.needs import lacking

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners, capabilities, chattr, mounts")

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
# linux/posix_acl_xattr.h, linux/posix_acl.h: an entry's tag, permissions and id.
_OWNER, _USER, _GROUP, _MASK, _OTHER, _NOBODY = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF


def acl(user: int) -> bytes:
    """Return an ACL that lets ``user`` read and write in addition to the owner."""
    entries = ((_OWNER, 6, _NOBODY), (_USER, 6, user), (_GROUP, 4, _NOBODY), (_MASK, 6, _NOBODY), (_OTHER, 4, _NOBODY))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ATTRIBUTES = {
    "user.note": b"mine",
    "trusted.note": b"root's",
    "security.selinux": b"system_u:object_r:container_config_t:s0\0",
    # Version 2, effective: CAP_NET_BIND_SERVICE permitted (linux/capability.h).
    "security.capability": struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0),
    ACCESS: acl(1234),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with one file in it."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/file").write_bytes(b"old")
    (tmp_path / "etc/file").chmod(0o664)
    return tmp_path


@pytest.fixture
def file(root: Path) -> Path:
    return root / "etc/file"


def set_attribute(path: Path, name: str) -> None:
    try:
        os.setxattr(path, name, ATTRIBUTES[name])
    except OSError as error:
        pytest.skip(f"{name} cannot be set on {path.parent}: {error.strerror}")


def assert_replaced(root: Path, path: str = "/etc/file") -> None:
    """Assert that the file is replaced, with the owner and mode that it has."""
    before = files.read_state(path, root=str(root))
    assert before is not None
    change = FileChange(path, before, FileState(b"new", before.mode, before.uid, before.gid))
    LocalHost(str(root)).apply([change])


def assert_refused(root: Path, path: str = "/etc/file") -> Refused:
    """Assert that the file can be neither replaced nor removed, beforehand and when tried, without leftovers."""
    before = listing(root)
    present = files.read_state(path, root=str(root))
    after = FileState(b"new", 0o644, 0, 0)
    with pytest.raises(Refused) as early:
        LocalHost(str(root)).refuse_unsafe_changes([FileChange(path, present, after)])
    changes = [FileChange(path, present, after)]
    if present is not None:
        changes.append(FileChange(path, present, None))
    for change in changes:
        with pytest.raises(Refused):
            LocalHost(str(root)).apply([change])
    assert listing(root) == before
    assert early.value.why
    assert early.value.hint
    return early.value


def listing(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(root.rglob("*"))}


def hinted_command(hint: str, program: str) -> list[str]:
    """Return the command of ``program`` that a hint names."""
    line = next(line.strip() for line in hint.splitlines() if line.strip().startswith(program))
    return ["sh", "-c", line]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attribute_is_kept_when_the_file_is_replaced(root: Path, file: Path, name: str) -> None:
    set_attribute(file, name)

    assert_replaced(root)

    assert (file.read_bytes(), os.getxattr(file, name)) == (b"new", ATTRIBUTES[name])


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attribute_is_restored_with_a_removed_file(root: Path, file: Path, name: str) -> None:
    set_attribute(file, name)
    os.chown(file, 12, 34)
    os.chmod(file, 0o640)
    set_attribute(file, name)
    host, store, before = LocalHost(str(root)), Store(root), file.lstat()
    realized = host.complete_change(FileChange("/etc/file", files.read_state("/etc/file", root=str(root)), None))
    run = store.begin("setup")
    run.record_intent("runtime", "test", realized)

    host.apply([realized])
    assert not file.exists()
    (read,) = (entry.change for entry in store.read_with_contents(run.id) if isinstance(entry, Intent))
    run.close()
    back = read.inverse()
    assert back is not None
    host.apply([back])

    after = file.lstat()
    assert file.read_bytes() == b"old"
    assert dict(files.read_attributes("/etc/file", root=str(root))).get(name) == ATTRIBUTES[name]
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_default_acl_of_the_folder_is_not_added_to_a_replaced_file(root: Path, file: Path) -> None:
    try:
        os.setxattr(file.parent, DEFAULT, ATTRIBUTES[ACCESS])
    except OSError as error:
        pytest.skip(f"no ACL here: {error.strerror}")

    assert_replaced(root)

    assert ACCESS not in os.listxattr(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o664


def test_new_file_inherits_the_default_acl_limited_by_its_mode(root: Path, file: Path) -> None:
    try:
        os.setxattr(file.parent, DEFAULT, ATTRIBUTES[ACCESS])
    except OSError as error:
        pytest.skip(f"no ACL here: {error.strerror}")

    files.replace_file("/etc/secret", FileState(b"s", 0o600, 0, 0), root=str(root))

    assert stat.S_IMODE((root / "etc/secret").stat().st_mode) == 0o600
    # The group bits of the mode are the mask: users named by the ACL get no access.
    (mask,) = (perm for tag, perm, _ in _entries(os.getxattr(root / "etc/secret", ACCESS)) if tag == _MASK)
    assert mask == 0


def _entries(value: bytes) -> Iterator[tuple[int, int, int]]:
    yield from struct.iter_unpack("<HHI", value[4:])


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_created_folders_have_mode_0755_and_root_as_owner(root: Path, umask: int) -> None:
    os.chown(root / "etc", 12, 34)
    os.chmod(root / "etc", 0o2777)
    old = os.umask(umask)
    try:
        files.replace_file("/etc/x/y/file", FileState(b"", 0o644, 0, 0), root=str(root))
    finally:
        os.umask(old)

    for path in ("etc/x", "etc/x/y"):
        made = (root / path).stat()
        assert (oct(stat.S_IMODE(made.st_mode)), made.st_uid, made.st_gid) == ("0o755", 0, 0)
    assert (root / "etc/x/y/file").stat().st_gid == 0


@pytest.fixture
def chattr(root: Path) -> Iterator[Callable[[str, Path], None]]:
    """Yield chattr(1); its changes are undone afterwards."""
    if reason := lacking("chattr"):
        pytest.skip(reason)
    sealed: list[Path] = []

    def change(flags: str, path: Path) -> None:
        done = subprocess.run(["chattr", flags, path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"chattr {flags} on {path.parent}: {done.stderr.strip()}")
        sealed.append(path)

    yield change
    for path in sealed:
        subprocess.run(["chattr", "-ia", path], check=True)


@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("sealed", ["etc/file", "etc"])
def test_immutable_or_append_only_file_is_refused(
    root: Path, file: Path, chattr: Callable[[str, Path], None], flag: str, sealed: str
) -> None:
    chattr(f"+{flag}", root / sealed)

    error = assert_refused(root)

    assert "immutable" in error.what or "added to" in error.what
    assert f"chattr -{flag} /{sealed}" in error.hint
    assert file.read_bytes() == b"old"


@pytest.mark.parametrize("flag", ["i", "a"])
def test_nothing_is_created_in_an_immutable_folder(root: Path, chattr: Callable[[str, Path], None], flag: str) -> None:
    chattr(f"+{flag}", root / "etc")

    for path in ("/etc/new", "/etc/sub/new"):
        with pytest.raises(Refused, match=r"^/etc (is immutable|may only)"):
            LocalHost(str(root)).refuse_unsafe_changes([FileChange(path, None, FileState(b"", 0o644, 0, 0))])
    assert os.listdir(root / "etc") == ["file"]


def test_hard_linked_file_is_refused_and_the_hint_works(root: Path, file: Path) -> None:
    os.link(file, root / "etc/other")

    error = assert_refused(root)

    assert "2 names" in error.what
    command = hinted_command(error.hint, "cp ")
    command[-1] = command[-1].replace("/etc/", f"{root}/etc/")
    subprocess.run(command, check=True)
    assert_replaced(root)
    assert (file.read_bytes(), (root / "etc/other").read_bytes()) == (b"new", b"old")


def test_link_target_is_what_counts(root: Path, file: Path) -> None:
    (root / "etc/link").symlink_to("folder/../file")
    (root / "real").mkdir()
    (root / "etc/folder").symlink_to("/real")
    (root / "etc/link-to-folder").symlink_to("folder")
    os.setxattr(file, "trusted.note", b"x")

    (root / "etc/folder").unlink()
    (root / "etc/folder").mkdir()
    assert_replaced(root, "/etc/link")
    files.replace_file("/etc/link-to-folder/new", FileState(b"1", 0o644, 0, 0), root=str(root))

    assert os.readlink(root / "etc/link") == "folder/../file"
    assert (file.read_bytes(), os.getxattr(file, "trusted.note")) == (b"new", b"x")
    assert (root / "etc/folder/new").read_bytes() == b"1"
    os.link(file, root / "etc/other")
    assert_refused(root, "/etc/link")


@pytest.mark.skipif(bool(mounts.why_not()), reason=mounts.why_not())
@pytest.mark.parametrize("how", ["same file system", "other file system", "read-only"])
def test_mount_point_stays_as_it_is(root: Path, file: Path, how: str) -> None:
    def body() -> None:
        source = root / "source"
        source.mkdir()
        if how == "other file system":
            mount("-t", "tmpfs", "tmpfs", source)
        (source / "file").write_bytes(b"mounted")
        mount("--bind", source / "file", file)
        if how == "read-only":
            mount("-o", "remount,bind,ro", file)

        before, listed = files.read_state("/etc/file", root=str(root)), listing(root)
        for after in (FileState(b"new", 0o644, 0, 0), None):
            with pytest.raises(ChangeFailed) as caught:
                LocalHost(str(root)).apply([FileChange("/etc/file", before, after)])
            assert "mount point" in caught.value.hint
            assert "findmnt /etc/file" in caught.value.hint
            assert listing(root) == listed

    in_own_mounts(body)


@pytest.mark.skipif(bool(mounts.why_not()), reason=mounts.why_not())
def test_read_only_file_system_is_refused_before_the_change(root: Path, file: Path) -> None:
    def body() -> None:
        mount("--bind", root / "etc", root / "etc")
        mount("-o", "remount,bind,ro", root / "etc")
        for path in ("/etc/file", "/etc/new", "/etc/sub/new"):
            with pytest.raises(Refused, match="read-only"):
                LocalHost(str(root)).refuse_unsafe_changes([FileChange(path, None, FileState(b"", 0o644, 0, 0))])

    in_own_mounts(body)


@pytest.mark.parametrize(
    "name", ["a b", "tail ", "-rf", "new\nline", "$(id)", "ünï", os.fsdecode(b"not-\xff-utf-8"), "." * 3, "x" * 240]
)
def test_unusual_file_names_are_accepted(root: Path, name: str) -> None:
    host, store = LocalHost(str(root)), Store(root)
    before = FileState(b"old", 0o600, 0, 0)
    path = f"/etc/{name}"
    files.replace_file(path, before, root=str(root))
    change = host.complete_change(FileChange(path, before, FileState(b"new", 0o600, 0, 0)))
    run = store.begin("setup")
    run.record_intent("runtime", "test", change)
    run.close()

    host.apply([change])
    (read,) = (entry.change for entry in store.read_with_contents(run.id) if isinstance(entry, Intent))

    assert set(os.listdir(root / "etc")) == {"file", name}
    assert (root / "etc" / name).read_bytes() == b"new"
    back = read.inverse()
    assert back is not None
    host.apply([back])
    assert (root / "etc" / name).read_bytes() == b"old"
