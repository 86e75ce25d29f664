"""The fabric manager of NVSwitch machines, at the driver's exact version, and IMEX of racks that share NVLink.

Without it CUDA answers error 802 (system not yet initialized) on these machines, while nvidia-smi looks healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog.fabric import (
    BRIDGE_MODULE,
    IMEX_NODES_FILE,
    IMEX_UNIT,
    MANAGER_UNIT,
    UNSUPPORTED_NOTE,
    UNSUPPORTED_SWITCH_IDS,
    FabricKind,
    FabricPackages,
    find_packages,
    is_fabric_package,
)
from gpunode.catalog.gpus import find_model
from gpunode.change import Change, FileState, KnownAfter, ModuleChange, PackageChange, ServiceChange, ServiceState
from gpunode.facts.machine import MELLANOX_VENDOR_ID
from gpunode.facts.model import Facts, Known, PciDevice, Unknown, plan_file, require, value_or
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Planned, Refusal, Step, StepOutcome, StepPackageRules
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe
from gpunode.steps.gpus import GPU_OPTION, VFIO_DRIVER, find_nvswitches, find_own_gpus
from gpunode.steps.installed_driver import is_at_version, plan_manual_marks, version_prefix
from gpunode.steps.kernel import is_chosen_driver_loaded
from gpunode.steps.packages import desired_state, find_packages_off_lock, held_packages_refusal
from gpunode.steps.selection import WantedDriver, installed_driver_version, unlocked_package_refusal, wanted_driver

FABRIC_MODULES_FILE: Final = "/etc/modules-load.d/gpunode-fabric.conf"
_BRIDGES_NOT_PROBED: Final = Unknown("not captured", "switch-bridges")
_MODULES_TEXT: Final = f"# Written by gpunode: the fabric manager reaches the NVSwitches through it.\n{BRIDGE_MODULE}\n"


@dataclass(frozen=True, slots=True)
class Fabric:
    """The switches that join this machine's GPUs.

    Attributes:
        seen: the evidence, for messages: ``4 NVSwitches``.
    """

    kind: FabricKind
    seen: str

    @property
    def unit(self) -> str:
        """The service that programs it."""
        return IMEX_UNIT if self.kind == "rack" else MANAGER_UNIT


def find_fabric(facts: Facts) -> Fabric | None:
    """Return what joins this machine's GPUs; None for GPUs without switches.

    Switches up to Hopper are on the PCI bus. Those of Blackwell are behind ConnectX bridges, which identify themselves.
    The GPU model shows them as well: some are sold only on such boards.
    """
    devices = value_or(facts.devices, ())
    switches = [
        device
        for device in find_nvswitches(devices)
        if device.device not in UNSUPPORTED_SWITCH_IDS
        and device.driver != VFIO_DRIVER  # its virtual machine programs it
    ]
    if switches:
        return Fabric("nvswitch", "1 NVSwitch" if len(switches) == 1 else f"{len(switches)} NVSwitches")
    models = {model.name: model for model in (find_model(gpu.device) for gpu in find_own_gpus(devices))}
    if models and (bridges := _find_bridges(facts, devices)):
        found = f"ConnectX bridge{'s' if bridges[1:] else ''} {', '.join(bridges)} (SW_MNG in the vital product data)"
        return Fabric("nvlink5", f"{', '.join(sorted(models))} with NVSwitches behind {found}")
    blackwell = [model for model in models.values() if model.architecture == "Blackwell"]
    on_board = sorted(model.name for model in blackwell if model.nvswitch_board == "possible")
    if on_board and not _leaves_switches_to_host(facts, devices):
        return Fabric(
            "nvlink5", f"{', '.join(on_board)} on an HGX board, whose NVSwitches are not visible on the PCI bus"
        )
    in_rack = sorted(model.name for model in blackwell if model.nvswitch_board == "external")
    return Fabric("rack", f"{', '.join(in_rack)}, whose NVSwitches are in other trays") if in_rack else None


def _find_bridges(facts: Facts, devices: Iterable[PciDevice]) -> list[str]:
    """Return the addresses of the bridges to this machine's switches, without those passed to a virtual machine."""
    probed_bridges = value_or(facts.switch_bridges or _BRIDGES_NOT_PROBED, ())
    if facts.devices.probe == GPU_OPTION:
        return []
    return [device.address for device in devices if device.address in probed_bridges and device.driver != VFIO_DRIVER]


def _leaves_switches_to_host(facts: Facts, devices: Iterable[PciDevice]) -> bool:
    """Return whether this is a virtual machine that got a GPU without the bridge."""
    if not isinstance(facts.platform, Known) or facts.platform.value.kind != "vm":
        return False
    if isinstance(facts.switch_bridges, Known):
        return True  # a bridge among the machine's cards would have shown the fabric
    return all(device.vendor != MELLANOX_VENDOR_ID for device in devices)


