"""The local host: what it reads, what it changes, and what it does not touch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunode.catalog import openpgp
from gpunode.change import (
    Change,
    CommandChange,
    Deferred,
    FileChange,
    FileState,
    ModuleChange,
    PackageChange,
    PackageState,
    SigningKey,
    Trigger,
)
from gpunode.errors import Busy, ChangeFailed, Conflict, Refused
from gpunode.facts.evidence import Capture, Probe, decode_matches
from gpunode.host import files
from gpunode.host.local import LocalHost
from gpunode.host.port import Host, Progress
from gpunode.host.rooted_paths import OpenedPath
from gpunode.package_id import PackageId
from gpunode.workflow.converge import run_probes
from tests.fakes.examples import examples

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
UID, GID = os.getuid(), os.getgid()
STATES = st.none() | st.builds(
    FileState, st.binary(max_size=50), st.sampled_from([0o600, 0o644, 0o755]), st.just(UID), st.just(GID)
)


class Tools(Protocol):
    folder: Path

    def add(self, name: str, script: str) -> None: ...

    @property
    def calls(self) -> list[str]: ...


class Apt:
    """Replaces the package manager and records its calls."""

    def __init__(self, key: bytes = b"") -> None:
        self.asked: list[Any] = []
        self.key = key

    def simulate(self, changes: Sequence[PackageChange]) -> None:
        self.asked.append(("simulate", *changes))

    def transact(self, changes: Sequence[PackageChange]) -> None:
        self.asked.append(("transact", *changes))

    def refresh(self, lists: Sequence[str]) -> None:
        self.asked.append(("refresh", *lists))

    def fetch(self, url: str, limit_bytes: int) -> bytes:
        self.asked.append(("fetch", url))
        assert limit_bytes > 0
        return self.key


def file_state(content: bytes, mode: int = 0o644) -> FileState:
    return FileState(content, mode, UID, GID)


def with_apt(host: LocalHost, apt: Apt) -> LocalHost:
    host.packages = apt  # type: ignore[assignment]
    return host


def test_local_host_is_a_host() -> None:
    host: Host = LocalHost()
    assert host.run_probe(Probe("os", path="/proc/version")).outcome == "ok"


# -- look ---------------------------------------------------------------------------------------------------------


def test_files_and_globs_are_read_inside_the_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=debian\n")
    (tmp_path / "etc/os-release").chmod(0o640)
    host = LocalHost(str(tmp_path) + "/")
    capture = host.run_probe(Probe("os-release", path="/etc/os-release"))
    assert (capture.source, capture.outcome, capture.data) == ("/etc/os-release", "ok", b"ID=debian\n")
    assert capture.ownership is not None
    assert (capture.ownership.mode, capture.ownership.uid, capture.ownership.gid) == (0o640, UID, GID)
    assert host.run_probe(Probe("none", path="/etc/none")).outcome == "absent"
    (found,) = decode_matches(host.run_probe(Probe("etc", glob="/etc/*")).data)
    assert (found.path, found.data) == ("/etc/os-release", b"ID=debian\n")


def test_command_outcomes_are_distinguished(tools: Tools) -> None:
    tools.add("good", "echo yes; echo warned >&2")
    tools.add("bad", "echo half; echo why >&2; exit 9")
    tools.add("slow", "echo first; sleep 300")
    tools.add("long", "head -c 5000 /dev/zero")
    host = LocalHost()

    def look(*argv: str, timeout_s: float = 20) -> Capture:
        return host.run_probe(Probe("x", argv=argv, timeout_s=timeout_s, limit_bytes=1000))

    good, bad, slow, long, none = look("good"), look("bad", "-x"), look("slow", timeout_s=1), look("long"), look("none")
    assert (good.outcome, good.data, good.error, good.exit_status) == ("ok", b"yes\n", "warned\n", 0)
    assert (bad.source, bad.outcome, bad.data, bad.error) == ("bad -x", "failed", b"half\n", "why\n")
    assert bad.exit_status == 9
    assert (slow.outcome, slow.data) == ("timeout", b"first\n")
    assert (long.outcome, len(long.data)) == ("failed", 1000)
    assert none.outcome == "absent"


def test_hanging_probe_does_not_delay_the_others(tools: Tools, tmp_path: Path) -> None:
    tools.add("stuck", "sleep 300")
    for number in range(12):
        tools.add(f"tool{number}", f"echo {number}")
    probes = [Probe("stuck", argv=("stuck",), timeout_s=0.5)]
    probes += [Probe(f"t{number}", argv=(f"tool{number}",)) for number in range(12)]
    probes += [Probe("file", path=f"{tmp_path}/file"), Probe("glob", glob=f"{tmp_path}/*.x")]
    evidence = run_probes(LocalHost(), probes)
    assert list(evidence) == [probe.key for probe in probes]
    assert evidence["stuck"].outcome == "timeout"
    assert [evidence[f"t{number}"].text for number in range(12)] == [f"{number}\n" for number in range(12)]
    assert (evidence["file"].outcome, evidence["glob"].outcome) == ("absent", "ok")


# -- files --------------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(before=STATES, after=STATES)
def test_file_change_is_idempotent_and_undone_exactly(
    tmp_path: Path, before: FileState | None, after: FileState | None
) -> None:
    host, path = LocalHost(str(tmp_path)), "/etc/x.conf"
    files.remove_file(path, root=str(tmp_path))
    if before:
        files.replace_file(path, before, root=str(tmp_path))
    change = FileChange(path, before, after)
    undo = change.inverse()
    assert undo is not None
    for step, wanted in ((change, after), (change, after), (undo, before), (undo, before)):
        host.apply([step])
        assert files.read_state(path, root=str(tmp_path)) == wanted


@pytest.mark.parametrize("edited", [file_state(b"user's"), file_state(b"old", 0o600), None])
def test_edited_file_is_left_alone(tmp_path: Path, edited: FileState | None) -> None:
    if edited:
        files.replace_file("/x", edited, root=str(tmp_path))
    for after in (file_state(b"new"), None):
        if after == edited:
            continue
        with pytest.raises(Conflict, match="/x was edited"):
            LocalHost(str(tmp_path)).apply([FileChange("/x", file_state(b"old"), after)])
        assert files.read_state("/x", root=str(tmp_path)) == edited


@pytest.mark.parametrize("after", [file_state(b"new"), None], ids=["replaced", "removed"])
def test_file_edited_during_the_change_is_left_alone(
    tmp_path: Path, after: FileState | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read saw the old file; the edit happens while the new one is written, or right before the removal."""
    files.replace_file("/x", file_state(b"old"), root=str(tmp_path))
    checked = files._replaceable_status

    def edit_meanwhile(place: OpenedPath, path: str) -> os.stat_result | None:
        (tmp_path / "x").write_bytes(b"user's")
        return checked(place, path)

    monkeypatch.setattr(files, "_replaceable_status", edit_meanwhile)
    with pytest.raises(Conflict, match="/x was edited"):
        LocalHost(str(tmp_path)).apply([FileChange("/x", file_state(b"old"), after)])
    assert (tmp_path / "x").read_bytes() == b"user's"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_file_with_deferred_content_is_not_written(tmp_path: Path) -> None:
    change = FileChange("/x", None, Deferred("a file", "the package is installed"))
    with pytest.raises(ChangeFailed, match="not known yet"):
        LocalHost(str(tmp_path)).apply([change])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(UID != 0, reason="needs root: mounts a small file system")
