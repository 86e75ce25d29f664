"""recipe from-node: write the recipe that a hand-built node already fulfils."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gpunode.catalog.driver import DriverChoice
from gpunode.catalog.gpus import GpuModel
from gpunode.command import sudo_gpunode
from gpunode.distros.family import TOOLKIT_PACKAGES, Family
from gpunode.errors import Refused, Undetermined
from gpunode.facts.model import Facts, Known, value_or
from gpunode.host.port import HostView
from gpunode.outcome import Refusal
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Driver, DriverScope, DriverSource, KernelModuleType, Recipe, RuntimeSettings, Toolkit
from gpunode.runtimes import RUNTIMES, Runtime
from gpunode.runtimes.file_states import inspect_from_facts
from gpunode.runtimes.installations import resolve_runtime_if_possible
from gpunode.steps import cdi
from gpunode.steps.cuda_release import find_installed_toolkit
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.gpus import find_models, find_own_gpus
from gpunode.steps.installed_driver import family_of, installed_branches, is_at_version, is_chosen_driver_installed
from gpunode.steps.packages import REPAIR_STEP
from gpunode.steps.selection import choose_from_source
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import raise_refusal
from gpunode.workflow.plan import plan

_FLAVOURS_TO_TRY: tuple[KernelModuleType, ...] = ("open", "proprietary")
_SCOPES_TO_TRY: tuple[DriverScope, ...] = ("full", "media", "compute")
_DRIVER_SOURCES_TO_TRY: tuple[DriverSource, ...] = ("nvidia", "distro")


def recipe_from_node(facts: Facts, host: HostView) -> Recipe:
    """Return a recipe whose first plan on this node is empty.

    The recipe skips a step whose work the node's owner did by other means, or not at all.

    Raises:
        Refused: the node has no GPU of its own, or some packages are only half installed, which no recipe allows.
        Undetermined: evidence that a step needs is missing.
    """
    toolkit = value_or(facts.packages, {}).get(TOOLKIT_PACKAGES[0])
    recipe = Recipe(
        name="from-node",
        description="written from a node as it was found",
        driver=_detect_driver(facts),
        toolkit=Toolkit() if is_at_version(toolkit, "") else Toolkit(version="none"),
        cuda=find_installed_toolkit(facts),
        runtime=_detect_runtime(facts),
    )
    is_host = isinstance(facts.platform, Known) and facts.platform.value.can_install_kernel_driver
    if is_host and isinstance(facts.devices, Known) and not find_own_gpus(facts.devices.value):
        raise Refused(
            "no NVIDIA GPU found, so there is no GPU node to write a recipe for",
            why=f"{facts.devices.probe} shows none that this system can use",
            hint="run it on a node with a working GPU; `gpunode recipe list` shows the shipped recipes",
        )
    if isinstance(DETECT_STEP.plan(recipe, facts), Refusal):
        # In a vGPU guest or a container, gpunode does not install the driver.
        recipe = replace(recipe, driver=Driver(version="none"))
    while skipped_ids := _step_ids_to_skip(recipe, facts, host):
        recipe = replace(recipe, skip=tuple(step.id for step in STEPS if step.id in {*recipe.skip, *skipped_ids}))
    return recipe


def _step_ids_to_skip(recipe: Recipe, facts: Facts, host: HostView) -> frozenset[str]:
    """Return the steps that would change something or refuse; a refusal hides the steps after it."""
    plans = plan(recipe, facts, host)
    step_ids = {s.step.id for stage in plans for s in stage.steps if s.changes or isinstance(s.outcome, Refusal)}
    if DETECT_STEP.id in step_ids:
        raise_refusal(plans)
    if REPAIR_STEP.id in step_ids:
        raise Refused(
            "a package change was interrupted on this node, so some packages are only half installed",
            why=deb.REPAIR_COMMAND.purpose,
            hint=f"{sudo_gpunode('setup', '--only', 'repair')}\nthen run the command again",
        )
    return frozenset(step_ids)


def _detect_driver(facts: Facts) -> Driver:
    """Return the installed branch, flavour and scope.

    Return ``none`` if no set of driver packages that gpunode knows is complete.
    """
    present = find_models(value_or(facts.devices, ()))
    family = family_of(facts)
    if not isinstance(family, Family) or not present:
        return Driver(version="none")
    for branch in installed_branches(facts):
        for source, flavour, scope in product(_DRIVER_SOURCES_TO_TRY, _FLAVOURS_TO_TRY, _SCOPES_TO_TRY):
            desired = Driver(version=str(branch), kernel_module_type=flavour, scope=scope, source=source)
            chosen = choose_from_source(facts, present, desired)
            if isinstance(chosen, DriverChoice) and is_chosen_driver_installed(
                facts, chosen, Recipe("probe", driver=desired)
            ):
                return replace(
                    desired,
                    kernel_module_type=_auto_if_same_flavour(facts, present, desired, chosen),
                    persistence=_detect_persistence(facts),
                )
    return Driver(version="none")


def _auto_if_same_flavour(
    facts: Facts, present: tuple[GpuModel, ...], desired: Driver, chosen: DriverChoice
) -> KernelModuleType:
    """Return ``auto`` if it selects the same flavour, so that the recipe sets no more than necessary."""
    auto = choose_from_source(facts, present, replace(desired, kernel_module_type="auto"))
    same = not isinstance(auto, Refusal) and auto.flavour == chosen.flavour
    return "auto" if same else desired.kernel_module_type


def _detect_persistence(facts: Facts) -> bool:
    unit = facts.unit("nvidia-persistenced.service")
    return not isinstance(unit, Known) or (unit.value.exists and unit.value.state.enabled)


def _detect_runtime(facts: Facts) -> RuntimeSettings:
    """Return the first runtime configured with NVIDIA's handler; else podman, if it finds CDI devices."""
    for runtime in RUNTIMES:
        if (settings := _configured_runtime(resolve_runtime_if_possible(runtime, facts), facts)) is not None:
            return settings
    podman = value_or(facts.packages, {}).get(PackageId("podman"))
    is_there = podman is not None and not podman.config_files_only
    return (
        RuntimeSettings("podman", install="never")
        if is_there and cdi.find_devices(facts).devices
        else RuntimeSettings()
    )


