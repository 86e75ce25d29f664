"""The MPS daemon and the programs that compute through it."""

from __future__ import annotations

import pytest

from gpunode.change import Change, FileChange, FileState, ServiceChange, ServiceState, Trigger
from gpunode.errors import DrainRequired
from gpunode.host.port import Workloads
from gpunode.host.rehearsal import RehearsalHost
from gpunode.steps.daemons import MPS_SERVICE
from gpunode.workflow.disruption import refuse_mps_clients

RUNNING, STOPPED = ServiceState(enabled=True, active=True), ServiceState(enabled=False, active=False)
STOP = ServiceChange(MPS_SERVICE, RUNNING, STOPPED)
RESTART = FileChange("/x", FileState(b"a"), FileState(b"b"), frozenset({Trigger("restart", MPS_SERVICE)}))
OTHER = ServiceChange("docker.service", RUNNING, STOPPED)
JOB, SERVER = "812 (python3 train.py)", "7 (/usr/bin/nvidia-cuda-mps-server)"


class Busy(RehearsalHost):
    """A node on which these processes have a GPU open."""

    def __init__(self, *gpu: str) -> None:
        super().__init__({}, {})
        self.gpu = gpu

    def workloads(self) -> Workloads:
        return Workloads(gpu=self.gpu)


@pytest.mark.parametrize(
    ("change", "gpu", "is_refused"),
    [
        (STOP, (SERVER, JOB), True),
        (RESTART, (JOB,), True),
        (STOP, (SERVER,), False),
        (OTHER, (JOB,), False),
        (ServiceChange(MPS_SERVICE, STOPPED, RUNNING), (JOB,), False),
    ],
)
def test_mps_daemon_with_clients_is_not_stopped(change: Change, gpu: tuple[str, ...], is_refused: bool) -> None:
    host = Busy(*gpu)
    if not is_refused:
        refuse_mps_clients(host, [change])
        return
    with pytest.raises(DrainRequired) as refused:
        refuse_mps_clients(host, [change])
    assert JOB in refused.value.why
    assert SERVER not in refused.value.why
