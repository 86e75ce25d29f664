from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts import machine
from gpunode.facts.model import Distro


def test_ordinary_os_release_is_parsed() -> None:
    text = 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nID_LIKE=debian\n'
    assert machine.parse_distro(text) == Distro("ubuntu", "24.04", "noble", "Ubuntu 24.04.1 LTS", ("debian",))


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NAME=plain", "plain"),
        ("NAME='single \"quoted\"'", 'single "quoted"'),
        (r'NAME="a \"b\" \$c \\ \` \d"', r'a "b" $c \ ` \d'),
        ("  NAME=indented", "indented"),
        ("# NAME=comment\nNAME=second", "second"),
        ("NAME=first\nNAME=last", "last"),
        ('NAME="never closed', ""),
        ("NAME=", ""),
    ],
)
def test_values_are_unquoted_like_a_shell(line: str, value: str) -> None:
    assert machine.parse_variables(line)["NAME"] == value


def test_os_release_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="neither ID nor NAME"):
        machine.parse_distro("HELLO=1\n")


@given(st.dictionaries(st.from_regex(r"\A[A-Z_]{1,12}\Z"), st.text(st.characters(exclude_characters="\n\r\0"))))
def test_quoted_values_round_trip(values: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        return '"' + "".join("\\" + c if c in '"\\$`' else c for c in value) + '"'

    assert machine.parse_variables("\n".join(f"{key}={quoted(value)}" for key, value in values.items())) == values


@given(st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    machine.parse_variables(text)
