"""MIG: partition the GPUs as the recipe says, now and after a reboot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.catalog import gpus
from gpunode.change import Change, FileChange, FileState, MigChange, MigInstance, MigLayout, Trigger
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Known, MigGpu, PciDevice, plan_file, require, value_or
from gpunode.facts.probes import MIG_BOOT_DROP_IN_FILE, MIG_UNIT_FILE
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.outcome import Blocked, Planned, Refusal, Step, StepOutcome
from gpunode.recipe import Recipe
from gpunode.steps import cdi
from gpunode.steps.daemons import find_mps_conflict_refusal
from gpunode.steps.gpus import find_own_gpus
from gpunode.steps.kernel import plan_module_load

if TYPE_CHECKING:
    from gpunode.recipe.kubernetes import Kubernetes

MIG_MANAGER_UNIT: Final = "nvidia-mig-manager.service"
# A drop-in enables the unit by a file, so all of this is configuration that a rollback restores.
_WANTS_DROP_IN_CONTENT: Final = b"# Written by gpunode.\n[Unit]\nWants=gpunode-mig.service\n"
_DAEMON_RELOAD_TRIGGERS: Final = frozenset({Trigger("daemon-reload")})
# Units that start containers or list GPUs for them.
_UNITS_STARTED_AFTER_MIG: Final = (
    "containerd.service docker.service crio.service kubelet.service k3s.service k3s-agent.service rke2-server.service "
    "rke2-agent.service k0scontroller.service k0sworker.service snap.microk8s.daemon-containerd.service "
    "nvidia-cdi-refresh.service"
)


def plan(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the layout of every GPU, and a unit that restores the layouts at each boot."""
    try:
        layout = wanted_layout(
            recipe, [gpus.find_model(gpu.device).name for gpu in find_own_gpus(value_or(facts.devices, ()))]
        )
        if not layout:
            return _plan_nothing(recipe.kubernetes)
        from gpunode.catalog import mig  # loaded on use: few nodes are partitioned

        if refused := find_mps_conflict_refusal(recipe):
            return refused
        _refuse_mig_manager(facts)
        if not recipe.mig.file and layout != mig.ALL_DISABLED_LAYOUT:
            _refuse_gpus_without_mig(recipe, facts, layout)
        present = _current_gpus(recipe, facts)
        return present if isinstance(present, Planned) else _plan_layouts(recipe, facts, layout, present)
    except Refused as error:
        return Refusal.of(error)


def may_use_mig(recipe: Recipe) -> bool:
    """Return True if the recipe may ask for MIG layouts on this host with some GPUs."""
    wanted = recipe.kubernetes
    if recipe.mig.layout or wanted is None or wanted.stack != "device-plugin":
        return bool(recipe.mig.layout)
    return bool(wanted.mig.layout) or any(config.layout for config in wanted.configs.values())


def wanted_layout(recipe: Recipe, names: Sequence[str]) -> str:
    """Return the layout's name for GPUs of these names; empty if the recipe leaves them as they are.

    Raises:
        Refused: if the recipe contradicts itself.
    """
    node_layout, wanted = recipe.mig.layout, recipe.kubernetes
    if recipe.mig.file and not node_layout:
        raise Refused(
            "[mig] names a file and no layout",
            why=f"{recipe.mig.file} may contain several",
            hint='set layout in [mig] to one of the names under mig-configs, such as layout = "all-1g.10gb"',
        )
    if node_layout and wanted is not None and _is_operator_managed(wanted):
        raise Refused(
            "[mig] and the GPU Operator would both set MIG layouts",
            why="the operator's MIG manager sets the layout of [kubernetes.mig] and removes all others",
            hint="move layout from [mig] to [kubernetes.mig]; a file of mig-parted goes into the operator's ConfigMap",
        )
    cluster_layout = _cluster_layout(wanted, names)
    if node_layout and cluster_layout and node_layout != cluster_layout:
        raise Refused(
            f"the recipe names two MIG layouts: {node_layout} in [mig] and {cluster_layout} in [kubernetes]",
            why="a GPU has one",
            hint="name the same layout in both, or leave one out",
        )
    return node_layout or cluster_layout


