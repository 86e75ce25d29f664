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
# Of several GPUs, how many have each value.
Value: TypeAlias = "str | Counter[str]"
Values: TypeAlias = Mapping[str, Value]
Rules: TypeAlias = tuple[tuple[str, Weight, str], ...]

UNPARSED: Final = "cannot be parsed"
# What a shell's tools print, and nothing else, of a file that they could not show.
_REFUSED: Final = Pattern(
    r"^(?:\S*/)?[\w.-]{2,20}: [^\n]{0,300}?(?:(?P<denied>Permission denied|Operation not permitted)|Input/output error"
    r"|Is a directory|Stale file handle|Too many levels of symbolic links)\.?\s*$"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A source of a trait.

    Attributes:
        looks: the kinds, keys or paths of the evidence that would show it.
        read: its values on one node, by name.
        is_set: whether an answer without any value says that there is none; else it was not understood.
        denies: whether what was seen of the node would have shown a value of that name; None where any answer would.
        only: which names are compared: all; those that both nodes have; or, of two nodes whose names are the same
            otherwise, those that one of them lacks.
    """

    looks: tuple[str, ...]
    read: Callable[[Snapshot], Values]
    is_set: bool = False
    denies: Callable[[Snapshot, str], bool] | None = None
    only: Literal["all", "shared", "nested"] = "all"

    def lack(self, snapshot: Snapshot, values: Values, name: str = "") -> Lack:
        """Why ``name`` is not among the ``values`` of the node; without a name, why there are none at all."""
        path = name.partition(": ")[0] if name.startswith("/") else ""
        if path != name and values.get(path) == UNPARSED:
            return "failed"
        if self.only == "nested" or (self.denies and self.denies(snapshot, name)):
            return ""
        own = [item for item in snapshot.items if path and item.subject == path and item.kind != "listing"]
        looks = own or [item for item in snapshot.items if _names_of(item) & {*self.looks}]
        return least(self._reason(item, is_read=self.is_set or bool(values)) for item in looks)

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
        layers: the layers in which a fault that it explains would be, its own one first.
        rules: a pattern of names or values, how much such a difference matters, and why; the first that fits counts.
        shown_by: words in the lines, or in the names of files and commands, that show it.
    """

    id: str
    title: str
    layers: tuple[StackLayer, ...]
    rules: Rules
    parts: tuple[Part, ...]
    shown_by: tuple[str, ...] = ()

    def values(self, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
        """What is there of the trait on one node, by name; without the slots, which differ from machine to machine."""
        parts = (part.read(snapshot) for part in self.parts if part.only != "nested")
        return ((name, shown(value)) for values in parts for name, value in values.items())

    def judge(self, name: str, values: str) -> tuple[Weight, str]:
        """How much a difference in ``name`` matters, and why."""
        found = (rule[1:] for rule in self.rules if re.search(rule[0], f"{name}\n{values}", re.IGNORECASE))
        return next(found, ("background", "it explains little"))


def least(lacks: Iterable[Lack]) -> Lack:
    """Of several the one that says the most."""
    found = [*lacks]
    return "" if "" in found else next((lack for lack in found if lack != "not asked"), "not asked")


def shown(value: Value) -> str:
    """The value in words; of several GPUs what most have first."""
    if isinstance(value, str):
        return value
    in_order = sorted(value.items(), key=lambda row: (-row[1], row[0]))
    return ", ".join(f"{number} × {one}" for one, number in in_order)


def _is_cut(item: Item) -> bool:
    return item.source.is_part or bool(item.source.only)


def _refused(item: Item) -> re.Match[str] | None:
    return _REFUSED.match(item.text) if len(item.lines) < 3 else None


def _text(item: Item | None) -> str:
    is_read = item is not None and item.outcome == "ok" and not _refused(item)
    return item.text.strip() if item is not None and is_read else ""


def _one(name: str, read: Callable[[Snapshot], str | None], *looks: str) -> Part:
    """A single value."""
    return Part(looks, lambda snapshot: {name: value} if (value := read(snapshot)) else {})


def _text_of(name: str, look: str) -> Part:
    """The whole of a short text."""
    return _one(name, _answer(look), look)


def _answer(look: str) -> Callable[[Snapshot], str]:
    """The text of the first look of that key, path or command that shows one."""
    return lambda snapshot: next(filter(None, (_text(one) for one in snapshot.items if look in _names_of(one))), "")


def _names_of(item: Item) -> frozenset[str]:
    """By which a part may look for it: a command also by its first two words, a folder by all that is in there."""
    path = f"{item.subject.rpartition('/')[0]}/*" if "*" in item.subject else item.subject
    return frozenset({item.kind, item.key, path, " ".join(item.source.words[:2])})


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip() and len(name) < 80:
            yield name.strip(), value.strip()


# The machine.

# Network, display, bridge, accelerator: the classes of what is compared, by number and in lspci's words.
_CLASSES: Final = Pattern(r"^(?:02|03|06|12)|bridge|accelerator|ethernet|network|infiniband", re.IGNORECASE)
# What lspci puts around a device's own name.
_AROUND: Final = Pattern(
    r"^NVIDIA Corporation\s+|\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]|\s*\((?:rev|prog-if) [^)\n]*\)", re.IGNORECASE
)


def _bus(snapshot: Snapshot) -> tuple[tuple[str, str, str, bool], ...]:
    """Each device that is compared: its address, its name with its id, its driver where that is shown, if a GPU."""
    own = (one for one in snapshot.view(pci.functions) if one.is_gpu or one.is_switch or _CLASSES.search(one.kind))
    gpus = ((one.address, _label(_AROUND.sub("", one.name), "10de", one.device),
             (one.driver or "none") if one.shows_driver else "", one.is_gpu) for one in own)  # fmt: skip
    fact = snapshot.facts.devices
    others = (one for one in (fact.value if isinstance(fact, Known) else ()) if one.vendor == "15b3")
    cards = ((one.address, _label(one.name, one.vendor, one.device), one.driver or "none", False)
             for one in others if _CLASSES.search(one.class_code))  # fmt: skip
    return (*gpus, *cards)


def _label(name: str, vendor: str, device: str) -> str:
    return " ".join(filter(None, (name or "NVIDIA", device and f"[{vendor}:{device}]")))


def _devices(snapshot: Snapshot) -> Values:
    return {label: f"{number} ×" for label, number in Counter(row[1] for row in snapshot.view(_bus)).items()}


def _drivers(snapshot: Snapshot) -> Values:
    found: dict[str, set[str]] = {}
    for _, label, bound, _ in snapshot.view(_bus):
        found.setdefault(f"driver of {label}", set()).add(bound)
    return {name: ", ".join(sorted(bound)) for name, bound in found.items() if "" not in bound}


def _slots(snapshot: Snapshot) -> Values:
    return {f"GPU at {address}": label for address, label, _, is_gpu in snapshot.view(_bus) if is_gpu}


def _links(snapshot: Snapshot) -> Values:
    """Widths, and the speeds that the devices are capable of; the present speed depends on what the GPU does."""
    # Of a GPU that several tools show, the first one's value.
    of_each: dict[tuple[str, str], str] = {}
    for number, link in enumerate(snapshot.view(links.links)):
        end = " with its slot" if link.is_of_both else ""
        rows = (
            ("link width", link.width, ""),
            (f"widest{end}", link.most_width, ""),
            (f"fastest{end}", link.newest, "PCIe "),
        )
        for name, value, unit in rows:
            if value:
                of_each.setdefault((name, link.address or str(number)), f"{unit}{value}")
    return _tallied((name, value) for (name, _), value in of_each.items())


def _tallied(rows: Iterator[tuple[str, str]]) -> Values:
    found: dict[str, Counter[str]] = {}
    for name, value in rows:
        found.setdefault(name, Counter())[value] += 1
    return found


def vbios(snapshot: Snapshot) -> str:
    """The versions of the GPUs' own firmware."""
    return ", ".join(sorted({row.value for _, row in smi_query.rows(snapshot, "VBIOS Version")} - {"", "N/A"}))


_DRIVEN: Final = "GPUs that the driver has"
_SETTINGS: Final = ("name", "memory_mib", "persistence", "ecc", "ecc_pending", "mig", "mig_pending")


def _counted(snapshot: Snapshot) -> str:
    if known := snapshot.view(inventory):
        return str(len(known.gpus))
    counts = [one.count for one in snapshot.view(boards.inventories) if one.count is not None]
    return str(counts[-1]) if counts else "0" if ("no-devices" in dict(snapshot.view(driver.smi))) else ""


def _settings_of_gpus(snapshot: Snapshot) -> Values:
    if (known := snapshot.view(inventory)) is None:
        return {}
    each = ((name, getattr(gpu, name)) for gpu in known.gpus for name in _SETTINGS)
    told = ((name, "no answer" if isinstance(value, nvml.Unread) else str(value)) for name, value in each)
    return {"CUDA": str(known.cuda), **_tallied(told)}


def _driven_slots(snapshot: Snapshot) -> Values:
    """Where the GPUs are that the driver has; nowhere where not all of them are shown."""
    known = snapshot.view(inventory)
    whole = [one for one in snapshot.view(boards.inventories) if one.count is not None][-1:]
    at = [str(gpu.pci) for gpu in known.gpus] if known else [board.bus for one in whole for board in one.boards]
    return {f"{_DRIVEN}, at {slot}": "one" for slot in at} if all(":" in slot for slot in at) else {}


# The kernel.

_ANY_BOOT: Final = Pattern(
    r"^(?:BOOT_IMAGE|root|resume|initrd|rootflags|rootfstype|ro|rw|quiet|splash|console|crashkernel|net\.ifnames|"
    r"biosdevname|rd\.(?:lvm|luks|md)[\w.]*|ip|nosplash|vt\.handoff|loglevel|earlyprintk|mitigations|apparmor)$"
)


def _arguments(snapshot: Snapshot) -> Values:
    found: dict[str, str] = {}
    for word in _text(snapshot.file("/proc/cmdline")).split():
        name, _, value = word.partition("=")
        if not _ANY_BOOT.match(name):
            found[name] = f"{found[name]} {value or 'set'}" if name in found else value or "set"
    return found


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


def _loaded(snapshot: Snapshot) -> str:
    fact = snapshot.facts.loaded_driver
    return "none" if isinstance(fact, Known) and fact.value is None else _version(driver.loaded)(snapshot)


def _flavour(snapshot: Snapshot) -> str:
    loaded = driver.loaded(snapshot)
    return "" if loaded is None or loaded.is_open is None else "open" if loaded.is_open else "proprietary"


def _on_disk(snapshot: Snapshot) -> str:
    files = snapshot.facts.module_files
    return _version(driver.on_disk)(snapshot) or ("none" if isinstance(files, Known) and not files.value else "")


def _library(snapshot: Snapshot) -> str:
    is_listed = any(item.outcome == "ok" and item.where == "host" for item in snapshot.of("ldconfig"))
    return _version(driver.library)(snapshot) or ("none" if is_listed else "")


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
    units = snapshot.facts.units.items()
    return any(isinstance(fact, Known) for name, fact in units if not unit or name == unit)


def _units(snapshot: Snapshot) -> Values:
    known = ((name, fact.value) for name, fact in snapshot.facts.units.items() if isinstance(fact, Known))
    return {
        name: "failed" if unit.failed else "masked" if unit.masked else
        f"{'runs' if unit.state.active else 'stopped'}, {'enabled' if unit.state.enabled else 'not enabled'}"
        for name, unit in known if unit.exists
    }  # fmt: skip


_DOCKER: Final = frozenset(
    {"Server Version", "Default Runtime", "Runtimes", "Cgroup Driver", "Cgroup Version", "Storage Driver",
     "Live Restore Enabled", "Docker Root Dir", "Context", "CDI spec directories"}
)  # fmt: skip


def _docker(snapshot: Snapshot) -> Values:
    rows = (row for item in reversed(snapshot.of("docker-info")) for row in _rows(_text(item)))
    known = {name: value for name, value in rows if name in _DOCKER}
    return {name: " ".join(sorted(value.split())) if name == "Runtimes" else value for name, value in known.items()}


def _cluster(snapshot: Snapshot) -> Values:
    found: dict[str, str] = {}
    for item in snapshot.of("kubernetes-node"):
        for written, value in _rows(_text(item)):
            name = written.strip("\"'")
            if name.startswith("nvidia.com/") and not name.endswith(("timestamp", ".product-name")):
                # Capacity and allocatable have one name each; the smaller counts, whatever their order.
                both = [one for one in (found.get(name), value.strip("\"', ")) if one]
                numbers = all(re.fullmatch(r"\d{1,18}", one) for one in both)
                found[name] = min(both, key=int) if numbers else min(both, default="")
    return found


def _distribution(snapshot: Snapshot) -> str:
    known = system.distro(snapshot)
    return (known.name or f"{known.id} {known.version_id}") if known else ""


def _platform(snapshot: Snapshot) -> str:
    fact = snapshot.facts.platform
    return f"{fact.value.kind} {fact.value.detail}".strip() if isinstance(fact, Known) else ""


# Configuration files, their settings one by one.


def _files(pattern: str, settings: Callable[[Item], Iterator[tuple[str, str]]]) -> Callable[[Snapshot], Values]:
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
            yield "", UNPARSED
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


def _specified(item: Item) -> Iterator[tuple[str, str]]:
    found = re.findall(r"lib(?:cuda|nvidia-ml)\.so\.(\d{1,4}\.[\d.]{0,20}\d)", item.text)
    yield "", ", ".join(sorted(set(found))) or "no driver in it"


GONE: Final = "a GPU, NVSwitch or bridge more or less: one has fallen off the bus, or was never there"
FEWER: Final = "the driver has other GPUs than there"
_DEVICE: Final[Rules] = (
    (r"^driver of", "likely", "only the GPU's own driver can use it"),
    (r"15b3:", "possible", "another network card: its firmware and driver carry GPUDirect RDMA"),
    (r"", "likely", GONE),
)
_BOARD: Final[Rules] = (
    (r"^VBIOS", "possible", "GPUs with another VBIOS may train links, report errors or power up in another way"),
    (r"^BIOS", "likely", "it sets up memory regions, IOMMU, ACS and links before any driver runs"),
    (r"", "background", "these are machines of different kinds: much else will differ, too"),
)
_SETTING: Final[Rules] = (
    (r"^GPUs|^name", "likely", FEWER),
    (r"^mig", "likely", "a GPU in MIG mode is of use through its instances alone"),
    (r"no answer", "likely", "a GPU that does not say its own settings is failing"),
    (r"^persistence", "possible", "without it every first use initialises the GPU anew, and a failing one fails then"),
    (r"", "possible", "another setting of the GPU"),
)
_ARGUMENT: Final[Rules] = (
    (r"^(?:[\w.]*blacklist|nomodeset|nouveau|nova)", "likely", "it decides which driver takes the GPU at boot"),
    (r"^(?:vfio|pci-stub|kvm)", "likely", "it hands the GPU to virtual machines, away from NVIDIA's driver"),
    (r"^nvidia", "likely", "it sets a parameter of NVIDIA's modules"),
    (r"iommu", "likely", "the IOMMU stands between GPUs, NICs and memory: peer access hangs when it translates"),
    (r"^(?:pci|pcie_aspm|pcie_ports|pcie_acs)", "likely", "it changes the layout of the PCI bus and its power states"),
    (r"^(?:lockdown|module\.sig_enforce|efi|enforcing|selinux)", "likely", "it decides which modules may load"),
    (r"cgroup", "likely", "it decides how containers are given device nodes"),
    (r"^(?:numa|mem|hugepages|default_hugepagesz|isolcpus|nohz_full|intel_idle|processor)", "possible",
     "it changes memory or processors under the GPUs: speed, and how much can be pinned"),
    (r"", "possible", "the kernels were started with other words"),
)  # fmt: skip
_MODULE: Final[Rules] = (
    (r"^nvidia|^gdrdrv", "likely", "without it the part of the driver that it is does not work"),
    (r"^(?:nouveau|nova)", "likely", "it takes the GPU before NVIDIA's driver can"),
    (r"^(?:vfio|pci_stub|xen_pciback)", "likely", "it holds GPUs for virtual machines"),
    (r"^(?:ib_|mlx|rdma|nv_peer|irdma|bnxt_re|efa|nvme_rdma)", "possible", "RDMA to other nodes goes through it"),
    (r"^(?:overlay|br_netfilter|ip_tables|nf_tables)", "possible", "container runtimes need it"),
)
_PACKAGED: Final[Rules] = (
    (r"^(?:nvidia-container|libnvidia-container|golang-github-nvidia)", "likely", "it gives containers their GPUs"),
    (r"fabricmanager|imex|nvlsm", "likely", "it must be of the very version of the driver"),
    (r"^(?:nvidia|libnvidia|libcuda1|cuda-drivers|cuda-compat|xserver-xorg-video-nvidia)", "likely",
     "driver, libraries and module must be of one version, and of a branch that the GPU has"),
    (r"^(?:linux-(?:headers|modules|objects|signatures)|kernel-devel|dkms|gcc)", "likely",
     "the module is built with it, or comes in it: for another kernel there is none"),
    (r"^(?:linux-image|kernel)", "possible", "another kernel may boot next, and needs its own module"),
    (r"^(?:containerd|docker|runc|podman|crun|cri-o|kube|k3s|rke2)", "possible",
     "runtimes differ in what they take of configuration, CDI and cgroups"),
    (r"^(?:mlnx|ofed|doca|rdma|libibverbs|ibverbs|gdrcopy)", "possible", "GPUDirect RDMA is built against it"),
    (r"^(?:shim|mokutil)", "possible", "it decides whose modules Secure Boot trusts"),
)  # fmt: skip
_UNIT: Final[Rules] = (
    (r"fabricmanager|imex", "likely", "without it GPUs behind NVSwitch do not start CUDA (error 802)"),
    (r"persistenced", "possible", "without it every first use initialises the GPU anew"),
    (r"cdi-refresh", "possible", "it writes the CDI specification again after an upgrade"),
    (r"gridd", "likely", "a vGPU without its licence slows down and stops"),
    (r"^(?:docker|containerd|crio|kubelet|k3s|rke2|snap\.)", "likely", "it starts containers, or another does"),
)
_DAEMON: Final[Rules] = (
    (r"^(?:Runtimes|Default Runtime)", "likely", "containers get GPUs through the runtime named nvidia"),
    (r"^Cgroup", "likely", "under systemd's driver a daemon-reload may take GPUs away from running containers"),
    (r"^Context", "likely", "another docker daemon answers: Desktop's or a rootless one has no GPUs"),
    (r"", "possible", "docker runs otherwise"),
)
_RUNTIME: Final[Rules] = (
    (r"cannot be parsed", "likely", "a daemon does not start with a file that it cannot read"),
    (r"nvidia|runtime|cgroup|cdi|disabled_plugins|exec-opts|hooks|imports", "likely",
     "containers get their GPUs through these settings"),
    (r"data-root|storage|root|state|debug|log", "background", "where things are kept or told"),
    (r"", "possible", "the daemon is set up otherwise"),
)  # fmt: skip
_BOOT: Final[Rules] = (
    (r"nvidia|nouveau|nova|vfio|blacklist", "likely", "it decides which driver takes the GPU, with what parameters"),
)
_TOOLKIT: Final[Rules] = ((r"", "likely", "the toolkit finds driver and device nodes through these settings"),)
_KUBELET: Final[Rules] = (
    (r"cgroup|cpuManager|topologyManager|memoryManager|featureGates|kubeReserved|containerRuntime", "possible",
     "the kubelet gives devices, processors and cgroups to pods by these settings"),
)  # fmt: skip
_LOADER: Final[Rules] = ((r"nvidia|cuda|stubs|LD_", "likely", "programs may load another libcuda than the driver's"),)
_PIN: Final[Rules] = ((r"nvidia|cuda|driver", "possible", "it decides which driver apt takes next"),)


def _always(why: str) -> Rules:
    return (("", "likely", why),)


def _configured(path: str, rules: Rules, *layers: StackLayer) -> Trait:
    parts = (Part((path,), _files(path, _settings), is_set=True),)
    return Trait(f"file:{path}", path, layers, rules, parts, (path.rstrip("*"),))


_SMI: Final = ("nvml", "nvidia-smi", "nvidia-smi-q")
_LINKS: Final = tuple(f"/sys/bus/pci/devices/*/{a}_link_{b}" for a in ("current", "max") for b in ("width", "speed"))
_SYS_PARAMETERS: Final = "/sys/module/nvidia*/parameters/*"
_PARAMETERS: Final = "/proc/driver/nvidia/params"

TRAITS: Final[tuple[Trait, ...]] = (
    Trait("devices", "PCI devices", ("pci", "gpu", "driver"), _DEVICE, (
        Part(("lspci",), _devices, denies=lambda snapshot, _name: pci.is_listed(snapshot)),
        Part((), _slots, only="nested"),
        Part(("lspci",), _drivers, is_set=True, only="shared"),
    ), ("lspci -Dvmmnnk",)),
    Trait("driver", "driver versions", ("driver", "libraries", "packages"),
        _always("module, libraries and tools must be of one version"), (
        _one("loaded module", _loaded, "nvidia-version"),
        _one("flavour", _flavour),
        _one("module on disk", _on_disk, *MODULE_KEYS),
        _one("libraries", _library, "ldconfig"),
        _one("nvidia-smi", _version(driver.smi_version), "nvidia-smi", "nvidia-smi-q"),
        _one("fabric manager", lambda snapshot: (fabric.version(snapshot) or ("",))[0]),
        _one("IMEX", lambda snapshot: (fabric.imex_version(snapshot) or ("",))[0]),
    ), ("NVRM version", "modinfo", "ldconfig")),
    Trait("kernel", "kernel", ("kernel", "driver", "packages"),
        _always("a module is built for one kernel, and breaks against others"),
        (_one("running kernel", system.running_kernel, "kernel-release", "uname"),), ("uname",)),
    Trait("arguments", "kernel arguments", ("kernel", "pci", "driver"), _ARGUMENT,
        (Part(("/proc/cmdline",), _arguments, is_set=True),), ("/proc/cmdline", "Command line:")),
    Trait("modules", "loaded modules", ("kernel", "driver"), _MODULE, (
        Part(("modules", "lsmod"), _modules,
             denies=lambda snapshot, name: modules.loaded(snapshot, name or "nvidia") is False),
    ), ("/proc/modules", "lsmod")),
    Trait("parameters", "module parameters", ("kernel", "driver"),
        _always("NVIDIA's modules run with another parameter"), (
        Part((_SYS_PARAMETERS,), _files(_SYS_PARAMETERS, lambda item: iter([("", _text(item))])), is_set=True,
             only="shared"),
        Part((_PARAMETERS,), lambda snapshot: dict(_rows(_answer(_PARAMETERS)(snapshot))), is_set=True, only="shared"),
    ), ("/parameters/", _PARAMETERS)),
    Trait("secure", "Secure Boot", ("kernel", "driver"), _always("it decides which modules may load"), (
        _one("Secure Boot", _secure_boot, "mokutil"),
        _text_of("lockdown", "/sys/kernel/security/lockdown"),
        _text_of("signatures enforced", "/sys/module/module/parameters/sig_enforce"),
    ), ("mokutil", "lockdown", "sig_enforce")),
    Trait("packages", "packages", ("packages", "driver", "toolkit", "runtime"), _PACKAGED, (
        Part(("packages", "dpkg-status"), _packages,
             denies=lambda snapshot, name: bool(name) and packages.installed(snapshot, name) is False),
    ), ("/var/lib/dpkg/status", "dpkg -l", "rpm -q")),
    Trait("links", "PCI links", ("pci", "gpu"),
        _always("lanes are lost by dirt, a riser or a slot; a slower slot costs bandwidth"),
        (Part(_LINKS, _links, is_set=True, only="shared"),),
        ("_link_width", "_link_speed", "LnkSta", "LnkCap", "Link Width")),
    Trait("firmware", "firmware", ("pci", "gpu", "kernel"), _BOARD, (
        _text_of("BIOS version", "/sys/class/dmi/id/bios_version"),
        _text_of("model", "/sys/class/dmi/id/product_name"),
        _text_of("vendor", "/sys/class/dmi/id/sys_vendor"),
        _one("VBIOS of the GPUs", vbios, "nvidia-smi-q"),
    ), ("/sys/class/dmi/", "VBIOS Version")),
    Trait("gpus", "GPU settings", ("gpu", "driver", "libraries"), _SETTING, (
        _one(_DRIVEN, _counted, *_SMI),
        Part((), _driven_slots, only="nested"),
        Part(("nvml",), _settings_of_gpus),
    )),
    Trait("units", "services", ("fabric", "runtime", "driver", "kubernetes"), _UNIT,
        (Part(("units",), _units, denies=_is_asked),)),
    Trait("docker", "docker", ("runtime",), _DAEMON, (Part(("docker-info",), _docker, only="shared"),),
        ("docker info",)),
    _configured("/etc/docker/daemon.json", _RUNTIME, "runtime"),
    _configured("/etc/containerd/config.toml", _RUNTIME, "runtime"),
    _configured("/etc/nvidia-container-runtime/config.toml", _TOOLKIT, "toolkit"),
    _configured("/etc/modprobe.d/*", _BOOT, "kernel", "driver"),
    _configured("/etc/modules-load.d/*", _BOOT, "kernel", "driver"),
    _configured("/etc/modules", _BOOT, "kernel", "driver"),
    _configured("/etc/ld.so.conf.d/*", _LOADER, "libraries"),
    _configured("/etc/ld.so.preload", _LOADER, "libraries"),
    _configured("/etc/environment", _LOADER, "libraries"),
    _configured("/etc/nvidia/gridd.conf", _TOOLKIT, "driver"),
    _configured("/var/lib/kubelet/config.yaml", _KUBELET, "kubernetes"),
    _configured("/etc/apt/preferences.d/*", _PIN, "packages"),
    Trait("cdi", "CDI specifications", ("toolkit",),
        _always("a specification names the files of one driver version; of another it is stale"),
        tuple(Part((path,), _files(path, _specified), is_set=True) for path in ("/etc/cdi/*", "/var/run/cdi/*")),
        ("/etc/cdi/", "/run/cdi/")),
    Trait("cgroups", "cgroups", ("runtime", "toolkit"),
        _always("device nodes are given to containers in another way, which old toolkits do not know"),
        (_text_of("file system", "stat -fc"),), ("stat -fc",)),
    Trait("kubernetes", "Kubernetes", ("kubernetes",),
        _always("the scheduler sees other GPUs, or other labels, on the node"),
        (Part(("kubernetes-node",), _cluster),), ("nvidia.com/",)),
    Trait("system", "system", ("packages", "kernel"), ((r"", "possible", "packages and their names differ, too"),), (
        _one("distribution", _distribution, "os-release"),
        _one("machine", _platform, "virt"),
    )),
)  # fmt: skip
# What is said where one of the two has other GPUs: the first thing that anybody wants to know.
FOREMOST: Final = frozenset({GONE, FEWER})
