"""Queued enrolment of a key, with a one-time password that is shown once on a terminal and never stored.

Sources: mokutil.c 0.6 (``--hash-file`` takes a crypt(3) hash); MokManager assumes a US keyboard.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpunode.change import Change, CommandChange
from gpunode.errors import ChangeFailed, Refused
from gpunode.host.process import Runner

_TERMINAL: Final = "/dev/tty"
# The same keys on US, German and French keyboards.
_KEYBOARD_SAFE_LETTERS: Final = "bcdefghijklnoprstuvx"
_KEYBOARD_SAFE_DIGITS: Final = "23456789"
_PASSWORD_LENGTH: Final = 10
_MOKUTIL_TIMEOUT_S: Final = 60.0
_MAX_PASSWORD_BYTES: Final = 256
_STREAM_FOLDERS: Final = ("/dev/", "/proc/")
_TYPEABLE_PASSWORD: Final = re.compile(r"[A-Za-z0-9]{8,16}")


def is_mok_import(change: Change) -> bool:
    """Return whether a change queues an enrolment."""
    return change.runs_command("mokutil", "--import")


def read_chosen_password(changes: Iterable[Change], file: str = "") -> str:
    """Return the chosen password of an enrolment among ``changes``; empty if there is none.

    Call it once, before anything changes: a pipe can be read only once.

    Raises:
        Refused: if nobody would see a new password, or the file has none that may be used.
    """
    if not any(map(is_mok_import, changes)):
        return ""
    if file:
        return _read_password(file)
    try:
        os.close(os.open(_TERMINAL, os.O_WRONLY | os.O_NOCTTY))
    except OSError:
        raise Refused(
            "there is no terminal to show the one-time password of the key's enrolment; nothing was changed",
            why="Secure Boot is on and this machine's key is not enrolled; the password is shown on the screen alone, "
            "never written to a file or a log",
            hint="run the command in a terminal (through ssh: ssh -t HOST sudo gpunode setup …)\n"
            "or choose the password yourself: add --mok-password-file FILE\n"
            "or leave the driver out: add --driver none",
        ) from None
    return ""


def _read_password(path: str) -> str:
    """Return the password in a file that root alone may read, or in a pipe such as /dev/stdin."""
    try:
        # A pipe that nobody writes to must not keep the run waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Refused(
            f"--mok-password-file {path} cannot be read: {error.strerror}; nothing was changed",
            why="it is to hold the one-time password of the key's enrolment",
            hint=_FILE_MODE_HINT,
        ) from None
    status = os.fstat(descriptor)
    is_private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    if not is_private and not stat.S_ISFIFO(status.st_mode):
        os.close(descriptor)
        raise Refused(
            f"--mok-password-file {path} is neither a pipe nor a file that only root may read; nothing was changed",
            why="whoever reads the password can enrol another key at the console",
            hint=_FILE_MODE_HINT,
        )
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as file:
        password = file.read(_MAX_PASSWORD_BYTES).decode("ascii", "replace").strip()
    if _TYPEABLE_PASSWORD.fullmatch(password):
        return password
    raise Refused(
        f"the password in {path} cannot be used; nothing was changed",
        why="it needs 8 to 16 letters and digits of ASCII: MokManager reads the keyboard as a US one",
        hint="write another one, then run the same command again",
    )


_FILE_MODE_HINT: Final = (
    "write it with the mode 0600 as root; setup removes the file once the password is used. Or pass it by a pipe: "
    "--mok-password-file /dev/stdin"
)


def remove_password_file(path: str, password: str) -> None:
    """Remove the file once its password is used, unless another has taken its place; a pipe or link stays."""
    with suppress(OSError):
        # Whoever owns the folder could otherwise have root remove any file.
        place = Path(path).resolve()
        if place.is_file() and place.read_bytes().strip() == password.encode() and not path.startswith(_STREAM_FOLDERS):
            place.unlink()


def make_password() -> str:
    """Return a password that can be typed on any keyboard layout that MokManager may meet."""
    return "".join(secrets.choice(_KEYBOARD_SAFE_LETTERS + _KEYBOARD_SAFE_DIGITS) for _ in range(_PASSWORD_LENGTH))


def queue_enrolment(runner: Runner, change: CommandChange, *, password: str = "") -> None:
    """Run ``mokutil --import CERTIFICATE --hash-file FILE``; a new password is shown on the terminal.

    Raises:
        ChangeFailed: if mokutil refuses, or the hash cannot be made.
    """
    *_, hash_file = change.argv
    chosen, password = password, password or make_password()
    # Without the log, which would keep the hash that openssl prints.
    hashed = Runner(runner.root).run(
        ("openssl", "passwd", "-6", "-stdin"), timeout_s=_MOKUTIL_TIMEOUT_S, stdin=f"{password}\n".encode()
    )
    if not hashed.ok or not hashed.stdout.startswith(b"$6$"):
        raise ChangeFailed(
            "the one-time password could not be hashed; no enrolment was queued",
            why=hashed.last_lines() or f"openssl passwd ended with {hashed.exit_status}",
            hint="check that openssl is installed and works, then run the same command again",
        )
    place = Path(hash_file)
    place.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(hashed.stdout)
        # Show the password first: without it the request cannot be confirmed.
        if not chosen:
            with os.fdopen(os.open(_TERMINAL, os.O_WRONLY | os.O_NOCTTY), "w", encoding="ascii") as screen:
                screen.write(
                    f"\r\n  One-time password for MokManager at the next boot: {password}\r\n"
                    "  Write it down: it is shown only now.\r\n\r\n"
                )
        done = runner.run(change.argv, timeout_s=_MOKUTIL_TIMEOUT_S)
    except OSError as error:
        raise ChangeFailed(
            f"the enrolment could not be queued: {error}", hint="run the same command again in a terminal"
        ) from error
    finally:
        with suppress(OSError):
            place.unlink(missing_ok=True)
    if not done.ok:
        raise ChangeFailed(
            f"mokutil did not queue the enrolment of {change.argv[2]}; discard the password",
            why=done.last_lines() or f"it ended with {done.exit_status}",
            hint="`mokutil --sb-state` and `mokutil --list-new` show what the firmware says",
        )
