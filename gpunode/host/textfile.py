"""A small file that others read while it is written: they see the old one or the new one, whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    """The file at ``path`` is ``content``, with ``mode``; before that it is the old one, whole.

    It needs the right to write in its folder, and no other. A link at ``path`` is replaced, never followed. The draft
    beside it is hidden and keeps no suffix of ``path``, so that nobody takes it for the file.

    Raises:
        OSError: it could not be written; the old one is as it was.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)  # whatever the umask: another user's program reads it
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
