"""View the driver: versions loaded, on disk, in libraries and packages, and the state of nvidia-smi."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from gpunode.catalog.conflicts import version_locked_packages
from gpunode.change import PackageState
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, lines_with
from gpunode.diagnoses.views import kernel, modules, packages
from gpunode.diagnoses.views.boards import nvml_inventory
from gpunode.diagnoses.views.system import running_kernel
from gpunode.facts import kernels
from gpunode.facts.items import COMMAND_NOT_FOUND_WORDS, EvidenceItem
from gpunode.facts.model import Known, LoadedDriver
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

VERSION: Final = r"\d{2,3}\.\d{1,3}(?:\.\d{1,3})?"
_API_MISMATCH_MESSAGE: Final = Pattern(
    rf"(?i)API mismatch: the client.{{0,90}}? version\s+(?P<client>{VERSION}).{{0,90}}? version\s+(?P<module>{VERSION})"
)
_MODULE_LOAD_MESSAGE: Final = Pattern(rf"loading NVIDIA UNIX (?P<what>.{{0,60}}?)\s+(?P<version>{VERSION})\b")
_NVML_LIBRARY: Final = Pattern(rf"NVML library version:\s*(?P<version>{VERSION})")
_SMI_TABLE_VERSION: Final = Pattern(rf"Driver Version\s*:\s*(?P<version>{VERSION})")
_SMI_CUDA_VERSION: Final = Pattern(r"CUDA (?:UMD )?Version\s*:\s*(?P<version>\d+\.\d+)")
_SMI_VERSION: Final = Pattern(rf"(?im)^[ \t]*DRIVER version\s*:\s*(?P<version>{VERSION})")
_DRIVER_LIBRARY_FILE: Final = Pattern(
    rf"lib(?:nvidia-ml|cuda|nvidia-ptxjitcompiler|GLX_nvidia|EGL_nvidia)\.so\.(?P<version>{VERSION})\b"
)
# Folders with driver libraries that the node's own programs do not load.
_FOLDER_OUTSIDE_LOADER_PATH: Final = Pattern(
    r"/compat/|/stubs/|/docker/|/containers/|/containerd/|/overlay|/run/nvidia/|/flatpak/|/wsl/|/snap/|i386|/lib32/"
)
_MODULE_PATH_KERNEL: Final = Pattern(r"/lib/modules/(?P<kernel>[^/\s]+)/")

SmiState: TypeAlias = Literal["works", "no-devices", "no-driver", "mismatch", "missing", "failed"]
_SMI_STATE_PATTERNS: Final[tuple[tuple[SmiState, Pattern], ...]] = (
    ("mismatch", Pattern(r"(?i)Driver/library version mismatch")),
    ("no-driver", Pattern(r"(?i)couldn.t communicate with the NVIDIA driver|Driver Not Loaded")),
    ("no-devices", Pattern(r"(?i)No devices were found")),
    ("missing", Pattern(
        rf"(?im)nvidia-smi['‘’\":： ]{{0,3}}\s*(?:{COMMAND_NOT_FOUND_WORDS}|not found)|not found: nvidia-smi"
        # An engine prints this about a container, with the quoted program after "exec:".
        r"|(?<!exec /usr/bin/)nvidia-smi: No such file|^(?![^\n]*\bexec: )[^\n]*executable file not found")),
    ("failed", Pattern(
        # Without messages that only Go programs print, such as the device plugin in its container.
        r"(?i)(?:Failed to initialize NVML(?!:)|NVML: (?!could not load NVML|ERROR_))"
        r"|Unable to determine the device handle|Unknown Error|GPU is lost")),
    ("works", Pattern(r"(?m)Driver Version\s*:|Persistence Mode\s*:|^GPU \d+: |\dMiB /\s*\d+MiB")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version and the line that shows it."""

    version: str
    citation: Citation
    is_open: bool | None = None


