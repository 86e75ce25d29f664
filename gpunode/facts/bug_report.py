"""The log of nvidia-bug-report.sh as evidence: its sections, each under what it shows.

Format, by the script of the 390 and 515 drivers and a log of the latter: sections stand between lines of 44
underscores; a file's begins with ``*** PATH`` and ``*** ls: …``, a missing one's with ``*** PATH does not exist``; a
command's begins with the command. What a section says it skipped is unknown, not absent.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from gpunode.facts.patterns import Pattern

_RULE: Final = Pattern(r"^_{40,}\s*$", re.MULTILINE)
_MARK: Final = Pattern(r"^Start of NVIDIA bug report log file|nvidia-bug-report\.sh Version:", re.MULTILINE)
_FILE: Final = Pattern(r"^\*\*\* (?P<path>/[^\n]*?)(?P<missing> does not exist)?\s*$")
_UNREADABLE: Final = Pattern(r"^\*\*\* /\S+ (?:is not readable|could not be read|cannot be)")
_SKIPPED: Final = Pattern(r"^\s*(?:Skipping|skipped)\b|\b(?:is not installed|not found; skipping)\b", re.IGNORECASE)
_UNAME: Final = Pattern(r"^uname: (.*)$", re.MULTILINE)
# Boots before this one, the X server's own, and blocks that no person reads.
_FOREIGN: Final = Pattern(r"journalctl -b -[1-9]|_COMM=|coredumpctl|nvidia-debugdump|acpidump|Xorg\.|base64")
_COMMAND: Final = Pattern(r"^(?:/\S+/)?[a-z][\w.-]*(?: [^\n]{0,300})?$")
_SCAN: Final = Pattern(r"^\s{0,4}(?P<source>/var/log/\S+|journalctl -b -?\d)\s*:?\s*$")
_ENTRY_BYTES: Final = 8 << 20


def is_bug_report(text: str) -> bool:
    """Return True if ``text`` is such a log."""
    return _MARK.search(text[:8192]) is not None


def parse_bug_report(text: str) -> Evidence:
    """Return the evidence in the log ``text``."""
    return pasted.collect_pieces(tuple(_split_sections(text)))


def _split_sections(text: str) -> Iterator[tuple[str, str]]:
    for section in _RULE.split(text):
        body = section.strip("\n")
        if body.strip() and len(body) <= _ENTRY_BYTES:
            yield from _read_section(body)


def _read_section(body: str) -> Iterator[tuple[str, str]]:
    title, _, rest = body.partition("\n")
    if _MARK.search(body):
        if found := _UNAME.search(body):
            yield "uname -a", found[1]
    elif match := _FILE.match(title):
        path = posixpath.normpath(match["path"])
        if match["missing"]:
            yield path, f"cat: {path}: No such file or directory"
        elif not _UNREADABLE.match(title) and not _FOREIGN.search(path):
            yield path, _strip_ls_line(rest)
    elif title.startswith("Scanning kernel log files"):
        yield from _read_log_scan(rest)
    elif not _FOREIGN.search(title):
        yield from _read_command(title.strip(), rest)


def _strip_ls_line(text: str) -> str:
    """Return the file's content without the line of ``ls`` before it."""
    first, _, rest = text.partition("\n")
    return rest if first.startswith("*** ls:") else text


def _read_command(title: str, rest: str) -> Iterator[tuple[str, str]]:
    title = title.removesuffix(":")
    # An empty answer may be a complaint that the script threw away: it proves nothing.
    if not _COMMAND.match(title) or title.endswith(" not present") or not rest.strip() or _SKIPPED.search(rest[:300]):
        return
    program, _, arguments = title.partition(" ")
    yield f"{program.rsplit('/', 1)[-1]} {arguments}".strip(), rest.strip("\n")


def _read_log_scan(text: str) -> Iterator[tuple[str, str]]:
    """Yield the NVIDIA modules' lines in the logs of this boot; dmesg has its own section."""
    source, lines = "", list[str]()
    for line in text.splitlines():
        if match := _SCAN.match(line):
            if source and not _FOREIGN.search(source):
                yield source, "\n".join(lines)
            source, lines = match["source"].rstrip(":"), []
        else:
            lines.append(line)
    if source and not _FOREIGN.search(source):
        yield source, "\n".join(lines)
