"""Write doctor's page to a file atomically, with the mode of an ordinary file."""

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
    from gpunode.workflow.doctor import Examination

STANDARD_OUTPUT_ARGUMENT = "-"


def refuse_unwritable_page_file(file: str, options: OutputOptions) -> None:
    """Refuse a file that the page cannot be written to, before the slow examination.

    Raises:
        UsageError: the folder does not exist, or both answers would go to standard output.
    """
    if file == STANDARD_OUTPUT_ARGUMENT:
        if options.json:
            raise UsageError("--json and --html - both write to standard output", hint="name a file for the page")
        return
    path = Path(file)
    if is_folder(path) or not is_folder(path.parent):
        why = (
            f"{file} is a folder"
            if is_folder(path)
            else f"the folder {path.parent} does not exist, or you may not write to it"
        )
        raise _page_write_error(file, why, "name a file in an existing folder")
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # a new file
    is_link = stat.S_ISLNK(mode) and path.parent.resolve() != Path("/dev")
    if not stat.S_ISREG(mode) and not is_link:
        raise _page_write_error(file, "it is not a regular file", _WRITABLE_FILE_HINT)


_WRITABLE_FILE_HINT = "name a file that you may write; - writes to standard output"


def _page_write_error(file: str, why: str, hint: str) -> UsageError:
    return UsageError(f"the page cannot be written to {file}", why=why, hint=hint)


def write_page(file: str, text: str) -> None:
    """Write the page to ``file``, replacing it; a link is replaced, not its target.

    Raises:
        UsageError: it cannot be written; the old file then stays.
    """
    if file == STANDARD_OUTPUT_ARGUMENT:
        from gpunode.cli.screen.printer import standard_output

        standard_output().print_raw(text)
        return
    try:
        output.write_output(Path(file), text.encode("utf-8", "replace"), _file_mode(file))
    except OSError as error:
        raise _page_write_error(file, error.strerror or str(error), _WRITABLE_FILE_HINT) from error


def _file_mode(file: str) -> int:
    """Return the mode of the user's own existing page, else that of a new file."""
    try:
        before = Path(file).lstat()
    except OSError:
        before = None
    if before is not None and stat.S_ISREG(before.st_mode) and before.st_uid == os.geteuid():
        return stat.S_IMODE(before.st_mode)
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def render_node_page(examined: Examination, report: str) -> str:
    """Return the page about one node."""
    from gpunode.diagnoses.views.system import hostname
    from gpunode.page.markup import PageOrigin
    from gpunode.page.report import node_page

    source = {"": "this machine", "-": "a report from standard input"}.get(report, f"report {Path(report).name}")
    return node_page(examined, PageOrigin(examined.snapshot.view(hostname), source, current_time(), __version__))


def current_time() -> str:
    """Return the time as shown on a page."""
    return datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
