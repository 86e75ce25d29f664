"""Define the traits that are compared between two nodes, with their readers and why a difference matters.

Values that differ between healthy machines are left out: addresses, serial numbers, sizes, times, power states.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import StackLayer
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, driver, fabric, modules, packages, pci, pcie_links, smi_query, system
from gpunode.diagnoses.views.boards import nvml_inventory
from gpunode.facts import nvml
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import MODULE_FILE_PROBE_KEYS
from gpunode.fast_dataclass import dataclass
from gpunode.toml import loads

# likely: often breaks GPU nodes by itself. possible: can break them. background: rarely explains a fault.
TraitWeight: TypeAlias = Literal["likely", "possible", "background"]
# Why a node does not show a value.
Reason: TypeAlias = Literal["not-collected", "denied", "failed", "timeout"]
# Empty if the value is known to be absent.
MissingReason: TypeAlias = Literal["", "not-collected", "denied", "failed", "timeout"]
TraitValues: TypeAlias = Mapping[str, str]
TraitReader: TypeAlias = Callable[[Snapshot], TraitValues]

_UNPARSED_VALUE: Final = "cannot be parsed"
# The only output of shell tools for a file that they could not show.
_READ_ERROR_MESSAGE: Final = Pattern(
    r"^(?:\S*/)?[\w.-]{2,20}: [^\n]{0,300}?(?:(?P<denied>Permission denied|Operation not permitted)|Input/output error"
    r"|Is a directory|Stale file handle|Too many levels of symbolic links)\.?\s*$"
)


@dataclass(frozen=True, slots=True)
class TraitSource:
    """A source of a trait.

    Attributes:
        evidence_names: kinds, keys, paths or commands of the evidence that shows it.
        read: returns the trait's values on one node, by name.
        empty_means_none: an answer without values means that there are none, and not that it was not understood.
        is_absent: returns whether the node is known to lack a value of that name; None if any answer would show it.
        common_only: compare only names that both nodes have.
    """

    evidence_names: tuple[str, ...]
    read: TraitReader
    empty_means_none: bool = False
    is_absent: Callable[[Snapshot, str], bool] | None = None
    common_only: bool = False

    def missing_reason(self, snapshot: Snapshot, values: TraitValues, name: str) -> MissingReason:
        """Return why ``name`` is not among ``values``; empty if the node has no such value."""
        path = name.partition(": ")[0] if name.startswith("/") else ""
        if values.get(path) == _UNPARSED_VALUE:
            return "failed"
        if self.is_absent and self.is_absent(snapshot, name):
            return ""
        own = [item for item in snapshot.items if path and item.subject == path and item.kind != "listing"]
        looks = own or [item for item in snapshot.items if self.reads_from(item)]
        reasons = [self._reason(item, is_read=self.empty_means_none or bool(values)) for item in looks]
        return "" if "" in reasons else next((one for one in reasons if one != "not-collected"), "not-collected")

    def reads_from(self, item: EvidenceItem) -> bool:
        """Return whether values are read from ``item``."""
        return bool(_evidence_names(item) & {*self.evidence_names})

    def _reason(self, item: EvidenceItem, *, is_read: bool) -> MissingReason:
        """Return why ``item`` does not show a value; empty if it would show one."""
        if item.outcome != "ok":
            return item.outcome if item.outcome != "absent" else "failed" if item.source.words else ""
        if match := _match_read_error(item):
            return "denied" if match["denied"] else "failed"
        return "not-collected" if self.is_absent or _is_partial(item) else "" if is_read else "failed"


@dataclass(frozen=True, slots=True)
class Trait:
    """A property of a node that is compared.

    Attributes:
        id: the id of its row in JSON.
        layers: the stack layers whose faults it explains, its own layer first.
        why: why a difference matters.
        likely: pattern of names or values whose difference often breaks a node; an empty one matches all.
        possible: pattern of other names or values whose difference can break a node; None for none.
    """

    id: str
    title: str
    layers: tuple[StackLayer, ...]
    why: str
    parts: tuple[TraitSource, ...]
    likely: str = ""
    possible: str | None = ""

    def values(self, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
        """Yield the names and values of the trait on the node."""
        return (row for part in self.parts for row in part.read(snapshot).items())

    def weigh(self, name: str, values: str) -> TraitWeight:
        """Return how much a difference in ``name`` matters."""
        text = f"{name}\n{values}"
        if re.search(self.likely, text, re.IGNORECASE):
            return "likely"
        is_possible = self.possible is not None and re.search(self.possible, text, re.IGNORECASE)
        return "possible" if is_possible else "background"


def _is_partial(item: EvidenceItem) -> bool:
    return item.source.is_part or bool(item.source.pattern)


def _match_read_error(item: EvidenceItem) -> re.Match[str] | None:
    return _READ_ERROR_MESSAGE.match(item.text) if len(item.lines) < 3 else None


def _readable_text(item: EvidenceItem | None) -> str:
    return item.text.strip() if item is not None and item.outcome == "ok" and not _match_read_error(item) else ""


def _single_value_source(
    name: str, read: Callable[[Snapshot], str], *evidence_names: str, empty_means_none: bool = False
) -> TraitSource:
    """Return the source of a single value."""
    return TraitSource(
        evidence_names, lambda snapshot: {name: value} if (value := read(snapshot)) else {}, empty_means_none
    )


def _text_value_source(name: str, look: str) -> TraitSource:
    """Return the source of a short text."""

    def read(snapshot: Snapshot) -> str:
        return next(filter(None, (_readable_text(one) for one in snapshot.items if look in _evidence_names(one))), "")

    return _single_value_source(name, read, look)


def _evidence_names(item: EvidenceItem) -> frozenset[str]:
    """Return the names by which a source may refer to it, including two words of a command or a folder's pattern."""
    path = f"{item.subject.rpartition('/')[0]}/*" if "*" in item.subject else item.subject
    return frozenset({item.kind, item.key, path, " ".join(item.source.words[:2])})


