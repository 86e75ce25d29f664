"""doctor: what is wrong with a node, from what can be seen of it; it changes nothing, ever."""

from __future__ import annotations

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import Snapshot, snapshot
from gpunode.facts.evidence import Evidence
from gpunode.facts.probes import PROBES
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.workflow.converge import look_around


def examine(host: HostView) -> Evidence:
    """What there is to see of ``host``."""
    return look_around(host, (*PROBES, nvml.probe()))


def diagnosed(evidence: Evidence) -> tuple[Snapshot, Diagnosis]:
    """The node that ``evidence`` shows, and what is wrong with it."""
    seen = snapshot(evidence)
    return seen, diagnose(seen)
