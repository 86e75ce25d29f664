"""The man pages: one for every command, with the content of its --help."""

from __future__ import annotations

import man
import pytest
import typer

from gpunode.cli.app import app

PAGES = man.pages("1.2.3", 1_700_000_000)


def test_every_visible_command_has_a_man_page() -> None:
    root = typer.main.get_command(app)
    names = {f"gpunode-{name}.1" for name, command in root.commands.items() if not command.hidden}  # type: ignore[attr-defined]
    assert names <= set(PAGES)
    assert {"gpunode.1", "gpunode-ctk-runtime-configure.1", "gpunode-k8s-apply.1"} <= set(PAGES)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_man_page_has_the_usual_sections(name: str) -> None:
    text = PAGES[name]
    assert text.startswith(f'.TH "{name.removesuffix(".1").upper()}" 1 "2023-11-14" "gpunode 1.2.3" "gpunode"\n')
    assert all(f"\n.SH {section}\n" in text for section in ("NAME", "SYNOPSIS", "OPTIONS", "SEE ALSO"))


def test_man_page_lists_options_with_their_help() -> None:
    assert "\\fB\\-\\-reboot\\fR\nreboot once if needed, then continue\n" in PAGES["gpunode-setup.1"]
    assert "\\-\\-resume" not in PAGES["gpunode-setup.1"]  # hidden in --help, too


def test_no_help_line_is_a_roff_request() -> None:
    known = (".TH ", ".SH ", ".TP", ".B ")
    for text in PAGES.values():
        assert all(line.startswith(known) for line in text.splitlines() if line.startswith((".", "'")))
