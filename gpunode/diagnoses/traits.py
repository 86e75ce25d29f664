"""What of a node may explain why another one works: its traits, each read from a snapshot, with its weight and why.

Left out is what differs between any two healthy machines: addresses on the bus, serial numbers, sizes, times, states of
links that save power.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from gpunode.diagnoses.model import StoreyId
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, fabric, links, packages, pci, system
from gpunode.facts import nvml
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.toml import loads

# likely: it breaks GPU nodes by itself, often. possible: it can. background: it differs, and explains little.
Weight: TypeAlias = Literal["likely", "possible", "background"]
# By name; None where nobody looked, so that nothing can be said of a difference.
Reading: TypeAlias = Mapping[str, str] | None
Judgement: TypeAlias = tuple[Weight, str]


@dataclass(frozen=True, slots=True)
class Trait:
    """Something about a node that is compared.

    Attributes:
        id: of its row in JSON.
        storeys: those in which a fault that it explains would lie.
        read: every value by name.
        judge: how much a difference in the value of that name weighs, and why it matters.
        is_partial: whether a name that one of the two lacks was not looked at there; else it is not there.
    """

    id: str
    title: str
    storeys: frozenset[StoreyId]
    read: Callable[[Snapshot], Reading]
    judge: Callable[[str, str], Judgement]
    is_partial: bool = False


def _always(weight: Weight, why: str) -> Callable[[str, str], Judgement]:
    return lambda _name, _values: (weight, why)


def _by_name(*rules: tuple[str, Weight, str]) -> Callable[[str, str], Judgement]:
    """The judgement of the first pattern that the name, or a value, fits; the last rule takes what is left."""
    compiled = [(Pattern(pattern, re.IGNORECASE), weight, why) for pattern, weight, why in rules]

    def judge(name: str, values: str) -> Judgement:
        found = ((weight, why) for pattern, weight, why in compiled if pattern.search(f"{name}\n{values}"))
        return next(found, ("background", "it differs"))

    return judge


# The kernel and its command line.

_UNTOLD: Final = Pattern(
    r"^(?:BOOT_IMAGE|root|resume|initrd|rootflags|rootfstype|ro|rw|quiet|splash|console|crashkernel|net\.ifnames|"
    r"biosdevname|rd\.(?:lvm|luks|md)[\w.]*|ip|nosplash|vt\.handoff|loglevel|earlyprintk|mitigations|apparmor)$"
)


def _arguments(snapshot: Snapshot) -> Reading:
    line = snapshot.file("/proc/cmdline")
    if line is None or line.outcome != "ok":
        return None
    found: dict[str, list[str]] = {}
    for word in line.text.split():
        name, _, value = word.partition("=")
        if not _UNTOLD.match(name):
            found.setdefault(name, []).append(value or "set")
    return {name: " ".join(values) for name, values in found.items()}


_ARGUMENT: Final = _by_name(
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


def _kernel(snapshot: Snapshot) -> Reading:
    running = system.running_kernel(snapshot)
    return {"running kernel": running} if running else None


def _system(snapshot: Snapshot) -> Reading:
    found = {}
    if known := system.distro(snapshot):
        found["distribution"] = known.name or f"{known.id} {known.version_id}"
    if isinstance(fact := snapshot.facts.platform, Known):
        found["machine"] = f"{fact.value.kind} {fact.value.detail}".strip()
    return found or None


def _modules(snapshot: Snapshot) -> Reading:
    fact = snapshot.facts.modules
    return dict.fromkeys(fact.value, "loaded") if isinstance(fact, Known) else None


_MODULE: Final = _by_name(
    (r"^nvidia|^gdrdrv", "likely", "without it the part of the driver that it is does not work"),
    (r"^(?:nouveau|nova)", "likely", "it takes the GPU before NVIDIA's driver can"),
    (r"^(?:vfio|pci_stub|xen_pciback)", "likely", "it holds GPUs for virtual machines"),
    (r"^(?:ib_|mlx|rdma|nv_peer|irdma|bnxt_re|efa|nvme_rdma)", "possible", "RDMA to other nodes goes through it"),
    (r"^(?:overlay|br_netfilter|ip_tables|nf_tables)", "possible", "container runtimes need it"),
    (r"", "background", "another module is loaded, none of the GPU's"),
)  # fmt: skip


def _parameters(snapshot: Snapshot) -> Reading:
    found: dict[str, str] = {}
    seen = False
    for item in snapshot.files("/sys/module/nvidia*/parameters/*"):
        found[item.subject.removeprefix("/sys/module/").replace("/parameters/", ".")] = item.text.strip()
        seen = True
    params = snapshot.file("/proc/driver/nvidia/params")
    if params is not None and params.outcome == "ok":
        found |= dict(_colons(params.text))
        seen = True
    return found if seen else None


def _colons(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip() and len(name) < 80:
            yield name.strip(), value.strip()


# The driver.


def _versions(snapshot: Snapshot) -> Reading:
    found = {
        "loaded module": driver.loaded(snapshot),
        "module on disk": driver.on_disk(snapshot),
        "libraries": driver.library(snapshot),
        "nvidia-smi": driver.smi_version(snapshot),
    }
    known = {name: seen.version for name, seen in found.items() if seen}
    services = {"fabric manager": fabric.version(snapshot), "IMEX": fabric.imex_version(snapshot)}
    known |= {name: told[0] for name, told in services.items() if told}
    if (loaded := found["loaded module"]) and loaded.is_open is not None:
        known["flavour"] = "open" if loaded.is_open else "proprietary"
    if isinstance(fact := snapshot.facts.loaded_driver, Known) and fact.value is None:
        known["loaded module"] = "none"
    if isinstance(files := snapshot.facts.module_files, Known) and not files.value:
        known.setdefault("module on disk", "none")
    if any(item.outcome == "ok" and item.where == "host" for item in snapshot.of("ldconfig")):
        known.setdefault("libraries", "none")
    return known or None


_PACKAGE: Final = Pattern(
    r"^(?:nvidia|libnvidia|libcuda|cuda|libnv|xserver-xorg-video-nvidia|linux-(?:image|headers|modules|objects|signatures)|"
    r"kernel|containerd|docker|runc|podman|crun|cri-o|kube|k3s|rke2|dkms|gcc|shim|mokutil|datacenter-gpu|dcgm|nvlsm|imex|"
    r"mlnx|ofed|doca|mft|rdma|ibverbs|libibverbs|gdrcopy|golang-github-nvidia)"
)


def _packages(snapshot: Snapshot) -> Reading:
    known = snapshot.view(packages.packages)
    if not known:
        return None
    return {
        name: f"{one.version}{'' if one.is_installed else f' (state {one.state})'}{' held' if one.want == 'h' else ''}"
        for name, one in known.items()
        if _PACKAGE.match(name)
    }


_PACKAGED: Final = _by_name(
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
    (r"", "background", "another version of a package around the GPU"),
)  # fmt: skip


# The machine and its bus.


def _devices(snapshot: Snapshot) -> Reading:
    fact = snapshot.facts.devices
    if isinstance(fact, Known):
        wanted = [
            one for one in fact.value if one.vendor in _VENDORS and one.class_code[:2] in {"02", "03", "06", "12"}
        ]
        if not wanted and not fact.value:
            return None
        kinds = Counter(f"{one.name or _VENDORS[one.vendor]} [{one.vendor}:{one.device}]" for one in wanted)
        bound = {
            f"driver of {name}": ", ".join(sorted({one.driver or "none" for one in wanted if _named(one, name)}))
            for name in kinds
        }
        return {**{name: f"{number} ×" for name, number in kinds.items()}, **bound}
    gpus = snapshot.view(pci.gpus)
    return {f"{gpu.name}": "1 ×" for gpu in gpus} if gpus else None


_VENDORS: Final = {"10de": "NVIDIA", "15b3": "Mellanox"}


def _named(device: Any, name: str) -> bool:
    return name.endswith(f"[{device.vendor}:{device.device}]")


_DEVICE: Final = _by_name(
    (r"^driver of", "likely", "only the GPU's own driver can use it"),
    (r"10de:", "likely", "a GPU, NVSwitch or bridge more or less: one has fallen off the bus, or was never there"),
    (r"", "possible", "another network card: its firmware and driver carry GPUDirect RDMA"),
)


def _links(snapshot: Snapshot) -> Reading:
    """Widths, and the speeds that the devices are capable of; the present speed hangs on what the GPU does."""
    wanted = {gpu.address for gpu in snapshot.view(pci.gpus)}
    found: dict[str, Counter[str]] = {}
    for what, name in (
        ("current_link_width", "link width"),
        ("max_link_width", "widest"),
        ("max_link_speed", "fastest"),
    ):
        for item in snapshot.files(f"/sys/bus/pci/devices/*/{what}"):
            if item.subject.split("/")[5] in wanted and item.outcome == "ok":
                found.setdefault(name, Counter())[item.text.strip()] += 1
    if not found:
        # Of a GPU that several tools tell of, the first one's word.
        of_each = {link.address: link for link in reversed(snapshot.view(links.links))}
        for link in of_each.values():
            for name, width in (("link width", link.width), ("widest", link.widest)):
                if width is not None:
                    found.setdefault(name, Counter())[str(width)] += 1
    return {name: _counted(values) for name, values in found.items()} or None


def _counted(values: Counter[str]) -> str:
    return ", ".join(f"{number} × {value}" for value, number in sorted(values.items()))


def _firmware(snapshot: Snapshot) -> Reading:
    names = {"bios_version": "BIOS version", "product_name": "model", "sys_vendor": "vendor"}
    seen = {words: snapshot.file(f"/sys/class/dmi/id/{name}") for name, words in names.items()}
    return {
        words: item.text.strip() for words, item in seen.items() if item is not None and item.outcome == "ok"
    } or None


_BOARD: Final = _by_name(
    (r"^BIOS", "likely", "it sets up memory regions, IOMMU, ACS and links before any driver runs"),
    (r"", "background", "these are machines of different kinds: much else will differ, too"),
)


def _gpu_settings(snapshot: Snapshot) -> Reading:
    for item in snapshot.of("nvml"):
        answer = nvml.parse(item.text.encode()) if item.outcome == "ok" else None
        if isinstance(answer, nvml.Inventory):
            return dict(_settings(answer))
    return None


def _settings(inventory: nvml.Inventory) -> Iterator[tuple[str, str]]:
    yield "GPUs that the driver has", str(len(inventory.gpus))
    yield "CUDA", str(inventory.cuda)
    for field in fields(nvml.Gpu):
        if field.name in {"name", "memory_mib", "persistence", "ecc", "ecc_pending", "mig", "mig_pending"}:
            values = (getattr(gpu, field.name) for gpu in inventory.gpus)
            yield field.name, _counted(Counter("no answer" if isinstance(v, nvml.Unread) else str(v) for v in values))


_SETTING: Final = _by_name(
    (r"^GPUs|^name", "likely", "the driver has other GPUs than there"),
    (r"^mig", "likely", "a GPU in MIG mode is of use through its instances alone"),
    (r"no answer", "likely", "a GPU that does not say its own settings is failing"),
    (r"^persistence", "possible", "without it every first use initialises the GPU anew, and a failing one fails then"),
    (r"", "possible", "another setting of the GPU"),
)


# Configuration.


def _secure(snapshot: Snapshot) -> Reading:
    found = {}
    for item in snapshot.of("mokutil"):
        if match := re.search(r"SecureBoot (enabled|disabled)", item.text):
            found["Secure Boot"] = match[1]
    for path, name in (("/sys/kernel/security/lockdown", "lockdown"),
                       ("/sys/module/module/parameters/sig_enforce", "signatures enforced")):  # fmt: skip
        if (file := snapshot.file(path)) is not None and file.outcome == "ok":
            chosen = re.search(r"\[(\w+)\]", file.text)
            found[name] = chosen[1] if chosen else file.text.strip()
    return found or None


def _cgroups(snapshot: Snapshot) -> Reading:
    types = {"cgroup2fs": "version 2", "tmpfs": "version 1"}
    found = [
        item.text.strip()
        for item in snapshot.items
        if item.source.words[:2] == ("stat", "-fc") and item.outcome == "ok"
    ]
    return {"cgroups": types.get(found[0], found[0])} if found else None


def _docker(snapshot: Snapshot) -> Reading:
    wanted = ("Server Version", "Default Runtime", "Runtimes", "Cgroup Driver", "Cgroup Version", "Storage Driver",
              "Live Restore Enabled", "Docker Root Dir", "Context", "CDI spec directories")  # fmt: skip
    for item in snapshot.of("docker-info"):
        if item.outcome == "ok":
            found = {name: value for name, value in _colons(item.text) if name in wanted}
            return {
                name: " ".join(sorted(value.split())) if name == "Runtimes" else value for name, value in found.items()
            }
    return None


_DOCKER: Final = _by_name(
    (r"^(?:Runtimes|Default Runtime)", "likely", "containers get GPUs through the runtime named nvidia"),
    (r"^Cgroup", "likely", "under systemd's driver a daemon-reload may take GPUs away from running containers"),
    (r"^Context", "likely", "another docker daemon answers: Desktop's or a rootless one has no GPUs"),
    (r"", "possible", "docker runs otherwise"),
)


def _units(snapshot: Snapshot) -> Reading:
    known = {name: fact.value for name, fact in snapshot.facts.units.items() if isinstance(fact, Known)}
    if not known:
        return None
    return {
        name: "failed" if unit.failed else "masked" if unit.masked else
        f"{'runs' if unit.state.active else 'stopped'}, {'enabled' if unit.state.enabled else 'not enabled'}"
        for name, unit in known.items() if unit.exists
    }  # fmt: skip


_UNIT: Final = _by_name(
    (r"fabricmanager|imex", "likely", "without it GPUs behind NVSwitch do not start CUDA (error 802)"),
    (r"persistenced", "possible", "without it every first use initialises the GPU anew"),
    (r"cdi-refresh", "possible", "it writes the CDI specification again after an upgrade"),
    (r"gridd", "likely", "a vGPU without its licence slows down and stops"),
    (r"^(?:docker|containerd|crio|kubelet|k3s|rke2|snap\.)", "likely", "it starts containers, or another does"),
    (r"", "background", "a unit around the GPU runs otherwise"),
)  # fmt: skip


def _cluster(snapshot: Snapshot) -> Reading:
    found: dict[str, str] = {}
    items = [item for item in snapshot.of("kubernetes-node") if item.outcome == "ok"]
    for item in items:
        for name, value in _colons(item.text):
            if name.startswith("nvidia.com/") and not name.endswith(("timestamp", ".product-name")):
                # Capacity and allocatable have one name each; the smaller tells.
                found[name] = min(found.get(name, value.strip("\"'")), value.strip("\"'"))
    return found if items else None


def _specification(snapshot: Snapshot) -> Reading:
    found = snapshot.files("/etc/cdi/*") + snapshot.files("/var/run/cdi/*")
    if not found and not snapshot.facts.folders:
        return None
    version = Pattern(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.[\d.]+\d)")
    return {item.subject: ", ".join(sorted(set(version.findall(item.text)))) or "no driver in it" for item in found}


@dataclass(frozen=True, slots=True)
class _File:
    """A configuration file, its settings compared one by one."""

    path: str
    judge: Callable[[str, str], Judgement]
    storeys: frozenset[StoreyId]

    def read(self, snapshot: Snapshot) -> Reading:
        """Its settings; none where it is not there."""
        found = snapshot.files(self.path) if "*" in self.path else tuple(filter(None, [snapshot.file(self.path)]))
        if not found:
            return {} if "*" in self.path and self.path.rpartition("/")[0] in snapshot.facts.folders else None
        return {name: value for item in found if item.outcome == "ok" for name, value in _content(item)}


def _content(item: Item) -> Iterator[tuple[str, str]]:
    for name, value in _settings_of(item):
        yield f"{item.subject}: {name}" if name else item.subject, value


def _settings_of(item: Item) -> Iterator[tuple[str, str]]:
    """The settings in JSON or TOML by their keys; of anything else every line that is no comment."""
    try:
        if item.subject.endswith(".json"):
            yield from _flat(json.loads(item.text), "")
            return
        if item.subject.endswith(".toml"):
            yield from _flat(loads(item.text), "")
            return
    except (ValueError, RecursionError):
        yield "", "cannot be parsed"
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


_RUNTIME: Final = _by_name(
    (r"cannot be parsed", "likely", "a daemon does not start with a file that it cannot read"),
    (r"nvidia|runtime|cgroup|cdi|disabled_plugins|exec-opts|hooks|imports", "likely",
     "containers get their GPUs through these settings"),
    (r"data-root|storage|root|state|debug|log", "background", "where things are kept or told"),
    (r"", "possible", "the daemon is set up otherwise"),
)  # fmt: skip
_BOOT: Final = _by_name(
    (
        r"nvidia|nouveau|nova|vfio|blacklist",
        "likely",
        "it decides which driver takes the GPU, and with what parameters",
    ),
    (r"", "background", "modules are set up otherwise"),
)
_TOOLKIT: Final = _always("likely", "the toolkit finds driver and device nodes through these settings")
_KUBELET: Final = _by_name(
    (r"cgroup|cpuManager|topologyManager|memoryManager|featureGates|kubeReserved|containerRuntime", "possible",
     "the kubelet gives devices, processors and cgroups to pods by these settings"),
    (r"", "background", "the kubelet is set up otherwise"),
)  # fmt: skip
_LOADER: Final = _by_name(
    (r"nvidia|cuda|stubs|LD_", "likely", "programs may load another libcuda than the driver's"),
    (r"", "background", "the environment is set up otherwise"),
)
_PIN: Final = _by_name(
    (r"nvidia|cuda|driver", "possible", "it decides which driver apt takes next"),
    (r"", "background", "packages are pinned otherwise"),
)
_FILES: Final = (
    _File("/etc/docker/daemon.json", _RUNTIME, frozenset({"runtime"})),
    _File("/etc/containerd/config.toml", _RUNTIME, frozenset({"runtime"})),
    _File("/etc/nvidia-container-runtime/config.toml", _TOOLKIT, frozenset({"toolkit"})),
    _File("/etc/modprobe.d/*", _BOOT, frozenset({"kernel", "driver"})),
    _File("/etc/modules-load.d/*", _BOOT, frozenset({"kernel", "driver"})),
    _File("/etc/modules", _BOOT, frozenset({"kernel", "driver"})),
    _File("/etc/ld.so.conf.d/*", _LOADER, frozenset({"libraries"})),
    _File("/etc/ld.so.preload", _LOADER, frozenset({"libraries"})),
    _File("/etc/environment", _LOADER, frozenset({"libraries"})),
    _File("/etc/nvidia/gridd.conf", _TOOLKIT, frozenset({"driver"})),
    _File("/var/lib/kubelet/config.yaml", _KUBELET, frozenset({"kubernetes"})),
    _File("/etc/apt/preferences.d/*", _PIN, frozenset({"packages"})),
)

TRAITS: Final[tuple[Trait, ...]] = (
    Trait("devices", "PCI devices", frozenset({"pci", "gpu", "driver"}), _devices, _DEVICE),
    Trait("driver", "driver versions", frozenset({"driver", "libraries", "packages"}), _versions,
          _always("likely", "module, libraries and tools must be of one version"), is_partial=True),
    Trait("kernel", "kernel", frozenset({"kernel", "driver", "packages"}), _kernel,
          _always("likely", "a module is built for one kernel, and breaks against others")),
    Trait("arguments", "kernel arguments", frozenset({"kernel", "pci", "driver"}), _arguments, _ARGUMENT),
    Trait("modules", "loaded modules", frozenset({"kernel", "driver"}), _modules, _MODULE),
    Trait("parameters", "module parameters", frozenset({"kernel", "driver"}), _parameters,
          _always("likely", "NVIDIA's modules run with another parameter")),
    Trait("secure", "Secure Boot", frozenset({"kernel", "driver"}), _secure,
          _always("likely", "it decides which modules may load")),
    Trait("packages", "packages", frozenset({"packages", "driver", "toolkit", "runtime"}), _packages, _PACKAGED),
    Trait("links", "PCI links", frozenset({"pci", "gpu"}), _links,
          _always("likely", "lanes are lost by dirt, a riser or a slot; a slower slot costs bandwidth")),
    Trait("firmware", "firmware", frozenset({"pci", "gpu", "kernel"}), _firmware, _BOARD),
    Trait("gpus", "GPU settings", frozenset({"gpu", "driver", "libraries"}), _gpu_settings, _SETTING),
    Trait("units", "services", frozenset({"fabric", "runtime", "driver", "kubernetes"}), _units, _UNIT),
    Trait("docker", "docker", frozenset({"runtime"}), _docker, _DOCKER),
    *(Trait(f"file:{one.path}", one.path, one.storeys, one.read, one.judge) for one in _FILES),
    Trait("cdi", "CDI specifications", frozenset({"toolkit"}), _specification,
          _always("likely", "a specification names the files of one driver version; of another it is stale")),
    Trait("cgroups", "cgroups", frozenset({"runtime", "toolkit"}), _cgroups,
          _always("likely", "device nodes are given to containers in another way, which old toolkits do not know")),
    Trait("kubernetes", "Kubernetes", frozenset({"kubernetes"}), _cluster,
          _always("likely", "the scheduler sees other GPUs, or other labels, on the node")),
    Trait("system", "system", frozenset({"packages", "kernel"}), _system,
          _always("possible", "another system: packages and their names differ, too")),
)  # fmt: skip
