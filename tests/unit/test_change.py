from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpunode.change import (
    CommandChange,
    Deferred,
    FileChange,
    FileState,
    KnownAfter,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
    SigningKey,
    Trigger,
    sort_changes,
    triggers_of,
)
from gpunode.package_id import PackageId
from tests.needs import lacking

ON, OFF = ServiceState(enabled=True, active=True), ServiceState(enabled=False, active=False)
KEY = SigningKey("https://example.com/key.asc", frozenset({"A" * 40}))


def replacement_of(before: bytes, after: bytes) -> FileChange:
    return FileChange("/etc/x", FileState(before), FileState(after))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (FileChange("/etc/x", None, FileState(b"")), "/etc/x"),
        (PackageChange(PackageId("dkms"), None, KnownAfter()), "dkms"),
        (ServiceChange("docker.service", OFF, ON), "docker.service"),
        (ModuleChange("nvidia", False, True), "nvidia"),
        (CommandChange(("dpkg", "--configure", "-a"), "interrupted"), "dpkg --configure -a"),
    ],
)
def test_change_is_named_by_its_subject(change: FileChange, said: str) -> None:
    assert change.subject == said


def test_only_a_started_unit_has_its_files_restored_on_failure() -> None:
    assert ServiceChange("docker.service", OFF, ON).unit_running_after == "docker.service"
    assert ServiceChange("docker.service", ON, OFF).unit_running_after == ""


@pytest.mark.parametrize(
    "change",
    [
        FileChange("/etc/x", None, Deferred("what the package ships", "the transaction")),
        FileChange("/usr/share/keyrings/x.gpg", None, KEY),
        PackageChange(PackageId("nvidia-open"), None, KnownAfter("580.")),
        CommandChange(("dkms", "autoinstall"), "no module"),
    ],
)
def test_unknown_or_irreversible_change_has_no_inverse(change: FileChange) -> None:
    assert change.inverse() is None


def test_command_is_undone_by_its_undo_command() -> None:
    enroll = CommandChange(("mokutil", "--import", "k"), "Secure Boot", ("mokutil", "--revoke-import"))
    assert enroll.inverse() == CommandChange(
        ("mokutil", "--revoke-import"), "undo: Secure Boot", ("mokutil", "--import", "k")
    )


def test_changes_are_ordered_files_packages_modules_services() -> None:
    service = ServiceChange("nvidia-persistenced.service", OFF, ON)
    module = ModuleChange("nvidia", False, True)
    command = CommandChange(("dkms", "autoinstall"), "no module")
    package = PackageChange(PackageId("nvidia-open"), None, KnownAfter())
    pin = FileChange("/etc/apt/preferences.d/gpunode-nvidia", None, FileState(b""))
    assert sort_changes([service, module, command, package, pin]) == (pin, package, command, module, service)


def test_triggers_are_unique_and_daemon_reload_comes_first() -> None:
    restart, read = Trigger("restart", "docker.service"), Trigger("daemon-reload")
    config = FileChange("/etc/docker/daemon.json", None, FileState(b"{}"), frozenset({restart}))
    unit = FileChange("/etc/systemd/system/docker.service.d/x.conf", None, FileState(b""), frozenset({restart, read}))
    assert triggers_of([config, unit]) == (read, restart)
    assert [trigger.runs_at_stage_end for trigger in (read, restart)] == [True, False]
    assert [str(trigger) for trigger in (read, restart)] == ["daemon-reload", "restart docker.service"]


