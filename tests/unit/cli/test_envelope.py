from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given

from gpunode import errors
from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    FileState,
    KnownAfter,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
)
from gpunode.cli import boundary, status
from gpunode.cli.app import app
from gpunode.cli.envelope import Envelope
from gpunode.errors import Busy, GpunodeError, RecipeError, Refused, UsageError, exit_codes
from gpunode.package_id import PackageId
from tests.laws.strategies import changes

KEYS = {
    "schema", "command", "status", "exit_code", "changed", "changes", "diff", "notes", "findings", "unknown", "errors",
    "result",
}  # fmt: skip
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, GpunodeError) and kind is not GpunodeError and not issubclass(kind, RecipeError)
]


def read(envelope: Envelope) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(envelope.as_json())
    return found


def test_envelope_has_exactly_the_documented_keys() -> None:
    assert set(read(Envelope("plan"))) == KEYS
    assert set(read(Envelope("plan").with_failure(Busy("locked")))) == KEYS


def test_success_without_changes() -> None:
    found = read(Envelope("plan"))
    assert (found["schema"], found["status"], found["exit_code"], found["changed"]) == (1, "ok", 0, False)


def test_failure_says_what_why_and_what_next() -> None:
    found = read(Envelope("setup").with_failure(Busy("dpkg is locked", why="by 4711", hint="wait")))
    assert (found["command"], found["status"], found["exit_code"], found["changed"]) == ("setup", "busy", 12, False)
    said = {"error": "busy", "what": "dpkg is locked", "why": "by 4711", "hint": "wait"}
    assert found["errors"] == [{**said, "commands": [], "manual": True}]


def test_hint_lists_commands_and_whether_a_person_must_act() -> None:
    hint = "apt-mark unhold libcuda1\nthen run the same command again"
    (error,) = read(Envelope("setup").with_failure(Refused("held", hint=hint)))["errors"]
    assert (error["commands"], error["manual"]) == (["apt-mark unhold libcuda1"], False)
    (error,) = read(Envelope("setup").with_failure(Refused("no", hint="run `gpunode plan`, or look at it")))["errors"]
    assert (error["commands"], error["manual"]) == ([], True)


def test_diff_has_the_format_of_ansible() -> None:
    change = FileChange("/etc/x", None, FileState(b"a = 1\n"))
    (row,) = read(Envelope("plan", changes=[change]))["diff"]
    assert row == {"before_header": "/etc/x", "after_header": "/etc/x", "before": "", "after": "a = 1\n"}
    (row,) = read(Envelope("plan", changes=[FileChange("/etc/x", None, FileState(b"\xff\0"))]))["diff"]
    assert set(row) == {"prepared"}


def test_package_change_has_both_versions() -> None:
    change = PackageChange(PackageId("libcuda1"), PackageState("470-1"), PackageState("580-1"))
    (row,) = read(Envelope("plan", changes=[change]))["changes"]
    assert row == {
        "kind": "package",
        "action": "upgrade",
        "subject": "libcuda1",
        "step": None,
        "before": "470-1",
        "after": "580-1",
    }


def test_unknown_version_is_null_and_says_when_it_is_known() -> None:
    change = PackageChange(PackageId("dkms"), None, KnownAfter(why="headers"))
    (row,) = read(Envelope("plan", changes=[change], steps={change: "headers"}))["changes"]
    assert (row["action"], row["step"], row["after"]) == ("install", "headers", None)
    assert row["known_after"] == "the package index is read"


