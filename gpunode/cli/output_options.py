"""How an answer is wanted, whatever the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpunode.cli import CommandExit
from gpunode.cli.envelope import Envelope
from gpunode.cli.report_screen import ReportScreen
from gpunode.cli.screen.printer import tell_program
from gpunode.errors import ProblemFound, Undetermined

if TYPE_CHECKING:
    from gpunode.cli.human import Screen
    from gpunode.workflow.doctor import Verdict

# How doctor ends, by its verdict.
KINDS: Final[Mapping[Verdict, type[ProblemFound | Undetermined] | None]] = {
    "healthy": None,
    "problem": ProblemFound,
    "unknown": Undetermined,
}


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How the answer is wanted; ``quiet`` tells errors alone."""

    json: bool = False
    verbose: bool = False
    quiet: bool = False

    def screen(self) -> Screen:
        """Where a person reads; silent when a program does, or nobody."""
        from gpunode.cli.human import Screen

        return Screen(verbose=self.verbose, silent=self.json or self.quiet)

    def report_screen(self) -> ReportScreen:
        """The same for what is said of reports: it knows nothing of plans, and needs none of their code."""
        return ReportScreen(verbose=self.verbose, silent=self.json or self.quiet)

    def answer(self, envelope: Envelope, *, changed_nothing: bool = False) -> None:
        """Tells a program the answer, and ends with its exit code unless that is 0.

        Args:
            envelope: the answer.
            changed_nothing: whether the answer is all there is, so that losing it is what the exit code tells.
        """
        if self.json:
            lost = tell_program(envelope.as_json())
            if lost and (changed_nothing or not envelope.exit_code):
                raise CommandExit(lost)
        if envelope.exit_code:
            raise CommandExit(envelope.exit_code)
