"""What doctor found, for Prometheus: the text that node_exporter's textfile collector reads. Pure.

Format: the text exposition format, version 0.0.4. Names end in their unit, and an ``_info`` series carries the version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from gpunode import __version__

if TYPE_CHECKING:
    from gpunode.workflow.doctor import Examined

_PREFIX: Final = "gpunode_doctor"


def exposition(examined: Examined, finished: float, seconds: float) -> str:
    """The metrics of one examination.

    Args:
        examined: what was found.
        finished: when, in seconds since 1970.
        seconds: how long it took.
    """
    return "".join(f"{line}\n" for line in _lines(examined, finished, seconds))


def _lines(examined: Examined, finished: float, seconds: float) -> Iterator[str]:
    healthy = examined.verdict == "healthy"
    yield from _gauge("healthy", "Whether the driver works and nothing is wrong with this node.", str(int(healthy)))
    yield from _head(
        "finding", "A cause that gpunode doctor found; root: whether nothing else that it found explains it."
    )
    for finding in examined.diagnosis.findings:
        labels = {
            "cause": finding.cause,
            "layer": finding.layer,
            "severity": finding.severity,
            "root": "false" if finding.explained_by else "true",
        }
        yield f"{_PREFIX}_finding{_labels(labels)} 1"
    yield from _gauge(
        "unknown", "Faults without a known cause, for lack of evidence.", str(len(examined.diagnosis.unknown))
    )
    yield from _gauge(
        "run_timestamp_seconds", "When gpunode doctor last ran, in seconds since 1970.", f"{finished:.3f}"
    )
    yield from _gauge("run_duration_seconds", "How long that run of gpunode doctor took.", f"{seconds:.3f}")
    yield from _head("info", "The version of gpunode that ran.")
    yield f"{_PREFIX}_info{_labels({'version': __version__})} 1"


def _head(name: str, help_text: str) -> Iterator[str]:
    escaped = help_text.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {_PREFIX}_{name} {escaped}"
    yield f"# TYPE {_PREFIX}_{name} gauge"


def _gauge(name: str, help_text: str, value: str) -> Iterator[str]:
    yield from _head(name, help_text)
    yield f"{_PREFIX}_{name} {value}"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
