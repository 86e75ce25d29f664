"""What a person is told who typed something that gpunode does not take."""

from __future__ import annotations

import pytest

from gpunode.cli.boundary import run
from gpunode.cli.compose import Wanted
from gpunode.errors import UsageError


@pytest.mark.parametrize(
    ("wanted", "what", "allowed"),
    [
        (Wanted(runtime="lxc"), '--runtime cannot be "lxc"', "podman"),
        (Wanted(driver="newest"), '--driver cannot be "newest"', "580.178.04"),
    ],
)
def test_an_option_is_named_as_it_was_typed_and_not_as_a_file(wanted: Wanted, what: str, allowed: str) -> None:
    with pytest.raises(UsageError) as stopped:
        wanted.read()
    assert stopped.value.what == what
    assert allowed in stopped.value.why
    assert "recipe check" not in stopped.value.hint


@pytest.mark.parametrize(("typed", "begins"), [([], "Usage: gpunode [OPTIONS]"), (["recipe"], "Usage: gpunode recipe")])
def test_no_command_at_all_shows_the_help(typed: list[str], begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed) == 2
    assert capsys.readouterr().err.startswith(begins)


def test_a_wrong_option_leads_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--nosuch"]) == 2
    assert "`gpunode plan --help`" in capsys.readouterr().err


def test_nobody_waits_a_negative_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["setup", "--lock-timeout", "-5"]) == 2
    assert "--lock-timeout" in capsys.readouterr().err
