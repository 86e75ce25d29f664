"""doctor as a plugin of node-problem-detector: one line, and 0, 1 or 2 as its exit status.

Source: pkg/custompluginmonitor of kubernetes/node-problem-detector: 0 is OK, 1 NonOK, all else Unknown; of standard
output the first ``max_output_length`` bytes, 80 where nothing else is set, become the condition's message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from gpunode.cli.command_exit import CommandExit
from gpunode.command import gpunode
from gpunode.errors import GpunodeError, UsageError

if TYPE_CHECKING:
    from gpunode.workflow.doctor import Examined

Status: TypeAlias = int
OK: Final = 0
NON_OK: Final = 1
UNKNOWN: Final = 2
LONGEST: Final = 80


def plugin(*, alone: bool) -> None:
    """This machine's verdict; ``alone`` is whether nothing else was asked for, which one line could not tell.

    Raises:
        UsageError: something was.
    """
    if not alone:
        raise UsageError(
            "--npd must be given alone", why="node-problem-detector reads one line about this machine",
            hint=str(gpunode("doctor", "--npd")),
        )  # fmt: skip
    from gpunode.cli.doctor import look_around
    from gpunode.workflow.doctor import diagnosed

    check(lambda: diagnosed(look_around()))


def check(examine: Callable[[], Examined]) -> None:
    """Prints the verdict and ends with its status; a bug of ours is Unknown, too, since 1 would blame the node."""
    try:
        status, message = verdict(examine())
    except GpunodeError as error:
        status, message = UNKNOWN, f"not examined: {error.what}"
    except Exception as error:  # its status must not be Python's own 1
        status, message = UNKNOWN, f"not examined: a bug in gpunode: {type(error).__name__}"
    from gpunode.cli.screen.printer import standard_output

    standard_output().raw(f"{line(message)}\n")
    if status:
        raise CommandExit(status)


def verdict(examined: Examined) -> tuple[Status, str]:
    """The status and the message: the same for the same state, so that the condition changes with it alone."""
    diagnosis = examined.diagnosis
    faults = [one for one in diagnosis.roots if one.severity == "error"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return NON_OK, f"{faults[0].cause}{more}: {faults[0].title}"
    if examined.verdict == "unknown":
        return UNKNOWN, f"undetermined: {diagnosis.unknown[0].question}" if diagnosis.unknown else "undetermined"
    warned = [one for one in diagnosis.roots if one.severity == "warning"]
    return OK, f"the GPUs work; at risk: {warned[0].cause}" if warned else "the driver works, no fault found"


def line(message: str) -> str:
    """``message`` as one line of ASCII that is not cut."""
    plain = " ".join(message.encode("ascii", "replace").decode().split())
    shown = "".join(char if char.isprintable() else "?" for char in plain)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}..."
