"""Every report reordered, as a transcript, as a post, and with other spellings of its sources: the same cause."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator
from typing import Final

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.markup import strip_markup
from gpunode.facts.sources import identify_source
from tests.scenarios.reports import Piece, Report, faults, faults_in, reports, roots, some_reports

_NUMBERS = {report: number for number, report in enumerate(reports())}
# Their pieces are parts of one log in order of time.
IN_ORDER = {"xids/62-crashcat-5080"}
_PROMPTS = ("$ ", "# ", "root@gpu-node-17:~# ", "[admin@gpu1 ~]$ ", "user@host:~/work$ sudo ", "(base) me@box:~$ ")
_PROMPT = re.compile(r"^\s*[\w.-]{0,40}[$#] ")
# A prompt that shows the host of its command stays.
_PLACED = re.compile(r"^\S+@\S+:\S*[$#] ")


def _command(source: str) -> str:
    """Return the command that shows the source; a source in words is returned unchanged."""
    plain = _PROMPT.sub("", source)
    return f"cat {plain}" if re.fullmatch(r"/\S+", plain) else plain


def _typed_command(prompt: str, piece: Piece) -> str:
    command = _command(piece["source"])
    if _PLACED.match(command):
        return f"{command}\n{piece['text']}\n"
    is_command = bool(identify_source(command).words) or command.startswith("cat ")
    # "#" would start a comment, and sudo only precedes a command.
    plain = prompt.replace("sudo ", "") if not is_command else prompt
    return f"{'$ ' if plain == '# ' and not is_command else plain}{command}\n{piece['text']}\n"


@pytest.mark.parametrize("report", some_reports("transcripts"), ids=lambda report: report.name)
def test_transcript_has_the_same_diagnosis(report: Report) -> None:
    prompt = _PROMPTS[_NUMBERS[report] % len(_PROMPTS)]
    transcript = "".join(_typed_command(prompt, piece) for piece in report.evidence)
    assert faults(diagnose(take_snapshot(pasted.parse_text_report(transcript)))) == faults_in(report)


def _is_command_or_path(source: str) -> bool:
    seen = identify_source(source)
    return len(source.split()) <= 12 and source.isascii() and (bool(seen.words) or seen.subject.startswith("/"))


def _make_posts(report: Report) -> Iterator[str]:
    """Yield the report as people post it: on GitHub, in mail, on forums."""
    steps = [(_command(piece["source"]), piece["text"].strip("\n")) for piece in report.evidence]
    session = "".join(f"$ {command}\n{text}\n" for command, text in steps)
    yield "".join(f"<details><summary>{one}</summary>\n\n```\n{text}\n```\n\n</details>\n\n" for one, text in steps)
    yield "".join(f"1. Run `{one}`:\n\n   ```\n{textwrap.indent(text, '   ')}\n   ```\n\n" for one, text in steps)
    yield f"It does not work.\n\n{textwrap.indent(session, '    ')}\nWhat can I do?\n"
    yield textwrap.indent(session, "> ", lambda line: True)
    yield f"<p>Hello,</p><pre><code>{html.escape(session)}</code></pre>"
    yield "".join(f"{number:6d}\t{line}\n" for number, line in enumerate(session.splitlines(), 1))


_OTHERWISE_IN_POSTS: Final = {
    "containerd/rke2-toolkit-told-the-generated-file": "its command is in the text, and the source only names it",
    "frameworks/too-old-first-nvidia-docker": "nvidia-docker is no command of today's lists",
    "versions/pending-rsyslog-escapes": "two lines are too few to be numbered ones",
}
# A person's label for a piece, in place of a command or a path, tells nothing in a post.
_OF_COMMANDS: Final = [
    report
    for report in some_reports("posts")
    if report.name not in _OTHERWISE_IN_POSTS
    and all(_is_command_or_path(_command(piece["source"])) for piece in report.evidence)
]


@pytest.mark.parametrize("report", _OF_COMMANDS, ids=lambda report: report.name)
def test_post_has_the_same_diagnosis(report: Report) -> None:
    for post in _make_posts(report):
        assert faults(diagnose(take_snapshot(pasted.parse_text_report(post)))) == faults_in(report), post


@pytest.mark.parametrize("report", some_reports("programs"), ids=lambda report: report.name)
def test_output_of_a_program_is_not_taken_for_a_post(report: Report) -> None:
    for piece in report.evidence:
        assert strip_markup(piece["text"]) == piece["text"]


@pytest.mark.parametrize("report", some_reports("order and wording"), ids=lambda report: report.name)
def test_order_and_source_spelling_change_nothing(report: Report) -> None:
    assert faults_of(report, _NUMBERS[report]) == faults_in(report)


def faults_of(report: Report, number: int) -> tuple[str, ...]:
    pieces = list(report.evidence)
    if report.name not in IN_ORDER:
        pieces.reverse()
    return roots([{**piece, "source": _otherwise(piece["source"], number)} for piece in pieces])


_KERNEL_LOG = ("journalctl -k", "sudo dmesg", "journalctl -b -k --no-pager", "/var/log/dmesg", "kernel log")


def _otherwise(source: str, number: int) -> str:
    """Return the same source in another spelling, by turns."""
    command = _command(source)
    if _PLACED.match(command):
        return command
    if command == "dmesg":
        return _KERNEL_LOG[number % len(_KERNEL_LOG)]
    if command.startswith("journalctl -k"):
        return ("dmesg", "sudo " + command)[number % 2] if command == "journalctl -k" else f"sudo {command}"
    if identify_source(command).words:
        return (f"sudo {command}", f"$ {command}", f"root@node:~# {command}")[number % 3]
    return command
