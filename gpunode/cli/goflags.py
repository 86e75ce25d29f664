"""Options as the programs take them whose place `gpunode ctk` takes: booleans with a value, the last one counts.

Source: Go's strconv.ParseBool; urfave/cli, with which nvidia-ctk reads its command line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from typer.core import TyperCommand, TyperGroup

from gpunode.errors import UsageError

if TYPE_CHECKING:
    from gpunode.cli.output_options import OutputOptions

T = TypeVar("T")
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class GoCommand(TyperCommand):
    """A command whose boolean options may be given as ``--flag=true`` and ``--flag=false``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever, the words brought into the form that typer takes."""
        return super().parse_args(ctx, translated(args, flags_of(self.params), valued_of(self.params)))


class GoGroup(TyperGroup):
    """As ``GoCommand``, for a group that is a command itself where none of its own is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever, the words brought into the form that typer takes."""
        return super().parse_args(ctx, translated(args, flags_of(self.params), valued_of(self.params)))


def how_asked(ctx: Any) -> OutputOptions:
    """How the answer is wanted, by the command's options or the group's; --quiet wins over --debug, as there."""
    from gpunode.cli.output_options import OutputOptions

    own, group = ctx.params, ctx.obj or {}
    verbose = own["verbose"] or own["debug"] or group.get("debug", False)
    return OutputOptions(json=own["json"], verbose=verbose, quiet=own["quiet"] or group.get("quiet", False))


def given(ctx: Any, kind: type[T]) -> T:
    """Those of the command's options that ``kind``, a dataclass, has a field for; it has defaults for the others."""
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]  # typing has no name for dataclasses
    return kind(**{name: ctx.params[name] for name in names if name in ctx.params})


def flags_of(params: Iterable[object]) -> dict[str, str]:
    """Every name of every boolean option, each with one that stands for all names of its option."""
    return {name: names[0] for is_flag, names in _options(params) if is_flag for name in names}


def valued_of(params: Iterable[object]) -> frozenset[str]:
    """Every name of every option that takes a value."""
    return frozenset(name for is_flag, names in _options(params) if not is_flag for name in names)


def _options(params: Iterable[object]) -> Iterator[tuple[bool, list[str]]]:
    for param in params:
        if getattr(param, "param_type_name", "") == "option":
            yield bool(getattr(param, "is_flag", False)), list(getattr(param, "opts", ()))


def of_group(params: Iterable[object], words: Sequence[str]) -> list[str]:
    """As ``translated`` for the options of a group, which stand before its command; what follows is the command's."""
    own = next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
    return [*translated(words[:own], flags_of(params), valued_of(params)), *words[own:]]


def translated(words: Sequence[str], flags: Mapping[str, str], valued: Collection[str]) -> list[str]:
    """``words`` with ``--flag=true`` as ``--flag``, and without the flags that are false in the end.

    Args:
        words: of one command, without its name.
        flags: see ``flags_of``.
        valued: see ``valued_of``.

    Raises:
        UsageError: a value is no boolean, or a long option stands behind a single dash.
    """
    kept: list[tuple[str, ...]] = []
    left = iter(words)
    for word in left:
        if word == "--":
            kept.append((word, *left))
            break
        _refuse_single_dash(word, (*flags, *valued))
        name, is_assigned, value = word.partition("=")
        if name in valued and not is_assigned:
            kept.append((word, *_next(left)))
        elif name in flags:
            kept = [one for one in kept if len(one) > 1 or flags.get(one[0]) != flags[name]]
            kept += [(name,)] if not is_assigned or truth(name, value) else []
        else:
            _refuse_detached(kept, word, flags)
            kept.append((word,))
    return [word for words in kept for word in words]


def _next(left: Iterator[str]) -> tuple[str, ...]:
    return tuple(word for word in [next(left, None)] if word is not None)


def truth(name: str, value: str) -> bool:
    """What ``value`` says, in any of the words that Go takes.

    Raises:
        UsageError: it is none of them.
    """
    if value in _TRUE | _FALSE:
        return value in _TRUE
    raise UsageError(
        f"{name}={value}: {value!r} is neither true nor false",
        why="it takes true, t or 1, and false, f or 0",
        hint=f"write {name}, or leave it out",
    )


def _refuse_detached(before: Sequence[tuple[str, ...]], word: str, flags: Collection[str]) -> None:
    """``--flag false``, which Go takes for ``--flag`` and drops what follows."""
    if before and before[-1][0] in flags and word in _TRUE | _FALSE:
        name = before[-1][0]
        raise UsageError(
            f"{name} {word}: the value of a boolean option needs an equals sign",
            why=f"nvidia-ctk takes {name} for true here, whatever follows",
            hint=f"write {name}={word}",
        )


def _refuse_single_dash(word: str, known: Collection[str]) -> None:
    """What typer would take for a heap of short options, and name but the first letter of."""
    name = word.partition("=")[0]
    if word[:1] == "-" and word[1:2] != "-" and len(name) > 2 and f"-{name}" in known:
        raise UsageError(
            f"{name} is a long option with a single dash",
            why="gpunode takes long options with two dashes only",
            hint=f"write -{word}",
        )
