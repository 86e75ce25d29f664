"""Undo what websites, mail programs, terminals and people do to text when they copy it.

Each step is made only if it cannot be mistaken: a program's own output stays as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final

from gpunode.facts.patterns import Pattern

# A longer text is the log of a program, and not a person's post.
_MAX_POST: Final = 200_000
FENCE: Final = Pattern(r"^[ \t]*(?:```|~~~)")


def strip_markup(text: str) -> str:
    """Return the text as it was before it was pasted: without HTML, quotation marks, indentation and hard wraps."""
    if len(text) > _MAX_POST:
        return text
    lines = ["```" if _CODE_TAG_LINE.match(line) else line for line in _convert_html(text).split("\n")]
    lines = _strip_quotation_marks(_strip_line_numbers(lines))
    lines = list(_dedent_blocks(lines))
    return "\n".join(_join_wrapped_lines(lines))


# ---- HTML, and the tags of forums and of Jira

_HTML_BLOCK: Final = Pattern(r"<(?:pre|code|details|summary|br|p|div)\b[^<>\n]{0,200}>", re.IGNORECASE)
# Not all: "?a=1&copy=2" is a link.
_HTML_ENTITY: Final = Pattern(r"&(?:lt|gt|amp|quot|apos|nbsp|#39|#x27|#34|#160);")
# In this order: each pattern, and what replaces it.
_HTML_REPLACEMENTS: Final = tuple(
    (Pattern(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"<br\b[^<>\n]*>\n?|</(?:p|div|li|h[1-6])>\n?", "\n"),
        (r"<pre\b[^<>\n]*>\s*(?:<code\b[^<>\n]*>)?\n?|\n?(?:</code>\s*)?</pre>", "\n```\n"),
        (r"<code\b[^<>\n]*>([^<>\n]*)</code>", r"`\1`"),
        (r"</?code\b[^<>\n]*>", "\n```\n"),
        (
            r"<summary\b[^<>\n]*>(?:</?(?:b|strong|h[1-6])>)?([^\n]{0,300}?)(?:</?(?:b|strong|h[1-6])>)?</summary>",
            r"\n## \1\n",
        ),
        (r"<h[1-6]\b[^<>\n]*>\s?", "\n## "),
        (r"<li\b[^<>\n]*>\s?", "\n- "),
        (r"</?(?:details|summary|blockquote|p|div|span|b|strong|em|i|kbd|samp|tt|ul|ol|li|h[1-6])\b[^<>\n]*>", ""),
    )
)
_CODE_TAG_LINE: Final = Pattern(r"^\s*(?:\[/?code(?:=\w+)?\]|\{(?:code|noformat)(?::[^}\n]{0,80})?\})\s*$")


def _convert_html(text: str) -> str:
    """Return the text with Markdown in place of HTML, and with characters in place of their entities."""
    if "<!--" in text and not text.lstrip().startswith("<?xml"):
        text = "".join(_quote_comments(text))
    if "<" in text and _HTML_BLOCK.search(text):
        for pattern, replacement in _HTML_REPLACEMENTS:
            text = pattern.sub(replacement, text)
    return _HTML_ENTITY.sub(lambda match: html.unescape(match[0]).replace("\xa0", " "), text) if "&" in text else text


def _quote_comments(text: str) -> Iterator[str]:
    """Yield the parts of the text, with comments as quotations: templates of issues have examples in them."""
    first, *rest = text.split("<!--")
    yield first
    for part in rest:
        comment, end, after = part.partition("-->")
        quoted = "\n".join(f"> {line.strip()}" for line in comment.strip().split("\n"))
        yield f"\n{quoted}\n\n{after}" if end else f"<!--{part}"


# ---- what stands before each line

_QUOTATION_MARK: Final = Pattern(r"> ?")
_MAX_QUOTATION_DEPTH: Final = 8
_PROMPT: Final = Pattern(
    r"(?:\$|❯|[\w.+-]{1,40}@[^\s$#]{1,80}(?:[ :][^\s$#]{0,60})? ?[$#%]|\[[^\]\n]{1,80}\]\s?[$#]) \S"
)
# A person's list has a dot or a space behind the number or colon, and a shell's history two spaces.
_LINE_NUMBER: Final = Pattern(r"(?! *1  \S| *\d+: \S)[ \t]*(?P<number>\d{1,6})(?:\t|[:|] ?|  ?(?:\| ?)?|$)")
_MIN_NUMBERED_LINES: Final = 4


def _strip_quotation_marks(lines: list[str]) -> list[str]:
    """Return the lines of a session without marks of quotation if all have one; other quotations stay somebody's."""
    bare = lines
    for _ in range(_MAX_QUOTATION_DEPTH):
        marked = [line for line in bare if line.strip()]
        if not all(line.startswith(">") for line in marked):
            return bare if _PROMPT.match(marked[0]) else lines
        bare = [_QUOTATION_MARK.sub("", line, 1) for line in bare]
    return lines


