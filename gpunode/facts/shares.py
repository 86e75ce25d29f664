"""Which lines of a text are whose, where several commands printed it one after another.

Of many commands it is known how many lines they print, or how each of their lines looks. With that, the text is cut at
every place where it can be cut; a line belongs to each command that may have printed it in one of these ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise
from operator import or_
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Command, program

# A longer text is one command's, and a few lines of others.
_MOST_LINES: Final = 400
_SEVERAL: Final = 2


@dataclass(frozen=True, slots=True)
class _Print:
    """What a command prints.

    Attributes:
        least: the lines that it prints at least, and ``most`` at most; None: nobody knows.
        form: how each line looks; None: nobody knows.
        within: what each line has, in lower case: one of these, where a ``grep`` let only such through.
    """

    least: int = 0
    most: int | None = None
    form: Pattern | None = None
    within: tuple[str, ...] = ()

    def may_be(self, line: str) -> bool:
        """Whether the command may have printed the line as its answer."""
        if self.form is not None and not self.form.search(line):
            return False
        return not self.within or any(word in line.lower() for word in self.within)


_ANYTHING: Final = _Print()
_NOTHING: Final = _Print(most=0)


@dataclass(frozen=True, slots=True)
class Share:
    """What of a text one command may have printed.

    Attributes:
        text: the whole text's lines, empty where they are surely of others.
        is_alone: whether none of its lines may be of another.
    """

    text: str
    is_alone: bool


def share_out(commands: Sequence[Command], text: str) -> tuple[Share, ...] | None:
    """The share of each command; None where the text does not fit the commands.

    A line that may be of several stands with each of them.
    """
    lines = text.split("\n")
    said = [number for number, line in enumerate(lines) if line.strip()]
    if len(commands) < _SEVERAL or not said or len(said) > _MOST_LINES:
        return None
    spans = _spans([_Reader(command) for command in commands], [lines[number].strip() for number in said])
    if spans is None:
        return None
    found = []
    for place, mine in enumerate(spans):
        kept = {said[index] for index in mine}
        shown = "\n".join(line if number in kept else "" for number, line in enumerate(lines)).rstrip("\n")
        found.append(Share(shown, all(mine.isdisjoint(other) for other in (*spans[:place], *spans[place + 1 :]))))
    return tuple(found)


class _Reader:
    """A command that may have printed a line."""

    def __init__(self, command: Command) -> None:
        self.prints = _prints(command)
        self.is_optional = command.is_optional
        self._name = program(command.words)

    def complains(self, line: str) -> bool:
        """Whether the line is the command's complaint, or the shell's that there is no such command."""
        match = _COMPLAINT.match(line)
        return match is not None and self._name in {match["name"], match["lacking"], match["sought"]}

    def reach(self, lines: Sequence[str]) -> list[range]:
        """For each place where its part may begin, the places where it may end."""
        count = len(lines)
        answers = [self.prints.may_be(line) for line in lines]
        complaints = [self.complains(line) for line in lines]
        furthest = [count] * (count + 1)
        for index in range(count - 1, -1, -1):
            furthest[index] = furthest[index + 1] if answers[index] or complaints[index] else index
        told = [0, *accumulate(map(int, complaints))]
        return [self._ends(start, furthest[start], told) for start in range(count + 1)]

    def _ends(self, start: int, furthest: int, told: Sequence[int]) -> range:
        """The ends of a part that begins at ``start``; complaints stand for answers, or beside them."""
        stop, least = furthest, self.prints.least
        if start < furthest and told[start + 1] > told[start]:
            least = 1
        if self.prints.most is not None:
            stop = min(furthest, start + self.prints.most + told[furthest] - told[start])
        return range(start if self.is_optional else start + least, stop + 1)


# bash: line 3: dkms: command not found; modinfo: ERROR: …; Command 'dkms' not found, …; /usr/bin/which: no dkms in …
_COMPLAINT: Final = Pattern(
    r"(?:-?\S{0,12}sh: (?:line \d+: |\d+: )?)?(?:sudo: )?(?:/\S{1,80}/)?(?P<name>[\w.+-]{1,40})(?:\[\d+\])?: \S"
    r"|Command '(?P<lacking>[\w.+-]{1,40})' not found|(?:/\S{1,80}/)?(?P<sought>which): no "
)


def _spans(readers: Sequence[_Reader], lines: Sequence[str]) -> list[set[int]] | None:
    """The lines of each reader in any of the ways to cut the text; None where there is no way."""
    # A set of places is a number: the bit of each place that is in it is one.
    reaches = [[_bits(ends) for ends in reader.reach(lines)] for reader in readers]
    count = len(lines)
    # Where each reader may begin, from the front; and may end, so that the rest fits, from the back.
    begins = [1]
    for reach in reaches:
        begins.append(_union(ends for start, ends in enumerate(reach) if begins[-1] >> start & 1))
    if not begins[-1] >> count & 1:
        return None
    finishes = [1 << count]
    for reach in reversed(reaches):
        finishes.append(_union(1 << start for start, ends in enumerate(reach) if ends & finishes[-1]))
    finishes.reverse()
    found = []
    for index, reach in enumerate(reaches):
        mine: set[int] = set()
        for start, ends in enumerate(reach):
            if (begins[index] & finishes[index]) >> start & 1:
                mine.update(range(start, (ends & finishes[index + 1]).bit_length() - 1))
        found.append(mine)
    return found


def _bits(places: range) -> int:
    return (1 << places.stop) - (1 << places.start) if places else 0


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


# --- what commands print ------------------------------------------------------------------------------------------

_VERSION: Final = Pattern(r"^\d{2,3}\.\d{1,3}(?:\.\d{1,3})?$")
_NUMBER: Final = Pattern(r"^\d+$")
_WORD: Final = Pattern(r"^\S+$")
_ANY: Final = Pattern(r"")
_STATES: Final = Pattern(
    r"^(?:active|inactive|failed|activating|deactivating|unknown|not-found|"
    r"(?:enabled|linked|masked)(?:-runtime)?|disabled|static|alias|indirect|generated|transient|running|degraded)$"
)
_TABLE: Final = Pattern(
    r"^[|+]|^[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d|NVIDIA-SMI|NVML|No devices were found|Insufficient|^=+$"
    r"|[Uu]nable to determine|^Make sure that the latest|^Please (?:try|also)|^GPU \S+ is lost|^(?:Failed|Unknown)\b"
)
_LISTED: Final = Pattern(
    r"^[-bcdlps][-rwxsStT]{9}|^total \d|^\S+:$|cannot (?:access|open)|^d\?{9}|^[-bcdlps]\?{9}|^\d+ [-bcdlps][-rwx]"
)
_PCI: Final = Pattern(
    r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |^(?:Subsystem|DeviceName|Kernel (?:driver|modules)|Flags"
    r"|Memory at|I/O ports|Expansion ROM|Capabilities|Interrupt|NUMA node|Region \d|IOMMU group|\w{3,9}:)"
)
_LOADED: Final = Pattern(r"^Module +Size|^\w+ +\d+ +-?\d+")
_RPM: Final = Pattern(
    r"^[A-Za-z0-9][\w.+-]*-[\w.+~^:]+-[\w.+~^]+(?:\.\w+)?(?:\s|$)|^package \S+ is not installed|\(none\)$"
)
_DPKG: Final = Pattern(
    r"^(?:[uihrp][ncHUFWti][R ]?) +\S|^Desired=|^\| ?Status|^\|/ |^\|\|/|^\+\+\+-|no packages found|no path found"
)
_DKMS: Final = Pattern(r"^[\w.+-]+(?:/|, )[^,:\s].*: *(?:added|built|installed|broken)|^Error|^Warning|^Deprecated")
_MODPROBE: Final = Pattern(r"^(?:insmod|rmmod|builtin|install|modprobe:|libkmod:)")
_KERNEL: Final = Pattern(r"^\[ *\d|^\[[A-Z]\w\w |\bkernel: |^<\d>|NVRM: |nouveau|nvidia|: |^-- ", re.IGNORECASE)
_GPU: Final = Pattern(r"^GPU \d+: |^MIG |No devices|NVML|NVIDIA-SMI|[Uu]nable to determine")
_CACHE: Final = Pattern(r"=>|libs found in cache|^Cache generated")
_HOLDERS: Final = Pattern(r"^/\S+:|\bPID\b|^\S+\s+\d+\s")
_FIELDS: Final[Mapping[str, Pattern]] = {
    "version": _VERSION,
    "license": Pattern(r"^(?:NVIDIA|Dual MIT/GPL|GPL\b.*|Proprietary)$"),
    "vermagic": Pattern(r"^\d+\.\d+\S* .*\bmod_unload|^\d+\.\d+\S* SMP"),
    "filename": Pattern(r"^(?:/\S+\.ko(?:\.\w+)?|\(builtin\))$"),
    "srcversion": Pattern(r"^[0-9A-F]{20,40}$"),
}
# Fields that a module may lack, or have many of.
_UNSURE: Final = frozenset(
    {"signer", "sig_key", "sig_id", "sig_hashalgo", "alias", "firmware", "parm", "depends", "softdep"}
)
_OF_SYSFS: Final[tuple[tuple[Pattern, _Print], ...]] = (
    (Pattern(r"/sys/module/[\w-]+/version$"), _Print(1, 1, Pattern(r"^\d+(?:\.\w+)+\S*$"))),
    (Pattern(r"/sys/module/[\w-]+/parameters/"), _Print(1, 1, _WORD)),
    (Pattern(r"/power_state$"), _Print(1, 1, Pattern(r"^(?:D[012]|D3(?:hot|cold)|unknown|error)$"))),
    (Pattern(r"/(?:runtime_status|power/control)$"), _Print(1, 1, Pattern(r"^[a-z]+$"))),
    (Pattern(r"/(?:vendor|device|class|subsystem_(?:vendor|device))$"), _Print(1, 1, Pattern(r"^0x[0-9a-f]+$"))),
    (Pattern(r"/numa_node$"), _Print(1, 1, Pattern(r"^-?\d+$"))),
    (Pattern(r"/(?:resource|uevent)$|\*"), _ANYTHING),
    (Pattern(r"^/proc/driver/nvidia/version$"), _Print(1, 4, Pattern(r"version:|^\S*gcc|\bGCC\b", re.IGNORECASE))),
    (Pattern(r"^/(?:sys|proc/sys)/|^/proc/(?:cmdline|version|uptime|loadavg)$"), _Print(1, 1)),
)


def _prints(command: Command) -> _Print:
    """What the whole pipeline prints."""
    words = command.words
    if command.is_quiet:
        return _NOTHING
    reader = _PROGRAMS.get(program(words))
    found = reader(words) if reader else _ANYTHING
    for filtering in command.filters:
        found = _filtered(found, filtering)
    return found


def _filtered(found: _Print, words: tuple[str, ...]) -> _Print:
    """What comes out behind one more command of the pipeline."""
    name = program(words)
    if name in {"grep", "egrep", "fgrep", "rg", "zgrep"}:
        return _grepped(found, words)
    if name == "wc":
        return _Print(1, 1, _NUMBER)
    if name in {"head", "tail"}:
        count = _count(words)
        if count is None:
            return replace(found, least=0)
        return replace(
            found, least=min(found.least, count), most=count if found.most is None else min(found.most, count)
        )
    if name in {"sort", "uniq", "tee", "cat", "more", "less", "nl"}:
        return replace(found, least=min(found.least, 1))
    if name in {"awk", "gawk", "cut", "tr", "column", "sed"}:
        return _Print(most=found.most)
    return _ANYTHING


def _grepped(found: _Print, words: tuple[str, ...]) -> _Print:
    flags = "".join(word[1:] for word in words[1:] if re.fullmatch(r"-[A-Za-z]+\d*", word))
    if "c" in flags or "--count" in words:
        return _Print(1, 1, _NUMBER)
    if set("vABC") & set(flags) or any(word.startswith(("--inv", "--after", "--before", "--cont")) for word in words):
        return replace(found, least=0)
    if "q" in flags:
        return _NOTHING
    if "o" in flags:
        return _Print()
    return replace(found, least=0, within=_literals(words))


def _literals(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of which each line that grep let through has one; none where the pattern is more than a choice."""
    patterns: list[str] = []
    before = ""
    for word in words[1:]:
        if before in {"-e", "--regexp"} or (word[:1] != "-" and not patterns and "-e" not in words):
            patterns.append(word)
        before = word
    choices = [one for pattern in patterns for one in re.split(r"\\?\|", pattern)]
    plain = [one.lower().lstrip("^").rstrip("$").replace("\\.", ".") for one in choices]
    return (
        tuple(plain)
        if plain and all(re.fullmatch(r"[\w ./:=@,#~%-]{2,}", one) and "." not in one for one in plain)
        else ()
    )


