"""Log lines of the running boot: logs on disk span many boots, and older lines prove nothing about the present.

A boot begins at journalctl's marker, at the kernel's banner, or where the seconds since boot restart. The formats are
those of journalctl (systemd) and of init/main.c and kernel/printk in Linux; the names are those of logrotate, Debian's
and SUSE's boot scripts, kdump and pstore.
"""

from __future__ import annotations

import re
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Source, SourceKind

_KINDS_SPANNING_BOOTS: Final[frozenset[SourceKind]] = frozenset({"kernel-log", "journal", "unit-log", "text"})
# These show state that a reboot resets.
_KINDS_RESET_BY_BOOT: Final[frozenset[SourceKind]] = frozenset(
    (
        *("lsmod", "nvidia-smi", "nvidia-smi-q", "listing", "unit-status", "unit-show", "container-run"),
        *("exit-status", "lspci", "modprobe", "uname"),
    )
)
# journalctl's markers, and the first line of daemons that append to their log at each start (IMEX: NVIDIA's multi-node
# NVLink guide).
_BOOT_MARKER: Final = Pattern(
    r"^-- (?:Boot [0-9a-f]{32}|Reboot) --[ \t]*$|^(?:Fabric Manager|IMEX) Log initializing at: ", re.MULTILINE
)
_KERNEL_BANNER: Final = Pattern(r"Linux version \d{1,2}\.\d{1,3}\.[^\n]{0,80} \(")
_TEXT_BEFORE_KERNEL_BANNER: Final = Pattern(r"[^\n]{0,120}(?:\]|kernel:) |")
_KERNEL_TIMESTAMP: Final = Pattern(r"^(?P<wall>[^\[\n]{0,80})\[[ \t]{0,6}(?P<seconds>\d{1,9})\.\d{3,6}\]", re.MULTILINE)
# CPUs log out of order by less than this. Pasted excerpts without dates may be in any order.
_CLOCK_JITTER_S: Final = 5
_MAX_BOOT_START_S: Final = 1
# The start of a log line; other lines of a paste are kept.
_LOG_LINE: Final = Pattern(
    r"^[ \t]*(?:\[\s*\d{1,9}\.\d{3,6}\]|\[\w{3} \w{3}\s+\d|\w{3}\s+\d{1,2} \d\d:\d\d:\d\d\s|\d{4}-\d\d-\d\d[T ]\d\d:"
    r"|<\d>|kernel:|NVRM:|-- )"
)
_EARLIER_BOOT_LOG_PATH: Final = Pattern(
    r"(?:^|/)(?:kern\.log|syslog|messages|dmesg|boot\.dmesg|fabricmanager\.log)(?:[.-](?:\d{1,8}|old)(?:\.\w{2,3})?)$"
    r"|(?:^|/)boot\.omsg$|/pstore/|/var/crash/|(?:^|/)vmcore-dmesg\.txt$"
)
# The prefix that grep writes before a line if it searched several logs: "/var/log/kern.log.1:", "syslog.2.gz:17:".
_GREP_PREFIX: Final = Pattern(
    r"^(?:/?[\w.-]+/)*(?:kern\.log|syslog|messages|dmesg|journal)(?P<rotated>[.-][\w.-]+)?:(?:\d+[:-])?"
)
# The prefix that `grep -n` writes before a line of one log.
_LINE_NUMBER_PREFIX: Final = Pattern(r"^\d{1,9}[:-](?=\[[ \w]|<\d>|\w{3} {1,2}\d{1,2} \d\d:|\d{4}-\d\d-\d\d[T ]\d\d:)")
_NAMES_EARLIER_BOOT: Final = Pattern(
    r"\b(?:previous|earlier|prior|preceding|crashed) boot\b|\bbefore (?:the |my |that |last )*(?:re)?boot(?:ing)?\b",
    re.IGNORECASE,
)
_BOOT_OPTION: Final = Pattern(r"(?:--boot[= ]|-[a-zA-Z]*b ?)(?P<which>\S+)")
_OTHER_BOOT_ARGUMENT: Final = Pattern(r"-[1-9]\d{0,3}|\+?[1-9]\d{0,3}|\S{32}-[1-9]\d{0,3}")
_JOURNALCTL_REVERSE_OPTION: Final = Pattern(r"-(?:-reverse|[a-qs-z]*r[a-z]*)")


def keep_running_boot(source: Source, description: str, text: str) -> str | None:
    """Blank out the lines of earlier boots, so that line numbers hold; return None if no line is of the running one."""
    if _GREP_PREFIX.match(text.lstrip("\n")):
        return _blank_rotated_log_lines(text)
    if is_from_earlier_boot(source, description):
        return None
    if source.kind not in _KINDS_SPANNING_BOOTS:
        return text
    if source.words[:1] == ("journalctl",) and any(map(_JOURNALCTL_REVERSE_OPTION.fullmatch, source.words[1:])):
        first = _BOOT_MARKER.search(text)
        return text[: first.start()] if first else text
    at = _find_last_boot_offset(text)
    before = text[:at]
    if not before.strip():
        return text
    # In a paste of several things, only the logs belong to a boot.
    is_log = bool(source.words or source.subject)
    return "\n".join("" if is_log or _LOG_LINE.match(line) else line for line in before.split("\n")) + text[at:]


def _blank_rotated_log_lines(text: str) -> str | None:
    """Blank out lines that grep found in rotated logs."""
    lines = ["" if (match := _GREP_PREFIX.match(line)) and match["rotated"] else line for line in text.split("\n")]
    return "\n".join(lines) if any(lines) else None


def strip_grep_prefix(line: str) -> str:
    """Return the line without the file name and number that grep writes before it."""
    return _LINE_NUMBER_PREFIX.sub("", _GREP_PREFIX.sub("", line))


def is_from_earlier_boot(source: Source, description: str) -> bool:
    """Return True if the file name, command or description says that the text is of an earlier boot."""
    if source.words[:1] and source.words[0].rsplit("/", 1)[-1] == "journalctl":
        option = _BOOT_OPTION.search(" ".join(source.words[1:]))
        if option and _OTHER_BOOT_ARGUMENT.fullmatch(option["which"]):
            return True
    is_kernels = source.kind == "file" and source.subject.startswith(("/proc/", "/sys/"))
    says_so = (
        is_kernels or source.kind in _KINDS_SPANNING_BOOTS | _KINDS_RESET_BY_BOOT
    ) and _NAMES_EARLIER_BOOT.search(description)
    return bool(says_so or _EARLIER_BOOT_LOG_PATH.search(source.subject))


def _find_last_boot_offset(text: str) -> int:
    """Return the offset at which the last boot of the log begins; 0 if the log has only one."""
    at = max((match.start() for match in _BOOT_MARKER.finditer(text)), default=0)
    for match in _KERNEL_BANNER.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        if _TEXT_BEFORE_KERNEL_BANNER.fullmatch(text, start, match.start()):
            at = max(at, start)
    before = -1
    for match in _KERNEL_TIMESTAMP.finditer(text):
        seconds = int(match["seconds"])
        limit = before - _CLOCK_JITTER_S if match["wall"].strip() else min(before - _CLOCK_JITTER_S, _MAX_BOOT_START_S)
        if seconds < limit:
            at = max(at, match.start())
        before = seconds
    return at
