"""Changes as lines: diffs in their colours, packages in few words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    KnownAfter,
    ModuleChange,
    PackageChange,
    ServiceChange,
    diff,
)
from gpunode.cli.screen.text import Line, Style, line, padded, span
from gpunode.cli.screen.words import bare, count, listed, service

_DIFF: dict[str, Style] = {"+": "add", "-": "remove", "@": "hunk", "\\": "dim"}
_NAMES_SHOWN = 4
_LINES_OF_NEW = 12


def change_lines(changes: Sequence[Change], *, verbose: bool) -> Iterator[Line]:
    """What a step does: a diff for every file, one line for all packages, one for each other change."""
    for change in changes:
        match change:
            case FileChange():
                yield from diff_lines(change, whole=verbose)
            case ServiceChange(unit=unit, before=before, after=after):
                yield line(f"{service(before, after)} {bare(unit)}")
            case ModuleChange(module=module, after=after):
                yield line(f"{'load' if after else 'unload'} the kernel module {module}")
            case CommandChange(argv=argv):
                yield line("run ", span(" ".join(argv), "command"))
            case PackageChange():
                pass
    yield from package_lines([c for c in changes if isinstance(c, PackageChange)], verbose=verbose)


def diff_lines(change: FileChange, *, whole: bool = True) -> Iterator[Line]:
    """A file's unified diff.

    Args:
        change: of the file.
        whole: whether a long file that is new, or goes, is shown to its end; one that stays always is.
    """
    from gpunode.redaction.evidence import without_secrets

    lines = [_diff_line(number, text) for number, text in enumerate(diff(without_secrets(change)))]
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
    """What is installed and what is purged: a name each when ``verbose``, else the first names and a count."""
    if verbose:
        width = max((len(change.name) for change in changes), default=0)
        yield from (_package(change, width) for change in changes)
        return
    brought = [change for change in changes if change.after is not None]
    purged = [change.name for change in changes if change.after is None]
    if brought:
        names = listed((change.name for change in brought), _NAMES_SHOWN)
        yield line(span("+ ", "add"), span(names), span(_version(brought), "dim"), hang=2)
    if purged:
        yield line(span("- ", "remove"), span(listed(purged, _NAMES_SHOWN)), hang=2)


def _package(change: PackageChange, width: int) -> Line:
    name, before = padded(change.name, width), change.before.version if change.before else ""
    if change.after is None:
        return line(span(f"- {name}", "remove"), span(f"  {before}", "dim"), hang=2)
    was = f"{before} → " if before and not _leftover(change) else ""
    return line(span(f"+ {name}", "add"), span(f"  {was}{_after(change)}", "dim"), hang=2)


def _leftover(change: PackageChange) -> bool:
    return change.before is not None and change.before.config_files_only


def _after(change: PackageChange) -> str:
    if isinstance(change.after, KnownAfter):
        wanted = f"{change.after.prefix}*" if change.after.prefix else "newest"
        return f"{wanted} (known after the package index is read)"
    return change.after.version if change.after else ""


def _version(brought: Sequence[PackageChange]) -> str:
    """Their version, when they share one."""
    versions = {_after(change) for change in brought}
    return f"  {versions.pop()}" if len(versions) == 1 else ""


def tally(packages: Sequence[PackageChange], dependencies: Sequence[PackageChange]) -> str:
    """A transaction in numbers: ``14 packages, 23 more that they depend on, 6 purged``."""
    asked = [change for change in packages if change not in dependencies]
    brought = sum(change.after is not None for change in asked)
    brought_along = sum(change.after is not None for change in dependencies)
    gone = sum(change.after is None for change in packages)
    parts = [count(brought, "package")] if brought else []
    parts += [f"{brought_along} more that they depend on"] if brought_along else []
    parts += [f"{gone} purged" if brought else f"{count(gone, 'package')} purged"] if gone else []
    return ", ".join(parts)