def _count(words: tuple[str, ...]) -> int | None:
    for word in words[1:]:
        if match := re.fullmatch(r"-n?(\d{1,18})|--lines=(\d{1,18})|(\d{1,18})", word):
            return int(match[1] or match[2] or match[3])
    return None if "-n" in words or "-c" in words or "-f" in words else 10


def _operands(words: tuple[str, ...]) -> list[str]:
    return [word for word in words[1:] if not word.startswith("-")]


def _cat(words: tuple[str, ...]) -> _Print:
    paths = _operands(words)
    if len(paths) != 1:
        return _ANYTHING
    usual = _ANYTHING if _LOG.search(paths[0]) else _Print(form=_NO_LOG)
    return next((told for path, told in _OF_SYSFS if path.search(paths[0])), usual)


_LOG: Final = Pattern(r"\.(?:log|out|err)(?:\.\d+)?$|/log/|\*|^/proc/|^/sys/")
# A settings file has no lines with the time of day, as programs print of what they do.
_NO_LOG: Final = Pattern(
    r"^(?!time=\"?\d{4}-|(?:INFO|WARN|ERRO|DEBU|FATA)\[\d{4}\]|\[ *\d+\.\d{6}\] |\d{4}-\d\d-\d\d[T ]\d\d:)"
)


