"""Messages for input that gpunode does not accept."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from gpunode.cli.app import HELP_GROUPS, app
from gpunode.cli.boundary import run_cli
from gpunode.cli.inputs import RecipeOptions
from gpunode.errors import UsageError


@pytest.mark.parametrize(
    ("wanted", "what", "allowed"),
    [
        (RecipeOptions(runtime="lxc"), '--runtime cannot be "lxc"', "podman"),
        (RecipeOptions(driver="newest"), '--driver cannot be "newest"', "580.178.04"),
    ],
)
def test_mistyped_option_value_is_named_and_not_taken_for_a_file(
    wanted: RecipeOptions, what: str, allowed: str
) -> None:
    with pytest.raises(UsageError) as stopped:
        wanted.load()
    assert stopped.value.what == what
    assert allowed in stopped.value.why
    assert "recipe check" not in stopped.value.hint


@pytest.mark.parametrize(("typed", "begins"), [([], "Usage: gpunode [OPTIONS]"), (["recipe"], "Usage: gpunode recipe")])
def test_missing_command_shows_the_help(typed: list[str], begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(typed) == 2
    assert capsys.readouterr().err.startswith(begins)


def test_wrong_option_points_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["plan", "--nosuch"]) == 2
    assert "`gpunode plan --help`" in capsys.readouterr().err


def test_negative_lock_timeout_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["setup", "--lock-timeout", "-5"]) == 2
    assert "--lock-timeout" in capsys.readouterr().err


def test_capture_and_image_are_not_planned_for_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["plan", "containerd", "--node", "debian12-gtx1080", "--root", str(tmp_path)]) == 2
    assert "--node cannot be used with --root" in capsys.readouterr().err


def test_image_is_not_rebooted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "etc").mkdir()
    assert run_cli(["setup", "containerd", "--root", str(tmp_path), "--reboot"]) == 2
    assert "--reboot cannot be used with --root" in capsys.readouterr().err


@pytest.mark.parametrize("width", ["80", "50"])
def test_help_lists_every_command_in_a_group_without_cutting(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert run_cli(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "..." not in shown.partition("Set up:")[2]
    assert max(map(len, shown.splitlines())) <= int(width)
    commands = typer.main.get_command(app).list_commands(None)  # type: ignore[attr-defined]
    assert {name for names in HELP_GROUPS.values() for name in names} == set(commands)
    if width == "80":
        assert sum(line.startswith("  ") for line in shown.partition("Set up:")[2].splitlines()) == len(commands)


def test_shipped_sample_is_named_without_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["status", "--node", "debian12-gtx1080"]) == 0
    assert "GTX 1080" in capsys.readouterr().out


def test_mistyped_step_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["plan", "--only", "runtime-conf", "--node", "debian12-gtx1080"]) == 2
    assert "did you mean --only runtime-config?" in capsys.readouterr().err


def test_steps_with_commas_are_answered_with_an_option_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["setup", "--only", "toolkit,runtime-conf"]) == 2
    assert "did you mean --only toolkit --only runtime-config?" in capsys.readouterr().err


def test_unknown_step_beside_a_known_one_is_named_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["plan", "--only", "toolkit, nonsense"]) == 2
    error = capsys.readouterr().err
    assert "there is no step nonsense\n" in error
    assert "did you mean" not in error
    assert "each with its own --only" in error


@pytest.mark.parametrize("other", ["--root=/mnt", "--gpu=H100", "--reboot"])
def test_download_only_contradicts_other_options(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["setup", "--download-only", other]) == 2
    assert f"--download-only cannot be used with {other.partition('=')[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        ["remove", "--root", "", "--yes"],
        ["setup", "--lock="],
        ["plan", "--node", ""],
        ["status", "--gpu="],
        ["doctor", ""],
    ],
)
def test_argument_that_an_unset_variable_leaves_empty_is_refused(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(typed) == 2
    assert "empty" in capsys.readouterr().err


def test_gpu_option_that_lists_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["plan", "containerd", "--node", "debian12-gtx1080", "--gpu", ","]) == 2
    assert "--gpu , names no GPU" in capsys.readouterr().err