@pytest.mark.usefixtures("allow_subprocess")
@pytest.mark.parametrize(("options", "words"), [("size=64k", "df -h"), ("size=64k,ro", "findmnt")])
def test_full_or_read_only_file_system_is_named_and_unchanged(tmp_path: Path, options: str, words: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "x", disk], check=False)
    if mounted.returncode != 0:
        pytest.skip("this container may not mount")
    try:
        files.replace_file("/etc/x", file_state(b"old"), root=str(disk))
        subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)
        change = FileChange("/etc/x", file_state(b"old"), file_state(b"n" * 200_000))
        with pytest.raises(ChangeFailed, match="/etc/x could not be written") as caught:
            LocalHost(str(disk)).apply([change])
        assert words in caught.value.hint
        assert [path.name for path in (disk / "etc").iterdir()] == ["x"]
        assert files.read_state("/etc/x", root=str(disk)) == file_state(b"old")
    finally:
        subprocess.run(["umount", disk], check=True)


# -- packages and keys --------------------------------------------------------------------------------------------

KEY = SigningKey("https://repo.example/key.pub", frozenset({"A" * 40, "B" * 40}), 0o640)


def test_package_changes_are_one_transaction_in_order(tmp_path: Path) -> None:
    apt = Apt()
    packages = [PackageChange(PackageId.of(name), None, PackageState("1")) for name in ("a", "b")]
    file = FileChange(str(tmp_path / "x"), None, file_state(b"x"))
    with_apt(LocalHost(), apt).apply([*packages, file])
    assert apt.asked == [("transact", *packages)]
    assert (tmp_path / "x").exists()