def _cluster_layout(kubernetes: Kubernetes | None, names: Sequence[str]) -> str:
    if kubernetes is None or kubernetes.stack != "device-plugin":
        return ""
    fitting = [config for config in kubernetes.configs.values() if config.fits(names)] if names else []
    return fitting[0].layout if fitting else kubernetes.mig.layout


def _is_operator_managed(kubernetes: Kubernetes | None) -> bool:
    return kubernetes is not None and kubernetes.stack == "gpu-operator"


def _plan_nothing(kubernetes: Kubernetes | None) -> Planned:
    if kubernetes is not None and _is_operator_managed(kubernetes) and kubernetes.mig.layout:
        return Planned((), "the GPU Operator's MIG manager sets the layout", is_deferred=True)
    return Planned((), "not requested", is_requested=False)


def _refuse_mig_manager(facts: Facts) -> None:
    unit = facts.unit(MIG_MANAGER_UNIT)
    if isinstance(unit, Known) and unit.value.state.enabled:
        raise Refused(
            f"{MIG_MANAGER_UNIT} is enabled and would set another MIG layout at the next boot",
            why="NVIDIA's package nvidia-mig-manager is installed on this host",
            hint=f"disable it, then run the same command again:\nsystemctl disable --now {MIG_MANAGER_UNIT}\n"
            "or leave layout out of the recipe",
        )


def _refuse_gpus_without_mig(recipe: Recipe, facts: Facts, layout: str) -> None:
    """Refuse a layout for GPUs that have no MIG according to the catalog, even before a driver is installed."""
    from gpunode.catalog import mig  # loaded on use: few nodes are partitioned

    models = [gpus.find_model(gpu.device) for gpu in find_own_gpus(value_or(facts.devices, ()))]
    if without := [model.label for model in models if mig.cannot_have_mig(model)]:
        of_others = "use a file of mig-parted with a device-filter for the others, as file in [mig]"
        raise Refused(
            f"{', '.join(dict.fromkeys(without))} cannot have the MIG layout {layout}",
            why="it has no MIG",
            hint=(of_others if len(without) < len(models) else "leave [mig] out of the recipe of this node")
            if recipe.mig.layout
            else 'give this node a table of its own in [kubernetes.configs], with gpus and strategy = "none"',
        )


def _current_gpus(recipe: Recipe, facts: Facts) -> tuple[MigGpu, ...] | Planned:
    """Return the GPUs as NVML reports them, or the plan that waits for that."""
    if facts.is_image:
        return Planned((), "set by the first `gpunode setup` on the booted node", is_deferred=True)
    if isinstance(plan_module_load(recipe, facts), Blocked):
        return Planned((), "set after the reboot, which changes the driver", is_deferred=True)
    if value_or(facts.loaded_driver, None) is None or facts.loaded_driver.probe == PLAN_PROBE_KEY:
        return Planned((), "set once the driver is loaded", is_deferred=True)
    if not isinstance(facts.mig, Known):
        why = facts.mig.reason if facts.mig else "it was not queried"
        return Planned((), f"not checked: NVML did not report the MIG layout of the GPUs ({why})", is_deferred=True)
    return facts.mig.value


def _plan_layouts(recipe: Recipe, facts: Facts, name: str, present: Sequence[MigGpu]) -> StepOutcome:
    wanted = dict(_wanted_layouts(recipe, facts, name, present))
    changes = [
        MigChange(gpu.uuid, gpu.layout, wanted[gpu.uuid], _cdi_triggers(recipe, facts))
        for gpu in present
        if gpu.uuid in wanted
        and gpu.layout is not None
        and gpu.layout != wanted[gpu.uuid]
        and not _waits_for_reset(gpu, wanted)
    ]
    files = [*_unit_changes(facts, wanted)]
    waiting = [gpu for gpu in present if _waits_for_reset(gpu, wanted)]
    if waiting and not changes and not files:
        which = ", ".join(gpu.uuid for gpu in waiting)
        switched = "on" if waiting[0].pending else "off"
        return Blocked("reboot", f"MIG is switched {switched} on {which} at the next reset of the GPU or reboot")
    every: list[Change] = [*files, *changes]
    if not every:
        layouts = dict.fromkeys(str(layout) for layout in wanted.values())
        return Planned((), f"{name}: {'; '.join(layouts) or 'it matches no GPU'}")
    reason = f"the layout {name}" + ("" if changes else ", created again at each boot")
    return Planned(tuple(every), reason)


