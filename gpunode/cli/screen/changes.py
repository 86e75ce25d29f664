"""Changes as lines: coloured diffs, and summaries of packages. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpunode.change import (
    Action,
    Change,
    CommandChange,
    Deferred,
    FileChange,
    FileState,
    KnownAfter,
    PackageChange,
    SigningKey,
)
from gpunode.cli.screen.text import Line, Style, line, pad_right, span
from gpunode.wording import count_noun, join_names

_STYLE_BY_DIFF_SIGN: dict[str, Style] = {"+": "add", "-": "remove", "@": "hunk", "\\": "dim"}
_MAX_PACKAGE_NAMES_SHOWN = 3
_MAX_NEW_FILE_LINES = 12
# In display order.
PACKAGE_ACTIONS: Final[tuple[Action, ...]] = ("install", "upgrade", "downgrade", "mark", "purge")


def action_of(change: Change) -> Action:
    """Return the action; a new package version is either an upgrade or a downgrade."""
    if not isinstance(change, PackageChange) or change.action != "upgrade":
        return change.action
    # Loaded on use: many commands change no package.
    from gpunode.packages import deb
    from gpunode.packages.simulation import is_downgrade

    return "downgrade" if is_downgrade(change, deb.is_older) else "upgrade"


def explain_purge(change: PackageChange) -> str:
    """Return why a driver package is purged (see ``catalog.conflicts``); empty for other changes."""
    if change.after is not None or change.before is None:
        return ""
    # Loaded on use: many commands change no package.
    from gpunode.catalog.conflicts import purge_reason

    return purge_reason(change.id.name, change.before.version) or ""


def change_lines(changes: Sequence[Change], *, verbose: bool) -> Iterator[Line]:
    """Yield the changes of a step: diffs of existing files, a line for each new file or other change, packages."""
    for change in changes:
        match change:
            case FileChange():
                is_short = change.before is None and not verbose
                yield from [_new_file_line(change)] if is_short else diff_lines(change, whole=verbose)
            case PackageChange():
                pass  # all together, below
            case CommandChange(argv=argv):
                yield line("run ", span(" ".join(argv) if verbose else change.subject, "command"))
            case _:
                yield line(change.instruction)
    yield from package_lines(PackageChange.of_kind(changes), verbose=verbose)


def _new_file_line(change: FileChange) -> Line:
    """Return the line of a new file: its path and length, or when the content will be known."""
    match change.after:
        case FileState(content=content):
            about = count_noun(len(content.splitlines()), "line")
        case SigningKey(fingerprints=fingerprints):
            about = f"key {', '.join(f'…{one[-16:]}' for one in sorted(fingerprints))}, checked after the download"
        case Deferred(what=what, known_after=known_after):
            about = f"{what}; known after {known_after}"
        case None:
            about = "empty"
    return line(span("+ ", "add"), span(change.path), span(f"  {about}", "dim"), hang=2)


def diff_lines(change: FileChange, *, whole: bool = True) -> Iterator[Line]:
    """Yield a file's unified diff.

    change: the file's change.
    whole: also show all of long new or deleted files, and of files that only gpunode writes.
    """
    from gpunode.redaction.evidence import redact_change

    is_known = not isinstance(change.after, Deferred | SigningKey)
    lines = [_diff_line(number, text, is_known) for number, text in enumerate(redact_change(change).diff())]
    kind = "" if whole or len(lines) <= _MAX_NEW_FILE_LINES + 1 else _describe_truncation(change)
    if not kind:
        yield from lines
        return
    yield from lines[:_MAX_NEW_FILE_LINES]
    yield line(span(f"… {len(lines) - _MAX_NEW_FILE_LINES} more lines of this {kind}; -v shows them", "dim"))


def _describe_truncation(change: FileChange) -> str:
    """Return a description of a file whose long diff is cut; empty if the diff must be shown in full."""
    from gpunode.workflow.recovery import OWN_FILE_MARK  # loaded on use: few diffs are that long

    if change.before is None or change.after is None:
        return "new file" if change.before is None else "deleted file"
    is_own = isinstance(change.after, FileState) and change.after.content.startswith(OWN_FILE_MARK)
    return "file of gpunode's" if is_own and change.before.content.startswith(OWN_FILE_MARK) else ""


def _diff_line(number: int, text: str, is_known: bool) -> Line:
    """Return a line of a diff; a line that describes content instead of showing it wraps between words."""
    style: Style = _STYLE_BY_DIFF_SIGN.get(text[:1], "")
    if number < 2 and text.startswith(("--- ", "+++ ")):
        style = "bold" if text[0] == "+" else "dim"
    return Line((span(text, style),), 2, breaks_anywhere=is_known and text.startswith(tuple("+-@ ")))


def package_lines(changes: Sequence[PackageChange], *, verbose: bool) -> Iterator[Line]:
    """Yield the package changes: one line each if ``verbose``, else the first names and a count for each action."""
    if verbose:
        width = max((len(str(change.id)) for change in changes), default=0)
        for change in changes:
            sign, style = _SIGN_BY_ACTION[action_of(change)]
            name = pad_right(str(change.id), width)
            yield line(span(f"{sign}{name}", style), span(f"  {_version_change(change)}", "dim"), hang=2)
        return
    for effect in PACKAGE_ACTIONS:
        if alike := [change for change in changes if action_of(change) == effect]:
            reasons = _count_purge_reasons(alike)
            names = join_names((str(change.id) for change in alike), _MAX_PACKAGE_NAMES_SHOWN - bool(reasons))
            mark, verb = span(*_SIGN_BY_ACTION[effect]), "" if effect in {"install", "purge"} else f"{effect} "
            versions = {_version_change(change) for change in alike if change.after is not None}
            version = f"  {versions.pop()}" if len(versions) == 1 else ""
            yield line(mark, span(f"{verb}{names}"), span(f"{version}{reasons}", "dim"), hang=2)


def _count_purge_reasons(changes: Sequence[PackageChange]) -> str:
    """Return the counted reasons for purges: ``  1 same-module, 8 version-locked``."""
    counts = Counter(reason for change in changes if (reason := explain_purge(change)))
    reason_counts = ", ".join(f"{counts[reason]} {reason}" for reason in _TEXT_BY_PURGE_REASON if counts[reason])
    return f"  {reason_counts}" if reason_counts else ""


_TEXT_BY_PURGE_REASON: Mapping[str, str] = {
    "same-module": "it would build the same kernel module",
    "version-locked": "it works with its own driver version only",
    "relation": "the package manager reports that it needs or conflicts with what changes",
}
_SIGN_BY_ACTION: Mapping[Action, tuple[str, Style]] = {
    "install": ("+ ", "add"),
    "upgrade": ("~ ", "add"),
    "downgrade": ("~ ", "warn"),
    "mark": ("~ ", ""),
    "purge": ("- ", "remove"),
}


def _new_version(change: PackageChange) -> str:
    if isinstance(change.after, KnownAfter):
        return f"{change.after.prefix}*" if change.after.prefix else "newest"
    return change.after.version if change.after else ""


def _version_change(change: PackageChange) -> str:
    """Return the versions before and after, or the changed mark."""
    before, effect = change.before.version if change.before else "", action_of(change)
    if effect == "mark":
        return change.outcome_text
    if effect == "install":
        return _new_version(change)
    if effect == "purge":
        reason = explain_purge(change)
        return f"{before}  {_TEXT_BY_PURGE_REASON[reason]}" if reason else before
    return f"{before} → {_new_version(change)}"


def up_to_prefix(packages: Sequence[PackageChange]) -> str:
    """Return ``up to`` while the index is unread: packages of the new driver will be replaced, not purged."""
    return "up to " if any(isinstance(change.after, KnownAfter) for change in packages) else ""


def transaction_summary(packages: Sequence[PackageChange], dependencies: Sequence[PackageChange]) -> str:
    """Return a transaction in numbers: ``14 packages, 23 more that they depend on, 6 purged``."""
    requested = [change for change in packages if change not in dependencies]
    installed = sum(change.after is not None and not change.is_mark for change in requested)
    marked = sum(change.is_mark for change in requested)
    brought_along = sum(change.after is not None for change in dependencies)
    gone = sum(change.after is None for change in packages)
    parts = [count_noun(installed, "package")] if installed else []
    parts += [f"{brought_along} more that they depend on"] if brought_along else []
    number = f"{up_to_prefix(packages)}{gone if installed else count_noun(gone, 'package')}"
    parts += [f"{number} purged"] if gone else []
    parts += [f"{marked} marked" if parts else f"{count_noun(marked, 'package')} marked"] if marked else []
    return ", ".join(parts)