def _parse_rows(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip() and len(name) < 80:
            yield name.strip(), value.strip()


def _join_distinct_values(rows: Iterable[tuple[str, str]]) -> TraitValues:
    """Return by name the distinct values of all GPUs; the number of GPUs is compared elsewhere."""
    values: dict[str, set[str]] = {}
    for name, value in rows:
        values.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in values.items()}


# The machine.

_LSPCI_DECORATION: Final = Pattern(
    r"(?i)^NVIDIA Corporation\s+|\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]|\s*\((?:rev|prog-if) [^)\n]*\)"
)


def _lspci_name(function: pci.PciFunction) -> str:
    """Return the device's name as printed by lspci."""
    return _LSPCI_DECORATION.sub("", function.name) or f"NVIDIA {function.device}".strip()


def _count_devices(snapshot: Snapshot) -> TraitValues:
    names = Counter(_lspci_name(one) for one in snapshot.view(pci.nvidia_functions) if one.is_gpu or one.is_switch)
    return {name: f"{number} ×" for name, number in names.items()}


def _bound_drivers(snapshot: Snapshot) -> TraitValues:
    gpus = (one for one in snapshot.view(pci.nvidia_functions) if (one.is_gpu or one.is_switch) and one.shows_driver)
    return _join_distinct_values((f"driver of {_lspci_name(gpu)}", gpu.driver or "none") for gpu in gpus)


def gpu_slots(snapshot: Snapshot) -> frozenset[str]:
    """Return the addresses of the GPUs on the bus."""
    return frozenset(pci_gpu.address for pci_gpu in snapshot.view(pci.pci_gpus))


def _link_properties(snapshot: Snapshot) -> TraitValues:
    """Return link widths and maximum speeds; the current speed depends on the GPU's load."""
    rows: list[tuple[str, str]] = []
    for link in snapshot.view(pcie_links.gpu_links):
        end = " with its slot" if link.covers_both_ends else ""
        rows += [("link width", str(link.width))] if link.width else []
        rows += [(f"widest{end}", str(link.max_width))] if link.max_width else []
        rows += [(f"fastest{end}", f"PCIe {link.max_generation}")] if link.max_generation else []
    return _join_distinct_values(rows)


def _vbios_versions(snapshot: Snapshot) -> str:
    """Return the VBIOS versions of the GPUs."""
    return ", ".join(sorted({row.value for _, row in smi_query.find_rows(snapshot, "VBIOS Version")} - {"", "N/A"}))


def _count_gpus(snapshot: Snapshot) -> str:
    if known := snapshot.view(nvml_inventory):
        return str(len(known.gpus))
    counts = [inventory.count for inventory in snapshot.view(boards.smi_inventories) if inventory.count is not None]
    return str(counts[-1]) if counts else "0" if ("no-devices" in dict(snapshot.view(driver.smi_states))) else ""


