"""A GPU divided by setup and put back by rollback: real files, journal and child programs, on the stand-in NVML."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import gpunode
from gpunode.change import Change, MigChange, MigLayout, Trigger
from gpunode.errors import Conflict, DrainRequired
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Facts, Known
from gpunode.facts.nvml import list_mig_gpus, read_nvml_answer
from gpunode.facts.probes import MIG_BOOT_DROP_IN_FILE, MIG_UNIT_FILE
from gpunode.host.local import LocalHost
from gpunode.host.nvml import make_probe
from gpunode.host.port import GpuClient, TriggerResult, Workloads
from gpunode.journal.store import Store
from gpunode.recipe import MigSettings, Recipe
from gpunode.workflow import live_state
from gpunode.workflow.remove import plan_removal
from gpunode.workflow.rollback import execute_undo, plan_rollback
from gpunode.workflow.setup import SetupOptions, SetupResult, setup
from gpunode.workflow.verify import verify
from tests.conformance.hostile.image import needs_root
from tests.conformance.nvml.test_mig_standin import BALANCED, EMPTY, OFF, SEVEN, UUID, host
from tests.fakes.compile import library
from tests.fakes.mig import reboot
from tests.unit.steps.machines import H100, gpu, with_driver

pytestmark = needs_root

WANTED = Recipe("mig", driver=replace(Recipe("").driver, version="none"), mig=MigSettings("all-balanced"))
ONLY = ("mig",)


class Machine(LocalHost):
    """A machine whose files are below the test's folder and whose GPU is the stand-in library's."""

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__(str(folder / "root"))
        self.state = folder / "mig"
        self.live = host(self.state, 1, **environment)
        self.owed: list[Trigger] = []
        version = folder / "root/proc/driver/nvidia/version"
        version.parent.mkdir(parents=True, exist_ok=True)
        version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n")

    def run_probe(self, probe: Probe, /) -> Capture:
        return self.live.run_probe(probe) if probe.argv else super().run_probe(probe)

    def apply(self, changes: Sequence[Change], /) -> None:
        for change in changes:
            if isinstance(change, MigChange):
                self.live.apply([change])
            else:
                super().apply([change])

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        self.owed += triggers
        return tuple(TriggerResult(trigger, 0.0) for trigger in triggers)

    def find_workloads(self) -> Workloads:
        job = GpuClient(4711, "python train.py", container="0123456789ab")
        return Workloads((job, GpuClient(99, "nvtop")))

    def facts(self) -> Facts:
        files = {
            path: Known(live_state.read_file_state(self, path), f"file:{path}")
            for path in (MIG_UNIT_FILE, MIG_BOOT_DROP_IN_FILE)
        }
        facts = with_driver(
            gpus=(gpu(H100, address="0000:0f:00.0"),),
            mig=list_mig_gpus(read_nvml_answer(self.run_probe(make_probe(60)))),
        )
        return replace(facts, files={**facts.files, **files})

    def layout(self) -> MigLayout | None:
        return list_mig_gpus(read_nvml_answer(self.run_probe(make_probe(60))))[0].layout

    def setup(self, store: Store, recipe: Recipe = WANTED, *, allow_disruption: bool = False) -> SetupResult:
        asked = SetupOptions(only=ONLY, allow_disruption=allow_disruption)
        return setup(
            recipe,
            self,
            store,
            self.facts(),
            advance=lambda _, __: self.facts(),
            options=asked,
            on_event=lambda _: None,
        )

    def rollback(self, store: Store, run: str, *, force: bool = False) -> str:
        back = plan_rollback(store, self, run, force=force)
        done = execute_undo(back, self, store, on_event=lambda _: None)
        return done.plan.reboot_reason

    def verified(self) -> tuple[str, str]:
        report = verify(WANTED, self.facts(), self, lambda _: None, only=ONLY)
        found = next(one for one in report.checks if one.id == "mig")
        return found.status, found.detail


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "journal").mkdir()
    return Store(tmp_path / "journal")


def test_mig_setup_converges_and_rolls_back(tmp_path: Path, store: Store) -> None:
    node = Machine(tmp_path)
    assert node.verified() == ("failed", f"still to do: {MIG_UNIT_FILE}, {MIG_BOOT_DROP_IN_FILE}, {UUID}")
    done = node.setup(store)
    assert node.layout() == BALANCED
    assert node.verified() == ("passed", f"all-balanced: {BALANCED}")
    assert not node.setup(store).changed
    assert node.rollback(store, done.run) == ""
    assert node.layout() == OFF
    assert not (tmp_path / "root").joinpath(MIG_UNIT_FILE[1:]).exists()
    assert not (tmp_path / "root/etc/systemd/system/multi-user.target.d").exists()
    assert set(node.owed) == {Trigger("daemon-reload")}


def test_former_mig_layout_is_restored_exactly(tmp_path: Path, store: Store) -> None:
    node = Machine(tmp_path)
    node.apply([MigChange(UUID, OFF, SEVEN)])
    first = node.setup(store)
    second = node.setup(store, replace(WANTED, mig=MigSettings("all-disabled")))
    assert node.layout() == OFF
    with pytest.raises(Conflict, match="later runs changed the same things"):
        plan_rollback(store, node, first.run)
    node.rollback(store, second.run)
    assert node.layout() == BALANCED
    node.rollback(store, first.run)
    assert node.layout() == SEVEN


@pytest.mark.parametrize("changed", [SEVEN, MigLayout(True, BALANCED.instances[1:])])
def test_mig_layout_changed_since_is_kept_unless_forced(tmp_path: Path, store: Store, changed: MigLayout) -> None:
    """Part of gpunode's layout remains. Since no run was killed, another user must have removed the rest."""
    node = Machine(tmp_path)
    done = node.setup(store)
    node.apply([MigChange(UUID, BALANCED, changed)])
    with pytest.raises(Conflict, match="no longer has the MIG layout"):
        plan_rollback(store, node, done.run)
    node.rollback(store, done.run, force=True)
    assert node.layout() == OFF


