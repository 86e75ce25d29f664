"""What is compared between two nodes: a table of traits, each read from one node, with why a difference matters.

Left out is what differs between any two healthy machines: addresses, serial numbers, sizes, times, states of links
that save power.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import StackLayer
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, driver, fabric, links, modules, packages, pci, smi_query, system
from gpunode.diagnoses.views.inventory import inventory
from gpunode.facts import nvml
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import MODULE_KEYS
from gpunode.toml import loads

# likely: it often breaks GPU nodes by itself. possible: it can. background: it explains little.
Weight: TypeAlias = Literal["likely", "possible", "background"]
# Why a node does not show something.
Reason: TypeAlias = Literal["not asked", "denied", "failed", "timeout"]
# Empty where it is known that there is none.
Lack: TypeAlias = Literal["", "not asked", "denied", "failed", "timeout"]
Values: TypeAlias = Mapping[str, str]
Read: TypeAlias = Callable[[Snapshot], Values]

_UNPARSED: Final = "cannot be parsed"
# What a shell's tools print, and nothing else, of a file that they could not show.
_REFUSED: Final = Pattern(
    r"^(?:\S*/)?[\w.-]{2,20}: [^\n]{0,300}?(?:(?P<denied>Permission denied|Operation not permitted)|Input/output error"
    r"|Is a directory|Stale file handle|Too many levels of symbolic links)\.?\s*$"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A source of a trait.

    Attributes:
        looks: the kinds, keys, paths or commands of the evidence that would show it.
        read: its values on one node, by name.
        is_set: whether an answer without any value says that there is none; else it was not understood.
        denies: whether the node was seen to have no value of that name; None where any answer would show it.
        is_shared: whether only names that both nodes have are compared.
    """

    looks: tuple[str, ...]
    read: Read
    is_set: bool = False
    denies: Callable[[Snapshot, str], bool] | None = None
    is_shared: bool = False

    def lack(self, snapshot: Snapshot, values: Values, name: str) -> Lack:
        """Why ``name`` is not among the ``values`` of the node; empty where the node has no such value."""
        path = name.partition(": ")[0] if name.startswith("/") else ""
        if values.get(path) == _UNPARSED:
            return "failed"
        if self.denies and self.denies(snapshot, name):
            return ""
        own = [item for item in snapshot.items if path and item.subject == path and item.kind != "listing"]
        looks = own or [item for item in snapshot.items if self.shows(item)]
        reasons = [self._reason(item, is_read=self.is_set or bool(values)) for item in looks]
        return "" if "" in reasons else next((one for one in reasons if one != "not asked"), "not asked")

    def shows(self, item: Item) -> bool:
        """Whether its values are read from ``item``."""
        return bool(_names_of(item) & {*self.looks})

    def _reason(self, item: Item, *, is_read: bool) -> Lack:
        """Why ``item`` does not show a name; empty where it would."""
        if item.outcome != "ok":
            return item.outcome if item.outcome != "absent" else "failed" if item.source.words else ""
        if match := _refused(item):
            return "denied" if match["denied"] else "failed"
        return "not asked" if self.denies or _is_cut(item) else "" if is_read else "failed"