GPU_COUNT_TRAIT_NAME: Final = "GPUs that the driver has"
_COMPARED_GPU_FIELDS: Final = ("name", "memory_mib", "persistence", "ecc", "ecc_pending", "mig", "mig_pending")


def _gpu_settings(snapshot: Snapshot) -> TraitValues:
    if (known := snapshot.view(nvml_inventory)) is None:
        return {}
    each = ((name, getattr(gpu, name)) for gpu in known.gpus for name in _COMPARED_GPU_FIELDS)
    rows = ((name, "no answer" if isinstance(value, nvml.UnreadNvmlValue) else str(value)) for name, value in each)
    return _join_distinct_values(rows)


# The kernel.

_IRRELEVANT_KERNEL_ARGUMENTS: Final = Pattern(
    r"^(?:BOOT_IMAGE|root|resume|initrd|rootflags|rootfstype|ro|rw|quiet|splash|console|crashkernel|net\.ifnames|"
    r"biosdevname|rd\.(?:lvm|luks|md)[\w.]*|ip|nosplash|vt\.handoff|loglevel|earlyprintk|mitigations|apparmor)$"
)


def _kernel_arguments(snapshot: Snapshot) -> TraitValues:
    words = (word.partition("=") for word in _readable_text(snapshot.file("/proc/cmdline")).split())
    return _join_distinct_values(
        (name, value or "set") for name, _, value in words if not _IRRELEVANT_KERNEL_ARGUMENTS.match(name)
    )


def _loaded_modules(snapshot: Snapshot) -> TraitValues:
    fact = snapshot.facts.modules
    listed = (name for name in modules.listed_modules(snapshot) if modules.is_module_loaded(snapshot, name))
    return dict.fromkeys(fact.value if isinstance(fact, Known) else listed, "loaded")


def _secure_boot_state(snapshot: Snapshot) -> str:
    match = snapshot.match(Pattern(r"SecureBoot (enabled|disabled)"), "mokutil")
    return match[1] if match else ""


# The driver and its packages.


def _version_reader(read: Callable[[Snapshot], driver.SeenVersion | None]) -> Callable[[Snapshot], str]:
    return lambda snapshot: seen.version if (seen := read(snapshot)) else ""


def _module_flavour(snapshot: Snapshot) -> str:
    loaded = driver.loaded_version(snapshot)
    return "" if loaded is None or loaded.is_open is None else "open" if loaded.is_open else "proprietary"


_COMPARED_PACKAGE_NAME: Final = Pattern(
    r"^(?:nvidia|libnvidia|libcuda|cuda|libnv|xserver-xorg-video-nvidia|linux-(?:image|headers|modules|objects|signatures)|"
    r"kernel|containerd|docker|runc|podman|crun|cri-o|kube|k3s|rke2|dkms|gcc|shim|mokutil|datacenter-gpu|dcgm|nvlsm|imex|"
    r"mlnx|ofed|doca|mft|rdma|ibverbs|libibverbs|gdrcopy|golang-github-nvidia)"
)


def _package_versions(snapshot: Snapshot) -> TraitValues:
    return {
        name: f"{one.version}{'' if one.is_installed else f' (state {one.state})'}{' held' if one.want == 'h' else ''}"
        for name, one in snapshot.view(packages.listed_packages).items()
        if _COMPARED_PACKAGE_NAME.match(name)
    }


# Services, runtimes and the cluster.


def _unit_states(snapshot: Snapshot) -> TraitValues:
    known = ((name, fact.value) for name, fact in snapshot.facts.units.items() if isinstance(fact, Known))
    return {
        name: "failed" if unit.failed else "masked" if unit.masked else
        f"{'runs' if unit.state.active else 'stopped'}, {'enabled' if unit.state.enabled else 'not enabled'}"
        for name, unit in known if unit.exists
    }  # fmt: skip


_COMPARED_DOCKER_INFO_KEYS: Final = frozenset(
    {"Server Version", "Default Runtime", "Runtimes", "Cgroup Driver", "Cgroup Version", "Context"}
)


def _docker_settings(snapshot: Snapshot) -> TraitValues:
    rows = (row for item in reversed(snapshot.items_of("docker-info")) for row in _parse_rows(_readable_text(item)))
    return {name: " ".join(sorted(value.split())) for name, value in rows if name in _COMPARED_DOCKER_INFO_KEYS}


