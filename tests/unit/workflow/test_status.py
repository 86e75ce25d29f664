"""status: its words about a runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gpunode.change import FileChange, FileState, PackageState, ServiceState, Trigger
from gpunode.cli.status import status_lines
from gpunode.facts.model import Known, LoadedDriver, ModuleFile, Unit, Unknown, value_or
from gpunode.facts.nvml import NvmlFailure
from gpunode.facts.probes import MPS_UNIT_FILE
from gpunode.journal.record import Verb
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.steps.daemons import MPS_SERVICE, render_mps_unit
from gpunode.workflow.recovery import Backlog, read_backlog
from gpunode.workflow.status import status
from tests.ids import by_id
from tests.unit.cli import screen_nodes as nodes
from tests.unit.steps.machines import B200, KERNEL, gpu, machine

UNIT = "containerd.service"


@pytest.mark.parametrize(
    ("probe", "exists", "said"),
    [
        ("units", True, "not running"),
        ("unit-wants", True, "unknown whether it runs: systemd does not run here"),
        ("units", False, "no unit"),
        ("unit-wants", False, "no unit"),
    ],
)
def test_runtime_activity_is_shown_only_where_it_is_known(probe: str, exists: bool, said: str) -> None:
    """Without systemd, its folders show that there is a unit, and a daemon may still run."""
    unit = Unit(ServiceState(enabled=True, active=False), exists=exists)
    facts = nodes.converged()
    facts = replace(facts, units={**facts.units, UNIT: Known(unit, probe)})
    text = "\n".join(str(line) for line in status_lines(facts, status(facts, nodes.host(facts), Backlog())))
    assert said in text
    assert ("not running" in text) is (said == "not running")


@pytest.mark.parametrize(
    ("device", "unit", "probe", "said"),
    [
        (B200, "nvidia-fabricmanager.service", "units", "not running: CUDA does not start on these GPUs"),
        (B200, "nvidia-fabricmanager.service", "unit-wants", "unknown whether it runs"),
        ("2941", "nvidia-imex.service", "units", "not running: the trays share no memory"),
    ],
)
def test_the_fabrics_service_is_shown_as_far_as_it_is_known(device: str, unit: str, probe: str, said: str) -> None:
    facts = replace(nodes.converged(), devices=Known((gpu(device),), "x"))
    there = Unit(ServiceState(enabled=True, active=False))
    facts = replace(facts, units={**facts.units, unit: Known(there, probe)})
    text = "\n".join(str(line) for line in status_lines(facts, status(facts, nodes.host(facts), Backlog())))
    assert said in text


def test_nvidia_x_library_is_not_shown_as_a_driver() -> None:
    """OpenMPI and Slurm depend on libxnvctrl0 through libhwloc-plugins."""
    bare = replace(nodes.facts(), packages=Known(by_id({"libxnvctrl0": PackageState("525.85.05-3~deb12u1")}), "dpkg"))
    found = status(bare, nodes.host(bare), Backlog())
    assert (found.driver, found.kernels_without_module) == ("", ())
    failing = replace(found, loaded_driver="", nvml=NvmlFailure(12, "LibraryNotFound", ""))
    assert "NVML" not in "\n".join(line.text for line in status_lines(bare, failing)), "without a driver it is no news"
    assert status(nodes.facts(), nodes.host(bare), Backlog()).driver == "470.256.02"


@pytest.mark.parametrize(
    ("package", "loaded_open", "said"),
    [
        ("nvidia-kernel-dkms", True, "a reboot loads 580.95.05 with its proprietary modules"),
        ("nvidia-kernel-open-dkms", False, "a reboot loads 580.95.05 with its open modules"),
        ("nvidia-dkms-580-open", False, "a reboot loads 580.95.05 with its open modules"),
        ("linux-modules-nvidia-580-server-open-6.8.0-88-generic", False, "with its open modules"),
        ("linux-modules-nvidia-580-server-6.8.0-88-generic", True, "with its proprietary modules"),
        ("nvidia-kernel-open-dkms", True, ""),
        ("nvidia-kernel-dkms", False, ""),
    ],
)
def test_modules_of_the_other_flavour_wait_for_a_reboot(package: str, *, loaded_open: bool, said: str) -> None:
    facts = machine(
        packages={package: "580.95.05-1", "libcuda1": "580.95.05-1", "nvidia-fs-dkms": "2.26"},
        loaded_driver=LoadedDriver("580.95.05", open_module=loaded_open),
        module_files=(ModuleFile(KERNEL, "nvidia.ko", "580.95.05", dkms=True),),
    )
    text = "\n".join(str(line) for line in status_lines(facts, status(facts, nodes.host(facts), Backlog())))
    assert said in text
    assert ("a reboot loads" in text) is bool(said)


def test_unit_state_that_systemctl_does_not_report_is_unknown() -> None:
    facts = nodes.converged()
    facts = replace(facts, units={**facts.units, UNIT: Unknown("Running in chroot, ignoring command", "units")})
    text = "\n".join(str(line) for line in status_lines(facts, status(facts, nodes.host(facts), Backlog())))
    assert "unknown whether it runs: Running in chroot" in text


@pytest.mark.parametrize(
    ("package", "shown"),
    [("libxnvctrl0", ""), ("nvidia-detect", ""), ("libcuda1", "525.85.05"), ("nvidia-kernel-dkms", "525.85.05")],
)
def test_driver_is_recognized_by_its_module_or_libcuda(package: str, shown: str) -> None:
    """libhwloc-plugins, and so OpenMPI and Slurm, depends on an X library of NVIDIA's."""
    facts = machine(packages={package: "525.85.05-3"})
    found = status(facts, nodes.host(facts), Backlog())
    assert found.driver == shown
    assert bool(found.kernels_without_module) is bool(shown)


