"""Summarize the stack of a GPU node, from the PCI bus to Kubernetes, with state and evidence of each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import STACK_LAYERS, Diagnosis, Finding, StackLayer
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, modules, packages, pci, system
from gpunode.diagnoses.views.boards import nvml_inventory
from gpunode.facts.model import Known
from gpunode.facts.nvml import Gpu
from gpunode.fast_dataclass import dataclass

# broken: the root cause is here. warning: it will break, or is degraded. affected: a consequence shows here.
# works: it was seen working. no-fault: it was examined and shows no fault.
# unknown: the evidence does not show it. absent: this node has no such layer.
State: TypeAlias = Literal["broken", "warning", "affected", "works", "no-fault", "unknown", "absent"]


@dataclass(frozen=True, slots=True)
class LayerState:
    """The state of one layer.

    Attributes:
        summary: what is there, in a few words; empty if nothing was seen.
        findings: the causes found in the layer.
    """

    id: StackLayer
    title: str
    state: State
    summary: str
    findings: tuple[str, ...] = ()


def stack_layers(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[LayerState, ...]:
    """Return the layers, lowest first."""
    return tuple(_layer_state(layer, snapshot, diagnosis.findings) for layer in STACK_LAYERS)


def does_driver_answer(snapshot: Snapshot) -> bool:
    """Return whether the driver listed its GPUs; a node may only be called healthy if it did."""
    return driver.works(snapshot) or bool(_nvml_gpus(snapshot))


def _layer_state(layer: StackLayer, snapshot: Snapshot, findings: Iterable[Finding]) -> LayerState:
    title, look = _TITLE_AND_READER_BY_LAYER[layer]
    state, seen = look(snapshot)
    here = tuple(finding for finding in findings if finding.layer == layer)
    return LayerState(layer, title, _worst_state(here) or state, seen, tuple(finding.cause for finding in here))


def _worst_state(findings: tuple[Finding, ...]) -> State | None:
    """Return the worst state among the findings of one layer; None without faults."""
    serious = [finding for finding in findings if finding.severity != "info"]
    if not serious:
        return None
    if roots := [finding for finding in serious if not finding.explained_by]:
        return "broken" if any(finding.severity == "error" for finding in roots) else "warning"
    return "affected"


def _nvml_gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    answer = snapshot.view(nvml_inventory)
    return answer.gpus if answer else ()


def _bus_state(snapshot: Snapshot) -> tuple[State, str]:
    found = snapshot.view(pci.pci_gpus)
    names = dict.fromkeys(gpu.model.name if gpu.model else _short_name(gpu.name) for gpu in found)
    if found:
        return "works", f"{len(found)} × {', '.join(names)}"
    return ("no-fault", "no NVIDIA GPU") if pci.is_bus_listed(snapshot) else ("unknown", "")


def _short_name(name: str) -> str:
    return name.partition("[")[2].partition("]")[0] or name.replace("NVIDIA Corporation", "").strip()


def _kernel_state(snapshot: Snapshot) -> tuple[State, str]:
    release = snapshot.view(system.running_kernel)
    distribution = snapshot.view(system.find_distro)
    parts = [distribution.name if distribution else "", release]
    return ("no-fault" if release else "unknown"), ", ".join(part for part in parts if part)


def _driver_state(snapshot: Snapshot) -> tuple[State, str]:
    loaded = snapshot.view(driver.loaded_version)
    if loaded:
        flavour = {True: ", open modules", False: ", proprietary modules", None: ""}[loaded.is_open]
        return ("works" if does_driver_answer(snapshot) else "no-fault"), f"{loaded.version} loaded{flavour}"
    if version := snapshot.view(driver.smi_version):
        return "works", version.version
    if modules.is_module_loaded(snapshot, "nvidia"):
        return "no-fault", "nvidia is loaded"
    return ("no-fault", "not loaded") if modules.is_module_loaded(snapshot, "nvidia") is False else ("unknown", "")


def _gpu_state(snapshot: Snapshot) -> tuple[State, str]:
    if gpus := _nvml_gpus(snapshot):
        return "works", f"{len(gpus)} answer"
    return ("no-fault", "nvidia-smi answers") if driver.works(snapshot) else ("unknown", "")


def _fabric_state(snapshot: Snapshot) -> tuple[State, str]:
    switches = snapshot.view(pci.nvswitches)
    if switches:
        return "no-fault", f"{len(switches)} NVSwitch{'es' if len(switches) > 1 else ''}"
    if any(item.outcome == "ok" and item.text.strip() for item in snapshot.items_of("nvidia-smi-nvlink")):
        return "no-fault", "links listed"
    return ("absent", "no NVSwitch") if pci.is_bus_listed(snapshot) else ("unknown", "")


def _libraries_state(snapshot: Snapshot) -> tuple[State, str]:
    library = snapshot.view(driver.library_version)
    cuda = snapshot.view(driver.cuda_version)
    parts = [library.version if library else "", f"CUDA {cuda.version}" if cuda else ""]
    return ("no-fault" if any(parts) else "unknown"), ", ".join(part for part in parts if part)


def _toolkit_state(snapshot: Snapshot) -> tuple[State, str]:
    names = ("nvidia-container-toolkit", "nvidia-container-toolkit-base")
    for package in filter(None, map(snapshot.view(packages.listed_packages).get, names)):
        if package.is_installed:
            return "no-fault", f"toolkit {package.version}"
    if all(packages.is_installed(snapshot, name) is False for name in names):
        return "absent", "no toolkit"
    asked = snapshot.items_of("nvidia-container-cli", "nvidia-ctk")
    return ("no-fault", "") if any(item.outcome == "ok" for item in asked) else ("unknown", "")


def _runtime_state(snapshot: Snapshot) -> tuple[State, str]:
    answers = {
        "docker": snapshot.items_of("docker-info", "docker-version"),
        "containerd": snapshot.items_of("containerd-config", "crictl"),
    }
    names = [name for name, items in answers.items() if any(item.outcome == "ok" for item in items)]
    units = (f"{name}.service" for name in ("docker", "containerd", "crio"))
    facts = {unit: snapshot.facts.unit(unit) for unit in units}
    active = [unit.removesuffix(".service") for unit, fact in facts.items()
              if isinstance(fact, Known) and fact.value.state.active]  # fmt: skip
    runtimes_text = ", ".join(dict.fromkeys((*active, *names)))
    return ("no-fault" if runtimes_text else "unknown"), runtimes_text


def _packages_state(snapshot: Snapshot) -> tuple[State, str]:
    known = snapshot.view(packages.listed_packages)
    manager = system.package_manager(snapshot)
    return ("no-fault", f"{manager}: {len(known)} listed") if known else ("unknown", "")


def _kubernetes_state(snapshot: Snapshot) -> tuple[State, str]:
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known):
        return ("no-fault", kubelet.value.kind) if kubelet.value else ("absent", "no kubelet")
    asked = snapshot.items_of("kubernetes-node", "kubernetes-pod", "kubernetes-log", "kubernetes")
    return ("no-fault", "") if asked else ("unknown", "")


_TITLE_AND_READER_BY_LAYER: Final[Mapping[StackLayer, tuple[str, Callable[[Snapshot], tuple[State, str]]]]] = {
    "pci": ("PCI bus", _bus_state),
    "gpu": ("GPU", _gpu_state),
    "kernel": ("kernel", _kernel_state),
    "packages": ("packages", _packages_state),
    "driver": ("driver", _driver_state),
    "fabric": ("NVLink", _fabric_state),
    "libraries": ("libraries", _libraries_state),
    "toolkit": ("toolkit, CDI", _toolkit_state),
    "runtime": ("container runtime", _runtime_state),
    "programs": (
        "programs",
        lambda node: ("no-fault" if node.items_of("application", "container-run") else "unknown", ""),
    ),
    "kubernetes": ("Kubernetes", _kubernetes_state),
}
LAYER_TITLES: Final[Mapping[StackLayer, str]] = {
    layer: title for layer, (title, _) in _TITLE_AND_READER_BY_LAYER.items()
}
