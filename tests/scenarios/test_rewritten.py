"""Every report reordered, as a terminal transcript, and with other spellings of its sources: the same cause."""

from __future__ import annotations

import re

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.sources import identify_source
from tests.scenarios.reports import Piece, Report, faults, reports, roots, some_reports

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
    assert faults(diagnose(take_snapshot(pasted.parse_text_report(transcript)))) == roots(report.evidence)


@pytest.mark.parametrize("report", some_reports("order and wording"), ids=lambda report: report.name)
def test_order_and_source_spelling_change_nothing(report: Report) -> None:
    assert faults_of(report, _NUMBERS[report]) == roots(report.evidence)


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
