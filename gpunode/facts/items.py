"""Evidence as the rules of doctor read it: an item for each file, each command's answer, each thing that was pasted."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, TypeVar, cast

from gpunode.facts import nvml
from gpunode.facts.evidence import NOT_CAPTURED, Capture, Evidence, Found, Outcome, decode_found
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind, Source, Where, program, recognise, recognise_all

T = TypeVar("T")

_COLOURS: Final = Pattern(r"\x1b\[[0-9;?]*[A-Za-z]")
# How a shell or a tool says that a thing is not there, when that is all it says.
_ABSENT: Final = Pattern(
    r"^(?:[^\n]{0,200}: )?(?:command not found|no such file or directory|not found)\.{0,3}$"
    r"|^(?:ls|cat|stat|find|grep|head|tail|less): [^\n]{1,200}: no such file or directory$"
    r"|^(?:/usr/bin/)?which: no \S+ in \(|^\S+ not found$|^Command '[^'\n]+' not found",
    re.IGNORECASE,
)
_NEWLINE: Final = Pattern("\n")
_REGISTERS: Final = frozenset({"/var/lib/dpkg/status", "/var/lib/apt/extended_states"})


@dataclass(frozen=True)
class Item:
    """One piece of evidence.

    Attributes:
        key: of the evidence that it stands in.
        written: where it comes from, as it was written.
        outcome: ``absent`` where the text says nothing but that the thing is not there.
        error: what the command said beside its answer, or the system's word for why there is none.
    """

    key: str
    written: str
    source: Source
    text: str
    outcome: Outcome = "ok"
    error: str = ""
    exit_status: int | None = None
    _views: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def kind(self) -> Kind:
        """What it is."""
        return self.source.kind

    @property
    def subject(self) -> str:
        """The file, unit, module or pod that it is about."""
        return self.source.subject

    @property
    def where(self) -> Where:
        """Whether it was seen on the node or in a container."""
        return self.source.where

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, without their ends; line numbers count from 1."""
        return tuple(self.text.removesuffix("\n").split("\n")) if self.text else ()

    def view(self, read: Callable[[Item], T]) -> T:
        """What ``read`` makes of this item; made once, however often it is asked for."""
        if read not in self._views:
            self._views[read] = read(self)
        return cast(T, self._views[read])

    @cached_property
    def lowered(self) -> str:
        """The text in lower case."""
        return self.text.lower()

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *(match.end() for match in _NEWLINE.finditer(self.text)))

    def number_at(self, offset: int) -> int:
        """The number of the line in which the character at ``offset`` of the text stands, counted from 1."""
        return bisect_right(self._starts, offset)

    @property
    def is_register(self) -> bool:
        """Whether a package manager keeps it: the longest texts of all, of nothing but names, states and versions."""
        return self.subject in _REGISTERS or "/dpkg.log" in self.subject

    @property
    def is_seen(self) -> bool:
        """Whether somebody looked and the system answered, were it that there is nothing."""
        return self.outcome in {"ok", "absent"} or bool(self.text)


def items(evidence: Evidence) -> tuple[Item, ...]:
    """The items of ``evidence``, in its order; what was not asked gives none."""
    return tuple(item for key, capture in evidence.items() for item in _items(key, capture))


def _items(key: str, capture: Capture) -> Iterator[Item]:
    if capture.outcome == "failed" and capture.error == NOT_CAPTURED:
        return
    # One folder that may not be looked into does not take away what was found in the others.
    is_answer = capture.outcome == "ok" or bool(capture.data)
    if (
        capture.source.startswith("/")
        and "*" in capture.source
        and is_answer
        and (found := _found(capture)) is not None
    ):
        yield from _of_glob(key, capture, found)
        return
    said = _said(capture)
    sources = (Source("nvml"),) if key == nvml.KEY else recognise_all(capture.source, said)
    for source, part in _parts(sources, said):
        own = _own(source, part)
        outcome: Outcome = "absent" if capture.outcome == "ok" and tells_absence(own) else capture.outcome
        if len(sources) > 1 and outcome == "absent" and not tells_absence(own):
            outcome = "ok"  # another of the commands said that
        yield Item(key, capture.source, _uncounted(source, own), own, outcome, capture.error, capture.exit_status)
        if source.kind == "listing" and program(source.words) in _SEARCHERS and outcome == "ok":
            yield from _searched(key, capture.source, source, own)


