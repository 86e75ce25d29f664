"""doctor's page as a file: whole or not at all, with the rights of an ordinary file."""

from __future__ import annotations

import os
import stat
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode import __version__
from gpunode.errors import UsageError
from gpunode.host import output
from gpunode.host.reports import is_folder

if TYPE_CHECKING:
    from gpunode.cli.output_options import OutputOptions
    from gpunode.workflow.doctor import Examined

STANDARD_OUTPUT = "-"


def check(file: str, how: OutputOptions) -> None:
    """Nothing, if a page can stand there; asked before the node is examined, which takes a while.

    Raises:
        UsageError: there is no such folder, or two answers would go to standard output.
    """
    if file == STANDARD_OUTPUT:
        if how.json:
            raise UsageError("--json and --html - both write to standard output", hint="name a file for the page")
        return
    place = Path(file)
    if is_folder(place) or not is_folder(place.parent):
        why = (
            f"{file} is a folder"
            if is_folder(place)
            else f"the folder {place.parent} does not exist, or you may not write to it"
        )
        raise _unwritable(file, why, "name a file in an existing folder")
    if not _is_free(place):
        raise _unwritable(file, "what is there is no file", _HINT)


def _is_free(place: Path) -> bool:
    """Whether nothing is lost there: a page before, or a link, which is replaced; those in /dev are the system's."""
    try:
        mode = place.lstat().st_mode
    except OSError:
        return True
    return stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and place.parent.resolve() != Path("/dev"))


_HINT = "name a file that you may write; - writes to standard output"


def _unwritable(file: str, why: str, hint: str) -> UsageError:
    return UsageError(f"the page cannot be written to {file}", why=why, hint=hint)


def write(file: str, text: str) -> None:
    """The page ``text`` stands in ``file``; what stood there is gone, be it a link, whose target is as it was.

    Raises:
        UsageError: it cannot be written there; what was there is as it was.
    """
    if file == STANDARD_OUTPUT:
        from gpunode.cli.screen.printer import standard_output

        standard_output().raw(text)
        return
    try:
        output.replace(Path(file), text.encode("utf-8", "replace"), _mode(file))
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error), _HINT) from error


def _mode(file: str) -> int:
    """The rights of our own page that stood there; those of a new file where there was none, or another user's."""
    try:
        before = Path(file).lstat()
    except OSError:
        before = None
    if before is not None and stat.S_ISREG(before.st_mode) and before.st_uid == os.geteuid():
        return stat.S_IMODE(before.st_mode)
    return 0o666 & ~_umask()


def of_node(examined: Examined, report: str) -> str:
    """The page about one node."""
    from gpunode.diagnoses.views.system import hostname
    from gpunode.page.frame import About
    from gpunode.page.report import page

    source = {"": "this machine", "-": "a report from standard input"}.get(report, f"report {Path(report).name}")
    return page(examined, About(examined.snapshot.view(hostname), source, now(), __version__))


def now() -> str:
    """The time, as it stands on a page."""
    return datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
