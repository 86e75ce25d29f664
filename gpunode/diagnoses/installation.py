"""The driver's installation: whether there is a driver at all, and whether its libraries and programs exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import LIBRARY_MISMATCH, MODULE_NOT_ACCEPTED
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule
from gpunode.diagnoses.remedies import can_run_setup, drain_node, install, make_fixed_remedy, manual_step, run_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_all, lines_with
from gpunode.diagnoses.views import cuda, driver, modules, packages, pci, virtualization
from gpunode.diagnoses.views.system import has_external_driver, is_debian_itself, package_manager
from gpunode.facts.items import (
    COMMAND_NOT_FOUND_WORDS,
    PACKAGE_NOT_FOUND_AFTER_NAME,
    PACKAGE_NOT_FOUND_BEFORE_NAME,
    EvidenceItem,
)
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern, parse_int
from gpunode.facts.sources import SourceKind

_DRIVER_LIBRARY_NOT_FOUND: Final = Pattern(
    r"(?i)(?:load library failed: )?lib(?:nvidia-ml|cuda)\.so(?:\.1)?: cannot open shared object"
    r"|couldn.t find libnvidia-ml\.so|could not load NVML library|Could not load dynamic library 'libcuda\.so"
    r"|NVML(?:Error_LibraryNotFound|_ERROR_LIBRARY_NOT_FOUND| Shared Library Not Found)|ERROR_LIBRARY_NOT_FOUND"
)
_DRIVER_MODULE_NOT_FOUND: Final = Pattern(
    r"modinfo: ERROR: Module (?:nvidia\S*) not found|modprobe: FATAL: Module (?:nvidia\S*) not found"
)
_NODE_SOURCE_KINDS: Final[frozenset[SourceKind]] = frozenset(
    {"nvidia-container-cli", "nvidia-smi", "nvidia-ctk", "unit-log", "unit-status", "journal", "text"}
)
_DRIVER_LIBRARY_NAME: Final = Pattern(r"lib(?:nvidia-ml|cuda)\.so")


def _missing_driver_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that show that the node itself lacks nvidia-smi or the libraries."""
    states = tuple(citation for state, citation in snapshot.view(driver.smi_states) if state == "missing")
    which = (item for item in snapshot.items_of("which") if item.subject == "nvidia-smi" and item.where == "host")
    states += tuple(cite(item) for item in which if item.outcome == "absent" or not item.text.strip())
    said = tuple(
        citation
        for item in snapshot.items
        if item.where == "host" and item.was_answered and _is_about_node_libraries(item)
        for citation in lines_with(item, _DRIVER_LIBRARY_NOT_FOUND)
    )
    return (*states, *said)


def _is_about_node_libraries(item: EvidenceItem) -> bool:
    """Return whether the item is about the node's libraries, which an engine's hook also searches."""
    if item.kind in {"container-run", "kubernetes-pod", "kubernetes"}:
        return "nvidia-container-cli" in item.text or "nvidia-container-runtime" in item.text
    return item.kind in _NODE_SOURCE_KINDS


def _kernel_module_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence of the kernel side: loaded, on disk, or packaged."""
    if modules.is_module_loaded(snapshot, "nvidia"):
        return modules.lsmod_line(snapshot, "nvidia")
    if (seen := driver.loaded_version(snapshot)) is not None:
        return (seen.citation,)
    disk = driver.on_disk_version(snapshot)
    found = tuple(one.citation for one in (*driver.kernel_packages(snapshot), *driver.headless_packages(snapshot)))
    return (*((disk.citation,) if disk else ()), *found)


def _has_libraries(snapshot: Snapshot) -> bool:
    """Return whether the driver's libraries are on the node."""
    return bool(driver.library_versions(snapshot)) or any(
        loaded_library.sort == "driver" for loaded_library in snapshot.view(cuda.loaded_libraries)
    )


