"""Detection of the machine and its GPUs; changes nothing, refuses what cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpunode.catalog.gpus import find_model, is_nvswitch, vgpu_profile
from gpunode.catalog.tables import note_old_tables
from gpunode.command import gpunode_command
from gpunode.distros import list_supported_distros
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Known, PciDevice, Platform, require, value_or
from gpunode.outcome import Planned, Refusal, Step, StepOutcome
from gpunode.recipe import Expect, Recipe, VersionLock
from gpunode.steps.fabric import find_fabric
from gpunode.steps.gpus import GPU_CLASS_CODES, GPU_OPTION, VFIO_DRIVER, find_gpus, find_other_gpus, find_own_gpus
from gpunode.steps.installed_driver import family_of, wants_driver
from gpunode.steps.selection import WantedDriver, wanted_driver


def inactive_fabric_notes(recipe: Recipe, facts: Facts) -> Iterator[str]:
    """Yield a note if GPUs joined by NVSwitches need a service that does not run, and gpunode installs no driver."""
    fabric, driver = find_fabric(facts), wanted_driver(recipe, facts)
    is_coming = isinstance(driver, WantedDriver) or (isinstance(driver, Planned) and driver.is_deferred)
    # CUDA starts without IMEX, which joins the memory of several trays.
    if fabric is None or fabric.kind == "rack" or is_coming:
        return
    needs = f"{fabric.seen}: CUDA on these GPUs needs {fabric.unit}"
    fact = facts.unit(fabric.unit)
    if not isinstance(fact, Known) or (fact.value.exists and not facts.can_start(fabric.unit)):
        yield f"{needs}; whether it runs is unknown"
        return
    unit = fact.value if fact.value.exists else None
    if unit is not None and unit.state.active:
        return
    cause = "fabric-manager-not-running" if unit else "fabric-manager-not-installed"
    state = "does not run" if unit else "is not installed: gpunode installs it with a driver that it manages"
    how = gpunode_command("doctor", cause)
    yield f"{needs}, which {state}; `{how}` shows the commands"


_OTHER_GPU_VENDORS = {"1002": "AMD", "8086": "Intel"}
# The place that was inspected, by its probe.
_PLACE_NAME_BY_PROBE = {"pci-modalias": "/sys/bus/pci/devices"}


def plan(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Name the GPUs; refuse systems without a driver if one is requested, and a lock of other systems."""
    if recipe.lock is not None and (refused := _find_foreign_lock_refusal(recipe.lock, facts)):
        return refused
    if not value_or(facts.provider, None):
        return _plan_detection(recipe, facts)
    from gpunode.steps.managed import (  # loaded on use: few nodes have one
        find_managed_host_refusal,
        node_replacement_notes,
    )

    outcome = find_managed_host_refusal(facts) or _plan_detection(recipe, facts)
    return (
        replace(outcome, notes=(*outcome.notes, *node_replacement_notes(facts)))
        if isinstance(outcome, Planned)
        else outcome
    )


def _plan_detection(recipe: Recipe, facts: Facts) -> StepOutcome:
    if isinstance(facts.platform, Known) and not facts.platform.value.can_install_kernel_driver:
        return _plan_without_own_kernel(recipe, facts.platform.value)
    if isinstance(family := _supported_family_or_refusal(recipe, facts), Refusal):
        return family
    if not wants_driver(recipe, facts):
        return _plan_without_driver(recipe, facts)
    devices = require(facts.devices, "which PCI devices there are")
    usable = find_own_gpus(devices)
    if not usable:
        return _no_gpu_refusal(recipe, devices, facts)
    if profile := _find_vgpu(usable):
        return Refusal(
            what=f"this is a vGPU guest: {profile}",
            why="a vGPU needs NVIDIA's licensed guest driver (GRID) of the host's branch; the data-center driver does "
            "not start on it",
            hint="install the guest driver that belongs to the host, then run the command again with --driver none",
        )
    notes = (
        *_unmet_expectations(recipe.expect, usable),
        *_collect_notes(recipe, devices, facts),
        *_ignored_gpu_option_notes(facts),
        *note_old_tables(facts),
    )
    return Planned((), _describe_gpus(usable) + _describe_other_gpus(devices), notes)


