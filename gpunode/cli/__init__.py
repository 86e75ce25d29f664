"""The front desk: arguments in, text or JSON out."""

from __future__ import annotations


class CommandExit(Exception):
    """A command has told all there is to tell; only its exit code is left."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
