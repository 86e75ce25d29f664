from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Facts, Known, PciDevice, Platform
from gpunode.facts.nvml import Gpu, NvmlInventory, parse_answer
from gpunode.host.rehearsal import RehearsalHost
from gpunode.workflow.driver_checks import await_fabric, fabric_checks
from tests.fakes.skipped_time import SkippedTime
from tests.unit.steps.machines import H100, gpu, machine, unit

SWITCH = PciDevice("0000:05:00.0", "10de", "22a3", "0680")
_GPU = {
    "index": 0, "name": "NVIDIA H100", "uuid": "GPU-1", "pci": "0000:01:00.0", "memory_mib": 81559, "persistence": True,
    "ecc": True, "ecc_pending": True, "compute_capability": "9.0", "mig": False, "mig_pending": False, "clients": [],
}  # fmt: skip


def _answer(*states: object) -> dict[str, object]:
    gpus = [{**_GPU, "index": index, "fabric": state} for index, state in enumerate(states)]
    return {"schema": 1, "driver": "595.91.07", "cuda": "13.2", "nvml": "13.595.91.07", "gpus": gpus}


def _inventory(*states: object) -> NvmlInventory:
    found = parse_answer(json.dumps(_answer(*states)).encode())
    assert isinstance(found, NvmlInventory)
    return found


def _node(*, running: bool = True) -> Facts:
    return machine(gpus=(gpu(H100), SWITCH), units={"nvidia-fabricmanager.service": unit(active=running)})


@pytest.mark.parametrize(
    ("states", "status", "detail"),
    [
        (("completed", "completed"), "passed", "2 of 2 completed"),
        (("completed", "in progress"), "failed", "1 of 2 in progress"),
        (("completed", "failed with Unknown"), "failed", "1 of 2 failed with Unknown"),
        (("not supported", "not supported"), "passed", "report no state of their own"),
        (({"error": "NotSupported", "code": 3},), "passed", "report no state of their own"),
        (("completed", {"error": "Unknown", "code": 999}), "skipped", "1 of 2 did not report their state"),
    ],
)
def test_every_gpu_must_have_registered(states: tuple[object, ...], status: str, detail: str) -> None:
    (check,) = fabric_checks(_node(), _inventory(*states))
    assert check.status == status
    assert detail in check.detail


def test_a_service_that_does_not_run_fails_although_nvml_is_content() -> None:
    (check,) = fabric_checks(_node(running=False), _inventory("not supported"))
    assert check.status == "failed"
    assert "1 NVSwitch, and nvidia-fabricmanager.service does not run" in check.detail
    assert "journalctl" in check.hint


def test_without_systemd_the_check_is_not_run() -> None:
    stopped = Known(unit(active=False), "unit-wants")
    node = replace(_node(), units={"nvidia-fabricmanager.service": stopped})
    (check,) = fabric_checks(node, _inventory("not supported"))
    assert check.status == "skipped"


@pytest.mark.parametrize(
    ("state", "status"), [("completed", "passed"), ("in progress", "failed"), ("not supported", "skipped")]
)
def test_in_a_container_the_gpus_own_states_count(state: str, status: str) -> None:
    container = replace(_node(running=False), platform=Known(Platform("container", "lxc"), "virt"))
    (check,) = fabric_checks(container, _inventory(state))
    assert check.status == status


def test_a_machine_without_switches_is_not_checked() -> None:
    assert not [*fabric_checks(machine(), _inventory("not supported"))]


class _Answering(RehearsalHost):
    """Gives one NVML answer after another, and repeats the last."""

    def run_probe(self, probe: Probe, /) -> Capture:
        data = json.dumps(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]).encode()
        return Capture(probe.source, "ok", data)

    answers: list[dict[str, object]]


def _host(*answers: dict[str, object]) -> _Answering:
    host = _Answering({}, {})
    host.answers = [*answers]
    return host


def test_verify_waits_until_the_gpus_have_registered(skipped_time: SkippedTime) -> None:
    host = _host(_answer("in progress"), _answer("completed"))
    found = await_fabric(_node(), host, _inventory("not started"))
    assert isinstance(found, NvmlInventory)
    assert found.gpus[0].fabric == "completed"
    assert len(skipped_time.waits) == 2


def test_fabric_check_times_out_and_needs_the_service(skipped_time: SkippedTime) -> None:
    host = _host(_answer("in progress"))
    found = await_fabric(_node(), host, _inventory("in progress"))
    assert isinstance(found, NvmlInventory)
    assert found.gpus[0].fabric == "in progress"
    assert 110 < skipped_time.total_s <= 123
    before = len(skipped_time.waits)
    await_fabric(_node(running=False), host, _inventory("in progress"))
    assert len(skipped_time.waits) == before


def test_an_answer_of_an_older_child_has_no_state() -> None:
    answer = _answer("x")
    for row in answer["gpus"]:  # type: ignore[attr-defined]
        del row["fabric"]
    found = parse_answer(json.dumps(answer).encode())
    assert isinstance(found, NvmlInventory)
    assert not isinstance(found.gpus[0].fabric, str)
    assert isinstance(replace(found.gpus[0], fabric="completed"), Gpu)
