"""Projection of changes onto a node's facts. Pure and total: the basis of ``plan`` and ``rehearse``.

Undetermined results are promised: a file becomes ``PromisedFile``, a package gets the known part of its version. So the
steps, run again on the projected facts, find nothing left to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    FileState,
    KnownAfter,
    MigChange,
    MigLayout,
    ModuleChange,
    ObjectChange,
    PackageChange,
    PackageState,
    ServiceChange,
    sort_changes,
)
from gpunode.facts.model import (
    Fact,
    Facts,
    Known,
    LoadedDriver,
    MigGpu,
    ModuleFile,
    PackageSource,
    PromisedFile,
    Unit,
    Unknown,
    value_or,
)
from gpunode.facts.patterns import Pattern
from gpunode.package_id import PackageId
from gpunode.packages import deb

T = TypeVar("T")
PLAN_PROBE_KEY: Final = "plan"
# Works even if the link nvidia-uninstall is gone. The installer's exit status says little, so success means that its
# programs are gone.
UNINSTALL_RUN_DRIVER: Final = (
    "sh",
    "-c",
    "nvidia-installer --uninstall --silent; test ! -e /usr/bin/nvidia-installer -a ! -e /usr/bin/nvidia-uninstall",
    "nvidia-installer --uninstall --silent",
)
VERSION_AFTER_INDEX: Final = "known after the index is read"
_EPOCH_AND_REVISION: Final = Pattern(r"\A(?:\d+:)?(.*?)(?:-[^-]*)?\Z", re.DOTALL)


def project_changes(facts: Facts, changes: Iterable[Change]) -> Facts:
    """Return the facts expected after ``changes``, in the order in which a stage applies them."""
    for change in sort_changes(changes):
        facts = _apply_change(facts, change)
    return facts


def _apply_change(facts: Facts, change: Change) -> Facts:
    match change:
        case FileChange():
            return _with_file(facts, change)
        case PackageChange():
            return _with_package(facts, change)
        case ServiceChange(unit=unit, after=state):
            before = facts.units.get(unit)
            former = before.value if isinstance(before, Known) else Unit(state)
            return replace(
                facts, units={**facts.units, unit: Known(replace(former, state=state, exists=True), PLAN_PROBE_KEY)}
            )
        case ModuleChange(module=module, after=wanted):
            return _with_loaded_module(facts, module.replace("-", "_"), wanted=wanted)
        case CommandChange():
            return _with_command(facts, change)
        case ObjectChange():
            return facts
        case MigChange(gpu=uuid, after=layout):
            divided = facts.mig and _map_fact(facts.mig, lambda former: _with_layout(former, uuid, layout))
            return replace(facts, mig=divided)


def _with_command(facts: Facts, change: CommandChange) -> Facts:
    if change.runs_command(*UNINSTALL_RUN_DRIVER):
        # Only the node itself will show what it restores or leaves behind.
        gone = Unknown("known after the .run driver is uninstalled", PLAN_PROBE_KEY)
        return replace(facts, run_installer=Known(False, PLAN_PROBE_KEY), driver_libraries=gone, leftovers=gone)
    if change.runs_command("dkms"):
        return _with_built_modules(facts, is_rebuilt=True)
    if change.runs_command(*deb.REPAIR_COMMAND.argv):
        return replace(facts, packages_interrupted=Known(False, PLAN_PROBE_KEY), unconfigured=frozenset())
    if deb.list_reinstalled(change):
        lost: Fact[tuple[str, ...]] = Known((), PLAN_PROBE_KEY)
        return replace(facts, toolkit_program=Known(True, PLAN_PROBE_KEY), lost_programs=lost)
    if facts.module_key is not None:
        from gpunode.facts.module_key import project_key_command  # only where Secure Boot is on

        return replace(facts, module_key=project_key_command(facts.module_key, change.argv))
    return facts


def _with_layout(gpus: tuple[MigGpu, ...], uuid: str, layout: MigLayout) -> tuple[MigGpu, ...]:
    return tuple(
        replace(gpu, layout=layout, pending=layout.enabled, clients=()) if gpu.uuid == uuid else gpu for gpu in gpus
    )


def _map_fact(fact: Known[T] | Unknown, change: Callable[[T], T]) -> Known[T] | Unknown:
    """Apply ``change`` to the value of ``fact``, unless it is unknown."""
    return fact if isinstance(fact, Unknown) else Known(change(fact.value), PLAN_PROBE_KEY)


def _with_file(facts: Facts, change: FileChange) -> Facts:
    path, after = change.path, change.after
    # It is read after the change, since the change has a trigger for that.
    facts = replace(
        facts, changed_at=_without_path(facts.changed_at, path), modified_at=_without_path(facts.modified_at, path)
    )
    if after is None or isinstance(after, FileState):
        files: dict[str, Known[FileState | None] | Unknown] = {**facts.files, path: Known(after, PLAN_PROBE_KEY)}
        return replace(facts, files=files, sources=_project_sources(facts, path, after))
    promised = PromisedFile(f"{after.what}; known after {after.known_after}", PLAN_PROBE_KEY, after)
    return replace(facts, files={**facts.files, path: promised})


def _without_path(times: Mapping[str, float], path: str) -> Mapping[str, float]:
    return {other: at for other, at in times.items() if other != path}


def _project_sources(facts: Facts, path: str, after: FileState | None) -> Fact[tuple[PackageSource, ...]]:
    try:
        entries = deb.parse_source_list(path, after.content.decode("utf-8", "replace") if after else "")
    except ValueError as error:
        return Unknown(str(error), PLAN_PROBE_KEY)
    if entries is None:
        return facts.sources
    return _map_fact(facts.sources, lambda former: (*(source for source in former if source.file != path), *entries))


def _with_package(facts: Facts, change: PackageChange) -> Facts:
    def change_package(packages: Mapping[PackageId, PackageState]) -> Mapping[PackageId, PackageState]:
        rest = {one: state for one, state in packages.items() if one != change.id}
        after = change.after
        return rest if after is None else {**rest, change.id: _project_package_state(change.before, after)}

    kernel, is_gone = deb.kernel_of_headers(change.id), change.after is None
    if prebuilt := deb.parse_prebuilt_name(change.id):
        facts = _with_prebuilt_module(facts, *prebuilt, present=not is_gone)
    facts = replace(
        facts,
        packages=_map_fact(facts.packages, change_package),
        driver_libraries=Unknown("known after packages are installed", PLAN_PROBE_KEY),
        leftovers=_project_leftovers(facts.leftovers, change),
        headers=_map_fact(facts.headers, lambda former: former - {kernel} if is_gone else former | {kernel})
        if kernel
        else facts.headers,
    )
    if change.id in facts.unconfigured and change.removes_or_replaces:
        left = facts.unconfigured - {change.id}
        interrupted = facts.packages_interrupted if left else Known(False, PLAN_PROBE_KEY)
        facts = replace(facts, unconfigured=left, packages_interrupted=interrupted)
    if kernel or deb.builds_driver(change.id):
        return _with_built_modules(facts, is_rebuilt=not kernel)
    return facts


def _with_prebuilt_module(facts: Facts, kernel: str, branch: str, *, present: bool) -> Facts:
    file = ModuleFile(kernel, f"/lib/modules/{kernel}/kernel/nvidia-{branch}/nvidia.ko", branch)

    def replace_file(former: tuple[ModuleFile, ...]) -> tuple[ModuleFile, ...]:
        others = tuple(one for one in former if one.dkms or (one.kernel, one.version) != (kernel, branch))
        return (*others, file) if present else others

    return replace(facts, module_files=_map_fact(facts.module_files, replace_file))


def _project_package_state(before: PackageState | None, after: PackageState | KnownAfter) -> PackageState:
    if isinstance(after, PackageState):
        return after
    held = before is not None and before.held
    return PackageState(after.prefix or VERSION_AFTER_INDEX, auto=after.auto, held=held)


def _project_leftovers(fact: Fact[frozenset[str]], change: PackageChange) -> Fact[frozenset[str]]:
    """Keep the toolkits in /usr/local unless a CUDA package is removed; the rest must be probed again."""
    if not isinstance(fact, Known) or (change.after is None and change.id.name.startswith("cuda-")):
        return Unknown("known after packages are installed", PLAN_PROBE_KEY)
    return Known(frozenset(one for one in fact.value if one.startswith("/usr/local/")), PLAN_PROBE_KEY)


def _find_dkms_driver_package(facts: Facts) -> tuple[str, str] | None:
    """Return the package whose modules DKMS builds, and the driver's version as far as it is known."""
    packages: Mapping[PackageId, PackageState] = value_or(facts.packages, {})
    found = (
        (package.name, _EPOCH_AND_REVISION.sub(r"\1", state.version))
        for package, state in packages.items()
        if deb.builds_driver(package) and not state.config_files_only
    )
    return next(found, None)


