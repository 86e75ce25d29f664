"""The driver: which version is loaded, on disk, in the libraries, in the packages, and whether nvidia-smi works."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.catalog.conflicts import parts
from gpunode.change import PackageState
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import kernel, modules, packages
from gpunode.diagnoses.views.inventory import inventory
from gpunode.diagnoses.views.system import running_kernel
from gpunode.facts import kernels
from gpunode.facts.items import Item
from gpunode.facts.model import Known, LoadedDriver
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind
from gpunode.package_id import PackageId

VERSION: Final = r"\d{2,3}\.\d{1,3}(?:\.\d{1,3})?"
_API: Final = Pattern(
    rf"API mismatch: the client.{{0,90}}? version\s+(?P<client>{VERSION}).{{0,90}}? version\s+(?P<module>{VERSION})",
    re.IGNORECASE,
)
_LOADING: Final = Pattern(rf"loading NVIDIA UNIX (?P<what>.{{0,60}}?)\s+(?P<version>{VERSION})\b")
_NVML_LIBRARY: Final = Pattern(rf"NVML library version:\s*(?P<version>{VERSION})")
_SMI: Final = Pattern(rf"Driver Version\s*:\s*(?P<version>{VERSION})")
_CUDA: Final = Pattern(r"CUDA (?:UMD )?Version\s*:\s*(?P<version>\d+\.\d+)")
_SMI_VERSION: Final = Pattern(rf"^[ \t]*DRIVER version\s*:\s*(?P<version>{VERSION})", re.MULTILINE | re.IGNORECASE)
_LIBRARY: Final = Pattern(
    rf"lib(?:nvidia-ml|cuda|nvidia-ptxjitcompiler|GLX_nvidia|EGL_nvidia)\.so\.(?P<version>{VERSION})\b"
)
# Libraries that are on the node and not those that its programs load.
_ELSEWHERE: Final = Pattern(
    r"/compat/|/stubs/|/docker/|/containers/|/containerd/|/overlay|/run/nvidia/|/flatpak/|/wsl/|/snap/|i386|/lib32/"
)
_RUNNING: Final = Pattern(r"/lib/modules/(?P<kernel>[^/\s]+)/")

SmiState: TypeAlias = Literal["works", "no-devices", "no-driver", "mismatch", "missing", "failed"]
_STATES: Final[tuple[tuple[SmiState, Pattern], ...]] = (
    ("mismatch", Pattern(r"Driver/library version mismatch", re.IGNORECASE)),
    ("no-driver", Pattern(r"couldn.t communicate with the NVIDIA driver|Driver Not Loaded", re.IGNORECASE)),
    ("no-devices", Pattern(r"No devices were found", re.IGNORECASE)),
    ("missing", Pattern(
        r"nvidia-smi['‘’\": ]{0,3}\s*(?:command )?not found|nvidia-smi: No such file|executable file not found",
        re.IGNORECASE)),
    ("failed", Pattern(
        r"Failed to initialize NVML|Unable to determine the device handle|Unknown Error|GPU is lost|NVML: ",
        re.IGNORECASE)),
    ("works", Pattern(r"Driver Version\s*:|Persistence Mode\s*:|^GPU \d+: |\bMiB /\s*\d+MiB", re.MULTILINE)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """A version, and where it stands."""

    version: str
    citation: Citation
    is_open: bool | None = None


def loaded(snapshot: Snapshot) -> Seen | None:
    """The version of the loaded kernel module, and whether it is of the open modules; None where nothing tells."""
    return snapshot.view(_loaded)


def _loaded(snapshot: Snapshot) -> Seen | None:
    fact = snapshot.facts.loaded_driver
    if isinstance(fact, Known) and fact.value is not None:
        place = modules.told_version(snapshot)
        return Seen(fact.value.version, place, fact.value.open_module)
    for item in snapshot.items:
        if "NVRM version:" in item.text:
            for number, line in enumerate(item.lines, 1):
                if "NVRM version:" in line and (driver := _nvrm(line)):
                    return Seen(driver.version, cite(item, number), driver.open_module)
    if (file := snapshot.file("/sys/module/nvidia/version")) and re.fullmatch(VERSION, file.text.strip()):
        return Seen(file.text.strip(), cite(file, 1))
    return _from_log(snapshot) or _first(snapshot, _SMI_VERSION) or smi_version(snapshot)


def _nvrm(line: str) -> LoadedDriver | None:
    try:
        return kernels.loaded_driver(line[line.index("NVRM version:") :])
    except ValueError:
        return None


def _from_log(snapshot: Snapshot) -> Seen | None:
    if pair := api_mismatch(snapshot):
        return Seen(pair[1], pair[2])
    for message in reversed(kernel.said(snapshot, _LOADING)):
        if match := _LOADING.search(message.text):
            return Seen(match["version"], message.citation, "Open" in match["what"])
    return None


def api_mismatch(snapshot: Snapshot) -> tuple[str, str, Citation] | None:
    """The versions of a client and of the module that refused it, by the last such message; None without any."""
    return snapshot.view(_api_mismatch)


def _api_mismatch(snapshot: Snapshot) -> tuple[str, str, Citation] | None:
    for message in reversed(kernel.said(snapshot, _API)):
        if match := _API.search(message.text):
            return match["client"], match["module"], message.citation
    match = snapshot.match(_API)
    return (match["client"], match["module"], snapshot.said(_API)[0]) if match else None


def on_disk(snapshot: Snapshot) -> Seen | None:
    """The version of nvidia.ko that modprobe would load for the running kernel: by modinfo, else by DKMS."""
    return snapshot.view(_on_disk)


def _on_disk(snapshot: Snapshot) -> Seen | None:
    running = running_kernel(snapshot)
    for info in snapshot.view(modules.driver_info):
        place = _RUNNING.search(info.filename)
        elsewhere = bool(place and running and place["kernel"] != running)
        if re.match(VERSION, info.version) and not elsewhere:
            return Seen(info.version, info.citation, info.is_open)
    for row in snapshot.view(modules.dkms):
        is_built = row.state == "installed" and (not running or row.kernel == running)
        if row.module.startswith("nvidia") and is_built and re.match(VERSION, row.version):
            return Seen(row.version, row.citation)
    return None


def library(snapshot: Snapshot) -> Seen | None:
    """The version of the libraries that programs on the node load."""
    for item in snapshot.items:
        asks = item.where == "host" and item.kind in _ON_NODE
        if asks and (match := _NVML_LIBRARY.search(item.text)):
            said = api_mismatch(snapshot)
            # NVML leaves the last part away; the kernel heard the whole.
            whole = said[0] if said and said[0].startswith(f"{match['version']}.") else match["version"]
            return Seen(whole, cite(item, item.number_at(match.start())))
    if pair := api_mismatch(snapshot):
        return Seen(pair[0], pair[2])
    found = snapshot.view(libraries)
    return found[0] if len({one.version for one in found}) == 1 else None


_ON_NODE: Final[frozenset[Kind]] = frozenset({"nvidia-smi", "nvidia-smi-q", "text"})


def libraries(snapshot: Snapshot) -> tuple[Seen, ...]:
    """Every version in which the driver's libraries stand where the node's loader looks, each with one file."""
    found: dict[str, Seen] = {}
    for item in snapshot.of("ldconfig", "listing", "package-owner"):
        if item.where == "host":
            for number, line in enumerate(item.lines, 1):
                if (match := _LIBRARY.search(line)) and not _ELSEWHERE.search(line):
                    found.setdefault(match["version"], Seen(match["version"], cite(item, number)))
    return tuple(found.values())


def library_in_container(snapshot: Snapshot) -> Seen | None:
    """The version of the libraries that a program in a container loads."""
    for item in snapshot.items:
        if (item.where == "container" or item.kind in CONTAINED) and (match := _NVML_LIBRARY.search(item.text)):
            return Seen(match["version"], cite(item, item.number_at(match.start())))
    return None


# What is said there is said by a program in a container, or by the engine that starts it.
CONTAINED: Final[frozenset[Kind]] = frozenset({"container-run", "kubernetes-log", "kubernetes-pod"})


_KERNEL_SIDE: Final = (
    *("nvidia-dkms*", "nvidia-kernel-dkms", "nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms"),
    *("nvidia-kernel-source*", "linux-modules-nvidia-*", "linux-objects-nvidia-*", "kmod-nvidia*"),
    *("akmod-nvidia*", "dkms-nvidia*", "nvidia-open-dkms", "nvidia-lts", "nvidia", "nvidia-*-kmp-*"),
    *("nvidia-tesla-*kernel-dkms",),
)  # fmt: skip
_USER_SIDE: Final = (
    *("nvidia-utils*", "nvidia-compute-utils-*", "libnvidia-compute*", "libnvidia-ml1", "libcuda1", "nvidia-smi"),
    *("libnvidia-cfg1*", "libnvidia-gl-*", "libnvidia-common-*", "libnvidia-decode-*", "libnvidia-encode-*"),
    *("nvidia-driver-cuda*", "nvidia-driver-libs*", "nvidia-driver-NVML", "libnvidia-ml", "xorg-x11-drv-nvidia*"),
    *("nvidia-compute-*", "nvidia-driver-bin", "nvidia-alternative", "libnvidia-extra-*", "nvidia-tesla-*-smi"),
)  # fmt: skip
# They bring both sides in one version: NVIDIA's and the distributions' dependencies on them are exact.
_WHOLE: Final = (
    *("nvidia-driver", "nvidia-driver-[0-9]*", "nvidia-headless-*", "nvidia-open", "nvidia-open-[0-9]*"),
    *("cuda-drivers*", "nvidia-tesla-*driver"),
)  # fmt: skip


def kernel_side(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The installed packages that bring the kernel module, or its source."""
    return _of_driver(snapshot, _KERNEL_SIDE)