@pytest.mark.parametrize("made", [MigLayout(True, BALANCED.instances[1:]), MigLayout(True, SEVEN.instances[:3]), EMPTY])
def test_rollback_killed_while_dividing_is_finished_by_remove(tmp_path: Path, store: Store, made: MigLayout) -> None:
    """The kill leaves the GPU without some instances of the old layout, or with the first ones of the new layout."""
    node = Machine(tmp_path)
    node.apply([MigChange(UUID, OFF, SEVEN)])
    done = node.setup(store)

    def die(changes: Sequence[Change]) -> None:
        cut = [replace(change, after=made) if isinstance(change, MigChange) else change for change in changes]
        Machine.apply(node, cut)
        if cut != list(changes):
            os._exit(9)

    if (child := os.fork()) == 0:
        node.apply = die  # type: ignore[method-assign]
        node.rollback(store, done.run)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert node.layout() == made

    back = plan_removal(store, node, node.facts())
    execute_undo(back, node, store, on_event=lambda _: None)

    assert node.layout() == SEVEN
    assert not (tmp_path / "root").joinpath(MIG_UNIT_FILE[1:]).exists()


def test_processes_on_the_gpu_are_named_with_their_container(tmp_path: Path, store: Store) -> None:
    free = Machine(tmp_path)
    free.apply([MigChange(UUID, OFF, SEVEN)])
    used = Machine(tmp_path, FAKE_NVML_CLIENTS="0:4711,0:4712")
    with pytest.raises(DrainRequired) as raised:
        used.setup(store)
    assert raised.value.what == "continuing would change the MIG layout under 2 processes"
    assert raised.value.why == "running: 4711 (python train.py) in container 0123456789ab, 4712"
    assert not store.read_runs()
    free.setup(store)
    with pytest.raises(DrainRequired):
        plan_rollback(store, used, store.read_runs()[-1].id)