def test_changed_lists_are_refreshed_in_one_call(tmp_path: Path) -> None:
    apt = Apt()
    paths = [str(tmp_path / name) for name in ("a.list", "b.list", "removed.list")]
    for path in paths[:2]:
        Path(path).touch()
    triggers = [Trigger("index-refresh", path) for path in paths]
    settled = with_apt(LocalHost(), apt).run_triggers(triggers)
    assert apt.asked == [("refresh", *paths[:2])]
    assert [(one.trigger, one.skipped) for one in settled] == [
        *((trigger, "") for trigger in triggers[:2]),
        (triggers[2], f"{paths[2]} is gone"),
    ]


def test_index_of_a_removed_list_is_not_said_to_be_read() -> None:
    apt = Apt()
    (one,) = with_apt(LocalHost(), apt).run_triggers([Trigger("index-refresh", "/removed.list")])
    assert (apt.asked, one.skipped) == ([], "/removed.list is gone")


def test_key_is_fetched_and_its_fingerprints_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openpgp, "list_key_fingerprints", lambda _data: ("B" * 40, "A" * 40))
    change = FileChange("/usr/share/keyrings/x.gpg", None, KEY)
    binary = with_apt(LocalHost(), Apt(b"\x99binary")).complete_change(change)
    assert binary == FileChange(change.path, None, FileState(b"\x99binary", 0o640))


@pytest.mark.parametrize("found", [("A" * 40,), ("A" * 40, "B" * 40, "C" * 40), ("C" * 40,), ()])
def test_wrong_set_of_keys_is_refused_naming_both(monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...]) -> None:
    monkeypatch.setattr(openpgp, "list_key_fingerprints", lambda _data: found)
    with pytest.raises(Refused, match="not the expected key") as caught:
        with_apt(LocalHost(), Apt(b"\x99")).complete_change(FileChange("/x", None, KEY))
    for fingerprint in (*found, *KEY.fingerprints):
        assert fingerprint in caught.value.why


def test_download_that_is_no_key_is_refused_and_quoted() -> None:
    with pytest.raises(Refused, match="not an OpenPGP key") as caught:
        with_apt(LocalHost(), Apt(b"<html>Sign in to the network</html>")).complete_change(FileChange("/x", None, KEY))
    assert "Sign in to the network" in caught.value.why


@pytest.mark.parametrize(
    "change", [FileChange("/x", None, file_state(b"x")), ModuleChange("nvidia", before=False, after=True)]
)
def test_realized_change_is_unchanged(change: Change) -> None:
    assert LocalHost().complete_change(change) == change