class TestDiff:
    def test_replaced_file_has_a_unified_diff(self) -> None:
        assert list(replacement_of(b"a\nb\n", b"a\nc\n").diff()) == [
            "--- /etc/x",
            "+++ /etc/x",
            "@@ -1,2 +1,2 @@",
            " a",
            "-b",
            "+c",
        ]

    def test_new_and_removed_files_are_diffed_with_dev_null(self) -> None:
        assert list(FileChange("/etc/x", None, FileState(b"a\n")).diff())[:2] == ["--- /dev/null", "+++ /etc/x"]
        assert list(FileChange("/etc/x", FileState(b"a\n"), None).diff())[:2] == ["--- /etc/x", "+++ /dev/null"]

    def test_key_shows_its_fingerprint_before_the_download(self) -> None:
        shown = "\n".join(FileChange("/usr/share/keyrings/x.gpg", None, KEY).diff())
        assert "A" * 40 in shown
        assert "known after its download" in shown

    def test_deferred_file_is_described(self) -> None:
        later = Deferred("what the package ships", "the transaction")
        known_later = "+ (what the package ships; known after the transaction)"
        assert list(FileChange("/etc/x", None, later).diff()) == ["--- /dev/null", "+++ /etc/x", known_later]
        assert list(FileChange("/etc/x", FileState(b""), later).diff()) == ["--- /etc/x", "+++ /etc/x", known_later]

    def test_deferred_file_may_be_planned_again_once_it_is_made(self) -> None:
        made = FileState(b"")
        assert FileChange("/etc/x", made, Deferred("what the package ships", "the transaction")).may_recur_in_stage
        assert not FileChange("/etc/x", None, made).may_recur_in_stage

    @pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b"])
    def test_binary_content_is_not_shown(self, content: bytes) -> None:
        assert list(replacement_of(b"a\n", content).diff()) == ["binary file /etc/x differs"]
        hidden = FileChange("/etc/x", FileState(content, 0o600), FileState(b"\0"))
        assert list(hidden.diff())[1:] == ["-mode 0600 owner 0:0", "+mode 0644 owner 0:0"]

    def test_binary_file_is_said_to_be_created_or_removed(self) -> None:
        keyring = FileState(b"\x99\0")
        assert list(FileChange("/etc/x", keyring, None).diff()) == ["binary file /etc/x is removed"]
        assert list(FileChange("/etc/x", None, keyring).diff()) == ["binary file /etc/x is created"]

    def test_changed_mode_and_owner_are_shown(self) -> None:
        change = FileChange("/etc/x", FileState(b"a", 0o644), FileState(b"a", 0o600, 0, 4))
        shown = ["--- /etc/x", "+++ /etc/x", "-mode 0644 owner 0:0", "+mode 0600 owner 0:4"]
        assert list(change.diff()) == shown
        keyring = FileChange("/etc/x", FileState(b"\x99\0", 0o644), FileState(b"\x99\0", 0o600, 0, 4))
        assert list(keyring.diff()) == shown, "a binary file whose bytes stay does not differ"

    def test_unchanged_binary_shows_only_mode_and_owner(self) -> None:
        change = FileChange("/etc/x", FileState(b"\x99\0", 0o600), FileState(b"\x99\0", 0o644))
        assert list(change.diff()) == ["--- /etc/x", "+++ /etc/x", "-mode 0600 owner 0:0", "+mode 0644 owner 0:0"]

    def test_missing_final_newline_is_shown(self) -> None:
        assert list(replacement_of(b"a\n", b"a").diff())[3:] == ["-a", "+a", "\\ No newline at end of file"]

    def test_equal_files_have_no_diff(self) -> None:
        assert list(replacement_of(b"a\n", b"a\n").diff()) == []

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (b"[a]\nx = 1\n\n[b]\ny = 2\n", b"[a]\nx = 1\n[c]\nz = 3\n\n[b]\n"),
            (b"a\n", b"a"),
            (b"a", b"a\nb"),
            (b"a\r\nb\r\n", b"a\nb\n"),
            (b"a\x0cb\xe2\x80\xa8c\n", b"a\x0cb\xe2\x80\xa8d\n"),
        ],
    )
    @pytest.mark.usefixtures("allow_subprocess")
    def test_patch_applies_the_diff(self, tmp_path: Path, before: bytes, after: bytes) -> None:
        if reason := lacking("patch"):
            pytest.skip(reason)
        target = tmp_path / "x"
        target.write_bytes(before)
        text = "\n".join(replacement_of(before, after).diff()) + "\n"
        subprocess.run(["patch", "--binary", "-s", str(target)], input=text.encode(), check=True)
        assert target.read_bytes() == after


def test_package_inverse_restores_version_mark_and_hold() -> None:
    was, now = PackageState("470", auto=True, held=True), PackageState("580")
    assert PackageChange(PackageId("nvidia-driver"), was, now).inverse() == PackageChange(
        PackageId("nvidia-driver"), now, was
    )