def _ends_of(words: tuple[str, ...]) -> _Print:
    paths = [word for word in _operands(words) if not word.isdigit()]
    return _filtered(_cat((words[0], *paths)), words) if len(paths) == 1 else _ANYTHING


def _grep(words: tuple[str, ...]) -> _Print:
    flags = "".join(word[1:] for word in words[1:] if re.fullmatch(r"-[A-Za-z]+\d*", word))
    files = _operands(words)[0 if "-e" in words else 1 :]
    if "c" in flags and (len(files) != 1 or "*" in files[0] or "r" in flags.lower()):
        return _Print(form=Pattern(r":\d+$|^\d+$"))
    if "l" in flags:
        return _Print(form=Pattern(r"^\S*/\S+$"))
    return _grepped(_ANYTHING, words)


def _modinfo(words: tuple[str, ...]) -> _Print:
    asked = next((after for word, after in pairwise(words) if word in {"-F", "--field"}), "")
    if "-n" in words:
        asked = "filename"
    if not asked:
        return _Print(form=Pattern(r"^[\w-]+: |^modinfo: "))
    if asked in _UNSURE:
        return _ANYTHING
    modules = [word for word in _operands(words) if word != asked]
    return _Print(min(len(modules), 1), max(len(modules), 1), _FIELDS.get(asked))