def _strip_line_numbers(lines: list[str]) -> list[str]:
    """Return the lines without the numbers of an editor or a website if all are numbered from 1."""
    if len(lines) < _MIN_NUMBERED_LINES:
        return lines
    matches = [_LINE_NUMBER.match(line) for line in lines]
    while matches and matches[-1] is None and not lines[len(matches) - 1].strip():
        matches.pop()
    if not all(match and int(match["number"]) == number for number, match in enumerate(matches, 1)):
        return lines
    return [line[match.end() :] for line, match in zip(lines, matches, strict=False) if match]


# ---- indentation

# How outputs begin that are never indented: kernel logs, journals, nvidia-smi, lspci.
_OUTPUT_START: Final = Pattern(
    r"\[ {0,5}\d{1,9}\.\d{6}\] |[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S|\d{4}-\d\d-\d\dT\S{8,30} \S|\+-{20}"
    r"|(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d |NVIDIA-SMI has failed|Failed to initialize NVML"
)


def _dedent_blocks(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines, with fenced blocks at the margin, and with sessions there as blocks: Markdown indents both.

    A session is not moved if the text above it is indented alike, as in a docstring or a commit, or if the whole text
    is a session: then a program has indented it.
    """
    at, above, is_session = 0, "", False
    while at < len(lines):
        margin = inner = _indentation(lines[at])
        is_session |= not margin and bool(_PROMPT.match(lines[at]))
        end = at + 1
        fences: Sequence[str] = ()
        if margin and FENCE.match(lines[at]):
            # Some indent the fences alone. YAML would lose its shape if only its deeper lines moved.
            first = next(filter(str.strip, lines[end:]), "")
            inner = margin if first.startswith(margin) else _indentation(first)
            end = next((number for number in range(end, len(lines)) if FENCE.match(lines[number])), len(lines)) + 1
        elif margin and not is_session and not above.startswith(margin) and _begins_session(lines, at):
            within = (number for number in range(end, len(lines)) if not _is_within(margin, lines[number]))
            end, fences = next(within, len(lines)), ("```",)
        block = lines[at:end]
        yield from (
            *fences,
            *(
                line.removeprefix(margin if FENCE.match(line) else inner) if fences or len(block) > 1 else line
                for line in block
            ),
            *fences,
        )
        above = next((line for line in reversed(block) if line.strip()), above)
        at = end


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_within(margin: str, line: str) -> bool:
    return line.startswith(margin) or not line.strip()


def _begins_session(lines: Sequence[str], at: int) -> bool:
    """Return whether the line is a typed command, or below an empty line one that programs never indent."""
    line, before = lines[at].lstrip(), lines[at - 1] if at else ""
    return bool(_PROMPT.match(line) or (not before.strip() and _OUTPUT_START.match(line)))


# ---- lines broken at the width of a terminal

_MIN_WIDTH: Final = 72
_MAX_WIDTH: Final = 400
_MIN_WRAPPED_LINES: Final = 3
_MIN_SHARE: Final = 0.7
# How lines begin that continue no other: prompts, times, rows of tables, levels.
_LINE_START: Final = Pattern(
    r"[\[|+$#>{}`]|[*-] |\S{1,80}[@:]\S{0,80}[$#] |\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:|[IWEF]\d{4} "
    r"|[0-9a-f]{2,4}:[0-9a-f.:]{4,8} |(?:ii|rc|hi|un) |NVRM: |(?:time|level|ts)=|\s"
)
_TABLE_ROW: Final = Pattern(r"[|+].*[|+]$")
_NUMBER: Final = Pattern(r"[\dA-Fa-f]*\d[\dA-Fa-f]*")


def _join_wrapped_lines(lines: Sequence[str]) -> Iterator[str]:
    """Return an iterator over the lines, those joined that a terminal broke at its width.

    Broken ones have the full width, and are followed by a rest that begins like no line of its own and is mostly
    shorter, unlike the next row of a table.
    """
    width = max(map(len, lines), default=0)
    full = [at for at, line in enumerate(lines[:-1]) if len(line) == width]
    broken = {at for at in full if _is_rest(lines[at], lines[at + 1])}
    ended = sum(len(lines[at + 1]) < width for at in broken)
    is_wrapped = _MIN_WIDTH <= width <= _MAX_WIDTH and ended >= max(_MIN_WRAPPED_LINES, _MIN_SHARE * len(full))
    joined = ""
    for at, line in enumerate(lines):
        joined += line
        if not (is_wrapped and at in broken):
            yield joined
            joined = ""


def _is_rest(line: str, following: str) -> bool:
    return (
        bool(following)
        and not _LINE_START.match(following)
        and not _TABLE_ROW.match(line)
        and _beginning_of(line) != _beginning_of(following)
    )


def _beginning_of(line: str) -> str:
    """Return what the rows of a table without a frame begin with: they differ in their numbers and addresses."""
    return _NUMBER.sub("0", line[:40])[:4]
