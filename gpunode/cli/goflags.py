"""Go-style options for `gpunode ctk`: booleans take a value, and the last option wins.

Source: Go's strconv.ParseBool; urfave/cli, with which nvidia-ctk reads its command line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from gpunode.errors import UsageError

if TYPE_CHECKING:
    from gpunode.cli.output_options import OutputOptions

_TRUE_WORDS = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE_WORDS = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class GoCommand(TyperCommand):
    """A command whose boolean options may be given as ``--flag=true`` and ``--flag=false``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Translate the words for typer, then parse them."""
        return super().parse_args(ctx, _translate_declared_options(self.params, args))


class GoGroup(TyperGroup):
    """The same for a group that also works without a subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Translate the words for typer, then parse them."""
        return super().parse_args(ctx, _translate_declared_options(self.params, args))


def ctk_output_options(ctx: Any) -> OutputOptions:
    """Return the output options of the command or its group; --quiet wins over --debug, as in nvidia-ctk."""
    from gpunode.cli.output_options import OutputOptions

    own, group = ctx.params, ctx.obj or {}
    verbose = own["verbose"] or own["debug"] or group.get("debug", False)
    return OutputOptions(json=own["json"], verbose=verbose, quiet=own["quiet"] or group.get("quiet", False))


def _translate_declared_options(params: Iterable[Any], words: Sequence[str]) -> list[str]:
    options = [param for param in params if getattr(param, "param_type_name", "") == "option"]
    flags = {name: option.opts[0] for option in options if option.is_flag for name in option.opts}
    return translate_go_flags(words, flags, {name for option in options if not option.is_flag for name in option.opts})


def translate_group_options(params: Iterable[object], words: Sequence[str]) -> list[str]:
    """Translate the options of a group, which stand before its command; leave the command's own words."""
    own = next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
    return [*_translate_declared_options(params, words[:own]), *words[own:]]


def translate_go_flags(words: Sequence[str], flags: Mapping[str, str], valued: Collection[str]) -> list[str]:
    """Write ``--flag=true`` as ``--flag`` and ``-option`` as ``--option``, and drop flags that end up false.

    Args:
        words: the words of one command, without its name.
        flags: maps every name of a boolean option to its first name.
        valued: the names of the options that take a value.

    Raises:
        UsageError: if a value is not a boolean.
    """
    kept: list[tuple[str, ...]] = []
    left = iter(words)
    for word in left:
        if word == "--":
            kept.append((word, *left))
            break
        if f"-{word.partition('=')[0]}" in {*flags, *valued}:
            word = f"-{word}"
        name, is_assigned, value = word.partition("=")
        if name in valued and not is_assigned:
            kept.append((word, *islice(left, 1)))
        elif name in flags:
            kept = [one for one in kept if len(one) > 1 or flags.get(one[0]) != flags[name]]
            kept += [(name,)] if not is_assigned or parse_bool(name, value) else []
        else:
            kept.append((word,))
    return [word for words in kept for word in words]


def parse_bool(name: str, value: str) -> bool:
    """Parse a boolean as Go does.

    Raises:
        UsageError: it is not a boolean.
    """
    if value in _TRUE_WORDS | _FALSE_WORDS:
        return value in _TRUE_WORDS
    raise UsageError(
        f"{name}={value}: {value!r} is neither true nor false",
        why="it takes true, t or 1, and false, f or 0",
        hint=f"write {name}, or leave it out",
    )