def note_unread_runtimes(facts: Facts) -> Iterator[str]:
    """Yield which runtimes' configuration could not be read, and what that means for the recipe."""
    for runtime in (resolve_runtime_if_possible(runtime, facts) for runtime in RUNTIMES):
        if _is_on_node(runtime, facts) and (error := _reading_error(runtime, facts)):
            again = ": run the same command as root" if isinstance(error, Undetermined) else ""
            yield f"{error.what} ({error.why}); if {runtime.id} has an nvidia runtime, this recipe lacks it{again}"


def _is_on_node(runtime: Runtime, facts: Facts) -> bool:
    packages, fact = value_or(facts.packages, {}), facts.unit(runtime.unit)
    states = (packages.get(PackageId(name)) for name in runtime.packages)
    return any(state and not state.config_files_only for state in states) or (
        isinstance(fact, Known) and fact.value.exists
    )


def _reading_error(runtime: Runtime, facts: Facts) -> Refused | Undetermined | None:
    try:
        inspect_from_facts(facts, runtime)
    except (Refused, Undetermined) as error:
        return error
    return None


def _configured_runtime(runtime: Runtime, facts: Facts) -> RuntimeSettings | None:
    try:
        observed = inspect_from_facts(facts, runtime)
    except (Refused, Undetermined):
        return None
    if "nvidia" not in observed.handlers:
        return None
    systemd = observed.systemd_cgroup.get("nvidia", False)
    return RuntimeSettings(
        name=runtime.id,
        install="never",
        set_as_default=True if observed.default == "nvidia" else None,
        cgroup_driver="systemd" if systemd else "auto",
        cdi=True if observed.cdi and runtime.cdi_support == "switch" else None,
    )