_SEARCHERS: Final = frozenset({"grep", "egrep", "rg", "zgrep"})
# Longer searches are for the rules that read the listing itself.
_MOST_FOUND: Final = 500
_IN_FILE: Final = Pattern(r"^(?P<path>/[^\s:]{2,200}):(?:\d{1,6}:)?(?P<line>.*)$", re.MULTILINE)


def _searched(key: str, written: str, source: Source, text: str) -> Iterator[Item]:
    """The lines that a search through a folder found, file by file, each under the number of its line there."""
    found: dict[str, list[str]] = {}
    for number, match in enumerate(islice(_IN_FILE.finditer(text), _MOST_FOUND)):
        lines = found.setdefault(match["path"], [])
        lines += [""] * (number - len(lines)) + [match["line"]]
    for path, lines in found.items():
        seen = recognise(path)
        if seen.kind == "file":
            yield Item(key, written, replace(seen, only=source.only or ".", is_part=True), "\n".join(lines))


# What some commands answer with, one line each: the version of a module, the kernel's release, a value of sysfs.
_VERSION: Final = Pattern(r"\d{3}\.\d{1,3}(?:\.\d{1,3})?")
_RELEASE: Final = Pattern(r"\d\.\d{1,3}\.\S+")
_NUMBER: Final = Pattern(r"\d{1,6}")


def _form(source: Source) -> Pattern | None:
    """How the one line looks that the command answers with; None where it answers otherwise."""
    if source.is_count:
        return _NUMBER
    if source.kind == "uname":
        return _RELEASE if "-r" in source.words else None
    if source.kind == "modinfo":
        return _VERSION if "version" in source.words else None
    if source.kind == "file" and source.subject.startswith("/sys/") and not source.only:
        return _VERSION if source.subject.endswith("/version") else _NUMBER
    return None


def _parts(sources: tuple[Source, ...], text: str) -> Iterator[tuple[Source, str]]:
    """Each source with its part of the text: its one line where as many lines of that form stand there, else the rest.

    What nobody can tell apart stands with each of them.
    """
    if len(sources) == 1:
        yield sources[0], text
        return
    lines = text.split("\n")
    own: dict[int, int] = {}
    for form in (_VERSION, _RELEASE, _NUMBER):
        asked = [place for place, source in enumerate(sources) if _form(source) is form]
        said = [number for number, line in enumerate(lines) if form.fullmatch(line.strip())]
        own |= dict(zip(asked, said, strict=True)) if len(asked) == len(said) else {}
    taken = set(own.values())
    rest = "\n".join("" if number in taken else line for number, line in enumerate(lines))
    for place, source in enumerate(sources):
        if (number := own.get(place)) is None:
            yield source, rest
        else:
            yield replace(source, is_mixed=False), "\n" * number + lines[number]


def _own(source: Source, text: str) -> str:
    """What of the text of several commands is this one's: all of it, a JSON file's object, or that there is nothing."""
    if not source.is_mixed:
        return text
    if source.subject.endswith(".json") and "{" in text:
        start = text.find("{")
        with suppress(ValueError, RecursionError):
            return text[start : json.JSONDecoder().raw_decode(text, start)[1]]
    is_one = sum(word.startswith("/") for word in source.words[1:]) < 2
    lacks = (match[0] for match in _LACKS.finditer(text) if match["name"] == program(source.words))
    return next(lacks, text) if is_one else text