def _systemctl(words: tuple[str, ...]) -> _Print:
    operands = _operands(words)
    if operands[:1] and operands[0].startswith("is-"):
        count = max(len(operands) - 1, 1)
        return _Print(count, count, _STATES)
    if operands[:1] and operands[0] in {
        "start",
        "stop",
        "restart",
        "reload",
        "daemon-reload",
        "enable",
        "disable",
        "mask",
    }:
        return _Print(
            form=Pattern(r"^Job for|^See |^Failed to|^Created symlink|^Removed|^Warning|^Unit |^Synchron|^Executing")
        )
    if operands[:1] == ["show"]:
        return _ANYTHING if "--value" in words else _Print(1, None, Pattern(r"^[A-Z]\w+="))
    return _ANYTHING


def _smi(words: tuple[str, ...]) -> _Print:
    rest = words[1:]
    if not rest:
        return _Print(1, None, _TABLE)
    if rest[0] in {"-L", "--list-gpus"}:
        return _Print(1, None, _GPU)
    return _ANYTHING


def _ls(words: tuple[str, ...]) -> _Print:
    flags = "".join(word[1:] for word in words[1:] if re.fullmatch(r"-[A-Za-z]+", word))
    if "l" in flags or program(words) == "ll":
        return _Print(1, None, _LISTED)
    paths = _operands(words)
    if paths and all("*" in path for path in paths):
        begins = "|".join(re.escape(path.partition("*")[0]) for path in paths)
        return _Print(1, None, Pattern(rf"^(?:{begins})|cannot access|:$"))
    return _ANYTHING


def _find(words: tuple[str, ...]) -> _Print:
    return (
        _ANYTHING
        if any(word in words for word in ("-exec", "-printf", "-execdir", "-ls"))
        else _Print(form=Pattern(r"^\.?/|^find: "))
    )