def loaded_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the version of the loaded kernel module, and whether it is an open one; None if unknown."""
    return snapshot.view(_find_loaded_version)


def _find_loaded_version(snapshot: Snapshot) -> SeenVersion | None:
    fact = snapshot.facts.loaded_driver
    if isinstance(fact, Known) and fact.value is not None:
        place = modules.loaded_version_line(snapshot)
        return SeenVersion(fact.value.version, place, fact.value.open_module)
    for item in snapshot.items:
        if "NVRM version:" in item.text:
            for number, line in enumerate(item.lines, 1):
                if "NVRM version:" in line and (driver := _parse_loaded_driver(line)):
                    return SeenVersion(driver.version, cite(item, number), driver.open_module)
    if (file := snapshot.file("/sys/module/nvidia/version")) and re.fullmatch(VERSION, file.text.strip()):
        return SeenVersion(file.text.strip(), cite(file, 1))
    return _loaded_version_in_log(snapshot) or _first_version(snapshot, _SMI_VERSION) or smi_version(snapshot)


def _parse_loaded_driver(line: str) -> LoadedDriver | None:
    try:
        return kernels.parse_nvrm_version(line[line.index("NVRM version:") :])
    except ValueError:
        return None


def _loaded_version_in_log(snapshot: Snapshot) -> SeenVersion | None:
    if pair := snapshot.view(_api_mismatch):
        return SeenVersion(pair[1], pair[2])
    for message in reversed(kernel.matching_messages(snapshot, _MODULE_LOAD_MESSAGE)):
        if match := _MODULE_LOAD_MESSAGE.search(message.text):
            return SeenVersion(match["version"], message.citation, "Open" in match["what"])
    return None


def _api_mismatch(snapshot: Snapshot) -> tuple[str, str, Citation] | None:
    """Return the versions of the last refused client and of the module, with the line; None without one."""
    for message in reversed(kernel.matching_messages(snapshot, _API_MISMATCH_MESSAGE)):
        if match := _API_MISMATCH_MESSAGE.search(message.text):
            return match["client"], match["module"], message.citation
    match = snapshot.match(_API_MISMATCH_MESSAGE)
    return (match["client"], match["module"], snapshot.matching_lines(_API_MISMATCH_MESSAGE)[0]) if match else None


def on_disk_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the version of nvidia.ko that modprobe would load for the running kernel: from modinfo, else DKMS."""
    return snapshot.view(_find_on_disk_version)


def _find_on_disk_version(snapshot: Snapshot) -> SeenVersion | None:
    running = running_kernel(snapshot)
    for info in snapshot.view(modules.driver_modinfo):
        place = _MODULE_PATH_KERNEL.search(info.filename)
        elsewhere = bool(place and running and place["kernel"] != running)
        if re.match(VERSION, info.version) and not elsewhere:
            return SeenVersion(info.version, info.citation, info.is_open)
    for row in snapshot.view(modules.dkms_rows):
        is_built = row.state == "installed" and (not running or row.kernel == running)
        if row.module.startswith("nvidia") and is_built and re.match(VERSION, row.version):
            return SeenVersion(row.version, row.citation)
    return None


def library_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the version of the libraries that programs on the node load."""
    for item in snapshot.items:
        asks = item.where == "host" and item.kind in _NODE_SOURCE_KINDS
        if asks and (match := _NVML_LIBRARY.search(item.text)):
            mismatch = snapshot.view(_api_mismatch)
            # NVML omits the last part of the version; the kernel logs all of it.
            whole = mismatch[0] if mismatch and mismatch[0].startswith(f"{match['version']}.") else match["version"]
            return SeenVersion(whole, cite(item, item.line_number_at(match.start())))
    if pair := snapshot.view(_api_mismatch):
        return SeenVersion(pair[0], pair[2])
    versions = snapshot.view(library_versions)
    return versions[0] if len({version.version for version in versions}) == 1 else None


_NODE_SOURCE_KINDS: Final[frozenset[SourceKind]] = frozenset({"nvidia-smi", "nvidia-smi-q", "text"})


def library_versions(snapshot: Snapshot) -> tuple[SeenVersion, ...]:
    """Return every version of the driver's libraries in the loader's path, each with one of its files."""
    versions: dict[str, SeenVersion] = {}
    for item in snapshot.items_of("ldconfig", "listing", "package-owner"):
        if item.where == "host":
            for number, line in enumerate(item.lines, 1):
                if (match := _DRIVER_LIBRARY_FILE.search(line)) and not _FOLDER_OUTSIDE_LOADER_PATH.search(line):
                    versions.setdefault(match["version"], SeenVersion(match["version"], cite(item, number)))
    return tuple(versions.values())


def container_library_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the version of the libraries that a program in a container loads."""
    for item in snapshot.items:
        if (item.where == "container" or item.kind in CONTAINER_KINDS) and (match := _NVML_LIBRARY.search(item.text)):
            return SeenVersion(match["version"], cite(item, item.line_number_at(match.start())))
    return None


