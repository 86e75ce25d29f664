"""Numbers, durations and lists in English. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def group_digits(number: int) -> str:
    """Format a number: ``5 000``."""
    return f"{number:,}".replace(",", " ")


def count_noun(number: int, noun: str) -> str:
    """Format a count: ``1 file``, ``5 000 files``, ``2 processes``, ``2 repositories``."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{group_digits(number)} {noun[:-1]}ies"
    return f"{group_digits(number)} {noun}{'es' if noun.endswith(('s', 'x')) else 's'}"


def join_names(items: Iterable[str], limit: int = 0) -> str:
    """Join ``items`` with commas; beyond ``limit`` only count them (0: no limit)."""
    names = list(items)
    if limit and len(names) > limit + 1:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return ", ".join(names)


def join_with_and(parts: Sequence[str]) -> str:
    """Join ``parts`` as ``a, b and c``."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def format_seconds(value: float) -> str:
    """Format a duration: ``0.4 s``, ``12 s``, ``3 min 12 s``."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
