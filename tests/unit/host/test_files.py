"""Files: the user loses nothing to a crash, a full disk, a hostile link or a pipe in the wrong place."""

from __future__ import annotations

import fnmatch
import os
import shlex
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunode.change import FileState
from gpunode.errors import ChangeFailed, Conflict, Refused
from gpunode.facts.evidence import decode_matches
from gpunode.host import files, globs, rooted_paths
from tests.fakes.examples import examples

UID, GID = os.getuid(), os.getgid()


def file_state(content: bytes, mode: int = 0o644) -> FileState:
    return FileState(content, mode, UID, GID)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(content=st.binary(max_size=3000), mode=st.integers(0, 0o7777))
def test_written_file_has_its_content_mode_and_owner(tmp_path: Path, content: bytes, mode: int) -> None:
    wanted = file_state(content, mode)
    files.replace_file("/a/b/file", wanted, root=str(tmp_path))
    if UID != 0:
        (tmp_path / "a/b/file").chmod(mode | 0o400)
        wanted = file_state(content, mode | 0o400)
    assert files.read_state("/a/b/file", root=str(tmp_path)) == wanted
    assert names(tmp_path / "a/b") == ["file"]


def test_created_folders_have_mode_0755_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        files.replace_file("/etc/x/y/z.conf", file_state(b"1"), root=str(tmp_path))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "etc/x/y").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "etc/x/y/z.conf").stat().st_mode) == 0o644


@pytest.mark.parametrize("target", ["../real/target", "/real/target", "../../../../../../real/target"])
def test_symlink_is_kept_and_its_target_in_the_root_replaced(tmp_path: Path, target: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/target").write_bytes(b"old")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/link").symlink_to(target)
    files.replace_file("/etc/link", file_state(b"new"), root=str(tmp_path))
    assert os.readlink(tmp_path / "etc/link") == target
    assert (tmp_path / "real/target").read_bytes() == b"new"
    assert rooted_paths.resolve_path("/etc/link", root=str(tmp_path)) == "/real/target"


def test_symlink_out_of_the_root_does_not_touch_the_outside(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "etc").mkdir(parents=True)
    (root / "etc/direct").symlink_to(outside / "secret")
    (root / "etc/folder").symlink_to("../../outside")
    for path in ("/etc/direct", "/etc/folder/secret", "/../outside/secret", "/etc/../../outside/secret"):
        assert files.read_file(path, root=str(root)).outcome == "absent"
    assert globs.read_glob("/etc/folder/*", 100, contents=True, root=str(root)).data == b""
    files.replace_file("/etc/folder/secret", file_state(b"mine"), root=str(root))
    files.remove_file("/etc/direct", root=str(root))
    assert (outside / "secret").read_bytes() == b"secret"
    assert (root / "outside/secret").read_bytes() == b"mine"


def test_symlink_loop_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("/a")
    (tmp_path / "self").symlink_to("self/self")
    for path in ("/a", "/self", "/a/file"):
        assert files.read_file(path, root=str(tmp_path)).outcome == "failed"
        with pytest.raises(ChangeFailed, match="could not be written") as caught:
            files.replace_file(path, file_state(b""), root=str(tmp_path))
        assert "loop" in caught.value.hint
    assert names(tmp_path) == ["a", "b", "self"]