def _waits_for_reset(gpu: MigGpu, layouts: Mapping[str, MigLayout]) -> bool:
    """Return True if the GPU's next reset switches MIG as wanted."""
    layout = layouts.get(gpu.uuid)
    if layout is None or gpu.layout is None or gpu.layout.enabled == layout.enabled:
        return False
    return gpu.pending == layout.enabled


def _cdi_triggers(recipe: Recipe, facts: Facts) -> frozenset[Trigger]:
    """Return the triggers that rewrite the CDI specification, since the toolkit's units do not notice MIG changes."""
    if not cdi.needs_specification(recipe, facts):
        return frozenset()
    return frozenset({Trigger("cdi", "" if cdi.requests_cdi(recipe) else "if-possible")})


def _wanted_layouts(
    recipe: Recipe, facts: Facts, name: str, present: Sequence[MigGpu]
) -> Iterator[tuple[str, MigLayout]]:
    """Yield the wanted layout of each affected GPU, by UUID."""
    devices = {device.address: device for device in require(facts.devices, "which GPUs there are")}
    for gpu in present:
        if (device := devices.get(gpu.address)) is None:
            raise Refused(
                f"{gpu.uuid} is not on the PCI bus at {gpu.address}",
                why="NVML lists it, and the kernel does not",
                hint="reboot, then run the same command again",
            )
        is_meant, counts = _instance_counts(recipe, facts, name, gpu.index, device)
        if is_meant and counts is not None:
            yield gpu.uuid, _place_instances(name, gpu, device, counts)
        elif is_meant and gpu.layout is not None:
            yield gpu.uuid, MigLayout(enabled=False)


def _instance_counts(
    recipe: Recipe, facts: Facts, name: str, index: int, device: PciDevice
) -> tuple[bool, Mapping[str, int] | None]:
    """Return whether the layout applies to the GPU, and its instances per profile there; None with MIG off."""
    from gpunode.catalog import mig  # loaded on use: few nodes are partitioned

    if recipe.mig.file:
        return _counts_from_file(recipe.mig.file, facts, name, index, device)
    try:
        instance_counts = mig.instances_in_layout(device.device, name)
    except KeyError:
        return True, {mig.profile_of_layout(name): 1}
    if instance_counts is None:
        raise Refused(
            f"gpunode knows no MIG layout {name}",
            why="it knows the layouts with one profile, and all-balanced, all-enabled and all-disabled of mig-parted",
            hint="set file in [mig] to a configuration file of mig-parted that has it",
        )
    return True, None if name == mig.ALL_DISABLED_LAYOUT else instance_counts


def _counts_from_file(
    path: str, facts: Facts, name: str, index: int, device: PciDevice
) -> tuple[bool, Mapping[str, int] | None]:
    from gpunode.recipe.mig import read_mig_configurations

    state = require(facts.file(path), f"what {path} holds")
    if state is None:
        raise Refused(f"{path} does not exist", why="the recipe names it in [mig]", hint="put the file there")
    configurations = read_mig_configurations(state.content, path)
    if name not in configurations:
        raise Refused(
            f"{path} has no layout {name}",
            why=f"it has {', '.join(configurations)}",
            hint="set layout in [mig] to one of these",
        )
    parts = [part for part in configurations[name] if part.fits(index, device.device, device.subsystem)]
    return (True, parts[-1].instances) if parts else (False, None)


