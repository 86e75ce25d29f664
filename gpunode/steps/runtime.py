"""The container runtime: installed where it is missing, and configured to run NVIDIA's handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpunode.change import (
    Change,
    Deferred,
    FileChange,
    KnownAfter,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
    Trigger,
    ordered,
)
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused
from gpunode.facts.access import describe_write_access, explain_restriction, exposure_notes, restrict_to_root
from gpunode.facts.model import Facts, Known, Unknown, holds, known, need
from gpunode.facts.probes import TOOLKIT_PROGRAM
from gpunode.facts.project import PLAN
from gpunode.outcome import Outcome, Planned, Refusal, Step, StepPackages
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.runtimes import RUNTIMES, DesiredConfig, ObservedConfig, Runtime, runtime
from gpunode.runtimes.found import States, contents, in_facts, packaged_version
from gpunode.runtimes.installations import Chosen, choose_row, has_products, kubelet_using, with_kubelets_driver
from gpunode.runtimes.pod_cdi import is_switched_on_by_setup, reads_cdi, why_unread
from gpunode.steps.installed_driver import matches, set_manual, why_manual
from gpunode.steps.packages import refusal_of_hold, unlocked_versions, wanted_state
from gpunode.steps.runtime_edits import RuntimeTarget, missing_program, plan_configuration, refuse_default
from gpunode.steps.selection import refuse_unlocked
from gpunode.steps.toolkit import CONFIG


def plan_runtime_install(recipe: Recipe, facts: Facts) -> Outcome:
    """Plan a package that provides the runtime."""
    if recipe.runtime.name == "none":
        return Planned((), "the recipe has no container runtime")
    try:
        row = choose_row(runtime(recipe.runtime.name), facts).row
    except Refused as refusal:
        return Refusal(refusal.what, refusal.why, refusal.hint)
    if row.product:
        return Planned((), f"{row.product} includes its own {row.id}")
    packages = need(facts.packages, "which packages are installed")
    for package in map(PackageId, row.packages):
        if matches(packages.get(package), ""):
            return _plan_installed(recipe, facts, package, packages)
    unit = facts.unit(row.unit)
    if isinstance(unit, Known) and unit.value.exists and not unit.value.masked:
        return Planned((), f"{row.unit} is installed, but not from a package; it is not replaced")
    return _plan_missing(recipe, facts, row, packages)


def _plan_missing(recipe: Recipe, facts: Facts, row: Runtime, packages: Mapping[PackageId, PackageState]) -> Outcome:
    """Plan the distribution's package of a runtime that is not here."""
    if _has_kind(recipe) and known(facts.rootless_docker, default=False):
        return _refuse_rootless(facts)
    if row.from_elsewhere:
        return Refusal(
            what=f"{row.id} is not installed",
            why="no supported distribution packages it",
            hint=f"install it from {row.from_elsewhere}; then run the command again",
        )
    if recipe.runtime.install == "never":
        product = ", or k3s or RKE2, which include theirs" if has_products(row) else ""
        return Refusal(
            what=f"{row.id} is not installed",
            why='the recipe says runtime.install = "never"',
            hint=f'install {" or ".join(row.packages)}{product}, or set runtime.install = "if-missing"',
        )
    first = PackageId(row.packages[0])
    if recipe.lock is not None and first not in recipe.lock.packages:
        return refuse_unlocked(recipe.lock, first)
    reason = f"{row.id} is missing; the distribution's package will be installed"
    after = wanted_state(recipe, first, KnownAfter(why="runtime"))
    return Planned((PackageChange(first, packages.get(first), after),), reason)


def _refuse_rootless(facts: Facts) -> Refusal:
    # nvkind issue 48.
    install = system(facts).install(("docker.io",))
    return Refusal(
        what="docker is rootless here, so a kind cluster gets no GPU",
        why="a user runs dockerd (/run/user/*/docker.sock), and docker.service is missing; without root it cannot give "
        "the cluster's nodes devices",
        hint=f"install docker for the whole machine, and use it for kind:\nsudo {install}\ndocker context use default",
    )


def _has_kind(recipe: Recipe) -> bool:
    return recipe.kubernetes is not None and recipe.kubernetes.kind.workers > 0


def _plan_installed(
    recipe: Recipe, facts: Facts, package: PackageId, packages: Mapping[PackageId, PackageState]
) -> Outcome:
    """Return the package that provides the runtime, in the locked version where there is one."""
    present, lock = packages[package], recipe.lock
    if lock is not None and package not in lock.packages:
        return refuse_unlocked(lock, package)
    if lock is None or not unlocked_versions(recipe, packages, (package,)):
        marked, installed = set_manual(packages, (package,)), f"{package} {present.version} is installed"
        return Planned(marked, f"{installed}; {why_manual(marked, facts)}" if marked else installed)
    if present.held:
        return refusal_of_hold(facts, (package,), lock.file)
    after = wanted_state(recipe, package, KnownAfter(why="runtime"))
    return Planned((PackageChange(package, present, after),), f"the lock holds {package} at another version")


