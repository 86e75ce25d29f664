from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpunode.catalog.conflicts import driver_versioned_packages
from gpunode.catalog.fabric import IMEX_NODES_FILE, FabricKind, find_packages
from gpunode.change import FileChange, FileState, KnownAfter, ModuleChange, PackageChange, PackageState, ServiceChange
from gpunode.facts.bridges import bridge_probe
from gpunode.facts.model import Facts, Known, LoadedDriver, PciDevice, Platform, Unknown
from gpunode.facts.project import project_changes
from gpunode.package_id import PackageId
from gpunode.recipe import VersionLock
from gpunode.steps.driver import CONFLICTS_STEP
from gpunode.steps.fabric import FABRIC_BRIDGE_STEP, FABRIC_MODULES_FILE, FABRIC_SERVICE_STEP, FABRIC_STEP, find_fabric
from gpunode.workflow.converge import plan_stage
from tests.ids import by_id
from tests.unit.steps.machines import B200, H100, T4, gpu, machine, planned, recipe, refusal, unit, with_driver

_MANAGER = "nvidia-fabricmanager.service"
SWITCH = PciDevice("0000:05:00.0", "10de", "22a3", "0680")
_ON_SWITCHES = (gpu(H100), SWITCH)
_MISSING = {_MANAGER: unit(active=False, enabled=False, exists=False)}


def _node(*devices: PciDevice, version: str = "595.91.07", **more: Any) -> Facts:
    facts = with_driver(version, gpus=devices, **{"units": {**_MISSING, **more.pop("units", {})}, **more})
    return replace(facts, files={IMEX_NODES_FILE: Known(None, "x"), **facts.files})


@pytest.mark.parametrize(
    ("devices", "kind"),
    [
        (_ON_SWITCHES, "nvswitch"),
        ((gpu("20b2"), PciDevice("0000:05:00.0", "10de", "1af1", "0680")), "nvswitch"),  # A100 SXM
        ((gpu(B200),), "nvlink5"),
        ((gpu("2941"),), "rack"),  # GB200
        ((gpu("2342"),), None),  # GH200: NVLink to its own CPU, no switch
        ((gpu("2331"),), None),  # H100 PCIe
        ((gpu("2321"),), None),  # H100 NVL: bridges, no switch
        ((gpu(H100),), None),  # an SXM part on a board without switches
        ((gpu("1db8"), PciDevice("0000:05:00.0", "10de", "1ac2", "0680")), None),  # DGX-2: not bound by these drivers
        ((gpu(T4),), None),
    ],
)
def test_fabric_kind_by_device_ids(devices: tuple[PciDevice, ...], kind: str | None) -> None:
    found = find_fabric(machine(gpus=devices))
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    ("driver", "devices", "names"),
    [
        ("595", _ON_SWITCHES, ["nvidia-fabricmanager", "libnvidia-nscq"]),
        ("570", _ON_SWITCHES, ["nvidia-fabricmanager-570", "libnvidia-nscq-570"]),
        ("595", (gpu(B200),), ["nvidia-fabricmanager", "libnvsdm", "nvlsm", "infiniband-diags"]),
        ("595", (gpu("2941"),), ["nvidia-imex"]),
    ],
)
def test_the_packages_of_each_fabric(driver: str, devices: tuple[PciDevice, ...], names: list[str]) -> None:
    facts = machine(gpus=devices, files={}, units=_MISSING)
    facts = replace(facts, files={IMEX_NODES_FILE: Known(None, "x"), **facts.files})
    outcome = planned(FABRIC_STEP.plan(recipe(version=driver), facts))
    assert [str(change.id) for change in PackageChange.of_kind(outcome.changes)] == names
    for change in PackageChange.of_kind(outcome.changes):
        is_free = change.id.name in {"nvlsm", "infiniband-diags"}
        assert change.after == (KnownAfter(why="fabric") if is_free else KnownAfter(f"{driver}.", "driver"))


