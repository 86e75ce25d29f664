"""The command line: arguments in, text or JSON out."""

from __future__ import annotations


class CommandExit(Exception):
    """The command has printed its answer; only its exit code is left to return."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
