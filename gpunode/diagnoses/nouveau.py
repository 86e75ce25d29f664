"""Diagnose nouveau and nova, the kernel's own drivers, if they block NVIDIA's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog import branches
from gpunode.diagnoses import consequences, symptoms
from gpunode.diagnoses.commands import Shell, command, join_commands
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import (
    can_run_setup,
    reboot_node,
    rebuild_initramfs,
    rebuild_initramfs_and_reboot,
    run_step,
    setup_step,
)
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    file_line,
    kernel_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.diagnoses.views import modules, pci, virtualization
from gpunode.facts.patterns import Pattern

_NOUVEAU_AND_NOVA_MODULES: Final = ("nouveau", "nova_core", "nova_drm", "nova")
_NOUVEAU_MODULE_FILE: Final = Pattern(r"/(?:nouveau|nova[_-]core)\.ko")


def _nouveau_loaded_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the lines of nouveau and nova in the module table, unless another driver owns the GPUs."""
    if not any(gpu.driver for gpu in snapshot.view(pci.pci_gpus)) and not modules.is_module_loaded(snapshot, "nvidia"):
        for name in _NOUVEAU_AND_NOVA_MODULES:
            yield from modules.lsmod_line(snapshot, name) if modules.is_module_loaded(snapshot, name) else ()


def _are_all_gpus_legacy(snapshot: Snapshot) -> bool:
    """Return whether every GPU is too old for all branches that NVIDIA maintains."""
    models = [gpu.model for gpu in snapshot.view(pci.pci_gpus)]
    lasts = [branches.find(model.last_branch) if model and model.last_branch else None for model in models]
    return bool(models) and all(last is not None and not last.is_maintained for last in lasts)


_NOUVEAU_MODESET_OFF: Final = any_line(r"nouveau\.modeset=0")
# NVIDIA's installer, while nouveau owns the GPU.
_BLACKLISTED_IN_VAIN: Final = message_line(r"configuration files to disable Nouveau are already present")
# The line may be of another day.
_DRIVER_KNOWN_OTHERWISE: Final = (
    predicate(is_examined_by_gpunode, "gpunode examined the node"),
    predicate(lambda node: any(gpu.shows_driver for gpu in node.view(pci.pci_gpus)), "lspci shows the GPU's driver"),
    predicate(lambda node: modules.is_module_loaded(node, "nouveau") is False, "nouveau is not loaded"),
    *(symptoms.MODULE_LOADED, symptoms.DRIVER_MISMATCH),
)
_NOUVEAU_BOUND: Final = any_of(
    unless(_BLACKLISTED_IN_VAIN, *_DRIVER_KNOWN_OTHERWISE),
    custom_sign(
        lambda snapshot: (
            gpu.citation
            for gpu in snapshot.view(pci.pci_gpus)
            if (gpu.driver or "").lower().replace("-", "_") in {*_NOUVEAU_AND_NOVA_MODULES, "novacore"}
        )
    ),
    kernel_line(r"is already bound to (?:nouveau|[Nn]ova)"),
    any_line(
        r"[Nn]ouveau kernel driver is currently in use|driver[=:] ?(?:nouveau|nova[_-]core)\b|Could not unload nouveau"
        r"|Kernel driver in use: (?:nouveau|NovaCore|nova[_-]core)|drivers/(?:nouveau|NovaCore|nova[_-]core)/?$"
        r"|drivers/(?:nouveau|NovaCore|nova[_-]core)/[0-9a-f]{4}:|^(?:nouveau|nova[_-]drm) dev=[0-9a-f]{4}:",
        on_host=True,
    ),
    unless(custom_sign(_nouveau_loaded_lines), _NOUVEAU_MODESET_OFF),
    unless(
        kernel_line(
            r"nouveau [0-9a-f:.]{7,12}: (?:NVIDIA G\w|\[?drm\]?:? ?(?:VRAM|nouveau)|vgaarb|enabling device|DRM: VRAM)"
            r"|Initialized nouveau \d|nouveaudrmfb|NovaCore [0-9a-f:.]{7,12}: |Initialized nova \d"
        ),
        _NOUVEAU_MODESET_OFF, symptoms.MODULE_LOADED,
    ),
)  # fmt: skip
_BLACKLIST: Final = any_of(
    _BLACKLISTED_IN_VAIN,
    file_line("*modprobe.d/*", r"^[ \t]*(?:blacklist\s+(?:nouveau|nova[_-]core)|install\s+nouveau\s+\S*/(?:false|true)"
              r"|alias\s+nouveau\s+off)\b"),
    message_line(r"(?:modprobe\.d/[\w.-]+:\s*|^[ \t]*)blacklist\s+nouveau\b", "listing", "text", "file"),
    any_line(r"(?:modprobe\.blacklist|rd\.driver\.blacklist|module_blacklist)=\S*\bnouveau\b"),
)  # fmt: skip
# A blacklist of nouveau alone leaves the GPU to nova.
_NOVA_BOUND: Final = any_of(
    custom_sign(lambda node: (gpu.citation for gpu in node.view(pci.pci_gpus) if "nova" in (gpu.driver or "").lower())),
    kernel_line(r"is already bound to [Nn]ova|NovaCore [0-9a-f:.]{7,12}: |Initialized nova \d"),
    any_line(r"Kernel driver in use: (?:NovaCore|nova)|drivers/(?:NovaCore|nova)", on_host=True),
    custom_sign(lambda node: (line for line in _nouveau_loaded_lines(node) if line.line.startswith("nova"))),
)
_GPU_LEFT_TO_NOVA: Final = unless(
    _NOVA_BOUND, any_line(r"^[ \t]*(?:blacklist|install)\s+nova[_-]core\b|blacklist=\S*\bnova[_-]core\b")
)
# If nobody looked for blacklists, one may exist and the initramfs may load nouveau in spite of it.
_NOUVEAU_NOT_BLACKLISTED: Final = unless(
    predicate(
        lambda node: is_examined_by_gpunode(node) or any("modprobe.d" in item.written for item in node.items),
        "the blacklists of modprobe were looked at",
    ),
    _BLACKLIST,
)
_NOUVEAU_IN_INITRAMFS: Final = custom_sign(
    lambda snapshot: (
        line for item in modules.running_initramfs_listings(snapshot) for line in lines_with(item, _NOUVEAU_MODULE_FILE)
    )
)
_ALL_GPUS_LEGACY: Final = predicate(_are_all_gpus_legacy, "no maintained NVIDIA driver supports these GPUs")
_INITRAMFS_WAS_LISTED: Final = predicate(
    lambda snapshot: any(item.outcome == "ok" for item in modules.running_initramfs_listings(snapshot)),
    "the initramfs was listed",
)
# People list the initramfs to see whether it contains nouveau.
_NOUVEAU_LISTED_IN_INITRAMFS: Final = all_of(
    command_run(r"\bls(?:initramfs|initrd)\b"), _NOUVEAU_IN_INITRAMFS, any_of(_NOUVEAU_BOUND, _BLACKLIST)
)