def _installed_package(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    """Return the package that provides the recipe's runtime on this node."""
    packages = need(facts.packages, "which packages are installed")
    named = runtime(recipe.runtime.name).packages if recipe.runtime.name != "none" else ()
    return tuple(one for one in map(PackageId, named) if matches(packages.get(one), ""))[:1]


RUNTIME_INSTALL = Step(
    "runtime-install",
    "container runtime",
    "packages",
    plan_runtime_install,
    packages=StepPackages(
        _installed_package, {PackageId(name) for row in RUNTIMES for name in row.packages}.__contains__
    ),
)


# Root's programs read these for every container.
_TOOLKITS = (CONFIG, "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env")


def plan_runtime_config(recipe: Recipe, facts: Facts) -> Outcome:
    """Plan the runtime's files with NVIDIA's handler; its own parser checks them before they are used."""
    if recipe.runtime.name == "none":
        return Planned((), "the recipe has no container runtime")
    try:
        place = choose_row(runtime(recipe.runtime.name), facts)
        return _with_toolkit_config(recipe, facts, _plan_configuration(recipe, facts, place))
    except Refused as refusal:
        return Refusal(refusal.what, refusal.why, refusal.hint)


def _with_toolkit_config(recipe: Recipe, facts: Facts, planned: Planned | Refusal) -> Planned | Refusal:
    """Return ``planned`` with the toolkit's own file as the recipe wants it."""
    if isinstance(planned, Refusal) or recipe.toolkit.volume_mounts is None:
        return planned
    from gpunode.steps import toolkit_config  # loaded on use: few recipes ask for it

    if not (changes := toolkit_config.plan_toolkit_config(recipe, facts)):
        return planned
    others = (change for change in planned.changes if change.subject != CONFIG)
    accepted = "accepts" if recipe.toolkit.volume_mounts else "does not accept"
    reason = f"{planned.reason}; the toolkit {accepted} requests for GPUs by mounts"
    return replace(planned, changes=ordered((*others, *changes)), reason=reason)


def _plan_configuration(recipe: Recipe, facts: Facts, place: Chosen) -> Planned | Refusal:
    row = place.row
    fact = facts.file(row.config)
    if isinstance(fact, Unknown) and fact.probe == PLAN:
        return _plan_deferred(row, fact)
    desired = _desired_config(recipe, row, facts)
    present = in_facts(facts, row, desired)
    if recipe.runtime.cgroup_driver == "auto":
        desired = with_kubelets_driver(row, facts, desired, contents(present))
    found = row.inspect(contents(present), desired)
    if _is_for_pods(recipe) and is_switched_on_by_setup(row, found, desired.version):
        desired = replace(desired, cdi=True)
    target = RuntimeTarget(row, desired, present, facts, place.notes)
    lacks = missing_program(TOOLKIT_PROGRAM, row.id) if _lacks_program(facts) else None
    if lacks and facts.is_image:
        lacks = replace(lacks, install=None)  # nobody told the facts where the image is mounted
    refuse_default(target, lacks)
    planned = plan_configuration(target)
    if not planned.changes:
        planned = replace(planned, expectation=None)  # what is closed below is no news to a parser
    planned = _restrict_files(
        target, replace(planned, changes=(*planned.changes, *_service_changes(row, facts, present)))
    )
    notes = (
        *planned.notes,
        *_other_driver(recipe, facts, row),
        *_preexisting_default(recipe, row, present),
        *_needs_class(recipe, row, found, desired),
    )
    lacking = (lacks.note,) if lacks else ()
    if not planned.changes:
        return replace(planned, notes=(*notes, *lacking))
    about_changes = (*planned.change_notes, *lacking, *_not_startable(row, facts))
    return replace(planned, notes=notes, change_notes=about_changes)


def _preexisting_default(recipe: Recipe, row: Runtime, present: States) -> tuple[str, ...]:
    """Return a note that NVIDIA's runtime is the default although the recipe does not say so."""
    desired = DesiredConfig()
    if recipe.runtime.set_as_default is not None or row.inspect(contents(present), desired).default != desired.handler:
        return ()
    return (
        (
            f"{desired.handler} is the default runtime of {row.id} and stays so, because the recipe does not set "
            "runtime.set_as_default; runtime.set_as_default = false removes it"
        ),
    )


def _is_for_pods(recipe: Recipe) -> bool:
    """Return whether pods of this runtime are to get their GPUs by CDI where they can.

    kind's pods run in kind's own containerd, inside docker containers.
    """
    wanted = recipe.kubernetes
    if wanted is None or wanted.stack not in {"device-plugin", "gpu-operator"} or wanted.kind.workers:
        return False
    return recipe.runtime.set_as_default is not True and recipe.runtime.cdi is None


def _needs_class(recipe: Recipe, row: Runtime, found: ObservedConfig, desired: DesiredConfig) -> tuple[str, ...]:
    """Return that pods need the RuntimeClass on this node; nothing where CDI gives them their GPUs."""
    wanted, version = recipe.kubernetes, desired.version
    if (
        not _is_for_pods(recipe)
        or desired.cdi
        or reads_cdi(row, found, version)
        or not (wanted and wanted.runtime_class)
    ):
        return ()
    needs = f"pods on this node get a GPU only with runtimeClassName: {wanted.runtime_class}"
    return (f"{needs}: {why_unread(row, found, version)}",)


def _restrict_files(target: RuntimeTarget, planned: Planned) -> Planned:
    """Return ``planned`` with files that name programs for root to run closed to other writers."""
    row, facts, present = target.row, target.facts, target.present
    own = [path for path in (*present, *_TOOLKITS) if path in row.own_files or path in _TOOLKITS]
    found = {change.path: change for change in restrict_to_root(facts, own)}
    # Who may write to a file is no setting that takes a restart.
    trigger = frozenset({Trigger("reload" if row.reloads else "restart", row.unit)} if target.trigger else ())
    touched = {change.path for change in FileChange.among(planned.changes)}
    edited = (one.without_foreign_writers() if one.subject in found else one for one in planned.changes)
    beside = (replace(one, triggers=trigger if one.path in present else frozenset()) for one in found.values())
    others = [path for path in present if path not in own and describe_write_access(present[path])]
    notes = (
        *(
            f"{path} {describe_write_access(present[path])}, and {row.unit} reads it; gpunode leaves that"
            for path in others
        ),
        *exposure_notes(facts, (*present, *_TOOLKITS)),
    )
    return replace(
        planned,
        changes=ordered((*edited, *(change for change in beside if change.path not in touched))),
        reason="; ".join((explain_restriction(found.values()), planned.reason)) if found else planned.reason,
        notes=(*planned.notes, *notes),
    )


def _lacks_program(facts: Facts) -> bool:
    """Return whether the program of the runtime is missing, and no step before brings it."""
    if isinstance(facts.toolkit_program, Unknown) or facts.toolkit_program.value:
        return False
    packages = known(facts.packages, {})
    return not any(matches(packages.get(name), "") for name in TOOLKIT_PACKAGES)


def _not_startable(row: Runtime, facts: Facts) -> tuple[str, ...]:
    """Return that no systemd runs here which could start the runtime; nothing where it can, or in an image."""
    unit = facts.unit(row.unit)
    if facts.is_image or facts.can_start(row.unit) or not isinstance(unit, Known) or not unit.value.exists:
        return ()
    how = "start it the way this system starts it"
    return (f"no systemd runs here, so gpunode cannot start {row.id}, which reads its files at its start: {how}",)


def _other_driver(recipe: Recipe, facts: Facts, row: Runtime) -> tuple[str, ...]:
    """Return a note that the recipe wants another cgroup driver than the kubelet has."""
    kubelet = kubelet_using(row, facts)
    if (
        recipe.runtime.cgroup_driver != "systemd"
        or kubelet is None
        or row.product
        or kubelet.cgroup_driver != "cgroupfs"
    ):
        return ()
    return ("the kubelet uses the cgroup driver cgroupfs, but the recipe sets systemd for runc: they must be the same",)


def _desired_config(recipe: Recipe, row: Runtime, facts: Facts) -> DesiredConfig:
    return DesiredConfig(
        default=recipe.runtime.set_as_default is True,
        not_default=recipe.runtime.set_as_default is False,
        # A product gives its kubelet and its containerd one driver; a recipe for kubeadm's kubelet is not about it.
        systemd_cgroup=recipe.runtime.cgroup_driver == "systemd" and not row.product,
        cdi=recipe.runtime.cdi is True,
        version=packaged_version(row, known(facts.packages, {})),
        enable_cri=row.has_cri_plugin and kubelet_using(row, facts) is not None,
    )


def _plan_deferred(row: Runtime, fact: Unknown) -> Planned:
    """Plan a file whose content is known after the package that brings it is installed."""
    promise = Deferred("the package's file, with NVIDIA's runtime added", f"{row.packages[0]} is installed")
    reason = f"{row.packages[0]} installs its own configuration; NVIDIA's runtime is added to it"
    if holds(fact, promise):
        return Planned((), reason)
    return Planned((FileChange(row.config, None, promise, frozenset({Trigger("restart", row.unit)})),), reason)


def _service_changes(row: Runtime, facts: Facts, present: States) -> tuple[Change, ...]:
    """Return what starts and enables a runtime that does not run; nothing where systemd does not say.

    One that is part of more is left alone, and one that would fail with its files as they are is not started.
    """
    fact = facts.unit(row.unit)
    if row.product or not isinstance(fact, Known) or not fact.value.exists or fact.value.masked:
        return ()
    is_startable = row.inspect(contents(present), DesiredConfig()).is_startable
    can_start = is_startable and not facts.is_image and facts.can_start(row.unit)
    wanted = ServiceState(enabled=True, active=can_start or fact.value.state.active)
    return () if fact.value.state == wanted else (ServiceChange(row.unit, fact.value.state, wanted),)


RUNTIME_CONFIG = Step(
    "runtime-config",
    "runtime configuration",
    "runtime",
    plan_runtime_config,
    needs=("toolkit", "runtime-install"),
    files=_TOOLKITS,
)