def test_setup_continues_after_the_reboot_for_a_pending_mig_mode(tmp_path: Path, store: Store) -> None:
    late = Machine(tmp_path, FAKE_NVML_MIG_LATE="1")
    done = late.setup(store)
    assert [(wait.waits_for, UUID in wait.reason) for wait in done.waits] == [("reboot", True)]
    assert late.verified()[0] == "skipped"
    reboot(late.state)
    node = Machine(tmp_path)
    assert node.layout() == EMPTY
    assert node.setup(store).waits == ()
    assert node.layout() == BALANCED


def test_rollback_to_a_pending_mig_mode_reports_the_reboot(tmp_path: Path, store: Store) -> None:
    done = Machine(tmp_path).setup(store)
    late = Machine(tmp_path, FAKE_NVML_MIG_LATE="1")
    assert "MIG is switched off" in late.rollback(store, done.run)


@pytest.mark.parametrize("keeps_mode", [True, False])
def test_boot_unit_recreates_the_mig_layout(tmp_path: Path, store: Store, *, keeps_mode: bool) -> None:
    node = Machine(tmp_path)
    node.setup(store)
    reboot(node.state, keeps_mode=keeps_mode)
    assert node.layout() == (EMPTY if keeps_mode else OFF)
    unit = (tmp_path / "root").joinpath(MIG_UNIT_FILE[1:]).read_text()
    # As systemd.service(5) reads it: lines joined, $$ is $.
    start = unit.replace("\\\n", " ").split("ExecStart=")[1].splitlines()[0].replace("$$", "$")
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI.format(python=sys.executable))
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    environment = {
        "LD_LIBRARY_PATH": str(library("nvml/nvml.c", "libnvidia-ml.so.1")),
        "FAKE_NVML_MIG": str(node.state),
        "PYTHONPATH": str(Path(gpunode.__file__).parents[1]),
    }
    argv = shlex.split(start.replace("/usr/bin/nvidia-smi", str(smi)))
    done = subprocess.run(argv, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert node.layout() == BALANCED
    assert not node.setup(store).changed
    again = subprocess.run(argv, check=False, env=environment, capture_output=True, text=True)
    assert again.returncode == 1, "what is there already is not made twice, and the unit says so"
    assert node.layout() == BALANCED


# As nvidia-smi documents: -mig, and mig -cgi PROFILE:START,… -C.
SMI = """#!{python}
import sys
import pynvml
from gpunode.host import mig
words = sys.argv[1:]
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByUUID(words[words.index("-i") + 1])
if words[0] != "mig":
    if pynvml.nvmlDeviceGetMigMode(gpu)[0] == 0:
        pynvml.nvmlDeviceSetMigMode(gpu, int(words[words.index("-mig") + 1]))
    sys.exit(0)
assert pynvml.nvmlDeviceGetMigMode(gpu)[0] == 1
by_name = {{mig._short_profile_name(one): one for one in mig._gpu_profiles(pynvml, gpu)}}
sizes = {{"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4}}
for one in words[words.index("-cgi") + 1].split(","):
    name, _, start = one.partition(":")
    row = {{"start": int(start), "size": sizes[name], "compute": [int(name[0])], "profile": name}}
    mig._create_instance(pynvml, gpu, by_name[name], row)
"""


def test_remove_restores_the_original_mig_layout(tmp_path: Path, store: Store) -> None:
    node = Machine(tmp_path)
    node.apply([MigChange(UUID, OFF, SEVEN)])
    node.setup(store)
    node.setup(store, replace(WANTED, mig=MigSettings("all-2g.20gb")))
    back = plan_removal(store, node, node.facts())
    execute_undo(back, node, store, on_event=lambda _: None)
    assert node.layout() == SEVEN
    assert store.footprint().layouts == {}
    assert not (tmp_path / "root").joinpath(MIG_UNIT_FILE[1:]).exists()
