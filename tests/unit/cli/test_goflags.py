"""Options in the form of Go's programs."""

from __future__ import annotations

import pytest

from gpunode.cli.goflags import parse_bool, translate_go_flags, translate_group_options
from gpunode.errors import UsageError

FLAGS = {"--dry-run": "--dry-run", "--cdi.enabled": "--cdi.enabled", "--enable-cdi": "--cdi.enabled", "-d": "-d"}
VALUED = frozenset({"--config", "--runtime"})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--dry-run"], ["--dry-run"]),
        (["--dry-run=true"], ["--dry-run"]),
        (["--dry-run=1", "--config", "x"], ["--dry-run", "--config", "x"]),
        (["--dry-run=false"], []),
        (["--cdi.enabled", "--enable-cdi=F"], []),
        (["--cdi.enabled=false", "--enable-cdi"], ["--enable-cdi"]),
        (["--dry-run", "--dry-run=true"], ["--dry-run"]),
        (["--config=--dry-run", "--dry-run=0"], ["--config=--dry-run"]),
        (["--config", "--dry-run", "--dry-run=0"], ["--config", "--dry-run"]),
        (["--config"], ["--config"]),
        (["--config="], ["--config="]),
        (["--", "--dry-run=false"], ["--", "--dry-run=false"]),
        (["-d", "--unknown=true"], ["-d", "--unknown=true"]),
        (["-dry-run"], ["--dry-run"]),
        (["-dry-run=false"], []),
        (["-runtime=docker", "-config", "-dry-run"], ["--runtime=docker", "--config", "-dry-run"]),
        (["-unknown", "--", "-dry-run"], ["-unknown", "--", "-dry-run"]),
    ],
)
def test_options_are_read_as_go_reads_them(typed: list[str], meant: list[str]) -> None:
    assert translate_go_flags(typed, FLAGS, VALUED) == meant


@pytest.mark.parametrize("value", ["1", "t", "T", "true", "TRUE", "True"])
def test_go_true_values_are_parsed(value: str) -> None:
    assert parse_bool("--dry-run", value)


@pytest.mark.parametrize("value", ["0", "f", "F", "false", "FALSE", "False"])
def test_go_false_values_are_parsed(value: str) -> None:
    assert not parse_bool("--dry-run", value)


@pytest.mark.parametrize("value", ["", "yes", "no", "tRUE", "2"])
def test_invalid_boolean_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="neither true nor false"):
        translate_go_flags([f"--dry-run={value}"], FLAGS, VALUED)


def test_group_options_leave_the_words_of_the_command_alone() -> None:
    class Quiet:
        param_type_name, is_flag, opts = "option", True, ("-q", "--quiet")

    typed = ["--quiet=false", "runtime", "configure", "--dry-run=false", "-runtime"]
    assert translate_group_options([Quiet()], typed) == typed[1:]
