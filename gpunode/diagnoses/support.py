"""Match drivers and GPUs: branches too old or too new for a GPU, and the wrong kind of modules.

The kernel log reports a refused GPU. Otherwise the catalog knows by device id which branches and modules support it;
module or packages show the version and licence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from gpunode.catalog import branches
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.catalog.gpus import GpuModel
from gpunode.diagnoses import consequences, remedies, symptoms
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.model import Citation, Fix, Rule, Sign
from gpunode.diagnoses.remedies import (
    align_fabric_manager,
    can_run_setup,
    install_guest_driver,
    manual_step,
    reboot_node,
    run_step,
    uninstall_driver,
)
from gpunode.diagnoses.signs import (
    all_of,
    any_of,
    command_run,
    custom_sign,
    kernel_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, driver, gpu_models, kernel, modules, packages, virtualization
from gpunode.diagnoses.views.driver import VERSION
from gpunode.facts.patterns import Pattern, parse_int
from gpunode.fast_dataclass import dataclass
from gpunode.recipe import Driver

LEGACY_GPU_CAUSE: Final = "gpu-legacy-unsupported-by-branch"
NEW_GPU_CAUSE: Final = "gpu-too-new-for-driver"
OPEN_MODULE_CAUSE: Final = "open-module-on-pre-turing"
PROPRIETARY_MODULE_CAUSE: Final = "proprietary-module-on-blackwell"


def _refusal_sign(pattern: str) -> Sign:
    return any_of(kernel_line(pattern), message_line(pattern))


_LEGACY_GPU_IGNORED: Final = _refusal_sign(
    r"supported through the NVIDIA \d{2,3}\.\S{0,4} [Ll]egacy"
    r"|only supported (?:by|up to) the (?:Tesla )?\d{3} (?:legacy )?drivers"
    r"|NVRM:[^\n]{0,99}\d{3}\.\S+ NVIDIA driver will ignore|NVRM: ignoring the legacy GPU [0-9a-f]"
    # NVIDIA's installer
    r"|NVIDIA GPUs are supported through NVIDIA legacy"
)
_GPU_WITHOUT_GSP_REFUSED: Final = _refusal_sign(
    r"nvidia\.ko because it does not include the required GPU|does not include the required GPU System Processor"
    r"|'MIT/GPL' kernel modules are incompatible"
)
_ONLY_DATA_CENTER_GPUS: Final = _refusal_sign(r"Open nvidia\.ko is only ready for use on Data Center GPUs")
_NEEDS_OPEN_MODULES_MESSAGE: Final = _refusal_sign(
    r"requires use of the NVIDIA open kernel modules"
    r"|'NVIDIA Proprietary' kernel modules are incompatible"
)
_GPU_UNKNOWN_TO_DRIVER: Final = _refusal_sign(
    rf"not supported by the\s+(?:NVIDIA )?{VERSION} (?:NVIDIA )?(?:Linux graphics )?driver release"
    # Debian's nvidia-detect
    rf"|card is not supported by any driver version up to {VERSION}"
)
_GPU_REFUSED_BY_DRIVER: Final = any_of(
    _LEGACY_GPU_IGNORED, _GPU_WITHOUT_GSP_REFUSED, _NEEDS_OPEN_MODULES_MESSAGE, _GPU_UNKNOWN_TO_DRIVER
)
# Reported by the kernel module and by NVIDIA's installer.
_REFUSING_DRIVER_VERSION: Final = Pattern(
    rf"[Tt]he\s+(?:NVIDIA )?(?P<version>{VERSION}|\d+\.xx)\s+(?:NVIDIA )?(?:Linux graphics )?driver"
)
_OPEN_PACKAGES: Final = ("nvidia-dkms-*open", "nvidia-kernel-open*", "nvidia-open*", "kmod-nvidia-open*", "*-open-dkms")
_CLOSED_PACKAGES: Final = ("nvidia-dkms-*", "nvidia-kernel-dkms", "kmod-nvidia-latest*", "nvidia-driver-[0-9]*")


@dataclass(frozen=True, slots=True)
class InstalledDriver:
    """The driver of this node.

    Attributes:
        version: empty if unknown.
        is_open: whether it has the open modules; None if unknown.
    """

    version: str
    is_open: bool | None
    citations: tuple[Citation, ...]

    @property
    def branch(self) -> int:
        """The number before the first dot; 0 if unknown."""
        return parse_int(self.version.partition(".")[0]) or 0


def installed_driver(snapshot: Snapshot) -> InstalledDriver:
    """Return the driver that is loaded, else on disk or in packages, else the one that refused a GPU."""
    seen = [one for one in (driver.loaded_version(snapshot), driver.on_disk_version(snapshot)) if one is not None]
    installed = [package for package in driver.driver_packages(snapshot) if package.is_installed][:1]
    versions = [*(one.version for one in seen), *(one.upstream for one in installed), *_refusing_versions(snapshot)]
    kinds = [(one.is_open, one.citation) for one in seen]
    kinds += [(modinfo.is_open, modinfo.citation) for modinfo in snapshot.view(modules.driver_modinfo)]
    kinds += _module_kinds_by_packages(snapshot)
    is_open, place = next((kind for kind in kinds if kind[0] is not None), (None, None))
    cited = (*(version.citation for version in (seen or installed)), *filter(None, [place]))
    return InstalledDriver(versions[0] if versions else "", is_open, tuple(dict.fromkeys(cited)))


def _refusing_versions(snapshot: Snapshot) -> Iterator[str]:
    messages = (
        _REFUSING_DRIVER_VERSION.search(message.text)
        for message in kernel.matching_messages(snapshot, _REFUSING_DRIVER_VERSION)
    )
    yield from (match["version"] for match in (*messages, snapshot.match(_REFUSING_DRIVER_VERSION)) if match)


def _module_kinds_by_packages(snapshot: Snapshot) -> list[tuple[bool | None, Citation]]:
    is_open = [package for package in packages.matching_packages(snapshot, *_OPEN_PACKAGES) if package.is_installed]
    closed = [one for one in packages.matching_packages(snapshot, *_CLOSED_PACKAGES) if "open" not in one.name]
    closed = [package for package in closed if package.is_installed]
    return [(bool(is_open), (is_open or closed)[0].citation)] if bool(is_open) != bool(closed) else []


def _misfit_cause(model: GpuModel, driver: InstalledDriver) -> str:
    """Return the cause for which the catalog excludes this driver for this GPU; empty for unknown GPUs."""
    branch = driver.branch
    if branch and model.last_branch is not None and branch > model.last_branch:
        return LEGACY_GPU_CAUSE
    if driver.is_open and not model.takes_open_modules:
        return OPEN_MODULE_CAUSE
    if branch and (model.listed or not model.device_id) and branch < model.first_branch:
        return NEW_GPU_CAUSE
    if driver.is_open is False and model.needs_open_modules and (model.listed or not model.device_id):
        return PROPRIETARY_MODULE_CAUSE
    return ""


def _misfit_cards(snapshot: Snapshot, cause: str) -> list[gpu_models.GpuCard]:
    """Return the GPUs that the installed driver does not support for this reason."""
    return [
        card
        for card in snapshot.view(gpu_models.whole_gpus)
        if _misfit_cause(card.model, snapshot.view(installed_driver)) == cause
    ]


def _catalog_sign(cause: str) -> Sign:
    """Return the sign of GPUs that the installed driver does not support, unless the log reports them."""

    def read(snapshot: Snapshot) -> Iterable[Citation]:
        misfits = [card.citation for card in _misfit_cards(snapshot, cause)]
        return (*misfits, *snapshot.view(installed_driver).citations) if misfits else ()

    return unless(custom_sign(read), _GPU_REFUSED_BY_DRIVER)


def _make_summary(cause: str, words: str) -> Callable[[Snapshot], str]:
    """Return the summary ``words`` with the GPU and the driver of this node."""

    def summary(snapshot: Snapshot) -> str:
        known = snapshot.view(gpu_models.whole_gpus)
        card = next(iter(_misfit_cards(snapshot, cause)), known[0] if len(known) == 1 else None)
        gpu = card.model.label if card else "this GPU"
        return words.format(gpu=gpu, driver=f"driver {snapshot.view(installed_driver).version}".rstrip())

    return summary


def _summarize_refused_gpu(snapshot: Snapshot) -> str:
    if virtualization.is_vgpu(snapshot):
        return _make_summary(NEW_GPU_CAUSE, "{gpu} is a vGPU here, which {driver} does not drive")(snapshot)
    return _make_summary(NEW_GPU_CAUSE, "{driver} does not support {gpu}: it is older than that GPU")(snapshot)


def _is_newer_than_gpus(snapshot: Snapshot) -> bool:
    """Return whether the driver's branch is later than the first branch that supports each of the GPUs.

    For GPUs that current branches no longer support, the catalog does not know the first branch.
    """
    branch, models = snapshot.view(installed_driver).branch, [gpu.model for gpu in snapshot.view(gpu_models.whole_gpus)]
    return bool(models) and all(one.listed and one.last_branch is None and branch > one.first_branch for one in models)


def gpus_without_driver_support(snapshot: Snapshot) -> frozenset[str]:
    """Return the addresses of GPUs that the driver rejects; an empty one if unknown.

    nvidia-smi cannot show them.
    """
    known, found = snapshot.view(gpu_models.whole_gpus), snapshot.view(installed_driver)
    left = frozenset(card.address for card in known if _misfit_cause(card.model, found))
    return left or frozenset({""} if snapshot.view(_GPU_REFUSED_BY_DRIVER) else ())


def _shows_all_gpus(snapshot: Snapshot) -> bool:
    shown = [inventory.count for inventory in snapshot.view(boards.smi_inventories) if inventory.count is not None]
    return driver.works(snapshot) and not (shown and max(shown) < len(snapshot.view(gpu_models.whole_gpus)))


def _drives_other_gpus(snapshot: Snapshot) -> bool:
    """Return whether the installed driver supports another GPU of the node."""
    found, models = snapshot.view(installed_driver), {card.model for card in snapshot.view(gpu_models.whole_gpus)}
    return bool(found.branch) and len(models) > 1 and any(not _misfit_cause(model, found) for model in models)


def _keep_driver(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the advice to keep the driver if it supports other GPUs and no maintained driver supports all."""
    common = choose_driver([card.model for card in snapshot.view(gpu_models.whole_gpus)], Driver())
    if _drives_other_gpus(snapshot) and not isinstance(common, DriverChoice):
        text = f"leave the driver as it is for the GPUs that it supports: {common.what} ({common.why})"
        yield manual_step("hardware", f"{text}; to use this GPU, put it into another machine")


