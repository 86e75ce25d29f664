"""Modes of a command, such as ``rollback --list``, refuse the options that they would ignore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group

from gpunode.cli import app
from gpunode.cli.boundary import run_cli

COMMANDS: Any = get_group(app.app).commands
# The words of each mode, and the options that it uses or that choose another mode.
MODES = {
    ("rollback", "--list"): {"--list", "--root", "--json", "--verbose"},
    ("rollback", "k3"): {"--list", "--context", "--kubeconfig", "--yes", "--json", "--verbose"},
    ("doctor", "--npd"): {"--npd"},
    ("gpus", "--gpu", "Tesla T4"): {"--gpu", "--json"},
    # The permissions are those of the setup that later installs what was downloaded.
    ("setup", "--download-only"): {
        *("--runtime", "--driver", "--driver-source", "--cuda-toolkit", "--remove-runfile-driver", "--upgrade"),
        *("--lock", "--only", "--lock-timeout", "--download-only", "--json", "--verbose"),
        *("--yes", "--allow-disruption", "--allow-loss", "--mok-password-file"),
    },
}


def unused_options() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the words of each mode, and each option with a value that the mode does not use."""
    for mode, used in MODES.items():
        options = [param for param in COMMANDS[mode[0]].params if param.param_type_name == "option"]
        assert used <= {param.opts[-1] for param in options}
        for param in options:
            if param.opts[-1] not in used:
                yield mode, (param.opts[-1], *(() if param.is_flag else ("9",)))


@pytest.mark.parametrize(("mode", "option"), [*unused_options()], ids=lambda words: " ".join(words))
def test_mode_refuses_an_option_that_it_does_not_use(
    mode: tuple[str, ...], option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([*mode, *option]) == 2
    answer = "".join(capsys.readouterr())
    assert "cannot be used with" in answer or "must be given alone" in answer


def test_refusal_names_the_options_of_a_cluster_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["rollback", "k3", "--packages", "--yes", "--lock-timeout", "600"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "--packages, --lock-timeout cannot be used with k3, a run that changed a cluster" in error
    assert "takes only --yes, --context, --kubeconfig, --json, --verbose" in error
    assert "leave out --packages, --lock-timeout" in error


@pytest.mark.parametrize("option", ["--html", "--recipe", "--lock"])
def test_cause_takes_no_option_about_nodes(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["doctor", "xid-79", option, "x"]) == 2
    assert "a cause" in capsys.readouterr().err


def test_word_that_is_no_run_of_a_cluster_is_not_called_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    assert run_cli(["rollback", "keep", "--packages", "--root", str(tmp_path)]) == 2
    assert "no run keep" in capsys.readouterr().err