def _place_instances(name: str, gpu: MigGpu, device: PciDevice, counts: Mapping[str, int]) -> MigLayout:
    """Return a layout with these instances placed, or the current one if it already has them."""
    from gpunode.catalog import mig  # loaded on use: few nodes are partitioned

    label, profiles = gpus.find_model(device.device).name, mig.max_instances_by_profile(device.device)
    if gpu.layout is None or not profiles:
        raise Refused(
            f"{label} ({gpu.uuid}) cannot have the MIG layout {name}",
            why="it has no MIG" if gpu.layout is None else "gpunode knows none of its MIG profiles",
            hint="use a file of mig-parted with a device-filter for the others, as file in [mig]",
        )
    if unknown := [profile for profile in counts if profile not in profiles]:
        raise Refused(
            f"{label} has no MIG profile {', '.join(unknown)}, which the layout {name} needs",
            why=f"it has {', '.join(profiles)}",
            hint=f"use one of these layouts: {', '.join(mig.layout_names(device.device))}",
        )
    if (places := mig.place_instances(device.device, counts)) is None:
        wanted = ", ".join(f"{count} × {profile}" for profile, count in counts.items())
        most = ", ".join(f"{count} × {profile}" for profile, count in profiles.items())
        raise Refused(
            f"the MIG layout {name} does not fit on {label}: {wanted}",
            why=f"alone, at most these fit: {most}; mixed, they share its memory slices",
            hint="ask for fewer or smaller instances",
        )
    instances = tuple(
        MigInstance(profile, start, size, (str(mig.compute_slices(profile)),)) for profile, start, size in places
    )
    return gpu.layout if _has_instances(gpu.layout, instances) else MigLayout(enabled=True, instances=instances)


def _has_instances(present: MigLayout, instances: Sequence[MigInstance]) -> bool:
    """Return True if the GPU has these instances, at any position."""
    has, wants = (
        sorted((instance.profile, instance.compute) for instance in every) for every in (present.instances, instances)
    )
    return present.enabled and has == wants


def _unit_changes(facts: Facts, layouts: Mapping[str, MigLayout]) -> Iterator[FileChange]:
    """Yield the files of the unit that restores the layouts and is started at boot; none with MIG off."""
    divided = {uuid: layout for uuid, layout in layouts.items() if layout.enabled}
    states = ((MIG_UNIT_FILE, render_mig_unit(divided)), (MIG_BOOT_DROP_IN_FILE, _WANTS_DROP_IN_CONTENT))
    for path, content in states:
        yield from plan_file(facts, path, FileState(content) if divided else None, _DAEMON_RELOAD_TRIGGERS)


def render_mig_unit(divided: Mapping[str, MigLayout]) -> bytes:
    """Return the unit that partitions the GPUs at boot, with nvidia-smi.

    Not with gpunode: the driver always installs nvidia-smi in the same place, while gpunode may have moved or gone. A
    GPU that cannot be partitioned does not keep the others from it. The driver forgets instances with every boot, and
    on newer GPUs the mode, too. nvidia-mig-manager's unit also waits for nvidia-persistenced and the fabric manager.
    """
    lines = " \\\n".join(f"  {_nvidia_smi_commands(uuid, layout)} || failed=1;" for uuid, layout in divided.items())
    return f"""# Written by gpunode: makes the MIG layout of its recipe again at each boot.
[Unit]
Description=MIG layout of the GPUs
After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service
Before={_UNITS_STARTED_AFTER_MIG}

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=480
ExecStart=/bin/sh -c 'failed=0; \\
{lines} \\
  exit $$failed'
""".encode()


def _nvidia_smi_commands(uuid: str, layout: MigLayout) -> str:
    switch = f"/usr/bin/nvidia-smi -i {uuid} -mig 1"
    if not layout.instances:
        return f"{{ {switch}; }}"
    places = ",".join(f"{instance.profile}:{instance.start}" for instance in layout.instances)
    return f"{{ {switch} && /usr/bin/nvidia-smi mig -i {uuid} -cgi {places} -C; }}"


MIG_STEP = Step(
    "mig",
    "MIG layout",
    "runtime",
    plan,
    serves=("driver",),
    needs=("driver",),
    files=(MIG_UNIT_FILE, MIG_BOOT_DROP_IN_FILE),
)