def _unmet_expectations(expect: Expect, usable: tuple[PciDevice, ...]) -> Iterator[str]:
    """Yield the parts of ``[expect]`` that the PCI bus already contradicts; verify compares the rest."""
    names = sorted({find_model(device.device).name for device in usable if find_model(device.device).listed})
    count_text = f"{len(usable)} GPU" if len(usable) == 1 else f"{len(usable)} GPUs"
    if expect.gpus not in {None, len(usable)}:
        yield f"the recipe expects gpus = {expect.gpus}, but this node has {count_text}: verify will fail"
    if expect.model and names and not all(expect.model in name for name in names):
        yield f'the recipe expects model = "{expect.model}", but this node has {", ".join(names)}: verify will fail'


def _plan_without_driver(recipe: Recipe, facts: Facts) -> Planned:
    """Plan without a GPU: a node may be prepared before its driver or its card is there."""
    if isinstance(facts.devices, Known) and (usable := find_own_gpus(facts.devices.value)):
        devices = facts.devices.value
        return Planned(
            (),
            _describe_gpus(usable) + _describe_other_gpus(devices),
            (*_collect_notes(recipe, devices, facts), *_ignored_gpu_option_notes(facts)),
        )
    reason_text = (
        "an image" if facts.is_image else "no NVIDIA GPU found" if isinstance(facts.devices, Known) else "GPU unknown"
    )
    return Planned((), f"{reason_text}; none is needed, because no driver is installed")


def _find_foreign_lock_refusal(lock: VersionLock, facts: Facts) -> Refusal | None:
    """Return the refusal of a lock whose versions are of another distribution, release or architecture."""
    distro = require(facts.distro, "which distribution this is")
    here = (distro.id, distro.version_id, require(facts.architecture, "the architecture of this system"))
    locked = (lock.distribution, lock.release, lock.architecture)
    if here == locked:
        return None
    return Refusal(
        what=f"{lock.file} is for {' '.join(locked)}, but this is {' '.join(here)}",
        why="every distribution, release and architecture has its own packages, so none of its versions fit here",
        hint="write a lock for this kind of node: set one up without --lock, then gpunode plan --lock OTHER-FILE there",
    )


def _supported_family_or_refusal(recipe: Recipe, facts: Facts) -> Family | Refusal | None:
    """Check the distribution's family, which the driver needs; without one any relative of Debian is supported."""
    if wants_driver(recipe, facts):
        return family_of(facts)
    distro = require(facts.distro, "which distribution this is")
    if {distro.id, *distro.like} & {"debian", "ubuntu"}:
        return None
    return Refusal(
        what=f"{distro.name} is not supported",
        why=f"gpunode works on {list_supported_distros()} and their relatives; /etc/os-release says "
        f"ID={distro.id} VERSION_ID={distro.version_id}",
        hint="install the driver and the container toolkit by hand, as NVIDIA's guides say",
    )


def _plan_without_own_kernel(recipe: Recipe, platform: Platform) -> StepOutcome:
    """Plan for a container, WSL2 or Jetson, whose kernel driver comes from elsewhere."""
    where, owner = {
        "container": ("a container", "the host of the container"),
        "wsl2": ("WSL2", "Windows"),
        "jetson": ("a Jetson", "the board's own image (JetPack)"),
    }[platform.kind]
    if recipe.driver.version == "none":
        return Planned((), f"{where} ({platform.detail}): the driver comes from {owner}")
    return Refusal(
        what=f"gpunode installs no driver here: this is {where} ({platform.detail})",
        why=f"the kernel driver comes from {owner}; installing another one breaks it",
        hint="toolkit and runtime can be set up: run the command again with --driver none",
    )


