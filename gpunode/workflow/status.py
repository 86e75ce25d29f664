"""status: the node on one screen, from facts and NVML; it only reports, doctor judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Literal

from gpunode.catalog import cuda
from gpunode.catalog.gpus import find_model
from gpunode.change import PackageState
from gpunode.command import sudo_gpunode
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused, Undetermined
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.model import Facts, Kernels, Known, LoadedDriver, Unknown, value_or
from gpunode.facts.nvml import NvmlAnswer
from gpunode.fast_dataclass import dataclass
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Recipe, RuntimeSettings
from gpunode.runtimes import RUNTIMES, DesiredConfig, ObservedConfig, Runtime, find_runtime
from gpunode.runtimes.file_states import inspect_from_facts
from gpunode.runtimes.installations import resolve_runtime_if_possible
from gpunode.steps.cuda_release import installed_releases
from gpunode.steps.fabric import find_fabric
from gpunode.steps.gpus import find_own_gpus
from gpunode.steps.installed_driver import branch_of, has_driver, installed_driver_packages
from gpunode.steps.leftovers import note_run_driver
from gpunode.wording import join_names
from gpunode.workflow.converge import state_notes
from gpunode.workflow.recovery import Backlog


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A container runtime of the node: its package's version, whether it runs, and what its file says.

    Attributes:
        active: None if it has no unit, or if that is unknown.
        unknown_reason: why it is unknown whether it runs; empty if it is known.
    """

    id: str
    version: str
    active: bool | None
    configured: ObservedConfig | None
    unknown_reason: str = ""


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU on the PCI bus."""

    address: str
    name: str


_MAX_PACKAGES_NAMED = 4


@dataclass(frozen=True, slots=True)
class CudaStatus:
    """The CUDA releases of the node in their usual form (``12.9``); empty if unknown.

    Attributes:
        driver: the newest that the driver supports in full, and so what an image may demand (NVIDIA_REQUIRE_CUDA).
        compatible: the newest whose compiled programs still start on the driver; empty if that is not newer.
        installed: the toolkits that packages installed.
    """

    driver: str
    compatible: str
    installed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FabricStatus:
    """The switches that connect the GPUs, and the service that programs them; ``active`` is None if unknown."""

    seen: str
    unit: str
    active: bool | None


@dataclass(frozen=True, slots=True)
class SecureBootStatus:
    """The state of Secure Boot, and of the key that signs the modules which DKMS builds.

    Attributes:
        certificate: its path; empty if Secure Boot is off, or the key was not captured.
        sha256: the certificate's fingerprint; empty if there is none.
        state: whether the firmware knows the key.
    """

    on: bool
    certificate: str = ""
    sha256: str = ""
    state: Literal["", "missing", "enrolled", "queued", "not enrolled"] = ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The layers of the node, from PCI to runtime.

    Attributes:
        gpus: the GPUs of this system.
        driver: version of the installed driver packages; empty if there are none.
        loaded_driver: version of the loaded kernel module; empty if there is none.
        pending_flavour: flavour of the installed modules (``open``) if the loaded ones differ; else empty.
        kernels_without_module: kernels that need a driver module and lack one.
        held_packages: driver packages that upgrades leave alone.
        secure_boot: None if it is unknown whether it is on.
        pending: what earlier runs left undone.
        pending_verb: the verb of the newest of them; after an undo, repeating that undo does what is left.
        pending_undo: the command of an undo that was cut short; empty if none was.
        notes: what the user should know about the node's state.
    """

    gpus: tuple[ListedGpu, ...]
    driver: str
    loaded_driver: str
    kernels: Kernels | None
    kernels_without_module: tuple[str, ...]
    held_packages: tuple[str, ...]
    fabric: FabricStatus | None
    secure_boot: SecureBootStatus | None
    cuda: CudaStatus
    toolkit: str
    runtimes: tuple[RuntimeStatus, ...]
    nvml: NvmlAnswer
    pending_flavour: str = ""
    pending: tuple[str, ...] = ()
    pending_verb: str = "setup"
    pending_undo: str = ""
    notes: tuple[str, ...] = ()


