"""The laws of remedies: a command that doctor prints says what this program wrote, whoever wrote the evidence."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.diagnoses import commands, rules
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from tests.laws.reports import wholes
from tests.laws.systems import SYSTEMS
from tests.scenarios.reports import diagnosis

Rows = tuple[tuple[str, str], ...]

MARK = "Pw9"
# What is put after a word of the evidence: each would make it more than one word, or another, to the shell.
HOSTILE = (
    *(f";{MARK}", f"$({MARK})", f"`{MARK}`", f"${{IFS}}{MARK}", f"|{MARK}", f"&&{MARK}", f">{MARK}", f"'{MARK}"),
    *(f'"{MARK}', f" {MARK}", f"\n{MARK}", f"*{MARK}", f"?{MARK}", f"/../../{MARK}", f"/..{MARK}", f"\\{MARK}"),
    *(f"\x1b[2J{MARK}", f"#{MARK}", f"{{a,{MARK}}}", f"\u202e{MARK}", f"~{MARK}", f"!{MARK}", f"%s{MARK}"),
)
QUOTED = re.compile(r"'[^']*'")
HARMLESS = re.compile(r"[\w./:=@+,~%\"-]*", re.ASCII)
# What is below these may go with all that is in it; one version in DKMS's tree, no more.
TREES = re.compile(r"/var/lib/dkms/nvidia[a-z0-9-]*/\d[\w.+~-]*")


def printed(found: Diagnosis) -> Iterator[str]:
    """Every command that the diagnosis has a person type."""
    for finding in found.findings:
        for fix in finding.remedy:
            yield from fix.commands


def of_rows(rows: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(printed(diagnosis({"source": source, "text": text} for source, text in rows)))


@cache
def all_printed() -> tuple[str, ...]:
    """Every command over all scenarios, and of every cause on every kind of system."""
    found = {command for rows in wholes() for command in of_rows(rows)}
    for evidence in SYSTEMS.values():
        for rule in rules().values():
            for fix in rule.remedy(snapshot(pasted.evidence(evidence))):
                found.update(fix.commands)
    return tuple(sorted(found))


@cache
def taken() -> tuple[tuple[Rows, str], ...]:
    """Scenarios, each with a word that one of its commands has taken from its evidence; one for each such command."""
    constant = {word for rule in rules().values() for fix in rule.remedy(snapshot({})) for c in fix.commands
                for word in _words(c)}  # fmt: skip
    found: dict[tuple[str, str], tuple[Rows, str]] = {}
    for rows in wholes():
        said = "\n".join(part for row in rows for part in row)
        for command in of_rows(rows):
            for word in _words(command):
                if len(word) > 2 and word not in constant and word in said:
                    shape = " ".join(command.split()[:3])
                    found.setdefault((shape, re.sub(r"\d+", "0", word)), (rows, word))
    return tuple(found.values())


def _words(command: str) -> set[str]:
    """The words of a command, and what they are made of."""
    words = re.findall(r"[\w./:@+~-]+", command)
    parts = (part for word in words for part in (word, *re.split(r"[/=]", word), re.sub(r"^[a-z-]+-(?=\d)", "", word)))
    return set(parts)


def faults(command: str) -> Iterator[str]:
    """What is wrong with a command that was printed for hostile evidence."""
    if not command.isprintable():
        yield "a character that no terminal shows"
    outside = QUOTED.sub("", command.replace("'\"'\"'", ""))
    for word in outside.split():
        if MARK in word and not HARMLESS.fullmatch(word.rstrip(";")):
            yield f"outside of quotes: {word}"
    yield from too_much(command)


def too_much(command: str) -> Iterator[str]:
    """What of a command takes away more than it names."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    for number, word in enumerate(words):
        if word in {"rm", "unlink", "rmdir"}:
            operands = []
            for operand in words[number + 1 :]:
                if set(operand) <= set(";|&()"):
                    break
                operands.append(operand)
            yield from _removed(operands)
        if word in {"remove", "purge", "-Rns", "erase", "autoremove"}:
            yield from (f"packages by a pattern: {one}" for one in words[number + 1 :] if set(one) & set("*?$`"))


def _removed(operands: list[str]) -> Iterator[str]:
    whole = any(operand.startswith("-") and "r" in operand.lower() for operand in operands)
    for operand in operands:
        if operand.startswith("-") or operand == "$f":
            continue
        if set(operand) & set("*?[]{}$`") or ".." in operand.split("/") or not operand.startswith("/"):
            yield f"rm of {operand}"
        elif whole and not TREES.fullmatch(operand):
            yield f"rm -r of {operand}"