_HOST_RUNS_GUESTS: Final = predicate(virtualization.is_hypervisor, "the host runs virtual machines")

_BLACKLIST_FILE: Final = "/etc/modprobe.d/blacklist-nouveau.conf"


def _blacklist_nouveau(snapshot: Snapshot) -> Iterable[Fix]:
    if can_run_setup(snapshot):
        yield setup_step(snapshot, "configure", "blacklist nouveau; gpunode also rebuilds the initramfs", "nouveau")
    else:
        lines = r"\n".join(
            [*(f"blacklist {name}" for name in _NOUVEAU_AND_NOVA_MODULES[:3]), "options nouveau modeset=0"]
        )
        yield run_step(
            "configure",
            "blacklist nouveau",
            join_commands(command("printf", rf"{lines}\n"), Shell("|"), command("sudo", "tee", _BLACKLIST_FILE)),
        )
        yield rebuild_initramfs(snapshot)
    yield reboot_node()


RULES: Final = (
    Rule(
        cause="nouveau-bound",
        layer="kernel",
        disruption="reboot",
        decisive=all_of(_NOUVEAU_BOUND, any_of(_NOUVEAU_NOT_BLACKLISTED, _GPU_LEFT_TO_NOVA)),
        typical=any_of(
            _NOUVEAU_BOUND,
            # On a hypervisor host the owner may be vfio-pci.
            unless(kernel_line(r"probe routine was not called for \d+ device"), _HOST_RUNS_GUESTS),
        ),
        share=2,
        symptoms=(symptoms.NO_DRIVER, symptoms.NO_MODULE, symptoms.NO_DEVICES, symptoms.ADAPTER_INIT_FAILED),
        against=(symptoms.DRIVER_WORKS, _ALL_GPUS_LEGACY),
        rivals=frozenset({"vfio-bound"}),
        look_at=(Shell("lspci -nnk -d 10de:"), Shell("grep -r nouveau /etc/modprobe.d /lib/modprobe.d")),
        summary=lambda node: (
            f"{'nova' if node.view(_NOVA_BOUND) else 'nouveau'} owns the GPU, so NVIDIA's module does not get it"
        ),
        remedy=_blacklist_nouveau,
        explains=consequences.NO_DRIVER,
    ),
    Rule(
        cause="nouveau-in-initramfs",
        layer="kernel",
        disruption="reboot",
        decisive=all_of(_NOUVEAU_BOUND, _BLACKLIST, _NOUVEAU_IN_INITRAMFS),
        typical=any_of(unless(all_of(_NOUVEAU_BOUND, _BLACKLIST), _INITRAMFS_WAS_LISTED), _NOUVEAU_LISTED_IN_INITRAMFS),
        symptoms=(symptoms.NO_DRIVER, symptoms.NO_MODULE, symptoms.NO_DEVICES, symptoms.ADAPTER_INIT_FAILED),
        context=any_of(_NOUVEAU_IN_INITRAMFS, _BLACKLIST),
        against=(symptoms.DRIVER_WORKS, _ALL_GPUS_LEGACY, _GPU_LEFT_TO_NOVA),
        look_at=(
            Shell("lsinitramfs /boot/initrd.img-$(uname -r) | grep nouveau"),
            Shell("grep -r nouveau /etc/modprobe.d /lib/modprobe.d"),
        ),
        remedy=rebuild_initramfs_and_reboot,
        explains=consequences.NO_DRIVER | {"nouveau-bound"},
    ),
)
