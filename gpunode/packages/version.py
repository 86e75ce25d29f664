"""Package versions as all systems write them: ``[epoch:]version-release``."""

from __future__ import annotations

from gpunode.facts.patterns import Pattern

_LEADING_NUMBERS = Pattern(r"\A\d+(?:\.\d+)*")


def version_epoch(version: str) -> int:
    """Return the number before the colon; 0 if there is none."""
    head, colon, _ = version.partition(":")
    return int(head) if colon and head.isascii() and head.isdigit() else 0


def without_epoch(version: str) -> str:
    """Return the version as file names contain it."""
    head, colon, rest = version.partition(":")
    return rest if colon and head.isascii() and head.isdigit() else version


def has_prefix(version: str, prefix: str) -> bool:
    """Return whether ``version``, without its epoch, starts with ``prefix``."""
    return without_epoch(version).startswith(prefix)


def leading_numbers(version: str) -> tuple[int, ...] | None:
    """Return the numbers of the program's own version, 1.7.24 for 1:1.7.24~ds1-1; None if it begins with none."""
    match = _LEADING_NUMBERS.match(without_epoch(version))
    return tuple(map(int, match[0].split("."))) if match else None