# Output of these kinds comes from a program in a container, or from the engine that starts it.
CONTAINER_KINDS: Final[frozenset[SourceKind]] = frozenset({"container-run", "kubernetes-log", "kubernetes-pod"})


_KERNEL_SIDE_PACKAGES: Final = (
    *("nvidia-dkms*", "nvidia-kernel-dkms", "nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms"),
    *("nvidia-kernel-source*", "linux-modules-nvidia-*", "linux-objects-nvidia-*", "kmod-nvidia*"),
    *("akmod-nvidia*", "dkms-nvidia*", "nvidia-open-dkms", "nvidia-lts", "nvidia", "nvidia-*-kmp-*"),
    *("nvidia-tesla-*kernel-dkms",),
)  # fmt: skip
_USER_SPACE_PACKAGES: Final = (
    *("nvidia-utils*", "nvidia-compute-utils-*", "libnvidia-compute*", "libnvidia-ml1", "libcuda1", "nvidia-smi"),
    *("libnvidia-cfg1*", "libnvidia-gl-*", "libnvidia-common-*", "libnvidia-decode-*", "libnvidia-encode-*"),
    *("nvidia-driver-cuda*", "nvidia-driver-libs*", "nvidia-driver-NVML", "libnvidia-ml", "xorg-x11-drv-nvidia*"),
    *("nvidia-compute-*", "nvidia-driver-bin", "nvidia-alternative", "libnvidia-extra-*", "nvidia-tesla-*-smi"),
)  # fmt: skip
# They pull in both sides in one version: NVIDIA's and the distributions' dependencies are exact.
_METAPACKAGES: Final = (
    *("nvidia-driver", "nvidia-driver-[0-9]*", "nvidia-headless-*", "nvidia-open", "nvidia-open-[0-9]*"),
    *("cuda-drivers*", "nvidia-tesla-*driver"),
)  # fmt: skip