FILE, OTHER = FileState(b"a"), FileState(b"b")
ACTIONS: dict[str, Change] = {
    "create": FileChange("/x", None, FILE),
    "edit": FileChange("/x", FILE, OTHER),
    "delete": FileChange("/x", FILE, None),
    "reload": FileChange("/x", FILE, FILE),
    "install": PackageChange(PackageId("x"), PackageState("1", config_files_only=True), PackageState("2")),
    "upgrade": PackageChange(PackageId("x"), PackageState("1"), PackageState("2")),
    "downgrade": PackageChange(PackageId("x"), PackageState("2"), PackageState("1")),
    "mark": PackageChange(PackageId("x"), PackageState("1"), PackageState("1", held=True)),
    "purge": PackageChange(PackageId("x"), PackageState("1"), None),
    "enable": ServiceChange("x", ServiceState(False, True), ServiceState(True, True)),
    "disable": ServiceChange("x", ServiceState(True, True), ServiceState(False, True)),
    "start": ServiceChange("x", ServiceState(False, False), ServiceState(True, True)),
    "stop": ServiceChange("x", ServiceState(True, True), ServiceState(False, False)),
    "load": ModuleChange("x", False, True),
    "unload": ModuleChange("x", True, False),
    "run": CommandChange(("true",), "why"),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_change_has_its_action(action: str) -> None:
    assert read(Envelope("plan", changes=[ACTIONS[action]]))["changes"][0]["action"] == action


@given(changes)
def test_every_change_action_is_listed_in_the_docs(change: Change) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/json-output.md").read_text()
    (row,) = read(Envelope("plan", changes=[change]))["changes"]
    table = next(
        line for line in page.partition("| kind | actions |")[2].splitlines() if line.startswith(f"| `{row['kind']}` |")
    )
    assert f"`{row['action']}`" in table
    assert row.get("after") != ""


@given(changes)
def test_envelope_is_one_line_of_ascii_json(change: Change) -> None:
    text = Envelope("plan", changes=[change], notes=["é"]).as_json()
    assert "\n" not in text
    assert text.isascii()
    json.loads(text)


def test_name_that_is_not_utf_8_is_valid_json() -> None:
    line = Envelope("x", result={"f\udcff": ["ü", "f\udcff.json"]}).as_json()
    assert json.loads(line)["result"] == {"f\\udcff": ["ü", "f\\udcff.json"]}


def test_envelope_contains_no_secret() -> None:
    secret = "hunter2hunter2"
    address = f"https://me:{secret}@mirror.example/x"
    change = FileChange("/etc/apt/a.list", None, FileState(f"deb {address} /\n".encode()))
    error = Busy(f"waited for {address}", why=f"asked {address}", hint=address)
    envelope = Envelope("setup", changes=[change], notes=[address], errors=[error], result={"text": address})
    assert secret not in envelope.as_json()


def _stop(kind: type[GpunodeError]) -> Any:
    def command(*_: object, **__: object) -> None:
        raise kind("it stopped", why="because", hint="do this")

    return command


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_ends_with_its_exit_code(
    kind: type[GpunodeError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "status", _stop(kind))
    assert boundary.run_cli(["status"]) == kind.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["gpunode: it stopped", "  because", "  next: do this"]
    assert boundary.run_cli(["status", "--json"]) == kind.exit_code
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out) == read(
        Envelope("status").with_failure(kind("it stopped", why="because", hint="do this"))
    )
    assert kind.exit_code in dict(exit_codes())


def test_bug_saves_its_traceback_and_is_an_envelope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return "/tmp/bug.txt"

    monkeypatch.setattr(boundary, "_save_traceback", keep)
    monkeypatch.setattr(status, "status", command)
    assert boundary.run_cli(["status"]) == 1
    assert "ZeroDivisionError: by nought" in capsys.readouterr().err
    assert boundary.run_cli(["status", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == KEYS
    assert (found["status"], found["exit_code"]) == ("bug", 1)
    assert "/tmp/bug.txt" in found["errors"][0]["why"]
    assert "Traceback" in kept[0]


def test_error_from_typer_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert boundary.run_cli(["status", "--nonsense"]) == UsageError.exit_code
    assert "gpunode status --help" in capsys.readouterr().err
    assert boundary.run_cli(["recipe", "check", "no-such.toml", "--json"]) == UsageError.exit_code
    assert json.loads(capsys.readouterr().out)["command"] == "recipe check"


def test_help_exits_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert boundary.run_cli(["plan", "--help"]) == 0
    assert "--check" in capsys.readouterr().out


def test_broken_pipe_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(status, "status", command)
    monkeypatch.setattr("gpunode.cli.screen.printer.discard_stream", lambda stream: None)
    assert boundary.run_cli(["status"]) == 141


def test_undecodable_file_name_is_escaped_in_json() -> None:
    line = Envelope("doctor", result={"report": "f\udcff.json"}).as_json()
    assert json.loads(line)["result"]["report"] == "f\\udcff.json"


def test_result_of_every_command_is_in_the_json_reference() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/json-output.md").read_text()
    rows = (line.split(" | ")[0] for line in page.partition("| command | keys |")[2].splitlines() if "|" in line)
    described = {command for row in rows for command in re.findall(r"`([a-z0-9 -]+)`", row)}
    assert set(_commands_with_json(typer.main.get_command(app), "")) - described == set()


def _commands_with_json(command: Any, name: str) -> Iterator[str]:
    """Yield the commands that take ``--json``, without hidden ones."""
    if any("--json" in one.opts for one in command.params):
        yield name.strip()
    for inner in command.list_commands(typer.Context(command)) if hasattr(command, "list_commands") else ():
        found = command.get_command(typer.Context(command), inner)
        if not found.hidden:
            yield from _commands_with_json(found, f"{name} {inner}")