def test_folders_for_a_new_file_are_recorded_before_the_write(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    realized = LocalHost(str(tmp_path)).complete_change(FileChange("/etc/a/b/c", None, file_state(b"x")))
    assert isinstance(realized, FileChange)
    assert realized.folders == ("/etc/a", "/etc/a/b")


def test_folders_behind_a_dangling_link_are_recorded_and_removed(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x").symlink_to("/srv/a/x")
    host = LocalHost(str(tmp_path))
    change = FileChange("/etc/x", None, file_state(b"1"))
    realized = host.complete_change(change)
    assert isinstance(realized, FileChange)
    assert realized.folders == ("/srv", "/srv/a")
    assert host.describe_symlinks([change]) == ("/etc/x leads to /srv/a/x by a symbolic link, so that file is changed",)
    host.apply([realized])
    host.apply([FileChange("/etc/x", file_state(b"1"), None, folders=realized.folders)])
    assert sorted(os.listdir(tmp_path)) == ["etc"]


def test_removed_file_is_restored_with_attributes_without_new_folders(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    try:
        os.setxattr(path, "user.note", b"keep")
    except OSError:
        pytest.skip("the file system of the temporary folder has no extended attributes")
    host, state = LocalHost(str(tmp_path)), files.read_state("/file", root=str(tmp_path))
    removal = host.complete_change(FileChange("/file", state, None))
    host.apply([removal])
    assert not path.exists()
    back = removal.inverse()
    assert back is not None
    host.apply([back])
    assert os.getxattr(path, "user.note") == b"keep"

    made = host.complete_change(FileChange("/new/folder/file", None, file_state(b"x")))
    host.apply([made])
    assert (tmp_path / "new/folder/file").exists()
    unmade = made.inverse()
    assert unmade is not None
    host.apply([unmade])
    assert not (tmp_path / "new").exists()


# -- modules, commands, initramfs ---------------------------------------------------------------------------------


def test_first_cause_from_modprobe_is_reported(tools: Tools) -> None:
    tools.add(
        "modprobe",
        """cat >&2 <<END
modprobe: ERROR: could not insert 'nvidia_current': No such device
modprobe: ERROR: Error running install command 'modprobe -i nvidia-current ' for module nvidia: retcode 1
modprobe: ERROR: could not insert 'nvidia': Invalid argument
END
exit 1""",
    )
    with pytest.raises(ChangeFailed, match="nvidia could not be loaded") as caught:
        LocalHost().apply([ModuleChange("nvidia", before=False, after=True)])
    assert caught.value.why == "modprobe: ERROR: could not insert 'nvidia_current': No such device"
    with pytest.raises(ChangeFailed, match="could not be unloaded"):
        LocalHost().apply([ModuleChange("nouveau", before=True, after=False)])
    assert tools.calls == ["modprobe nvidia", "modprobe -r nouveau"]


def test_module_is_never_loaded_for_an_image(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be loaded"):
        LocalHost(str(tmp_path)).apply([ModuleChange("nvidia", before=False, after=True)])


def test_command_that_a_signal_ended_says_so(tools: Tools) -> None:
    tools.add("dkms", "kill -9 $$")
    with pytest.raises(ChangeFailed, match="dkms autoinstall failed") as caught:
        LocalHost().apply([CommandChange(("dkms", "autoinstall"), "the module is missing")])
    assert caught.value.why == "ended by signal 9, without output"


def test_command_reports_progress_and_its_last_output(tools: Tools) -> None:
    heard: list[Progress] = []
    tools.add("dkms", "echo building; echo 'Error! Bad return status' >&2; exit 10")
    host = LocalHost(on_progress=heard.append)
    with pytest.raises(ChangeFailed, match="dkms autoinstall failed") as caught:
        host.apply([CommandChange(("dkms", "autoinstall"), "the module is missing")])
    assert "exit status 10" in caught.value.why
    assert "Bad return status" in caught.value.why
    assert {one.detail for one in heard} == {"building", "Error! Bad return status"}


def test_missing_command_fails(tools: Tools) -> None:
    with pytest.raises(ChangeFailed) as caught:
        LocalHost().apply([CommandChange(("no-such-tool",), "x")])
    assert "command not found" in caught.value.why


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def busy_root(tmp_path: Path, allow_subprocess: None) -> Iterator[str]:
    """Yield a root folder in which another process changes the packages."""
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "var/lib/dpkg/lock-frontend")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield str(tmp_path)
        holder.communicate()


def test_command_waits_for_the_package_lock(busy_root: str) -> None:
    """dpkg --configure during unattended-upgrades, or during an apt that a killed run left behind, would only fail."""
    host = LocalHost(busy_root, lock_timeout_s=0)
    with pytest.raises(Busy, match="lock-frontend is locked by process"):
        host.apply([CommandChange(("dpkg", "--configure", "-a"), "it was interrupted")])
    with pytest.raises(Busy):
        host.run_triggers([Trigger("initramfs")])


def test_initramfs_is_rebuilt_once_for_all_kernels(tools: Tools) -> None:
    trigger = Trigger("initramfs")
    tools.add("update-initramfs", "")
    (done,) = LocalHost().run_triggers([trigger])
    assert (done.trigger, done.skipped) == (trigger, "")
    assert tools.calls == ["update-initramfs -u -k all"]
    tools.add("update-initramfs", "echo 'No space left on device' >&2; exit 1")
    with pytest.raises(ChangeFailed, match="initramfs could not be rebuilt") as caught:
        LocalHost().run_triggers([trigger])
    assert "No space left" in caught.value.why


def test_missing_update_initramfs_is_reported_as_skipped(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpunode.host.process.PATH", str(tools.folder))
    (done,) = LocalHost().run_triggers([Trigger("initramfs")])
    assert done.skipped == "update-initramfs is not installed"


def test_service_restart_in_an_image_is_skipped(tmp_path: Path) -> None:
    (done,) = LocalHost(str(tmp_path)).run_triggers([Trigger("restart", "containerd.service")])
    assert done.skipped == "systemd is not running here"


def test_symlinked_target_of_a_change_is_reported(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "srv").mkdir()
    (tmp_path / "etc/linked").symlink_to("/srv/real")
    changes = [FileChange(path, None, FileState(b"x")) for path in ("/etc/linked", "/etc//plain", "/no/folder")]

    told = LocalHost(str(tmp_path)).describe_symlinks(changes)

    assert told == ("/etc/linked leads to /srv/real by a symbolic link, so that file is changed",)
