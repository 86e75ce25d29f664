"""Changes as lines: diffs in their colours, packages in few words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpunode.change import (
    Action,
    Change,
    CommandChange,
    Deferred,
    FileChange,
    FileState,
    KnownAfter,
    PackageChange,
    PackageState,
    SigningKey,
)
from gpunode.cli.actions import EFFECTS, action_of, reason_to_go
from gpunode.cli.screen.text import Line, Style, line, padded, span
from gpunode.cli.screen.words import count, listed

_DIFF: dict[str, Style] = {"+": "add", "-": "remove", "@": "hunk", "\\": "dim"}
_NAMES_SHOWN = 3
_LINES_OF_NEW = 12


def change_lines(changes: Sequence[Change], *, verbose: bool) -> Iterator[Line]:
    """What a step does: a diff for each file that exists, one line for a new file, all packages, any other change."""
    for change in changes:
        match change:
            case FileChange(before=None) if not verbose:
                yield _new_file(change)
            case FileChange():
                yield from diff_lines(change, whole=verbose)
            case PackageChange():
                pass  # together, below
            case CommandChange(argv=argv):
                yield line("run ", span(" ".join(argv) if verbose else change.subject, "command"))
            case _:
                yield line(change.instruction)
    yield from package_lines(PackageChange.among(changes), verbose=verbose)


def _new_file(change: FileChange) -> Line:
    """A file that does not exist yet: its path, and how long it is or when that will be known."""
    match change.after:
        case FileState(content=content):
            about = count(len(content.splitlines()), "line")
        case SigningKey(fingerprints=fingerprints):
            about = f"key {', '.join(f'…{one[-16:]}' for one in sorted(fingerprints))}, checked after its download"
        case Deferred(what=what, known_after=known_after):
            about = f"{what}; known after {known_after}"
        case None:
            about = "empty"
    return line(span("+ ", "add"), span(change.path), span(f"  {about}", "dim"), hang=2)


def diff_lines(change: FileChange, *, whole: bool = True) -> Iterator[Line]:
    """A file's unified diff.

    Args:
        change: of the file.
        whole: whether a long file that is new, or goes, is shown to its end; one that stays always is.
    """
    from gpunode.redaction.evidence import redact_change

    lines = [_diff_line(number, text) for number, text in enumerate(redact_change(change).diff())]
    if whole or None not in (change.before, change.after) or len(lines) <= _LINES_OF_NEW + 1:
        yield from lines
        return
    kind = "new file" if change.before is None else "file, which goes"
    yield from lines[:_LINES_OF_NEW]
    yield line(span(f"… {len(lines) - _LINES_OF_NEW} more lines of this {kind}; -v shows them", "dim"))


def _diff_line(number: int, text: str) -> Line:
    style: Style = _DIFF.get(text[:1], "")
    if number < 2 and text.startswith(("--- ", "+++ ")):
        style = "bold" if text[0] == "+" else "dim"
    return Line((span(text, style),), 2, fold=True)


def package_lines(changes: Sequence[PackageChange], *, verbose: bool) -> Iterator[Line]:
    """What happens to packages: a line each when ``verbose``, else the first names and a count for each effect."""
    if verbose:
        width = max((len(str(change.id)) for change in changes), default=0)
        yield from (_package(change, width) for change in changes)
        return
    for effect in EFFECTS:
        if alike := [change for change in changes if action_of(change) == effect]:
            reasons = _reasons(alike)
            names = listed((str(change.id) for change in alike), _NAMES_SHOWN - bool(reasons))
            mark, verb = span(*_SIGNS[effect]), "" if effect in {"install", "purge"} else f"{effect} "
            yield line(mark, span(f"{verb}{names}"), span(f"{_versions(alike)}{reasons}", "dim"), hang=2)


def _reasons(alike: Sequence[PackageChange]) -> str:
    """Return why packages are purged, counted: ``  1 same-module, 8 version-locked``."""
    counts = Counter(reason for change in alike if (reason := reason_to_go(change)))
    said = ", ".join(f"{counts[reason]} {reason}" for reason in _PURGED_BECAUSE if counts[reason])
    return f"  {said}" if said else ""


_PURGED_BECAUSE: Mapping[str, str] = {
    "same-module": "it would build the same kernel module",
    "version-locked": "it works with its own driver version only",
    "relation": "the package manager says that it needs or conflicts with what changes",
}
_SIGNS: Mapping[Action, tuple[str, Style]] = {
    "install": ("+ ", "add"),
    "upgrade": ("~ ", "add"),
    "downgrade": ("~ ", "warn"),
    "mark": ("~ ", ""),
    "purge": ("- ", "remove"),
}


def _package(change: PackageChange, width: int) -> Line:
    sign, style = _SIGNS[action_of(change)]
    name, versions = padded(str(change.id), width), _change_of_version(change)
    return line(span(f"{sign}{name}", style), span(f"  {versions}", "dim"), hang=2)


def _after(change: PackageChange) -> str:
    if isinstance(change.after, KnownAfter):
        return f"{change.after.prefix}*" if change.after.prefix else "newest"
    return change.after.version if change.after else ""


def _change_of_version(change: PackageChange) -> str:
    """The version before and after, or the mark that changes."""
    before, effect = change.before.version if change.before else "", action_of(change)
    if effect == "mark":
        return f"{before}, {_marks(change.before)} → {_marks(change.after)}"
    if effect == "install":
        return _after(change)
    if effect == "purge":
        reason = reason_to_go(change)
        return f"{before}  {_PURGED_BECAUSE[reason]}" if reason else before
    return f"{before} → {_after(change)}"


def _marks(state: PackageState | KnownAfter | None) -> str:
    """Its marks in two words."""
    is_held = isinstance(state, PackageState) and state.held
    return ("auto" if state and state.auto else "manual") + (", hold" if is_held else "")


def _versions(alike: Sequence[PackageChange]) -> str:
    """What happens to their versions, when the same happens to all; of a purge that is of no interest."""
    versions = {_change_of_version(change) for change in alike if change.after is not None}
    return f"  {versions.pop()}" if len(versions) == 1 else ""


def at_most(packages: Sequence[PackageChange]) -> str:
    """Said before the number of purges while the index is unread: what the new driver has, too, is replaced."""
    return "up to " if any(isinstance(change.after, KnownAfter) for change in packages) else ""


def tally(packages: Sequence[PackageChange], dependencies: Sequence[PackageChange]) -> str:
    """A transaction in numbers: ``14 packages, 23 more that they depend on, 6 purged``."""
    asked = [change for change in packages if change not in dependencies]
    brought = sum(change.after is not None and not change.is_mark for change in asked)
    marked = sum(change.is_mark for change in asked)
    brought_along = sum(change.after is not None for change in dependencies)
    gone = sum(change.after is None for change in packages)
    parts = [count(brought, "package")] if brought else []
    parts += [f"{brought_along} more that they depend on"] if brought_along else []
    number = f"{at_most(packages)}{gone if brought else count(gone, 'package')}"
    parts += [f"{number} purged"] if gone else []
    parts += [f"{marked} marked" if parts else f"{count(marked, 'package')} marked"] if marked else []
    return ", ".join(parts)
