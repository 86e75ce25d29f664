"""Report doctor's verdict to monitoring: metrics for Prometheus, one line for node-problem-detector.

The metrics use the text exposition format 0.0.4, which node_exporter's textfile collector reads: names end in their
unit, and an ``_info`` series carries the version. For node-problem-detector see pkg/custompluginmonitor: exit status 0
is OK, 1 NonOK, anything else Unknown; the first ``max_output_length`` bytes of standard output, 80 by default, become
the condition's message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from gpunode import __version__
from gpunode.cli import CommandExit
from gpunode.command import gpunode_command
from gpunode.errors import GpunodeError, UsageError

if TYPE_CHECKING:
    from gpunode.workflow.doctor import Examination


_METRIC_PREFIX: Final = "gpunode_doctor"


def render_metrics(examined: Examination, finished: float, seconds: float) -> str:
    """Return the metrics of one examination.

    Args:
        examined: the result.
        finished: end of the examination, in seconds since 1970.
        seconds: its duration.
    """
    return "".join(f"{line}\n" for line in _metric_lines(examined, finished, seconds))


def _metric_lines(examined: Examination, finished: float, seconds: float) -> Iterator[str]:
    healthy = str(int(examined.verdict == "healthy"))
    yield from _render_gauge("healthy", "Whether the driver works and nothing is wrong with this node.", healthy)
    yield from _metric_head(
        "finding", "A cause that gpunode doctor found; root_cause: whether nothing else that it found explains it."
    )
    for finding in examined.diagnosis.findings:
        labels = {
            "cause": finding.cause,
            "layer": finding.layer,
            "severity": finding.severity,
            "root_cause": "false" if finding.explained_by else "true",
        }
        yield f"{_METRIC_PREFIX}_finding{_render_labels(labels)} 1"
    if examined.diagnosis.unexplained:
        yield from _metric_head("unexplained", "A failure that no finding explains, by its likeliest cause.")
    for suspect in examined.diagnosis.unexplained:
        yield f"{_METRIC_PREFIX}_unexplained{_render_labels({'cause': suspect.cause})} 1"
    number = str(len(examined.diagnosis.open_questions))
    yield from _render_gauge("open_questions", "Faults without a known cause, for lack of evidence.", number)
    yield from _render_gauge(
        "run_timestamp_seconds", "When gpunode doctor last ran, in seconds since 1970.", f"{finished:.3f}"
    )
    yield from _render_gauge("run_duration_seconds", "How long that run of gpunode doctor took.", f"{seconds:.3f}")
    yield from _metric_head("info", "The version of gpunode that ran.")
    yield f"{_METRIC_PREFIX}_info{_render_labels({'version': __version__})} 1"


def _metric_head(name: str, help_text: str) -> Iterator[str]:
    escaped = help_text.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {_METRIC_PREFIX}_{name} {escaped}"
    yield f"# TYPE {_METRIC_PREFIX}_{name} gauge"


def _render_gauge(name: str, help_text: str, value: str) -> Iterator[str]:
    yield from _metric_head(name, help_text)
    yield f"{_METRIC_PREFIX}_{name} {value}"


def _render_labels(labels: Mapping[str, str]) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return "{" + ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items()) + "}"


NpdStatus: TypeAlias = int
NPD_OK: Final = 0
NPD_NON_OK: Final = 1
NPD_UNKNOWN: Final = 2
MAX_NPD_MESSAGE_LENGTH: Final = 80


def run_npd_plugin(*, alone: bool) -> None:
    """Report this machine's verdict; ``alone`` is False if other options were given.

    Raises:
        UsageError: other options were given.
    """
    if not alone:
        raise UsageError(
            "--npd must be given alone", why="node-problem-detector reads one line about this machine",
            hint=str(gpunode_command("doctor", "--npd")),
        )  # fmt: skip
    from gpunode.cli.doctor import collect_evidence
    from gpunode.workflow.doctor import diagnose_evidence

    report_npd_status(lambda: diagnose_evidence(collect_evidence()))


def report_npd_status(examine: Callable[[], Examination]) -> None:
    """Print the verdict and exit with its status; a bug in gpunode is Unknown, since 1 would blame the node."""
    try:
        status, message = npd_status_and_message(examine())
    except GpunodeError as error:
        status, message = NPD_UNKNOWN, f"not examined: {error.what}"
    except Exception as error:  # Python's own exit status, 1, would blame the node
        status, message = NPD_UNKNOWN, f"not examined: a bug in gpunode: {type(error).__name__}"
    from gpunode.cli.screen.printer import standard_output

    standard_output().print_raw(f"{ascii_line(message)}\n")
    if status:
        raise CommandExit(status)


def npd_status_and_message(examined: Examination) -> tuple[NpdStatus, str]:
    """Return the status and message; the message depends only on the state, so that the condition does not flap."""
    diagnosis = examined.diagnosis
    faults = [root for root in diagnosis.roots if root.severity == "error"]
    if faults:
        others = len(faults) - 1 + len(diagnosis.unexplained)
        more = f" (and {others} more)" if others else ""
        return NPD_NON_OK, f"{faults[0].cause}{more}: {faults[0].title}"
    if examined.verdict == "unknown":
        open_questions = diagnosis.open_questions
        return NPD_UNKNOWN, f"undetermined: {open_questions[0].question}" if open_questions else "undetermined"
    warned = [root for root in diagnosis.roots if root.severity == "warning"]
    return NPD_OK, f"the GPUs work; at risk: {warned[0].cause}" if warned else "the driver works, no fault found"


def ascii_line(message: str) -> str:
    """Return ``message`` as one line of ASCII within the length limit."""
    plain = " ".join(message.encode("ascii", "replace").decode().split())
    shown = "".join(char if char.isprintable() else "?" for char in plain)
    return shown if len(shown) <= MAX_NPD_MESSAGE_LENGTH else f"{shown[: MAX_NPD_MESSAGE_LENGTH - 3]}..."