def user_side(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The installed packages that bring libraries and programs."""
    return _of_driver(snapshot, _USER_SIDE)


def whole(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The installed packages that depend on both sides."""
    return _of_driver(snapshot, _WHOLE)


def packaged(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The driver's packages, kernel and user side, in whatever state."""
    return tuple(
        one
        for one in packages.matching(snapshot, *_KERNEL_SIDE, *_USER_SIDE, *_WHOLE)
        if re.match(VERSION, one.upstream) and one.state != "c"
    )


def strayed(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The installed libraries that are of another version than the driver that answers, of which others are there.

    nvidia-smi needs one library alone: it works where all others do not fit.
    """
    return snapshot.view(_strayed)


def _strayed(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    node = smi_version(snapshot) if works(snapshot) else None
    if node is None:
        return ()
    there = {PackageId.of(name): one for name, one in snapshot.view(packages.packages).items() if one.is_installed}
    states = {package: PackageState(one.version) for package, one in there.items()}
    found = parts(states, int(node.version.partition(".")[0]))
    if node.version not in found.values():
        return ()  # they were listed at another time, or another driver is there beside them
    strays = (package for package, own in found.items() if own != node.version and package.name.startswith("lib"))
    return tuple(map(there.__getitem__, strays))


def at_two_versions(snapshot: Snapshot) -> bool:
    """Whether the node's own driver is at two versions; then all that CUDA says follows from that."""
    module, disk = loaded(snapshot), on_disk(snapshot)
    differs = module is not None and disk is not None and module.version != disk.version
    return differs or bool(strayed(snapshot)) or any(s == "mismatch" for s, _ in snapshot.view(smi))


def headless(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The installed packages of Ubuntu's that bring a driver without its programs."""
    return tuple(one for one in whole(snapshot) if one.name.startswith("nvidia-headless-"))


def _of_driver(snapshot: Snapshot, patterns: tuple[str, ...]) -> tuple[packages.Package, ...]:
    found = packages.matching(snapshot, *patterns)
    return tuple(one for one in found if re.match(VERSION, one.upstream) and one.is_installed)


def smi(snapshot: Snapshot) -> tuple[tuple[SmiState, Citation], ...]:
    """What each run of nvidia-smi on the node came to, or each program's word that NVML fails the same way."""
    items = snapshot.of("nvidia-smi", "nvidia-smi-q", "text")
    own = (item for item in items if item.where != "container")
    return tuple(state for item in own if (state := _state(item)) is not None)


# The probe that only looks whether it is there: a driver that is not loaded is not asked anything.
_PROGRAM: Final = "smi-binary"


def _state(item: Item) -> tuple[SmiState, Citation] | None:
    for state, pattern in _STATES:
        if match := pattern.search(item.text):
            return state, cite(item, item.number_at(match.start()))
    if item.key == _PROGRAM and item.outcome == "ok" and not item.text.strip():
        return "missing", stated(item.written, "not there", item.key)
    if item.outcome == "absent" and item.source.words[:1] == ("nvidia-smi",):
        return "missing", cite(item)
    asked = any(word.startswith("--query-") for word in item.source.words)
    if asked and item.outcome == "ok" and (match := _ROW.search(item.text)):
        return "works", cite(item, item.number_at(match.start()))
    return None


# A row of a query: whatever was asked, a number, a name or a switch stands in it.
_ROW: Final = Pattern(
    r"^(?:\d[^\n]{0,200}|[^\n]{0,120}\b(?:NVIDIA|Tesla|GeForce|Enabled|Disabled|Default)\b[^\n]*)$", re.MULTILINE
)


def smi_version(snapshot: Snapshot) -> Seen | None:
    """The driver's version in nvidia-smi's table or query."""
    for item in snapshot.of("nvidia-smi"):
        asked = "driver_version" in item.written and item.where == "host"
        if asked and (match := _CELL.search(item.text)):
            return Seen(match["version"], cite(item, item.number_at(match.start("version"))))
    return _first(snapshot, _SMI)


_CELL: Final = Pattern(rf"(?:^|,)[ \t]*(?P<version>{VERSION})[ \t]*(?:,|$)", re.MULTILINE)


def cuda_version(snapshot: Snapshot) -> Seen | None:
    """The CUDA version that the driver supports, as nvidia-smi shows it."""
    return _first(snapshot, _CUDA)


def _first(snapshot: Snapshot, pattern: Pattern) -> Seen | None:
    for item in snapshot.of("nvidia-smi", "nvidia-smi-q", "text"):
        if match := pattern.search(item.text):
            return Seen(match["version"], cite(item, item.number_at(match.start())))
    return None


def fails(snapshot: Snapshot) -> bool:
    """Whether the driver itself does not work on the node, so that no container could have a GPU."""
    return (bool(snapshot.view(smi)) and not works(snapshot)) or modules.loaded(snapshot, "nvidia") is False


def works(snapshot: Snapshot) -> bool:
    """Whether nvidia-smi answered on the node with a driver version or a list of GPUs."""
    return any(state == "works" for state, _ in snapshot.view(smi))


def hangs(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The questions to the driver that had no answer in time, where no other was answered since."""
    found = (item for item in snapshot.items if item.outcome == "timeout" and item.kind in _ASKS_DRIVER)
    return () if snapshot.view(inventory) is not None else tuple(cite(item) for item in found)


_ASKS_DRIVER: Final = frozenset({"nvidia-smi", "nvidia-smi-q", "nvml"})


# Of a GPU that works, nothing is unread: what a board lacks is N/A.
_ERR: Final = Pattern(r"^\|[^|\n]{0,80}\bERR!", re.MULTILINE)


def unread(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The rows in which nvidia-smi shows ERR! for what it asks a GPU itself."""
    items = (item for item in snapshot.of("nvidia-smi", "text") if item.where == "host")
    return tuple(citation for item in items for citation in lines_with(item, _ERR))


# None of them is in the kernel without nvidia.
_WITH_IT: Final = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")


def is_loaded(snapshot: Snapshot) -> bool | None:
    """Whether NVIDIA's module is in the running kernel; None where nothing tells."""
    if works(snapshot) or any(modules.loaded(snapshot, name) for name in _WITH_IT):
        return True
    by_table = modules.loaded(snapshot, "nvidia")
    if by_table is not None:
        return by_table
    file, own = snapshot.file("/proc/driver/nvidia/version"), snapshot.file("/sys/module/nvidia/version")
    if file is not None and file.is_seen:
        return "NVRM version" in file.text
    if own is not None and own.is_seen and not own.source.is_mixed:
        return re.fullmatch(VERSION, own.text.strip()) is not None
    return None
