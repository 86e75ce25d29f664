"""What was typed at a shell and pasted in one go, cut into commands and what each of them printed.

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
from gpunode.facts.sources import TABLES, Kind, by_looks, recognise


@dataclass(frozen=True)
class Step:
    """A command and what it printed.

    Attributes:
        source: the command, as a piece of evidence is named.
        prompt: that it was typed at; empty where none is shown.
    """

    source: str
    text: str
    prompt: str = ""


def steps(source: str, text: str) -> list[Step]:
    """The steps of ``text``; of a command that was typed again later at the same shell, the last answer alone."""
    text = cut_lines(text)
    lines = text.split("\n")
    seen = recognise(source)
    # A command's or a file's text has its own ways with a number sign, and with headings.
    is_named = bool(seen.words or seen.subject or seen.kind not in {"text", "application"})
    if not is_named:
        heads = _with_headings(lines, _typed(lines, is_named=False))
        return _latest([*_cut(Step(source, ""), lines, heads, is_named=False)])
    heads = _typed(lines, is_named=seen.kind != "shell-history") if len(text) <= _TRANSCRIPT else {}
    first = Step(source, "", next((step.prompt for step in heads.values()), ""))
    return _latest([*_cut(first, lines, heads, is_named=True)]) if heads else [Step(source, text)]


# Nobody types so much between two commands that a longer text would be one.
_TRANSCRIPT: Final = 100_000


# ---- where a command was typed

# What stands before a prompt: an environment of Python's, the time of day.
_BEFORE: Final = r"(?:\([\w.-]{1,30}\)\s*)?(?:\[[\d:./ -]{4,30}(?:[AP]M)?\]\s{1,2}(?=\S{1,40}@))?"
# A user, a host or a folder makes a prompt of what might be something else: "user@host:~$ lsmod",
# "[root@gpu1 ~]# lspci", "host:~ # dmesg", SUSE's and fish's "user@host:~>", zsh's "➜  ~ lsmod", PowerShell's
# "PS C:\Users\me>".
_PLACED: Final = (
    r"(?:\[[^\]\n]{0,60}[@~/][^\]\n]{0,60}\]\s?|[\w.+-]{1,40}@[^\s$#]{1,80}(?:[ :][^\s$#]{0,60})? ?"
    r"|[\w.-]{1,40}[: ] ?[~/][^\s$#]{0,60} ?)[$#%]"
    r"|[\w.+-]{1,40}@[\w.-]{1,80}[: ][~/][^\s$#>]{0,80}>|➜ {1,2}[~/][^\s:]{0,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?"
    r"|(?:PS )?[A-Z]:\\[^>\n]{0,80}>|PS [~/][^>\n]{0,80}>"
)
# "$ lsmod"; "+ lsmod" is a command as `set -x` shows it. A dollar sign begins no line of a program's own.
_PLAIN: Final = (
    r"➜ {1,2}[\w.-]{1,60}(?: git:\([^)\n]{1,60}\))?(?: ✗)?|[A-Za-z][\w.-]{0,39}%(?= )|[\w.-]{1,40}[$#](?= )|\$|❯"
    r"|\+{1,2}(?= [a-z])"
)
_PROMPT: Final = Pattern(rf"^{_BEFORE}(?:(?P<place>{_PLACED})|{_PLAIN}) ?(?<=[\s>])(?P<command>\S[^\n]*)$")
# The second line of zsh's prompts of two lines: "┌──(user㉿host)-[~]" above "└─$ lsmod".
_ABOVE: Final = Pattern(r"^[┌╭]─[^\n]{1,160}$")
_BELOW: Final = Pattern(r"^(?P<place>[└╰]─{1,3} ?[$#%❯>➤]?) (?P<command>\S[^\n]*)$")
# Root's prompt, and zsh's: a comment begins so, too.
_BARE: Final = Pattern(r"^(?P<place>)[#%] (?P<command>[a-z./]\S*[^\n]*)$")
# Beside another prompt a line of plain words is a remark.
_REMARK: Final = Pattern(r"\w+(?: \w+){2,}$")
# A prompt at which nothing was typed, or the first of two lines.
_IDLE: Final = Pattern(
    rf"{_BEFORE}(?:\[[^\]\n@]{{1,40}}@[^\]\n]{{1,60}}\] ?|[\w.+-]{{1,40}}@[\w.-]{{1,80}}[: ] ?[~/][^\s$#>]{{0,80}} ?)"
    r"[$#%>]\s*|[┌╭]─[^\n]{1,160}"
)
# Docker names a container so, and a shell in it shows that as its host.
_OF_CONTAINER: Final = Pattern(r"@[0-9a-f]{12}\b")

_Heads = Mapping[int, Step]


def _typed(lines: Sequence[str], *, is_named: bool) -> _Heads:
    """By their lines, the commands that were typed: known ones, and behind a prompt that is nothing else, every one."""
    above = ("", *lines)
    found = {
        number: match
        for number, line in enumerate(lines)
        if (match := _BELOW.match(line) if _ABOVE.match(above[number]) else _PROMPT.match(line))
    }
    bare = {number: match for number, line in enumerate(lines) if not is_named and (match := _BARE.match(line))}
    known = {number: match for number, match in bare.items() if _is_known(match["command"])}
    if not found:
        return {number: _step(match) for number, match in known.items() if len(known) > 1 or 0 in bare}
    found |= {number: match for number, match in known.items() if not _REMARK.match(match["command"])}
    found = dict(sorted(found.items()))
    first = min(found)
    is_session = not any(line.strip() and not _ABOVE.match(line) for line in lines[:first]) and lines[first][:1] != "+"
    return {
        number: _step(match)
        for number, match in found.items()
        if is_session or match["place"] or _is_known(match["command"])
    }


def _is_known(command: str) -> bool:
    return command.startswith("./") or recognise(command).kind not in {"text", "application"}


def _step(match: re.Match[str]) -> Step:
    inside = " (in the container)" if _OF_CONTAINER.search(match["place"] or "") else ""
    return Step(f"{match['command']}{inside}", "", match.string[: match.start("command")].strip())


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
_MOST_WORDS: Final = 12


def _with_headings(lines: Sequence[str], typed: _Heads) -> _Heads:
    """The commands that were typed, and those that stand over their output as a heading or as a line of their own."""
    heads = dict[int, Step]()
    source, before = "", ""
    for number, line in enumerate(lines):
        if number in typed:
            heads[number] = typed[number]
        elif heading := _heading(line, source, is_alone=not typed and not before.strip()):
            heads[number] = Step(heading, "")
        elif _FENCE.match(line):
            line = ""
        source = heads[number].source if number in heads else source
        before = line
    return heads


def _heading(line: str, source: str, *, is_alone: bool) -> str:
    """The source of what follows, where the line names one; ``ls`` itself names each of its folders."""
    if is_alone and _COMMAND.match(line) and _begins(line) and _is_known(line):
        return line
    match = _HEADING.match(line)
    if not match or not (match["begin"] or match["end"]) or len(match["source"].split()) > _MOST_WORDS:
        return ""
    seen = recognise(match["source"])
    is_path = seen.subject.startswith("/") and not _IN_SOURCE.match(match["source"])
    is_section = match["source"] in source.split() and recognise(source).kind == "listing"
    return match["source"] if (seen.words or is_path) and not is_section else ""


def _begins(line: str) -> bool:
    """Whether the line begins with the program whose output is known, and no words stand before it."""
    seen, words = recognise(line), line.removeprefix("sudo ").split()
    return seen.words[:1] == tuple(words[:1]) or (bool(seen.subject) and words[0] in {"cat", "head", "tail", "zcat"})


# ---- the pieces


def _cut(first: Step, lines: Sequence[str], heads: _Heads, *, is_named: bool) -> Iterator[Step]:
    """The steps that begin in the lines of ``heads``; what stands before them is of ``first``."""
    prompts = {step.prompt for step in heads.values() if step.prompt}
    inside = " (in the container)" if recognise(first.source).where == "container" else ""
    ends = [*heads, len(lines)]
    before = _without_prompts(lines[: ends[0]], prompts)
    if before or not heads:
        yield from (replace(first, text=part) for part in ([before] if is_named else _paragraphs(before)))
    for (number, step), end in zip(heads.items(), ends[1:], strict=True):
        yield replace(step, source=step.source + inside, text=_without_prompts(lines[number + 1 : end], prompts))


def _without_prompts(lines: Sequence[str], prompts: AbstractSet[str]) -> str:
    """The lines as one text, without prompts at which nothing was typed."""
    return "\n".join("" if line.strip() in prompts or _IDLE.fullmatch(line) else line for line in lines).strip("\n")


def _paragraphs(text: str) -> Iterator[str]:
    """The text, cut at blank lines behind which something else begins."""
    part, seen = "", None
    for paragraph in _BLANK.split(text, _MOST_PARAGRAPHS):
        other = by_looks(paragraph)
        # Behind a table and a blank line is no more of it; a file goes on.
        is_over = seen is not None and seen.kind in TABLES - {"file"}
        if part and (other or is_over) and other != seen:
            yield part
            part, seen = "", None
        part, seen = f"{part}\n\n{paragraph}" if part else paragraph, other or seen
    yield part


_BLANK: Final = Pattern(r"\n(?:[ \t]*\n)+")
# Nobody pastes more things without a word between them.
_MOST_PARAGRAPHS: Final = 300


# ---- the same command again

# A log has its later lines beside the earlier ones, and a program that failed once may fail again.
_LASTING: Final[frozenset[Kind]] = frozenset(
    {"kernel-log", "journal", "unit-log", "kubernetes-log", "audit", "make-log", "application", "text"}
)
_REFUSED: Final = Pattern(r"[Pp]ermission denied|not permitted|command not found|[Aa]ccess denied|must be root")
# At the same prompt another machine, or a container, may answer from here on.
_ELSEWHERE: Final = Pattern(r"(?:sudo )?(?:ssh|docker|podman|kubectl|nerdctl|oc|chroot|su|exit|logout)\b")
_SHELL: Final = Pattern(r"[\w.+-]{1,40}[@㉿][\w.-]{1,80}")


def _latest(typed: Sequence[Step]) -> list[Step]:
    """Without those whose command was typed again later at the same shell, and answered."""
    answered = set[tuple[str, ...]]()
    kept = list[Step]()
    for step in reversed(typed):
        if _ELSEWHERE.match(step.source):
            answered.clear()
        shell = _SHELL.search(step.prompt)
        question = (shell[0] if shell else step.prompt, *step.source.removeprefix("sudo ").split())
        is_lasting = not step.prompt or recognise(step.source).kind in _LASTING
        if is_lasting or question not in answered:
            kept.append(step)
        if not is_lasting and not _REFUSED.search(step.text):
            answered.add(question)
    return kept[::-1]