def status(facts: Facts, host: HostView, backlog: Backlog) -> NodeStatus:
    """Return the status of the node; unknown values are shown as absent or None."""
    packages = value_or(facts.packages, {})
    present = {p: s for p, s in installed_driver_packages(facts).items() if not s.config_files_only} if packages else {}
    drivers = present if has_driver(present) else {}
    kernels = facts.kernels.value if isinstance(facts.kernels, Known) else None
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    # The module of a removed driver stays loaded, but no program finds its libraries.
    has_libraries = bool(drivers) or bool(value_or(facts.driver_libraries, frozenset({"unknown"})))
    usable = (loaded.version if loaded else _most_common_driver_version(drivers)) if has_libraries else ""
    runtimes = tuple(_runtime_statuses(facts))
    toolkit = packages.get(TOOLKIT_PACKAGES[0])
    recipes = _make_recipes(runtimes)
    notes = chain(
        _note_unfinished_packages(facts),
        note_run_driver(facts),
        (note for recipe in recipes for note in state_notes(recipe, facts, is_users_recipe=False)),
    )
    begin = backlog.interrupted_run.begin if backlog.interrupted_run else None
    return NodeStatus(
        gpus=tuple(
            ListedGpu(d.address, find_model(d.device).name or d.name)
            for d in find_own_gpus(value_or(facts.devices, ()))
        ),
        driver=_most_common_driver_version(drivers),
        loaded_driver=loaded.version if loaded else "",
        kernels=kernels,
        kernels_without_module=_kernels_without_module(kernels, facts) if drivers else (),
        held_packages=tuple(str(package) for package, state in drivers.items() if state.held),
        fabric=_fabric_status(facts),
        secure_boot=_secure_boot_status(facts),
        cuda=_cuda_status(facts, usable),
        toolkit=toolkit.version if toolkit and not toolkit.config_files_only else "",
        runtimes=runtimes,
        nvml=nvml_facts.read_nvml_answer(host.run_probe(nvml.make_probe())),
        pending_flavour=_find_pending_flavour(
            loaded, (p for p in drivers if deb.builds_driver(p) or deb.parse_prebuilt_name(p))
        ),
        pending=backlog.descriptions,
        pending_verb=backlog.verb,
        pending_undo=str(sudo_gpunode(*begin.argv)) if begin and begin.verb in {"rollback", "remove"} else "",
        notes=tuple(dict.fromkeys(notes)),
    )


def _make_recipes(runtimes: Iterable[RuntimeStatus]) -> Iterator[Recipe]:
    """Yield a plain recipe for each runtime, whose default stays: status knows nothing of the node's own recipe."""
    defaults = {status.id: status.configured.default if status.configured else "" for status in runtimes} or {
        "none": ""
    }
    for name, default in defaults.items():
        has_default = default == DesiredConfig().handler
        yield Recipe("status", runtime=RuntimeSettings(name, set_as_default=has_default or None))


def _note_unfinished_packages(facts: Facts) -> Iterator[str]:
    """Yield that packages which the status shows may lack their configuration, or files."""
    if value_or(facts.packages_interrupted, default=False):
        names = join_names(sorted(map(str, facts.unconfigured)), _MAX_PACKAGES_NAMED)
        by_hand = "" if facts.is_image else f", or `sudo {deb.FINISH_COMMAND}`"
        yield (f"{deb.REPAIR_COMMAND.purpose}{f': {names}' if names else ''}; the next setup finishes them{by_hand}")


def _fabric_status(facts: Facts) -> FabricStatus | None:
    fabric = find_fabric(facts)
    if fabric is None:
        return None
    unit = facts.unit(fabric.unit)
    # systemd's folders tell which units exist, not whether they run; in a container the service is the host's.
    is_host = isinstance(facts.platform, Known) and facts.platform.value.can_install_kernel_driver
    if not is_host or not isinstance(unit, Known) or (unit.value.exists and not facts.can_start(fabric.unit)):
        return FabricStatus(fabric.seen, fabric.unit, None)
    return FabricStatus(fabric.seen, fabric.unit, unit.value.state.active)


