"""The container runtime: installed if it is missing, and configured to run NVIDIA's handler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpunode.catalog import releases
from gpunode.change import (
    Change,
    Deferred,
    FileChange,
    KnownAfter,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    ServiceChange,
    ServiceState,
    Trigger,
    sort_changes,
)
from gpunode.command import Command, sudo_gpunode
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused
from gpunode.facts.access import describe_nonroot_writers, explain_restriction, note_replaceable_files, restrict_to_root
from gpunode.facts.model import Facts, Known, Unit, Unknown, file_matches, require, value_or
from gpunode.facts.probes import TOOLKIT_FILE_LIST, TOOLKIT_PROGRAM
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Planned, Refusal, Step, StepOutcome, StepPackageRules
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Recipe
from gpunode.runtimes import (
    RUNTIMES,
    ConfigEdit,
    DesiredConfig,
    Files,
    ObservedConfig,
    Runtime,
    apply_edits,
    find_runtime,
)
from gpunode.runtimes.file_states import States, contents_of_states, file_changes, packaged_version, states_from_facts
from gpunode.runtimes.installations import (
    ChosenRuntime,
    is_shipped_by_products,
    kubelet_using,
    resolve_runtime,
    with_kubelet_cgroup_driver,
)
from gpunode.runtimes.model import TOOLKIT_PROGRAM_NAME, explain_no_cdi, reads_cdi, should_enable_cdi
from gpunode.steps.installed_driver import explain_manual_marks, is_at_version, plan_manual_marks
from gpunode.steps.packages import desired_state, find_packages_off_lock, held_packages_refusal
from gpunode.steps.selection import unlocked_package_refusal
from gpunode.steps.toolkit import TOOLKIT_CONFIG_FILE
from gpunode.wording import join_with_and


def plan_runtime_install(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan a package that provides the runtime."""
    if recipe.runtime.name == "none":
        return Planned((), "the recipe has no container runtime")
    try:
        runtime = resolve_runtime(find_runtime(recipe.runtime.name), facts).runtime
    except Refused as refusal:
        return Refusal.of(refusal)
    if runtime.product:
        return Planned((), f"{runtime.product} includes its own {runtime.id}")
    packages = require(facts.packages, "which packages are installed")
    for package in map(PackageId, runtime.packages):
        if is_at_version(packages.get(package), ""):
            return _plan_installed_runtime(recipe, facts, package, packages)
    unit = facts.unit(runtime.unit)
    if isinstance(unit, Known) and unit.value.exists and not unit.value.masked:
        return Planned((), f"{runtime.unit} is installed, but not from a package; it is not replaced")
    return _plan_missing_runtime(recipe, facts, runtime, packages)


def _plan_missing_runtime(
    recipe: Recipe, facts: Facts, runtime: Runtime, packages: Mapping[PackageId, PackageState]
) -> StepOutcome:
    """Plan the distribution's package of a runtime that is not here."""
    if recipe.kubernetes and recipe.kubernetes.kind.workers and value_or(facts.rootless_docker, default=False):
        # nvkind issue 48.
        install = deb.install_command(("docker.io",))
        return Refusal(
            what="docker is rootless here, so a kind cluster gets no GPU",
            why="a user runs dockerd (/run/user/*/docker.sock), and docker.service is missing; without root it cannot "
            "give the cluster's nodes devices",
            hint=f"install docker for the whole machine, and use it for kind:\nsudo {install}\n"
            "docker context use default",
        )
    if runtime.package_source_hint:
        return Refusal(
            what=f"{runtime.id} is not installed",
            why="no supported distribution packages it",
            hint=f"install it from {runtime.package_source_hint}; then run the command again",
        )
    if recipe.runtime.install == "never":
        product = ", or k3s or RKE2, which include theirs" if is_shipped_by_products(runtime) else ""
        return Refusal(
            what=f"{runtime.id} is not installed",
            why='the recipe says runtime.install = "never"',
            hint=f'install {" or ".join(runtime.packages)}{product}, or set runtime.install = "if-missing"',
        )
    first = PackageId(runtime.packages[0])
    if recipe.lock is not None and first not in recipe.lock.packages:
        return unlocked_package_refusal(recipe.lock, first)
    wanted = (first, *_client_package(recipe, facts, runtime, packages))
    reason = f"{runtime.id} is missing; the distribution's {'packages' if wanted[1:] else 'package'} will be installed"
    after = KnownAfter(why="runtime")
    changes = (
        PackageChange(package, packages.get(package), desired_state(recipe, package, after)) for package in wanted
    )
    return Planned(tuple(changes), reason)


