"""Nodes for which remedies were printed: facts that their evidence proves, and the rest as the cause implies.

Evidence is usually a few lines, and a plan needs a complete node. So a node of that distribution, with those GPUs and
that driver, is set up by gpunode's own steps in memory, broken as the cause says, and given every fact that the
evidence proves. Then the remedy's steps are followed in order.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

import typer.main
from typer.core import TyperGroup

from gpunode.catalog import branches, cuda
from gpunode.catalog.conflicts import is_deb_driver_package
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.catalog.gpus import find_model
from gpunode.change import FileState, PackageChange, PackageState, ServiceState
from gpunode.cli.app import app
from gpunode.cli.inputs import RecipeOptions
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.support import installed_driver
from gpunode.diagnoses.views import driver as seen_driver
from gpunode.diagnoses.views.gpu_models import gpu_models
from gpunode.diagnoses.views.runtimes import container_engine
from gpunode.diagnoses.views.system import find_distro, running_kernel
from gpunode.diagnoses.views.virtualization import is_vgpu
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.evidence import Capture, Evidence, Probe
from gpunode.facts.model import (
    Distro,
    Facts,
    Kernels,
    Known,
    Kubelet,
    LoadedDriver,
    ModuleFile,
    PciDevice,
    Platform,
    Unit,
    value_or,
)
from gpunode.package_id import PackageId
from gpunode.packages.deb.preferences import PIN_FILE
from gpunode.packages.simulation import Action, Simulation
from gpunode.recipe import Driver, Recipe, RuntimeSettings
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.runtimes.toolkit import TOOLKIT_CONFIG, parse_set_options
from gpunode.steps.daemons import PERSISTENCED_UNIT
from gpunode.steps.kernel import NOUVEAU_BLACKLIST_FILE
from gpunode.workflow import ctk_plan
from gpunode.workflow.converge import StagePlan, project_stage, walk_stages
from gpunode.workflow.ctk_plan import CtkPlan
from gpunode.workflow.plan import resolve_stage
from tests.ids import by_id, by_name

HERE: Final = "evidence"
USUAL: Final = {
    "debian": Distro("debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)"),
    "ubuntu": Distro("ubuntu", "22.04", "jammy", "Ubuntu 22.04.5 LTS", ("debian",)),
}
TOOLKIT: Final = "1.20.1-1"
T4: Final = PciDevice("0000:01:00.0", "10de", "1eb8", "0302")
# Neither the newest release of its branch nor one of an unmaintained branch.
USUAL_DRIVER: Final = "580.95.05"
CUDA_KEYRING: Final = "/usr/share/keyrings/cuda-archive-keyring.gpg"
TOOLKIT_KEYRING: Final = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
_DRIVER_VERSION: Final = re.compile(r"\d{3}(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class Archives:
    """A node whose package index has the newest release of everything: NVIDIA's archives as the catalog knows them."""

    installed: Mapping[str, PackageState]

    def run_probe(self, probe: Probe, /) -> Capture:
        """Return an absent capture: the facts hold the state of the node."""
        return Capture(probe.source, "absent")

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation:
        """Return the actions of apt; a package that already has the version stays as it is."""
        return Simulation(tuple(action for change in changes for action in self._action(change)))

    def _action(self, change: PackageChange) -> Iterator[Action]:
        before = self.installed.get(str(change.id))
        there = before is not None and not before.config_files_only
        if change.after is None:
            if there:
                yield Action("purge", change.id)
            return
        after = change.after
        version = after.version if isinstance(after, PackageState) else newest(str(change.id), after.prefix)
        if before is None or not there or before.version != version:
            yield Action("install", change.id, version, before.version if before and there else "")


def newest(name: str, prefix: str) -> str:
    """Return the newest version of a package that begins with ``prefix``."""
    if PackageId(name) in TOOLKIT_PACKAGES:
        return TOOLKIT
    if not prefix:
        return "2.0-1"
    if prefix.endswith("-"):
        return f"{prefix}1"
    branch = branches.find(int(prefix[:3]))
    return f"{branch.newest_seen if branch and branch.newest_seen else f'{prefix}10.01'}-1"


def packages_of(facts: Facts) -> dict[str, PackageState]:
    """Return the packages of the node."""
    return by_name(facts.packages.value) if isinstance(facts.packages, Known) else {}


