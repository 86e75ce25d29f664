"""The driver's installation: whether there is a driver at all, and whether its libraries and programs are there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE
from gpunode.diagnoses.chains import LIBRARY_MISMATCH, NOT_ACCEPTED
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Citation, Family, Fix, Rule
from gpunode.diagnoses.remedies import install, reboot, run, takes_gpunode
from gpunode.diagnoses.signs import all_of, any_of, fact, holds, line, unless
from gpunode.diagnoses.snapshot import Snapshot, lines_with, stated
from gpunode.diagnoses.views import driver, guests, modules, packages, pci, presence
from gpunode.diagnoses.views.system import has_driver_from_elsewhere, is_debians, package_manager
from gpunode.facts.patterns import Pattern

_OTHER_HOUSE: Final = Pattern(
    r"docker[- ]desktop|linuxkit|/snap/(?:bin/)?docker|minikube|/run/nvidia/driver|kind-control-plane|desktop-linux",
    re.IGNORECASE,
)
# The operator's pods that bring the driver.
_DRIVER_POD: Final = Pattern(r"(?:^|[\s/])nvidia-(?:gpu-)?driver-\S+\s+\d+/\d+\s", re.MULTILINE)


def _is_by_operator(snapshot: Snapshot) -> bool:
    """Whether a pod of the operator's brings the driver, so that the host has none of its own."""
    return snapshot.says(_DRIVER_POD)


def _lacked(snapshot: Snapshot) -> tuple[Citation, ...]:
    return presence.missing(snapshot) or presence.missed_by_pods(snapshot)


def _absent_twice(snapshot: Snapshot) -> tuple[Citation, ...]:
    """At least two places in which a driver was looked for in vain."""
    tables = {item.key for item in snapshot.of("lsmod")}  # what is not loaded may be installed
    found = tuple(one for one in presence.absent(snapshot) if one.key not in tables)
    return found if len({one.source for one in found}) > 1 else ()


def _is_here(snapshot: Snapshot) -> bool:
    """Whether anything of a driver is on the node."""
    installed = any(item.outcome == "ok" for item in snapshot.of("installer-log"))
    # nvidia-smi that complains is installed.
    installed = installed or any(state in {"no-driver", "no-devices"} for state, _ in snapshot.view(driver.smi))
    return installed or presence.has_libraries(snapshot) or bool(driver.packaged(snapshot))


def _nouveau_has_it(snapshot: Snapshot) -> bool:
    """Whether the kernel's own driver has a GPU, which it keeps as long as this boot lasts."""
    return bool(modules.loaded(snapshot, "nouveau")) or any(gpu.driver == "nouveau" for gpu in snapshot.view(pci.gpus))


def _is_lent(snapshot: Snapshot) -> bool:
    """Whether every GPU is kept for virtual machines: a host that only lends its GPUs has no driver for them."""
    owners = [(gpu.driver or "").replace("_", "-") for gpu in snapshot.view(pci.gpus)]
    return bool(owners) and all(owner in {"vfio-pci", "pci-stub", "pciback", "xen-pciback"} for owner in owners)


_NO_LIBCUDA: Final = any_of(
    line(
        r"libcuda\.so(?:\.1)?['\"]?: cannot open shared object|libcuda\.so\.1: not found",
        "application", "text", "nvidia-container-cli", "unit-log",
    ),
    # The engine's hook looks on the node; what a program in the container misses may be the image's own fault.
    line(r"load library failed: libcuda\.so\.1: cannot open shared object", "container-run"),
)  # fmt: skip
_CTK_NO_LIBCUDA: Final = Pattern(r"Could not locate libcuda\.so\.\d+\.\d")
_NVML_FOUND: Final = Pattern(r"^/\S+/libnvidia-ml\.so\.\d", re.MULTILINE)


def _listed_without_libcuda(snapshot: Snapshot) -> Iterator[Citation]:
    """Where the toolkit, or the loader, finds the driver's other library on the node, and not CUDA's."""
    for item in snapshot.of("nvidia-container-cli", "nvidia-ctk", "ldconfig"):
        if item.kind == "nvidia-ctk" and not any("-root" in word for word in item.source.words):
            yield from lines_with(item, _CTK_NO_LIBCUDA)
        is_list = "list" in item.source.words and not item.source.only and _NVML_FOUND.search(item.text)
        # Of itself no fault: who only asks NVML needs no libcuda. Somebody who shows it misses it.
        is_shown = item.kind == "ldconfig" and item.where == "host" and not is_examined(snapshot)
        is_cache = is_shown and "libnvidia-ml.so" in item.text
        is_whole = is_list or (is_cache and item.source.lets_through("libcuda.so.1"))
        if is_whole and not item.source.is_part and "libcuda.so" not in item.text:
            yield stated(item.written, "libnvidia-ml is among them and libcuda is not", item.key)


def _looked_for_libcuda(snapshot: Snapshot) -> Iterator[Citation]:
    """The loader's cache or Debian's packages, without libcuda, whatever else they have."""
    for item in snapshot.of("ldconfig"):
        is_whole = item.where == "host" and not item.source.is_part and item.source.lets_through("libcuda.so.1")
        if is_whole and "libcuda.so" not in item.text:
            yield stated(item.written, "libcuda.so.1 is not among them", item.key)
    if packages.installed(snapshot, "libcuda1") is False and packages.matching(snapshot, "nvidia-smi"):
        yield stated("the packages", "libcuda1 is not among them")


def _is_elsewhere(snapshot: Snapshot) -> bool:
    """Whether the engine runs in a machine or a confinement of its own, which sees another system than the node's."""
    kinds = ("docker-info", "docker-version", "container-run", "which", "snap", "listing")
    asked = [item for item in snapshot.items if item.kind in kinds and item.outcome == "ok" and item.text.strip()]
    return any(_OTHER_HOUSE.search(item.text) or _OTHER_HOUSE.search(item.written) for item in asked)


