"""The man pages: one for every command, with what its --help says."""

from __future__ import annotations

import man
import pytest
import typer

from gpunode.cli.app import app

PAGES = man.pages("1.2.3", 1_700_000_000)


def test_every_command_that_help_lists_has_a_page() -> None:
    root = typer.main.get_command(app)
    names = {f"gpunode-{name}.1" for name, command in root.commands.items() if not command.hidden}  # type: ignore[attr-defined]
    assert names <= set(PAGES)
    assert {"gpunode.1", "gpunode-ctk-runtime-configure.1", "gpunode-k8s-apply.1"} <= set(PAGES)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_what_a_reader_of_man_pages_looks_for(name: str) -> None:
    text = PAGES[name]
    assert text.startswith(f'.TH "{name.removesuffix(".1").upper()}" 1 "2023-11-14" "gpunode 1.2.3" "gpunode"\n')
    assert all(f"\n.SH {section}\n" in text for section in ("NAME", "SYNOPSIS", "OPTIONS", "SEE ALSO"))


def test_the_page_of_a_command_has_its_options_and_their_help() -> None:
    assert "\\fB\\-\\-reboot\\fR\nreboot once if needed, then continue\n" in PAGES["gpunode-setup.1"]
    assert "\\-\\-resume" not in PAGES["gpunode-setup.1"]  # hidden in --help, too


def test_no_line_of_help_is_a_request_of_roff() -> None:
    known = (".TH ", ".SH ", ".TP", ".B ")
    for text in PAGES.values():
        assert all(line.startswith(known) for line in text.splitlines() if line.startswith((".", "'")))
