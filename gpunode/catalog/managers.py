"""Programs that claim a file as their own in a comment of it. Source: managers.csv."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gpunode.catalog import tables

# Such a header is at the top, above or below a licence.
_MAX_LINES_READ = 40
_MAX_BYTES_READ = 8192
# Comments of TOML, apt, shell, INI, C and XML; the quote is for JSON, which has none and gets a key instead.
_COMMENT_LINE_START = re.compile(r"\s*(#|;|//|/?\*|<!--|\")")
_GPUNODE_FILE_MARK = "written by gpunode"


@dataclass(frozen=True, slots=True)
class Manager:
    """A program that a file names as its own.

    Attributes:
        name: empty if the file names none: a program may make it, or people may ask each other to leave it alone.
        line: the number of the line that says so, from 1.
        quoted_line: the line itself.
    """

    name: str
    line: int
    quoted_line: str


def find_declared_manager(content: bytes) -> Manager | None:
    """Return the tool that claims the file in a comment at the top of ``content``; None if none does."""
    lines = content[:_MAX_BYTES_READ].decode("utf-8", "replace").split("\n")[:_MAX_LINES_READ]
    comments = [(number, line.lower()) for number, line in enumerate(lines, 1) if _COMMENT_LINE_START.match(line)]
    if any(_GPUNODE_FILE_MARK in line for _, line in comments):
        return None
    for name, words in _manager_patterns():
        for number, line in comments:
            if words.search(line):
                return Manager(name, number, lines[number - 1].strip())
    return None


@lru_cache(maxsize=1)
def _manager_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["manager"], re.compile(row["words"])) for row in tables.rows("managers.csv"))
