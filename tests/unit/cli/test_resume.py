"""The command that goes on after a reboot: what was typed, once more, with nothing that reboots or asks."""

from __future__ import annotations

import sys

import pytest

from gpunode.cli.changing import resume_command

TYPED = ["setup", "node.toml", "--reboot", "--json", "-y", "--only", "driver"]


def test_it_is_what_was_typed_but_never_reboots_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/gpunode", *TYPED])
    assert resume_command() == (
        *(sys.executable, "/usr/local/bin/gpunode"),
        *("setup", "node.toml", "--only", "driver", "--yes"),
    )


@pytest.mark.parametrize(("path", "before"), [("", ()), ("/opt/x", ("/usr/bin/env", "PYTHONPATH=/opt/x"))])
def test_a_module_is_found_where_it_was_found(
    monkeypatch: pytest.MonkeyPatch, path: str, before: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/x/gpunode/__main__.py", "setup", "--reboot"])
    monkeypatch.setenv("PYTHONPATH", path)
    assert resume_command() == (*before, sys.executable, "-m", "gpunode", "setup", "--yes")