def test_on_arm64_there_is_no_libnvsdm() -> None:
    facts = replace(machine(gpus=(gpu(B200),)), architecture=Known("arm64", "x"))
    names = [change.id.name for change in PackageChange.of_kind(planned(FABRIC_STEP.plan(recipe(), facts)).changes)]
    assert names == ["nvidia-fabricmanager", "nvlsm", "infiniband-diags"]


def test_a_manager_of_another_version_moves_with_the_driver() -> None:
    packages = {"nvidia-fabricmanager": "595.50.02-1", "libnvidia-nscq": "595.91.07-1"}
    outcome = planned(FABRIC_STEP.plan(recipe(), _node(*_ON_SWITCHES, packages=packages)))
    (change,) = PackageChange.of_kind(outcome.changes)
    assert change.id == PackageId("nvidia-fabricmanager")
    assert change.after == KnownAfter("595.91.07-", "driver")
    # It is upgraded, not purged as part of another driver.
    old = {"nvidia-fabricmanager": "580.95.05-1", "libnvidia-nscq": "580.95.05-1", "libcuda1": "580.95.05-1"}
    purged = {
        c.subject
        for c in planned(CONFLICTS_STEP.plan(recipe(version="595"), machine(gpus=_ON_SWITCHES, packages=old))).changes
    }
    assert purged == {"libcuda1"}


def test_fabric_manager_is_enabled_and_starts_only_with_its_driver_loaded() -> None:
    there = {_MANAGER: unit(active=False, enabled=False)}
    (change,) = ServiceChange.of_kind(
        planned(FABRIC_SERVICE_STEP.plan(recipe(), _node(*_ON_SWITCHES, units=there))).changes
    )
    assert (change.after.enabled, change.after.active) == (True, True)
    other = replace(_node(*_ON_SWITCHES, units=there), loaded_driver=Known(LoadedDriver("580.95.05", True), "x"))
    (change,) = ServiceChange.of_kind(planned(FABRIC_SERVICE_STEP.plan(recipe(version="595"), other)).changes)
    assert (change.after.enabled, change.after.active) == (True, False)
    masked = _node(*_ON_SWITCHES, units={_MANAGER: unit(masked=True)})
    outcome = planned(FABRIC_SERVICE_STEP.plan(recipe(), masked))
    assert not outcome.changes
    assert "masked" in outcome.notes[0]


def test_node_without_switches_gets_no_fabric_manager() -> None:
    facts = _node(gpu("2321"), units={_MANAGER: unit(active=False)})
    outcome = planned(FABRIC_STEP.plan(recipe(), facts))
    assert not outcome.changes
    assert "systemctl disable --now nvidia-fabricmanager.service" in outcome.notes[0]
    assert not planned(FABRIC_SERVICE_STEP.plan(recipe(), facts)).changes


def test_the_bridges_module_is_loaded_now_and_at_boot() -> None:
    facts = replace(_node(gpu(B200)), modules=Known(frozenset({"mlx5_core", "mlx5_ib"}), "x"))
    outcome = planned(FABRIC_BRIDGE_STEP.plan(recipe(), facts))
    assert [change.path for change in FileChange.of_kind(outcome.changes)] == [FABRIC_MODULES_FILE]
    assert [change.module for change in ModuleChange.of_kind(outcome.changes)] == ["ib_umad"]
    assert not planned(FABRIC_BRIDGE_STEP.plan(recipe(), project_changes(facts, outcome.changes))).changes
    without = planned(FABRIC_BRIDGE_STEP.plan(recipe(), _node(gpu(B200))))
    assert not ModuleChange.of_kind(without.changes)
    assert "modprobe mlx5_ib" in without.notes[0]


