"""Options that decide how every command answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpunode.cli import CommandExit
from gpunode.cli.envelope import Envelope
from gpunode.cli.report_screen import ReportScreen
from gpunode.cli.screen.printer import write_answer
from gpunode.errors import ProblemFound, Undetermined

if TYPE_CHECKING:
    from gpunode.cli.human import Screen
    from gpunode.workflow.doctor import Verdict

# The error class of each verdict of doctor; it has the exit code.
EXIT_KINDS: Final[Mapping[Verdict, type[ProblemFound | Undetermined] | None]] = {
    "healthy": None,
    "problem": ProblemFound,
    "unknown": Undetermined,
}


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options for printing the answer; ``quiet`` prints errors only."""

    json: bool = False
    verbose: bool = False
    quiet: bool = False

    def open_screen(self) -> Screen:
        """Return the screen for people; silent with --json and --quiet."""
        from gpunode.cli.human import Screen

        return Screen(verbose=self.verbose, silent=self.json or self.quiet)

    def open_report_screen(self) -> ReportScreen:
        """Return the screen for reports, which loads no code for plans."""
        return ReportScreen(verbose=self.verbose, silent=self.json or self.quiet)

    def emit(self, envelope: Envelope, *, changed_nothing: bool = False) -> None:
        """Print the JSON answer if requested, and exit with its code unless that is 0.

        Args:
            envelope: the answer.
            changed_nothing: the command changed nothing, so a lost answer decides the exit code.
        """
        if self.json:
            lost = write_answer(envelope.as_json())
            if lost and (changed_nothing or not envelope.exit_code):
                raise CommandExit(lost)
        if envelope.exit_code:
            raise CommandExit(envelope.exit_code)
