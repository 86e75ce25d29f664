"""Log of the commands that a run has started."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from gpunode.errors import ChangeFailed
from gpunode.host import files
from gpunode.host.ownership import explain_untrusted_folder
from gpunode.host.process import FinishedCommand
from gpunode.redaction.secrets import redact_text as redact

_COMMAND_LOG_FOLDER = "/var/log/gpunode"


class CommandLog:
    """A root-only file of every command of a run with its output.

    Errors never fail the run: they are recorded in ``problem``.
    """

    def __init__(self, name: str, *, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self.path = f"{self._root}{_COMMAND_LOG_FOLDER}/{name}.log"
        self.problem = ""
        self._lock = threading.Lock()

    def append(self, finished: FinishedCommand) -> None:
        """Write the command to the log, secrets redacted."""
        text = "\n".join(_log_lines(finished)) + "\n"
        with self._lock:
            try:
                self._write(text.encode("utf-8", "replace"))
            except OSError as error:
                self.problem = self.problem or f"{self.path} could not be written: {error.strerror}"
            except ChangeFailed as error:
                self.problem = self.problem or f"{self.path} could not be written: {error.why}"

    def _write(self, entry: bytes) -> None:
        folder = Path(self._root + files.make_parents(_COMMAND_LOG_FOLDER, root=self._root or "/")[0])
        if why := explain_untrusted_folder(folder):
            raise OSError(errno.EPERM, f"{folder} may belong to another user: {why}")
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(folder / Path(self.path).name, flags, 0o600)
        with os.fdopen(fd, "wb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            file.write(entry)


def _log_lines(finished: FinishedCommand) -> Iterator[str]:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    outcome = "timeout" if finished.timed_out else f"exit {finished.exit_status}"
    yield f"{now} {outcome} {finished.seconds:.2f} s: {redact(shlex.join(finished.argv))}"
    for mark, data in (("  ", finished.stdout), ("! ", finished.stderr)):
        yield from (f"  {mark}{line}" for line in redact(data.decode("utf-8", "replace")).splitlines())
    if finished.dropped_bytes:
        yield f"  # {finished.dropped_bytes} bytes past the limit were dropped"