def _secure_boot_status(facts: Facts) -> SecureBootStatus | None:
    if not isinstance(facts.secure_boot, Known):
        return None
    if not isinstance(facts.module_key, Known):
        return SecureBootStatus(facts.secure_boot.value)
    from gpunode.steps.enrolment import certificate_fingerprint  # loaded on use: only with Secure Boot on

    key = facts.module_key.value
    enrolment: Literal["enrolled", "queued", "not enrolled"] = (
        "enrolled" if key.enrolled else "queued" if key.queued else "not enrolled"
    )
    is_whole = key.has_key and bool(key.der)
    return SecureBootStatus(True, key.certificate, certificate_fingerprint(key), enrolment if is_whole else "missing")


def _cuda_status(facts: Facts, driver: str) -> CudaStatus:
    full = cuda.newest_supported_by_driver(driver) if driver else None
    compatible = cuda.newest_compatible_with_branch(branch_of(driver)) if full else None
    return CudaStatus(
        cuda.format_release(full or ()),
        cuda.format_release(compatible) if full and compatible and compatible > full else "",
        tuple(map(cuda.format_release, installed_releases(facts))),
    )


def _most_common_driver_version(drivers: Mapping[PackageId, PackageState]) -> str:
    """Return the version that most driver packages have."""
    versions = [nvml_facts.driver_version(state.version) for state in drivers.values()]
    known_versions = [version for version in versions if version]
    return max(known_versions, key=known_versions.count) if known_versions else ""


def _find_pending_flavour(loaded: LoadedDriver | None, builders: Iterable[PackageId]) -> str:
    """Return the flavour of the packages that provide the modules, if the kernel runs modules of the other flavour."""
    named = {"open" if "-open" in package.name else "proprietary" for package in builders}
    return "".join(named - {"open" if loaded.open_module else "proprietary"}) if loaded and len(named) == 1 else ""


def _kernels_without_module(kernels: Kernels | None, facts: Facts) -> tuple[str, ...]:
    if kernels is None or not isinstance(facts.module_files, Known):
        return ()
    built = {file.kernel for file in facts.module_files.value}
    return tuple(kernel for kernel in kernels.wanted if kernel not in built)


def _runtime_statuses(facts: Facts) -> list[RuntimeStatus]:
    packages = value_or(facts.packages, {})
    statuses = []
    for runtime in RUNTIMES:
        states = (packages.get(PackageId(name)) for name in runtime.packages)
        statuses += [
            _runtime_status(runtime, state.version, facts) for state in states if state and not state.config_files_only
        ][:1]
    return [*statuses, *_bundled_containerd(facts)]


def _bundled_containerd(facts: Facts) -> Iterator[RuntimeStatus]:
    """Yield the containerd that the kubelet's Kubernetes distribution ships."""
    runtime = resolve_runtime_if_possible(find_runtime("containerd"), facts)
    if runtime.product:
        yield _runtime_status(runtime, f"of {runtime.product}", facts)


def _runtime_status(runtime: Runtime, version: str, facts: Facts) -> RuntimeStatus:
    unit, active, unknown = facts.unit(runtime.unit), None, ""
    match unit:
        case Known(value, "units"):
            active = value.state.active if value.exists else None
        case Known(value):
            # systemd's folders tell which units exist, not which programs somebody started without systemd.
            unknown = "systemd does not run here" if value.exists else ""
        case Unknown(reason):
            unknown = reason if runtime.unit else ""
    return RuntimeStatus(runtime.id, version, active, _inspect_config_if_possible(runtime, facts), unknown)


def _inspect_config_if_possible(runtime: Runtime, facts: Facts) -> ObservedConfig | None:
    try:
        return inspect_from_facts(facts, runtime)
    except (Refused, Undetermined):
        return None
