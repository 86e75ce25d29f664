"""Man pages, one per command, from the same declarations that ``--help`` prints.

click-man makes such pages, but typer carries a copy of click since 0.26, which click-man does not recognise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any


def pages(version: str, moment: int) -> dict[str, str]:
    """Return the text of every page by its file name: ``gpunode.1``, ``gpunode-setup.1`` and so on."""
    import typer

    from gpunode.cli.app import app

    root = typer.main.get_command(app)
    date = time.strftime("%Y-%m-%d", time.gmtime(moment))
    commands = dict(_commands(root, ("gpunode",)))
    return {
        f"{'-'.join(path)}.1": "\n".join(_page(path, command, commands, f'"{date}" "gpunode {version}"')) + "\n"
        for path, command in commands.items()
    }


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    import typer

    yield path, command
    if hasattr(command, "commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if not inner.hidden:
                yield from _commands(inner, (*path, name))


def _page(path: tuple[str, ...], command: Any, commands: dict[tuple[str, ...], Any], stamp: str) -> Iterator[str]:
    first, _, rest = (command.help or "").strip().partition("\n")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    inner = [other for other in commands if other[:-1] == path]
    words = [one.metavar if one.required else f"[{one.metavar}]" for one in arguments]
    yield f'.TH "{"-".join(path).upper()}" 1 {stamp} "gpunode"'
    yield from (".SH NAME", f"{_text('-'.join(path))} \\- {_text(first.rstrip('.'))}")
    yield from (".SH SYNOPSIS", f".B {_text(' '.join(path))}")
    yield _text(" ".join([*(["COMMAND"] if inner else words), "[OPTIONS]"]))
    if rest.strip():
        yield from (".SH DESCRIPTION", _text(rest.strip()))
    if inner:
        yield ".SH COMMANDS"
        for other in inner:
            yield from _item(f"\\fB{_text(other[-1])}\\fR", (commands[other].help or "").strip().partition("\n")[0])
    if arguments:
        yield ".SH ARGUMENTS"
        for one in arguments:
            yield from _item(f"\\fI{_text(one.metavar)}\\fR", one.help)
    yield ".SH OPTIONS"
    for one in options:
        yield from _item(_option(one), one.help)
    yield from _item("\\fB\\-h\\fR, \\fB\\-\\-help\\fR", "print the command's help and exit")
    if len(path) == 1:
        yield from _ends()
    yield from (".SH SEE ALSO", ",\n".join(_references(path, inner)))


def _option(option: Any) -> str:
    value = "" if option.is_flag else f" \\fI{_text(option.metavar or option.type.name.upper())}\\fR"
    return ", ".join(f"\\fB{_text(name)}\\fR{value}" for name in option.opts)


def _ends() -> Iterator[str]:
    from gpunode.errors import exit_codes

    yield ".SH EXIT STATUS"
    for code, meaning in exit_codes():
        yield from _item(f"\\fB{code}\\fR", meaning)
    yield ".SH FILES"
    yield from _item("\\fI/var/lib/gpunode\\fR", "the journal of every run, and the backups that rollback restores")
    yield from _item("\\fI/var/log/gpunode\\fR", "what the commands of each run printed")
    yield from _item("\\fI/var/cache/gpunode\\fR", "gpunode's unpacked modules; made again when it is missing")


def _references(path: tuple[str, ...], inner: list[tuple[str, ...]]) -> Iterator[str]:
    others = [path[:-1], *inner] if len(path) > 1 else inner
    yield from (f"\\fB{_text('-'.join(other))}\\fR(1)" for other in others)


def _item(term: str, text: str | None) -> tuple[str, str, str]:
    return ".TP", term, _text(text or "")


def _text(text: str) -> str:
    """Return ``text`` escaped for roff: no requests, no escapes, and plain ASCII dashes."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines())