def driver_of(facts: Facts) -> tuple[int, ...]:
    """Return the newest version of a package of the driver, as numbers."""
    of_driver = (state.version for name, state in packages_of(facts).items() if is_deb_driver_package(name))
    versions = (match[0] for version in of_driver if (match := _DRIVER_VERSION.match(version)))
    return max(tuple(map(int, version.split("."))) for version in versions)


# ---- the commands


@dataclass(frozen=True, slots=True)
class Setup:
    """``gpunode setup`` as a remedy prints it."""

    command: str
    recipe: Recipe
    only: tuple[str, ...]


@cache
def parsed(command: str) -> Setup | None:
    """Return the command as gpunode's own command line reads it; None if it is not ``gpunode setup``."""
    words = shlex.split(command)
    if words[:3] != ["sudo", "gpunode", "setup"]:
        return None
    setup: Any = typer.main.get_command(app)
    context = setup.make_context("gpunode", words[2:])
    name, found, rest = setup.resolve_command(context, [*context._protected_args, *context.args])
    given = found.make_context(name, rest, parent=context).params
    recipe = RecipeOptions(
        given["recipe"] or "", given["runtime"] or "", given["driver"] or "", upgrade=given["upgrade"]
    )
    return Setup(command, recipe.load(), tuple(given["only"]))


def planned(recipe: Recipe, facts: Facts, only: Collection[str] = ()) -> tuple[StagePlan, ...]:
    """Return the plan of setup for the node, from its own walk, with exact package versions."""

    def exact(now: Facts, stage: StagePlan) -> StagePlan:
        present = value_or(now.packages, {})
        return resolve_stage(stage, now, Archives(by_name(present)).simulate)

    return tuple(walk_stages(recipe, facts, exact, project_stage, only))


def after(facts: Facts, plans: Iterable[StagePlan]) -> Facts:
    """Return the node after that setup."""
    for stage in plans:
        facts = project_stage(facts, stage)
    return facts


# ---- the node


@dataclass(frozen=True, slots=True)
class Scene:
    """A node before it broke.

    Attributes:
        fresh: without any driver, with its container runtime.
        whole: set up by gpunode with ``version``.
    """

    snapshot: Snapshot
    fresh: Facts
    whole: Facts
    version: str


def scene(snapshot: Snapshot, cause: str, version: str = "") -> Scene:
    """Return the node of the evidence, which usually names no GPU or driver; ``version`` is used if it has none."""
    device, usual = _USUAL_FOR.get(cause, (T4.device, USUAL_DRIVER))
    fresh = _fresh(snapshot, device)
    version = version_told(snapshot) or version or usual
    return Scene(snapshot, fresh, _set_up(fresh, version, container_engine(snapshot)), version)


# The default GPU and driver of a node about which nothing else is known.
_USUAL_FOR: Final = {
    "gpu-legacy-unsupported-by-branch": ("1b80", "595.71.05"),
    "gpu-too-new-for-driver": ("2b85", "550.163.01"),
    "open-module-on-pre-turing": ("1b80", "580.95.05"),
    "open-module-only-data-center": ("1e81", "515.65.01"),
    "proprietary-module-on-blackwell": ("2b85", "580.95.05"),
    "vm-passthrough-hypervisor-detected": ("1c82", "460.91.03"),
}


def version_told(snapshot: Snapshot) -> str:
    """Return the version of the driver that the evidence names; empty if it names none."""
    views = (
        seen_driver.loaded_version,
        seen_driver.on_disk_version,
        seen_driver.library_version,
        seen_driver.smi_version,
        installed_driver,
    )
    seen = (found.version for view in views if (found := view(snapshot)))
    listed = (one.upstream for one in seen_driver.driver_packages(snapshot))
    told = (_said(match) for item in snapshot.items for match in _TOLD.finditer(item.text))
    return next((one for one in (*seen, *listed, *told) if _DRIVER_VERSION.fullmatch(one)), "")


# A program's message about its node's driver: the version, or the newest CUDA as 1000 * major + 10 * minor.
_TOLD: Final = re.compile(
    r"version (?P<driver>\d{3}\.[\d.]+) was detected|\(found version (?P<cuda>\d{4,5})\)"
    r"|nvidia/(?P<file>\d{3}[\d.]+)/(?:gsp|build)"
)


