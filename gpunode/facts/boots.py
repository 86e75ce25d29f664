"""Which lines of a log are of the running boot: a log on disk goes on over many, and what is over proves nothing now.

A boot begins where journalctl says so, with the kernel's banner, or where its seconds since boot start again. The forms
are those of journalctl (systemd), of init/main.c and kernel/printk in Linux, and the names those of logrotate, of
Debian's and SUSE's boot scripts, of kdump and of pstore.
"""

from __future__ import annotations

import re
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind, Source

_PARTED: Final[frozenset[Kind]] = frozenset({"kernel-log", "journal", "unit-log", "text"})
# What shows a state that the next boot makes anew.
_OF_BOOT: Final[frozenset[Kind]] = frozenset(
    (
        *("lsmod", "nvidia-smi", "nvidia-smi-q", "listing", "unit-status", "unit-show", "container-run"),
        *("exit-status", "lspci", "modprobe", "uname"),
    )
)
# Where journalctl says so, and where a daemon that appends to its log was started again (IMEX: NVIDIA's multi-node
# NVLink guide).
_MARKED: Final = Pattern(
    r"^-- (?:Boot [0-9a-f]{32}|Reboot) --[ \t]*$|^(?:Fabric Manager|IMEX) Log initializing at: ", re.MULTILINE
)
_BANNER: Final = Pattern(r"Linux version \d{1,2}\.\d{1,3}\.[^\n]{0,80} \(")
_BEFORE_BANNER: Final = Pattern(r"[^\n]{0,120}(?:\]|kernel:) |")
_CLOCK: Final = Pattern(r"^(?P<wall>[^\[\n]{0,80})\[[ \t]{0,6}(?P<seconds>\d{1,9})\.\d{3,6}\]", re.MULTILINE)
# Processors write past each other by less; and where no date stands, pasted excerpts may be in any order.
_AGAIN_S: Final = 5
_FIRST_S: Final = 1
# What a log begins its lines with, to leave the rest of a paste alone.
_STAMPED: Final = Pattern(
    r"^[ \t]*(?:\[\s*\d{1,9}\.\d{3,6}\]|\[\w{3} \w{3}\s+\d|\w{3}\s+\d{1,2} \d\d:\d\d:\d\d\s|\d{4}-\d\d-\d\d[T ]\d\d:"
    r"|<\d>|kernel:|NVRM:|-- )"
)
_OLD_FILE: Final = Pattern(
    r"(?:^|/)(?:kern\.log|syslog|messages|dmesg|boot\.dmesg|fabricmanager\.log)(?:[.-](?:\d{1,8}|old)(?:\.\w{2,3})?)$"
    r"|(?:^|/)boot\.omsg$|/pstore/|/var/crash/|(?:^|/)vmcore-dmesg\.txt$"
)
# What grep writes before a line where it searched several logs: "/var/log/kern.log.1:", "syslog.2.gz:17:".
_GREPPED: Final = Pattern(
    r"^(?:/?[\w.-]+/)*(?:kern\.log|syslog|messages|dmesg|journal)(?P<rotated>[.-][\w.-]+)?:(?:\d+[:-])?"
)
# What "grep -n" writes before a line of one log.
_NUMBERED: Final = Pattern(r"^\d{1,9}[:-](?=\[[ \w]|<\d>|\w{3} {1,2}\d{1,2} \d\d:|\d{4}-\d\d-\d\d[T ]\d\d:)")
_SAYS_SO: Final = Pattern(
    r"\b(?:previous|earlier|prior|preceding|crashed) boot\b|\bbefore (?:the |my |that |last )*(?:re)?boot(?:ing)?\b",
    re.IGNORECASE,
)
_BOOT_OPTION: Final = Pattern(r"(?:--boot[= ]|-[a-zA-Z]*b ?)(?P<which>\S+)")
_OTHER_BOOT: Final = Pattern(r"-[1-9]\d{0,3}|\+?[1-9]\d{0,3}|\S{32}-[1-9]\d{0,3}")
_REVERSED: Final = Pattern(r"-(?:-reverse|[a-qs-z]*r[a-z]*)")


def of_running(source: Source, written: str, text: str) -> str | None:
    """``text`` with the lines of earlier boots left empty, so that numbers hold; None where all of it is of them."""
    if _GREPPED.match(text.lstrip("\n")):
        return _unrotated(text)
    if is_of_earlier(source, written):
        return None
    if source.kind not in _PARTED:
        return text
    if source.words[:1] == ("journalctl",) and any(map(_REVERSED.fullmatch, source.words[1:])):
        first = _MARKED.search(text)
        return text[: first.start()] if first else text
    at = _begins(text)
    before = text[:at]
    if not before.strip():
        return text
    # What is no log, in a paste of several things, is of no boot.
    is_log = bool(source.words or source.subject)
    return "\n".join("" if is_log or _STAMPED.match(line) else line for line in before.split("\n")) + text[at:]


def _unrotated(text: str) -> str | None:
    """What a search through several logs found in those that were not rotated away."""
    lines = ["" if (match := _GREPPED.match(line)) and match["rotated"] else line for line in text.split("\n")]
    return "\n".join(lines) if any(lines) else None


def ungrepped(line: str) -> str:
    """The line as it stands in its log, without the file and the number that grep writes before it."""
    return _NUMBERED.sub("", _GREPPED.sub("", line))


def is_of_earlier(source: Source, written: str) -> bool:
    """Whether it is, by its name or by how it was asked for, of a boot before the running one."""
    if source.words[:1] and source.words[0].rsplit("/", 1)[-1] == "journalctl":
        asked = _BOOT_OPTION.search(" ".join(source.words[1:]))
        if asked and _OTHER_BOOT.fullmatch(asked["which"]):
            return True
    is_kernels = source.kind == "file" and source.subject.startswith(("/proc/", "/sys/"))
    says_so = (is_kernels or source.kind in _PARTED | _OF_BOOT) and _SAYS_SO.search(written)
    return bool(says_so or _OLD_FILE.search(source.subject))


def _begins(text: str) -> int:
    """Where the last boot of the log begins; 0 where it has one only."""
    at = max((match.start() for match in _MARKED.finditer(text)), default=0)
    for match in _BANNER.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        if _BEFORE_BANNER.fullmatch(text, start, match.start()):
            at = max(at, start)
    before = -1
    for match in _CLOCK.finditer(text):
        seconds = int(match["seconds"])
        limit = before - _AGAIN_S if match["wall"].strip() else min(before - _AGAIN_S, _FIRST_S)
        if seconds < limit:
            at = max(at, match.start())
        before = seconds
    return at