def _await_other_modules(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield only the reboot if the other kind of modules is already installed by packages."""
    loaded, packaged = driver.loaded_version(snapshot), _module_kinds_by_packages(snapshot)
    if loaded and loaded.is_open is not None and packaged and packaged[0][0] is not loaded.is_open:
        yield reboot_node("reboot the node: the other kernel modules are installed, and the former ones still loaded")


def _install_step(snapshot: Snapshot, *, keep_branch: bool = False) -> Fix:
    """Return the step that installs a driver for all GPUs, of the installed branch if ``keep_branch``."""
    models = tuple(card.model for card in snapshot.view(gpu_models.whole_gpus))
    here = branches.find(snapshot.view(installed_driver).branch)
    if virtualization.is_vgpu(snapshot):
        return install_guest_driver("install a driver for this vGPU")
    choice = (
        choose_driver(models, Driver(version=str(here.number))) if keep_branch and here and here.is_maintained else None
    )
    chosen = choice if isinstance(choice, DriverChoice) else choose_driver(models, Driver())
    if can_run_setup(snapshot) and isinstance(chosen, DriverChoice):
        # By its number, since an installed maintained branch would be kept otherwise.
        text = f"install driver {chosen.branch} with its {chosen.flavour} kernel modules"
        return run_step("install", text, command("sudo", "gpunode", "setup", "--driver", str(chosen.branch)))
    return remedies.install_driver_packages(snapshot, "install the driver for this GPU")


def _change_driver(unfit: str = "", *, keep_branch: bool = False) -> Callable[[Snapshot], Iterable[Fix]]:
    """Return the remedy that installs a fitting driver; ``unfit`` describes packages to remove first."""

    def remedy(snapshot: Snapshot) -> Iterable[Fix]:
        if left := (*_keep_driver(snapshot), *(_await_other_modules(snapshot) if keep_branch else ())):
            yield from left
            return
        names = [package.name for package in (*driver.kernel_packages(snapshot), *driver.metapackages(snapshot))]
        install = _install_step(snapshot, keep_branch=keep_branch)
        if unfit and names and install.commands:
            yield uninstall_driver(snapshot, f"remove the packages {unfit}", *names)
        elif unfit:
            install = replace(install, kind="remove", text=f"replace the packages {unfit}: {install.text}")
        yield install
        yield from align_fabric_manager(snapshot)
        yield reboot_node()

    return remedy


def _model_sign(is_matching: Callable[[GpuModel], bool], words: str) -> Sign:
    return predicate(lambda snapshot: any(is_matching(model) for model in snapshot.view(gpu_models.gpu_models)), words)


def _is_branch_ended(model: GpuModel) -> bool:
    last = branches.find(model.last_branch) if model.last_branch else None
    return last is not None and not last.is_maintained


_LEGACY_GPU_WITH_NEWER_DRIVER: Final = custom_sign(
    lambda snapshot: (card.citation for card in _misfit_cards(snapshot, LEGACY_GPU_CAUSE))
)
_GPU_NEEDING_OPEN_MODULES: Final = _model_sign(
    lambda one: one.needs_open_modules, "a GPU that only the open modules drive"
)
_WITHOUT_GSP: Final = _model_sign(lambda one: not one.takes_open_modules, "a GPU that the open modules do not drive")
# Amazon's p2, p3 and g3, Azure's NC and ND up to v3: K80, M60, P100, V100.
_PRE_TURING_INSTANCE: Final = message_line(
    r"\b(?:p[23](?:dn)?|g3s?)\.\d{0,2}x?large\b|\bStandard_N[CD]\d{1,2}r?s?(?:_v[23])?\b"
)
_NO_MAINTAINED_DRIVER: Final = _model_sign(_is_branch_ended, "a GPU that no maintained branch drives")
_VERSION_KNOWN: Final = predicate(
    lambda snapshot: bool(snapshot.view(installed_driver).version), "the driver's version is known"
)
_GPU_NOT_STARTED: Final = any_of(symptoms.NO_DEVICES, symptoms.ADAPTER_INIT_FAILED)
_OPEN_ON_DISK: Final = predicate(
    lambda snapshot: snapshot.view(installed_driver).is_open is True, "the open modules are installed"
)
_PROPRIETARY_MODULES_INSTALLED: Final = predicate(
    lambda snapshot: snapshot.view(installed_driver).is_open is False, "the proprietary modules are installed"
)
_DRIVER_WORKS_FOR_SOME_GPU: Final = any_of(
    symptoms.DRIVER_WORKS, predicate(_drives_other_gpus, "the driver drives another GPU")
)
_LICENCE_SHOWN: Final = all_of(command_run(r"\bmodinfo\b"), message_line(r"^license:", "modinfo"))
# The driver also refuses such GPUs if each is a vGPU, which only the guest driver supports.
_DRIVER_NEWER_THAN_GPUS: Final = predicate(_is_newer_than_gpus, "earlier drivers drive these GPUs")
_VGPU: Final = predicate(virtualization.is_vgpu, "the GPU is a vGPU")
_SIGNS_AGAINST_MISFIT: Final = (predicate(_shows_all_gpus, "nvidia-smi shows all GPUs"),)


def _no_gpu_sign(is_matching: Callable[[GpuModel], bool], words: str) -> Sign:
    """Return the sign that the report shows its GPUs, but none of this kind and no refusal of one."""
    shows = predicate(lambda node: bool(node.view(gpu_models.gpu_models)), words)
    return unless(shows, _model_sign(is_matching, words), _GPU_REFUSED_BY_DRIVER)


_NO_LEGACY_GPU: Final = _no_gpu_sign(
    lambda one: one.last_branch is not None, "current branches drive the GPUs of this node"
)
_NO_GPU_BEFORE_TURING: Final = _no_gpu_sign(
    lambda one: not one.takes_open_modules, "no GPU of this node is before Turing"
)
_NO_GPU_NEEDS_OPEN: Final = _no_gpu_sign(
    lambda one: one.needs_open_modules, "no GPU of this node needs the open modules"
)

_rule = partial(Rule, layer="driver", disruption="reboot", latent=_DRIVER_WORKS_FOR_SOME_GPU)

RULES: Final = (
    _rule(
        cause=LEGACY_GPU_CAUSE,
        share=2,
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.NO_DRIVER, symptoms.BUILD_FAILED),
        look_at=(Shell("sudo dmesg | grep -i nvrm"), Shell("lspci -nn -d 10de:")),
        decisive=any_of(_LEGACY_GPU_IGNORED, all_of(_GPU_UNKNOWN_TO_DRIVER, _LEGACY_GPU_WITH_NEWER_DRIVER)),
        typical=any_of(
            _catalog_sign(LEGACY_GPU_CAUSE),
            unless(all_of(_NO_MAINTAINED_DRIVER, any_of(_GPU_NOT_STARTED, symptoms.NO_DRIVER)), _VERSION_KNOWN),
        ),
        summary=_make_summary(LEGACY_GPU_CAUSE, "{driver} no longer supports {gpu}: an older branch was its last"),
        context=_model_sign(lambda one: one.last_branch is not None, "a GPU that newer branches no longer drive"),
        against=(*_SIGNS_AGAINST_MISFIT, _NO_LEGACY_GPU),
        remedy=_change_driver("of the branch that no longer supports this GPU"),
        explains=consequences.NO_DRIVER | {"open-module-on-pre-turing", "no-gpu-present"},
    ),
    _rule(
        cause=NEW_GPU_CAUSE,
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
        look_at=(Shell("lspci -nn -d 10de:"), Shell("cat /proc/driver/nvidia/version")),
        decisive=unless(_GPU_UNKNOWN_TO_DRIVER, _LEGACY_GPU_WITH_NEWER_DRIVER, unless(_DRIVER_NEWER_THAN_GPUS, _VGPU)),
        typical=_catalog_sign(NEW_GPU_CAUSE),
        summary=_summarize_refused_gpu,
        context=_GPU_NEEDING_OPEN_MODULES,
        against=_SIGNS_AGAINST_MISFIT,
        remedy=_change_driver(),
        explains=consequences.NO_DRIVER | {"proprietary-module-on-blackwell", "no-gpu-present"},
    ),
    _rule(
        cause=OPEN_MODULE_CAUSE,
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
        look_at=(Shell("modinfo -F license nvidia"), Shell("lspci -nn -d 10de:")),
        decisive=_GPU_WITHOUT_GSP_REFUSED,
        typical=any_of(_catalog_sign(OPEN_MODULE_CAUSE), all_of(_LICENCE_SHOWN, _OPEN_ON_DISK, symptoms.NO_DEVICES)),
        summary=_make_summary(
            OPEN_MODULE_CAUSE, "the open kernel modules are installed, but {gpu} lacks the GSP that they need"
        ),
        context=any_of(all_of(_OPEN_ON_DISK, _GPU_NOT_STARTED), _WITHOUT_GSP, _PRE_TURING_INSTANCE),
        against=(*_SIGNS_AGAINST_MISFIT, _NO_GPU_BEFORE_TURING),
        remedy=_change_driver(keep_branch=True),
        explains=consequences.NO_DRIVER,
    ),
    _rule(
        cause="open-module-only-data-center",
        share=0.1,
        decisive=_ONLY_DATA_CENTER_GPUS,
        symptoms=(_ONLY_DATA_CENTER_GPUS, symptoms.ADAPTER_INIT_FAILED),
        look_at=(Shell("cat /proc/driver/nvidia/version"),),
        against=_SIGNS_AGAINST_MISFIT,
        remedy=_change_driver(),
        explains=consequences.NO_DRIVER | {"gsp-init-failed-platform", "gsp-firmware-missing"},
    ),
    _rule(
        cause=PROPRIETARY_MODULE_CAUSE,
        share=1.8,
        symptoms=(symptoms.INIT_FAILED_22_56, symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
        look_at=(Shell("modinfo -F license nvidia"), Shell("lspci -nn -d 10de:")),
        decisive=_NEEDS_OPEN_MODULES_MESSAGE,
        typical=any_of(
            _catalog_sign(PROPRIETARY_MODULE_CAUSE),
            unless(all_of(_GPU_NEEDING_OPEN_MODULES, symptoms.NO_DEVICES), _VERSION_KNOWN),
            all_of(_LICENCE_SHOWN, _PROPRIETARY_MODULES_INSTALLED, symptoms.NO_DEVICES),
        ),
        summary=_make_summary(
            PROPRIETARY_MODULE_CAUSE, "{driver} is installed with proprietary modules, but {gpu} needs the open ones"
        ),
        context=any_of(
            all_of(_PROPRIETARY_MODULES_INSTALLED, _GPU_NOT_STARTED),
            _GPU_NEEDING_OPEN_MODULES,
            message_line(r"(?i)\bopen(?:-source)? (?:gpu )?kernel modules?\b[^\n]{0,20}\b(?:required|needed)\b"),
        ),
        against=(*_SIGNS_AGAINST_MISFIT, _NO_GPU_NEEDS_OPEN),
        remedy=_change_driver("with the proprietary kernel modules", keep_branch=True),
        explains=consequences.NO_DRIVER | {"gsp-firmware-missing", "gsp-init-failed-platform", "xid-62-pmu-halt"},
    ),
)