def _gpu_labels(snapshot: Snapshot) -> TraitValues:
    """Return labels and counts of GPUs; capacity and allocatable share a name, so the smaller counts."""
    rows = ((name.strip("\"'"), value.strip("\"', ")) for item in snapshot.items_of("kubernetes-node")
            for name, value in _parse_rows(_readable_text(item)))  # fmt: skip
    labels: dict[str, str] = {}
    for name, value in rows:
        if name.startswith("nvidia.com/") and not name.endswith(("timestamp", ".product-name")):
            labels[name] = min(labels.get(name, value), value, key=lambda one: (len(one), one))
    return labels


def _distribution_name(snapshot: Snapshot) -> str:
    known = system.find_distro(snapshot)
    return (known.name or f"{known.id} {known.version_id}") if known else ""


def _describe_platform_kind(snapshot: Snapshot) -> str:
    fact = snapshot.facts.platform
    return f"{fact.value.kind} {fact.value.detail}".strip() if isinstance(fact, Known) else ""


# Configuration files, setting by setting.


def _settings_reader(pattern: str, settings: Callable[[EvidenceItem], Iterable[tuple[str, str]]]) -> TraitReader:
    """Return a reader of the settings in the files at that path, named by file and key."""

    def read(snapshot: Snapshot) -> TraitValues:
        found = (item for item in snapshot.files(pattern) if _readable_text(item) and not _is_partial(item))
        rows = ((item.subject, name, value) for item in found for name, value in settings(item))
        return {f"{path}: {name}" if name else path: value for path, name, value in rows}

    return read


def _file_settings(item: EvidenceItem) -> Iterator[tuple[str, str]]:
    """Yield the settings of JSON or TOML by key, apt's pins by package, else every line that is not a comment."""
    kind = item.subject.rpartition(".")[2]
    if kind in {"json", "toml"}:
        try:
            yield from _flatten_settings(json.loads(item.text) if kind == "json" else loads(item.text), "")
        except (ValueError, RecursionError):
            yield "", _UNPARSED_VALUE
        return
    if item.subject.startswith("/etc/apt/preferences"):
        # Regardless of stanzas, because ninety packages with a row each would hide the other differences.
        pins: dict[str, dict[str, set[str]]] = {}
        for stanza in re.split(r"\n\s*\n", re.sub(r"\n[ \t]+(?=\S)", " ", item.text)):
            rows = dict(_parse_rows(stanza))
            if "Pin" in rows and (named := rows.get("Package", "").split()):
                pins.setdefault(rows["Pin"], {}).setdefault(str(rows.get("Pin-Priority")), set()).update(named)
        for pin, named_by_priority in pins.items():
            parts = (
                f"priority {one} for {len(them)}: {' '.join(sorted(them))}" for one, them in named_by_priority.items()
            )
            yield pin, "; ".join(sorted(parts))
        return
    for line in item.lines:
        words = " ".join(line.split())
        if words and not words.startswith(("#", "//", ";")):
            yield words, "there"


