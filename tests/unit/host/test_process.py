"""Commands: a stuck, missing, chatty or misbehaving program costs the user nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import UsageError
from gpunode.host import process
from gpunode.host.command_log import CommandLog
from gpunode.host.process import FinishedCommand, Runner
from gpunode.redaction.secrets import redact_text as redact

pytestmark = [
    pytest.mark.usefixtures("allow_subprocess"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
SHELL = ("sh", "-c")


def run(*argv: str, timeout_s: float = 20) -> FinishedCommand:
    return Runner().run(argv, timeout_s=timeout_s)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_exit_status_and_streams_are_separate() -> None:
    done = run(*SHELL, "echo out; echo err >&2; exit 3")
    assert (done.exit_status, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert not done.ok
    assert not done.timed_out


@pytest.mark.parametrize("status", [0, 1, 124, 127, 255])
def test_every_exit_status_is_returned(status: int) -> None:
    done = run(*SHELL, f"exit {status}")
    assert (done.exit_status, done.timed_out) == (status, False)


def test_death_by_signal_is_128_plus_its_number() -> None:
    assert run(*SHELL, "kill -SEGV $$").exit_status == 128 + signal.SIGSEGV


def test_missing_program_is_an_outcome() -> None:
    done = run("no-such-program-here", "--version")
    assert done.is_program_missing
    assert done.stderr == b"no-such-program-here: command not found"


def test_unexecutable_program_is_an_outcome(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = run(str(script))
    assert done.exit_status == 126
    assert b"No such file" in done.stderr


def test_binary_data_passes_unchanged() -> None:
    data = bytes(range(256)) * 40
    done = Runner().run(("cat",), timeout_s=20, stdin=data)
    assert done.stdout == data


def test_input_larger_than_a_pipe_does_not_deadlock() -> None:
    data = os.urandom(1 << 20)
    done = Runner().run(("cat",), timeout_s=20, stdin=data, limit_bytes=2 << 20)
    assert done.stdout == data


def test_read_only_command_is_stopped_at_the_output_limit() -> None:
    done = Runner().run(("yes",), timeout_s=20, limit_bytes=1 << 20, only_reads=True)
    assert len(done.stdout) == 1 << 20
    assert done.dropped_bytes
    assert not done.timed_out
    assert not done.ok


def test_read_only_command_ignoring_sigterm_is_killed() -> None:
    loud = "trap '' TERM; while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa >&2; done"
    done = Runner().run(("sh", "-c", loud), timeout_s=20, limit_bytes=1 << 16, only_reads=True)
    assert len(done.stderr) == 1 << 16
    assert not done.timed_out


def test_output_beyond_the_limit_is_dropped_and_counted() -> None:
    done = run(*SHELL, "head -c 10000000 /dev/zero; head -c 3000000 /dev/zero >&2")
    assert (len(done.stdout), len(done.stderr)) == (1 << 20, 1 << 20)
    assert done.dropped_bytes == 13_000_000 - (2 << 20)
    assert done.ok


def test_timeout_kills_the_command_and_its_descendants(tmp_path: Path) -> None:
    done = run(*SHELL, f"sleep 300 & echo $! > {tmp_path}/pid; echo said; sleep 300", timeout_s=2)
    assert (done.exit_status, done.timed_out, done.stdout) == (124, True, b"said\n")
    assert wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_process_ignoring_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_TERM_PATIENCE_S", 0.3)
    (tmp_path / "stubborn").write_text(f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 1; done")
    script = f"trap '' TERM; sh {tmp_path}/stubborn & while :; do sleep 1; done"
    done = run(*SHELL, script, timeout_s=2)
    assert done.timed_out
    assert wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_command_may_clean_up_after_the_timeout() -> None:
    done = run(*SHELL, "trap 'echo cleaned; exit 1' TERM; sleep 300 & wait", timeout_s=2)
    assert (done.timed_out, done.stdout) == (True, b"cleaned\n")


def test_daemon_left_behind_neither_delays_nor_is_killed(tmp_path: Path) -> None:
    done = run(*SHELL, f"echo before; sleep 60 & echo $! > {tmp_path}/pid; exit 5", timeout_s=30)
    daemon = int((tmp_path / "pid").read_text())
    try:
        assert (done.exit_status, done.stdout, done.timed_out) == (5, b"before\n", False)
        assert is_running(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_runner_works_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_open_exit_descriptor", lambda _pid: None)
    assert run(*SHELL, "echo x; exec >&- 2>&-; sleep 0.2; exit 4").exit_status == 4
    assert run(*SHELL, "sleep 300", timeout_s=0.3).timed_out


def test_lines_are_delivered_as_written_including_a_partial_last() -> None:
    heard: list[str] = []
    script = "printf 'one\\r\\ntwo\\377\\n'; sleep 0.2; printf 'three' >&2"
    Runner().run((*SHELL, script), timeout_s=20, on_line=heard.append)
    assert heard == ["one", "two\N{REPLACEMENT CHARACTER}", "three"]


def test_status_pipe_is_passed_and_its_lines_returned() -> None:
    heard: list[str] = []
    script = "import os, sys; os.write(int(sys.argv[1]), b'dlstatus:1:50:x\\npmstatus:y\\n'); print('out')"
    done = Runner().run((sys.executable, "-c", script, "{status_fd}"), timeout_s=20, status=heard.append)
    assert heard == ["dlstatus:1:50:x", "pmstatus:y"]
    assert done.stdout == b"out\n"
    assert done.dropped_bytes == 0
    assert done.argv[-1].isdigit()


class TestDetachedCommands:
    """Commands that must complete whatever happens to gpunode."""

    def test_output_and_status_arrive_while_it_runs(self) -> None:
        lines: list[str] = []
        states: list[str] = []
        script = "echo one; echo half >&2; echo dlstatus:x > /proc/self/fd/$0; sleep 0.5; printf two; exit 3"
        done = Runner().run(
            (*SHELL, script, "{status_fd}"),
            timeout_s=20,
            on_line=lines.append,
            status=states.append,
            survives_gpunode=True,
        )
        assert (done.exit_status, done.stdout, done.stderr) == (3, b"one\ntwo", b"half\n")
        assert (sorted(lines), states) == (["half", "one", "two"], ["dlstatus:x"])

    def test_truncated_standard_error_loses_nothing(self) -> None:
        script = "echo first >&2; sleep 0.5; echo 2 > /dev/stderr; echo third >&2"
        done = Runner().run((*SHELL, script), timeout_s=20, survives_gpunode=True)
        assert done.stderr == b"first\n2\nthird\n"

    def test_timeout_ends_it_and_keeps_its_output(self) -> None:
        done = Runner().run((*SHELL, "echo said; sleep 300"), timeout_s=1, survives_gpunode=True)
        assert (done.exit_status, done.timed_out, done.stdout) == (124, True, b"said\n")

    def test_it_completes_after_gpunode_is_killed(self, tmp_path: Path) -> None:
        """A pipe would break at its next line, and dpkg would stop midway."""
        script = f"echo > {tmp_path}/begun; sleep 1; echo more && echo > {tmp_path}/ended"
        source = "import sys; from gpunode.host.process import Runner; Runner().run(('sh', '-c', sys.argv[1]), "
        gpunode = subprocess.Popen([sys.executable, "-c", f"{source}timeout_s=60, survives_gpunode=True)", script])
        try:
            assert wait_for((tmp_path / "begun").exists)
        finally:
            gpunode.kill()
            gpunode.wait()
        assert wait_for((tmp_path / "ended").exists)


def test_command_inherits_no_file_descriptors() -> None:
    before = set(os.listdir("/proc/self/fd"))
    done = run("ls", "/proc/self/fd")
    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]
    assert set(os.listdir("/proc/self/fd")) == before


def test_environment_is_fixed_but_for_the_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "localhost")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LD_PRELOAD_NOT", "x")
    monkeypatch.setenv("PATH", "/evil")
    done = Runner().run(("env",), timeout_s=20, env={"DEBIAN_FRONTEND": "noninteractive"})
    environment = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    assert environment.pop("HOME")
    assert environment == {
        "PATH": process.PATH,
        "LC_ALL": "C.UTF-8",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": "localhost",
        "DEBIAN_FRONTEND": "noninteractive",
    }


def test_program_is_not_found_by_the_callers_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uname").write_text("#!/bin/sh\necho evil\n")
    (tmp_path / "uname").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("uname").stdout == b"Linux\n"


@pytest.mark.usefixtures("interruptible")
def test_interrupt_waits_for_the_command_to_end(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for((tmp_path / "started").exists)
        os.kill(os.getpid(), signal.SIGINT)
        (tmp_path / "sent").touch()

    sender = threading.Thread(target=interrupt)
    sender.start()
    script = f"touch {tmp_path}/started; until test -e {tmp_path}/sent; do sleep 0.05; done; touch {tmp_path}/ended"
    with pytest.raises(KeyboardInterrupt):
        run(*SHELL, script)
    sender.join()
    assert (tmp_path / "ended").exists()


def test_failing_line_callback_kills_the_command(tmp_path: Path) -> None:
    def fail(_line: str) -> None:
        raise RuntimeError("listener")

    with pytest.raises(RuntimeError, match="listener"):
        Runner().run((*SHELL, f"echo $$ > {tmp_path}/pid; echo x; sleep 300"), timeout_s=20, on_line=fail)
    assert wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_commands_run_concurrently() -> None:
    results: list[FinishedCommand] = []
    threads = [threading.Thread(target=lambda n=n: results.append(run(*SHELL, f"echo {n}"))) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(one.stdout) for one in results) == list(range(12))


def test_log_has_commands_and_output_without_secrets(tmp_path: Path) -> None:
    log = CommandLog("setup-1", root=str(tmp_path))
    runner = Runner(log=log)
    runner.run(
        (*SHELL, "echo fetched http://me:hunter2@proxy/x; echo 'Authorization: Basic c2VjcmV0' >&2"), timeout_s=20
    )
    runner.run(("no-such-program", "--password=hunter2"), timeout_s=20)
    path = Path(log.path)
    text = path.read_text()
    assert path == tmp_path / "var/log/gpunode/setup-1.log"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert "exit 0" in text
    assert "fetched http://redacted@proxy/x" in text
    assert "no-such-program: command not found" in text
    assert "hunter2" not in text
    assert "c2VjcmV0" not in text
    assert log.problem == ""


def test_unwritable_log_fails_nothing_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("in the way")
    log = CommandLog("x", root=str(tmp_path))
    assert Runner(log=log).run(("true",), timeout_s=20).ok
    assert "x.log could not be written" in log.problem


def test_log_is_not_written_through_a_symlink(tmp_path: Path) -> None:
    folder = tmp_path / "var/log/gpunode"
    folder.mkdir(parents=True)
    (tmp_path / "victim").write_text("mine")
    (folder / "x.log").symlink_to(tmp_path / "victim")
    log = CommandLog("x", root=str(tmp_path))
    Runner(log=log).run(("true",), timeout_s=20)
    assert (tmp_path / "victim").read_text() == "mine"
    assert log.problem


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a folder to another user")
def test_log_is_not_written_in_a_foreign_folder(tmp_path: Path) -> None:
    folder = tmp_path / "var/log/gpunode"
    folder.mkdir(parents=True)
    os.chown(folder, 1234, 1234)
    log = CommandLog("x", root=str(tmp_path))
    Runner(log=log).run(("true",), timeout_s=20)
    assert list(folder.iterdir()) == []
    assert "it belongs to uid 1234" in log.problem


def test_log_of_an_image_stays_inside_it(tmp_path: Path) -> None:
    (tmp_path / "image/var").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "image/var/log").symlink_to(tmp_path / "logs")
    log = CommandLog("x", root=f"{tmp_path}/image")
    assert Runner(log=log).run(("true",), timeout_s=20).ok
    assert log.problem == ""
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Get:1 https://user:s3cr3t@repo.example/x InRelease", "s3cr3t"),
        ("http_proxy=http://bob:s3cr3t@10.0.0.1:3128/", "s3cr3t"),
        ("Proxy-Authorization: Basic s3cr3ts3cr3t==", "s3cr3t"),
        ("authorization: Bearer s3cr3t.s3cr3t", "s3cr3t"),
        ('{"registry_token": "s3cr3t"}', "s3cr3t"),
        ("NGC_API_KEY=s3cr3t", "s3cr3t"),
        ("password: 's3cr3t with spaces'", "s3cr3t"),
        ("curl --token s3cr3t https://x", "s3cr3t"),
        ("machine repo login bob password s3cr3t", "s3cr3t"),
        ("GET /x?access_token=s3cr3t&y=1", "s3cr3t"),
        ("https://s3cr3t@repo.example/x", "s3cr3t"),
        ('    auth = "s3cr3t=="', "s3cr3t"),
        ('{"auths": {"reg.example": {"auth": "s3cr3t=="}}}', "s3cr3t"),
        ('Authorization = ["Basic s3cr3t"]', "s3cr3t"),
        ('X-Registry-Auth = ["a", "s3cr3t"]', "s3cr3t"),
        ('"X-Api-Token": ["s3cr3t"]', "s3cr3t"),
    ],
)
def test_secrets_are_redacted(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert "redacted" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Setting up nvidia-driver-cuda (580.178.04-1) ...",
        "E: The repository 'https://developer.download.nvidia.com/x InRelease' is not signed.",
        "signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg",
        "NO_PUBKEY A4B469963BF863CC",
        'authority = "x"',
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("part", ["9", "a", "-", "token", "x-", "key=", "://", "auth ", "bearer ", '"', "headers"])
def test_redaction_is_linear_in_the_length_of_a_word(part: str) -> None:
    """Quadratic time would be long for a line of a build log or a configuration value."""
    text = part * (100_000 // len(part))
    assert len(redact(f"{text}\npassword=s3cr3t")) >= 8


@given(st.text(max_size=200))
def test_redaction_is_idempotent(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes namespaces")
def test_command_runs_inside_another_root(tmp_path: Path) -> None:
    done = Runner(str(tmp_path), consent=lambda: None).run(("no-shell-here",), timeout_s=20)
    assert done.is_program_missing
    assert b"no-shell-here" in done.stderr
    assert done.argv == ("no-shell-here",)


def test_command_in_another_root_needs_consent(tmp_path: Path) -> None:
    def refuse() -> None:
        raise UsageError("no")

    assert Runner(str(tmp_path)).run(("/bin/true",), timeout_s=20).is_program_missing
    with pytest.raises(UsageError):
        Runner(str(tmp_path), consent=refuse).run(("/bin/true",), timeout_s=20)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to be another user")
def test_program_in_an_unreadable_folder_is_missing(tmp_path: Path) -> None:
    program = tmp_path / "closed" / "tool"
    program.parent.mkdir(mode=0o700)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    os.seteuid(65534)
    try:
        done = Runner().run((str(program),), timeout_s=5)
    finally:
        os.seteuid(0)
    assert done.is_program_missing
