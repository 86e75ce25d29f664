"""Processes on a GPU that the end of the MPS daemon or of a driver would stop."""

from __future__ import annotations

import pytest

from gpunode.change import Change, FileChange, FileState, ServiceChange, ServiceState, Trigger
from gpunode.errors import DrainRequired
from gpunode.host.port import Workloads
from gpunode.host.rehearsal import RehearsalHost
from gpunode.steps.daemons import MPS_SERVICE
from gpunode.workflow.converge import plan_stage
from gpunode.workflow.disruption import refuse_mps_clients, refuse_setup
from tests.unit.steps.test_run_driver import REMOVING, run_driver

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


@pytest.mark.parametrize(("processes", "is_refused"), [((JOB,), True), ((), False)])
def test_run_driver_of_a_busy_gpu_is_not_uninstalled(processes: tuple[str, ...], is_refused: bool) -> None:
    plans = [plan_stage(REMOVING, run_driver(), "sources", ("run-driver",))]
    assert any(change.action == "run" for change in plans[0].changes)
    if not is_refused:
        refuse_setup(plans, (), run_driver(), Busy(*processes))
        return
    with pytest.raises(DrainRequired) as refused:
        refuse_setup(plans, (), run_driver(), Busy(*processes))
    assert JOB in refused.value.why
