"""How a command ends that has nothing more to say than an exit code."""

from __future__ import annotations


class CommandExit(Exception):
    """A command has told all there is to tell; only its exit code is left."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