def _flatten_settings(value: object, above: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _flatten_settings(one, f"{above}.{name}" if above else str(name))
    else:
        yield above, json.dumps(value, default=str, ensure_ascii=False)


def _cdi_driver_versions(item: EvidenceItem) -> list[tuple[str, str]]:
    found = re.findall(r"lib(?:cuda|nvidia-ml)\.so\.(\d{1,4}\.[\d.]{0,20}\d)", item.text)
    return [("", ", ".join(sorted(set(found))) or "no driver in it")]


_MATCHES_NOTHING: Final = "(?!)"
_LINK_ATTRIBUTE_PATHS: Final = tuple(
    f"/sys/bus/pci/devices/*/{a}_link_{b}" for a in ("current", "max") for b in ("width", "speed")
)
_MODULE_PARAMETERS_FILE: Final = "/proc/driver/nvidia/params"
# Configuration files with their stack layers, why they matter, and patterns for likely and possible, as in a trait.
_CONFIG_TRAITS: Final[tuple[tuple[tuple[str, ...], tuple[StackLayer, ...], str, str, str | None], ...]] = (
    (("/etc/docker/daemon.json", "/etc/containerd/config.toml"), ("runtime",),
     "containers get their GPUs through these settings",
     r"cannot be parsed|nvidia|runtime|cgroup|cdi|disabled_plugins|exec-opts|hooks|imports",
     r"\A(?!.*(?:data-root|storage|root|state|debug|log))"),
    (("/etc/nvidia-container-runtime/config.toml",), ("toolkit",),
     "the toolkit finds the driver through these settings", "", None),
    (("/etc/modprobe.d/*", "/etc/modules-load.d/*", "/etc/modules"), ("kernel", "driver"),
     "it decides which driver binds the GPU, with which parameters", "nvidia|nouveau|nova|vfio|blacklist", None),
    (("/etc/ld.so.conf.d/*", "/etc/ld.so.preload", "/etc/environment"), ("libraries",),
     "programs may load another libcuda than the driver's", "nvidia|cuda|stubs|LD_", None),
    (("/etc/nvidia/gridd.conf",), ("driver",), "a vGPU without its licence slows down and stops", "", None),
    (("/var/lib/kubelet/config.yaml",), ("kubernetes",), "the kubelet gives devices to pods by these settings",
     _MATCHES_NOTHING, "cgroup|cpuManager|topologyManager|memoryManager|featureGates|containerRuntime"),
    (("/etc/apt/preferences.d/*",), ("packages",), "it decides which driver apt takes next",
     _MATCHES_NOTHING, "nvidia|cuda|driver"),
)  # fmt: skip

TRAITS: Final[tuple[Trait, ...]] = (
    Trait("devices", "PCI devices", ("pci", "gpu", "driver"),
        "a missing device fell off the bus or was never installed; only NVIDIA's driver can use a GPU", (
        TraitSource(("lspci",), _count_devices, is_absent=lambda snapshot, _: pci.is_bus_listed(snapshot)),
        TraitSource(("lspci",), _bound_drivers, empty_means_none=True, common_only=True),
    )),
    Trait("driver", "driver versions", ("driver", "libraries", "packages"),
        "module, libraries and tools must have the same version", (
        _single_value_source(
            "loaded module", _version_reader(driver.loaded_version), "nvidia-version", empty_means_none=True),
        _single_value_source("flavour", _module_flavour, "nvidia-version"),
        _single_value_source(
            "module on disk", _version_reader(driver.on_disk_version), *MODULE_FILE_PROBE_KEYS, empty_means_none=True),
        _single_value_source("libraries", _version_reader(driver.library_version), "ldconfig", empty_means_none=True),
        _single_value_source("nvidia-smi", _version_reader(driver.smi_version), "nvidia-smi", "nvidia-smi-q"),
        _single_value_source("CUDA", _version_reader(driver.cuda_version), "nvml", "nvidia-smi", "nvidia-smi-q"),
        _single_value_source("fabric manager", lambda snapshot: (fabric.manager_version(snapshot) or ("",))[0]),
        _single_value_source("IMEX", lambda snapshot: (fabric.imex_version(snapshot) or ("",))[0]),
    )),
    Trait("kernel", "kernel", ("kernel", "driver", "packages"),
        "a module is built for one kernel, and does not work with others",
        (_single_value_source("running kernel", system.running_kernel, "kernel-release", "uname"),)),
    Trait("arguments", "kernel arguments", ("kernel", "pci", "driver"),
        "they decide which driver binds the GPU, how the bus is laid out and what the IOMMU does",
        (TraitSource(("/proc/cmdline",), _kernel_arguments, empty_means_none=True),),
        r"^(?:[\w.]*blacklist|nomodeset|nouveau|nova|vfio|pci|kvm|nvidia|lockdown|module\.sig|efi|enforcing|selinux)"
        r"|iommu|cgroup"),
    Trait("modules", "loaded modules", ("kernel", "driver"),
        "each is part of the driver or its network, or competes for the GPU",
        (TraitSource(("modules", "lsmod"), _loaded_modules,
                     is_absent=lambda snapshot, name: modules.is_module_loaded(snapshot, name) is False),),
        r"^(?:nvidia|gdrdrv|nouveau|nova|vfio|pci_stub|xen_pciback)",
        r"^(?:ib_|mlx|rdma|nv_peer|irdma|bnxt_re|efa|nvme_rdma|overlay|br_netfilter|ip_tables|nf_tables)"),
    Trait("parameters", "module parameters", ("kernel", "driver"), "NVIDIA's modules run with another parameter",
        (TraitSource((_MODULE_PARAMETERS_FILE,),
                     lambda seen: dict(_parse_rows(_readable_text(seen.file(_MODULE_PARAMETERS_FILE)))),
                     empty_means_none=True, common_only=True),)),
    Trait("secure", "Secure Boot", ("kernel", "driver"), "it decides which modules may load", (
        _single_value_source("Secure Boot", _secure_boot_state, "mokutil"),
        _text_value_source("lockdown", "/sys/kernel/security/lockdown"),
        _text_value_source("signatures enforced", "/sys/module/module/parameters/sig_enforce"),
    )),
    Trait("packages", "packages", ("packages", "driver", "toolkit", "runtime"),
        "driver, libraries and module must have the same version; the module is built for one kernel",
        (TraitSource(("packages", "dpkg-status"), _package_versions,
              is_absent=lambda snapshot, name: packages.is_installed(snapshot, name) is False),),
        r"nvidia|fabricmanager|imex|nvlsm|^(?:libcuda1|cuda-drivers|cuda-compat|dkms|gcc|kernel-devel)"
        r"|^linux-(?:headers|modules|objects|signatures)"),
    Trait("links", "PCI links", ("pci", "gpu"),
        "dirt, a riser or a slot can cost lanes; a slower slot costs bandwidth",
        (TraitSource((*_LINK_ATTRIBUTE_PATHS, "lspci", "nvidia-smi-q"), _link_properties,
                     empty_means_none=True, common_only=True),)),
    Trait("firmware", "firmware", ("pci", "gpu", "kernel"),
        "it sets up memory regions, IOMMU, ACS and links before any driver runs", (
        _text_value_source("BIOS version", "/sys/class/dmi/id/bios_version"),
        _text_value_source("model", "/sys/class/dmi/id/product_name"),
        _text_value_source("vendor", "/sys/class/dmi/id/sys_vendor"),
        _single_value_source("VBIOS of the GPUs", _vbios_versions, "nvidia-smi-q"),
    ), "^BIOS", "^VBIOS"),
    Trait("gpus", "GPU settings", ("gpu", "driver", "libraries"),
        "the driver has other GPUs, or they are configured differently", (
        _single_value_source(GPU_COUNT_TRAIT_NAME, _count_gpus, "nvml", "nvidia-smi", "nvidia-smi-q"),
        TraitSource(("nvml",), _gpu_settings),
    ), r"^(?:GPUs|name|mig)|no answer"),
    Trait("units", "services", ("fabric", "runtime", "driver", "kubernetes"),
        "the fabric manager, a licence daemon or a runtime is missing or does not run",
        (TraitSource(("units",), _unit_states, is_absent=lambda node, unit: isinstance(node.facts.unit(unit), Known)),),
        r"fabricmanager|imex|gridd|^(?:docker|containerd|crio|kubelet|k3s|rke2|snap\.)", r"persistenced|cdi-refresh"),
    Trait("docker", "docker", ("runtime",), "containers get GPUs through the runtime named nvidia",
        (TraitSource(("docker-info",), _docker_settings, common_only=True),), r"^(?:Runtimes|Default|Cgroup|Context)"),
    *(Trait(f"file:{path}", path, layers, why,
            (TraitSource((path,), _settings_reader(path, _file_settings), empty_means_none=True),), likely, possible)
      for paths, layers, why, likely, possible in _CONFIG_TRAITS for path in paths),
    Trait("cdi", "CDI specifications", ("toolkit",),
        "a specification names the files of one driver version; for another it is stale",
        tuple(TraitSource((path,), _settings_reader(path, _cdi_driver_versions), empty_means_none=True)
              for path in ("/etc/cdi/*", "/var/run/cdi/*"))),
    Trait("cgroups", "cgroups", ("runtime", "toolkit"),
        "device access for containers works differently, which old toolkits do not support",
        (_text_value_source("file system", "stat -fc"),)),
    Trait("kubernetes", "Kubernetes", ("kubernetes",),
        "the scheduler sees other GPUs, or other labels, on the node",
        (TraitSource(("kubernetes-node",), _gpu_labels),)),
    Trait("system", "system", ("packages", "kernel"), "packages and their names also differ", (
        _single_value_source("distribution", _distribution_name, "os-release"),
        _single_value_source("machine", _describe_platform_kind, "virt"),
    ), _MATCHES_NOTHING),
)  # fmt: skip
