from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpunode.cli.boundary import run_cli
from gpunode.cli.node_screen import Screen
from gpunode.cli.rehearse import rehearsal_lines
from gpunode.cli.samples import default_sample
from gpunode.cli.screen.text import cell_width
from gpunode.facts.model import Known, LoadedDriver
from tests.unit.cli import screen_nodes as nodes
from tests.unit.cli import screen_pages as pages

Page = Callable[[Screen], None]
every_page = pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.__name__)


@every_page
def test_page_matches_its_golden_file(page: Page) -> None:
    assert pages.drawn(page, pages.GOLDEN_WIDTH) == pages.file(page).read_text()


@every_page
def test_page_has_the_same_words_at_every_width(page: Page) -> None:
    assert pages.drawn(page, 200).split() == pages.drawn(page, pages.GOLDEN_WIDTH).split()


@pytest.mark.parametrize("width", [40, 80, 200])
@every_page
def test_only_a_command_is_wider_than_the_screen(page: Page, width: int) -> None:
    """A command has no line end inside, so that it can be copied."""
    wider = [row for row in pages.drawn(page, width).splitlines() if cell_width(row) > width]
    command = re.compile(r"(?:next: | +(?:next|undo)  )?(?:sudo )?(?:gpunode|systemctl) ")
    assert all(map(command.match, wider))
    assert not wider or width == 40


@every_page
def test_every_sign_has_an_ascii_form(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    shown = pages.drawn(page, 80)
    assert shown.isascii()
    assert "\\u" not in shown


def test_converged_setup_is_one_line() -> None:
    assert pages.drawn(pages.converged, 200).count("\n") == 1


def test_rehearsal_is_marked_and_does_not_pass_node_checks() -> None:
    lines = pages.drawn(pages.rehearse, 200).splitlines()
    assert "REHEARSAL" in lines[0]
    assert "this machine is not touched" in lines[1]
    assert any("REHEARSAL ends: this machine was not touched" in line for line in lines[-2:])
    driver = next(line for line in lines if "the driver answers" in line)
    assert "not run" in driver
    assert any(
        line.split() == ["✓", "/etc/containerd/config.toml", "restored", "byte", "for", "byte"] for line in lines
    )


def test_rehearsal_of_a_node_that_waits_for_its_reboot_says_so() -> None:
    old = LoadedDriver("535.183.01", open_module=False)
    node = replace(nodes.converged(), loaded_driver=Known(old, "nvidia-version"))

    def waiting(screen: Screen) -> None:
        done = nodes.rehearsed(node, lambda _event: None)
        screen.put(*rehearsal_lines(nodes.RECIPE, done, "a.tar.gz", screen))

    said = pages.drawn(waiting, 200)
    assert "nothing to do: a reboot is needed: the kernel still runs driver 535.183.01" in said
    assert "this node matches" not in said


def test_verbose_plan_shows_every_step_and_package() -> None:
    brief, whole = (pages.drawn(pages.plan, 200, verbose=verbose) for verbose in (False, True))
    for name in ("nvidia-tesla-470-kernel-dkms", "nvidia-smi"):
        assert f"- {name}" in whole
        assert f"- {name}" not in brief
    assert "nothing to do: GPU and machine" in brief
    assert "✓ GPU and machine" in whole


def test_plan_of_the_shipped_sample_fits_on_52_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["plan", "containerd", "--node", str(default_sample())]
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["gpunode", *typed])
    assert run_cli(typed) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") <= 52
    assert "enables nvidia-persistenced" not in shown, "it runs already, and only pauses"
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in shown


def test_plan_ends_with_the_setup_command() -> None:
    assert pages.drawn(pages.plan, 200).splitlines()[-1] == "next: sudo gpunode setup --runtime containerd"


def test_lock_holder_is_named_once() -> None:
    shown = pages.drawn(pages.setup, 200)
    assert shown.count("process 4711 (apt-get update) holds /var/lib/dpkg/lock-frontend") == 1
