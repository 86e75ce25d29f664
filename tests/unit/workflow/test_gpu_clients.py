"""No GPU is taken away without consent: its users are counted and named, NVIDIA's services stopped and started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import (
    GPU_SERVICES,
    Change,
    CommandChange,
    FileChange,
    FileState,
    MigChange,
    MigLayout,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
    Trigger,
    sort_changes,
    sort_triggers,
)
from gpunode.errors import ChangeFailed, DrainRequired
from gpunode.facts.model import Facts
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.host.port import GpuClient, Workloads
from gpunode.host.rehearsal import RehearsalHost
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation
from gpunode.steps.daemons import MPS_SERVICE, find_worst_gpu_loss, plan_service_stops
from gpunode.workflow.converge import plan_stage, project_stage
from gpunode.workflow.disruption import refuse_disruptive_setup, refuse_gpu_clients
from gpunode.workflow.setup import SetupOptions, SetupResult, setup
from tests.unit.steps.machines import recipe, unit, with_driver
from tests.unit.steps.test_run_driver import REMOVING, run_driver
from tests.unit.workflow.nodes import Node

RUNNING, STOPPED = ServiceState(enabled=True, active=True), ServiceState(enabled=False, active=False)
STOP = ServiceChange(MPS_SERVICE, RUNNING, STOPPED)
RESTART = FileChange("/x", FileState(b"a"), FileState(b"b"), frozenset({Trigger("restart", MPS_SERVICE)}))
OTHER = ServiceChange("docker.service", RUNNING, STOPPED)
JOB, SERVER = GpuClient(812, "python3 train.py"), GpuClient(7, "/usr/bin/nvidia-cuda-mps-server")
DCGM = "nvidia-dcgm.service"
UNINSTALL = CommandChange(UNINSTALL_RUN_DRIVER, "x")
LAYOUT = MigChange("GPU-1", MigLayout(enabled=False), MigLayout(enabled=True))


def package(name: str, before: str, after: str = "") -> PackageChange:
    return PackageChange(PackageId(name), PackageState(before), PackageState(after) if after else None)


UPGRADE = package("libcuda1", "580.95.05-1", "595.91.07-1")


class Busy(RehearsalHost):
    """A node on which these processes have a GPU open."""

    def __init__(self, *gpu: GpuClient) -> None:
        super().__init__({}, {})
        self.gpu = gpu

    def find_workloads(self) -> Workloads:
        return Workloads(gpu_clients=self.gpu)


@pytest.mark.parametrize(
    ("change", "loss"),
    [
        (UPGRADE, "driver"),
        (package("nvidia-kernel-open-dkms", "580.95.05-1"), "driver"),
        (package("nvidia-fabricmanager", "580.95.05-1", "580.178.04-1"), "driver"),
        (ModuleChange("nvidia", before=True, after=False), "driver"),
        (UNINSTALL, "driver"),
        (LAYOUT, "layout"),
        (STOP, "mps"),
        (RESTART, "mps"),
        (PackageChange(PackageId("libcuda1"), None, PackageState("595.91.07-1")), None),
        (PackageChange(PackageId("libcuda1"), PackageState("1", auto=True), PackageState("1")), None),
        (package("nvidia-settings", "580.95.05-1", "595.91.07-1"), None),
        (package("nvidia-container-toolkit", "1.17.0-1", "1.18.0-1"), None),
        (OTHER, None),
    ],
)
def test_change_takes_the_gpu_from_its_users(change: Change, loss: str | None) -> None:
    assert find_worst_gpu_loss([change]) == loss


def test_services_stop_against_the_order_in_which_they_start() -> None:
    facts = with_driver(units={name: unit() for name in sorted(GPU_SERVICES)})
    pauses = plan_service_stops([UPGRADE], facts)
    assert [pause.unit for pause in pauses] == [
        "gpunode-mps.service",
        DCGM,
        "nvidia-imex.service",
        "nvidia-fabricmanager.service",
        "nvlsm.service",
        "nvidia-persistenced.service",
    ]
    started = sort_triggers(trigger for pause in pauses for trigger in pause.triggers)
    assert [trigger.target for trigger in started] == [*GPU_SERVICES]
    assert sort_changes((UPGRADE, *pauses)) == (*pauses, UPGRADE)


@pytest.mark.parametrize(
    ("changes", "units", "stopped"),
    [
        ([LAYOUT], {DCGM: unit(), "nvidia-fabricmanager.service": unit()}, [DCGM]),  # the GPU's reset needs the manager
        ([UPGRADE], {DCGM: unit(active=False)}, []),
        ([UPGRADE, ServiceChange(DCGM, RUNNING, STOPPED)], {DCGM: unit()}, []),  # it must stay stopped
        ([OTHER], {DCGM: unit()}, []),
    ],
)
def test_only_services_in_the_way_are_stopped(
    changes: list[Change], units: dict[str, object], stopped: list[str]
) -> None:
    facts = with_driver(units={"nvidia-persistenced.service": unit(active=False), **units})
    assert [pause.unit for pause in plan_service_stops(changes, facts)] == stopped


@pytest.mark.parametrize(
    ("change", "gpu", "is_refused"),
    [
        (STOP, (SERVER, JOB), True),
        (RESTART, (JOB,), True),
        (STOP, (SERVER, GpuClient(5, "nv-hostengine", unit=DCGM)), False),
        (OTHER, (JOB,), False),
        (ServiceChange(MPS_SERVICE, STOPPED, RUNNING), (JOB,), False),
    ],
)
def test_mps_daemon_with_clients_is_not_stopped(change: Change, gpu: tuple[GpuClient, ...], is_refused: bool) -> None:
    host = Busy(*gpu)
    if not is_refused:
        refuse_gpu_clients(host, [change])
        return
    with pytest.raises(DrainRequired) as refused:
        refuse_gpu_clients(host, [change])
    assert str(JOB) in refused.value.why
    assert str(SERVER) not in refused.value.why


def test_pending_restart_of_the_mps_daemon_needs_its_clients_gone() -> None:
    with pytest.raises(DrainRequired):
        refuse_gpu_clients(Busy(JOB), [], [Trigger("restart", MPS_SERVICE)])


@pytest.mark.parametrize(("processes", "is_refused"), [((JOB,), True), ((), False)])
def test_run_driver_of_a_busy_gpu_is_not_uninstalled(processes: tuple[GpuClient, ...], is_refused: bool) -> None:
    plans = [plan_stage(REMOVING, run_driver(), "sources", ("run-driver",))]
    assert any(change.action == "run" for change in plans[0].ordered_changes)
    if not is_refused:
        refuse_disruptive_setup(plans, (), run_driver(), Busy(*processes))
        return
    with pytest.raises(DrainRequired) as refused:
        refuse_disruptive_setup(plans, (), run_driver(), Busy(*processes))
    assert str(JOB) in refused.value.why


def test_each_kind_of_client_is_named_with_what_ends_it() -> None:
    clients = (
        JOB,
        GpuClient(9, "python serve.py", container="0123456789ab", pod="team/web-0"),
        GpuClient(10, "python", container="ba9876543210"),
        GpuClient(11, "/usr/lib/xorg/Xorg vt1"),
        GpuClient(12, "ollama serve", unit="ollama.service"),
        GpuClient(13, "nv-hostengine -n", unit=DCGM),  # stopped by the plan
    )
    pause = plan_service_stops(
        [UPGRADE], with_driver(units={DCGM: unit(), "nvidia-persistenced.service": unit(active=False)})
    )
    with pytest.raises(DrainRequired) as refused:
        refuse_gpu_clients(Busy(*clients), [*pause, UPGRADE])
    assert refused.value.what == "continuing would take the driver away from 5 processes"
    assert refused.value.why == (
        "running: 9 (python serve.py) in pod team/web-0, 10 (python) in container ba9876543210, "
        "11 (/usr/lib/xorg/Xorg vt1), 12 (ollama serve) of ollama.service, 812 (python3 train.py)"
    )
    assert refused.value.hint.splitlines() == [
        "drain the node first (kubectl drain NODE --ignore-daemonsets)",
        "stop their containers first",
        "end the display first: systemctl isolate multi-user.target",
        "systemctl stop ollama.service",
        "end them first",
        "or continue with --allow-disruption",
    ]


def test_a_service_that_no_plan_stops_is_a_client() -> None:
    """DCGM in a container, or a unit that systemd did not report."""
    with pytest.raises(DrainRequired, match="1 process"):
        refuse_gpu_clients(Busy(GpuClient(5, "nv-hostengine", unit=DCGM)), [UPGRADE])


# -- setup -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


UPGRADING = replace(recipe(), upgrade=True)
ASKED = SetupOptions(only=("driver",))
PERSISTENCED = "nvidia-persistenced.service"


def upgrading(**more: object) -> Node:
    facts = with_driver("595.91.07", units={PERSISTENCED: unit(), DCGM: unit()})

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        return Simulation(tuple(Action("install", one.id, "595.99.01-1", "595.91.07-1") for one in changes))

    return Node(facts, solver=solver, **more)  # type: ignore[arg-type]


def run(host: Node, store: Store, facts: Facts | None = None) -> SetupResult:
    node = facts or with_driver("595.91.07", units={PERSISTENCED: unit(), DCGM: unit()})
    return setup(
        UPGRADING if facts is None else recipe(),
        host,
        store,
        node,
        advance=project_stage,
        options=ASKED,
        on_event=lambda _: None,
    )


def starts(host: Node) -> list[str]:
    return [trigger.target for trigger in host.triggered if trigger.kind == "start"]


def test_driver_upgrade_stops_services_before_and_starts_them_after(store: Store) -> None:
    host = upgrading()
    run(host, store)
    assert [one.subject for one in host.made[:2]] == [DCGM, PERSISTENCED]
    assert all(isinstance(one, PackageChange) for one in host.made[2:])
    assert starts(host) == [PERSISTENCED, DCGM]
    assert store.find_pending_triggers() == {}


def test_upgrade_without_a_newer_driver_stops_nothing(store: Store) -> None:
    host = upgrading()
    host.solver = lambda _: Simulation(())
    assert not run(host, store).changed
    assert host.made == []


def test_failed_transaction_starts_the_stopped_services_again(store: Store) -> None:
    host = upgrading(refuses=PackageChange)
    with pytest.raises(ChangeFailed, match="could not be done"):
        run(host, store)
    assert starts(host) == [PERSISTENCED, DCGM]
    assert store.find_pending_triggers() == {}


def test_service_that_does_not_start_keeps_no_other_from_starting(store: Store) -> None:
    host = upgrading(accepts=lambda trigger, _: trigger.target != PERSISTENCED)
    with pytest.raises(ChangeFailed, match=f"{PERSISTENCED} did not start again"):
        run(host, store)
    assert starts(host) == [PERSISTENCED, DCGM]
    assert [*store.find_pending_triggers()] == [Trigger("start", PERSISTENCED)]


class PowerCut(BaseException):
    """The machine has lost power."""


def test_services_stopped_by_a_killed_run_are_started_by_the_next(store: Store) -> None:
    host = upgrading()
    kept: dict[Path, bytes] = {}

    def cut() -> None:
        # A machine without power would not write what handlers of this process write afterwards.
        kept.update({path: path.read_bytes() for path in store.folder.rglob("journal.jsonl")})
        if any(one.subject == PERSISTENCED for one in host.made):
            raise PowerCut

    with pytest.raises(PowerCut):
        setup(
            UPGRADING,
            host,
            store,
            with_driver("595.91.07", units={PERSISTENCED: unit(), DCGM: unit()}),
            advance=project_stage,
            options=replace(ASKED, check_interrupt=cut),
            on_event=lambda _: None,
        )
    for path, content in kept.items():
        path.write_bytes(content)
    assert [trigger.target for trigger in store.find_pending_triggers()] == [PERSISTENCED, DCGM]

    host.triggered.clear()
    stopped = {name: unit(active=False) for name in (PERSISTENCED, DCGM)}
    run(host, store, with_driver("595.91.07", units=stopped))
    assert starts(host) == [PERSISTENCED, DCGM]
    assert store.find_pending_triggers() == {}