@pytest.mark.parametrize(
    ("verbs", "finisher"),
    [
        (("setup",), "the same gpunode setup again"),
        (("setup", "remove"), "the same gpunode remove again"),
        (("remove", "repair"), "the same gpunode remove again"),
        (("rollback", "configure"), "the same gpunode rollback again"),
        (("setup", "unconfigure"), "the same gpunode ctk runtime unconfigure again"),
        (("remove", "setup"), "the same gpunode setup again"),
        (("configure",), "the same gpunode ctk runtime configure again"),
        (("setup", "configure"), "the same gpunode setup again"),
        (("unconfigure done", "configure"), "the same gpunode ctk runtime configure again"),
        (("remove done", "configure done"), "the same gpunode remove again"),
        (("repair",), "the same gpunode setup again"),
    ],
)
def test_status_names_the_same_command_for_what_is_left(tmp_path: Path, verbs: tuple[str, ...], finisher: str) -> None:
    store, facts = Store(tmp_path), nodes.converged()
    owes = frozenset({Trigger("initramfs")})
    for one in verbs:
        verb, _, is_done = one.partition(" ")
        run = store.begin(cast("Verb", verb))
        change = FileChange("/etc/modprobe.d/x.conf", FileState(b""), None, owes)
        run.record_done(run.record_intent("packages", "nouveau", change))
        run.commit("done" if is_done else "failed")
        run.close()
    found = status(facts, nodes.host(facts), read_backlog(store, facts))
    (told,) = (str(line) for line in status_lines(facts, found) if "left undone" in str(line))
    assert f"; {finisher} finishes it" in told


def test_status_names_the_whole_command_of_an_undo_that_was_cut_short(tmp_path: Path) -> None:
    """A plain rollback would offer to undo another run."""
    store, facts = Store(tmp_path), nodes.converged()
    run = store.begin("rollback", argv=("rollback", "2", "--packages"))
    change = FileChange("/etc/modprobe.d/x.conf", FileState(b""), None, frozenset({Trigger("initramfs")}))
    run.record_done(run.record_intent("packages", "nouveau", change))
    run.close()
    found = status(facts, nodes.host(facts), read_backlog(store, facts))
    (told,) = (str(line) for line in status_lines(facts, found) if "left undone" in str(line))
    assert "; `sudo gpunode rollback 2 --packages` finishes it" in told


