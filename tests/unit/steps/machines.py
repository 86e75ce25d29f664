"""Facts of one plain machine, Debian 12 with a T4 and nothing installed, for tests to vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpunode.change import Change, FileChange, FileState, PackageChange, PackageState, ServiceState
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
)
from gpunode.facts.probes import ENROLMENT_REQUEST_FILE
from gpunode.outcome import Planned, Refusal, StepOutcome
from gpunode.packages.deb import sources as apt_sources
from gpunode.recipe import Driver, Recipe, RuntimeSettings
from tests.ids import by_id

KERNEL = "6.1.0-37-amd64"
CUDA_LIST = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
CUDA_URI = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
CUDA_KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
TOOLKIT_LIST = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
TOOLKIT_KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
CONTAINERD = "/etc/containerd/config.toml"
DAEMON_JSON = "/etc/docker/daemon.json"
DEBIAN = Distro("debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)")
UBUNTU = Distro("ubuntu", "24.04", "noble", "Ubuntu 24.04.3 LTS", ("debian",))
GTX_1080, T4, H100, B200, UNKNOWN = "1b80", "1eb8", "2330", "2901", "3fff"
BASE = {"dpkg": PackageState("1.21.22"), "linux-image-amd64": PackageState("6.1.140-1")}
CDI_ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
_EMPTY = (
    "/etc/apt/sources.list",
    CUDA_KEYRING,
    TOOLKIT_KEYRING,
    CONTAINERD,
    DAEMON_JSON,
    CDI_ENVIRONMENT,
    ENROLMENT_REQUEST_FILE,
)


def gpu(device: str = T4, **more: Any) -> PciDevice:
    """Return a GPU at the first slot."""
    return replace(PciDevice("0000:01:00.0", "10de", device, "0302"), **more)


def unit(*, active: bool = True, enabled: bool = True, **more: Any) -> Unit:
    """Return an existing unit."""
    return Unit(ServiceState(enabled, active), **more)


def machine(
    *,
    gpus: tuple[PciDevice, ...] = (gpu(),),
    packages: Mapping[str, PackageState | str] | None = None,
    files: Mapping[str, bytes | FileState] | None = None,
    units: Mapping[str, Unit] | None = None,
    **more: Any,
) -> Facts:
    """Return the machine with differences: installed packages (by version), files, units, and any other fact."""
    installed = {n: PackageState(s) if isinstance(s, str) else s for n, s in (packages or {}).items()}
    states = {p: FileState(s) if isinstance(s, bytes) else s for p, s in (files or {}).items()}
    lists = [(path, state) for path, state in states.items() if apt_sources.is_source_list(path)]
    absent = Unit(ServiceState(enabled=False, active=False), exists=False)
    names = (
        "containerd.service",
        "crio.service",
        "docker.service",
        "nvidia-persistenced.service",
        "nvidia-cdi-refresh.service",
    )
    facts = Facts(
        distro=Known(DEBIAN, "os-release"),
        architecture=Known("amd64", "dpkg-status"),
        platform=Known(Platform("bare-metal"), "virt"),
        kernels=Known(Kernels(KERNEL, (KERNEL,)), "boot-images"),
        boot_id=Known("b0a1", "boot-id"),
        devices=Known(gpus, "lspci"),
        packages=Known(by_id({**BASE, **installed}), "dpkg-status"),
        packages_interrupted=Known(value=False, probe="dpkg-updates"),
        sources=Known(
            tuple(entry for path, state in lists for entry in apt_sources.parse(path, state.content.decode())),
            "apt-sources",
        ),
        headers=Known(frozenset(), "kernel-builds"),
        module_files=Known((), "modules-dkms"),
        modules=Known(frozenset(), "modules"),
        loaded_driver=Known(None, "nvidia-version"),
        device_nodes=Known(frozenset(), "dev-nvidia"),
        units={name: Known((units or {}).get(name, absent), "units") for name in (*names, *(units or {}))},
        files={path: Known(states.get(path), f"file:{path}") for path in (*_EMPTY, *states)},
        folders={
            "/etc/apt/sources.list.d": "apt-sources-d",
            "/etc/apt/preferences.d": "apt-preferences-d",
            "/etc/modprobe.d": "modprobe-d",
            "/etc/modules-load.d": "modules-to-load",
            "/etc/cdi": "cdi-etc",
            "/var/run/cdi": "cdi-run",
        },
    )
    facts_of: dict[str, Any] = {
        name: value if hasattr(value, "probe") else Known(value, name) for name, value in more.items()
    }
    return replace(facts, **facts_of)


def with_driver(version: str = "580.95.05", *, open_module: bool = True, **more: Any) -> Facts:
    """Return a machine with the whole compute driver of ``version`` from NVIDIA's repository, installed and loaded."""
    dkms = "nvidia-kernel-open-dkms" if open_module else "nvidia-kernel-dkms"
    names = ("nvidia-driver-cuda", dkms, "nvidia-persistenced", "libcuda1")
    packages = {**dict.fromkeys(names, f"{version}-1"), **more.pop("packages", {})}
    path = f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko"
    fixed: dict[str, Any] = {
        "headers": frozenset({KERNEL}),
        "module_files": (ModuleFile(KERNEL, path, version, dkms=True),),
        "loaded_driver": LoadedDriver(version, open_module),
        "units": {"nvidia-persistenced.service": unit()},
    }
    return machine(packages=packages, **{**fixed, **more})


def recipe(runtime: str = "none", **driver: Any) -> Recipe:
    """Return a recipe with these driver settings."""
    return Recipe("test", driver=Driver(**driver), runtime=RuntimeSettings(name=runtime))


def planned(outcome: StepOutcome) -> Planned:
    """Return ``outcome``, which must be a plan."""
    assert isinstance(outcome, Planned), outcome
    return outcome


def refusal(outcome: StepOutcome) -> Refusal:
    """Return ``outcome``, which must be a refusal."""
    assert isinstance(outcome, Refusal), outcome
    return outcome


def files(changes: tuple[Change, ...]) -> dict[str, FileChange]:
    """Return the file changes among ``changes``, by path."""
    return {change.path: change for change in changes if isinstance(change, FileChange)}


def names(changes: tuple[Change, ...]) -> list[str]:
    """Return the packages among ``changes``."""
    return [str(change.id) for change in changes if isinstance(change, PackageChange)]