def _said(match: re.Match[str]) -> str:
    if match["driver"] or match["file"]:
        return match["driver"] or match["file"]
    release = cuda.find((int(match["cuda"]) // 1000, int(match["cuda"]) % 1000 // 10))
    return release.driver if release else ""


def _distro(snapshot: Snapshot) -> Distro:
    found = find_distro(snapshot)
    if found and found.id in USUAL and found.version_id:
        return replace(found, like=USUAL[found.id].like)
    is_debian_itself = running_kernel(snapshot).endswith("amd64")
    return USUAL["debian" if is_debian_itself else "ubuntu"]


def _devices(snapshot: Snapshot, otherwise: str) -> tuple[PciDevice, ...]:
    if is_vgpu(snapshot):
        return (replace(T4, subsystem=("10de", "130f")),)
    found = [one.device_id for one in snapshot.view(gpu_models) if one.device_id] or [otherwise]
    return tuple(replace(T4, address=f"0000:{number:02x}:00.0", device=one) for number, one in enumerate(found, 1))


_FOLDERS: Final = (
    *("/etc/apt/sources.list.d", "/etc/apt/preferences.d", "/etc/modprobe.d", "/etc/modules-load.d"),
    *("/etc/cdi", "/var/run/cdi"),
    *("/etc/crio/crio.conf.d", "/etc/containerd/conf.d", "/etc/crio/conf.d", "/usr/share/keyrings"),
)


def _fresh(snapshot: Snapshot, device: str) -> Facts:
    which = _distro(snapshot)
    kernel = running_kernel(snapshot) or ("6.1.0-40-amd64" if which.id == "debian" else "6.8.0-79-generic")
    flavour = re.sub(r"^[^-]*-(\d[^-]*-)*", "", kernel)
    packages = {
        f"linux-image-{flavour}": PackageState("6.1.1-1"),
        "docker.io": PackageState("26.1.5"),
        "containerd": PackageState("1.7.24"),
        "cri-o": PackageState("1.34.1-1.1"),
        "podman": PackageState("4.9.3"),
    }
    running = Known(Unit(ServiceState(enabled=True, active=True)), HERE)
    paths = (
        *("/etc/containerd/config.toml", "/etc/docker/daemon.json", "/etc/crio/crio.conf", CUDA_KEYRING),
        *(TOOLKIT_KEYRING, "/etc/nvidia-container-runtime/config.toml"),
    )
    return Facts(
        distro=Known(which, HERE),
        architecture=Known("amd64", HERE),
        platform=Known(Platform("bare-metal"), HERE),
        kernels=Known(Kernels(kernel, (kernel,)), HERE),
        boot_id=Known("b0a1", HERE),
        devices=Known(_devices(snapshot, device), HERE),
        packages=Known(by_id(packages), HERE),
        packages_interrupted=Known(False, HERE),
        sources=Known((), HERE),
        headers=Known(frozenset(), HERE),
        module_files=Known((), HERE),
        modules=Known(frozenset(), HERE),
        loaded_driver=Known(None, HERE),
        device_nodes=Known(frozenset(), HERE),
        units={
            **{f"{name}.service": running for name in ("containerd", "docker", "crio")},
            PERSISTENCED_UNIT: Known(Unit(ServiceState(enabled=False, active=False), exists=False), HERE),
            "nvidia-cdi-refresh.service": Known(Unit(ServiceState(enabled=False, active=False), exists=False), HERE),
        },
        files={path: Known(None, HERE) for path in paths},
        folders=dict.fromkeys(_FOLDERS, HERE),
        run_installer=Known(False, HERE),
        dkms=Known({}, HERE),
        kubelet=Known(None, HERE),
    )


def _set_up(fresh: Facts, version: str, runtime: str) -> Facts:
    """Return the node as gpunode sets it up with that driver, or the distribution's if the archives lack it."""
    gpus = tuple(find_model(one.device) for one in value_or(fresh.devices, ()))
    desired = Driver(version=version.partition(".")[0])
    chosen = choose_driver(gpus, desired)
    if not isinstance(chosen, DriverChoice):
        return _by_distribution(fresh, version)
    recipe = Recipe("law", driver=desired, runtime=RuntimeSettings(name=runtime))
    facts = after(fresh, planned(recipe, fresh))
    facts = _with_driver(facts, version)
    facts = after(facts, planned(recipe, facts))
    units = {**facts.units, PERSISTENCED_UNIT: Known(Unit(ServiceState(enabled=True, active=True)), HERE)}
    return _with_driver(replace(facts, units=units), version)


def _with_driver(facts: Facts, version: str) -> Facts:
    """Return every package and module of the driver in that version."""
    packages = {
        name: replace(state, version=f"{version}-1") if is_deb_driver_package(name) else state
        for name, state in packages_of(facts).items()
    }
    files = tuple(replace(one, version=version) for one in value_or(facts.module_files, ()))
    loaded = value_or(facts.loaded_driver, None)
    return replace(
        facts,
        packages=Known(by_id(packages), HERE),
        module_files=Known(files, HERE),
        loaded_driver=Known(replace(loaded, version=version) if loaded else None, HERE),
    )


def _by_distribution(fresh: Facts, version: str, *, is_open: bool = False) -> Facts:
    """Return a driver installed from the distribution's own packages."""
    branch = version.partition(".")[0]
    if value_or(fresh.distro, USUAL["ubuntu"]).id == "debian":
        kernel = "nvidia-kernel-open-dkms" if is_open else "nvidia-kernel-dkms"
        names: tuple[str, ...] = ("nvidia-driver", kernel, "libcuda1", "nvidia-smi", "libnvidia-ml1")
    else:
        stems = ("nvidia-driver", "nvidia-dkms", "nvidia-utils", "libnvidia-compute")
        is_both = {"nvidia-driver", "nvidia-dkms"}
        names = tuple(f"{one}-{branch}{'-open' if is_open and one in is_both else ''}" for one in stems)
    running = value_or(fresh.kernels, Kernels("", ())).running or ""
    packages = {**packages_of(fresh), **{name: PackageState(f"{version}-0ubuntu1") for name in names}}
    packages[f"linux-headers-{running}"] = PackageState("6.1.1-1")
    return replace(
        fresh,
        packages=Known(by_id(packages), HERE),
        headers=Known(frozenset({running}), HERE),
        module_files=Known(_modules(running, version), HERE),
        loaded_driver=Known(LoadedDriver(version, is_open), HERE),
        modules=Known(frozenset({"nvidia"}), HERE),
    )


def _modules(kernel: str, version: str) -> tuple[ModuleFile, ...]:
    return (ModuleFile(kernel, f"/lib/modules/{kernel}/updates/dkms/nvidia.ko", version, dkms=True),)


# ---- what the causes mean


def _unchanged(node: Scene) -> Facts:
    return node.whole


def _open(node: Scene) -> Facts:
    return _by_distribution(node.fresh, node.version, is_open=True)


def _proprietary(node: Scene) -> Facts:
    return _by_distribution(node.fresh, node.version)


def _no_driver(node: Scene) -> Facts:
    return node.fresh


def _unloaded(node: Scene) -> Facts:
    return replace(node.whole, loaded_driver=Known(None, HERE), modules=Known(frozenset(), HERE))


def _unbuilt(node: Scene) -> Facts:
    return replace(_unloaded(node), module_files=Known((), HERE))


def _without_headers(node: Scene) -> Facts:
    facts = replace(_unbuilt(node), headers=Known(frozenset(), HERE))
    return _with_packages(facts, lambda name: "-headers-" not in name)


def _with_packages(facts: Facts, keep: Callable[[str], bool], **more: PackageState) -> Facts:
    kept = {name: state for name, state in packages_of(facts).items() if keep(name)}
    return replace(facts, packages=Known(by_id({**kept, **{n.replace("_", "-"): s for n, s in more.items()}}), HERE))


def _nouveau(node: Scene) -> Facts:
    files = {path: fact for path, fact in node.fresh.files.items() if path != NOUVEAU_BLACKLIST_FILE}
    return replace(node.fresh, files=files, modules=Known(frozenset({"nouveau"}), HERE))


def _without_user_side(node: Scene) -> Facts:
    builds = re.compile(r"nvidia-(?:kernel|dkms|persistenced)|linux-modules")
    facts = _with_packages(node.whole, lambda name: not is_deb_driver_package(name) or bool(builds.match(name)))
    return facts if facts.packages != node.whole.packages else node.fresh


def _nouveau_beside_driver(node: Scene) -> Facts:
    """Return a node with the distribution's driver, on which nouveau loaded first."""
    installed = _by_distribution(node.fresh, node.version)
    return replace(installed, loaded_driver=Known(None, HERE), modules=Known(frozenset({"nouveau"}), HERE))


def _headless(node: Scene) -> Facts:
    builds = re.compile(r"nvidia-(?:kernel|dkms)|linux-")
    return _with_packages(_by_distribution(node.fresh, node.version), lambda name: bool(builds.match(name)))


def _half_of_distribution(node: Scene) -> Facts:
    whole = _by_distribution(node.fresh, node.version)
    name = max(filter(is_deb_driver_package, packages_of(whole)))
    behind = replace(packages_of(whole)[name], version="535.288.01-0ubuntu1")
    return replace(whole, packages=Known(by_id({**packages_of(whole), name: behind}), HERE))


def _half_upgraded(node: Scene) -> Facts:
    """Return a node with some packages of the previous branch; nothing ties the driver to one repository."""
    facts = _unpinned(node)
    names = sorted(filter(is_deb_driver_package, packages_of(facts)))
    older = {name: replace(packages_of(facts)[name], version="570.86.15-1") for name in names[:1]}
    return replace(facts, packages=Known(by_id({**packages_of(facts), **older}), HERE))


def _unpinned(node: Scene) -> Facts:
    """Return the same packages, installed from an archive that gpunode did not set up."""
    files = {path: fact for path, fact in node.whole.files.items() if path != PIN_FILE and "cuda-" not in path}
    return replace(node.whole, files=files, sources=Known((), HERE))


def _two_branches(node: Scene) -> Facts:
    other = "535.288.01-1" if not node.version.startswith("535") else "550.163.01-1"
    return _with_packages(_unpinned(node), lambda _: True, nvidia_utils_x=PackageState(other))


def _by_run_file(node: Scene) -> Facts:
    """Return a node whose .run installer built a module for an earlier kernel, without any driver package."""
    older = (ModuleFile("6.1.0-10-amd64", "/lib/modules/6.1.0-10-amd64/kernel/drivers/video/nvidia.ko", node.version),)
    return replace(node.fresh, module_files=Known(older, HERE))


def _run_file(node: Scene) -> Facts:
    return replace(_by_run_file(node), run_installer=Known(True, HERE))


def _run_over_packages(node: Scene) -> Facts:
    """Return a node with the .run installer's libraries beside the distribution's driver, or its packages twice."""
    if seen_driver.driver_packages(node.snapshot):
        return _two_branches(node)
    return replace(_by_distribution(node.fresh, node.version), run_installer=Known(True, HERE))


def _keyless_cuda(node: Scene) -> Facts:
    return replace(node.whole, files={**node.whole.files, CUDA_KEYRING: Known(None, HERE)})


def _keyless_toolkit(node: Scene) -> Facts:
    return replace(node.whole, files={**node.whole.files, TOOLKIT_KEYRING: Known(None, HERE)})


def _unkeyed_cuda(node: Scene) -> Facts:
    return _unkeyed(node.whole, CUDA_KEYRING)


def _unkeyed_toolkit(node: Scene) -> Facts:
    return _unkeyed(node.whole, TOOLKIT_KEYRING)


def _unkeyed(facts: Facts, keyring: str) -> Facts:
    """Return the facts with a repository and a keyring that gpunode did not write."""
    return replace(facts, files={**facts.files, keyring: Known(FileState(b"\x99 no key of it"), HERE)})


def _signed_twice(node: Scene) -> Facts:
    """Return the node after the previous step commented out the surplus entries: no correct one is left."""
    lists = {path: fact for path, fact in node.whole.files.items() if not path.startswith("/etc/apt/sources.list.d")}
    return replace(node.whole, files=lists, sources=Known((), HERE))


def _without_toolkit(node: Scene) -> Facts:
    bare = _with_packages(node.whole, lambda name: PackageId(name) not in TOOLKIT_PACKAGES)
    lists = {path: fact for path, fact in bare.files.items() if "nvidia-container-toolkit" not in path}
    sources = tuple(one for one in value_or(bare.sources, ()) if "libnvidia-container" not in one.uri)
    return replace(bare, files=lists, sources=Known(sources, HERE))


def _without_packages_of_toolkit(node: Scene) -> Facts:
    return _with_packages(node.whole, lambda name: PackageId(name) not in TOOLKIT_PACKAGES)


def _old_toolkit(node: Scene) -> Facts:
    packages = {
        name: replace(state, version="1.5.1-1") if PackageId(name) in TOOLKIT_PACKAGES else state
        for name, state in packages_of(node.whole).items()
    }
    return replace(node.whole, packages=Known(by_id(packages), HERE))


def _other_cgroups(node: Scene) -> Facts:
    kubelet = Kubelet("kubelet", "kubelet.service", "/run/containerd/containerd.sock", "systemd")
    return replace(node.whole, kubelet=Known(kubelet, HERE))


def _no_persistence(node: Scene) -> Facts:
    units = {**node.whole.units, PERSISTENCED_UNIT: Known(Unit(ServiceState(enabled=False, active=False)), HERE)}
    return replace(node.whole, units=units)


STATES: Final[Mapping[str, tuple[Callable[[Scene], Facts], ...]]] = {
    "apt-nvidia-key-rotated": (_unkeyed_cuda, _keyless_cuda),
    "apt-nvidia-key-sha1": (_unkeyed_cuda, _keyless_cuda),
    "apt-signed-by-conflict": (_signed_twice,),
    "apt-toolkit-key-missing": (_unkeyed_toolkit, _keyless_toolkit),
    "cgroup-driver-mismatch": (_other_cgroups,),
    "cuda-compat-lib-mismatch": (_unchanged,),
    "cuda-compat-not-supported-hw": (_unchanged,),
    "cuda-init-802-kaslr-or-hmm": (_unchanged,),
    "dkms-build-kernel-api": (_unbuilt,),
    "driver-library-mismatch-mixed-installs": (_two_branches, _run_over_packages),
    "driver-library-mismatch-partial-upgrade": (_half_upgraded, _half_of_distribution),
    "driver-module-not-loaded": (_unbuilt,),
    "driver-not-kept-loaded": (_no_persistence,),
    "driver-not-installed": (_no_driver, _nouveau),
    "driver-too-old-for-image": (_unchanged,),
    "driver-userspace-incomplete": (_without_user_side, _headless),
    "gpu-legacy-unsupported-by-branch": (_proprietary,),
    "gpu-too-new-for-driver": (_proprietary,),
    "gsp-firmware-missing": (_unchanged,),
    "held-or-broken-packages": (_two_branches, _proprietary),
    "kernel-headers-missing": (_without_headers,),
    "mixed-repo-packages": (_half_upgraded, _half_of_distribution),
    "module-built-for-other-kernel": (_by_run_file,),
    "nouveau-bound": (_nouveau, _nouveau_beside_driver),
    "old-command-form": (_old_toolkit,),
    "open-module-on-pre-turing": (_open,),
    "open-module-only-data-center": (_open,),
    "operator-no-driver-image": (_no_driver,),
    "proprietary-module-on-blackwell": (_proprietary,),
    "runfile-leftover": (_run_file,),
    "toolkit-not-installed": (_without_toolkit, _without_packages_of_toolkit),
    "toolkit-too-old-cgroupv2": (_old_toolkit,),
    "vm-passthrough-hypervisor-detected": (_unchanged,),
    "xid-31-driver-regression": (_unchanged,),
    "xid-61-pmu-breakpoint": (_no_persistence,),
    "xid-62-pmu-halt": (_no_persistence,),
}
"""The states of a node that each cause means, for those whose remedy names a command of ``gpunode setup``."""


def nodes_of(snapshot: Snapshot, cause: str) -> tuple[Facts, ...]:
    """Return the possible nodes: facts that the evidence proves, and the rest as the cause implies."""
    there = scene(snapshot, cause)
    return tuple(_with_evidence(broken(there), snapshot) for broken in STATES[cause])


def node_with(snapshot: Snapshot, cause: str, version: str) -> Facts:
    """Return the node with that driver, unless its evidence names another."""
    return _with_evidence(STATES[cause][0](scene(snapshot, cause, version)), snapshot)


def _with_evidence(supposed: Facts, snapshot: Snapshot) -> Facts:
    """Return the node with what the evidence proves, and the rest as assumed."""
    told: dict[str, Any] = {
        field.name: fact for field in fields(Facts) if isinstance(fact := getattr(snapshot.facts, field.name), Known)
    }
    files = {path: fact for path, fact in snapshot.facts.files.items() if isinstance(fact, Known)}
    units = {name: fact for name, fact in snapshot.facts.units.items() if isinstance(fact, Known)}
    return replace(supposed, **told, files={**supposed.files, **files}, units={**supposed.units, **units})


# ---- the remedy


def steps(remedy: Sequence[Fix], facts: Facts) -> Iterator[tuple[Setup, Facts]]:
    """Yield each ``gpunode setup`` of a remedy, with the node as the earlier steps leave it."""
    for fix in remedy:
        now = facts
        for command in fix.commands:
            if setup := parsed(command):
                yield setup, now
                now = after(now, planned(setup.recipe, now, setup.only))
            else:
                now = _typed(command, now)
        # Later steps do not rely on a conditional step, nor on an alternative to the step before.
        if not fix.when and not fix.text.startswith("or "):
            facts = now


def _typed(command: str, facts: Facts) -> Facts:
    """Return the node after a system command, as far as a plan sees its effects."""
    running = value_or(facts.kernels, Kernels("", ())).running or ""
    words = [word for word in shlex.split(command.replace("$(uname -r)", running)) if not word.startswith("-")]
    packages = packages_of(facts)
    match words:
        case ["sudo", "apt-mark", "unhold", *names]:
            packages |= {name: replace(packages[name], held=False) for name in names if name in packages}
        case ["sudo", "apt-get", "purge", *names]:
            packages = {name: state for name, state in packages.items() if name not in names}
        case ["sudo", "apt-get", "install", name] if "-headers-" in name:
            kernel = name.partition("-headers-")[2]
            packages[name] = PackageState("6.1.1-1")
            facts = replace(facts, headers=Known(value_or(facts.headers, frozenset()) | {kernel}, HERE))
        case [*_, "nvidia-installer"]:
            return replace(facts, run_installer=Known(False, HERE))
        case _:
            return facts
    return replace(facts, packages=Known(by_id(packages), HERE))


# ---- gpunode ctk


@dataclass(frozen=True, slots=True)
class Shown:
    """A node that consists of its evidence and nothing else."""

    evidence: Evidence

    def run_probe(self, probe: Probe, /) -> Capture:
        """Return the evidence for the probe."""
        return self.evidence.get(probe.key, Capture(probe.source, "absent"))

    def read_live_distribution(self) -> None:
        """Do nothing: the evidence names the distribution."""
        return

    def simulate(self, changes: Sequence[PackageChange], /) -> None:
        """Do nothing: these commands concern no packages."""
        del changes


@cache
def ctk_of(command: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the subcommand of ``gpunode ctk`` and its parsed arguments; None for another command."""
    words = shlex.split(command.removeprefix("sudo "))
    if words[:2] != ["gpunode", "ctk"]:
        return None
    at: Any = typer.main.get_command(app)
    context = at.make_context("gpunode", words[1:])
    while isinstance(at, TyperGroup) and (left := [*context._protected_args, *context.args]):
        name, found, rest = at.resolve_command(context, left)
        assert found is not None
        at, context = found, found.make_context(name, rest, parent=context)
    return str(at.name), context.params


def without_moved(evidence: Evidence, commands: Iterable[str]) -> Evidence:
    """Return the files without those that the commands move away."""
    moved = {words[2] for words in map(shlex.split, commands) if words[:2] == ["sudo", "mv"]}
    return {key: one for key, one in evidence.items() if key.removeprefix("file:") not in moved}


def ctk_changes(evidence: Evidence, name: str, given: Mapping[str, Any]) -> CtkPlan:
    """Return the changes of ``gpunode ctk`` on the node of that evidence."""
    host = Shown(evidence)
    if name == "config":
        return ctk_plan.plan_toolkit_config(
            host, given["config_file"] or TOOLKIT_CONFIG, parse_set_options(given["set_"])
        )
    cdi, cri, default = given["cdi"], given["enable_cri"], given["default"]
    desired = DesiredConfig(config=given["config"], default=default, enable_cdi=cdi, enable_cri=cri)
    return ctk_plan.plan_configure_edit(host, ctk_plan.find_target(host, find_runtime(given["runtime"]), desired))
