"""The stack of a GPU node, from the PCI bus to Kubernetes: what was seen of each layer, and where it breaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import STACK, Diagnosis, Finding, StackLayer
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, modules, packages, pci, system
from gpunode.diagnoses.views.inventory import inventory
from gpunode.facts.model import Known
from gpunode.facts.nvml import Gpu
from gpunode.facts.patterns import Pattern

# broken: the root cause lies here. affected: a consequence shows here. works: it was seen to. seen: it was looked at,
# and nothing is wrong with it. unseen: nothing of it was in the evidence. absent: this node has no such layer.
State: TypeAlias = Literal["broken", "warned", "affected", "works", "seen", "unseen", "absent"]


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer of the stack.

    Attributes:
        seen: what is there, a few words; empty where nothing was seen.
        findings: the causes that were found in it.
    """

    id: StackLayer
    title: str
    state: State
    seen: str
    findings: tuple[str, ...] = ()


def stack(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[LayerState, ...]:
    """The layers, the lowest first."""
    return tuple(_layers(snapshot, diagnosis))


def is_shown_to_work(snapshot: Snapshot) -> bool:
    """Whether the driver itself answered that it has GPUs: without that, nobody may call a node healthy."""
    return driver.works(snapshot) or bool(_gpus(snapshot))


def _layers(snapshot: Snapshot, diagnosis: Diagnosis) -> Iterator[LayerState]:
    for layer in STACK:
        state, seen = _LOOKS[layer](snapshot)
        here = tuple(finding for finding in diagnosis.findings if finding.stack_layer == layer)
        causes = tuple(finding.cause for finding in here)
        yield LayerState(layer, TITLES[layer], _state(here) or state, seen, causes)


def _state(findings: tuple[Finding, ...]) -> State | None:
    """The worst that the findings of one layer make of it."""
    serious = [finding for finding in findings if finding.severity != "info"]
    if not serious:
        return None
    if roots := [finding for finding in serious if not finding.explained_by]:
        return "broken" if any(finding.severity == "error" for finding in roots) else "warned"
    return "affected"


def _gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    answer = snapshot.view(inventory)
    return answer.gpus if answer else ()


def _bus(snapshot: Snapshot) -> tuple[State, str]:
    found = snapshot.view(pci.gpus)
    names = dict.fromkeys(gpu.model.name if gpu.model else _plain(gpu.name) for gpu in found)
    if found:
        return "works", f"{len(found)} × {', '.join(names)}"
    return ("seen", "no NVIDIA GPU") if pci.is_listed(snapshot) else ("unseen", "")


def _plain(name: str) -> str:
    return name.partition("[")[2].partition("]")[0] or name.replace("NVIDIA Corporation", "").strip()


def _kernel(snapshot: Snapshot) -> tuple[State, str]:
    release = snapshot.view(system.running_kernel)
    distribution = snapshot.view(system.distro)
    parts = [distribution.name if distribution else "", release]
    return ("seen" if release else "unseen"), ", ".join(part for part in parts if part)


def _driver(snapshot: Snapshot) -> tuple[State, str]:
    loaded = snapshot.view(driver.loaded)
    if loaded:
        flavour = {True: ", open modules", False: ", proprietary modules", None: ""}[loaded.is_open]
        return ("works" if is_shown_to_work(snapshot) else "seen"), f"{loaded.version} loaded{flavour}"
    if version := snapshot.view(driver.smi_version):
        return "works", version.version
    if modules.loaded(snapshot, "nvidia"):
        return "seen", "nvidia is loaded"
    return ("seen", "not loaded") if modules.loaded(snapshot, "nvidia") is False else ("unseen", "")


def _health(snapshot: Snapshot) -> tuple[State, str]:
    if gpus := _gpus(snapshot):
        return "works", f"{len(gpus)} answer"
    return ("seen", "nvidia-smi answers") if driver.works(snapshot) else ("unseen", "")


def _fabric(snapshot: Snapshot) -> tuple[State, str]:
    switches = snapshot.view(pci.switches)
    if switches:
        return "seen", f"{len(switches)} NVSwitch{'es' if len(switches) > 1 else ''}"
    if any(item.outcome == "ok" and item.text.strip() for item in snapshot.of("nvidia-smi-nvlink")):
        return "seen", "links listed"
    return ("absent", "no NVSwitch") if pci.is_listed(snapshot) else ("unseen", "")


def _libraries(snapshot: Snapshot) -> tuple[State, str]:
    library = snapshot.view(driver.library)
    cuda = snapshot.view(driver.cuda_version)
    parts = [library.version if library else "", f"CUDA {cuda.version}" if cuda else ""]
    return ("seen" if any(parts) else "unseen"), ", ".join(part for part in parts if part)


def _toolkit(snapshot: Snapshot) -> tuple[State, str]:
    for name in ("nvidia-container-toolkit", "nvidia-container-toolkit-base"):
        package = snapshot.view(packages.packages).get(name)
        if package and package.is_installed:
            return "seen", f"toolkit {package.version}"
        if packages.installed(snapshot, name) is False:
            return "absent", "no toolkit"
    asked = snapshot.of("nvidia-container-cli", "nvidia-ctk")
    return ("seen", "") if any(item.outcome == "ok" for item in asked) else ("unseen", "")


def _runtime(snapshot: Snapshot) -> tuple[State, str]:
    kinds = {
        "docker": ("docker-info", "docker-version"),
        "containerd": ("containerd-config", "crictl"),
    }
    names = [name for name, asked in kinds.items() if any(i.outcome == "ok" for i in snapshot.items if i.kind in asked)]
    active = [
        unit.removesuffix(".service")
        for unit in ("docker.service", "containerd.service", "crio.service")
        if isinstance(fact := snapshot.facts.unit(unit), Known) and fact.value.state.active
    ]
    found = ", ".join(dict.fromkeys((*active, *names)))
    return ("seen" if found else "unseen"), found


def _packages(snapshot: Snapshot) -> tuple[State, str]:
    known = snapshot.view(packages.packages)
    manager = system.package_manager(snapshot)
    return ("seen", f"{manager}: {len(known)} listed") if known else ("unseen", "")


# The rows of nvidia-smi's last table: GPU, instances, process, type.
_PROCESS: Final = Pattern(r"^\|\s+\d{1,3}\s+(?:\S+\s+\S+\s+)?\d+\s+[CGM+]{1,3}\s", re.MULTILINE)


def _programs(snapshot: Snapshot) -> tuple[State, str]:
    for item in snapshot.of("nvidia-smi"):
        if item.where == "host" and "Processes:" in item.text:
            count = len(_PROCESS.findall(item.text))
            return "seen", f"{count} on the GPUs" if count else "none on a GPU"
    return ("seen", "") if snapshot.of("application", "container-run") else ("unseen", "")


def _kubernetes(snapshot: Snapshot) -> tuple[State, str]:
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known):
        return ("seen", kubelet.value.kind) if kubelet.value else ("absent", "no kubelet")
    asked = snapshot.of("kubernetes-node", "kubernetes-pod", "kubernetes-log", "kubernetes")
    return ("seen", "") if asked else ("unseen", "")


TITLES: Final[Mapping[StackLayer, str]] = {
    "pci": "PCI bus",
    "gpu": "GPU",
    "kernel": "kernel",
    "packages": "packages",
    "driver": "driver",
    "fabric": "NVLink",
    "libraries": "libraries",
    "toolkit": "toolkit, CDI",
    "runtime": "container runtime",
    "programs": "programs",
    "kubernetes": "Kubernetes",
}
_LOOKS: Final[Mapping[StackLayer, Callable[[Snapshot], tuple[State, str]]]] = {
    "pci": _bus,
    "gpu": _health,
    "kernel": _kernel,
    "packages": _packages,
    "driver": _driver,
    "fabric": _fabric,
    "libraries": _libraries,
    "toolkit": _toolkit,
    "runtime": _runtime,
    "programs": _programs,
    "kubernetes": _kubernetes,
}
