"""doctor's page as a file: whole or not at all, with the rights of an ordinary file."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode import __version__
from gpunode.change import FileState
from gpunode.errors import GpunodeError, UsageError
from gpunode.host import files

if TYPE_CHECKING:
    from gpunode.cli.commands import How
    from gpunode.workflow.doctor import Examined

STANDARD_OUTPUT = "-"


def check(file: str, how: How) -> None:
    """Nothing, if a page can stand there; asked before the node is examined, which takes a while.

    Raises:
        UsageError: there is no such folder, or two answers would go to standard output.
    """
    if file == STANDARD_OUTPUT:
        if how.json:
            raise UsageError("--json and --html - both write to standard output", hint="name a file for the page")
        return
    why = _why_not(file)
    if why:
        raise UsageError(f"the page cannot be written to {file}", why=why, hint="name a file in a folder that is there")


def _why_not(file: str) -> str:
    """Why no page can stand at ``file``; empty where one can."""
    try:
        place = Path(file).absolute()
        if place.is_dir():
            return f"{file} is a folder"
        return "" if place.parent.is_dir() else f"there is no folder {place.parent}"
    except OSError as error:  # a folder on the way may not be entered, or the working folder is gone
        return error.strerror or str(error)


def write(file: str, examined: Examined, report: str) -> None:
    """The page stands in ``file``; what stood there is gone.

    Raises:
        UsageError: it cannot be written there; what was there is as it was.
    """
    text = _page(examined, report)
    if file == STANDARD_OUTPUT:
        from gpunode.cli.screen.printer import standard_output

        standard_output().raw(text)
        return
    path = str(Path(file).absolute())
    try:
        before = files.state(path)
        usual = FileState(b"", 0o666 & ~_umask(), os.geteuid(), os.getegid())
        files.replace(path, replace(before or usual, content=text.encode("utf-8", "replace")))
    except GpunodeError as error:
        hint = "name a file that you may write; - writes to standard output"
        raise UsageError(f"the page cannot be written to {file}", why=error.why, hint=hint) from error


def _page(examined: Examined, report: str) -> str:
    from gpunode.diagnoses.views.system import hostname
    from gpunode.page.report import About, page

    now = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    source = {"": "this machine", "-": "a report from standard input"}.get(report, f"report {Path(report).name}")
    return page(examined, About(examined.snapshot.view(hostname), source, now, __version__))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