def _no_gpu_refusal(recipe: Recipe, devices: tuple[PciDevice, ...], facts: Facts) -> Refusal:
    if passed := find_gpus(devices):
        held = ", ".join(d.address for d in passed)
        return Refusal(
            what="every NVIDIA GPU is passed through to virtual machines",
            why=f"{held}: bound to {VFIO_DRIVER}",
            hint="run gpunode inside the virtual machine, or unbind a GPU from vfio-pci first",
        )
    where = _PLACE_NAME_BY_PROBE.get(facts.devices.probe, facts.devices.probe)
    count = "1 PCI device" if len(devices) == 1 else f"{len(devices)} PCI devices"
    looked = f"{where} lists {count}, none of vendor 10de with class 0300 or 0302"
    return Refusal(
        what="no NVIDIA GPU found",
        why=looked + _describe_other_gpus(devices),
        hint="\n".join(_missing_gpu_hints(recipe)),
    )


def _missing_gpu_hints(recipe: Recipe) -> Iterator[str]:
    """Yield what to do about a missing GPU, and what works without one."""
    yield "if this machine has a GPU, check that it is seated and powered, and that the firmware lists it"
    yield "without a GPU, gpunode can still prepare toolkit and runtime: add --driver none to the same command"
    if recipe.runtime.name != "none":
        yield "or look at the runtime's configuration alone:"
        yield str(gpunode_command("ctk", "runtime", "check", f"--runtime={recipe.runtime.name}"))
    yield "for an image that another machine will boot, add --root DIR --gpu IDS, such as --gpu 10de:1b80"


def _describe_other_gpus(devices: tuple[PciDevice, ...]) -> str:
    """Return the GPUs of other makers, which are named and left alone."""
    others = [f"{_OTHER_GPU_VENDORS[d.vendor]} {d.name or d.device} at {d.address}" for d in find_other_gpus(devices)]
    return f"; not NVIDIA's: {', '.join(others)}" if others else ""


def _find_vgpu(usable: tuple[PciDevice, ...]) -> str:
    for device in usable:
        if device.subsystem and (profile := vgpu_profile(device.device, device.subsystem)):
            return f"{profile} at {device.address}"
    return ""


def _describe_gpus(usable: tuple[PciDevice, ...]) -> str:
    counts: dict[str, int] = {}
    for device in usable:
        model = find_model(device.device)
        label = model.name if model.listed else f"{device.name or 'unknown NVIDIA GPU'} [10de:{device.device}]"
        counts[label] = counts.get(label, 0) + 1
    listed = ", ".join(f"{count} × {label}" if count > 1 else label for label, count in counts.items())
    where = ", ".join(device.address for device in usable[:4]) + (", …" if len(usable) > 4 else "")
    return f"{listed} at {where}"


def _collect_notes(recipe: Recipe, devices: tuple[PciDevice, ...], facts: Facts) -> tuple[str, ...]:
    notes = []
    if passed := [d.address for d in find_gpus(devices) if d.driver == VFIO_DRIVER]:
        notes.append(f"{', '.join(passed)} is bound to {VFIO_DRIVER} for a virtual machine and is left alone")
    return (*notes, *inactive_fabric_notes(recipe, facts))


def _ignored_gpu_option_notes(facts: Facts) -> Iterator[str]:
    """Yield a note for each device that ``--gpu`` names and that is not a GPU."""
    if facts.devices.probe != GPU_OPTION:
        return
    for device in value_or(facts.devices, ()):
        if device.class_code not in GPU_CLASS_CODES and not is_nvswitch(device.device):
            yield f"{GPU_OPTION} names 10de:{device.device}, {device.name}, which is not a GPU, so it is ignored"


DETECT_STEP = Step("detect", "GPU and machine", "sources", plan, serves=())
