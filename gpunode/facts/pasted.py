"""Reports as evidence: shell sessions, JSON lists of sources and texts, the log of nvidia-bug-report.sh.

A shell session is split into commands and their outputs. A text without typed commands is cut where a paragraph looks
like the output of another command.

Format of nvidia-bug-report's log, by the script of the 390 and 515 drivers and a log of the latter: lines of 44
underscores separate the sections; a file's begins with ``*** PATH`` and ``*** ls: …``, a missing file's with ``*** PATH
does not exist``, a command's with the command. What a section reports as skipped is unknown, not absent.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from gpunode.errors import UsageError
from gpunode.facts import boots
from gpunode.facts.evidence import Capture, Evidence
from gpunode.facts.items import cut_overlong_lines, reports_absence
from gpunode.facts.markup import FENCE, strip_markup
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import PROBES
from gpunode.facts.sources import TABLE_KINDS, SourceKind, identify_by_content, identify_source
from gpunode.fast_dataclass import dataclass


@dataclass(frozen=True)
class ShellStep:
    """A command and its output.

    Attributes:
        source: the command.
        prompt: the shell's, empty if none is shown.
    """

    source: str
    text: str
    prompt: str = ""


def split_session(source: str, text: str) -> list[ShellStep]:
    """Split ``text`` into steps; if a command was repeated at the same shell, keep only its last answer."""
    text = cut_overlong_lines(text)
    lines = text.split("\n")
    seen = identify_source(source)
    # In the text of a command or file, number signs and headings have meanings of their own.
    is_named = bool(seen.words or seen.subject or seen.kind not in {"text", "application"})
    if not is_named:
        heads = _add_headings(lines, _find_typed_commands(lines, is_named=False))
        return _keep_latest([*_split_at_heads(ShellStep(source, ""), lines, heads, is_named=False)])
    heads = _find_typed_commands(lines, is_named=seen.kind != "shell-history") if len(text) <= _MAX_TRANSCRIPT else {}
    first = ShellStep(source, "", next((step.prompt for step in heads.values()), ""))
    return _keep_latest([*_split_at_heads(first, lines, heads, is_named=True)]) if heads else [ShellStep(source, text)]


# A longer text is the output of one command, not a session.
_MAX_TRANSCRIPT: Final = 100_000


# ---- typed commands

_INLINE_CODE: Final = Pattern(r"^`(?P<code>[^`\n]+)`\s*$")
# What may precede a prompt: a Python environment, the time of day.
_TEXT_BEFORE_PROMPT: Final = r"(?:\([\w.-]{1,30}\)\s*)?(?:\[[\d:./ -]{4,30}(?:[AP]M)?\]\s{1,2}(?=\S{1,40}@))?"
# Prompts that a user, a host or a folder makes unmistakable: "user@host:~$ lsmod", "[root@gpu1 ~]# lspci",
# "host:~ # dmesg", SUSE's and fish's "user@host:~>", zsh's "➜  ~ lsmod", PowerShell's "PS C:\Users\me>".
_PROMPT_WITH_PLACE: Final = (
    r"(?:\[[^\]\n]{0,60}[@~/][^\]\n]{0,60}\]\s?|[\w.+-]{1,40}@[^\s$#]{1,80}(?:[ :][^\s$#]{0,60})? ?"
    r"|[\w.-]{1,40}[: ] ?[~/][^\s$#]{0,60} ?)[$#%]"
    r"|[\w.+-]{1,40}@[\w.-]{1,80}[: ][~/][^\s$#>]{0,80}(?: \[\d{1,3}\])?>"
    r"|➜ {1,2}[~/][^\s:]{0,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?"
    r"|(?:PS )?[A-Z]:\\[^>\n]{0,80}>|PS [~/][^>\n]{0,80}>"
)
# "$ lsmod"; "+ lsmod" is a command as `set -x` shows it, and "++ lsmod" one whose output a variable takes. No program
# prints lines that begin with $.
_PLAIN_PROMPT: Final = (
    r"➜ {1,2}[\w.-]{1,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?|[A-Za-z][\w.-]{0,39}%(?= )|[\w.-]{1,40}[$#](?= )|\$|❯"
    r"|\+(?= [a-z])"
)
_PROMPT_LINE: Final = Pattern(
    rf"^{_TEXT_BEFORE_PROMPT}(?:(?P<place>{_PROMPT_WITH_PLACE})|{_PLAIN_PROMPT}) ?(?<=[\s>])(?P<command>\S[^\n]*)$"
)
# The second line of zsh's prompts of two lines: "┌──(user㉿host)-[~]" above "└─$ lsmod".
_PROMPT_TOP: Final = Pattern(r"^[┌╭]─[^\n]{1,160}$")
_PROMPT_BOTTOM: Final = Pattern(r"^(?P<place>[└╰]─{1,3} ?[$#%❯>➤]?) (?P<command>\S[^\n]*)$")
# Root's prompt, and zsh's; comments begin the same way.
_ROOT_PROMPT_OR_COMMENT: Final = Pattern(r"^(?P<place>)[#%] (?P<command>[a-z./]\S*[^\n]*)$")
# If there are other prompts, a line of plain words is a remark.
_PLAIN_WORDS_REMARK: Final = Pattern(r"\w+(?: \w+){2,}$")
# A prompt at which nothing was typed, or the first of two lines.
_IDLE_PROMPT: Final = Pattern(
    rf"{_TEXT_BEFORE_PROMPT}(?:\[[^\]\n@]{{1,40}}@[^\]\n]{{1,60}}\] ?"
    rf"|[\w.+-]{{1,40}}@[\w.-]{{1,80}}[: ] ?[~/][^\s$#>]{{0,80}} ?)"
    r"[$#%>]\s*|[┌╭]─[^\n]{1,160}"
)
# The ID of a Docker container, which a shell in it shows as its host.
_CONTAINER_ID_AS_HOST: Final = Pattern(r"@[0-9a-f]{12}\b")

_StepsByLine = Mapping[int, ShellStep]


def _find_typed_commands(lines: Sequence[str], *, is_named: bool) -> _StepsByLine:
    """Return the typed commands by line: known ones, and any after an unmistakable prompt."""
    above = ("", *lines)
    # Some set the prompt and the command in backticks, and the output below them.
    lines = [match["code"] if (match := _INLINE_CODE.match(line)) else line for line in lines]
    found = {
        number: match
        for number, line in enumerate(lines)
        if (match := _PROMPT_BOTTOM.match(line) if _PROMPT_TOP.match(above[number]) else _PROMPT_LINE.match(line))
    }
    bare = {
        number: match
        for number, line in enumerate(lines)
        if not is_named and (match := _ROOT_PROMPT_OR_COMMENT.match(line))
    }
    known = {number: match for number, match in bare.items() if _is_known_command(match["command"])}
    if not found:
        return {number: _make_step(match) for number, match in known.items() if len(known) > 1 or 0 in bare}
    found |= {number: match for number, match in known.items() if not _PLAIN_WORDS_REMARK.match(match["command"])}
    found = dict(sorted(found.items()))
    first = min(found)
    is_session = (
        not any(line.strip() and not _PROMPT_TOP.match(line) for line in lines[:first]) and lines[first][:1] != "+"
    )
    return {
        number: _make_step(match)
        for number, match in found.items()
        if is_session or match["place"] or _is_known_command(match["command"])
    }


def _is_known_command(command: str) -> bool:
    return command.startswith("./") or identify_source(command).kind not in {"text", "application"}


def _make_step(match: re.Match[str]) -> ShellStep:
    inside = " (in the container)" if _CONTAINER_ID_AS_HOST.search(match["place"] or "") else ""
    return ShellStep(f"{match['command']}{inside}", "", match.string[: match.start("command")].strip())


# ---- named commands and files

_SOURCE_HEADING: Final = Pattern(
    r"^(?P<begin>#{2,6}\s+|\*\*|==+>?\s*|--+\s+)?`?(?P<source>[^`\n]{2,120}?)`?(?P<end>:?\*\*:?|\s*<?==+|\s--+|:)?\s*$"
)
# The characters with which such a heading begins or ends; most lines of a long log have neither.
_HEADING_MARKS: Final = frozenset("#*=-:")
# How tools begin a line about a place in a file: "/usr/src/nvidia-470/nv-caps.c: In function 'f':",
# "/a/b.py:235: UserWarning:", "/tmp/ccX1b.s: Assembler messages:", "/usr/bin/ld: nv.o: in function 'f':".
_SOURCE_FILE_LINE_START: Final = Pattern(r"/\S{0,120}: |\S{1,120}\.[chsS](?::|$)|\S{1,120}:\d{1,9}(?::|$)")
# What `ls -l` prints below a folder's name.
_LS_TOTAL_LINE: Final = Pattern(r"total \d{1,12}$")
# A line that is only a command; one whose name is also an English word needs an option or a path.
_COMMAND_ON_LINE_OF_ITS_OWN: Final = Pattern(
    r"^(?:sudo )?(?!(?:find|which|type|service|env|time|watch|history|file|kind|snap|stat|command|exec|set|source|if)"
    r"(?: [^-/]*)?$)[a-z][\w.-]*(?: [^\n]{1,300})?(?<![.,:;!?])$"
)
# A sentence that begins with a program's name: "lsmod does not show it", "docker run fails here".
_SENTENCE_ABOUT_PROGRAM: Final = Pattern(
    r"(?i)^(?:sudo )?[\w.-]+(?: [\w./-]+){0,2} (?:(?:is|are|was|were|has|had|does|do|did|ca|can|could|wo|would)"
    r"(?:n['’]t)?|cannot|still|never|always|also|now|and|but|shows|lists|says|said|sees|fails"
    r"|failed(?= (?:to|with|on) )|works|worked|hangs|crashes|gives|gave"
    r"|reports|reported|prints|printed|returns|returned|complains|tells|told|finds|detects|outputs|displays|looks|seems"
    r"|takes|ends|exits|dies)(?= [a-z\d]|$)"
)
# A log's line may begin with the name of its program or container; options of a command also have times.
_LOG_FIELD: Final = Pattern(
    r"(?<!--since-time)(?<!--since)(?<!--until)(?<!-S)(?<!-U) "
    r"(?:(?:time|ts|level|msg|err)=[\w\"]|[IWEF]\d{4} \d\d:\d\d|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:)"
)
# It names no source if it goes on about another program: "nvidia-smi hangs, and dmesg has:".
_SECOND_CLAUSE: Final = Pattern(r"(?i), | (?:and|but|while) ")
_MAX_HEADING_WORDS: Final = 12
# "Output of `lsmod`:", "2. Run `uname -a`", "`nvidia-smi` gives:", "My /etc/docker/daemon.json:", "==> kern.log <==".
_INTRODUCTION: Final = Pattern(
    r"(?i)^(?:#{1,6} |\*\*|\d{1,2}[.)] |[-*] )?(?:(?:and|also|then|now|here(?:['’]s)?|is|are|this|the|my|our|full"
    r"|i|we|run|ran|running|output|results?|contents?|logs?|of|from|for|in) ){0,8}"
    # Other words make it a sentence that may deny what follows: "Output of dmesg last year".
    r"(?P<code>`)?(?P<source>(?(code)[^`\n]{2,120}|/?[a-z][^`\s]{1,120}?(?: [-/|][^`\n]{0,120}?)?))(?(code)`)"
    r"(?: (?:gives|shows|says|prints|outputs?|results?|returns|reports|contains|is)(?: me)?(?: this)?)?"
    r":?(?:\*\*)?:?\s*$"
)
_LOG_KINDS: Final[frozenset[SourceKind]] = frozenset({"kernel-log", "journal", "unit-log"})


def _add_headings(lines: Sequence[str], typed: _StepsByLine) -> _StepsByLine:
    """Add to the typed commands those written as a heading, or on a line of their own, above their output."""
    heads = dict[int, ShellStep]()
    source, before, is_in_block = "", "", False
    for number, line in enumerate(lines):
        is_in_block ^= bool(FENCE.match(line))
        if number in typed:
            heads[number] = typed[number]
        elif heading := (
            _heading_source(line, source, is_alone=not typed and not before.strip())
            or (not is_in_block and _introduced_source(line, lines[number + 1 : number + 6]))
        ):
            is_folder = number + 1 < len(lines) and _LS_TOTAL_LINE.match(lines[number + 1])
            heads[number] = ShellStep(f"ls -l {heading}" if is_folder else heading, "")
        elif FENCE.match(line):
            line = ""
        source = heads[number].source if number in heads else source
        before = line
    return heads


def _heading_source(line: str, source: str, *, is_alone: bool) -> str:
    """Return the source that the line names for what follows; empty if none. ``ls`` itself names its folders."""
    is_command = _COMMAND_ON_LINE_OF_ITS_OWN.match(line) and not (
        _SENTENCE_ABOUT_PROGRAM.match(line) or _LOG_FIELD.search(line)
    )
    if is_alone and is_command and _begins_with_program(line) and _is_known_command(line):
        return line
    if line[:1] not in _HEADING_MARKS and line.rstrip()[-1:] not in _HEADING_MARKS:
        return ""
    if _SENTENCE_ABOUT_PROGRAM.match(line) and _SECOND_CLAUSE.search(line):
        return ""
    match = _SOURCE_HEADING.match(line)
    if not match or not (match["begin"] or match["end"]) or len(match["source"].split()) > _MAX_HEADING_WORDS:
        return ""
    seen = identify_source(match["source"])
    is_path = seen.subject.startswith("/") and not _SOURCE_FILE_LINE_START.match(match["source"])
    is_section = match["source"] in source.split() and identify_source(source).kind == "listing"
    return match["source"] if (seen.words or is_path) and not is_section else ""


def _introduced_source(line: str, following: Sequence[str]) -> str:
    """Return the source whose output the line announces for the Markdown block below it; empty if none."""
    begin = next((number for number, one in enumerate(following) if one.strip()), 0)
    if not FENCE.match("".join(following[begin : begin + 1])) or not (match := _INTRODUCTION.match(line)):
        return ""
    seen, shown = identify_source(match["source"]), identify_by_content("\n".join(following[begin + 1 :]))
    is_other = shown is not None and shown.kind in _LOG_KINDS and shown.kind != seen.kind
    return match["source"] if (seen.words or seen.subject.startswith("/")) and not is_other else ""


def _begins_with_program(line: str) -> bool:
    """Return True if the line begins with a program whose output is known."""
    seen, words = identify_source(line), line.removeprefix("sudo ").split()
    return seen.words[:1] == tuple(words[:1]) or (bool(seen.subject) and words[0] in {"cat", "head", "tail", "zcat"})


# ---- the pieces


def _split_at_heads(
    first: ShellStep, lines: Sequence[str], heads: _StepsByLine, *, is_named: bool
) -> Iterator[ShellStep]:
    """Yield the steps that begin at the lines ``heads``; the text before them belongs to ``first``."""
    prompts = {step.prompt for step in heads.values() if step.prompt}
    inside = " (in the container)" if identify_source(first.source).where == "container" else ""
    ends = [*heads, len(lines)]
    before = _drop_prompts(lines[: ends[0]], prompts)
    if before or not heads:
        yield from (replace(first, text=part) for part in ([before] if is_named else _split_paragraphs(before)))
    for (number, step), end in zip(heads.items(), ends[1:], strict=True):
        body = lines[number + 1 : end]
        body, rest = (body, ()) if is_named else _split_answer(step, body)
        yield replace(step, source=step.source + inside, text=_drop_prompts(body, prompts))
        if after := _drop_prompts(rest, prompts):
            yield from (replace(first, text=part) for part in _split_paragraphs(after))


def _split_answer(step: ShellStep, lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the command's output, and the text after it: after its block of Markdown, or from a kernel log on."""
    output, rest = _split_fenced_block(lines)
    if not rest and identify_source(step.source).kind in TABLE_KINDS:
        for number in (number for number, line in enumerate(output) if not line.strip()):
            seen = identify_by_content("\n".join(output[number + 1 : number + 3]))
            if seen and seen.kind == "kernel-log":
                return output[:number], output[number:]
    return output, rest


