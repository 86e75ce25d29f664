"""What people paste into reports, as evidence: a JSON list of sources and texts, or plain text with shell prompts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpunode.errors import UsageError
from gpunode.facts import boots
from gpunode.facts.evidence import Capture, Evidence
from gpunode.facts.items import cut_lines, tells_absence
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import PROBES
from gpunode.facts.sessions import Step, settled
from gpunode.facts.sources import recognise

_SHAPE: Final = 'a report is a JSON list of {"source": "the command or path", "text": "what it said"}'
# A prompt, and a command behind it: "$ lsmod", "# dmesg", "user@host:~$ nvidia-smi", "[root@gpu1 ~]# lspci",
# "host:~ # dmesg", "gpu1 ~ # lsmod", "❯ uname".
# What stands before it: an environment of Python's, the time of day.
_BEFORE: Final = r"(?:\([\w.-]{1,30}\)\s*)?(?:\[[\d:./ -]{4,30}(?:[AP]M)?\]\s{1,2}(?=\S{1,40}@))?"
_PROMPT: Final = Pattern(
    rf"^{_BEFORE}(?:\[[^\]\n]{{1,80}}\]\s?|[\w.+-]{{1,40}}@[^\s$#]{{1,80}}(?:[ :][^\s$#]{{0,60}})?"
    r"|[\w.-]{1,40}[: ] ?[~/][^\s$#]{0,60} ?)?"
    r"[$#❯%]\s+(?P<command>\S[^\n]*)$"
)
_HEADING: Final = Pattern(r"^(?:#{1,6}\s+|\*\*|==+\s*)?`?(?P<source>[^`*=\n]{2,120}?)`?(?:\*\*|\s*==+)?:\s*$")
# What tools begin with that say where in a file something is: "/usr/src/nvidia-470/nv-caps.c: In function 'f':",
# "/a/b.py:235: UserWarning:", "/tmp/ccX1b.s: Assembler messages:", "/usr/bin/ld: nv.o: in function 'f':".
_IN_SOURCE: Final = Pattern(r"/\S{0,120}: |\S{1,120}\.[chsS](?::|$)|\S{1,120}:\d{1,9}(?::|$)")
_FENCE: Final = Pattern(r"^\s*(?:```|~~~)")
# The probes whose answer a person can paste as it is; `lsmod` is not /proc/modules, `dpkg -l` not dpkg's status.
_PROBE_KEYS: Final = {
    **{probe.path: probe.key for probe in PROBES if probe.path},
    **{" ".join(probe.argv): probe.key for probe in PROBES if probe.argv},
}


def from_json(text: str, place: str) -> Evidence:
    """The evidence of a JSON list, or of an object that has one as its ``evidence``.

    Raises:
        UsageError: it is another thing; the message names ``place`` and the entry.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON", why=str(error)[:300], hint=_SHAPE) from error
    if isinstance(rows, dict):
        rows = rows.get("evidence")
    if not isinstance(rows, list):
        raise UsageError(f"{place} is JSON, but no list", hint=_SHAPE)
    return evidence(tuple(_row(row, number, place, text)) for number, row in enumerate(rows, 1))


# What people call the two, and how they write a text: as it is, as its lines, as the object that a command printed.
_NAMES: Final = {
    "source": ("source", "command", "cmd", "path", "file", "name"),
    "text": ("text", "output", "stdout", "content"),
}


def _row(row: object, number: int, place: str, whole: str) -> Iterator[str]:
    if isinstance(row, str):
        yield from (_UNNAMED, row)
        return
    for name, others in _NAMES.items():
        found = [row[other] for other in others if other in row] if isinstance(row, dict) else []
        if not found or (value := _as_text(found[0])) is None:
            where = f"{place}, line {_line_of(whole, number)}"
            raise UsageError(f"{where}: entry {number} has no {name} that is text", hint=_SHAPE)
        yield value


def _as_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) and value else None


def _line_of(whole: str, number: int) -> int:
    """The line in which entry ``number`` of the list begins; the list's own where another list stands before it."""
    decoder = json.JSONDecoder()
    begin = at = whole.find("[", whole.find('"evidence"') if whole.lstrip().startswith("{") else 0)
    try:
        for _ in range(number - 1):
            at = whole.index(",", decoder.raw_decode(whole, _after_blank(whole, at + 1))[1])
    except ValueError:
        return whole.count("\n", 0, begin) + 1
    return whole.count("\n", 0, _after_blank(whole, at + 1)) + 1