@dataclass(frozen=True, slots=True)
class Trait:
    """Something about a node that is compared.

    Attributes:
        id: of its row in JSON.
        layers: where in the stack a fault that it explains would be, its own layer first.
        why: a difference matters.
        likely: the names or values whose difference often breaks a node; empty for all.
        possible: those of the others whose difference can; None for none of them.
    """

    id: str
    title: str
    layers: tuple[StackLayer, ...]
    why: str
    parts: tuple[Part, ...]
    likely: str = ""
    possible: str | None = ""

    def values(self, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
        """What the node has of the trait, by name."""
        return (row for part in self.parts for row in part.read(snapshot).items())

    def weight(self, name: str, values: str) -> Weight:
        """How much a difference in ``name`` matters."""
        text = f"{name}\n{values}"
        if re.search(self.likely, text, re.IGNORECASE):
            return "likely"
        is_possible = self.possible is not None and re.search(self.possible, text, re.IGNORECASE)
        return "possible" if is_possible else "background"


def _is_cut(item: Item) -> bool:
    return item.source.is_part or bool(item.source.only)


def _refused(item: Item) -> re.Match[str] | None:
    return _REFUSED.match(item.text) if len(item.lines) < 3 else None


def _text(item: Item | None) -> str:
    return item.text.strip() if item is not None and item.outcome == "ok" and not _refused(item) else ""


def _one(name: str, read: Callable[[Snapshot], str], *looks: str, is_set: bool = False) -> Part:
    """A single value."""
    return Part(looks, lambda snapshot: {name: value} if (value := read(snapshot)) else {}, is_set)


def _text_of(name: str, look: str) -> Part:
    """The whole of a short text."""

    def read(snapshot: Snapshot) -> str:
        return next(filter(None, (_text(one) for one in snapshot.items if look in _names_of(one))), "")

    return _one(name, read, look)


def _names_of(item: Item) -> frozenset[str]:
    """By which a part may look for it: a command also by its first two words, a folder by all that is in there."""
    path = f"{item.subject.rpartition('/')[0]}/*" if "*" in item.subject else item.subject
    return frozenset({item.kind, item.key, path, " ".join(item.source.words[:2])})


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip() and len(name) < 80:
            yield name.strip(), value.strip()


def _each(rows: Iterable[tuple[str, str]]) -> Values:
    """By name every value that some GPU has: that there are fewer GPUs is no difference in what each is like."""
    found: dict[str, set[str]] = {}
    for name, value in rows:
        found.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


# The machine.

_AROUND: Final = Pattern(
    r"^NVIDIA Corporation\s+|\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]|\s*\((?:rev|prog-if) [^)\n]*\)", re.IGNORECASE
)


def _name(one: pci.Function) -> str:
    """The device's own name in lspci's words."""
    return _AROUND.sub("", one.name) or f"NVIDIA {one.device}".strip()


def _devices(snapshot: Snapshot) -> Values:
    names = Counter(_name(one) for one in snapshot.view(pci.functions) if one.is_gpu or one.is_switch)
    return {name: f"{number} ×" for name, number in names.items()}


def _drivers(snapshot: Snapshot) -> Values:
    gpus = (one for one in snapshot.view(pci.functions) if (one.is_gpu or one.is_switch) and one.shows_driver)
    return _each((f"driver of {_name(one)}", one.driver or "none") for one in gpus)


def slots(snapshot: Snapshot) -> frozenset[str]:
    """The addresses of the GPUs on the bus."""
    return frozenset(one.address for one in snapshot.view(pci.gpus))


def _links(snapshot: Snapshot) -> Values:
    """Widths, and the speeds that the devices are capable of; the present speed depends on what the GPU does."""
    rows: list[tuple[str, str]] = []
    for link in snapshot.view(links.links):
        end = " with its slot" if link.is_of_both else ""
        rows += [("link width", str(link.width))] if link.width else []
        rows += [(f"widest{end}", str(link.most_width))] if link.most_width else []
        rows += [(f"fastest{end}", f"PCIe {link.newest}")] if link.newest else []
    return _each(rows)


def _vbios(snapshot: Snapshot) -> str:
    """The versions of the GPUs' own firmware."""
    return ", ".join(sorted({row.value for _, row in smi_query.rows(snapshot, "VBIOS Version")} - {"", "N/A"}))


def _counted(snapshot: Snapshot) -> str:
    if known := snapshot.view(inventory):
        return str(len(known.gpus))
    counts = [one.count for one in snapshot.view(boards.inventories) if one.count is not None]
    return str(counts[-1]) if counts else "0" if ("no-devices" in dict(snapshot.view(driver.smi))) else ""


GPU_COUNT: Final = "GPUs that the driver has"
_SETTINGS: Final = ("name", "memory_mib", "persistence", "ecc", "ecc_pending", "mig", "mig_pending")


def _settings_of_gpus(snapshot: Snapshot) -> Values:
    if (known := snapshot.view(inventory)) is None:
        return {}
    each = ((name, getattr(gpu, name)) for gpu in known.gpus for name in _SETTINGS)
    rows = ((name, "no answer" if isinstance(value, nvml.Unread) else str(value)) for name, value in each)
    return _each(rows)


# The kernel.

_ANY_BOOT: Final = Pattern(
    r"^(?:BOOT_IMAGE|root|resume|initrd|rootflags|rootfstype|ro|rw|quiet|splash|console|crashkernel|net\.ifnames|"
    r"biosdevname|rd\.(?:lvm|luks|md)[\w.]*|ip|nosplash|vt\.handoff|loglevel|earlyprintk|mitigations|apparmor)$"
)


def _arguments(snapshot: Snapshot) -> Values:
    words = (word.partition("=") for word in _text(snapshot.file("/proc/cmdline")).split())
    return _each((name, value or "set") for name, _, value in words if not _ANY_BOOT.match(name))


def _modules(snapshot: Snapshot) -> Values:
    fact = snapshot.facts.modules
    listed = (name for name in modules.listed(snapshot) if modules.loaded(snapshot, name))
    return dict.fromkeys(fact.value if isinstance(fact, Known) else listed, "loaded")


def _secure_boot(snapshot: Snapshot) -> str:
    match = snapshot.match(Pattern(r"SecureBoot (enabled|disabled)"), "mokutil")
    return match[1] if match else ""


# The driver and its packages.


def _version(read: Callable[[Snapshot], driver.Seen | None]) -> Callable[[Snapshot], str]:
    return lambda snapshot: seen.version if (seen := read(snapshot)) else ""


def _flavour(snapshot: Snapshot) -> str:
    loaded = driver.loaded(snapshot)
    return "" if loaded is None or loaded.is_open is None else "open" if loaded.is_open else "proprietary"


_PACKAGE: Final = Pattern(
    r"^(?:nvidia|libnvidia|libcuda|cuda|libnv|xserver-xorg-video-nvidia|linux-(?:image|headers|modules|objects|signatures)|"
    r"kernel|containerd|docker|runc|podman|crun|cri-o|kube|k3s|rke2|dkms|gcc|shim|mokutil|datacenter-gpu|dcgm|nvlsm|imex|"
    r"mlnx|ofed|doca|mft|rdma|ibverbs|libibverbs|gdrcopy|golang-github-nvidia)"
)


def _packages(snapshot: Snapshot) -> Values:
    return {
        name: f"{one.version}{'' if one.is_installed else f' (state {one.state})'}{' held' if one.want == 'h' else ''}"
        for name, one in snapshot.view(packages.packages).items()
        if _PACKAGE.match(name)
    }


# Services, runtimes and the cluster.


def _is_asked(snapshot: Snapshot, unit: str) -> bool:
    return isinstance(snapshot.facts.units.get(unit), Known)


def _units(snapshot: Snapshot) -> Values:
    known = ((name, fact.value) for name, fact in snapshot.facts.units.items() if isinstance(fact, Known))
    return {
        name: "failed" if unit.failed else "masked" if unit.masked else
        f"{'runs' if unit.state.active else 'stopped'}, {'enabled' if unit.state.enabled else 'not enabled'}"
        for name, unit in known if unit.exists
    }  # fmt: skip


_DOCKER: Final = frozenset(
    {"Server Version", "Default Runtime", "Runtimes", "Cgroup Driver", "Cgroup Version", "Context"}
)


def _docker(snapshot: Snapshot) -> Values:
    rows = (row for item in reversed(snapshot.of("docker-info")) for row in _rows(_text(item)))
    return {name: " ".join(sorted(value.split())) for name, value in rows if name in _DOCKER}


def _cluster(snapshot: Snapshot) -> Values:
    """Labels and counts of GPUs; of capacity and what is allocatable, which have one name, the smaller."""
    rows = ((name.strip("\"'"), value.strip("\"', ")) for item in snapshot.of("kubernetes-node")
            for name, value in _rows(_text(item)))  # fmt: skip
    found: dict[str, str] = {}
    for name, value in rows:
        if name.startswith("nvidia.com/") and not name.endswith(("timestamp", ".product-name")):
            found[name] = min(found.get(name, value), value, key=lambda one: (len(one), one))
    return found


def _distribution(snapshot: Snapshot) -> str:
    known = system.distro(snapshot)
    return (known.name or f"{known.id} {known.version_id}") if known else ""


def _platform(snapshot: Snapshot) -> str:
    fact = snapshot.facts.platform
    return f"{fact.value.kind} {fact.value.detail}".strip() if isinstance(fact, Known) else ""


# Configuration files, their settings one by one.


def _files(pattern: str, settings: Callable[[Item], Iterable[tuple[str, str]]]) -> Read:
    """The settings in the files of that path or folder, each named by its file and its own key."""

    def read(snapshot: Snapshot) -> Values:
        found = (item for item in snapshot.files(pattern) if _text(item) and not _is_cut(item))
        rows = ((item.subject, name, value) for item in found for name, value in settings(item))
        return {f"{path}: {name}" if name else path: value for path, name, value in rows}

    return read


def _settings(item: Item) -> Iterator[tuple[str, str]]:
    """The settings in JSON or TOML by their keys; of anything else every line that is no comment."""
    kind = item.subject.rpartition(".")[2]
    if kind in {"json", "toml"}:
        try:
            yield from _flat(json.loads(item.text) if kind == "json" else loads(item.text), "")
        except (ValueError, RecursionError):
            yield "", _UNPARSED
        return
    for line in item.lines:
        words = " ".join(line.split())
        if words and not words.startswith(("#", "//", ";")):
            yield words, "there"


def _flat(value: object, above: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _flat(one, f"{above}.{name}" if above else str(name))
    else:
        yield above, json.dumps(value, default=str, ensure_ascii=False)


def _specified(item: Item) -> list[tuple[str, str]]:
    found = re.findall(r"lib(?:cuda|nvidia-ml)\.so\.(\d{1,4}\.[\d.]{0,20}\d)", item.text)
    return [("", ", ".join(sorted(set(found))) or "no driver in it")]


_NEVER: Final = "(?!)"
_LINKS: Final = tuple(f"/sys/bus/pci/devices/*/{a}_link_{b}" for a in ("current", "max") for b in ("width", "speed"))
_PARAMETERS: Final = "/proc/driver/nvidia/params"
# Configuration files: where in the stack, why, and what is likely and what possible, as in a trait.
_FILES: Final[tuple[tuple[tuple[str, ...], tuple[StackLayer, ...], str, str, str | None], ...]] = (
    (("/etc/docker/daemon.json", "/etc/containerd/config.toml"), ("runtime",),
     "containers get their GPUs through these settings",
     r"cannot be parsed|nvidia|runtime|cgroup|cdi|disabled_plugins|exec-opts|hooks|imports",
     r"\A(?!.*(?:data-root|storage|root|state|debug|log))"),
    (("/etc/nvidia-container-runtime/config.toml",), ("toolkit",),
     "the toolkit finds the driver through these settings", "", None),
    (("/etc/modprobe.d/*", "/etc/modules-load.d/*", "/etc/modules"), ("kernel", "driver"),
     "it decides which driver takes the GPU, with what parameters", "nvidia|nouveau|nova|vfio|blacklist", None),
    (("/etc/ld.so.conf.d/*", "/etc/ld.so.preload", "/etc/environment"), ("libraries",),
     "programs may load another libcuda than the driver's", "nvidia|cuda|stubs|LD_", None),
    (("/etc/nvidia/gridd.conf",), ("driver",), "a vGPU without its licence slows down and stops", "", None),
    (("/var/lib/kubelet/config.yaml",), ("kubernetes",), "the kubelet gives devices to pods by these settings",
     _NEVER, "cgroup|cpuManager|topologyManager|memoryManager|featureGates|containerRuntime"),
    (("/etc/apt/preferences.d/*",), ("packages",), "it decides which driver apt takes next",
     _NEVER, "nvidia|cuda|driver"),
)  # fmt: skip

TRAITS: Final[tuple[Trait, ...]] = (
    Trait("devices", "PCI devices", ("pci", "gpu", "driver"),
        "a device more or less has fallen off the bus or was never there; only its own driver can use a GPU", (
        Part(("lspci",), _devices, denies=lambda snapshot, _: pci.is_listed(snapshot)),
        Part(("lspci",), _drivers, is_set=True, is_shared=True),
    )),
    Trait("driver", "driver versions", ("driver", "libraries", "packages"),
        "module, libraries and tools must be of one version", (
        _one("loaded module", _version(driver.loaded), "nvidia-version", is_set=True),
        _one("flavour", _flavour, "nvidia-version"),
        _one("module on disk", _version(driver.on_disk), *MODULE_KEYS, is_set=True),
        _one("libraries", _version(driver.library), "ldconfig", is_set=True),
        _one("nvidia-smi", _version(driver.smi_version), "nvidia-smi", "nvidia-smi-q"),
        _one("CUDA", _version(driver.cuda_version), "nvml", "nvidia-smi", "nvidia-smi-q"),
        _one("fabric manager", lambda snapshot: (fabric.version(snapshot) or ("",))[0]),
        _one("IMEX", lambda snapshot: (fabric.imex_version(snapshot) or ("",))[0]),
    )),
    Trait("kernel", "kernel", ("kernel", "driver", "packages"),
        "a module is built for one kernel, and breaks against others",
        (_one("running kernel", system.running_kernel, "kernel-release", "uname"),)),
    Trait("arguments", "kernel arguments", ("kernel", "pci", "driver"),
        "they decide which driver takes the GPU, how the bus is laid out and what the IOMMU does",
        (Part(("/proc/cmdline",), _arguments, is_set=True),),
        r"^(?:[\w.]*blacklist|nomodeset|nouveau|nova|vfio|pci|kvm|nvidia|lockdown|module\.sig|efi|enforcing|selinux)"
        r"|iommu|cgroup"),
    Trait("modules", "loaded modules", ("kernel", "driver"),
        "each is a part of the driver or its network, or takes the GPU from it",
        (Part(("modules", "lsmod"), _modules, denies=lambda snapshot, name: modules.loaded(snapshot, name) is False),),
        r"^(?:nvidia|gdrdrv|nouveau|nova|vfio|pci_stub|xen_pciback)",
        r"^(?:ib_|mlx|rdma|nv_peer|irdma|bnxt_re|efa|nvme_rdma|overlay|br_netfilter|ip_tables|nf_tables)"),
    Trait("parameters", "module parameters", ("kernel", "driver"), "NVIDIA's modules run with another parameter",
        (Part((_PARAMETERS,), lambda seen: dict(_rows(_text(seen.file(_PARAMETERS)))), is_set=True, is_shared=True),)),
    Trait("secure", "Secure Boot", ("kernel", "driver"), "it decides which modules may load", (
        _one("Secure Boot", _secure_boot, "mokutil"),
        _text_of("lockdown", "/sys/kernel/security/lockdown"),
        _text_of("signatures enforced", "/sys/module/module/parameters/sig_enforce"),
    )),
    Trait("packages", "packages", ("packages", "driver", "toolkit", "runtime"),
        "driver, libraries and module must be of one version; the module is built for one kernel",
        (Part(("packages", "dpkg-status"), _packages,
              denies=lambda snapshot, name: packages.installed(snapshot, name) is False),),
        r"nvidia|fabricmanager|imex|nvlsm|^(?:libcuda1|cuda-drivers|cuda-compat|dkms|gcc|kernel-devel)"
        r"|^linux-(?:headers|modules|objects|signatures)"),
    Trait("links", "PCI links", ("pci", "gpu"),
        "lanes are lost by dirt, a riser or a slot; a slower slot costs bandwidth",
        (Part((*_LINKS, "lspci", "nvidia-smi-q"), _links, is_set=True, is_shared=True),)),
    Trait("firmware", "firmware", ("pci", "gpu", "kernel"),
        "it sets up memory regions, IOMMU, ACS and links before any driver runs", (
        _text_of("BIOS version", "/sys/class/dmi/id/bios_version"),
        _text_of("model", "/sys/class/dmi/id/product_name"),
        _text_of("vendor", "/sys/class/dmi/id/sys_vendor"),
        _one("VBIOS of the GPUs", _vbios, "nvidia-smi-q"),
    ), "^BIOS", "^VBIOS"),
    Trait("gpus", "GPU settings", ("gpu", "driver", "libraries"),
        "the driver has other GPUs than there, or they are set up otherwise", (
        _one(GPU_COUNT, _counted, "nvml", "nvidia-smi", "nvidia-smi-q"),
        Part(("nvml",), _settings_of_gpus),
    ), r"^(?:GPUs|name|mig)|no answer"),
    Trait("units", "services", ("fabric", "runtime", "driver", "kubernetes"),
        "the fabric manager, a licence daemon or a runtime is missing or does not run",
        (Part(("units",), _units, denies=_is_asked),),
        r"fabricmanager|imex|gridd|^(?:docker|containerd|crio|kubelet|k3s|rke2|snap\.)", r"persistenced|cdi-refresh"),
    Trait("docker", "docker", ("runtime",), "containers get GPUs through the runtime named nvidia",
        (Part(("docker-info",), _docker, is_shared=True),), r"^(?:Runtimes|Default|Cgroup|Context)"),
    *(Trait(f"file:{path}", path, layers, why, (Part((path,), _files(path, _settings), is_set=True),), likely, possible)
      for paths, layers, why, likely, possible in _FILES for path in paths),
    Trait("cdi", "CDI specifications", ("toolkit",),
        "a specification names the files of one driver version; of another it is stale",
        tuple(Part((path,), _files(path, _specified), is_set=True) for path in ("/etc/cdi/*", "/var/run/cdi/*"))),
    Trait("cgroups", "cgroups", ("runtime", "toolkit"),
        "device nodes are given to containers in another way, which old toolkits do not know",
        (_text_of("file system", "stat -fc"),)),
    Trait("kubernetes", "Kubernetes", ("kubernetes",),
        "the scheduler sees other GPUs, or other labels, on the node", (Part(("kubernetes-node",), _cluster),)),
    Trait("system", "system", ("packages", "kernel"), "packages and their names differ, too", (
        _one("distribution", _distribution, "os-release"),
        _one("machine", _platform, "virt"),
    ), _NEVER),
)  # fmt: skip