def _client_package(
    recipe: Recipe, facts: Facts, runtime: Runtime, packages: Mapping[PackageId, PackageState]
) -> tuple[PackageId, ...]:
    """Return the missing package of the runtime's client; a lock written on a node without it leaves it out."""
    release = releases.release(require(facts.distro, "which distribution this is"))
    name = runtime.client_packages.get((release.distribution, release.version), "") if release else ""
    package = PackageId(name)
    is_left_out = not name or (recipe.lock is not None and package not in recipe.lock.packages)
    return () if is_left_out or is_at_version(packages.get(package), "") else (package,)


def _plan_installed_runtime(
    recipe: Recipe, facts: Facts, package: PackageId, packages: Mapping[PackageId, PackageState]
) -> StepOutcome:
    """Return the package that provides the runtime, and its client's, in the locked versions if there are any."""
    lock = recipe.lock
    if lock is not None and package not in lock.packages:
        return unlocked_package_refusal(lock, package)
    off_lock = find_packages_off_lock(recipe, packages, _installed_runtime_packages(recipe, facts))
    if lock is None or not off_lock:
        marked = plan_manual_marks(packages, (package,))
        installed = f"{package} {packages[package].version} is installed"
        return Planned(marked, f"{installed}; {explain_manual_marks(marked)}" if marked else installed)
    if held := [package for package in off_lock if packages[package].held]:
        return held_packages_refusal(held, lock.file)
    after = KnownAfter(why="runtime")
    changes = (PackageChange(package, packages[package], desired_state(recipe, package, after)) for package in off_lock)
    return Planned(tuple(changes), f"the lock holds {join_with_and([*map(str, off_lock)])} at another version")