_LACKED: Final = fact(_lacked)
_ABSENT: Final = fact(presence.absent)
_KERNEL_SIDE: Final = fact(presence.kernel_side)
_LIBRARIES: Final = holds(presence.has_libraries, "the driver's libraries are on the node")
_SMI_ALONE: Final = line(r"NVIDIA-SMI couldn.t find libnvidia-ml")
_WITHOUT_LIBCUDA: Final = any_of(fact(_listed_without_libcuda), all_of(_NO_LIBCUDA, fact(_looked_for_libcuda)))
_ELSEWHERE: Final = holds(
    lambda snapshot: has_driver_from_elsewhere(snapshot) or _is_elsewhere(snapshot), "the driver is another system's"
)
_LENT: Final = holds(_is_lent, "every GPU is kept for virtual machines")
_NO_GPU: Final = holds(
    lambda snapshot: pci.is_listed(snapshot) and not snapshot.view(pci.gpus), "there is no GPU on the bus"
)


def _of_libraries(snapshot: Snapshot) -> str:
    if snapshot.view(_WITHOUT_LIBCUDA):
        return "the driver works and its libcuda.so.1 is not installed, so NVML answers and CUDA does not start"
    return "the driver's kernel module is here, its libraries and programs are not"


def _install_driver(snapshot: Snapshot) -> Iterable[Fix]:
    yield remedies.driver(snapshot, "install the driver that this GPU, kernel and distribution take")
    if _nouveau_has_it(snapshot):
        yield reboot("reboot: until then nouveau keeps the GPU")
    yield run("inspect", "see that it works", Shell("nvidia-smi"))


# Ubuntu's packages have the branch in their names; the module on disk tells it.
_OF_MODULES_BRANCH: Final = Shell(
    'v=$(modinfo -F version nvidia | cut -d. -f1); sudo apt-get install "nvidia-utils-$v" "libnvidia-compute-$v"'
)
_USER_SIDE: Final = {
    "dnf": ("nvidia-driver-cuda", "nvidia-driver-cuda-libs"),
    "zypper": ("nvidia-compute-utils-G06",),
    "pacman": ("nvidia-utils",),
}


def _complete_driver(snapshot: Snapshot) -> Iterable[Fix]:
    manager = package_manager(snapshot)
    if guests.is_vgpu(snapshot):
        yield remedies.guest_driver("install the driver anew, whole")
        return
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
    yield run("rebuild", "let the loader find it", Shell("sudo ldconfig"))
    if takes_gpunode(snapshot):
        yield remedies.driver(snapshot, "or let gpunode make the driver whole")


FAMILY: Final = Family(
    "installation",
    "the driver's installation",
    (
        Rule(
            cause="driver-not-installed",
            layer="toolkit",
            storey="driver",
            disruption="none",
            title="no NVIDIA driver is installed",
            share=3,
            symptoms=(
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
                symptoms.NO_NVML_LIBRARY,
                symptoms.NO_DEVICES,
                symptoms.CUDA_UNAVAILABLE,
            ),
            decisive=all_of(_LACKED, _ABSENT),
            typical=fact(_absent_twice),
            against=(
                *(symptoms.DRIVER_WORKS, symptoms.IN_CONTAINER, _KERNEL_SIDE, _SMI_ALONE, _ELSEWHERE, _LENT, _NO_GPU),
                holds(_is_here, "a driver is here"),
                holds(_is_by_operator, "the operator brings the driver"),
            ),
            look_at=(Shell("dpkg -l | grep nvidia"), Shell("modinfo nvidia")),
            summary="no NVIDIA driver is installed on this node: neither its module nor its libraries are there",
            story=(
                "The container toolkit, Docker and Kubernetes bring no driver; they hand the node's own to containers. "
                "On a node without one there is neither a module nor libnvidia-ml.so.1 nor nvidia-smi, and each layer "
                "above complains in its own words that a library or a driver cannot be loaded."
            ),
            sources=("https://github.com/NVIDIA/libnvidia-container/issues/231", DRIVER_GUIDE),
            remedy=_install_driver,
            explains=NOT_ACCEPTED | {"fabric-manager-not-installed"},
        ),
        Rule(
            cause="driver-userspace-incomplete",
            layer="toolkit",
            storey="libraries",
            disruption="none",
            title="the driver's libraries and programs are not installed",
            share=0.8,
            decisive=any_of(_WITHOUT_LIBCUDA, unless(all_of(_LACKED, _KERNEL_SIDE), symptoms.DRIVER_WORKS, _LIBRARIES)),
            typical=unless(_SMI_ALONE, _LIBRARIES),
            symptoms=(symptoms.NO_NVML_LIBRARY, _LACKED, _WITHOUT_LIBCUDA),
            against=(symptoms.IN_CONTAINER, _ELSEWHERE, _LENT, _NO_GPU),
            summary=_of_libraries,
            look_at=(Shell("ldconfig -p | grep -E 'libnvidia-ml|libcuda'"),),
            story=(
                "Distributions split the driver: the module in one package, NVML, libcuda and nvidia-smi in others. A "
                "node set up with the kernel side alone loads the module and creates devices, and still nothing can "
                "use them, since libnvidia-ml.so.1 or libcuda.so.1 is not there. It looks from above as if there were "
                "no driver."
            ),
            sources=("https://github.com/negativo17/nvidia-driver/issues/93", DRIVER_GUIDE),
            remedy=_complete_driver,
            explains=LIBRARY_MISMATCH,
        ),
    ),
)