def test_module_of_a_removed_driver_waits_for_the_reboot(tmp_path: Path) -> None:
    """NVML's library was removed with the driver: right after a removal, do not advise installing it."""
    facts = machine(loaded_driver=LoadedDriver("580.95.05", open_module=True))
    found = replace(
        status(facts, nodes.host(facts), read_backlog(Store(tmp_path), facts)), nvml=NvmlFailure(12, "x", "")
    )
    told = "\n".join(str(line) for line in status_lines(facts, found))
    assert "this module is gone after the next boot" in told
    assert "gpunode setup" not in told


def test_module_of_a_removed_driver_runs_no_cuda() -> None:
    facts = machine(loaded_driver=LoadedDriver("580.95.05", open_module=True))
    for libraries, newest in ((frozenset(), ""), ({"/usr/lib/x86_64-linux-gnu/libcuda.so.1"}, "13.0")):
        node = replace(facts, driver_libraries=Known(frozenset(libraries), "cuda-libraries"))
        assert status(node, nodes.host(node), Backlog()).cuda.driver == newest


def test_run_driver_whose_nvml_fails_is_no_removed_one(tmp_path: Path) -> None:
    facts = machine(loaded_driver=LoadedDriver("580.95.05", open_module=True))
    facts = replace(facts, run_installer=Known(value=True, probe="run-installer"))
    found = replace(
        status(facts, nodes.host(facts), read_backlog(Store(tmp_path), facts)), nvml=NvmlFailure(18, "x", "")
    )
    assert "this module is gone" not in "\n".join(str(line) for line in status_lines(facts, found))


def test_mps_daemon_of_the_nodes_recipe_is_no_leftover(tmp_path: Path) -> None:
    """The recipe that made it is not known to status."""
    facts = machine(files={MPS_UNIT_FILE: FileState(render_mps_unit(exclusive=False))})
    running = Known(Unit(ServiceState(enabled=True, active=True), exists=True), "units")
    facts = replace(facts, units={**facts.units, MPS_SERVICE: running})
    found = status(facts, nodes.host(facts), read_backlog(Store(tmp_path), facts))
    assert not [note for note in found.notes if MPS_SERVICE in note]


def test_status_says_nothing_of_a_recipe() -> None:
    """It knows none; plan says why nvidia stays the default."""
    facts, path = nodes.converged(), "/etc/containerd/config.toml"
    default = b'\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
    present = value_or(facts.file(path), None) or FileState(b"")
    config = replace(present, content=present.content + default)
    facts = replace(facts, files={**facts.files, path: Known(config, path)})
    found = status(facts, nodes.host(facts), Backlog())
    assert [row.configured.default for row in found.runtimes if row.configured] == ["nvidia"]
    assert not [note for note in found.notes if "recipe" in note]


def test_reboot_loads_no_driver_whose_module_the_next_kernel_lacks() -> None:
    facts = machine(packages={"libcuda1": "620.70.06-1"}, loaded_driver=LoadedDriver("580.95.05", open_module=False))
    text = "\n".join(str(line) for line in status_lines(facts, status(facts, nodes.host(facts), Backlog())))
    assert "the next boot would have no driver" in text
    assert "a reboot loads" not in text


def test_package_that_is_only_unpacked_is_named() -> None:
    package = PackageId("nvidia-container-toolkit")
    facts = replace(nodes.converged(), packages_interrupted=Known(True, "x"), unconfigured=frozenset({package}))
    found = status(facts, nodes.host(facts), Backlog())
    assert f"not configured: {package}; the next setup finishes them, or `sudo dpkg --configure -a`" in found.notes[0]