@pytest.mark.usefixtures("allow_subprocess")
def test_every_command_is_one_for_the_shell() -> None:
    script = "".join(f"{command}\n" for command in all_printed())
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_no_command_takes_away_more_than_it_names() -> None:
    assert [(command, fault) for command in all_printed() for fault in too_much(command)] == []


def test_commands_do_take_words_from_the_evidence() -> None:
    assert len(taken()) > 30


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_no_word_of_the_evidence_reaches_the_shell_unquoted(hostile: str) -> None:
    wrong = []
    for rows, word in taken():
        changed = tuple(
            (source.replace(word, word + hostile), text.replace(word, word + hostile)) for source, text in rows
        )
        wrong += [(word, command, fault) for command in of_rows(changed) for fault in faults(command)]
    assert wrong == []


@pytest.mark.parametrize("hostile", ["-", "--", "../", "/", "$(Pw9)", "=", "~/"])
def test_no_word_of_the_evidence_becomes_an_option_or_another_place(hostile: str) -> None:
    wrong = []
    for rows, word in taken():
        changed = tuple(
            (source.replace(word, hostile + word), text.replace(word, hostile + word)) for source, text in rows
        )
        wrong += [(word, command, fault) for command in of_rows(changed) for fault in faults(command)]
    assert wrong == []


MODULE = (
    ("lsmod", "Module Size Used by\next4 1 0\n"),
    (
        "modinfo nvidia",
        "filename: /lib/modules/6.1.0-18-amd64/updates/dkms/nvidia.ko\nversion: 580.65.06\nlicense: NVIDIA\n",
    ),
    ("lspci -nnk", "01:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20f1]"),
    ("uname -r", "6.1.0-18-amd64"),
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_files_name_is_one_word(hostile: str) -> None:
    for place, text in (
        (f"/etc/modprobe.d/x{hostile}.conf", "blacklist nvidia\n"),
        (f"/etc/ld.so.conf.d/x{hostile}", "/usr/local/cuda/lib64/stubs\n"),
        ("/etc/ld.so.conf.d/x.conf", f"/usr/local/cuda/stubs{hostile}\n"),
    ):
        stub = ("ldconfig -p", "libcuda.so.1 (libc6,x86-64) => /usr/local/cuda/lib64/stubs/libcuda.so.1")
        for rows in (((place, text), *MODULE), ((place, text), stub, *MODULE)):
            assert [fault for command in of_rows(rows) for fault in faults(command)] == []


@pytest.mark.parametrize("version", ["..", ".", "...", "", "*", "../../.."])
def test_what_is_no_version_takes_nothing_out_of_the_tree(version: str) -> None:
    file = f"/var/lib/dkms/nvidia/{version}/source/dkms.conf"
    said = f"Error! Could not locate dkms.conf file.\nFile: {file} does not exist."
    assert not [one for one in of_rows((("dkms status", said), ("uname -r", "6.1.0-18-amd64"))) if " rm " in one]


def test_the_loaders_files_stay_where_they_are() -> None:
    stub = ("ldconfig -p", "libcuda.so.1 (libc6,x86-64) => /usr/local/cuda/lib64/stubs/libcuda.so.1")
    for place in ("/etc/ld.so.conf.d/*.conf", "/etc/ld.so.conf.d/libc.conf"):
        found = of_rows(((place, "/usr/local/lib\n/usr/local/cuda/lib64/stubs\n"), stub))
        assert found
        assert not [one for one in found if " rm " in one or "*" in QUOTED.sub("", one)]


@given(st.lists(st.text(), min_size=1))
def test_a_command_is_its_words(words: list[str]) -> None:
    assert shlex.split(commands.command(*words)) == words


@given(st.text() | st.sampled_from(HOSTILE).map("/etc/x".__add__))
def test_a_sound_word_needs_no_quotes_but_a_path(word: str) -> None:
    for is_sound in (commands.is_package, commands.is_unit, commands.is_release, commands.is_name, commands.is_gpu):
        if is_sound(word):
            assert shlex.quote(word).strip("'") == word
            assert not word.startswith(("-", "/", ".", "~"))
    if commands.is_path(word):
        assert word.isprintable()
        assert not set(word.split("/")) & {".", ".."}
