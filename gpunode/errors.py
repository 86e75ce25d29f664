"""Every error with which gpunode stops, as one tree; each class has an exit code.

A message has three parts: what happened, why, and what to do next. They stay separate until the command line prints
them, so that the JSON envelope has each. ``docs/reference/cli.md`` is generated from this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final, NoReturn

_WORD_SEPARATORS: Final = re.compile(r"[/=,]")


class GpunodeError(Exception):
    """The base of every error that is not a bug.

    Attributes:
        what: what happened, as one sentence.
        why: the cause, with the evidence; may span lines.
        hint: what the user does next; commands are on lines of their own.
    """

    exit_code: ClassVar[int]
    status: ClassVar[str]
    meaning: ClassVar[str]

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.hint = what, why, hint

    @property
    def what_and_why(self) -> str:
        """The message without its hint, as one text."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def add_quoted_words(self, words: Iterable[str]) -> None:
        """Quote those typed ``words`` in the message that contain line ends or control characters.

        A file may have any name, but a message with that name must not contain lines that gpunode did not write.
        """
        from gpunode.command import CONTROL_CHARACTER, quote_word  # loaded on use: --help does not need it

        parts = {part for word in words for part in _WORD_SEPARATORS.split(word) if CONTROL_CHARACTER.search(part)}
        for part in sorted(parts, key=len, reverse=True):
            self.what, self.why, self.hint = (
                text.replace(part, quote_word(part)) for text in (self.what, self.why, self.hint)
            )

    def as_dict(self) -> dict[str, object]:
        """Return the error as the JSON envelope shows it."""
        return {"error": self.status, "what": self.what, "why": self.why, "hint": self.hint}


class UsageError(GpunodeError):
    """The command cannot be run as typed."""

    exit_code, status = 2, "usage"
    meaning = "usage: bad arguments, an invalid recipe, root needed, or no terminal to ask on and no --yes"


class RecipeError(UsageError):
    """A recipe contains something that gpunode does not understand; names file, line, key and the allowed values."""

    def __init__(self, what: str, *, file: str, line: int = 0, key: str = "", allowed: tuple[str, ...] = ()) -> None:
        place = f"{file}:{line}" if line else file
        why = f"allowed: {', '.join(allowed)}" if allowed else ""
        super().__init__(f"{place}: {what}", why=why, hint=self._next_step(file, key or "it"))
        self.file, self.line, self.key, self.allowed = file, line, key, allowed

    def _next_step(self, file: str, mistake: str) -> str:
        from gpunode.command import gpunode_command  # loaded on use: --help does not need it

        return f"correct {mistake} in {file}, then run `{gpunode_command('recipe', 'check', file)}`"

    def with_further_mistakes(self, others: Sequence[RecipeError]) -> RecipeError:
        """Return the same error, with the file's other mistakes added to ``why``."""
        if others:
            told = (f"{other.what}{f' ({other.why})' if other.why else ''}" for other in others)
            self.why = "\n".join([*([self.why] if self.why else []), f"{len(others)} more:", *told])
            self.hint = self.hint.replace(f"correct {self.key or 'it'} in", "correct these in", 1)
        return self

    def as_dict(self) -> dict[str, object]:
        """Return the error with the place of the mistake."""
        place = {"file": self.file, "line": self.line, "key": self.key, "allowed": list(self.allowed)}
        return {**super().as_dict(), **place}


class LockFileError(RecipeError):
    """A mistake in a lock file, like RecipeError; gpunode wrote the file, so a damaged one is best written again."""

    def _next_step(self, file: str, mistake: str) -> str:
        from gpunode.command import gpunode_command

        # Without its recipe, --root and --gpu, the command would lock another plan, or another machine's.
        again = f"`{gpunode_command('plan', '--lock', file)}` and the recipe and options of this command"
        return f"move {file} away and write it again with {again}, or correct {mistake}"


class MigFileError(RecipeError):
    """A mistake in a configuration file of mig-parted, like RecipeError."""

    def _next_step(self, file: str, _mistake: str) -> str:
        return f"correct {file}, then run the same command again"


