"""APT's preferences, apt_preferences(5): which record decides over a package. Of those that fit, the first does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gpunode.facts.patterns import Pattern

MAIN: Final = "/etc/apt/preferences"
FOLDER: Final = "/etc/apt/preferences.d"
# As apt reads a folder of its own: other names are passed over.
_NAME = Pattern(r"[A-Za-z0-9_-]{1,255}(\.pref)?|[A-Za-z0-9_.-]{1,255}\.pref")


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        line: where it begins in ``file``, from 1.
        packages: names, globs and regular expressions (``/…/``), architectures left out.
        pin: what it is about: ``version 580.*``, ``release o=Debian``.
    """

    file: str
    line: int
    packages: tuple[str, ...]
    pin: str

    def names(self, package: str) -> bool:
        """Whether it is about ``package`` by name; one about all packages is weaker than any that is."""
        return any(_fits(pattern, package) for pattern in self.packages if pattern != "*")


def in_order(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of ``paths`` that apt reads, in its order."""
    read = [path for path in paths if path == MAIN or _is_read(path)]
    return tuple(sorted(read, key=lambda path: (path != MAIN, path)))


def _is_read(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == FOLDER and _NAME.fullmatch(name) is not None


def parse(file: str, text: str) -> tuple[Record, ...]:
    """The records of ``text``, the content of ``file``; what is none is passed over."""
    return tuple(_records(file, text))


def _records(file: str, text: str) -> Iterator[Record]:
    start, fields, key = 0, dict[str, str](), ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.startswith("#"):
            continue
        if line.strip():
            start = start or number
            name, colon, value = line.partition(":")
            begins = line[0] not in " \t" and bool(colon)
            key = name.lower() if begins else key
            fields[key] = f"{fields.get(key, '')} {(value if begins else line).strip()}".strip()
            continue
        if {"package", "pin"} <= fields.keys():
            names = (word if word[0] == "/" else word.partition(":")[0] for word in fields["package"].split())
            yield Record(file, start, tuple(names), fields["pin"])
        start, fields, key = 0, {}, ""


def _fits(pattern: str, package: str) -> bool:
    if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
        try:
            return re.search(pattern[1:-1], package) is not None
        except re.error:
            return False
    return fnmatchcase(package, pattern)
