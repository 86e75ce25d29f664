"""Pasted shell sessions, split into commands and their outputs.

Where nothing was typed, a text is cut where one of its paragraphs looks like the output of another command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from gpunode.facts.items import cut_lines
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import TABLES, Kind, identify_by_content, identify_source


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
    text = cut_lines(text)
    lines = text.split("\n")
    seen = identify_source(source)
    # A command's or a file's text has its own ways with a number sign, and with headings.
    is_named = bool(seen.words or seen.subject or seen.kind not in {"text", "application"})
    if not is_named:
        heads = _add_headings(lines, _find_typed_commands(lines, is_named=False))
        return _keep_latest([*_split_at_heads(ShellStep(source, ""), lines, heads, is_named=False)])
    heads = _find_typed_commands(lines, is_named=seen.kind != "shell-history") if len(text) <= _MAX_TRANSCRIPT else {}
    first = ShellStep(source, "", next((step.prompt for step in heads.values()), ""))
    return _keep_latest([*_split_at_heads(first, lines, heads, is_named=True)]) if heads else [ShellStep(source, text)]


# Nobody types so much between two commands that a longer text would be one.
_MAX_TRANSCRIPT: Final = 100_000


# ---- where a command was typed

# What stands before a prompt: an environment of Python's, the time of day.
_BEFORE: Final = r"(?:\([\w.-]{1,30}\)\s*)?(?:\[[\d:./ -]{4,30}(?:[AP]M)?\]\s{1,2}(?=\S{1,40}@))?"
# A user, a host or a folder makes a prompt of what might be something else: "user@host:~$ lsmod",
# "[root@gpu1 ~]# lspci", "host:~ # dmesg", SUSE's and fish's "user@host:~>", zsh's "➜  ~ lsmod", PowerShell's
# "PS C:\Users\me>".
_PLACE_PROMPT: Final = (
    r"(?:\[[^\]\n]{0,60}[@~/][^\]\n]{0,60}\]\s?|[\w.+-]{1,40}@[^\s$#]{1,80}(?:[ :][^\s$#]{0,60})? ?"
    r"|[\w.-]{1,40}[: ] ?[~/][^\s$#]{0,60} ?)[$#%]"
    r"|[\w.+-]{1,40}@[\w.-]{1,80}[: ][~/][^\s$#>]{0,80}>|➜ {1,2}[~/][^\s:]{0,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?"
    r"|(?:PS )?[A-Z]:\\[^>\n]{0,80}>|PS [~/][^>\n]{0,80}>"
)
# "$ lsmod"; "+ lsmod" is a command as `set -x` shows it. A dollar sign begins no line of a program's own.
_PLAIN_PROMPT: Final = (
    r"➜ {1,2}[\w.-]{1,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?|[A-Za-z][\w.-]{0,39}%(?= )|[\w.-]{1,40}[$#](?= )|\$|❯"
    r"|\+{1,2}(?= [a-z])"
)
_PROMPT: Final = Pattern(rf"^{_BEFORE}(?:(?P<place>{_PLACE_PROMPT})|{_PLAIN_PROMPT}) ?(?<=[\s>])(?P<command>\S[^\n]*)$")
# The second line of zsh's prompts of two lines: "┌──(user㉿host)-[~]" above "└─$ lsmod".
_PROMPT_TOP: Final = Pattern(r"^[┌╭]─[^\n]{1,160}$")
_PROMPT_BOTTOM: Final = Pattern(r"^(?P<place>[└╰]─{1,3} ?[$#%❯>➤]?) (?P<command>\S[^\n]*)$")
# Root's prompt, and zsh's: a comment begins so, too.
_BARE_PROMPT: Final = Pattern(r"^(?P<place>)[#%] (?P<command>[a-z./]\S*[^\n]*)$")
# Beside another prompt a line of plain words is a remark.
_REMARK: Final = Pattern(r"\w+(?: \w+){2,}$")
# A prompt at which nothing was typed, or the first of two lines.
_IDLE_PROMPT: Final = Pattern(
    rf"{_BEFORE}(?:\[[^\]\n@]{{1,40}}@[^\]\n]{{1,60}}\] ?|[\w.+-]{{1,40}}@[\w.-]{{1,80}}[: ] ?[~/][^\s$#>]{{0,80}} ?)"
    r"[$#%>]\s*|[┌╭]─[^\n]{1,160}"
)
# Docker names a container so, and a shell in it shows that as its host.
_CONTAINER_HOST: Final = Pattern(r"@[0-9a-f]{12}\b")

_Heads = Mapping[int, ShellStep]


def _find_typed_commands(lines: Sequence[str], *, is_named: bool) -> _Heads:
    """Return the typed commands by line: known ones, and any behind an unmistakable prompt."""
    above = ("", *lines)
    found = {
        number: match
        for number, line in enumerate(lines)
        if (match := _PROMPT_BOTTOM.match(line) if _PROMPT_TOP.match(above[number]) else _PROMPT.match(line))
    }
    bare = {number: match for number, line in enumerate(lines) if not is_named and (match := _BARE_PROMPT.match(line))}
    known = {number: match for number, match in bare.items() if _is_known_command(match["command"])}
    if not found:
        return {number: _make_step(match) for number, match in known.items() if len(known) > 1 or 0 in bare}
    found |= {number: match for number, match in known.items() if not _REMARK.match(match["command"])}
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
    inside = " (in the container)" if _CONTAINER_HOST.search(match["place"] or "") else ""
    return ShellStep(f"{match['command']}{inside}", "", match.string[: match.start("command")].strip())


# ---- where one is named

_HEADING: Final = Pattern(
    r"^(?P<begin>#{2,6}\s+|\*\*|==+\s*|--+\s+)?`?(?P<source>[^`\n]{2,120}?)`?(?P<end>:?\*\*:?|\s*==+|\s--+|:)?\s*$"
)
# What tools begin with that say where in a file something is: "/usr/src/nvidia-470/nv-caps.c: In function 'f':",
# "/a/b.py:235: UserWarning:", "/tmp/ccX1b.s: Assembler messages:", "/usr/bin/ld: nv.o: in function 'f':".
_IN_SOURCE: Final = Pattern(r"/\S{0,120}: |\S{1,120}\.[chsS](?::|$)|\S{1,120}:\d{1,9}(?::|$)")
_FENCE: Final = Pattern(r"^\s*(?:```|~~~)")
# A line that is a command and nothing else; of those that are English words as well, with an option or a path.
_COMMAND: Final = Pattern(
    r"^(?:sudo )?(?!(?:find|which|type|service|env|time|watch|history|file|kind|snap|stat|command|exec|set|source|if)"
    r"(?: [^-/]*)?$)[a-z][\w.-]*(?: [^\n]{1,300})?(?<![.,:;!?])$"
)
_MAX_WORDS: Final = 12


def _add_headings(lines: Sequence[str], typed: _Heads) -> _Heads:
    """Add to the typed commands those written as a heading or a line of their own over their output."""
    heads = dict[int, ShellStep]()
    source, before = "", ""
    for number, line in enumerate(lines):
        if number in typed:
            heads[number] = typed[number]
        elif heading := _heading_source(line, source, is_alone=not typed and not before.strip()):
            heads[number] = ShellStep(heading, "")
        elif _FENCE.match(line):
            line = ""
        source = heads[number].source if number in heads else source
        before = line
    return heads


def _heading_source(line: str, source: str, *, is_alone: bool) -> str:
    """Return the source that the line names for what follows; empty if none. ``ls`` itself names its folders."""
    if is_alone and _COMMAND.match(line) and _begins_with_program(line) and _is_known_command(line):
        return line
    match = _HEADING.match(line)
    if not match or not (match["begin"] or match["end"]) or len(match["source"].split()) > _MAX_WORDS:
        return ""
    seen = identify_source(match["source"])
    is_path = seen.subject.startswith("/") and not _IN_SOURCE.match(match["source"])
    is_section = match["source"] in source.split() and identify_source(source).kind == "listing"
    return match["source"] if (seen.words or is_path) and not is_section else ""


def _begins_with_program(line: str) -> bool:
    """Return True if the line begins with a program whose output is known."""
    seen, words = identify_source(line), line.removeprefix("sudo ").split()
    return seen.words[:1] == tuple(words[:1]) or (bool(seen.subject) and words[0] in {"cat", "head", "tail", "zcat"})


# ---- the pieces


def _split_at_heads(first: ShellStep, lines: Sequence[str], heads: _Heads, *, is_named: bool) -> Iterator[ShellStep]:
    """Yield the steps that begin at the lines ``heads``; the text before them belongs to ``first``."""
    prompts = {step.prompt for step in heads.values() if step.prompt}
    inside = " (in the container)" if identify_source(first.source).where == "container" else ""
    ends = [*heads, len(lines)]
    before = _drop_prompts(lines[: ends[0]], prompts)
    if before or not heads:
        yield from (replace(first, text=part) for part in ([before] if is_named else _split_paragraphs(before)))
    for (number, step), end in zip(heads.items(), ends[1:], strict=True):
        body = lines[number + 1 : end]
        body, rest = (body, ()) if is_named else _cut_at_fence(body)
        yield replace(step, source=step.source + inside, text=_drop_prompts(body, prompts))
        if after := _drop_prompts(rest, prompts):
            yield from (replace(first, text=part) for part in _split_paragraphs(after))


def _cut_at_fence(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return what one block of Markdown has of a command's output, and what is written behind the block."""
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    if not fences:
        return lines, ()
    is_opened = not any(line.strip() for line in lines[: fences[0]])
    begin, close = (fences[0] + 1, fences[1:2]) if is_opened and len(fences) > 1 else (0, fences[:1])
    rest = [*lines[close[0] + 1 :]]
    while rest and (not rest[-1].strip() or _FENCE.match(rest[-1])):  # the next block's beginning
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
    for paragraph in _BLANK.split(text, _MAX_PARAGRAPHS):
        other = identify_by_content(paragraph)
        # Behind a table and a blank line is no more of it; a file goes on.
        is_over = seen is not None and seen.kind in TABLES - {"file"}
        if part and (other or is_over) and other != seen:
            yield part
            part, seen = "", None
        part, seen = f"{part}\n\n{paragraph}" if part else paragraph, other or seen
    yield part