def _stat(words: tuple[str, ...]) -> _Print:
    if not any(re.match(r"-c|--format|--printf", word) for word in words):
        return _ANYTHING
    paths = [word for word in _operands(words) if word.startswith(("/", "~", "."))]
    if not paths or any("*" in path or "$" in path for path in paths):
        return _ANYTHING
    named = "|".join(map(re.escape, paths))
    is_named = any(word.lstrip("'\"").startswith("%n") for word in words)
    return _Print(len(paths), len(paths), Pattern(rf"^['\"]?(?:{named})(?![\w/])") if is_named else None)


def _readlink(words: tuple[str, ...]) -> _Print:
    paths = _operands(words)
    return _Print(0, max(len(paths), 1), Pattern(r"/")) if not any("*" in path for path in paths) else _ANYTHING


def _rpm(words: tuple[str, ...]) -> _Print:
    flags = "".join(word[1:] for word in words[1:] if re.fullmatch(r"-[A-Za-z]+", word))
    if "q" not in flags or set("filR") & set(flags) or any(word.startswith("--") for word in words):
        return _ANYTHING
    return _Print(0 if "a" in flags else len(_operands(words)), None, _RPM)


def _packager(words: tuple[str, ...]) -> _Print:
    if program(words) == "dpkg" and {"-l", "--list"} & set(words):
        return _Print(form=_DPKG)
    if program(words) == "dpkg" and {"-S", "--search"} & set(words):
        return _Print(form=Pattern(r"^(?:diversion by )?\S+(?:, \S+)*: /|^diversion by|no path found"))
    return _ANYTHING


def _uname(words: tuple[str, ...]) -> _Print:
    flags = "".join(word[1:] for word in words[1:])
    if flags == "r":
        return _Print(1, 1, Pattern(r"^\d+\.\d+\S*$"))
    return _Print(1, 1, Pattern(r"^Linux ") if "a" in flags else None)


def _echo(words: tuple[str, ...]) -> _Print:
    return _Print(1, 1, _NUMBER if words[1:] == ("$?",) else None)


def _one(form: str = "") -> Callable[[tuple[str, ...]], _Print]:
    told = _Print(1, 1, Pattern(form) if form else None)
    return lambda _: told


def _each(form: Pattern, least: int = 0) -> Callable[[tuple[str, ...]], _Print]:
    told = _Print(least, None, form)
    return lambda _: told


_PROGRAMS: Final[Mapping[str, Callable[[tuple[str, ...]], _Print]]] = {
    "cat": _cat,
    **dict.fromkeys(("head", "tail"), _ends_of),
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep", "rg"), _grep),
    "modinfo": _modinfo,
    "systemctl": _systemctl,
    "nvidia-smi": _smi,
    **dict.fromkeys(("ls", "ll"), _ls),
    **dict.fromkeys(("fuser", "lsof"), _each(_HOLDERS)),
    "find": _find,
    "stat": _stat,
    "readlink": _readlink,
    "rpm": _rpm,
    "dpkg": _packager,
    "uname": _uname,
    **dict.fromkeys(("modprobe", "insmod", "rmmod"), _each(_MODPROBE)),
    "echo": _echo,
    "lspci": _each(_PCI),
    "lsmod": _each(_LOADED),
    "dmesg": _each(_KERNEL),
    "dkms": lambda words: _Print(form=_DKMS) if "status" in words else _ANYTHING,
    "ldconfig": lambda words: _Print(form=_CACHE) if "-p" in words else _ANYTHING,
    "mokutil": lambda words: (
        _Print(1, 2, Pattern(r"^SecureBoot|^EFI variables|^Platform|^This system"))
        if "--sb-state" in words
        else _ANYTHING
    ),
    "getenforce": _one(r"^(?:Enforcing|Permissive|Disabled)$"),
    "nproc": _one(r"^\d+$"),
    "uptime": _one(r"\bup\b|^\d{4}-"),
    "hostname": _one(r"^\S+$"),
    "whoami": _one(r"^\S+$"),
    "id": _one(r"^uid=|^\S+$"),
    "date": _one(),
    "wc": _one(r"^\d+"),
    "systemd-detect-virt": _one(r"^[\w-]+$"),
    **dict.fromkeys(("mkdir", "rm", "cp", "mv", "ln", "chmod", "chown", "touch", "depmod"), lambda _: _NOTHING),
}