def _package_lists_without_driver(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the unsuccessful searches for a driver: in the loader's cache, the module table and the packages."""
    for item in snapshot.items:
        if item.where != "host" or not item.was_answered:
            continue
        whole = not item.source.is_part and (not item.source.pattern or re.search(r"nvidia|cuda", item.source.pattern))
        if item.kind == "ldconfig" and whole and not _DRIVER_LIBRARY_NAME.search(item.text):
            yield cite_fact(item.written, "neither libnvidia-ml nor libcuda is among them", item.key)
        elif item.kind == "modinfo" and _DRIVER_MODULE_NOT_FOUND.search(item.text):
            yield cite(item, 1)
        elif item.kind == "packages" and whole and not any(packages.is_present_driver_row(line) for line in item.lines):
            yield cite_fact(item.written, "no package of a driver is among them", item.key)
    listed = [item for item in snapshot.items_of("lsmod") if item.where == "host"]
    if listed and modules.is_module_loaded(snapshot, "nvidia") is False:
        yield from modules.lsmod_line(snapshot, "nvidia")
    known = snapshot.facts.packages
    if isinstance(known, Known) and not driver.driver_packages(snapshot):
        yield cite_fact("/var/lib/dpkg/status", "no package of a driver is installed", known.probe)


_ENGINE_ELSEWHERE_WORDS: Final = Pattern(
    r"(?i)docker[- ]desktop|linuxkit|/snap/(?:bin/)?docker|minikube|/run/nvidia/driver|kind-control-plane|desktop-linux"
)
# The operator's driver pods.
_DRIVER_POD: Final = Pattern(r"(?m)(?:^|[\s/])nvidia-(?:gpu-)?driver-\S+\s+\d+/\d+\s")


def _two_failed_searches(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the places, at least two, that were searched for a driver without success."""
    tables = {item.key for item in snapshot.items_of("lsmod")}  # a module that is not loaded may be installed
    found = tuple(line for line in _package_lists_without_driver(snapshot) if line.key not in tables)
    return found if len({line.source for line in found}) > 1 else ()


def _driver_missing_by_two_programs(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines of programs, at least two, that miss nvidia-smi or the libraries."""
    found = snapshot.view(_DRIVER_MISSING)
    return found if len({line.key for line in found}) > 1 else ()


_FIRST_EMPTY_METAPACKAGE_BRANCH: Final = 615


def _empty_metapackages(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield cuda-drivers if it is the only package: since 615 it contains no driver (cupy's pull 10295)."""
    found = driver.metapackages(snapshot)
    are_empty = all(
        package.name == "cuda-drivers"
        and (parse_int(package.upstream.partition(".")[0]) or 0) >= _FIRST_EMPTY_METAPACKAGE_BRANCH
        for package in found
    )
    if are_empty and not (driver.kernel_packages(snapshot) or driver.user_space_packages(snapshot)):
        yield from (package.citation for package in found)


def _has_driver_traces(snapshot: Snapshot) -> bool:
    """Return whether the node has any trace of a driver."""
    installed = any(item.outcome == "ok" for item in snapshot.items_of("installer-log"))
    # An nvidia-smi that prints errors is installed.
    installed = installed or any(state in {"no-driver", "no-devices"} for state, _ in snapshot.view(driver.smi_states))
    has_packages = bool(driver.driver_packages(snapshot)) and not any(_empty_metapackages(snapshot))
    return installed or _has_libraries(snapshot) or has_packages


def _is_passed_through(snapshot: Snapshot) -> bool:
    """Return whether every GPU is passed through to virtual machines; such a host needs no driver."""
    owners = [(gpu.driver or "").replace("_", "-") for gpu in snapshot.view(pci.pci_gpus)]
    return bool(owners) and all(owner in {"vfio-pci", "pci-stub", "pciback", "xen-pciback"} for owner in owners)


_LIBCUDA_NOT_FOUND: Final = any_of(
    message_line(
        r"libcuda\.so(?:\.1)?['\"]?: cannot open shared object|libcuda\.so\.1: not found",
        "application", "text", "nvidia-container-cli", "unit-log",
    ),
    # The engine's hook searches the node; a library that a program in the container misses may be the image's fault.
    message_line(r"load library failed: libcuda\.so\.1: cannot open shared object", "container-run"),
)  # fmt: skip
_NVML_FOUND: Final = Pattern(r"/libnvidia-ml\.so\.\d")


def _listed_without_libcuda(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield a list of the driver's libraries on the node that has NVML's but not CUDA's."""
    for item in snapshot.items_of("nvidia-container-cli", "ldconfig"):
        # Not a fault in itself: NVML alone needs no libcuda. But a person who shows the list probably misses it.
        is_list = "list" in item.source.words or (item.kind == "ldconfig" and not is_examined_by_gpunode(snapshot))
        is_whole = is_list and item.where == "host" and item.source.lets_through("libcuda.so.1")
        if is_whole and not item.source.is_part and _NVML_FOUND.search(item.text) and "libcuda.so" not in item.text:
            yield cite_fact(item.written, "libnvidia-ml is among them and libcuda is not", item.key)


def _loader_cache_without_libcuda(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the loader's cache without libcuda, whatever else it lists."""
    for item in snapshot.items_of("ldconfig"):
        is_whole = item.where == "host" and not item.source.is_part and item.source.lets_through("libcuda.so.1")
        if is_whole and "libcuda.so" not in item.text:
            yield cite_fact(item.written, "libcuda.so.1 is not among them", item.key)


# Debian's packages of nvidia-smi and the two libraries.
_DPKG_PROGRAM_ROW: Final = Pattern(
    r"(?m)^ii[ \t]+(?P<name>nvidia-smi|libnvidia-ml1|libcuda1)(?::(?P<arch>\w+))?[ \t]+\S+[ \t]+(?P<listed>\w+)?"
)


def _packages_of_32_bit_only(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the installed packages of programs and libraries that exist for 32 bits only."""
    for item in snapshot.items_of("packages"):
        rows = find_all(item, _DPKG_PROGRAM_ROW) if item.where == "host" else ()
        found = [(row["name"], (row["arch"] or row["listed"]) == "i386", row.start()) for row in rows]
        native = {name for name, is_32_bit, _ in found if not is_32_bit}
        for name, _, start in found:
            if name not in native:
                yield cite(item, item.line_number_at(start))


def _runs_engine_in_vm(snapshot: Snapshot) -> bool:
    """Return whether the engine runs in a virtual machine or sandbox, on another system than the node's."""
    kinds = ("docker-info", "docker-version", "container-run", "which", "snap", "listing")
    asked = [item for item in snapshot.items if item.kind in kinds and item.outcome == "ok" and item.text.strip()]
    return any(
        _ENGINE_ELSEWHERE_WORDS.search(item.text) or _ENGINE_ELSEWHERE_WORDS.search(item.written) for item in asked
    )


# A user's script that calls nvidia-smi reports the failure with a line number.
_DRIVER_MISSING: Final = any_of(
    custom_sign(_missing_driver_lines), any_line(rf"\bline \d+: nvidia-smi: {COMMAND_NOT_FOUND_WORDS}", on_host=True)
)
_DRIVER_NOT_IN_LISTINGS: Final = custom_sign(_package_lists_without_driver)
_KERNEL_MODULE_PRESENT: Final = custom_sign(_kernel_module_lines)
_LIBRARIES_PRESENT: Final = predicate(_has_libraries, "the driver's libraries are on the node")
_SMI_WITHOUT_NVML: Final = message_line(r"NVIDIA-SMI couldn.t find libnvidia-ml")
_LIBCUDA_NOT_ON_NODE: Final = any_of(
    message_line(r"Could not locate libcuda\.so\.\d+\.\d", "nvidia-ctk"),
    custom_sign(_listed_without_libcuda),
    all_of(_LIBCUDA_NOT_FOUND, custom_sign(_loader_cache_without_libcuda)),
)
_LIBRARIES_32_BIT_ONLY: Final = custom_sign(_packages_of_32_bit_only)
_DRIVER_PROVIDED_ELSEWHERE: Final = predicate(
    lambda snapshot: has_external_driver(snapshot) or _runs_engine_in_vm(snapshot), "the driver is another system's"
)
_ALL_GPUS_PASSED_THROUGH: Final = predicate(_is_passed_through, "every GPU is kept for virtual machines")
# A GPU on the bus without a driver of NVIDIA's.
_GPU_WITHOUT_NVIDIA_DRIVER: Final = custom_sign(
    lambda node: (gpu.citation for gpu in node.view(pci.pci_gpus) if not (gpu.driver or "").startswith("nvidia"))
)
# The last message of the CUDA toolkit's installer, with the oldest driver that the toolkit accepts.
_TOOLKIT_WITHOUT_DRIVER: Final = Pattern(
    r"did not install the CUDA Driver\b(?:[^\n]*driver of version at least (?P<least>\d{3})\b)?"
)
_DRIVER_PACKAGE_NAME: Final = r"['‘\"]?(?:nvidia-driver(?:-\d{3}[\w-]*)?|nvidia-open|cuda-drivers)(?![\w*])[\w-]*"
# No configured archive has the driver's package, in the languages of apt.
_DRIVER_PACKAGE_UNKNOWN: Final = message_line(
    rf"{PACKAGE_NOT_FOUND_BEFORE_NAME}\s*{_DRIVER_PACKAGE_NAME}"
    rf"|{_DRIVER_PACKAGE_NAME}['’\"]? (?:{PACKAGE_NOT_FOUND_AFTER_NAME}|has no installation candidate)"
    rf"|Version '[^'\n]{{1,80}}' for {_DRIVER_PACKAGE_NAME}' was not found"
)
# Amazon's "standard" image of AL2023 has no driver; its "nvidia" image has.
_IMAGE_WITHOUT_DRIVER: Final = message_line(r"\bamazon-eks-node-al2023-\w+-standard\b")
_IMAGE_WITH_DRIVER: Final = message_line(r"\bamazon-eks-node-al2023-\w+-nvidia\b")
_TOOLKIT_INSTALLER_MESSAGE: Final = message_line(_TOOLKIT_WITHOUT_DRIVER.pattern)
# The installer's message, and a shell that suggests a package for nvidia-smi.
_DRIVER_NOT_INSTALLED_MESSAGE: Final = message_line(
    rf"{_TOOLKIT_WITHOUT_DRIVER.pattern}|Command 'nvidia-smi' not found, but can be installed"
)
_NO_GPU_ON_LISTED_BUS: Final = predicate(
    lambda snapshot: pci.is_bus_listed(snapshot) and not snapshot.view(pci.pci_gpus), "there is no GPU on the bus"
)


_NO_NVIDIA_MODULE: Final = Pattern(r"modinfo: ERROR: Module nvidia not found")


def _is_module_file_missing(snapshot: Snapshot) -> bool:
    return any(_NO_NVIDIA_MODULE.search(item.text) for item in snapshot.items_of("modinfo"))


def _is_driver_removed(snapshot: Snapshot) -> bool:
    """Return whether the loaded module is all that is left: its file and the driver's packages are gone."""
    is_file_missing = _is_module_file_missing(snapshot)
    are_listed = isinstance(snapshot.facts.packages, Known) or bool(snapshot.items_of("packages"))
    is_left = driver.driver_packages(snapshot) or driver.on_disk_version(snapshot)
    return is_file_missing and are_listed and not is_left


# If both are missing, the commands may have run in a container, or the driver may live in another root.
_PERHAPS_ANOTHER_ROOT: Final = predicate(
    lambda snapshot: _is_module_file_missing(snapshot) and not _is_driver_removed(snapshot),
    "the loaded module has no file here",
)
_MODULE_WITHOUT_PROGRAMS: Final = unless(
    all_of(_DRIVER_MISSING, _KERNEL_MODULE_PRESENT), symptoms.DRIVER_WORKS, _LIBRARIES_PRESENT
)


def _summarize_incomplete_driver(snapshot: Snapshot) -> str:
    if _is_driver_removed(snapshot):
        return "the driver was removed from this node, and its kernel module stays loaded until the next boot"
    if snapshot.view(_LIBCUDA_NOT_ON_NODE):
        return "the driver works but its libcuda.so.1 is not installed, so NVML answers but CUDA does not start"
    if snapshot.view(_LIBRARIES_32_BIT_ONLY):
        return "of the driver's programs and libraries only the packages for 32 bits are installed"
    return "the driver's kernel module is installed, but its libraries and programs are not"


def _summarize_missing_driver(snapshot: Snapshot) -> str:
    if snapshot.view(_DRIVER_PACKAGE_UNKNOWN) and not snapshot.view(_DRIVER_MISSING):
        return "no configured repository has the driver's package"
    return ""


def _install_driver(snapshot: Snapshot) -> Iterable[Fix]:
    text = "install the driver that fits this GPU, kernel and distribution"
    if snapshot.view(_DRIVER_PACKAGE_UNKNOWN):
        text = f"configure NVIDIA's repository, and {text}"
    lines = (_TOOLKIT_WITHOUT_DRIVER.search(line.line) for line in snapshot.matching_lines(_TOOLKIT_WITHOUT_DRIVER))
    if least := next((match["least"] for match in lines if match and match["least"]), None):
        text = f"{text}; the CUDA toolkit needs at least {least}"
    yield remedies.install_driver(snapshot, text)
    yield run_step("inspect", "check that it works", Shell("nvidia-smi"))


# Ubuntu's package names contain the branch; the module on disk shows it.
_INSTALL_LIBRARIES_OF_MODULE_BRANCH: Final = Shell(
    'v=$(modinfo -F version nvidia | cut -d. -f1); sudo apt-get install "nvidia-utils-$v" "libnvidia-compute-$v"'
)
_USER_SPACE_PACKAGES: Final = {
    "dnf": ("nvidia-driver-cuda", "nvidia-driver-cuda-libs"),
    "zypper": ("nvidia-compute-utils-G06",),
    "pacman": ("nvidia-utils",),
}


def _complete_driver(snapshot: Snapshot) -> Iterable[Fix]:
    if _is_driver_removed(snapshot):
        yield remedies.install_driver(snapshot, "install a driver, if this node is to have one")
        yield remedies.reboot_node("or reboot the node, and the module is gone, too", "it is to have none")
        return
    manager = package_manager(snapshot)
    if virtualization.is_vgpu(snapshot):
        yield remedies.install_guest_driver("reinstall the whole driver")
        return
    if manager == "apt":
        kernel = (*driver.kernel_packages(snapshot), *driver.headless_packages(snapshot))
        names = {re.sub(r".*-(\d{3}(?:-server)?)(?:-open)?(?:-.*)?$", r"\1", package.name) for package in kernel}
        branch = next((name for name in sorted(names) if name[:3].isdigit()), "")
        text = "install the user-space packages of the same branch"
        if branch:
            yield install(snapshot, text, f"nvidia-utils-{branch}", f"libnvidia-compute-{branch}")
        elif is_debian_itself(snapshot) or snapshot.view(_LIBRARIES_32_BIT_ONLY):
            yield install(snapshot, text, "nvidia-smi", "libcuda1")
        else:
            yield run_step("install", text, _INSTALL_LIBRARIES_OF_MODULE_BRANCH)
    else:
        yield install(snapshot, "install the user-space packages of the same version", *_USER_SPACE_PACKAGES[manager])
    yield run_step("rebuild", "refresh the loader's cache", Shell("sudo ldconfig"))
    if can_run_setup(snapshot):
        yield remedies.install_driver(snapshot, "or let gpunode complete the driver")


_SMI_PACKAGE: Final = Pattern(r"nvidia-smi|nvidia-utils-\d{3}(?:-server)?")


def _find_lost_smi(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof that nvidia-smi is missing although its package is installed and the driver is complete."""
    states = snapshot.view(driver.smi_states)
    lost = tuple(citation for _, citation in states) if all(state == "missing" for state, _ in states) else ()
    keys = {one.key for one in lost}
    if driver.SMI_PRESENCE_KEY not in keys or len(keys) == 1:
        return  # the file is missing, and no other program failed to find it elsewhere
    owner = next((one.name for one in driver.user_space_packages(snapshot) if _SMI_PACKAGE.fullmatch(one.name)), "")
    if lost and owner and driver.is_loaded(snapshot) and _has_libraries(snapshot):
        again = remedies.reinstall(snapshot, "install its package again", owner)
        what = f"nvidia-smi is gone, although the package {owner} is installed"
        yield Proof(what, lost, remedy=(again,), severity="warning")


# NVIDIA's installer, in its log and on the terminal; the operator's driver pods have a cause of their own.
_INSTALLER_STOPPED_BY_DRIVER: Final = message_line(
    r"An NVIDIA kernel module ['‘`][\w-]+['’] appears to (?:already be|be already) loaded"
    r"|You appear to be running an X server; please exit X",
    *("installer-log", "application", "text"),
)

RULES: Final = (
    Rule(
        cause="driver-not-installed",
        layer="driver",
        share=3,
        symptoms=(
            symptoms.NO_DRIVER,
            symptoms.NO_MODULE,
            symptoms.NO_NVML_LIBRARY,
            symptoms.NO_DEVICES,
            symptoms.CUDA_UNAVAILABLE,
            _DRIVER_MISSING,
        ),
        decisive=all_of(_DRIVER_MISSING, _DRIVER_NOT_IN_LISTINGS),
        typical=any_of(
            custom_sign(_two_failed_searches),
            custom_sign(_driver_missing_by_two_programs),
            all_of(_DRIVER_MISSING, _GPU_WITHOUT_NVIDIA_DRIVER),
            all_of(custom_sign(_empty_metapackages), any_of(_DRIVER_MISSING, symptoms.NO_MODULE)),
            unless(_DRIVER_PACKAGE_UNKNOWN, symptoms.REPOSITORY_REFUSED),
            _TOOLKIT_INSTALLER_MESSAGE,
            unless(all_of(_IMAGE_WITHOUT_DRIVER, symptoms.NO_NVML_LIBRARY), _IMAGE_WITH_DRIVER),
        ),
        summary=_summarize_missing_driver,
        context=_DRIVER_NOT_INSTALLED_MESSAGE,
        against=(
            *(
                symptoms.DRIVER_WORKS,
                symptoms.IN_CONTAINER,
                _KERNEL_MODULE_PRESENT,
                _SMI_WITHOUT_NVML,
                _DRIVER_PROVIDED_ELSEWHERE,
                _ALL_GPUS_PASSED_THROUGH,
                _NO_GPU_ON_LISTED_BUS,
            ),
            predicate(_has_driver_traces, "a driver is installed"),
            predicate(lambda snapshot: snapshot.contains(_DRIVER_POD), "the operator brings the driver"),
        ),
        look_at=(Shell("dpkg -l | grep nvidia"), Shell("modinfo nvidia")),
        remedy=_install_driver,
        explains=MODULE_NOT_ACCEPTED | {"fabric-manager-not-installed"},
    ),
    Rule(
        cause="driver-userspace-incomplete",
        layer="libraries",
        check=_find_lost_smi,
        decisive=any_of(_LIBCUDA_NOT_ON_NODE, unless(_MODULE_WITHOUT_PROGRAMS, _PERHAPS_ANOTHER_ROOT)),
        typical=any_of(unless(_SMI_WITHOUT_NVML, _LIBRARIES_PRESENT), _LIBRARIES_32_BIT_ONLY, _MODULE_WITHOUT_PROGRAMS),
        symptoms=(
            *(symptoms.NO_NVML_LIBRARY, _DRIVER_MISSING, _LIBCUDA_NOT_ON_NODE),
            symptoms.DRIVER_LIBRARIES_NOT_FOUND,
        ),
        against=(
            *(symptoms.IN_CONTAINER, _DRIVER_PROVIDED_ELSEWHERE, _ALL_GPUS_PASSED_THROUGH, _NO_GPU_ON_LISTED_BUS),
            predicate(lambda snapshot: snapshot.contains(_DRIVER_POD), "the operator brings the driver"),
        ),
        summary=_summarize_incomplete_driver,
        look_at=(Shell("ldconfig -p | grep -E 'libnvidia-ml|libcuda'"),),
        remedy=_complete_driver,
        explains=LIBRARY_MISMATCH,
    ),
    Rule(
        cause="installer-stopped-by-running-driver",
        layer="driver",
        disruption="restart-service",
        typical=_INSTALLER_STOPPED_BY_DRIVER,
        look_at=(Shell("sudo fuser -v /dev/nvidia*"), Shell("tail -n 20 /var/log/nvidia-installer.log")),
        against=(
            symptoms.DRIVER_WORKS,
            any_line(r"Installation of the [^\n]{0,200}is now complete"),
            predicate(lambda node: modules.is_module_loaded(node, "nvidia") is False, "the driver is not loaded"),
        ),
        remedy=make_fixed_remedy(
            drain_node(
                "stop what uses the GPU: the desktop (sudo systemctl isolate multi-user.target), jobs, containers, "
                "nvidia-persistenced"
            ),
            run_step("load", "unload the driver", remedies.UNLOAD_MODULES_COMMAND),
            manual_step("install", "then run the installer again"),
        ),
    ),
)
