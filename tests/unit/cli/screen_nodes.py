"""Realistic nodes and the workflows' results for them, for the tests of the screen."""

from __future__ import annotations

import tempfile
from dataclasses import replace

from gpunode import builtin
from gpunode.change import FileState, PackageState, ServiceState
from gpunode.facts.model import (
    Distro,
    Facts,
    Kernels,
    Known,
    LoadedDriver,
    ModuleFile,
    PciDevice,
    Platform,
    Unit,
    value_or,
)
from gpunode.facts.nvml import Gpu, NvmlInventory
from gpunode.host.rehearsal import RehearsalHost
from gpunode.journal.store import Store
from gpunode.recipe import Recipe
from gpunode.workflow.converge import StagePlan, project_stage
from gpunode.workflow.events import Event, Observer
from gpunode.workflow.plan import plan
from gpunode.workflow.rehearse import Rehearsal, rehearse
from gpunode.workflow.setup import SetupOptions, SetupResult, setup
from tests.ids import by_id

KERNEL = "6.1.0-28-amd64"
CONFIG = "/etc/containerd/config.toml"
COMMENTED = b"""# our mirror, see ticket [OPS-123]; do not remove
version = 2

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"""
KEYRINGS = (
    "/usr/share/keyrings/cuda-archive-keyring.gpg",
    "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg",
)
OLD_DRIVER = (
    "libcuda1", "libnvidia-ml1", "nvidia-driver-libs", "nvidia-kernel-common", "nvidia-kernel-support",
    "nvidia-tesla-470-driver", "nvidia-tesla-470-kernel-dkms", "nvidia-alternative", "nvidia-smi",
)  # fmt: skip
# Without the pin: its text lists every driver package, so the pages would change with the catalog.
RECIPE = replace(builtin.read_recipe("containerd"), skip=("driver-pin",))


def facts(**changed: object) -> Facts:
    """Return a Debian 12 with a GTX 1080, nouveau loaded, the distribution's old driver and a commented config.toml."""
    packages = {name: PackageState("470.256.02-1") for name in OLD_DRIVER}
    packages |= {"linux-image-amd64": PackageState("6.1.119-1"), "containerd": PackageState("1.6.20~ds1-1+b1")}
    running = Unit(ServiceState(enabled=True, active=True))
    missing = Unit(ServiceState(enabled=False, active=False), exists=False)
    node = Facts(
        distro=Known(Distro("debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)"), "os-release"),
        architecture=Known("amd64", "dpkg-status"),
        platform=Known(Platform("bare-metal"), "virt"),
        kernels=Known(Kernels(KERNEL, (KERNEL,)), "boot-images"),
        boot_id=Known("b0a1", "boot-id"),
        devices=Known((PciDevice("0000:01:00.0", "10de", "1b80", "0300", driver="nouveau"),), "lspci"),
        packages=Known(by_id(packages), "dpkg-status"),
        packages_interrupted=Known(False, "dpkg-updates"),
        sources=Known((), "apt-sources"),
        headers=Known(frozenset(), "kernel-builds"),
        module_files=Known((), "modules-dkms"),
        modules=Known(frozenset({"nouveau"}), "modules"),
        loaded_driver=Known(None, "nvidia-version"),
        device_nodes=Known(frozenset(), "dev-nvidia"),
        units={
            "containerd.service": Known(running, "units"),
            "nvidia-persistenced.service": Known(missing, "units"),
        },
        files={
            CONFIG: Known(FileState(COMMENTED), f"file:{CONFIG}"),
            **{path: Known(None, f"file:{path}") for path in KEYRINGS},
        },
        folders={
            "/etc/apt/sources.list.d": "apt-sources-d",
            "/etc/apt/preferences.d": "apt-preferences-d",
            "/etc/modprobe.d": "modprobe-d",
        },
    )
    return replace(node, **changed)  # type: ignore[arg-type]


def free() -> Facts:
    """Return the same node without nouveau: no reboot is needed."""
    return facts(modules=Known(frozenset(), "modules"))


def host(node: Facts) -> RehearsalHost:
    """Return the node in memory."""
    return RehearsalHost({}, {path: fact.value for path, fact in node.files.items() if isinstance(fact, Known)})


def planned(node: Facts, recipe: Recipe = RECIPE) -> tuple[StagePlan, ...]:
    """Return the answer of plan."""
    return plan(recipe, node, host(node))


def converged() -> Facts:
    """Return the node after the plan."""
    node = free()
    for stage in planned(node):
        node = project_stage(node, stage)
    packages = {
        package: replace(state, version="580.178.04-1" if package.name.startswith("nvidia-driver") else "1.20.1-1")
        if state.version.startswith("known after")
        else state
        for package, state in value_or(node.packages, {}).items()
    }
    node = replace(node, packages=Known(packages, "dpkg-status"))
    built = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "580.178.04", dkms=True)
    loaded = LoadedDriver("580.178.04", open_module=False)
    return replace(node, module_files=Known((built,), "modules-dkms"), loaded_driver=Known(loaded, "nvidia-version"))


def set_up(node: Facts, tell: Observer, asked: SetupOptions | None = None) -> SetupResult:
    """Return the answer of setup, on the node in memory."""
    with tempfile.TemporaryDirectory() as folder:
        return setup(
            RECIPE,
            host(node),
            Store(folder),
            node,
            advance=project_stage,
            options=asked or SetupOptions(),
            on_event=tell,
        )


def rehearsed(node: Facts, tell: Observer) -> Rehearsal:
    """Return the answer of rehearse."""
    with tempfile.TemporaryDirectory() as folder:
        return rehearse(RECIPE, node, {}, Store(folder), options=SetupOptions(), on_event=tell)


def told(node: Facts) -> list[Event]:
    """Return the progress lines of setup."""
    events: list[Event] = []
    set_up(node, events.append)
    return events


GPU = Gpu(
    index=0,
    name="NVIDIA GeForce GTX 1080",
    uuid="GPU-6b8f2d4e-1c3a-4f5b-9d7e-0a1b2c3d4e5f",
    pci="0000:01:00.0",
    memory_mib=8192,
    persistence=True,
    ecc=False,
    ecc_pending=False,
    compute_capability="6.1",
    mig=False,
    mig_pending=False,
)
INVENTORY = NvmlInventory("580.178.04", "13.0", "13.580.178.04", (GPU,))