_BLANK: Final = Pattern(r"\n(?:[ \t]*\n)+")
# Nobody pastes more things without a word between them.
_MAX_PARAGRAPHS: Final = 300


# ---- the same command again

# A log has its later lines beside the earlier ones, and a program that failed once may fail again.
_KEEP_EVERY_ANSWER: Final[frozenset[Kind]] = frozenset(
    {"kernel-log", "journal", "unit-log", "kubernetes-log", "audit", "make-log", "application", "text"}
)
_FAILED_COMMAND: Final = Pattern(r"[Pp]ermission denied|not permitted|command not found|[Aa]ccess denied|must be root")
# At the same prompt another machine, or a container, may answer from here on.
_REMOTE_COMMAND: Final = Pattern(r"(?:sudo )?(?:ssh|docker|podman|kubectl|nerdctl|oc|chroot|su|exit|logout)\b")
_SHELL: Final = Pattern(r"[\w.+-]{1,40}[@㉿][\w.-]{1,80}")


def _keep_latest(typed: Sequence[ShellStep]) -> list[ShellStep]:
    """Drop steps whose command was repeated later at the same shell with an answer."""
    answered = set[tuple[str, ...]]()
    kept = list[ShellStep]()
    for step in reversed(typed):
        if _REMOTE_COMMAND.match(step.source):
            answered.clear()
        shell = _SHELL.search(step.prompt)
        question = (shell[0] if shell else step.prompt, *step.source.removeprefix("sudo ").split())
        is_lasting = not step.prompt or identify_source(step.source).kind in _KEEP_EVERY_ANSWER
        if is_lasting or question not in answered:
            kept.append(step)
        if not is_lasting and not _FAILED_COMMAND.search(step.text):
            answered.add(question)
    return kept[::-1]