def test_a_rack_starts_imex_once_its_nodes_are_listed() -> None:
    facts = _node(gpu("2941"), units={"nvidia-imex.service": unit(active=False, enabled=False)})
    assert "ComputeDomains" in planned(FABRIC_STEP.plan(recipe(), facts)).notes[0]
    assert not planned(FABRIC_SERVICE_STEP.plan(recipe(), facts)).changes
    listed = replace(facts, files={**facts.files, IMEX_NODES_FILE: Known(FileState(b"10.0.0.1\n"), "x")})
    (change,) = ServiceChange.of_kind(planned(FABRIC_SERVICE_STEP.plan(recipe(), listed)).changes)
    assert change.unit == "nvidia-imex.service"


def test_a_plan_of_the_planned_state_is_empty() -> None:
    facts = machine(gpus=_ON_SWITCHES, units=_MISSING)
    outcome = planned(FABRIC_STEP.plan(recipe(), facts))
    assert not planned(FABRIC_STEP.plan(recipe(), project_changes(facts, outcome.changes))).changes


def test_a_held_manager_of_another_version_is_refused_with_the_command() -> None:
    held = {"nvidia-fabricmanager": PackageState("595.50.02-1", held=True), "libnvidia-nscq": "595.91.07-1"}
    found = refusal(FABRIC_STEP.plan(recipe(), _node(*_ON_SWITCHES, packages=held)))
    assert found.held == (PackageId("nvidia-fabricmanager"),)


def test_a_lock_needs_the_managers_version() -> None:
    row = FABRIC_STEP.packages
    assert row is not None
    names = row.list_wanted(recipe(), machine(gpus=_ON_SWITCHES))
    assert list(names) == [PackageId("nvidia-fabricmanager"), PackageId("libnvidia-nscq")]


def test_switches_passed_through_are_programmed_elsewhere() -> None:
    assert find_fabric(machine(gpus=(gpu(T4), replace(SWITCH, driver="vfio-pci")))) is None


def test_a_masked_imex_is_no_fault() -> None:
    masked = {"nvidia-imex.service": unit(active=False, enabled=False, masked=True)}
    assert planned(FABRIC_SERVICE_STEP.plan(recipe(), _node(gpu("2941"), units=masked))).notes == ()


def test_the_service_waits_for_its_package() -> None:
    outcome = planned(FABRIC_SERVICE_STEP.plan(recipe(), _node(*_ON_SWITCHES)))
    assert not outcome.changes
    assert "nvidia-fabricmanager is not installed" in outcome.reason
    there = _node(*_ON_SWITCHES, packages={"nvidia-fabricmanager": "595.91.07-1"})
    assert len(planned(FABRIC_SERVICE_STEP.plan(recipe(), there)).changes) == 1


def test_unknown_modules_are_not_called_missing() -> None:
    facts = replace(_node(gpu(B200)), modules=Unknown("not captured", "modules"))
    assert planned(FABRIC_BRIDGE_STEP.plan(recipe(), facts)).notes == ()


def test_a_lock_moves_the_manager_in_one_step() -> None:
    names = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced", "libcuda1")
    versions = dict.fromkeys((*names, "nvidia-fabricmanager", "libnvidia-nscq"), "595.91.07-1")
    held = PackageState("595.50.02-1", auto=True)
    node = _node(*_ON_SWITCHES, version="595.50.02", packages=dict.fromkeys([*versions][4:], held))
    lock = VersionLock("node.lock", "r", "debian", "12", "amd64", by_id(versions))
    by_step = {
        one.step.id: [change.id.name for change in PackageChange.of_kind(one.changes)]
        for one in plan_stage(replace(recipe(), lock=lock), node, "packages").steps
    }
    assert sorted(by_step["driver"]) == sorted(names)
    assert by_step["fabric"] == ["nvidia-fabricmanager", "libnvidia-nscq"]
    without = replace(lock, packages={one: v for one, v in lock.packages.items() if one.name != "nvidia-fabricmanager"})
    refused = refusal(FABRIC_STEP.plan(replace(recipe(), lock=without), node))
    assert "no version of nvidia-fabricmanager" in refused.what