def kernel_packages(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """Return the installed packages that contain the kernel module or its source."""
    return _installed_matching(snapshot, _KERNEL_SIDE_PACKAGES)


def user_space_packages(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """Return the installed packages that contain libraries and programs."""
    return _installed_matching(snapshot, _USER_SPACE_PACKAGES)


def metapackages(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """Return the installed packages that depend on both sides."""
    return _installed_matching(snapshot, _METAPACKAGES)


def driver_packages(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """Return the driver's packages, kernel and user side, in any state."""
    return tuple(
        one
        for one in packages.matching_packages(snapshot, *_KERNEL_SIDE_PACKAGES, *_USER_SPACE_PACKAGES, *_METAPACKAGES)
        if re.match(VERSION, one.upstream) and one.state != "c"
    )


def stray_packages(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """Return installed libraries whose version differs from the working driver's.

    nvidia-smi needs only one library, so it works even if no other library fits.
    """
    node = smi_version(snapshot) if works(snapshot) else None
    if node is None:
        return ()
    there = {
        PackageId.of(name): one for name, one in snapshot.view(packages.listed_packages).items() if one.is_installed
    }
    states = {package: PackageState(one.version) for package, one in there.items()}
    found = version_locked_packages(states, int(node.version.partition(".")[0]))
    if node.version not in found.values():
        return ()  # they were listed at another time, or another driver is installed beside them
    strays = (package for package, own in found.items() if own != node.version and package.name.startswith("lib"))
    return tuple(map(there.__getitem__, strays))


def has_two_versions(snapshot: Snapshot) -> bool:
    """Return whether the node's own driver has two versions; then all CUDA errors follow from that."""
    module, disk = loaded_version(snapshot), on_disk_version(snapshot)
    differs = module is not None and disk is not None and module.version != disk.version
    return differs or bool(snapshot.view(stray_packages)) or any(s == "mismatch" for s, _ in snapshot.view(smi_states))


def headless_packages(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """Return Ubuntu's installed packages of a driver without programs."""
    return tuple(package for package in metapackages(snapshot) if package.name.startswith("nvidia-headless-"))


def _installed_matching(snapshot: Snapshot, patterns: tuple[str, ...]) -> tuple[packages.Package, ...]:
    found = packages.matching_packages(snapshot, *patterns)
    return tuple(package for package in found if re.match(VERSION, package.upstream) and package.is_installed)


def smi_states(snapshot: Snapshot) -> tuple[tuple[SmiState, Citation], ...]:
    """Return the result of each run of nvidia-smi on the node, or of programs with the same NVML failure."""
    items = snapshot.items_of("nvidia-smi", "nvidia-smi-q", "text")
    own = (item for item in items if item.where != "container")
    return tuple(state for item in own if (state := _smi_state(item)) is not None)


# This probe only checks that nvidia-smi exists, since a driver that is not loaded is not queried.
SMI_PRESENCE_KEY: Final = "smi-binary"


def _smi_state(item: EvidenceItem) -> tuple[SmiState, Citation] | None:
    for state, pattern in _SMI_STATE_PATTERNS:
        if match := pattern.search(item.text):
            return state, cite(item, item.line_number_at(match.start()))
    if item.key == SMI_PRESENCE_KEY and item.outcome == "ok" and not item.text.strip():
        return "missing", cite_fact(item.written, "not there", item.key)
    if item.outcome == "absent" and item.source.words[:1] == ("nvidia-smi",):
        return "missing", cite(item)
    asked = any(word.startswith("--query-") for word in item.source.words)
    if asked and item.outcome == "ok" and (match := _SMI_QUERY_ROW.search(item.text)):
        return "works", cite(item, item.line_number_at(match.start()))
    return None


# A row of a query: every possible field contains a number, a name or a switch.
_SMI_QUERY_ROW: Final = Pattern(
    r"(?m)^(?:\d[^\n]{0,200}|[^\n]{0,120}\b(?:NVIDIA|Tesla|GeForce|Quadro|Enabled|Disabled|Default)\b[^\n]*)$"
)


def smi_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the driver's version in nvidia-smi's table or query."""
    for item in snapshot.items_of("nvidia-smi"):
        asked = "driver_version" in item.written and item.where == "host"
        if asked and (match := _DRIVER_VERSION_CELL.search(item.text)):
            return SeenVersion(match["version"], cite(item, item.line_number_at(match.start("version"))))
    return _first_version(snapshot, _SMI_TABLE_VERSION)


_DRIVER_VERSION_CELL: Final = Pattern(rf"(?m)(?:^|,)[ \t]*(?P<version>{VERSION})[ \t]*(?:,|$)")


def cuda_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the CUDA version that the driver supports, as nvidia-smi shows it."""
    return _first_version(snapshot, _SMI_CUDA_VERSION)


def _first_version(snapshot: Snapshot, pattern: Pattern) -> SeenVersion | None:
    for item in snapshot.items_of("nvidia-smi", "nvidia-smi-q", "text"):
        if match := pattern.search(item.text):
            return SeenVersion(match["version"], cite(item, item.line_number_at(match.start())))
    return None


def is_broken(snapshot: Snapshot) -> bool:
    """Return whether the driver itself does not work on the node; then no container has a GPU."""
    return (bool(snapshot.view(smi_states)) and not works(snapshot)) or modules.is_module_loaded(
        snapshot, "nvidia"
    ) is False


def works(snapshot: Snapshot) -> bool:
    """Return whether nvidia-smi printed a driver version or a list of GPUs, on the node, else in a container."""
    states = snapshot.view(smi_states)
    return any(state == "works" for state, _ in states) if states else bool(snapshot.view(container_successes))


def container_successes(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence that a program in a container reached a GPU: nvidia-smi, NVIDIA's samples or validators."""
    kinds = {*CONTAINER_KINDS, "kubernetes"}
    items = (item for item in snapshot.items if item.was_answered and (item.where == "container" or item.kind in kinds))
    found = (
        (item, _CONTAINER_SUCCESS_LINE.search(item.text), _CONTAINER_FAILURE_LINE.search(item.text)) for item in items
    )
    return tuple(
        cite(item, item.line_number_at(success.start()))
        for item, success, failure in found
        # Below nvidia-smi's table, another program may fail.
        if success and not (failure and (failure.start() < success.start() or "Driver" not in success[0]))
    )


_CONTAINER_SUCCESS_LINE: Final = Pattern(
    r"(?m)\bDriver Version\s*:|^GPU \d+: |^[ \t]*Test PASSED[ \t]*$"
    r"|^[^\n]{0,60}\bnvidia-(?:cuda-validator-\S+\s+0/1\s+Completed|operator-validator-\S+\s+1/1\s+Running)"
)
# With several nodes one may be healthy.
_CONTAINER_FAILURE_LINE: Final = Pattern(
    r"(?i)\b(?:error|fail(?:ed|ure)?|unable(?! to find image)|could ?n[o']t|not found|CrashLoop\w*|Init:|Pending"
    r"|\w*BackOff|Terminating|ContainerCreating)\b|ERR!"
)


def unanswered_queries(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return driver queries that timed out, unless a later one was answered."""
    found = (item for item in snapshot.items if item.outcome == "timeout" and item.kind in _DRIVER_QUERY_KINDS)
    return () if snapshot.view(nvml_inventory) is not None else tuple(cite(item) for item in found)


_DRIVER_QUERY_KINDS: Final = frozenset({"nvidia-smi", "nvidia-smi-q", "nvml"})


# nvidia-smi reads every value of a working GPU; values that a board lacks are N/A.
_SMI_ERROR_ROW: Final = Pattern(r"(?m)^\|[^|\n]{0,80}\bERR!")


def smi_error_rows(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the rows in which nvidia-smi shows ERR! for a GPU."""
    items = (item for item in snapshot.items_of("nvidia-smi", "text") if item.where == "host")
    return tuple(citation for item in items for citation in lines_with(item, _SMI_ERROR_ROW))


# These modules depend on nvidia.
_DEPENDENT_MODULES: Final = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")


def is_loaded(snapshot: Snapshot) -> bool | None:
    """Return whether NVIDIA's module is loaded; None if unknown."""
    if works(snapshot) or any(modules.is_module_loaded(snapshot, name) for name in _DEPENDENT_MODULES):
        return True
    by_table = modules.is_module_loaded(snapshot, "nvidia")
    if by_table is not None:
        return by_table
    file, own = snapshot.file("/proc/driver/nvidia/version"), snapshot.file("/sys/module/nvidia/version")
    if file is not None and file.was_answered:
        return "NVRM version" in file.text
    if own is not None and own.was_answered and not own.source.is_mixed:
        return re.fullmatch(VERSION, own.text.strip()) is not None
    return None


def not_loaded_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence that the module is not loaded."""
    if is_loaded(snapshot) is not False:
        return ()
    if snapshot.items_of("lsmod"):
        return modules.lsmod_line(snapshot, "nvidia")
    known, file = snapshot.facts.modules, snapshot.file("/proc/driver/nvidia/version")
    if isinstance(known, Known):
        return (cite_fact("/proc/modules", "nvidia is not among them", known.probe),)
    return (cite(file),) if file is not None else ()


def installed_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence of an installed driver."""
    disk = on_disk_version(snapshot)
    return tuple(one.citation for one in (*kernel_packages(snapshot)[:1], *((disk,) if disk else ())))