def _split_fenced_block(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the part of a command's output in one Markdown block, and the text after the block."""
    fences = [number for number, line in enumerate(lines) if FENCE.match(line)]
    if not fences:
        return lines, ()
    is_opened = not any(line.strip() for line in lines[: fences[0]])
    begin, close = (fences[0] + 1, fences[1:2]) if is_opened and len(fences) > 1 else (0, fences[:1])
    rest = [*lines[close[0] + 1 :]]
    while rest and (not rest[-1].strip() or FENCE.match(rest[-1])):  # the next block's beginning
        rest.pop()
    return lines[begin : close[0]], rest


def _drop_prompts(lines: Sequence[str], prompts: AbstractSet[str]) -> str:
    """Join the lines, without prompts at which nothing was typed."""
    return "\n".join("" if line.strip() in prompts or _IDLE_PROMPT.fullmatch(line) else line for line in lines).strip(
        "\n"
    )


def _split_paragraphs(text: str) -> Iterator[str]:
    """Split the text at blank lines after which something else begins."""
    part, seen = "", None
    for paragraph in _BLANK_LINES.split(text, _MAX_PARAGRAPHS):
        other = identify_by_content(paragraph)
        # A blank line ends a table, but not a file.
        is_over = seen is not None and seen.kind in TABLE_KINDS - {"file"}
        if part and (other or is_over) and other != seen:
            yield from _split_at_fences(part) if seen else (part,)
            part, seen = "", None
        part, seen = f"{part}\n\n{paragraph}" if part else paragraph, other or seen
    yield from _split_at_fences(part) if seen else (part,)


def _split_at_fences(text: str) -> Iterator[str]:
    """Split the text into Markdown blocks and the text between them: a fence is no part of a file."""
    block, rest = _split_fenced_block(text.split("\n"))
    yield "\n".join(block)
    if rest:
        yield from _split_at_fences("\n".join(rest))


_BLANK_LINES: Final = Pattern(r"\n(?:[ \t]*\n)+")
# Nobody pastes more pieces without any text between them.
_MAX_PARAGRAPHS: Final = 300


# ---- the same command again

# A log's later lines add to the earlier ones, and a program that failed once may fail again.
_KINDS_KEEPING_EVERY_ANSWER: Final[frozenset[SourceKind]] = frozenset(
    {"kernel-log", "journal", "unit-log", "kubernetes-log", "audit", "make-log", "application", "text"}
)
_COMMAND_FAILED_WORDS: Final = Pattern(
    r"[Pp]ermission denied|not permitted|command not found|[Aa]ccess denied|must be root"
)
# After these, another machine or a container may answer at the same prompt.
_SHELL_CHANGING_COMMAND: Final = Pattern(r"(?:sudo )?(?:ssh|docker|podman|kubectl|nerdctl|oc|chroot|su|exit|logout)\b")
_USER_AND_HOST_IN_PROMPT: Final = Pattern(r"[\w.+-]{1,40}[@㉿][\w.-]{1,80}")


def _keep_latest(typed: Sequence[ShellStep]) -> list[ShellStep]:
    """Drop steps whose command was repeated later at the same shell with an answer."""
    answered = set[tuple[str, ...]]()
    kept = list[ShellStep]()
    for step in reversed(typed):
        if _SHELL_CHANGING_COMMAND.match(step.source):
            answered.clear()
        shell = _USER_AND_HOST_IN_PROMPT.search(step.prompt)
        question = (shell[0] if shell else step.prompt, *step.source.removeprefix("sudo ").split())
        is_lasting = not step.prompt or identify_source(step.source).kind in _KINDS_KEEPING_EVERY_ANSWER
        if is_lasting or question not in answered:
            kept.append(step)
        if not is_lasting and not _COMMAND_FAILED_WORDS.search(step.text):
            answered.add(question)
    return kept[::-1]


_REPORT_FORMAT_HINT: Final = 'a report is a JSON list of {"source": "the command or path", "text": "its output"}'
# Probes whose output people can paste as it is; `lsmod` is not /proc/modules, `dpkg -l` not dpkg's status.
_PROBE_KEY_BY_SOURCE: Final = {
    **{probe.path: probe.key for probe in PROBES if probe.path},
    **{" ".join(probe.argv): probe.key for probe in PROBES if probe.argv},
}


def parse_json_report(text: str, place: str) -> Evidence:
    """Parse a JSON list, or an object that has one as its ``evidence``.

    Raises:
        UsageError: if it is neither; the message names ``place`` and the entry.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON", why=str(error)[:300], hint=_REPORT_FORMAT_HINT) from error
    if isinstance(rows, dict):
        rows = rows.get("evidence")
    if not isinstance(rows, list):
        raise UsageError(f"{place} is JSON, but not a list", hint=_REPORT_FORMAT_HINT)
    return collect_pieces(tuple(_parse_entry(row, number, place, text)) for number, row in enumerate(rows, 1))


# What people call the two fields. A text may be a string, a list of lines, or the object that a command printed.
_JSON_FIELD_NAMES: Final = {
    "source": ("source", "command", "cmd", "path", "file", "name"),
    "text": ("text", "output", "stdout", "content"),
}


def _parse_entry(row: object, number: int, place: str, whole: str) -> Iterator[str]:
    if isinstance(row, str):
        yield from (_DEFAULT_SOURCE, row)
        return
    for name, others in _JSON_FIELD_NAMES.items():
        found = [row[other] for other in others if other in row] if isinstance(row, dict) else []
        if not found or (value := _join_text(found[0])) is None:
            where = f"{place}, line {_find_entry_line(whole, number)}"
            raise UsageError(f"{where}: entry {number} has no {name} that is text", hint=_REPORT_FORMAT_HINT)
        yield value


def _join_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) and value else None


def _find_entry_line(whole: str, number: int) -> int:
    """Return the line of entry ``number`` of the list; the list's own line if another list precedes it."""
    decoder = json.JSONDecoder()
    begin = at = whole.find("[", whole.find('"evidence"') if whole.lstrip().startswith("{") else 0)
    try:
        for _ in range(number - 1):
            at = whole.index(",", decoder.raw_decode(whole, _skip_blank(whole, at + 1))[1])
    except ValueError:
        return whole.count("\n", 0, begin) + 1
    return whole.count("\n", 0, _skip_blank(whole, at + 1)) + 1


def _skip_blank(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def parse_text_report(text: str, name: str = "") -> Evidence:
    """Parse plain text: split it at shell prompts, headings and the outputs of known commands.

    The ``name`` of a log's file (``kern.log``) tells the kind; others are ignored.
    """
    is_log = identify_source(name).kind not in {"file", "text", "application"}
    return collect_pieces([(name if is_log else _DEFAULT_SOURCE, strip_markup(text))])


_DEFAULT_SOURCE: Final = "pasted text"


# A report has a few dozen; hundreds of rules read each.
MAX_REPORT_PIECES: Final = 5000


def collect_pieces(pieces: Iterable[tuple[str, ...]]) -> Evidence:
    """Return the pieces as evidence, each under the key of the matching probe, else under its source.

    Raises:
        UsageError: if there are more than ``MAX_REPORT_PIECES``.
    """
    captures: dict[str, Capture] = {}
    numbers: Counter[str] = Counter()
    for step in (step for source, text in pieces for step in split_session(source, text)):
        if len(captures) == MAX_REPORT_PIECES:
            raise _too_many_error()
        unique = key = _choose_key(step.source, step.text)
        while unique in captures:
            numbers[key] += 1
            unique = f"{key}#{numbers[key] + 1}"
        captures[unique] = _make_capture(step.source, step.text)
    return captures


def _too_many_error() -> UsageError:
    why = f"it has more than {MAX_REPORT_PIECES} pieces of evidence"
    return UsageError("the report is not read", why=why, hint="send the output of one node, once")


def _make_capture(source: str, text: str) -> Capture:
    if reports_absence(text):
        return Capture(source, "absent", error=text, content_kind="log")
    return Capture(source, "ok", text.encode("utf-8", "surrogatepass"), content_kind="log")


def _choose_key(source: str, text: str) -> str:
    seen = identify_source(source, text)
    is_part = seen.pattern or seen.is_part or seen.is_mixed
    if is_part or seen.where == "container" or boots.is_from_earlier_boot(seen, source):
        return source
    if seen.kind == "file" and seen.subject.startswith("/"):
        return _PROBE_KEY_BY_SOURCE.get(seen.subject, f"file:{seen.subject}")
    return _PROBE_KEY_BY_SOURCE.get(" ".join(seen.words), source)


_BUG_REPORT_SECTION_RULE: Final = Pattern(r"^_{40,}\s*$", re.MULTILINE)
_BUG_REPORT_MARK: Final = Pattern(r"^Start of NVIDIA bug report log file|nvidia-bug-report\.sh Version:", re.MULTILINE)
_FILE_SECTION_TITLE: Final = Pattern(r"^\*\*\* (?P<path>/[^\n]*?)(?P<missing> does not exist)?\s*$")
_UNREADABLE_FILE_TITLE: Final = Pattern(r"^\*\*\* /\S+ (?:is not readable|could not be read|cannot be)")
_SKIPPED_COMMAND_TEXT: Final = Pattern(
    r"^\s*(?:Skipping|skipped)\b|\b(?:is not installed|not found; skipping)\b", re.IGNORECASE
)
_BUG_REPORT_UNAME_LINE: Final = Pattern(r"^uname: (.*)$", re.MULTILINE)
# Earlier boots, the X server's own log, and data that people do not read.
_IGNORED_SECTION_TITLE: Final = Pattern(
    r"journalctl -b -[1-9]|_COMM=|coredumpctl|nvidia-debugdump|acpidump|Xorg\.|base64"
)
_COMMAND_SECTION_TITLE: Final = Pattern(r"^(?:/\S+/)?[a-z][\w.-]*(?: [^\n]{0,300})?$")
_SCANNED_LOG_HEADING: Final = Pattern(r"^\s{0,4}(?P<source>/var/log/\S+|journalctl -b -?\d)\s*:?\s*$")
_MAX_SECTION_LENGTH: Final = 8 << 20


def is_bug_report(text: str) -> bool:
    """Return True if ``text`` is a log of nvidia-bug-report.sh."""
    return _BUG_REPORT_MARK.search(text[:8192]) is not None


def parse_bug_report(text: str) -> Evidence:
    """Return the evidence in the log ``text``."""
    return collect_pieces(tuple(_split_sections(text)))


def _split_sections(text: str) -> Iterator[tuple[str, str]]:
    for section in _BUG_REPORT_SECTION_RULE.split(text):
        body = section.strip("\n")
        if body.strip() and len(body) <= _MAX_SECTION_LENGTH:
            yield from _read_section(body)


def _read_section(body: str) -> Iterator[tuple[str, str]]:
    title, _, rest = body.partition("\n")
    if _BUG_REPORT_MARK.search(body):
        if found := _BUG_REPORT_UNAME_LINE.search(body):
            yield "uname -a", found[1]
    elif match := _FILE_SECTION_TITLE.match(title):
        path = posixpath.normpath(match["path"])
        if match["missing"]:
            yield path, f"cat: {path}: No such file or directory"
        elif not _UNREADABLE_FILE_TITLE.match(title) and not _IGNORED_SECTION_TITLE.search(path):
            yield path, _strip_ls_line(rest)
    elif title.startswith("Scanning kernel log files"):
        yield from _read_log_scan(rest)
    elif not _IGNORED_SECTION_TITLE.search(title):
        yield from _read_command_section(title.strip(), rest)


def _strip_ls_line(text: str) -> str:
    """Return the file's content without the line of ``ls`` before it."""
    first, _, rest = text.partition("\n")
    return rest if first.startswith("*** ls:") else text


def _read_command_section(title: str, rest: str) -> Iterator[tuple[str, str]]:
    title = title.removesuffix(":")
    # An empty answer proves nothing: the script may have discarded an error message.
    if (
        not _COMMAND_SECTION_TITLE.match(title)
        or title.endswith(" not present")
        or not rest.strip()
        or _SKIPPED_COMMAND_TEXT.search(rest[:300])
    ):
        return
    program, _, arguments = title.partition(" ")
    yield f"{program.rsplit('/', 1)[-1]} {arguments}".strip(), rest.strip("\n")


def _read_log_scan(text: str) -> Iterator[tuple[str, str]]:
    """Yield the NVIDIA modules' lines in the logs of this boot; dmesg has its own section."""
    source, lines = "", list[str]()
    for line in text.splitlines():
        if match := _SCANNED_LOG_HEADING.match(line):
            if source and not _IGNORED_SECTION_TITLE.search(source):
                yield source, "\n".join(lines)
            source, lines = match["source"].rstrip(":"), []
        else:
            lines.append(line)
    if source and not _IGNORED_SECTION_TITLE.search(source):
        yield source, "\n".join(lines)