def test_a_virtual_machine_without_the_bridge_needs_no_manager() -> None:
    guest = machine(gpus=(gpu(B200),), platform=Platform("vm", "kvm"))
    bridge = PciDevice("0000:07:00.0", "15b3", "1021", "0207")
    assert find_fabric(guest) is None
    with_bridge = find_fabric(machine(gpus=(gpu(B200), bridge), platform=Platform("vm", "kvm")))
    assert with_bridge is not None
    assert with_bridge.kind == "nvlink5"


BRIDGES = tuple(PciDevice(f"0000:0{number}:00.0", "15b3", "1021", "0207") for number in (7, 8))
UNLISTED = "297f"


@pytest.mark.parametrize("device", [B200, "3182", UNLISTED])
def test_board_is_told_by_its_bridges_and_plan_names_them(device: str) -> None:
    """/sys/class/infiniband is empty before mlx5_ib is loaded; the card's own data is not."""
    node = machine(gpus=(gpu(device), *BRIDGES), switch_bridges=("0000:08:00.0",))
    outcome = planned(FABRIC_STEP.plan(recipe(), node))
    assert "nvlsm" in [change.id.name for change in outcome.changes if isinstance(change, PackageChange)]
    assert "behind ConnectX bridge 0000:08:00.0 (SW_MNG in the vital product data)" in outcome.reason
    assert planned(FABRIC_BRIDGE_STEP.plan(recipe(), node)).changes


def test_cards_that_are_no_bridges_make_no_board() -> None:
    guest = machine(gpus=(gpu(B200), *BRIDGES), switch_bridges=(), platform=Platform("vm", "kvm"))
    assert find_fabric(guest) is None, "a network card of the virtual machine's own"
    assert find_fabric(machine(gpus=(gpu(UNLISTED), *BRIDGES), switch_bridges=())) is None
    passed = replace(BRIDGES[0], driver="vfio-pci")
    assert find_fabric(machine(gpus=(gpu(UNLISTED), passed), switch_bridges=(passed.address,))) is None


def test_bridges_are_looked_for_beside_blackwell_alone() -> None:
    assert bridge_probe((gpu(H100), *BRIDGES)) is None
    assert bridge_probe((gpu(B200),)) is None
    probe = bridge_probe((gpu(UNLISTED), *BRIDGES))
    assert probe is not None
    assert probe.argv[-2:] == tuple(f"/sys/bus/pci/devices/{one.address}/vpd" for one in BRIDGES)


def test_unread_imex_nodes_are_not_called_missing() -> None:
    facts = _node(gpu("2941"))
    unread = replace(facts, files={**facts.files, IMEX_NODES_FILE: Unknown("not captured", "x")})
    assert planned(FABRIC_STEP.plan(recipe(), unread)).notes == ()


@pytest.mark.parametrize("branch", [570, 595])
@pytest.mark.parametrize("kind", ["nvswitch", "nvlink5", "rack"])
def test_every_package_of_the_drivers_version_is_pinned(kind: FabricKind, branch: int) -> None:
    assert {*find_packages(kind, branch, "amd64").version_locked} <= {*driver_versioned_packages(branch)}


def test_the_manager_of_a_dgx_2_is_not_called_needless() -> None:
    willow = PciDevice("0000:05:00.0", "10de", "1ac2", "0680")
    facts = _node(gpu("1db8"), willow, version="580.95.05", open_module=False, units={_MANAGER: unit()})
    assert not any("needless" in note or "disable" in note for note in planned(FABRIC_STEP.plan(recipe(), facts)).notes)


@pytest.mark.parametrize("upgrade", [False, True])
def test_suffixed_manager_of_ubuntu_goes_before_the_plain_one_comes(upgrade: bool) -> None:
    """Both bring the same files."""
    packages = {"nvidia-fabricmanager-580": "580.95.05-0ubuntu1", "libnvidia-nscq-580": "580.95.05-0ubuntu1"}
    facts = _node(*_ON_SWITCHES, version="580.95.05", packages=packages)
    stage = plan_stage(replace(recipe(version="580"), upgrade=upgrade), facts, "packages")
    purged = {one.subject for one in stage.packages if one.after is None}
    brought = {one.subject for one in stage.packages if one.after is not None}
    assert purged == {"nvidia-fabricmanager-580", "libnvidia-nscq-580"}
    assert {"nvidia-fabricmanager", "libnvidia-nscq"} <= brought


