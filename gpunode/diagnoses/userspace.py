"""Libraries and programs: is there a driver at all, which libcuda is loaded, and what was a program built for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog import cuda
from gpunode.diagnoses import remedies
from gpunode.diagnoses.addresses import DRIVER_GUIDE
from gpunode.diagnoses.chains import LIBRARY_MISMATCH, NOT_ACCEPTED
from gpunode.diagnoses.commands import at, command, edited, is_path
from gpunode.diagnoses.model import Citation, Confidence, Disruption, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, install, reboot, run, takes_gpunode
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import driver, frameworks, inside, kernel, loader, modules, packages, pci, smi_query
from gpunode.diagnoses.views.system import is_debians, is_wsl, package_manager
from gpunode.facts import library_path
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# --- is there a driver --------------------------------------------------------------------------------------------

_NO_LIBRARY: Final = Pattern(
    r"(?:load library failed: )?lib(?:nvidia-ml|cuda)\.so(?:\.1)?: cannot open shared object"
    r"|couldn.t find libnvidia-ml\.so|could not load NVML library|Could not load dynamic library 'libcuda\.so"
    r"|NVML(?:Error_LibraryNotFound|_ERROR_LIBRARY_NOT_FOUND| Shared Library Not Found)|ERROR_LIBRARY_NOT_FOUND",
    re.IGNORECASE,
)
_NO_MODULE: Final = Pattern(
    r"modinfo: ERROR: Module (?:nvidia\S*) not found|modprobe: FATAL: Module (?:nvidia\S*) not found"
)
_OTHER_HOUSE: Final = Pattern(
    r"docker[- ]desktop|linuxkit|/snap/(?:bin/)?docker|minikube|/run/nvidia/driver|kind-control-plane|desktop-linux",
    re.IGNORECASE,
)
_SMI_ALONE: Final = Pattern(r"NVIDIA-SMI couldn't find libnvidia-ml", re.IGNORECASE)
_LIBRARIES: Final = Pattern(r"lib(?:nvidia-ml|cuda)\.so")


def _presence(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whether no driver is there, or its kernel side alone."""
    if is_wsl(snapshot) or _is_elsewhere(snapshot):
        return
    if driver.works(snapshot) or snapshot.says(_CTK_ASKED, "nvidia-ctk") or _listed_without_libcuda(snapshot):
        yield from _without_libcuda(snapshot)
        return
    if _is_lent(snapshot):
        return
    missing = _missing(snapshot) or _missed_by_pods(snapshot)
    if not missing or (pci.is_listed(snapshot) and not snapshot.view(pci.gpus)):
        return
    if (bare := inside.without_gpu(snapshot, *missing)) is not None:
        yield "driver-userspace-incomplete", bare
        return
    kernel = _kernel_side(snapshot)
    if kernel:
        if not _has_libraries(snapshot):
            what = "the driver's kernel module is here, its libraries and programs are not"
            ruled_out = ("no driver at all: the module is there", "a container without the driver: the node lacks them")
            yield "driver-userspace-incomplete", Proof(what, (*missing, *kernel), ruled_out=ruled_out)
        return
    installed = any(item.outcome == "ok" for item in snapshot.of("installer-log"))
    if _has_libraries(snapshot) or driver.packaged(snapshot) or installed:
        return
    absent = _absent(snapshot)
    kinds = len(absent) + len({citation.source for citation in missing})
    # nvidia-smi that complains is installed: of a driver that is not there at all it would not be either.
    if kinds >= 2 and (absent or not snapshot.says(_SMI_ALONE)):
        what = "no NVIDIA driver is installed on this node: neither its module nor its libraries are there"
        disruption: Disruption | None = "reboot" if _nouveau_has_it(snapshot) else None
        is_sure: Confidence = "certain" if absent else "likely"
        yield "driver-not-installed", Proof(what, (*missing, *absent), is_sure, disruption=disruption)
    else:
        question = "is a driver installed on the node, and only its libraries or its module missing?"
        look = "nvidia-smi and lsmod on the node itself, and dpkg -l '*nvidia*' or rpm -qa '*nvidia*'"
        yield "driver-not-installed", Doubt(question, look, missing, ("driver-userspace-incomplete",))


def _nouveau_has_it(snapshot: Snapshot) -> bool:
    """Whether the kernel's own driver has a GPU, which it keeps as long as this boot lasts."""
    return bool(modules.loaded(snapshot, "nouveau")) or any(gpu.driver == "nouveau" for gpu in snapshot.view(pci.gpus))


def _is_lent(snapshot: Snapshot) -> bool:
    """Whether every GPU is kept for virtual machines: a host that only lends its GPUs has no driver for them."""
    owners = [(gpu.driver or "").replace("_", "-") for gpu in snapshot.view(pci.gpus)]
    return bool(owners) and all(owner in {"vfio-pci", "pci-stub", "pciback", "xen-pciback"} for owner in owners)


_NO_LIBCUDA: Final = Pattern(r"libcuda\.so(?:\.1)?['\"]?: cannot open shared object|libcuda\.so\.1: not found")


# nvidia-ctk has asked the driver for its version, and looks for its libraries on the node.
_CTK_ASKED: Final = Pattern(r"Using driver version \d")
_CTK_NO_LIBCUDA: Final = Pattern(r"Could not locate libcuda\.so\.\d+\.\d")
_HOOK_NO_LIBCUDA: Final = Pattern(r"load library failed: libcuda\.so\.1: cannot open shared object")