def _with_built_modules(facts: Facts, *, is_rebuilt: bool) -> Facts:
    """Project DKMS: one module for every kernel with headers, and none without its package."""
    kernels: frozenset[str] = value_or(facts.headers, frozenset())
    driver = _find_dkms_driver_package(facts)

    def build_modules(former: tuple[ModuleFile, ...]) -> tuple[ModuleFile, ...]:
        others = tuple(file for file in former if not file.dkms)
        if driver is not None:
            paths = {kernel: f"/lib/modules/{kernel}/updates/dkms/nvidia.ko" for kernel in sorted(kernels)}
            return (*others, *(ModuleFile(kernel, path, driver[1], dkms=True) for kernel, path in paths.items()))
        # Installing headers removes nothing that DKMS built from a source without a package.
        return others if is_rebuilt else former

    return replace(facts, module_files=_map_fact(facts.module_files, build_modules))


def _with_loaded_module(facts: Facts, module: str, *, wanted: bool) -> Facts:
    loaded = _map_fact(facts.modules, lambda former: former | {module} if wanted else former - {module})
    driver = facts.loaded_driver
    if module == "nvidia":
        driver = _project_loaded_driver(facts) if wanted else Known(None, PLAN_PROBE_KEY)
    return replace(facts, modules=loaded, loaded_driver=driver)


def _project_loaded_driver(facts: Facts) -> Fact[LoadedDriver | None]:
    driver = _find_dkms_driver_package(facts)
    if driver is None:
        return Unknown("known after the module is loaded", PLAN_PROBE_KEY)
    return Known(LoadedDriver(driver[1], "open" in driver[0].split("-")), PLAN_PROBE_KEY)
