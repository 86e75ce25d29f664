"""Every command that a message names is valid: read from the code, and parsed by the real program."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import gpunode
from gpunode.cli.app import app
from gpunode.cli.boundary import run_cli
from gpunode.cli.samples import default_sample
from gpunode.cli.screen.commands import (
    cluster_apply_command,
    repeat_command,
    rollback_command,
    setup_command,
    verify_command,
)
from gpunode.cli.screen.failures import commands_in
from gpunode.command import Command

ROOT = Path(gpunode.__file__).parent
PROGRAM: Any = typer.main.get_command(app)
BUILDERS = frozenset({"gpunode_command", "sudo_gpunode"})
VERBS = frozenset(PROGRAM.list_commands(typer.Context(PROGRAM)))
# The placeholder for a value that only the run knows.
VALUE = "X"
_TYPED = re.compile(r"\bgpunode ((?:-{0,2}[a-zA-Z0-9][^\s`,;:()]*)(?: [^\s`,;:()]+)*)")


def parses(words: list[str]) -> bool:
    """True if the program accepts ``words``; nothing is run."""
    command, context, left = PROGRAM, None, list(words)
    try:
        while True:
            context = command.make_context(command.name, list(left), parent=context)
            left = [*getattr(context, "_protected_args", ()), *context.args]
            if not hasattr(command, "resolve_command") or not left:
                return True
            _, command, left = command.resolve_command(context, left)
    except typer.Exit:
        return True
    except Exception as error:
        if hasattr(error, "format_message"):
            return type(error).__name__ == "NoArgsIsHelpError"
        raise


def test_parser_accepts_real_commands_and_rejects_others() -> None:
    assert parses(["plan", "--driver", "none"])
    assert parses(["ctk", "runtime", "check", "--runtime=docker"])
    assert not parses(["plan", "--restart"])
    assert not parses(["apply"])


def literal(node: ast.expr) -> str:
    """Return a text as in the code, with VALUE for inserted values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else VALUE


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the literal texts of a module except its docstrings, with VALUE for inserted values."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, literal(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose | inner:
            yield node.lineno, node.value


def named_commands(text: str) -> Iterator[list[str]]:
    """Return the commands in a text: the words after a typed ``gpunode``, or those that begin with a command's name."""
    for found in _TYPED.finditer(text):
        is_typed = text[: found.start()].endswith(("`", "sudo "))
        words = found[1].rstrip(".…").split()
        if words[0] in VERBS or (is_typed and not words[0].startswith(("-", VALUE))):
            yield words


def read_of(words: list[str]) -> list[str]:
    """Return the command at the beginning of ``words``, which may continue as prose."""
    for number in range(len(words), 0, -1):
        # The last option's value may be in another text.
        if parses(words[:number]) or (words[number - 1].startswith("--") and parses([*words[:number], VALUE])):
            return words[:number]
    return []


@cache
def parse_module(path: Path) -> ast.Module:
    """Return the syntax tree of a module, which several tests walk."""
    return ast.parse(path.read_text("utf-8"))


every_module = pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))


@every_module
def test_every_command_in_a_message_parses_without_raw_values(path: Path) -> None:
    for line, text in texts(parse_module(path)):
        for words in named_commands(text):
            read, place = read_of(words), f"{path}:{line}: gpunode {' '.join(words)}"
            assert read, place
            assert not [word for word in words[len(read) :] if word.startswith("--")], place
            assert VALUE not in read, f"{place}: build it with gpunode.command"