def plan_fabric_packages(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the packages of the fabric, in the driver's transaction and at its version."""
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    fabric = find_fabric(facts)
    if fabric is None:
        notes = (*_old_switch_notes(facts), *_needless_manager_notes(facts), *_possible_switch_board_notes(facts))
        return Planned((), "no NVSwitch connects the GPUs of this machine", notes, is_requested=False)
    if driver.chosen.source == "distro" and not (driver.family.signs_own_modules and fabric.kind == "nvswitch"):
        return Refusal(
            what=f"{driver.family.name}'s own archive has no fabric manager for this machine",
            why=f"{fabric.seen}: CUDA on these GPUs needs it at the driver's exact version",
            hint='take NVIDIA\'s packages: --driver-source nvidia, or source = "nvidia" under [driver]',
        )
    packages = require(facts.packages, "which packages are installed")
    needed = _fabric_packages(fabric, driver, facts)
    version = "" if recipe.upgrade else installed_driver_version(facts, driver)
    of_driver = f"{version}-" if version else version_prefix(driver.chosen)
    locked, free = tuple(map(PackageId, needed.version_locked)), tuple(map(PackageId, needed.unlocked))
    if recipe.lock is not None and (
        unlocked := [package for package in (*locked, *free) if package not in recipe.lock.packages]
    ):
        return unlocked_package_refusal(recipe.lock, unlocked[0])
    # For a driver still to come only the branch may be known, and what is installed of it has another version.
    is_version_open = of_driver.endswith(".") and "driver" not in recipe.skip
    present_versions = {package: packages[package].version for package in locked if package in packages}
    missing = [
        name
        for name in locked
        if recipe.upgrade
        or not is_at_version(packages.get(name), of_driver)
        or (is_version_open and present_versions[name] != of_driver)
    ]
    absent = [name for name in free if not is_at_version(packages.get(name), "")]
    wanted = tuple(dict.fromkeys((*missing, *absent, *find_packages_off_lock(recipe, packages, (*locked, *free)))))
    if held_packages := [name for name in wanted if name in packages and packages[name].held]:
        return held_packages_refusal(held_packages, f"the driver {of_driver}*")
    changes = [
        PackageChange(
            name,
            packages.get(name),
            desired_state(
                recipe, name, KnownAfter(of_driver, "driver") if name in locked else KnownAfter(why="fabric")
            ),
        )
        for name in wanted
    ]
    marked = plan_manual_marks(packages, [name for name in (*locked, *free) if name not in wanted])
    what = "memory that trays share" if fabric.kind == "rack" else "CUDA on these GPUs"
    reason = f"{fabric.seen}: {what} needs {needed.version_locked[0]} at the driver's exact version"
    return Planned((*changes, *marked), reason, tuple(_imex_notes(fabric, facts)))


def _fabric_packages(fabric: Fabric, driver: WantedDriver, facts: Facts) -> FabricPackages:
    architecture = require(facts.architecture, "the architecture of this system")
    return find_packages(fabric.kind, driver.chosen.branch, architecture, driver.chosen.source)


def wanted_fabric_packages(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    """Return the packages of this machine's fabric; none if gpunode installs no driver."""
    driver, fabric = wanted_driver(recipe, facts), find_fabric(facts)
    if not isinstance(driver, WantedDriver) or fabric is None:
        return ()
    fabric_packages = _fabric_packages(fabric, driver, facts)
    return tuple(map(PackageId, (*fabric_packages.version_locked, *fabric_packages.unlocked)))


def _old_switch_notes(facts: Facts) -> Iterator[str]:
    """Yield a note on switches that no current driver binds."""
    devices = find_nvswitches(value_or(facts.devices, ()))
    if any(device.device in UNSUPPORTED_SWITCH_IDS and device.driver != VFIO_DRIVER for device in devices):
        yield UNSUPPORTED_NOTE


def _needless_manager_notes(facts: Facts) -> Iterator[str]:
    """Yield a note on a fabric manager that is enabled but has nothing to do."""
    unit = facts.unit(MANAGER_UNIT)
    has_switches = bool(find_nvswitches(value_or(facts.devices, ())))  # of a DGX-2, or passed through
    if not has_switches and isinstance(unit, Known) and unit.value.exists and unit.value.state.enabled:
        yield (
            f"{MANAGER_UNIT} is enabled, and no NVSwitch connects GPUs here: it fails at every boot "
            f"(systemctl disable --now {MANAGER_UNIT})"
        )


def _possible_switch_board_notes(facts: Facts) -> Iterator[str]:
    """Yield a note if an image's GPUs may be on a board with switches, which only the switches' ids tell."""
    if facts.devices.probe != GPU_OPTION:
        return
    models = (find_model(gpu.device) for gpu in find_own_gpus(value_or(facts.devices, ())))
    if names := sorted(
        {model.name for model in models if model.nvswitch_board == "possible" and not model.has_old_switches}
    ):
        yield (
            f"{', '.join(names)}: sold on boards with NVSwitches and without; for a board with them name one, too, as "
            f"`lspci -nn -d 10de::0680` shows it there ({GPU_OPTION} 10de:…,10de:22a3)"
        )


def _imex_notes(fabric: Fabric, facts: Facts) -> Iterator[str]:
    nodes = facts.file(IMEX_NODES_FILE)
    if fabric.kind == "rack" and isinstance(nodes, Known) and nodes.value is None:
        yield (
            f"{IMEX_NODES_FILE} does not exist: list the addresses of the rack's nodes in it, one per line, unless "
            "Kubernetes' DRA driver manages IMEX (ComputeDomains)"
        )


def plan_bridge_module(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the module through which the fabric manager reaches switches behind a ConnectX bridge, before it starts."""
    driver, fabric = wanted_driver(recipe, facts), find_fabric(facts)
    if not isinstance(driver, WantedDriver):
        return driver
    if fabric is None or fabric.kind != "nvlink5":
        return Planned((), "no NVSwitch of this machine is behind a ConnectX bridge", is_requested=False)
    changes: list[Change] = [*plan_file(facts, FABRIC_MODULES_FILE, FileState(_MODULES_TEXT.encode()))]
    loaded = facts.modules.value if isinstance(facts.modules, Known) else None
    # Without the card's own module the kernel has no InfiniBand at all, and whoever installs it loads both.
    if loaded is not None and "mlx5_ib" in loaded and BRIDGE_MODULE not in loaded:
        changes.append(ModuleChange(BRIDGE_MODULE, False, True))
    # The modules here say nothing about an image, or about a machine that --gpu describes.
    is_here = loaded is not None and not facts.is_image and facts.devices.probe != GPU_OPTION
    notes = (_MISSING_MLX5_IB_NOTE,) if is_here and "mlx5_ib" not in (loaded or ()) else ()
    return Planned(tuple(changes), f"the fabric manager reaches the NVSwitches through {BRIDGE_MODULE}", notes)


_MISSING_MLX5_IB_NOTE: Final = (
    "mlx5_ib is not loaded, so the NVSwitches cannot be reached yet: load it (modprobe mlx5_ib); Ubuntu's cloud "
    "kernels have it in linux-modules-extra-$(uname -r)"
)


def plan_fabric_service(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan to enable the fabric's service, and to run it once the driver of its version is loaded."""
    driver, fabric = wanted_driver(recipe, facts), find_fabric(facts)
    if not isinstance(driver, WantedDriver):
        return driver
    if fabric is None:
        return Planned((), "no NVSwitch connects the GPUs of this machine", is_requested=False)
    fact = facts.unit(fabric.unit)
    if not isinstance(fact, Known):
        return Planned((), f"systemd did not report the unit's state ({fact.reason})", is_deferred=True)
    unit = fact.value
    if unit.masked:
        # Kubernetes' DRA driver runs IMEX in pods, and then masks the unit.
        notes = () if fabric.kind == "rack" else (f"{fabric.unit} is masked, so CUDA does not start here",)
        return Planned((), f"{fabric.unit} is masked", notes)
    package = PackageId(_fabric_packages(fabric, driver, facts).version_locked[0])
    if not unit.exists and not is_at_version(value_or(facts.packages, {}).get(package), ""):
        return Planned((), f"{fabric.unit} does not exist: {package} is not installed", is_deferred=True)
    if fabric.kind == "rack" and value_or(facts.file(IMEX_NODES_FILE), None) is None:
        return Planned((), f"{IMEX_UNIT} starts once {IMEX_NODES_FILE} names the nodes of the rack", is_deferred=True)
    runs = facts.can_start(fabric.unit) and is_chosen_driver_loaded(value_or(facts.loaded_driver, None), driver.chosen)
    wanted = ServiceState(enabled=True, active=unit.state.active or runs)
    if unit.exists and unit.state == wanted:
        state = "enabled" + (" and running" if unit.state.active else "; it starts with the driver")
        return Planned((), state, is_deferred=fact.probe == PLAN_PROBE_KEY)
    return Planned((ServiceChange(fabric.unit, unit.state, wanted),), "it programs the NVSwitches at every boot")


FABRIC_STEP = Step(
    "fabric",
    "fabric manager",
    "packages",
    plan_fabric_packages,
    serves=(),
    needs=("driver",),
    for_driver=True,
    packages=StepPackageRules(wanted_fabric_packages, lambda package: is_fabric_package(package.name)),
)
FABRIC_BRIDGE_STEP = Step(
    "fabric-bridge",
    "fabric module",
    "kernel",
    plan_bridge_module,
    serves=("fabric",),
    needs=("fabric",),
    for_driver=True,
)
FABRIC_SERVICE_STEP = Step(
    "fabric-service",
    "fabric service",
    "kernel",
    plan_fabric_service,
    serves=("fabric",),
    needs=("fabric", "fabric-bridge"),
    for_driver=True,
    files=(IMEX_NODES_FILE,),
)