class Refused(GpunodeError):
    """gpunode will not do this here; nothing was changed."""

    exit_code, status = 3, "refused"
    meaning = "refused: no GPU, an unsupported host, no driver that fits, a package in no archive, an unreadable file"


class ChangesPending(GpunodeError):
    """A check found something that is not as requested."""

    exit_code, status = 4, "changes-pending"
    meaning = (
        "`plan --check`, `k8s plan --check`, `ctk runtime check`: changes pending; `compare`: a difference that may "
        "explain a fault"
    )


class Conflict(GpunodeError):
    """A file is neither as gpunode found it nor as gpunode left it, or is where gpunode has to write."""

    exit_code, status = 5, "conflict"
    meaning = "conflict: a file was edited since, or is in the way"


class ChangeFailed(GpunodeError):
    """A change could not be made; ``why`` says what was restored."""

    exit_code, status = 6, "change-failed"
    meaning = "a change failed; the message says what was restored, and how to continue or roll back"


class VerifyFailed(GpunodeError):
    """Everything was applied, but the node does not work or does not meet its expectations."""

    exit_code, status = 7, "verify-failed"
    meaning = "applied, but the node does not work or does not meet its expectations"


class ProblemFound(GpunodeError):
    """doctor found a cause why the node does not work, or soon will not."""

    exit_code, status = 8, "problem-found"
    meaning = "`doctor`: a problem was found"


class JournalDamaged(GpunodeError):
    """A journal is damaged in the middle; nothing is guessed."""

    exit_code, status = 9, "journal-damaged"
    meaning = "journal damaged"


class RebootRequired(GpunodeError):
    """The rest can only happen after a reboot."""

    exit_code, status = 10, "reboot-required"
    meaning = "reboot required; `plan --check`: only a reboot is left"


class DrainRequired(GpunodeError):
    """Continuing would stop containers; names them."""

    exit_code, status = 11, "drain-required"
    meaning = "drain required: running containers would be stopped; the message names them"


class Busy(GpunodeError):
    """Another process holds a lock; names the holder."""

    exit_code, status = 12, "busy"
    meaning = "busy: a lock is held; the message names its holder (pid, command)"


class Undetermined(GpunodeError):
    """Evidence that a decision needs is missing; nothing is decided on a guess."""

    exit_code, status = 13, "undetermined"
    meaning = (
        "cannot tell: evidence is missing; the message says which, and how to get it; `compare`: too little in common"
    )


class Interrupted(GpunodeError):
    """A signal ended the run, after the atomic write in progress."""

    exit_code, status = 130, "interrupted"
    meaning = "interrupted by SIGINT, after the atomic write in progress"


class Terminated(Interrupted):
    """SIGTERM ended the run, after the atomic write in progress."""

    exit_code, status = 143, "terminated"
    meaning = "terminated by SIGTERM, after the atomic write in progress"


BUG_EXIT_CODE = 1


def exit_statuses() -> Iterator[tuple[int, str]]:
    """Yield every exit code, in order, with its name in the JSON envelope."""
    yield from ((0, "ok"), (1, "bug"), *((kind.exit_code, kind.status) for kind in _classes_by_exit_code()))


def exit_codes() -> Iterator[tuple[int, str]]:
    """Yield every exit code with its meaning, in order; the reference page is generated from this."""
    yield from ((0, "done, or nothing to do"), (1, "a bug in gpunode; the message names the file with the traceback"))
    yield from ((kind.exit_code, kind.meaning) for kind in _classes_by_exit_code())


def _classes_by_exit_code() -> list[type[GpunodeError]]:
    """Return a class for each exit code, in order."""
    classes: dict[int, type[GpunodeError]] = {}
    pending: list[type[GpunodeError]] = list(GpunodeError.__subclasses__())
    while pending:
        kind = pending.pop(0)
        pending.extend(kind.__subclasses__())
        classes.setdefault(kind.exit_code, kind)
    return [classes[code] for code in sorted(classes)]


def assert_never(value: NoReturn) -> NoReturn:
    """Mark a point that is unreachable if every value was handled, for mypy; in ``typing`` from Python 3.11."""
    raise AssertionError(f"not handled: {value!r}")