@every_module
def test_every_built_command_parses(path: Path) -> None:
    for call in ast.walk(parse_module(path)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in BUILDERS:
            words = [literal(word) for word in call.args if not isinstance(word, ast.Starred)]
            # Texts that begin with words that only the run knows are checked below, after formatting.
            assert isinstance(call.args[0], ast.Starred) or parses(words), f"{path}:{call.lineno}: {words}"


def options_of(name: str) -> list[tuple[str, ...]]:
    """Return every form of each option of the command; those with a value also as one word."""
    options = [param for param in PROGRAM.commands[name].params if param.opts[0].startswith("--")]
    shown = [option for option in options if not getattr(option, "hidden", False)]
    flags = [(option.opts[0],) for option in shown if getattr(option, "is_flag", False)]
    valued = [option.opts[0] for option in shown if not getattr(option, "is_flag", False)]
    return [*flags, ("-yv",), *((option, "9") for option in valued), *((f"{option}=9",) for option in valued)]


OF_SETUP, OF_PLAN = (st.lists(st.sampled_from(options_of(name)), unique=True) for name in ("setup", "plan"))


@given(OF_PLAN, OF_SETUP, st.sampled_from([(), ("containerd",), ("my node.toml",)]))
def test_proposed_follow_up_commands_parse(
    of_plan: list[tuple[str, ...]], of_setup: list[tuple[str, ...]], recipe: tuple[str, ...]
) -> None:
    proposed = setup_command(("plan", *recipe, *chain.from_iterable(of_plan)))
    assert is_accepted(proposed)
    typed = {word.partition("=")[0] for word in shlex.split(proposed)}
    assert "--root" in typed or not {"--gpu", "--node"}.intersection(typed)
    done = ("setup", *recipe, *chain.from_iterable(of_setup))
    assert is_accepted(verify_command(done))
    assert is_accepted(cluster_apply_command(done))
    assert is_accepted(rollback_command(done, "000001-x"))
    assert is_accepted(repeat_command((*done, "--yes")))


def is_accepted(command: Command) -> bool:
    """True if the program accepts the line as split by a shell."""
    typed = shlex.split(command)
    return parses(typed[typed.index("gpunode") + 1 :])


@pytest.mark.parametrize(
    "typed", [["containerd"], ["--runtime=docker", "--gpu", "10de:1eb8"], ["--driver", "580", "-v"]]
)
def test_command_proposed_by_plan_works_on_the_same_node(
    typed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = ["--node", str(default_sample())]
    monkeypatch.setattr("sys.argv", ["gpunode", "plan", *typed, *node])
    assert run_cli(["plan", *typed, *node]) == 0
    proposed = capsys.readouterr().out.rpartition("next: sudo gpunode setup ")[2].partition("  (")[0]
    assert run_cli(["plan", *proposed.split(), *node]) == 0


# The share of the hints in the code that have a line which is a command: 48 of 338 on 2026-11-28, 44 of 341 before.
# Others are for a person ("manual" in JSON). New hints count as well: give them a command if there is one.
LEAST_SHARE = 0.13
# A call that builds one, as this test represents it.
_MADE = "sudo made"
_MAKERS = BUILDERS | {"command", "Shell", "typed"}
_MAKERS |= {f"{verb}_command" for verb in ("install", "remove", "purge", "unhold", "force_removal", "reinstall")}


def test_share_of_hints_with_a_command_does_not_fall() -> None:
    hints = [hint for path in sorted(ROOT.rglob("*.py")) for hint in hints_in(parse_module(path))]
    assert len(hints) > 300
    runnable = [hint for hint in hints if commands_in(hint)]
    assert len(runnable) / len(hints) >= LEAST_SHARE, f"{len(runnable)} of {len(hints)}"


def hints_in(tree: ast.Module) -> Iterator[str]:
    """Yield the texts given as ``hint`` to an error, a refusal or a check; a built command is represented as one."""
    places = {"Refusal": 2, "Check": 4}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        found = [word.value for word in call.keywords if word.arg == "hint"]
        place = places.get(call.func.id, 99) if isinstance(call.func, ast.Name) else 99
        for hint in (*found, *call.args[place : place + 1]):
            if (text := with_commands(hint)) != VALUE:
                yield text


def with_commands(node: ast.expr) -> str:
    """Return the text as ``literal`` does, also for calls that build commands."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(with_commands, node.values))
    if isinstance(node, ast.FormattedValue):
        return with_commands(node.value)
    if isinstance(node, ast.IfExp):
        return with_commands(node.body)
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        return with_commands(node.args[0]) if name == "str" else _MADE if name in _MAKERS else VALUE
    return literal(node)


@pytest.mark.parametrize(
    "line",
    [
        "systemctl restart containerd; `gpunode plan` shows whether the file has it",
        "gpunode setup brings it to the driver's version",
        "sudo gpunode rollback RUN",
        "gpunode setup, then reboot",
        "reboot the node",
    ],
)
def test_text_unsafe_for_a_shell_is_no_command(line: str) -> None:
    assert commands_in(line) == ()


def test_every_command_line_of_a_hint_parses() -> None:
    """A program may run these lines: prose after a command would become its arguments."""
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(parse_module(path)):
            given = [one.value for one in node.keywords if one.arg == "hint"] if isinstance(node, ast.Call) else []
            for line in commands_in("\n".join(literal(one) for one in given)):
                words = shlex.split(line.removeprefix("sudo "))
                if words[0] == "gpunode" and not parses(words[1:]):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {line}")  # type: ignore[attr-defined]
    assert wrong == []