def _installed_runtime_packages(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    """Return the package that provides the recipe's runtime on this node, and its client's if that is another one."""
    if recipe.runtime.name == "none":
        return ()
    packages, runtime = require(facts.packages, "which packages are installed"), find_runtime(recipe.runtime.name)
    daemons, clients = (
        tuple(package for package in map(PackageId, names) if is_at_version(packages.get(package), ""))
        for names in (runtime.packages, runtime.client_packages.values())
    )
    return (*daemons[:1], *clients)


RUNTIME_INSTALL_STEP = Step(
    "runtime-install",
    "container runtime",
    "packages",
    plan_runtime_install,
    serves=(),
    packages=StepPackageRules(
        _installed_runtime_packages,
        {
            PackageId(name) for runtime in RUNTIMES for name in (*runtime.packages, *runtime.client_packages.values())
        }.__contains__,
    ),
)


# Root's programs read these for every container.
_TOOLKIT_CONFIG_FILES = (TOOLKIT_CONFIG_FILE, "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env")


def plan_runtime_config(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the runtime's files with NVIDIA's handler; its own parser checks them before they are used."""
    if recipe.runtime.name == "none":
        return Planned((), "the recipe has no container runtime")
    try:
        choice = resolve_runtime(find_runtime(recipe.runtime.name), facts)
        return _with_toolkit_config(recipe, facts, _plan_configuration(recipe, facts, choice))
    except Refused as refusal:
        return Refusal.of(refusal)


def _with_toolkit_config(recipe: Recipe, facts: Facts, planned: Planned | Refusal) -> Planned | Refusal:
    """Return ``planned`` with the toolkit's own file as the recipe wants it."""
    if isinstance(planned, Refusal) or recipe.toolkit.volume_mounts is None:
        return planned
    from gpunode.steps import toolkit_config  # loaded on use: few recipes ask for it

    if not (changes := toolkit_config.plan_toolkit_config(recipe, facts)):
        return planned
    others = (change for change in planned.changes if change.subject != TOOLKIT_CONFIG_FILE)
    accepted = "accepts" if recipe.toolkit.volume_mounts else "does not accept"
    reason = f"{planned.reason}; the toolkit {accepted} requests for GPUs by mounts"
    return replace(planned, changes=sort_changes((*others, *changes)), reason=reason)


def _plan_configuration(recipe: Recipe, facts: Facts, choice: ChosenRuntime) -> Planned | Refusal:
    runtime = choice.runtime
    fact = facts.file(runtime.config)
    if isinstance(fact, Unknown) and fact.probe == PLAN_PROBE_KEY:
        return _plan_deferred(runtime, fact)
    desired = _desired_config(recipe, runtime, facts)
    present = states_from_facts(facts, runtime, desired)
    if recipe.runtime.cgroup_driver == "auto":
        desired = with_kubelet_cgroup_driver(runtime, facts, desired, contents_of_states(present))
    observed = runtime.inspect(contents_of_states(present), desired)
    if _uses_cdi_for_pods(recipe) and should_enable_cdi(runtime, observed, desired.version):
        desired = replace(desired, enable_cdi=True)
    target = RuntimeTarget(runtime, desired, present, facts, choice.notes)
    lacks = find_missing_toolkit(facts, runtime)
    if lacks and facts.is_image:
        lacks = replace(lacks, install=None)  # the facts do not say where the image is mounted
    refuse_missing_default_program(target, lacks)
    planned = plan_configuration(target)
    if not planned.changes:
        planned = replace(planned, expectation=None)  # a parser does not see changes of write access
    planned = _restrict_files(
        target, replace(planned, changes=(*planned.changes, *_service_changes(runtime, facts, present)))
    )
    notes = (*planned.notes, *_notes_on_recipe(recipe, target, observed))
    lacking = (lacks.note,) if lacks else ()
    if not planned.changes:
        return replace(planned, notes=(*notes, *lacking))
    unit = target.unit
    if not facts.is_image and not facts.can_start(runtime.unit) and unit is not None and unit.exists:
        starts = f"no systemd runs here, so gpunode cannot start {runtime.id}, which reads its files at its start"
        lacking = (*lacking, f"{starts}: start it the way this system starts it")
    return replace(planned, notes=notes, change_notes=(*planned.change_notes, *lacking))


def _uses_cdi_for_pods(recipe: Recipe) -> bool:
    """Return whether pods of this runtime should get their GPUs by CDI if they can.

    kind's pods run in kind's own containerd, inside docker containers.
    """
    wanted = recipe.kubernetes
    if wanted is None or wanted.stack not in {"device-plugin", "gpu-operator"} or wanted.kind.workers:
        return False
    return recipe.runtime.set_as_default is not True and recipe.runtime.cdi is None


def _notes_on_recipe(recipe: Recipe, target: RuntimeTarget, observed: ObservedConfig) -> Iterator[str]:
    """Yield what the recipe lacks or wants differently; ``observed`` is what the files have now."""
    runtime, desired, kubelet = target.runtime, target.desired, kubelet_using(target.runtime, target.facts)
    if (
        recipe.runtime.cgroup_driver == "systemd"
        and not runtime.product
        and kubelet
        and kubelet.cgroup_driver == "cgroupfs"
    ):
        yield "the kubelet uses the cgroup driver cgroupfs, but the recipe sets systemd for runc: they must be the same"
    if recipe.runtime.set_as_default is None and observed.default == desired.handler:
        yield (
            f"{desired.handler} is the default runtime of {runtime.id} and stays so, because the recipe does not set "
            "runtime.set_as_default; runtime.set_as_default = false removes it"
        )
    cluster, version = recipe.kubernetes, desired.version
    if not (cluster and cluster.runtime_class) or not _uses_cdi_for_pods(recipe):
        return
    if not desired.enable_cdi and not reads_cdi(runtime, observed, version):
        needs = f"pods on this node get a GPU only with runtimeClassName: {cluster.runtime_class}"
        yield f"{needs}: {explain_no_cdi(runtime, observed, version)}"


def _restrict_files(target: RuntimeTarget, planned: Planned) -> Planned:
    """Return ``planned`` with only root allowed to write files that name programs for root to run."""
    runtime, facts, present = target.runtime, target.facts, target.present
    owned_paths = [
        path
        for path in (*present, *_TOOLKIT_CONFIG_FILES)
        if path in runtime.own_files or path in _TOOLKIT_CONFIG_FILES
    ]
    restrictions = {change.path: change for change in restrict_to_root(facts, owned_paths)}
    touched = {change.path for change in FileChange.of_kind(planned.changes)}
    edited = (
        change.restrict_writes_to_root() if change.subject in restrictions else change for change in planned.changes
    )
    # No running program reads a file's mode, so these changes restart nothing.
    beside = (change for change in restrictions.values() if change.path not in touched)
    others = [path for path in present if path not in owned_paths and describe_nonroot_writers(present[path])]
    notes = (
        *(
            f"{path} {describe_nonroot_writers(present[path])}, and {runtime.unit} reads it; gpunode leaves that"
            for path in others
        ),
        *note_replaceable_files(facts, (*present, *_TOOLKIT_CONFIG_FILES)),
    )
    return replace(
        planned,
        changes=sort_changes((*edited, *beside)),
        reason="; ".join((explain_restriction(restrictions.values()), planned.reason))
        if restrictions
        else planned.reason,
        notes=(*planned.notes, *notes),
    )


def find_missing_toolkit(facts: Facts, runtime: Runtime) -> MissingProgram | None:
    """Return the runtime's program if it is missing; None if it exists, or this plan installs it."""
    if isinstance(facts.toolkit_program, Unknown) or facts.toolkit_program.value:
        return None
    packages = facts.packages
    # The program is in one of the first two, depending on the toolkit's version.
    is_planned = isinstance(packages, Known) and packages.probe == PLAN_PROBE_KEY
    if is_planned and any(is_at_version(value_or(packages, {}).get(package), "") for package in TOOLKIT_PACKAGES[:2]):
        return None
    return missing_program(TOOLKIT_PROGRAM, runtime.id)


def _desired_config(recipe: Recipe, runtime: Runtime, facts: Facts) -> DesiredConfig:
    return DesiredConfig(
        default=recipe.runtime.set_as_default is True,
        demote_default=recipe.runtime.set_as_default is False,
        # A product sets one driver for its kubelet and containerd; a recipe for kubeadm's kubelet does not apply to it.
        systemd_cgroup=recipe.runtime.cgroup_driver == "systemd" and not runtime.product,
        enable_cdi=recipe.runtime.cdi is True,
        version=packaged_version(runtime, value_or(facts.packages, {})),
        enable_cri=runtime.has_cri_plugin and kubelet_using(runtime, facts) is not None,
    )


def _plan_deferred(runtime: Runtime, fact: Unknown) -> Planned:
    """Plan a file whose content is known once the package that contains it is installed."""
    promise = Deferred("the package's file, with NVIDIA's runtime added", f"{runtime.packages[0]} is installed")
    reason = f"{runtime.packages[0]} installs its own configuration; NVIDIA's runtime is added to it"
    if file_matches(fact, promise):
        return Planned((), reason)
    return Planned((FileChange(runtime.config, None, promise, frozenset({Trigger("restart", runtime.unit)})),), reason)


def _service_changes(runtime: Runtime, facts: Facts, present: States) -> tuple[Change, ...]:
    """Return the change that starts and enables a runtime that does not run; none if systemd does not tell.

    A product's runtime is left alone, and one that would fail with its present files is not started.
    """
    fact = facts.unit(runtime.unit)
    if runtime.product or not isinstance(fact, Known) or not fact.value.exists or fact.value.masked:
        return ()
    is_startable = runtime.inspect(contents_of_states(present), DesiredConfig()).is_startable
    can_start = is_startable and not facts.is_image and facts.can_start(runtime.unit)
    wanted = ServiceState(enabled=True, active=can_start or fact.value.state.active)
    return () if fact.value.state == wanted else (ServiceChange(runtime.unit, fact.value.state, wanted),)


RUNTIME_CONFIG_STEP = Step(
    "runtime-config",
    "runtime configuration",
    "runtime",
    plan_runtime_config,
    serves=("runtime-install",),
    needs=("toolkit", "runtime-install"),
    files=_TOOLKIT_CONFIG_FILES,
)


@dataclass(frozen=True, slots=True)
class RuntimeTarget:
    """A runtime on the node, and its desired configuration.

    Attributes:
        runtime: with its paths on this node.
        present: the files that it reads.
        facts: of its unit, of the kubelet that uses it, and when its files were changed.
        notes: what the user should know about the choice of ``runtime``.
    """

    runtime: Runtime
    desired: DesiredConfig
    present: States
    facts: Facts
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> str:
        """The main file, whether it changes or not."""
        return self.desired.config or self.runtime.config

    @property
    def is_default_config(self) -> bool:
        """True if ``main`` is the file that the runtime reads by default."""
        config = self.desired.config
        usual = replace(self.desired, config="")
        return (
            not config
            or config == self.runtime.adapt_to_node(self.runtime, contents_of_states(self.present), usual).config
        )

    @property
    def own(self) -> frozenset[str]:
        """The files that configure it; some of the others that it reads define how it is started."""
        return frozenset(
            {self.main, self.desired.drop_in, *self.runtime.own_files} - {"", *self.runtime.generated_files}
        )

    @property
    def unit(self) -> Unit | None:
        """The unit that runs it; None if unknown."""
        fact = self.facts.unit(self.runtime.unit)
        return fact.value if isinstance(fact, Known) else None

    @property
    def trigger(self) -> Trigger | None:
        """The trigger after which its daemon has read all of its files; None if it need not, or no unit runs it.

        A reload does not apply docker's features: if ctk should set them, it is unknown whether dockerd has read them.
        Setup does not stop containers because somebody else edited them.
        """
        files = contents_of_states(self.present)
        unwritten = {path: content for path, content in files.items() if path != self.main}
        return self._trigger(unwritten if self.desired.enable_cdi and self.desired.exact else files, files)

    def trigger_of_edit(self, after: Files) -> Trigger | None:
        """Return a restart for containerd, which reads its file only at start, or a reload for dockerd (SIGHUP).

        Source: dockerd(8), "Configuration reload behavior"; containerd exits on SIGHUP (containerd issue 13285).
        """
        return self._trigger(contents_of_states(self.present), after)

    def _trigger(self, before: Files, after: Files) -> Trigger | None:
        runtime = self.runtime
        if not runtime.unit or runtime.watches_files:
            return None
        reloads = runtime.reloads and (before == after or runtime.applies_on_reload(before, after, self.desired))
        return Trigger("reload" if reloads else "restart", runtime.unit)


def plan_configuration(target: RuntimeTarget) -> Planned:
    """Plan the registration of the handler.

    Raises:
        Refused: if the files cannot be edited.
    """
    runtime, desired, files = target.runtime, target.desired, contents_of_states(target.present)
    edited = runtime.configure(files, desired)
    written = apply_edits(files, edited)
    after = runtime.inspect(written, desired)
    if desired.demote_default and after.default == desired.handler:
        raise Refused(
            f"{desired.handler} is the default runtime of {runtime.id}, and the recipe says "
            "runtime.set_as_default = false",
            why=f"the former default of {runtime.product or runtime.id} is unknown, so gpunode does not remove it",
            hint=f"remove it from {runtime.config or 'its configuration'}, or set_as_default from the recipe",
        )
    handler = (desired.handler, after.handlers.get(desired.handler, desired.binary))
    default = desired.handler if desired.default else after.default if desired.demote_default else None
    expected = RuntimeExpectation(runtime.id, target.main, frozenset({handler}), default)
    is_default = " is not" if desired.demote_default else " is" if desired.default else ""
    named = f"; {desired.handler}{is_default} the default runtime" if is_default else ""
    registers = f"registers {desired.handler}{named}"
    planned = plan_edits(target, edited, f"{registers}; {edited.how}", expected)
    if not planned.changes and runtime.unit and not runtime.product:
        planned = replace(planned, reason=f"{target.main} {registers}")
    # Notes that are given again for the edited files are about the files, not about the edits.
    lasting = runtime.configure(written, desired).notes if planned.change_notes else ()
    passing = tuple(note for note in planned.change_notes if note not in lasting)
    notes = (*planned.notes, *lasting)
    if after.cri_disabled:
        disables = f"{target.main} disables the CRI plugin (disabled_plugins), so no kubelet can use this {runtime.id}"
        notes = (*notes, f"{disables}; `{enable_cri_command(runtime)}` enables it")
    return replace(planned, notes=notes, change_notes=passing)


def plan_edits(target: RuntimeTarget, edited: ConfigEdit, reason: str, expected: RuntimeExpectation) -> Planned:
    """Plan the ``edited`` files, or a re-read by a daemon that is older than they are.

    Args:
        target: the runtime.
        edited: its files.
        reason: why they change.
        expected: what its parser must find in them; a product generates its files only at its next start.
    """
    runtime, files = target.runtime, contents_of_states(target.present)
    expectation = None if runtime.product else expected
    notes = target.notes
    if target.unit is not None and target.unit.masked:
        notes = (*notes, f"{runtime.unit} is masked, so nothing reads {target.main} until it is unmasked")
    if not edited.edits:
        again, notes = _plan_reread_if_stale(target, edited) or Planned((), edited.how), (*notes, *edited.notes)
        if edited.restart_reason and _started_after_toolkit(target):
            was_started = f"{runtime.product} was started after the toolkit was installed and has not registered"
            look = f"see `{runtime.product} --version` and `systemctl show {runtime.unit} -p Environment`"
            check = f"Check that {target.desired.binary} is on its PATH: {look}"
            notes = (*notes, f"{was_started} {target.desired.handler}: {edited.restart_reason}. {check}")
        return replace(again, notes=notes, expectation=expectation)
    trigger = target.trigger_of_edit(apply_edits(files, edited))
    triggers = frozenset({trigger}) if trigger else frozenset[Trigger]()
    changes = file_changes(edited, target.present, triggers, is_roots=target.is_default_config)
    return Planned(changes, reason, notes, edited.notes, expectation, _name_stopped_containers(target, trigger))


def plan_reread(target: RuntimeTarget, paths: Iterable[str], reason: str) -> Planned:
    """Plan changes without new content, for a daemon that must read its files again."""
    trigger = target.trigger
    owed = frozenset({trigger}) if trigger else frozenset[Trigger]()
    states = ((path, target.present.get(path)) for path in paths)
    changes = tuple(FileChange(path, state, state, owed) for path, state in states)
    return Planned(changes, reason, stopped_workloads=_name_stopped_containers(target, trigger))


def _plan_reread_if_stale(target: RuntimeTarget, edited: ConfigEdit) -> Planned | None:
    """Plan a re-read of files newer than the daemon; None if there are none or a time is unknown."""
    runtime, unit, changed_at = target.runtime, target.unit, target.facts.changed_at
    if target.trigger is None:
        return None
    if unit is not None and unit.started_at is not None:
        since = max(unit.started_at, (runtime.reloads and unit.changed_at) or 0.0)
        if unread := [path for path in target.present if path in target.own and changed_at.get(path, 0.0) > since]:
            return plan_reread(target, unread, f"{unread[0]} was changed after {runtime.unit} last read it")
    is_start_known = unit is not None and unit.started_at is not None
    # ctk requests no restart for a unit whose state is unknown.
    if (
        edited.restart_reason
        and runtime.config in changed_at
        and not _started_after_toolkit(target)
        and (is_start_known or not target.desired.exact)
    ):
        return plan_reread(target, (runtime.config,), edited.restart_reason)
    return None


def _started_after_toolkit(target: RuntimeTarget) -> bool:
    """Return True if the unit was started after the toolkit's installation, so that a restart changes nothing."""
    unit, came = target.unit, target.facts.changed_at.get(TOOLKIT_FILE_LIST)
    return unit is not None and unit.started_at is not None and came is not None and unit.started_at > came


def enable_cri_command(runtime: Runtime) -> Command:
    """Return the command that switches containerd's CRI plugin on."""
    return sudo_gpunode("ctk", "runtime", "configure", f"--runtime={runtime.id}", "--enable-cri", "--restart")


def _name_stopped_containers(target: RuntimeTarget, trigger: Trigger | None) -> str:
    """Describe what a restart stops: docker's containers, unless live-restore is on; containerd's continue."""
    runtime = target.runtime
    if not runtime.stopped_by_restart or trigger is None or trigger.kind != "restart":
        return ""
    return (
        ""
        if runtime.keeps_containers(contents_of_states(target.present), target.desired)
        else runtime.stopped_by_restart
    )


@dataclass(frozen=True, slots=True)
class MissingProgram:
    """A handler's program that is not installed, and the command that installs it, if any."""

    program: str
    install: Command | None

    @property
    def hint(self) -> str:
        """The next step of the user."""
        return str(self.install or f"install {self.program}, which is not part of the container toolkit's packages")

    @property
    def note(self) -> str:
        """The note for the user."""
        means = f"{self.program} is not installed, so its containers cannot start"
        return f"{means}; `{self.install}` installs it" if self.install else means


def missing_program(program: str, runtime: str, *where: str) -> MissingProgram:
    """Return ``program`` as missing; ``where`` are the options that name another root."""
    if not program.removeprefix("/usr/bin/").startswith(TOOLKIT_PROGRAM_NAME):
        return MissingProgram(program, None)
    steps = ("--only=toolkit-repository", "--only=toolkit")
    return MissingProgram(program, sudo_gpunode("setup", f"--runtime={runtime}", *steps, *where))


def refuse_missing_default_program(target: RuntimeTarget, missing: MissingProgram | None) -> None:
    """Refuse a default runtime whose program is not installed, since no container could start.

    Raises:
        Refused: if so.
    """
    desired = target.desired
    if missing is not None and desired.default and target.is_default_config:
        raise Refused(
            f"{desired.handler} cannot be the default runtime of {target.runtime.id}: "
            f"{missing.program} is not installed",
            why=f"{target.runtime.id} could not start any container",
            hint=f"install it first, or do not make {desired.handler} the default runtime\n{missing.hint}",
        )
