"""What runs on a node: kernel, modules, driver, packages, services, runtimes, and what the cluster sees of it.

Left out is what differs between any two healthy machines: addresses on the bus, serial numbers, sizes, times, states of
links that save power.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits.files import in_folders
from gpunode.diagnoses.traits.model import (
    Lack,
    Reading,
    Trait,
    always,
    asked,
    by_name,
    each,
    hidden,
    lack_of,
    lack_of_answer,
    lack_of_any,
    lack_of_command,
    lack_of_fact,
    lack_of_keys,
    named,
    part,
    whole,
)
from gpunode.diagnoses.views import driver, fabric, modules, packages, system
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import MODULE_KEYS

# The kernel and its command line.

_UNTOLD: Final = Pattern(
    r"^(?:BOOT_IMAGE|root|resume|initrd|rootflags|rootfstype|ro|rw|quiet|splash|console|crashkernel|net\.ifnames|"
    r"biosdevname|rd\.(?:lvm|luks|md)[\w.]*|ip|nosplash|vt\.handoff|loglevel|earlyprintk|mitigations|apparmor)$"
)


def _arguments(snapshot: Snapshot) -> Reading:
    line = snapshot.file("/proc/cmdline")
    if line is None or line.outcome != "ok" or lack_of(line):
        return hidden(lack_of(line) or "not asked")
    found: dict[str, list[str]] = {}
    for word in line.text.split():
        name, _, value = word.partition("=")
        if not _UNTOLD.match(name):
            found.setdefault(name, []).append(value or "set")
    return whole({name: " ".join(values) for name, values in found.items()})


_ARGUMENT: Final = by_name(
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
    return part({"running kernel": running}) if running else hidden(lack_of_keys(snapshot, "kernel-release"))


def _system(snapshot: Snapshot) -> Reading:
    found = {}
    if known := system.distro(snapshot):
        found["distribution"] = known.name or f"{known.id} {known.version_id}"
    if isinstance(fact := snapshot.facts.platform, Known):
        found["machine"] = f"{fact.value.kind} {fact.value.detail}".strip()
    facts = snapshot.facts
    lacks = {
        "distribution": lack_of_fact(snapshot, facts.distro) or "not asked",
        "machine": lack_of_fact(snapshot, facts.platform) or "not asked",
    }
    return named(lacks, found)


def _modules(snapshot: Snapshot) -> Reading:
    fact = snapshot.facts.modules
    if isinstance(fact, Known):
        return whole(dict.fromkeys(fact.value, "loaded"))
    tables = asked(snapshot, "lsmod")
    lack = lack_of_any(tables) if tables else lack_of_fact(snapshot, fact)
    listed = {name for name in modules.listed(snapshot) if modules.loaded(snapshot, name)}
    if not listed and modules.loaded(snapshot, "nvidia") is not False:
        return hidden(lack or "not asked")
    # A part of the table tells of those alone that it would have shown.
    return Reading(
        dict.fromkeys(listed, "loaded"),
        lambda name: "" if modules.loaded(snapshot, name or "nvidia") is False else lack or "not asked",
    )


_MODULE: Final = by_name(
    (r"^nvidia|^gdrdrv", "likely", "without it the part of the driver that it is does not work"),
    (r"^(?:nouveau|nova)", "likely", "it takes the GPU before NVIDIA's driver can"),
    (r"^(?:vfio|pci_stub|xen_pciback)", "likely", "it holds GPUs for virtual machines"),
    (r"^(?:ib_|mlx|rdma|nv_peer|irdma|bnxt_re|efa|nvme_rdma)", "possible", "RDMA to other nodes goes through it"),
    (r"^(?:overlay|br_netfilter|ip_tables|nf_tables)", "possible", "container runtimes need it"),
    (r"", "background", "another module is loaded, none of the GPU's"),
)  # fmt: skip


def _parameters(snapshot: Snapshot) -> Reading:
    """Those of the loaded modules; of a module that is not loaded there is none to be asked for."""
    found: dict[str, str] = {}
    for item in snapshot.files("/sys/module/nvidia*/parameters/*"):
        if item.outcome == "ok" and not lack_of(item):
            found[item.subject.removeprefix("/sys/module/").replace("/parameters/", ".")] = item.text.strip()
    of_modules = bool(found)
    params = snapshot.file("/proc/driver/nvidia/params")
    lack: Lack = lack_of(params) or "not asked"
    if params is not None and params.outcome == "ok" and not lack_of(params):
        found |= dict(_colons(params.text))
        lack = ""
    listing = lack_of_any(item for item in snapshot.items if item.written.startswith("/sys/module/nvidia"))
    of_sys: Lack = "" if of_modules else listing
    return Reading(found, lambda name: of_sys if "." in name else lack)


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
    lacks: dict[str, Lack] = {
        "loaded module": lack_of_keys(snapshot, "nvidia-version"),
        "flavour": lack_of_keys(snapshot, "nvidia-version"),
        "module on disk": lack_of_keys(snapshot, *MODULE_KEYS),
        "libraries": lack_of_any(asked(snapshot, "ldconfig")),
        "nvidia-smi": lack_of_answer(asked(snapshot, "nvidia-smi", "nvidia-smi-q")),
    }
    return named(lacks, known)


_PACKAGE: Final = Pattern(
    r"^(?:nvidia|libnvidia|libcuda|cuda|libnv|xserver-xorg-video-nvidia|linux-(?:image|headers|modules|objects|signatures)|"
    r"kernel|containerd|docker|runc|podman|crun|cri-o|kube|k3s|rke2|dkms|gcc|shim|mokutil|datacenter-gpu|dcgm|nvlsm|imex|"
    r"mlnx|ofed|doca|mft|rdma|ibverbs|libibverbs|gdrcopy|golang-github-nvidia)"
)


def _packages(snapshot: Snapshot) -> Reading:
    known = snapshot.view(packages.packages)
    fact = snapshot.facts.packages
    found = {
        name: f"{one.version}{'' if one.is_installed else f' (state {one.state})'}{' held' if one.want == 'h' else ''}"
        for name, one in known.items()
        if _PACKAGE.match(name)
    }
    if isinstance(fact, Known):
        return whole(found)
    lists = asked(snapshot, "packages")
    lack = (lack_of_any(lists) if lists else lack_of_fact(snapshot, fact)) or "not asked"
    # A list of some tells of those alone that it would have shown.
    return Reading(found, lambda name: "" if name and packages.installed(snapshot, name) is False else lack)


_PACKAGED: Final = by_name(
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


# Configuration.


def _secure(snapshot: Snapshot) -> Reading:
    found = {}
    lacks: dict[str, Lack] = {"Secure Boot": lack_of_answer(asked(snapshot, "mokutil"))}
    for item in snapshot.of("mokutil"):
        if match := re.search(r"SecureBoot (enabled|disabled)", item.text):
            found["Secure Boot"] = match[1]
    for path, name in (("/sys/kernel/security/lockdown", "lockdown"),
                       ("/sys/module/module/parameters/sig_enforce", "signatures enforced")):  # fmt: skip
        file = snapshot.file(path)
        lacks[name] = lack_of(file)
        if file is not None and file.outcome == "ok" and not lacks[name]:
            chosen = re.search(r"\[(\w+)\]", file.text)
            found[name] = chosen[1] if chosen else file.text.strip()
    return named(lacks, found)


def _cgroups(snapshot: Snapshot) -> Reading:
    types = {"cgroup2fs": "version 2", "tmpfs": "version 1"}
    looks = [item for item in snapshot.items if item.source.words[:2] == ("stat", "-fc")]
    found = [item.text.strip() for item in looks if item.outcome == "ok" and not lack_of(item)]
    return part({"cgroups": types.get(found[0], found[0])}) if found else hidden(lack_of_answer(looks))


def _docker(snapshot: Snapshot) -> Reading:
    wanted = ("Server Version", "Default Runtime", "Runtimes", "Cgroup Driver", "Cgroup Version", "Storage Driver",
              "Live Restore Enabled", "Docker Root Dir", "Context", "CDI spec directories")  # fmt: skip
    answers = asked(snapshot, "docker-info")
    for item in answers:
        if item.outcome == "ok":
            found = {name: value for name, value in _colons(item.text) if name in wanted}
            values = {
                name: " ".join(sorted(value.split())) if name == "Runtimes" else value for name, value in found.items()
            }
            # Which rows there are hangs on the daemon's version, and all are there only where it answered.
            is_whole = "Server Version" in found and not item.source.only and not item.source.is_part
            return whole(values) if is_whole else part(values, "not asked" if values else "failed")
    return hidden(lack_of_command(answers))


_DOCKER: Final = by_name(
    (r"^(?:Runtimes|Default Runtime)", "likely", "containers get GPUs through the runtime named nvidia"),
    (r"^Cgroup", "likely", "under systemd's driver a daemon-reload may take GPUs away from running containers"),
    (r"^Context", "likely", "another docker daemon answers: Desktop's or a rootless one has no GPUs"),
    (r"", "possible", "docker runs otherwise"),
)


def _units(snapshot: Snapshot) -> Reading:
    known = {name: fact.value for name, fact in snapshot.facts.units.items() if isinstance(fact, Known)}
    values = {
        name: "failed" if unit.failed else "masked" if unit.masked else
        f"{'runs' if unit.state.active else 'stopped'}, {'enabled' if unit.state.enabled else 'not enabled'}"
        for name, unit in known.items() if unit.exists
    }  # fmt: skip
    lack: Lack = "" if known else lack_of_keys(snapshot, "units")

    def lacks(name: str) -> Lack:
        fact = snapshot.facts.unit(name)
        return lack if not name else "" if isinstance(fact, Known) else lack_of_keys(snapshot, fact.probe)

    return Reading(values, lacks)


_UNIT: Final = by_name(
    (r"fabricmanager|imex", "likely", "without it GPUs behind NVSwitch do not start CUDA (error 802)"),
    (r"persistenced", "possible", "without it every first use initialises the GPU anew"),
    (r"cdi-refresh", "possible", "it writes the CDI specification again after an upgrade"),
    (r"gridd", "likely", "a vGPU without its licence slows down and stops"),
    (r"^(?:docker|containerd|crio|kubelet|k3s|rke2|snap\.)", "likely", "it starts containers, or another does"),
    (r"", "background", "a unit around the GPU runs otherwise"),
)  # fmt: skip


def _cluster(snapshot: Snapshot) -> Reading:
    found: dict[str, str] = {}
    answers = asked(snapshot, "kubernetes-node")
    shown = [item for item in answers if item.outcome == "ok" and not lack_of(item)]
    for written, value in chain.from_iterable(_colons(item.text) for item in shown):
        name = written.strip("\"'")
        if name.startswith("nvidia.com/") and not name.endswith(("timestamp", ".product-name")):
            # Capacity and allocatable have one name each; the smaller tells.
            found[name] = _smaller(found.get(name, ""), value.strip("\"', "))
    if not shown:
        return hidden(lack_of_answer(answers))
    return whole(found) if any(_is_whole(item) for item in shown) else part(found)


def _smaller(one: str, other: str) -> str:
    """The smaller of two numbers; of words the first by the alphabet, so that their order does not matter."""
    if not one or not other:
        return one or other
    are_numbers = all(re.fullmatch(r"\d{1,18}", value) for value in (one, other))
    return min(one, other, key=int) if are_numbers else min(one, other)


def _is_whole(item: Item) -> bool:
    """Whether all of the node is told: ``describe``, or all of its object."""
    return not item.source.only and not item.source.is_part and ("Capacity:" in item.text or "capacity:" in item.text)


def _specification(snapshot: Snapshot) -> Reading:
    return in_folders(snapshot, ("/etc/cdi", "/var/run/cdi"), _of_version)


_IN_SPECIFICATION: Final = Pattern(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.[\d.]+\d)")


def _of_version(item: Item) -> Iterator[tuple[str, str]]:
    yield item.subject, ", ".join(sorted(set(_IN_SPECIFICATION.findall(item.text)))) or "no driver in it"


DRIVER: Final = Trait(
    "driver", "driver versions", ("driver", "libraries", "packages"), each(_versions),
    always("likely", "module, libraries and tools must be of one version"), ("NVRM version", "modinfo", "ldconfig"),
)  # fmt: skip
KERNEL: Final = Trait(
    "kernel", "kernel", ("kernel", "driver", "packages"), each(_kernel),
    always("likely", "a module is built for one kernel, and breaks against others"), ("uname",),
)  # fmt: skip
ARGUMENTS: Final = Trait(
    "arguments", "kernel arguments", ("kernel", "pci", "driver"), each(_arguments), _ARGUMENT,
    ("/proc/cmdline", "Command line:"),
)  # fmt: skip
MODULES: Final = Trait(
    "modules", "loaded modules", ("kernel", "driver"), each(_modules), _MODULE, ("/proc/modules", "lsmod")
)
PARAMETERS: Final = Trait(
    "parameters", "module parameters", ("kernel", "driver"), each(_parameters),
    always("likely", "NVIDIA's modules run with another parameter"), ("/parameters/", "/proc/driver/nvidia/params"),
)  # fmt: skip
SECURE: Final = Trait(
    "secure", "Secure Boot", ("kernel", "driver"), each(_secure),
    always("likely", "it decides which modules may load"), ("mokutil", "lockdown", "sig_enforce"),
)  # fmt: skip
PACKAGES: Final = Trait(
    "packages", "packages", ("packages", "driver", "toolkit", "runtime"), each(_packages), _PACKAGED,
    ("/var/lib/dpkg/status", "dpkg -l", "rpm -q"),
)  # fmt: skip
UNITS: Final = Trait("units", "services", ("fabric", "runtime", "driver", "kubernetes"), each(_units), _UNIT)
DOCKER: Final = Trait("docker", "docker", ("runtime",), each(_docker), _DOCKER, ("docker info",))
CDI: Final = Trait(
    "cdi", "CDI specifications", ("toolkit",), each(_specification),
    always("likely", "a specification names the files of one driver version; of another it is stale"),
    ("/etc/cdi/", "/run/cdi/"),
)  # fmt: skip
CGROUPS: Final = Trait(
    "cgroups", "cgroups", ("runtime", "toolkit"), each(_cgroups),
    always("likely", "device nodes are given to containers in another way, which old toolkits do not know"),
    ("stat -fc",),
)  # fmt: skip
KUBERNETES: Final = Trait(
    "kubernetes", "Kubernetes", ("kubernetes",), each(_cluster),
    always("likely", "the scheduler sees other GPUs, or other labels, on the node"), ("nvidia.com/",),
)  # fmt: skip
SYSTEM: Final = Trait(
    "system", "system", ("packages", "kernel"), each(_system),
    always("possible", "another system: packages and their names differ, too"),
)  # fmt: skip
