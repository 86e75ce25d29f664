"""The driver's installation: whether there is a driver at all, and whether its libraries and programs are there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE
from gpunode.diagnoses.chains import LIBRARY_MISMATCH, NOT_ACCEPTED
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Confidence, Disruption, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import install, reboot, run, takes_gpunode
from gpunode.diagnoses.snapshot import Snapshot, lines_with, stated
from gpunode.diagnoses.views import driver, guests, inside, kube, modules, packages, pci, presence
from gpunode.diagnoses.views.system import has_driver_from_elsewhere, is_debians, package_manager
from gpunode.facts.patterns import Pattern

_OTHER_HOUSE: Final = Pattern(
    r"docker[- ]desktop|linuxkit|/snap/(?:bin/)?docker|minikube|/run/nvidia/driver|kind-control-plane|desktop-linux",
    re.IGNORECASE,
)
_SMI_ALONE: Final = Pattern(r"NVIDIA-SMI couldn't find libnvidia-ml", re.IGNORECASE)


def _presence(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whether no driver is there, or its kernel side alone."""
    if has_driver_from_elsewhere(snapshot) or _is_elsewhere(snapshot):
        return
    if driver.works(snapshot) or snapshot.says(_CTK_ASKED, "nvidia-ctk") or _listed_without_libcuda(snapshot):
        yield from _without_libcuda(snapshot)
        return
    if _is_lent(snapshot):
        return
    missing = presence.missing(snapshot) or presence.missed_by_pods(snapshot)
    if not missing or (pci.is_listed(snapshot) and not snapshot.view(pci.gpus)):
        return
    if (bare := inside.without_gpu(snapshot, *missing)) is not None:
        yield "driver-userspace-incomplete", bare
        return
    yield from _missed(snapshot, missing)


def _missed(snapshot: Snapshot, missing: tuple[Citation, ...]) -> Iterator[tuple[str, Verdict]]:
    """Whether nothing of a driver is there, where its programs or libraries are missed."""
    kernel = presence.kernel_side(snapshot)
    if not kernel and (pods := _driver_pods(snapshot)):
        yield from _by_operator(pods)
        return
    if kernel:
        if not presence.has_libraries(snapshot):
            what = "the driver's kernel module is here, its libraries and programs are not"
            ruled_out = ("no driver at all: the module is there", "a container without the driver: the node lacks them")
            yield "driver-userspace-incomplete", Proof(what, (*missing, *kernel), ruled_out=ruled_out)
        return
    installed = any(item.outcome == "ok" for item in snapshot.of("installer-log"))
    if presence.has_libraries(snapshot) or driver.packaged(snapshot) or installed:
        return
    absent = presence.absent(snapshot)
    kinds = len(absent) + len({citation.source for citation in missing})
    # nvidia-smi that complains is installed: of a driver that is not there at all it would not be either.
    if kinds >= 2 and (absent or not snapshot.says(_SMI_ALONE)):
        what = "no NVIDIA driver is installed on this node: neither its module nor its libraries are there"
        disruption: Disruption | None = "reboot" if _nouveau_has_it(snapshot) else None
        is_sure: Confidence = "certain" if absent else "likely"
        yield "driver-not-installed", Proof(what, (*missing, *absent), is_sure, disruption=disruption)
    else:
        question = "is a driver installed on the node, and only its libraries or its module missing?"
        look = (
            Shell("nvidia-smi; lsmod | grep nvidia  # on the node itself"),
            Shell("dpkg -l '*nvidia*' || rpm -qa '*nvidia*'"),
        )
        yield "driver-not-installed", Doubt(question, look, missing, ("driver-userspace-incomplete",))


# The operator's pods that bring the driver.
_DRIVER_POD: Final = Pattern(r"^nvidia-(?:gpu-)?driver-")


def _driver_pods(snapshot: Snapshot) -> tuple[kube.Row, ...]:
    return tuple(row for row in snapshot.view(kube.rows) if _DRIVER_POD.search(row.name))


def _by_operator(pods: tuple[kube.Row, ...]) -> Iterator[tuple[str, Verdict]]:
    """Where the operator brings the driver the host has none, and one that is installed there gets in its way."""
    # Why an image is not pulled the operator's own rule asks.
    halted = [row for row in pods if row.status != "Running" or row.ready < row.of]
    failing = tuple(row.citation for row in halted if "Image" not in row.status)
    if failing:
        question = "the GPU Operator is to bring this node's driver in a pod, which does not run: why not?"
        look = (
            Shell("kubectl -n gpu-operator describe pod -l app=nvidia-driver-daemonset"),
            Shell("kubectl -n gpu-operator logs --tail=50 -l app=nvidia-driver-daemonset"),
        )
        yield "driver-not-installed", Doubt(question, look, failing, ("operator-no-driver-image",))


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
    shown = [item for item in caches if item.source.lets_through("libcuda.so.1")]
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
            severity="error",
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
            look_at=(
                Shell("dpkg -l | grep nvidia"),
                Shell("modinfo nvidia"),
            ),
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
            share=0.8,
            symptoms=(symptoms.NO_NVML_LIBRARY,),
            look_at=(Shell("ldconfig -p | grep -E 'libnvidia-ml|libcuda'"),),
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
    ),
)