@pytest.mark.parametrize("present", ["nvidia-fabricmanager-570", "nvidia-fabricmanager"])
@pytest.mark.parametrize("way", ["skip", "only"])
def test_manager_moves_with_the_driver_without_its_own_step(present: str, way: str) -> None:
    facts = _node(*_ON_SWITCHES, version="570.195.03", packages={present: "570.195.03-1"})
    asked = recipe(version="595")
    if way == "skip":
        stage = plan_stage(replace(asked, skip=("fabric", "fabric-bridge", "fabric-service")), facts, "packages")
    else:
        stage = plan_stage(asked, facts, "packages", ("conflicts", "driver"))
    after = {one.subject: one.after for one in stage.packages}
    assert after["nvidia-fabricmanager"] == KnownAfter("595.", "driver")
    assert after.get("nvidia-fabricmanager-570") is None
    assert ("nvidia-fabricmanager-570" in after) is (present == "nvidia-fabricmanager-570")
    assert "libnvidia-nscq" not in after, "only what is there moves"


@pytest.mark.parametrize("upgrade", [False, True])
@pytest.mark.parametrize("skip", [(), ("fabric",)])
def test_manager_of_a_driver_that_comes_is_planned_once_and_in_its_version(
    upgrade: bool, skip: tuple[str, ...]
) -> None:
    there = dict.fromkeys(("nvidia-fabricmanager", "libnvsdm"), PackageState("595.71.05-1", auto=True))
    facts = (
        _node(gpu(B200), version="595.71.05", packages=there) if upgrade else machine(gpus=(gpu(B200),), packages=there)
    )
    wanted = replace(recipe(), upgrade=upgrade, skip=skip)
    stage = plan_stage(wanted, facts, "packages")
    planned_names = [one.subject for one in stage.packages]
    assert len(planned_names) == len(set(planned_names))
    after = {one.subject: one.after for one in stage.packages}
    assert after["nvidia-fabricmanager"] == after["libnvsdm"] == KnownAfter("595.", "driver", auto=bool(skip))
    alone = replace(recipe(), skip=("driver",))  # whose driver gpunode did not install
    changes = PackageChange.of_kind(planned(FABRIC_STEP.plan(alone, facts)).changes)
    assert all(one.is_mark for one in changes if one.subject == "nvidia-fabricmanager")
    again = plan_stage(replace(wanted, upgrade=False), project_changes(facts, stage.ordered_changes), "packages")
    assert again.packages == ()


def test_held_manager_does_not_move_with_the_driver() -> None:
    held = {"nvidia-fabricmanager": PackageState("580.95.05-1", held=True)}
    facts = _node(*_ON_SWITCHES, version="580.95.05", packages=held)
    refused = refusal(CONFLICTS_STEP.plan(replace(recipe(version="595"), skip=("fabric",)), facts))
    assert "nvidia-fabricmanager is held" in refused.what


def test_skipped_step_installs_no_manager_that_is_not_there() -> None:
    facts = _node(*_ON_SWITCHES, version="570.195.03")
    stage = plan_stage(replace(recipe(version="595"), skip=("fabric",)), facts, "packages")
    assert not [one.subject for one in stage.packages if "fabric" in one.subject]


def test_switches_of_a_dgx_2_are_noted() -> None:
    facts = _node(gpu("1db8"), PciDevice("0000:05:00.0", "10de", "1ac2", "0680"), version="580.95.05")
    outcome = planned(FABRIC_STEP.plan(recipe(), facts))
    assert not outcome.changes
    assert any("DGX-2" in note for note in outcome.notes)