def _after_blank(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def from_text(text: str, name: str = "") -> Evidence:
    """The evidence of plain text: split at shell prompts and headings; without any, one piece.

    Args:
        text: what was pasted.
        name: of the file that it stood in: that of a log says what it is (``kern.log``), any other says nothing.
    """
    is_log = recognise(name).kind not in {"file", "text", "application"}
    return _evidence(_sessions(_split(text, name if is_log else _UNNAMED)))


_UNNAMED: Final = "pasted text"


# A report has some dozens; each is looked at by hundreds of rules.
MOST_PIECES: Final = 5000


def evidence(pieces: Iterable[tuple[str, ...]]) -> Evidence:
    """The pieces, each under the key of the probe that would have seen it, else under its source.

    Raises:
        UsageError: there are more than ``MOST_PIECES``.
    """
    return _evidence(list(_transcript(_Piece(source, text))) for source, text in pieces)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a paste.

    Attributes:
        prompt: at which its source was typed; None where it was not.
        goes_on: whether it is of the same session as the piece before.
    """

    source: str
    text: str
    prompt: str | None = None
    goes_on: bool = False


def _sessions(pieces: Iterable[_Piece]) -> Iterator[list[Step]]:
    """What was typed at one shell and pasted in one go, in its order."""
    steps: list[Step] = []
    for piece in pieces:
        if not piece.goes_on:
            yield steps
            steps = []
        steps += _transcript(piece)
    yield steps


def _evidence(sessions: Iterable[Sequence[Step]]) -> Evidence:
    found: dict[str, Capture] = {}
    numbers: Counter[str] = Counter()
    for step in (step for steps in _bounded(sessions) for step in settled(steps)):
        source, text = step.source, step.said
        if len(found) == MOST_PIECES:
            raise _too_many()
        unique = key = _key(source, text)
        while unique in found:
            numbers[key] += 1
            unique = f"{key}#{numbers[key] + 1}"
        found[unique] = _capture(source, text)
    return found


def _bounded(sessions: Iterable[Sequence[Step]]) -> Iterator[Sequence[Step]]:
    """The sessions, which may be without an end, up to more steps than can be left of a report."""
    count = 0
    for steps in sessions:
        count += len(steps)
        if count > 2 * MOST_PIECES:
            raise _too_many()
        yield steps


def _too_many() -> UsageError:
    why = f"it has more than {MOST_PIECES} pieces of evidence"
    return UsageError("the report is not read", why=why, hint="send what one node said, once")


# "$ lsmod", "user@host:~$ lsmod": a dollar sign begins no line of a program's own; a number sign does, so that it is a
# prompt only behind a user, a host or a folder, and an angle bracket (SUSE, fish) only behind all three. "+ lsmod" is a
# command as `set -x` shows it. "➜  ~ lsmod" and the two lines "┌──(user㉿host)-[~]", "└─$ lsmod" are zsh's.
_TYPED: Final = Pattern(
    rf"^(?:(?P<above>[┌╭]─[^\n]{{1,160}})\n[└╰]─{{1,3}} ?[$#%❯>➤]?|{_BEFORE}"
    r"(?:(?P<place>\[[^\]\n]{0,60}[@~/][^\]\n]{0,60}\]\s?|[\w.+-]{1,40}@[^\s$#]{1,80}(?:[ :][^\s$#]{0,60})? ?"
    r"|[\w.-]{1,40}[: ] ?[~/][^\s$#]{0,60} ?)[$#%]"
    r"|(?P<spot>[\w.+-]{1,40}@[\w.-]{1,80}[: ][~/][^\s$#>]{0,80}>"
    r"|➜ {1,2}[~/][^\s:]{0,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?)"
    r"|➜ {1,2}[\w.-]{1,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?|[A-Za-z][\w.-]{0,39}%(?= )"
    r"|[\w.-]{1,40}[$#](?= )|\$|❯|\+{1,2}(?= [a-z])|(?P<drive>(?:PS )?[A-Z]:\\[^>\n]{0,80}>|PS [~/][^>\n]{0,80}>)))"
    r" ?(?<=[\s>])(?P<command>\S[^\n]*)$",
    re.MULTILINE,
)


# Root's prompt, and zsh's: a comment begins so, too.
_BARE: Final = Pattern(r"^(?P<place>)(?P<drive>)[#%] (?P<command>[a-z./]\S*[^\n]*)$", re.MULTILINE)


def _typed(text: str, *, is_named: bool) -> list[re.Match[str]]:
    """The lines in which a command was typed: each known one, and behind a prompt that is nothing else, every one.

    Where no other prompt is and no command or file says what the text is (``is_named``), one that begins with root's is
    a session if two known commands or more stand behind such prompts.
    """
    lines = list(_TYPED.finditer(text))
    if not lines and not is_named and text.lstrip()[:2] in {"# ", "% "}:
        bare = [line for line in _BARE.finditer(text) if _is_known(line["command"])]
        return bare if len(bare) > 1 else []
    is_session = bool(lines) and not text[: lines[0].start()].strip() and lines[0][0][0] != "+"
    return [line for line in lines if is_session or _is_place(line) or _is_known(line["command"])]


def _is_place(line: re.Match[str]) -> bool:
    """Whether the prompt shows a user, a host or a folder, so that it is nothing else."""
    return any(line.groupdict().get(name) for name in ("place", "spot", "drive", "above"))


def _is_known(command: str) -> bool:
    return recognise(command).kind not in {"text", "application"}


def _is_named(source: str) -> bool:
    """Whether ``source`` is a command or a file, which has its own ways with a number sign."""
    seen = recognise(source)
    return bool(seen.words or seen.subject) or seen.kind not in {"text", "application", "shell-history"}


def _transcript(piece: _Piece) -> Iterator[Step]:
    """The piece, split where a further command was typed in it; what was typed in a container stays of it."""
    source, text = piece.source, cut_lines(piece.text)
    typed = _typed(text, is_named=_is_named(source)) if len(text) <= _TRANSCRIPT else []
    if not typed:
        yield Step(source, text, piece.prompt)
        return
    prompts = [text[match.start() : match.start("command")].strip() for match in typed]
    is_inside = recognise(source).where == "container"
    if text[: typed[0].start()].strip():
        first = prompts[0] if piece.prompt is None and _is_named(source) else piece.prompt
        yield Step(source, text[: typed[0].start()].rstrip("\n"), first)
    for match, after, prompt in zip(typed, (*typed[1:], None), prompts, strict=True):
        said = text[match.end() : after.start() if after is not None else len(text)].strip("\n")
        inside = " (in the container)" if is_inside or _OF_CONTAINER.search(match["place"] or "") else ""
        yield Step(f"{match['command']}{inside}", _without_prompts(said, frozenset(prompts)), prompt)


# A prompt at which nothing was typed.
_IDLE: Final = Pattern(
    rf"{_BEFORE}(?:\[[^\]\n@]{{1,40}}@[^\]\n]{{1,60}}\] ?"
    r"|[\w.+-]{1,40}@[\w.-]{1,80}[: ] ?[~/][^\s$#>]{0,80} ?)[$#%>]\s*"
)


def _without_prompts(said: str, prompts: frozenset[str]) -> str:
    """What was said, without the lines in which nothing was typed."""
    lines = ["" if line.strip() in prompts or _IDLE.fullmatch(line) else line for line in said.split("\n")]
    return "\n".join(lines).rstrip("\n")


# Docker names a container so, and a shell in it shows that as its host.
_OF_CONTAINER: Final = Pattern(r"@[0-9a-f]{12}\b")
# Nobody types so much between two commands that a longer text would be one.
_TRANSCRIPT: Final = 100_000


def _capture(source: str, text: str) -> Capture:
    if tells_absence(text):
        return Capture(source, "absent", error=text, holds="log")
    return Capture(source, "ok", text.encode("utf-8", "surrogatepass"), holds="log")


def _key(source: str, text: str) -> str:
    seen = recognise(source, text)
    is_part = seen.only or seen.is_part or seen.is_mixed
    if is_part or seen.where == "container" or boots.is_of_earlier(seen, source):
        return source
    if seen.kind == "file" and seen.subject.startswith("/"):
        return _PROBE_KEYS.get(seen.subject, f"file:{seen.subject}")
    return _PROBE_KEYS.get(" ".join(seen.words), source)


def _split(text: str, name: str) -> Iterator[_Piece]:
    source, lines = "", list[str]()
    prompt: str | None = None
    goes_on = is_parted = False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_parted = True
            continue
        found = _next(line)
        if found and not _is_section(source, found):
            if source or any(lines):
                yield _Piece(source or name, _said(lines, prompt), prompt, goes_on)
            typed = _PROMPT.match(line)
            goes_on = bool(typed and prompt is not None and not is_parted)
            source, lines, prompt, is_parted = found, [], typed and line[: typed.start("command")].strip(), False
        else:
            lines.append(line)
    if source or any(lines):
        yield _Piece(source or name, _said(lines, prompt), prompt, goes_on)


def _said(lines: Sequence[str], prompt: str | None) -> str:
    said = "\n".join(lines).strip("\n")
    return said if prompt is None else _without_prompts(said, frozenset({prompt}))


def _is_section(source: str, heading: str) -> bool:
    """Whether ``heading`` is one that the command writes itself: ``ls`` of several folders names each of them."""
    return heading in source.split() and recognise(source).kind == "listing"


def _next(line: str) -> str:
    """The source of what follows, where ``line`` is a prompt with a command, or a heading that names one."""
    if match := _PROMPT.match(line):
        # A comment of a configuration file looks like root's prompt: only what is a command, or a known one, counts.
        command = match["command"]
        is_root = line.lstrip().startswith("#")
        return command if not is_root or _is_known(command) or command.startswith("./") else ""
    if (match := _HEADING.match(line)) and len(match["source"].split()) <= 12:
        seen = recognise(match["source"])
        is_path = seen.subject.startswith("/") and not _IN_SOURCE.match(match["source"])
        return match["source"] if seen.words or is_path else ""
    return ""