@pytest.fixture
def odd_files(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        (tmp_path / "to-pipe").symlink_to("pipe")
        yield tmp_path


@pytest.mark.parametrize("name", ["folder", "pipe", "socket", "to-pipe"])
def test_special_file_is_not_read_replaced_or_removed(odd_files: Path, name: str) -> None:
    before = names(odd_files)
    capture = files.read_file(f"/{name}", root=str(odd_files))
    assert capture.outcome == "failed"
    assert capture.error.startswith("it is a")
    with pytest.raises(Refused, match="not a file"):
        files.replace_file(f"/{name}", file_state(b"x"), root=str(odd_files))
    with pytest.raises(Refused, match="not a file"):
        files.remove_file(f"/{name}", root=str(odd_files))
    with pytest.raises(Refused, match="cannot be read"):
        files.read_state(f"/{name}", root=str(odd_files))
    assert names(odd_files) == before


def test_root_folder_is_no_file(tmp_path: Path) -> None:
    assert files.read_file("/", root=str(tmp_path)).outcome == "failed"
    with pytest.raises(Refused, match="a folder"):
        files.replace_file("/x/..", file_state(b""), root=str(tmp_path / "."))


def test_absent_and_oversized_files_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read_file("/nothing/here", root=str(tmp_path)).outcome == "absent"
    assert files.read_file("/file/below", root=str(tmp_path)).outcome == "absent"
    assert files.read_state("/nothing", root=str(tmp_path)) is None
    exact, short = (files.read_file("/file", limit, root=str(tmp_path)) for limit in (5, 4))
    assert (exact.outcome, exact.data) == ("ok", b"12345")
    assert (short.outcome, short.data, short.error) == ("failed", b"1234", "longer than 4 bytes")


@pytest.mark.skipif(UID != 0, reason="needs root: becomes another user to be denied")
def test_unreadable_file_is_denied_and_not_absent(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "secret").chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        assert files.read_file("/secret", root=str(tmp_path)).outcome == "denied"
    finally:
        os.seteuid(0)


def test_endless_and_pseudo_files_are_read_correctly() -> None:
    assert files.read_file("/proc/self/status", 1 << 16).text.startswith("Name:")
    assert files.read_file("/dev/zero", 1 << 16).outcome == "failed"


def test_replacement_is_atomic_for_a_reader(tmp_path: Path) -> None:
    versions = {bytes([letter]) * 200_000 for letter in b"ab"}
    files.replace_file("/file", file_state(b"a" * 200_000), root=str(tmp_path))
    seen: set[bytes] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(files.read_file("/file", root=str(tmp_path)).data)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(10):
        for content in versions:
            files.replace_file("/file", file_state(content), root=str(tmp_path))
    done.set()
    watcher.join()
    assert seen <= versions


def test_extended_attributes_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    try:
        os.setxattr(file, "user.note", b"kept")
    except OSError as error:
        pytest.skip(f"no extended attributes on {tmp_path}: {error.strerror}")
    files.replace_file("/file", file_state(b"new"), root=str(tmp_path))
    assert os.getxattr(file, "user.note") == b"kept"


def test_temporary_file_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    for name in (".gpunode-0123abcd", ".gpunode-notes", "mine"):
        (tmp_path / name).write_bytes(b"")
    files.replace_file("/file", file_state(b""), root=str(tmp_path))
    assert names(tmp_path) == [".gpunode-notes", "file", "mine"]


def test_removal_deletes_the_link_target_first_and_is_idempotent(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    files.remove_file("/link", root=str(tmp_path))
    assert names(tmp_path) == ["link"]
    files.remove_file("/link", root=str(tmp_path))
    files.remove_file("/no/such/folder/file", root=str(tmp_path))


def test_failed_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", _no_space)
    with pytest.raises(ChangeFailed, match="/file could not be written") as caught:
        files.replace_file("/file", file_state(b"new"), root=str(tmp_path))
    assert "No space left" in caught.value.why
    assert "df -h" in caught.value.hint
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def _no_space(*_args: object, **_named: object) -> None:
    raise OSError(28, os.strerror(28))


def test_folders_created_for_a_failed_write_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", _refuse_rename)
    with pytest.raises(ChangeFailed):
        files.replace_file("/a/b/c", file_state(b"new"), root=str(tmp_path))
    assert names(tmp_path) == []


def _refuse_rename(*_args: object, **_named: object) -> None:
    raise OSError(16, os.strerror(16))


def test_glob_lists_links_owners_and_contents(tmp_path: Path) -> None:
    (tmp_path / "etc/d").mkdir(parents=True)
    (tmp_path / "etc/d/a.list").write_bytes(b"deb a")
    (tmp_path / "etc/d/b.list").symlink_to("/etc/d/a.list")
    (tmp_path / "etc/d/broken.list").symlink_to("gone")
    (tmp_path / "etc/d/.hidden.list").write_bytes(b"")
    os.mkfifo(tmp_path / "etc/d/pipe.list")
    capture = globs.read_glob("/etc/*/*.list", 100, contents=True, root=str(tmp_path))
    found = {one.path: (one.link, one.data) for one in decode_matches(capture.data)}
    assert capture.outcome == "ok"
    assert found == {
        "/etc/d/a.list": (None, b"deb a"),
        "/etc/d/b.list": ("/etc/d/a.list", b"deb a"),
        "/etc/d/broken.list": ("gone", None),
        "/etc/d/pipe.list": (None, None),
    }
    listed = decode_matches(globs.read_glob("/etc/d/a.*", 100, contents=False, root=str(tmp_path)).data)
    assert [one.path for one in listed] == ["/etc/d/a.list"]
    assert listed[0].data is None
    assert listed[0].ownership is not None


@pytest.mark.parametrize("pattern", ["*", "a*", "*b", "a*b", "ab*b", "*a*", "?b", "[ab]*", ".*", "aba", "a"])
def test_glob_matches_names_as_fnmatch_does(pattern: str, tmp_path: Path) -> None:
    names = ["a", "ab", "aba", "abb", "b", ".a", ".ab"]
    for name in names:
        (tmp_path / name).touch()
    found = decode_matches(globs.read_glob(f"/{pattern}", 100, contents=False, root=str(tmp_path)).data)
    shown = [name for name in names if name.startswith(".") == pattern.startswith(".")]
    assert {match.path.removeprefix("/") for match in found} == set(fnmatch.filter(shown, pattern))


def test_glob_lists_folders_only_without_contents(tmp_path: Path) -> None:
    (tmp_path / "etc/d/folder").mkdir(parents=True)
    (tmp_path / "etc/d/file").write_text("x")
    for contents, names in ((True, ["/etc/d/file"]), (False, ["/etc/d/file", "/etc/d/folder"])):
        found = decode_matches(globs.read_glob("/etc/d/*", 100, contents=contents, root=str(tmp_path)).data)
        assert [one.path for one in found] == names


def test_glob_without_matches_succeeds_with_no_data(tmp_path: Path) -> None:
    for pattern in ("/etc/*.list", "/nothing/*/here", "/exact"):
        capture = globs.read_glob(pattern, 100, contents=True, root=str(tmp_path))
        assert (capture.outcome, capture.data) == ("ok", b"")


def test_glob_follows_links_to_folders(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "sys/devices/0000:01:00.0/modalias").write_bytes(b"pci:v000010DE")
    (tmp_path / "sys/bus").mkdir()
    (tmp_path / "sys/bus/0000:01:00.0").symlink_to("../devices/0000:01:00.0")
    (found,) = decode_matches(globs.read_glob("/sys/bus/*/modalias", 100, contents=True, root=str(tmp_path)).data)
    assert (found.path, found.data) == ("/sys/bus/0000:01:00.0/modalias", b"pci:v000010DE")


def test_candidate_file_is_private_and_temporary(tmp_path: Path) -> None:
    with files.candidate_file("/etc/containerd/config.toml", b"version = 3", root=str(tmp_path)) as path:
        there = tmp_path / path.lstrip("/")
        assert there.parent == tmp_path / "etc/containerd"
        assert there.read_bytes() == b"version = 3"
        assert stat.S_IMODE(there.stat().st_mode) == 0o600
    assert names(tmp_path) == []


def test_edit_just_before_the_write_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.replace_file("/file", file_state(b"old"), root=str(tmp_path))
    before, seen = files.read_state("/file", root=str(tmp_path)), list[FileState | None]()

    def edit(fd: int, _: int) -> None:
        (tmp_path / "file").write_bytes(b"edited")

    def still(now: FileState | None) -> None:
        seen.append(now)
        if now != before:
            raise Conflict("edited")

    monkeypatch.setattr(os, "fchmod", edit)
    with pytest.raises(Conflict):
        files.replace_file("/file", file_state(b"new"), root=str(tmp_path), precheck=still)
    assert [one.content for one in seen if one] == [b"edited"]
    assert (tmp_path / "file").read_bytes() == b"edited"
    with pytest.raises(Conflict):
        files.remove_file("/file", root=str(tmp_path), precheck=still)
    assert names(tmp_path) == ["file"]


def test_attribute_that_cannot_be_kept_stops_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "listxattr", lambda path, **_: [] if isinstance(path, int) else ["security.selinux"])
    monkeypatch.setattr(os, "getxattr", lambda *_, **__: b"system_u:object_r:etc_t:s0\0")
    monkeypatch.setattr(os, "setxattr", _refuse_label)
    with pytest.raises(ChangeFailed, match="/file could not be written") as caught:
        files.replace_file("/file", file_state(b"new"), root=str(tmp_path))
    assert "security.selinux cannot be kept: Operation not permitted" in caught.value.why
    assert "setfattr -x security.selinux /file" in caught.value.hint
    assert (names(tmp_path), (tmp_path / "file").read_bytes()) == (["file"], b"old")


def _refuse_label(*_args: object, **_named: object) -> None:
    raise PermissionError(1, os.strerror(1))


def test_attribute_that_the_new_file_already_has_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container no process may set a label; the folder gives both files the same one."""
    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "listxattr", lambda *_, **__: ["security.selinux"])
    monkeypatch.setattr(os, "getxattr", lambda *_, **__: b"system_u:object_r:etc_t:s0\0")
    monkeypatch.setattr(os, "setxattr", _refuse_label)
    files.replace_file("/file", file_state(b"new"), root=str(tmp_path))
    assert (tmp_path / "file").read_bytes() == b"new"


def _write_file(root: Path) -> None:
    files.replace_file("/file", file_state(b"new"), root=str(root))


def _remove_file(root: Path) -> None:
    files.remove_file("/file", root=str(root))


@pytest.mark.parametrize(
    ("change", "said"),
    [(_write_file, "was replaced, but a power cut may bring the old one"), (_remove_file, "was removed")],
)
def test_failed_folder_sync_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], said: str
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: _no_space(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else real(fd))
    with pytest.raises(ChangeFailed, match=said) as caught:
        change(tmp_path)
    assert "as it was" not in caught.value.why


@pytest.mark.parametrize("call", ["chmod", "chown", "fsync", "rename"])
def test_folder_whose_mode_or_owner_cannot_be_set_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, _refuse_rename)
    with pytest.raises(ChangeFailed):
        files.replace_file("/a/b/c", file_state(b"new"), root=str(tmp_path))
    assert names(tmp_path) == []


def test_created_folders_are_removed_when_empty(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/mine").write_bytes(b"")
    files.remove_empty_folders(("/a", "/a/b", "/a/b/c"), root=str(tmp_path))
    assert names(tmp_path / "a") == ["mine"]
    files.remove_empty_folders(("/a", "/a/b"), root=str(tmp_path))


def test_failed_removal_of_a_created_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "rmdir", _no_space)
    with pytest.raises(ChangeFailed, match="/a could not be removed"):
        files.remove_empty_folders(("/a",), root=str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_path_writable_by_others_is_reported_unless_sticky(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    def exposed(path: str) -> str:
        owner = files.read_file(path, root=str(tmp_path)).ownership
        assert owner is not None
        (found,) = decode_matches(globs.read_glob(f"{path}*", 1 << 20, contents=True, root=str(tmp_path)).data)
        assert found.ownership is not None
        assert found.ownership.exposed == owner.exposed
        return owner.exposed

    for name in ("closed", "open", "sticky", "theirs"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "sticky").chmod(0o1777)
    os.chown(tmp_path / "theirs", 1000, 0)
    (tmp_path / "closed/to-theirs").symlink_to("/theirs/file")
    (tmp_path / "closed/by-other").symlink_to("/closed/his")  # a link to another user's file is not followed
    (tmp_path / "closed/his").write_text("x")
    os.chown(tmp_path / "closed/his", 1000, 0)
    os.chown(tmp_path / "closed/by-other", 1000, 0, follow_symlinks=False)
    assert exposed("/closed/file") == exposed("/sticky/file") == ""
    assert exposed("/open/file") == "others can write to /open (mode 0777)"
    assert exposed("/theirs/file") == exposed("/closed/to-theirs") == "/theirs belongs to uid 1000"
    assert "link made by uid 1000" in exposed("/closed/by-other")


@pytest.mark.parametrize("name", ["a file", "$(id)", "it's;reboot"])
def test_path_in_a_printed_command_is_quoted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(Refused) as caught:
        files.read_state(f"/{name}", root=str(tmp_path))
    assert shlex.quote(f"/{name}") in caught.value.hint

    (tmp_path / f"{name}.1").write_text("two names")
    (tmp_path / f"{name}.2").hardlink_to(tmp_path / f"{name}.1")
    with pytest.raises(Refused) as caught:
        files.refuse_unreplaceable(f"/{name}.1", root=str(tmp_path))
    assert f"-samefile {shlex.quote(f'/{name}.1')}" in caught.value.hint
    assert f"cp --preserve=all {shlex.quote(f'/{name}.1')} {shlex.quote(f'/{name}.1.own')} &&" in caught.value.hint