def _without_libcuda(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """NVML works and CUDA's library is not there: it is a package of its own in Debian and on rpm systems."""
    said = snapshot.said(_NO_LIBCUDA, "application", "text", "nvidia-container-cli", "unit-log")
    # The engine's hook looks on the node; what a program in the container misses may be the image's own fault.
    said = (*said, *snapshot.said(_HOOK_NO_LIBCUDA, "container-run"))
    caches = [item for item in snapshot.of("ldconfig") if item.where == "host" and not item.source.is_part]
    shown = [item for item in caches if not item.source.only or re.search(item.source.only, "libcuda.so.1")]
    unlisted = tuple(stated(item.written, "libcuda.so.1 is not among them", item.key) for item in shown)
    lacking = packages.installed(snapshot, "libcuda1") is False and bool(packages.matching(snapshot, "nvidia-smi"))
    sought = [
        line
        for item in snapshot.of("nvidia-ctk")
        if not any("-root" in word for word in item.source.words)
        for line in lines_with(item, _CTK_NO_LIBCUDA)
    ]
    sought += _listed_without_libcuda(snapshot)
    if sought or (said and (lacking or (unlisted and not any("libcuda.so" in item.text for item in shown)))):
        what = "the driver works and its libcuda.so.1 is not installed, so NVML answers and CUDA does not start"
        yield "driver-userspace-incomplete", Proof(what, (*said, *sought, *unlisted))


_NVML_FOUND: Final = Pattern(r"^/\S+/libnvidia-ml\.so\.\d", re.MULTILINE)


def _listed_without_libcuda(snapshot: Snapshot) -> list[Citation]:
    """The whole lists of what the toolkit finds of the driver on the node, which have NVML's library and not CUDA's."""
    return [
        stated(item.written, "libnvidia-ml is among them and libcuda is not", item.key)
        for item in snapshot.of("nvidia-container-cli")
        if "list" in item.source.words and not item.source.only and not item.source.is_part
        if _NVML_FOUND.search(item.text) and "libcuda.so" not in item.text
    ]


def _is_elsewhere(snapshot: Snapshot) -> bool:
    """Whether the engine runs in a machine or a confinement of its own, which sees another system than the node's."""
    kinds = ("docker-info", "docker-version", "container-run", "which", "snap", "listing")
    asked = [item for item in snapshot.items if item.kind in kinds and item.outcome == "ok" and item.text.strip()]
    return any(_OTHER_HOUSE.search(item.text) or _OTHER_HOUSE.search(item.written) for item in asked)


def _missing(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines by which the node itself lacks nvidia-smi or the libraries."""
    states = tuple(citation for state, citation in snapshot.view(driver.smi) if state == "missing")
    which = (item for item in snapshot.of("which") if item.subject == "nvidia-smi" and item.where == "host")
    states += tuple(cite(item) for item in which if item.outcome == "absent" or not item.text.strip())
    said = tuple(
        citation
        for item in snapshot.items
        if item.where == "host" and item.is_seen and _asks_on_node(item)
        for citation in lines_with(item, _NO_LIBRARY)
    )
    return (*states, *said)


# A driver in a container has neither package nor module file on the node.
_OF_OPERATOR: Final = Pattern(r"nvidia-driver-daemonset|gpu-operator|/run/nvidia/driver|k8s-driver-manager")


def _missed_by_pods(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines by which a pod lacks the libraries, where the node with a GPU has neither a module nor a package."""
    sought = [item for item in snapshot.of("modinfo") if item.where == "host" and _NO_MODULE.search(item.text)]
    # A pod may lack what its node has, and on a node without a GPU it is meant to.
    if not sought or len(_absent(snapshot)) < 2 or not pci.has_gpu(snapshot) or snapshot.says(_OF_OPERATOR):
        return ()
    return snapshot.said(_NO_LIBRARY, "kubernetes-log")


def _asks_on_node(item: Item) -> bool:
    """Whether what it says of libraries is about the node: the engine's hook looks there, a program inside does not."""
    if item.kind in {"container-run", "kubernetes-pod", "kubernetes"}:
        return "nvidia-container-cli" in item.text or "nvidia-container-runtime" in item.text
    return item.kind in {
        "nvidia-container-cli",
        "nvidia-smi",
        "nvidia-ctk",
        "unit-log",
        "unit-status",
        "journal",
        "text",
    }


def _kernel_side(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that the kernel side is here: it is loaded, on disk, or packaged."""
    if modules.loaded(snapshot, "nvidia"):
        return modules.lsmod_line(snapshot, "nvidia")
    if (seen := driver.loaded(snapshot)) is not None:
        return (seen.citation,)
    disk = driver.on_disk(snapshot)
    found = tuple(one.citation for one in (*driver.kernel_side(snapshot), *driver.headless(snapshot)))
    return (*((disk.citation,) if disk else ()), *found)


def _has_libraries(snapshot: Snapshot) -> bool:
    return bool(driver.libraries(snapshot)) or any(one.sort == "driver" for one in snapshot.view(loader.loaded))


def _absent(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What was looked for and is not there: libraries in the loader's cache, the module, packages."""
    return tuple(_looked_for(snapshot))


def _looked_for(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.where != "host" or not item.is_seen:
            continue
        whole = not item.source.is_part and (not item.source.only or re.search(r"nvidia|cuda", item.source.only))
        if item.kind == "ldconfig" and whole and not _LIBRARIES.search(item.text):
            yield stated(item.written, "neither libnvidia-ml nor libcuda is among them", item.key)
        elif item.kind == "modinfo" and _NO_MODULE.search(item.text):
            yield cite(item, 1)
        elif item.kind == "packages" and whole and not any(packages.is_drivers_row(line) for line in item.lines):
            yield stated(item.written, "no package of a driver is among them", item.key)
    listed = [item for item in snapshot.of("lsmod") if item.where == "host"]
    if listed and modules.loaded(snapshot, "nvidia") is False:
        yield from modules.lsmod_line(snapshot, "nvidia")
    known = snapshot.facts.packages
    if isinstance(known, Known) and not driver.packaged(snapshot):
        yield stated("/var/lib/dpkg/status", "no package of a driver is installed", known.probe)


def _install_driver(snapshot: Snapshot) -> Iterable[Fix]:
    yield remedies.driver(snapshot, "install the driver that this GPU, kernel and distribution take")
    if _nouveau_has_it(snapshot):
        yield reboot("reboot: until then nouveau keeps the GPU")
    yield run("inspect", "see that it works", "nvidia-smi")


# Ubuntu's packages have the branch in their names; the module on disk tells it.
_OF_MODULES_BRANCH: Final = (
    'v=$(modinfo -F version nvidia | cut -d. -f1); sudo apt-get install "nvidia-utils-$v" "libnvidia-compute-$v"'
)
_USER_SIDE: Final = {
    "dnf": ("nvidia-driver-cuda", "nvidia-driver-cuda-libs"),
    "zypper": ("nvidia-compute-utils-G06",),
    "pacman": ("nvidia-utils",),
}


def _complete_driver(snapshot: Snapshot) -> Iterable[Fix]:
    manager = package_manager(snapshot)
    if manager == "apt":
        kernel = (*driver.kernel_side(snapshot), *driver.headless(snapshot))
        names = {re.sub(r".*-(\d{3}(?:-server)?)(?:-open)?(?:-.*)?$", r"\1", one.name) for one in kernel}
        branch = next((name for name in sorted(names) if name[:3].isdigit()), "")
        text = "install the user side of the same branch"
        if branch:
            yield install(snapshot, text, f"nvidia-utils-{branch}", f"libnvidia-compute-{branch}")
        elif is_debians(snapshot):
            yield install(snapshot, text, "nvidia-smi", "libcuda1")
        else:
            yield run("install", text, _OF_MODULES_BRANCH)
    else:
        yield install(snapshot, "install the user side of the same version", *_USER_SIDE[manager])
    yield run("rebuild", "let the loader find it", "sudo ldconfig")
    if takes_gpunode(snapshot):
        yield remedies.driver(snapshot, "or let gpunode make the driver whole")


# --- is it new enough ---------------------------------------------------------------------------------------------

_REQUIRES: Final = Pattern(r"unsatisfied condition: (?P<what>(?:cuda|driver|brand)[^\n]{0,80})")
_FIRST_DOCKER: Final = Pattern(r"unsupported CUDA version: driver (?P<has>[1-9]\d*\.\d) < image (?P<needs>\d+\.\d)")
_TOO_OLD: Final = Pattern(r"NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)")
_BANNER: Final = Pattern(
    r"built for NVIDIA Driver Release (?P<needs>[\d.]+) or later, but\s+version (?P<has>[\d.]+) was detected"
    r"(?:\s+and compatibility mode is (?P<mode>\w+))?"
)
_INSUFFICIENT: Final = Pattern(
    r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
    r"|cudart failed to initialize: 35"
    r"|driver is too old|CUDA driver version too old|driver too old"
)
_NEWER_CALL: Final = Pattern(
    r"API call is not supported in the installed CUDA driver|cudaErrorCallRequiresNewerDriver"
    r"|PTX was compiled with an unsupported toolchain|(?:CUDA_ERROR|cudaError)_?UnsupportedPtxVersion"
    r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
)
_804: Final = Pattern(
    r"[Ee]rror:? 804\b|\(804 vs\. 0\)|returned 804|forward compatibility was attempted on non supported HW"
    r"|cudaErrorCompatNotSupportedOnDevice|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"
)


def _too_old(snapshot: Snapshot) -> Iterator[Verdict]:
    if _mismatches(snapshot):
        return
    plain = ((one, snapshot.match(one)) for one in (_REQUIRES, _FIRST_DOCKER, _TOO_OLD))
    pattern, told = next(((one, match) for one, match in plain if match is not None), (None, None))
    banner = snapshot.match(_BANNER)
    has = _supported(snapshot)
    if pattern is not None and told is not None:
        yield Proof(_too_old_summary(snapshot, told), (*snapshot.said(pattern), *_version_lines(snapshot)))
    elif banner is not None and banner["mode"] == "UNAVAILABLE" and not snapshot.says(_804):
        what = f"the image was built for driver {banner['needs']} or later, the node's is {banner['has']}"
        yield Proof(what, (*snapshot.said(_BANNER), *_version_lines(snapshot)))
    elif said := (snapshot.said(_INSUFFICIENT) or snapshot.said(_NEWER_CALL)):
        yield from _insufficient(snapshot, has, said)


def _insufficient(snapshot: Snapshot, has: cuda.Version | None, said: tuple[Citation, ...]) -> Iterator[Verdict]:
    """CUDA says this of an old driver, and of one that is not there: only the versions tell."""
    needs = snapshot.view(frameworks.runtimes)
    too_new = [one for one in needs if has is not None and not _starts_on(snapshot, one.cuda, has)]
    if too_new:
        one = too_new[0]
        what = f"the program was built with CUDA {_dotted(one.cuda)}, the node's driver supports {_dotted(has or ())}"
        yield Proof(what, (*said, one.citation, *_version_lines(snapshot)))
    elif has is not None and not needs and _sees_driver(snapshot, said):
        what = f"the program was built with a newer CUDA than {_dotted(has)}, which the node's driver supports"
        yield Proof(what, (*said, *_version_lines(snapshot)), "likely")
    elif not _missing(snapshot) and not any(state != "works" for state, _ in snapshot.view(driver.smi)):
        question = "is the driver older than the program's CUDA needs, or did the program not get the driver at all?"
        look = "nvidia-smi (its CUDA Version) on the node and in the container, and the image's CUDA version"
        yield Doubt(question, look, said, ("driver-not-installed", "nvidia-runtime-not-registered"))


def _sees_driver(snapshot: Snapshot, said: tuple[Citation, ...]) -> bool:
    """Whether the program has a driver before it: on the node one that works; in a pod it may have got none."""
    if snapshot.says(_NEWER_CALL):
        return True
    pods = {item.key for item in snapshot.items if item.kind in {"kubernetes-log", "kubernetes-pod"}}
    return driver.works(snapshot) and not all(citation.key in pods for citation in said)


def _supported(snapshot: Snapshot) -> cuda.Version | None:
    """The newest CUDA that the node's driver supports."""
    if shown := driver.cuda_version(snapshot):
        return cuda.parts(shown.version)
    version = driver.loaded(snapshot)
    return cuda.supported_by(version.version) if version else None


def _starts_on(snapshot: Snapshot, wanted: cuda.Version, has: cuda.Version) -> bool:
    """Whether a program of that CUDA starts on the driver: from 11.0 on, the same major version is enough."""
    if wanted <= has:
        return True
    release, version = cuda.find(wanted), driver.loaded(snapshot)
    same_major = wanted[0] == has[0] and wanted[0] >= 11
    if release is None or version is None or snapshot.says(_NEWER_CALL):
        return same_major and not snapshot.says(_NEWER_CALL)
    return same_major and cuda.parts(version.version)[0] >= release.min_branch


def _too_old_summary(snapshot: Snapshot, match: re.Match[str]) -> str:
    found = match.groupdict()
    has = _supported(snapshot)
    mine = f"; the node's driver supports CUDA {_dotted(has)}" if has else ""
    if what := found.get("what"):
        return f"the image asks for {what.split(',')[0].strip()}{mine}"
    if number := found.get("found"):
        shown = int(number)
        mine = f"CUDA {shown // 1000}.{shown % 1000 // 10}"
        return f"the program was built with a newer CUDA than {mine}, which the node's driver supports"
    return f"the image needs CUDA {found['needs']}, the node's driver supports {found['has']}"


def _dotted(version: cuda.Version) -> str:
    return ".".join(map(str, version))


def _version_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    seen = driver.cuda_version(snapshot) or driver.loaded(snapshot)
    return (seen.citation,) if seen else ()


def _newer_driver(snapshot: Snapshot) -> Iterable[Fix]:
    release = _wanted(snapshot)
    least = f" to {release.driver} or later" if release else ""
    yield from _another_driver(snapshot, f"upgrade the driver{least}")
    yield reboot()
    has = _supported(snapshot)
    up_to = f" for CUDA {_dotted(has)} or older" if has else " for an older CUDA"
    yield by_hand("application", f"or use an image{up_to}")


_NUMBER: Final = Pattern(r"cuda ?>= ?(?P<cuda>\d+\.\d+)|image (?P<image>\d+\.\d+)")


def _another_driver(snapshot: Snapshot, text: str) -> Iterator[Fix]:
    """A driver whose CUDA is newer: that of another branch, where nobody says which CUDA is enough."""
    release, banner = _wanted(snapshot), snapshot.match(_BANNER)
    asked = release.driver if release else banner["needs"] if banner else ""
    least = int(asked.partition(".")[0]) if asked else 0
    yield from remedies.newer_driver(snapshot, text, least=least, beyond=not asked, here=_told(snapshot))


def _told(snapshot: Snapshot) -> str:
    """The node's driver as the program was told it, or the first one with the CUDA that it was told; else empty."""
    if banner := snapshot.match(_BANNER):
        return banner["has"]
    found = snapshot.match(_TOO_OLD)
    number = int(found["found"]) if found else 0
    known = cuda.find((number // 1000, number % 1000 // 10)) if number else None
    return known.driver if known and driver.loaded(snapshot) is None else ""


def _wanted(snapshot: Snapshot) -> cuda.CudaRelease | None:
    if match := snapshot.match(_NUMBER):
        return cuda.find(cuda.parts(match["cuda"] or match["image"]))
    versions = [one.cuda for one in snapshot.view(frameworks.runtimes)]
    return cuda.find(max(versions)) if versions else None


# --- which libcuda ------------------------------------------------------------------------------------------------

_STUB_SAID: Final = Pattern(
    r"CUDA driver is a stub library|cudaErrorStubLibrary|CUDA_ERROR_STUB_LIBRARY|CudaAPIError: \[34\]"
    r"|CUDA error: error code 34"
    r"|lib(?:cuda|nvidia-ml)\.so[\w.]*: (?:file too short|invalid ELF header)"
    r"|Linked to libnvidia-ml library at wrong path|libnvidia-ml\.so in GDK package is a stub library"
)
_EMPTY: Final = Pattern(r"file too short|invalid ELF header")
_STUB_PATH: Final = Pattern(r"/\S{0,300}/stubs/lib(?:cuda|nvidia-ml)\.so\S*|/\S{0,300}/lib(?:64)?/stubs\b")


def _libcuda(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which library stands before the driver's: a stub, a copy of another driver, or CUDA's compatibility package."""
    found = snapshot.view(loader.loaded)
    front = snapshot.view(loader.folders)
    stub_said = snapshot.said(_STUB_SAID)
    places: tuple[loader.Library | loader.Folder, ...] = (*found, *front)
    stubs = [one for one in places if one.sort == "stub"]
    if stub_said or any(isinstance(one, loader.Library) for one in stubs):
        lines = (*(one.citation for one in stubs), *snapshot.said(_STUB_PATH))
        where = stubs[0].path if stubs else "the CUDA toolkit's stubs folder"
        what = f"programs load the stub of {where}, which is there for linking only, and not the driver's library"
        if not stubs and snapshot.says(_EMPTY):
            what = "programs load an empty or broken copy of the driver's library, left where the loader looks first"
        yield "library-path-shadows-libcuda", Proof(what, (*stub_said, *dict.fromkeys(lines)))
        return
    if shadow := _shadow(snapshot):
        yield "library-path-shadows-libcuda", shadow
        return
    if snapshot.says(_804):
        if not _mismatches(snapshot):
            yield "cuda-compat-not-supported-hw", _compat_not_here(snapshot)
        return
    yield from _other_copy(snapshot, places)


def _shadow(snapshot: Snapshot) -> Proof | None:
    """A library in a folder of LD_LIBRARY_PATH that is a stub, or of another version than the loaded driver's."""
    node = driver.loaded(snapshot)
    for folder, target, line in loader.in_front(snapshot):
        match = _VERSIONED.search(target)
        differs = match is not None and node is not None and match["version"] != node.version
        is_stub = "stub" in (folder.sort, loader.sort_of(target))
        if folder.sort == "compat" or not (is_stub or differs):
            continue
        of = "a stub, which is there for linking only" if is_stub else f"of {match['version'] if match else ''}"
        where = f" of {folder.set_in}" if folder.set_in else " that is set"
        what = f"programs with the LD_LIBRARY_PATH{where} load the driver's library from {folder.path}: it is {of}"
        cited = (folder.citation, line, *((node.citation,) if node and differs else ()))
        # A shell's program sets it for those alone who run it.
        return Proof(what, cited, "likely" if library_path.is_shell_program(folder.set_in) else "certain")
    return None


_VERSIONED: Final = Pattern(rf"\.so\.(?P<version>{driver.VERSION})$")
_LIBCUDA: Final = Pattern(rf"libcuda\.so\.(?P<version>{driver.VERSION})")


_DRIVEN: Final = Pattern(rf"Driver Version\s*:\s*(?P<version>{driver.VERSION})")


def _listed_compat(snapshot: Snapshot) -> Iterator[Citation]:
    """Where a command that looks into a folder of compatibility libraries shows libcuda of another driver."""
    node = driver.loaded(snapshot)
    for item in snapshot.items:
        if "/compat" not in item.written:
            continue
        told = _DRIVEN.search(item.text)
        if version := node.version if node else told["version"] if told else "":
            for match in _LIBCUDA.finditer(item.text):
                if match["version"] != version:
                    yield cite(item, item.number_at(match.start()))


def _other_copy(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> Iterator[tuple[str, Verdict]]:
    said = snapshot.said(driver.UNFIT)
    compat = [one.citation for one in places if one.sort == "compat"] or [*_listed_compat(snapshot)]
    other, shown = _of_another_driver(snapshot, places)
    front = [one for one in places if isinstance(one, loader.Folder)]
    cured = _cured_by_unsetting(snapshot)
    wrong = snapshot.said(_WRONG)
    if (shown and wrong) or cured:
        path = other if shown else ", ".join(one.path for one in front) or "a folder in LD_LIBRARY_PATH"
        what = f"programs load {path} in place of the driver's own library"
        cited = (*wrong, *shown, *(one.citation for one in front), *cured)
        yield "library-path-shadows-libcuda", Proof(what, cited)
        return
    if not said or _mismatches(snapshot):
        return
    if driver.works(snapshot) and not compat and (unversioned := _of_no_known_version(snapshot, places)):
        what = (
            f"programs load {unversioned.path}, and error 803 says that it is not of the driver, which nvidia-smi uses"
        )
        yield "library-path-shadows-libcuda", Proof(what, (*said, unversioned.citation), "likely")
        return
    version = driver.loaded(snapshot)
    driven = f" {version.version}" if version else ""
    what = f"libcuda of a CUDA compatibility package is loaded, and it does not fit the node's driver{driven}"
    ruled_out = ("libraries of another version on the node: nvidia-smi works there",) if driver.works(snapshot) else ()
    if compat:
        yield "cuda-compat-lib-mismatch", Proof(what, (*said, *compat, *_version_lines(snapshot)), "certain", ruled_out)
    elif driver.works(snapshot):
        what = (
            "the program loads a libcuda of another version than the node's driver, as images with cuda-compat bring it"
        )
        yield "cuda-compat-lib-mismatch", Proof(what, (*said, *_version_lines(snapshot)), "likely", ruled_out)
    else:
        question = "is it a compatibility library in the image, or is the node's own driver at two versions?"
        look = "nvidia-smi on the node, and ldconfig -p | grep libcuda.so in the container"
        causes = ("driver-library-mismatch-reboot-pending", "library-path-shadows-libcuda")
        yield "cuda-compat-lib-mismatch", Doubt(question, look, said, causes)


# What a libcuda or libnvidia-ml says that does not fit the driver. Any other error is of one that found its driver.
_WRONG: Final = Pattern(
    rf"{driver.UNFIT.pattern}|{_INSUFFICIENT.pattern}|Driver/library version mismatch"
    r"|libcuda reported version[^\n]{0,80} does not match|does not match DSO version"
)


def _of_another_driver(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> tuple[str, tuple[Citation, ...]]:
    """A library outside the usual places that is shown to be of another version than the node's driver."""
    node = driver.loaded(snapshot) or driver.smi_version(snapshot)
    for one, version, line in _elsewhere(snapshot, places):
        if node and version and version != node.version:
            return one.path, (one.citation, line, node.citation)
    return "", ()


def _of_no_known_version(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> loader.Library | None:
    return next((one for one, version, _ in _elsewhere(snapshot, places) if not version), None)


def _elsewhere(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> Iterator[tuple[loader.Library, str, Citation]]:
    """The libraries outside the usual places, each with its version, empty where nothing shows it, and the line."""
    listed = snapshot.view(loader.targets)
    for one in places:
        if one.sort == "other" and isinstance(one, loader.Library):
            target, line = listed.get(one.path, ("", one.citation))
            match = _VERSIONED.search(target) or _VERSIONED.search(one.path)
            yield one, match["version"] if match else "", line


def _cured_by_unsetting(snapshot: Snapshot) -> tuple[Citation, ...]:
    """nvidia-smi fails, and works where LD_LIBRARY_PATH is taken away from it."""
    bare = Pattern(r"env -u LD_LIBRARY_PATH|unset LD_LIBRARY_PATH|LD_LIBRARY_PATH=(?:''|\"\"|\s|$)")
    states = snapshot.view(driver.smi)
    works = [citation for state, citation in states if state == "works" and bare.search(citation.source)]
    fails = [citation for state, citation in states if state in {"mismatch", "failed"}]
    return (*works, *fails) if works and fails else ()


def _mismatches(snapshot: Snapshot) -> bool:
    """Whether the node's own driver is at two versions; then all that CUDA says follows from that."""
    loaded, disk = driver.loaded(snapshot), driver.on_disk(snapshot)
    differs = loaded is not None and disk is not None and loaded.version != disk.version
    return differs or bool(driver.strayed(snapshot)) or any(s == "mismatch" for s, _ in snapshot.view(driver.smi))


def _compat_not_here(snapshot: Snapshot) -> Proof:
    models = [gpu.model for gpu in snapshot.view(pci.gpus) if gpu.model is not None]
    named = next((model.label for model in models if not model.datacenter), "")
    version = driver.loaded(snapshot) or driver.smi_version(snapshot)
    driven = f"; the node's driver is {version.version}" if version else ""
    gpu = named or "this GPU"
    what = f"a newer CUDA's compatibility libcuda is loaded, which {gpu} is not the sort to take{driven}"
    return Proof(
        what, (*snapshot.said(_804), *_version_lines(snapshot)), ruled_out=("a mixed-up driver: that is error 803",)
    )


def _drop_compat(snapshot: Snapshot) -> Iterable[Fix]:
    on_node = any(one.where == "host" and one.sort == "compat" for one in snapshot.view(loader.loaded))
    if on_node:
        named = [one for one in snapshot.view(loader.folders) if one.file and one.sort == "compat"]
        text = "take the compatibility folder out of the loader's path"
        yield run("remove", text, *(_commented_out(named) or _COMPAT_COMMENTED_OUT), "sudo ldconfig")
    text = "in an image: build it without the package cuda-compat, and take its folder out of LD_LIBRARY_PATH"
    yield by_hand("remove", text)
    text = "or upgrade the node's driver to the CUDA of the image"
    yield from _another_driver(snapshot, text)


# The line alone: other folders stand in the same file, and it may be a package's.
_COMPAT_COMMENTED_OUT: Final = (
    (
        "grep -rlsE --include='*.conf' '^[[:space:]]*/[^#]*/compat/*[[:space:]]*$' /etc/ld.so.conf.d | "
        "xargs -r -d '\\n' sudo sed -i.bak -E 's,^[[:space:]]*/[^#]*/compat/*[[:space:]]*$,#&,'"
    ),
)
_PLAIN: Final = Pattern(r"/[A-Za-z0-9/._+-]+")


def _commented_out(folders: Iterable[loader.Folder]) -> tuple[str, ...]:
    """The commands that comment out the lines of these folders; none where a file or a folder is not named plainly."""
    found: list[str] = []
    for one in folders:
        if not _PLAIN.fullmatch(one.path) or not is_path(one.file):
            return ()
        plain = one.path.rstrip("/").replace(".", r"\.").replace("+", r"\+")
        found.extend(edited(f"s,^[[:space:]]*{plain}/*[[:space:]]*$,#&,", one.file))
    return tuple(dict.fromkeys(found))


def _unshadow(snapshot: Snapshot) -> Iterable[Fix]:
    wrong = [one for one in snapshot.view(loader.folders) if one.where == "host" and _is_wrong(snapshot, one)]
    conf = [one for one in wrong if one.file]
    if commands := _commented_out(conf):
        yield run("configure", "take the folder out of the loader's path", *commands, "sudo ldconfig")
    elif conf:
        places = ", ".join(sorted({one.path for one in conf}))
        yield by_hand("configure", f"take {places} out of the files in /etc/ld.so.conf.d, then run ldconfig")
    paths = sorted({one.path for one in wrong if not one.file})
    if conf and not paths:
        return
    named = f" ({', '.join(paths)})" if paths else ""
    places = ", ".join(sorted({one.set_in for one in wrong if one.set_in}))
    where = f"in {places}" if places else "where it is set: a profile, a unit, an image"
    yield by_hand("configure", f"take the folder out of LD_LIBRARY_PATH{named}, {where}")
    find = "grep -rsF LD_LIBRARY_PATH /etc/environment /etc/profile /etc/profile.d /etc/bash.bashrc /etc/systemd"
    yield run("inspect", "see where it is set", find)


def _is_wrong(snapshot: Snapshot, folder: loader.Folder) -> bool:
    """Whether the loader finds there what hides the driver's library."""
    hiding = {one.path.rpartition("/")[0] for one in snapshot.view(loader.loaded) if one.sort != "driver"}
    hiding |= {one.path.rstrip("/") for one, _, _ in loader.in_front(snapshot)}
    return folder.path.rstrip("/") in hiding if hiding else folder.sort != "other"


# --- what a program was built for ---------------------------------------------------------------------------------

_NO_KERNEL: Final = Pattern(
    r"no kernel image is available for execution|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"
    r"|is not compatible with the current PyTorch installation|no longer supported by (?:the current )?PyTorch"
    r"|PyTorch no longer supports this GPU|has no device code compatible with CUDA arch"
    r"|Unsupported gpu architecture '(?:compute|sm)_\d+'|Value 'sm_\d+' is not defined for option 'gpu-name'"
    r"|device kernel image is invalid|CUDA error: invalid device function|minimum required Cuda capability is"
    r"|is for sm\d+-sm\d+, but was built for|invalid value for --gpu-architecture"
    r"|kernel for this GPU architecture was not (?:built|found)"
)
_CPU_ONLY: Final = Pattern(
    r"[Nn]ot compiled with CUDA enabled|Torch not compiled with CUDA|CUDA-enabled jaxlib is not installed"
    r"|\b\d+\.\d+(?:\.\d+)?\+cpu\b|\bpytorch\s+\S+\s+(?:py[\w.]*_cpu_|cpu_)\S*"
    r"|was not compiled with CUDA support|compiled without (?:CUDA|GPU) support"
    r"|XGBoost (?:is |version )?not compiled with"
    r"|CUDA Tree Learner was not enabled in this build|The library is compiled without CUDA support"
    r"|is_built_with_cuda\(\)\D{0,12}False|is_built_with_cuda:? False|not linked with CUDA|without GPU offload support"
    r"|was compiled without GPU support|not built with CUDA|built without CUDA|tensorflow-cpu\b"
    r"|not compiled with GPU offload support|using CPU version PaddlePaddle|has no attribute 'StandardGpuResources'"
    r"|requires CUDA support but .{0,40}CPU[- ]only|CPU-only (?:build|version) of"
)
_TORCH_NONE: Final = Pattern(r"torch\.version\.cuda\D{0,4}\s*None|CUDA used to build PyTorch: None")
_PROVIDERS: Final = Pattern(
    r"CUDAExecutionProvider' is not in available provider|Available providers: "
    r"\[?'?(?!.{0,200}CUDAExecution).{0,80}CPUExecutionProvider"
)


def _built_without(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whether the program has no code for this GPU, or none for any."""
    has_no_driver = any(state in {"missing", "no-driver", "mismatch"} for state, _ in snapshot.view(driver.smi))
    said = snapshot.said(_NO_KERNEL)
    lacks = _lacks(snapshot, frameworks.capabilities(snapshot) if said else frameworks.of_devices(snapshot))
    if said or lacks:
        cap, lines = lacks or ("", ())
        gpu = f"this GPU (sm_{cap})" if cap else "this GPU"
        what = f"the program was built for other architectures and has no code for {gpu}"
        yield "framework-without-this-architecture", Proof(what, (*said, *lines))
        return
    cpu = (*snapshot.said(_CPU_ONLY), *snapshot.said(_TORCH_NONE), *snapshot.said(_PROVIDERS))
    if cpu and not has_no_driver:
        works = driver.works(snapshot)
        what = (
            "the installed build of the framework has no CUDA in it and computes on the CPU, whatever the driver does"
        )
        ruled_out = ("the driver: nvidia-smi works",) if works else ()
        yield "framework-cpu-only", Proof(what, tuple(dict.fromkeys(cpu)), "certain", ruled_out)


def _lacks(
    snapshot: Snapshot, capabilities: tuple[tuple[str, Citation], ...]
) -> tuple[str, tuple[Citation, ...]] | None:
    """A GPU for which a list of built architectures has nothing, with the lines that tell."""
    for listed, place in snapshot.view(frameworks.built_for):
        for cap, gpu in capabilities:
            if len(cap) >= 2 and not frameworks.runs_on(cap, listed):
                return cap, (place, gpu)
    return None


_TORCH: Final = Pattern(r"torch", re.IGNORECASE)


def _other_build(snapshot: Snapshot) -> Iterable[Fix]:
    capability = next((cap for cap, _ in snapshot.view(frameworks.capabilities)), "")
    named = f" (sm_{capability})" if capability else ""
    has = _supported(snapshot)
    up_to = f", for CUDA {_dotted(has)} or older" if has else ""
    yield by_hand("application", f"install a build of the framework that names this GPU's architecture{named}{up_to}")
    if snapshot.says(_TORCH):
        see = 'python3 -c "import torch; print(torch.__version__, torch.cuda.get_arch_list())"'
        yield run("inspect", "see what the new build was built for", see)


def _cuda_build(snapshot: Snapshot) -> Iterable[Fix]:
    has = _supported(snapshot)
    up_to = f" (the driver supports CUDA {_dotted(has)})" if has else ""
    yield by_hand("application", f"replace the CPU build of the framework with its CUDA build{up_to}")
    if snapshot.says(_TORCH):
        see = 'python3 -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"'
        yield run("inspect", "see that it has CUDA", see)


# --- compute mode -------------------------------------------------------------------------------------------------

_BUSY: Final = Pattern(
    r"devices?(?:\(s\))? (?:is/)?are busy or unavailable|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE"
    r"|device already in use|cudaErrorDeviceAlreadyInUse|cuda(?: runtime)? error \(?(?:46|54)\b"
    r"|exclusive-(?:thread|process) (?:device|mode)|Device is in (?:exclusive|prohibited)"
)
_MODE_IN_TABLE: Final = Pattern(r"\|\s+(?:\d+%|N/A)\s+(?P<mode>E\. ?Process|E\. ?Thread|Prohibited)\s+\|")
_SHOWS_MODE: Final = Pattern(r"Compute (?:Mode|M\.)")
_XID: Final = Pattern(r"\bXid\b")
_INDEX: Final = Pattern(r"^\|\s+(?P<index>\d+)\s+\S")


def _exclusive(snapshot: Snapshot) -> tuple[tuple[str, str, Citation], ...]:
    """The GPUs that are not in default compute mode: their index or address, the mode, the line."""
    return (*_by_query(snapshot), *_by_table(snapshot))


def _by_query(snapshot: Snapshot) -> Iterator[tuple[str, str, Citation]]:
    for gpu in snapshot.view(smi_query.gpus):
        if (row := gpu.find("Compute Mode")) and row.value.strip().lower() not in {"default", "n/a", ""}:
            yield gpu.bus or gpu.value("index"), row.value.strip(), row.citation


def _by_table(snapshot: Snapshot) -> Iterator[tuple[str, str, Citation]]:
    for item in snapshot.of("nvidia-smi", "text"):
        index = ""
        for number, line in enumerate(item.lines, 1):
            if match := _MODE_IN_TABLE.search(line):
                yield index, match["mode"], cite(item, number)
            elif first := _INDEX.match(line):
                index = first["index"]


def _compute_mode(snapshot: Snapshot) -> Iterator[Verdict]:
    busy = snapshot.said(_BUSY)
    modes = snapshot.view(_exclusive)
    if busy and modes:
        where, mode, _ = modes[0]
        named = f"GPU {where}" if where else "the GPU"
        if "rohib" in mode:
            what = f"{named} is in compute mode {mode}, which lets no program use it for CUDA"
        else:
            what = f"{named} is in compute mode {mode}, and one process has it, so that a second gets none"
        yield Proof(what, (*busy, *(line for _, _, line in modes)))
    elif busy and not snapshot.says(_SHOWS_MODE) and not kernel.said(snapshot, _XID):
        question = "is the GPU in an exclusive compute mode, or has it failed?"
        yield Doubt(question, "nvidia-smi -q -d COMPUTE, and the kernel's log for Xid", busy, ("vgpu-unlicensed",))


def _default_mode(snapshot: Snapshot) -> Iterable[Fix]:
    wheres = dict.fromkeys(where for where, _, _ in snapshot.view(_exclusive))
    commands = tuple(command("sudo", "nvidia-smi", *at(where), "-c", "DEFAULT") for where in wheres)
    yield run("configure", "let several processes use the GPU", *commands)
    yield by_hand("application", "or stop the other process, or share the GPU through MPS", "the mode is meant")


_COMPAT_DOC: Final = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_TOOLKIT_NOTES: Final = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/"
_DRIVER_API: Final = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html"

FAMILY: Final = Family(
    "userspace",
    "libraries and programs",
    (
        Rule(
            cause="driver-not-installed",
            layer="toolkit",
            storey="driver",
            severity="error",
            disruption="none",
            title="no NVIDIA driver is installed",
            story=(
                "The container toolkit, Docker and Kubernetes bring no driver; they hand the node's own to containers. "
                "On a node without one there is neither a module nor libnvidia-ml.so.1 nor nvidia-smi, and each layer "
                "above complains in its own words that a library or a driver cannot be loaded."
            ),
            sources=("https://github.com/NVIDIA/libnvidia-container/issues/231", DRIVER_GUIDE),
            check=only("driver-not-installed", _presence),
            remedy=_install_driver,
            explains=NOT_ACCEPTED | {"fabric-manager-not-installed"},
        ),
        Rule(
            cause="driver-userspace-incomplete",
            layer="toolkit",
            storey="libraries",
            severity="error",
            disruption="none",
            title="the driver's libraries and programs are not installed",
            story=(
                "Distributions split the driver: the module in one package, NVML, libcuda and nvidia-smi in others. A "
                "node set up with the kernel side alone loads the module and creates devices, and still nothing can "
                "use them, since libnvidia-ml.so.1 or libcuda.so.1 is not there. It looks from above as if there were "
                "no driver."
            ),
            sources=("https://github.com/negativo17/nvidia-driver/issues/93", DRIVER_GUIDE),
            check=only("driver-userspace-incomplete", _presence),
            remedy=_complete_driver,
            explains=LIBRARY_MISMATCH,
        ),
        Rule(
            cause="driver-too-old-for-image",
            layer="toolkit",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="the driver is older than the program's CUDA needs",
            story=(
                "Every CUDA release needs a driver of a certain age. Images say so in NVIDIA_REQUIRE_CUDA, and the "
                "toolkit refuses to start them on an older driver; programs that start all the same fail with «CUDA "
                "driver version is insufficient for CUDA runtime version». From CUDA 11 on, a driver of the same major "
                "version is mostly enough. The node works, and images with an older CUDA run."
            ),
            sources=("https://github.com/theroyallab/tabbyAPI/issues/324", _COMPAT_DOC, _TOOLKIT_NOTES),
            check=_too_old,
            remedy=_newer_driver,
        ),
        Rule(
            cause="cuda-compat-lib-mismatch",
            layer="userspace",
            storey="libraries",
            severity="error",
            disruption="restart-container",
            title="a libcuda of another version than the driver is loaded",
            story=(
                "The cuda-compat packages bring a libcuda of a newer driver, so that a newer CUDA runs on an older "
                "one; which pairs work is listed. Where the folder stands in the loader's path although the node's "
                "driver is as new, or too far away, CUDA answers with error 803, «unsupported display driver / cuda "
                "driver combination». nvidia-smi works, since it uses another library."
            ),
            sources=("https://github.com/easydiffusion/easydiffusion/issues/379", _COMPAT_DOC),
            check=only("cuda-compat-lib-mismatch", _libcuda),
            remedy=_drop_compat,
        ),
        Rule(
            cause="cuda-compat-not-supported-hw",
            layer="userspace",
            storey="libraries",
            severity="error",
            disruption="restart-container",
            title="CUDA's compatibility libraries are used on a GPU that may not have them",
            story=(
                "Forward compatibility, a newer libcuda on an older driver, is for data center GPUs only. An image "
                "that brings cuda-compat and puts it in front works on an A100 and fails on a GeForce with error 804. "
                "Without the compatibility library the image needs a driver that supports its CUDA."
            ),
            sources=(
                "https://github.com/gpustack/gpustack/issues/1254",
                "https://github.com/QuipNetwork/quip-miner/issues/24",
                _COMPAT_DOC,
            ),
            check=only("cuda-compat-not-supported-hw", _libcuda),
            remedy=_drop_compat,
        ),
        Rule(
            cause="library-path-shadows-libcuda",
            layer="userspace",
            storey="libraries",
            severity="error",
            disruption="restart-container",
            title="another library stands before the driver's libcuda",
            story=(
                "The CUDA toolkit has stubs of libcuda and libnvidia-ml for linking on machines without a driver. "
                "Where their folder, or one with another driver's copy, is in LD_LIBRARY_PATH or in /etc/ld.so.conf.d, "
                "the loader takes it before the driver's own. A stub answers every call with an error; a copy of "
                "another version does not fit the module."
            ),
            sources=(
                "https://github.com/numba/numba/issues/8985",
                "https://github.com/NVIDIA/warp/issues/219",
                "https://github.com/Syllo/nvtop/issues/225",
                _DRIVER_API,
            ),
            check=only("library-path-shadows-libcuda", _libcuda),
            remedy=_unshadow,
            explains=frozenset({"cuda-compat-lib-mismatch"}),
        ),
        Rule(
            cause="framework-without-this-architecture",
            layer="userspace",
            storey="programs",
            severity="error",
            disruption="none",
            title="the program has no code for this GPU's architecture",
            story=(
                "A CUDA program carries machine code for the architectures that it was built for. Wheels leave old "
                "ones out, and those of last year do not know this year's GPUs. Driver and GPU work, the device is "
                "found, and the first kernel fails with «no kernel image is available for execution on the device». "
                "Another build of the program is needed."
            ),
            sources=(
                "https://github.com/pytorch/pytorch/issues/167244",
                "https://github.com/Comfy-Org/ComfyUI/pull/16438",
                _DRIVER_API,
            ),
            check=only("framework-without-this-architecture", _built_without),
            remedy=_other_build,
        ),
        Rule(
            cause="framework-cpu-only",
            layer="userspace",
            storey="programs",
            severity="error",
            disruption="none",
            title="the framework was built without CUDA",
            story=(
                "PyTorch, TensorFlow, JAX and others come in builds with and without CUDA, under one name. A package "
                "manager that finds no matching CUDA build installs the other and says nothing. The program then finds "
                "no GPU while nvidia-smi shows it: the version ends in +cpu, or the error says «not compiled with CUDA "
                "enabled»."
            ),
            sources=("https://pytorch.org/get-started/locally/", "https://github.com/JeffSHF/ColabDock/issues/28"),
            check=only("framework-cpu-only", _built_without),
            remedy=_cuda_build,
        ),
        Rule(
            cause="compute-mode-exclusive",
            layer="config",
            storey="gpu",
            severity="error",
            disruption="none",
            title="the GPU's compute mode lets one process in, or none",
            story=(
                "Compute mode Exclusive_Process gives a GPU to the first process that asks, and Prohibited to none. It "
                "is often left behind by a batch system or an MPS set-up. A second process then hears that all "
                "CUDA-capable devices are busy or unavailable, on a GPU that nvidia-smi shows as healthy."
            ),
            sources=("https://github.com/NVIDIA/DIGITS/issues/2005", "https://docs.nvidia.com/deploy/mps/"),
            check=_compute_mode,
            remedy=_default_mode,
        ),
    ),
)