# bash: nvidia-container-cli: command not found; ls: cannot access '/dev/nvidia*': No such file or directory
_LACKS: Final = Pattern(
    r"^(?:-?(?:bash|sh|zsh|ash|fish)(?:: line \d+)?: )?(?P<name>[\w.+-]{2,40}): (?:\d+: )?"
    r"(?:.{0,200}(?:not found|[Nn]o such file).*)$",
    re.MULTILINE,
)


def _uncounted(source: Source, own: str) -> Source:
    """Lines that were counted are there, and were not shown; that there are none tells as much as their absence."""
    is_none = source.is_count and not source.is_mixed and not re.search(r"[1-9]", own)
    return replace(source, is_part=False) if is_none else source


def _said(capture: Capture) -> str:
    """The answer, as plain lines; of a command that failed, its complaint too."""
    answer = capture.text
    if not answer.strip():
        answer = capture.error
    elif capture.outcome == "failed" and capture.error:
        answer = f"{answer.rstrip()}\n{capture.error}"
    return _plain(answer)


def _plain(text: str) -> str:
    """``text`` without a terminal's colours and with the newlines of this system."""
    text = text.replace("\r\n", "\n") if "\r" in text else text
    return cut_lines(_COLOURS.sub("", text) if "\x1b" in text else text)


def cut_lines(text: str) -> str:
    """``text`` without what nobody writes in one line; JSON stays whole, since its programs know no lines."""
    if len(text) <= _LONGEST_LINE:
        return text
    lines = text.split("\n")
    return "\n".join(map(_cut, lines)) if max(map(len, lines)) > _LONGEST_LINE else text


# Patterns are looked for in lines; one of megabytes was made to cost time.
_LONGEST_LINE: Final = 64 << 10
_LONGEST_JSON: Final = 16 << 20
_NOTE: Final = 80


def _cut(line: str) -> str:
    # What was cut and has its note is not cut again.
    if len(line) <= _LONGEST_LINE + _NOTE or (len(line) <= _LONGEST_JSON and _is_json(line)):
        return line
    return f"{line[:_LONGEST_LINE]} … ({len(line) - _LONGEST_LINE} more characters of this line were not read)"


def _is_json(line: str) -> bool:
    if line.lstrip()[:1] not in {"{", "["}:
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def tells_absence(text: str) -> bool:
    """Whether ``text`` says that what was looked for is not there, and nothing else."""
    lines = text[:4096].strip().splitlines()
    return bool(lines) and len(text) < 4096 and all(_ABSENT.search(line.strip()) for line in lines)


def _found(capture: Capture) -> tuple[Found, ...] | None:
    try:
        return decode_found(capture.data)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _of_glob(key: str, capture: Capture, found: tuple[Found, ...]) -> Iterator[Item]:
    """A listing of what matched, and each file that was read."""
    listing = "\n".join(_listed(one) for one in found)
    yield Item(key, capture.source, Source("listing", capture.source), listing, capture.outcome, capture.error)
    for one in found:
        if one.data is not None and not _is_passed_over(one.path):
            text = one.data.decode("utf-8", "replace")
            # What a wrapper script could print is nothing that a program has printed.
            source = Source("file", one.path) if "/bin/" in one.path else recognise(one.path, text)
            yield Item(key, one.path, source, text)
        elif one.denied and not _is_passed_over(one.path):
            yield Item(key, one.path, recognise(one.path), "", "denied")


# Only files of that name are read there: what an editor or a remedy has left beside them counts for nothing.
_OF_CONF: Final = ("/etc/modprobe.d/", "/etc/modules-load.d/", "/etc/ld.so.conf.d/")


def _is_passed_over(path: str) -> bool:
    return path.startswith(_OF_CONF) and not path.endswith(".conf")


def _listed(found: Found) -> str:
    target = f" -> {found.link}" if found.link else ""
    return f"{found.path}{target}"
