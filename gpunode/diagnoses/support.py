"""Which driver drives which GPU: branches that came too early or end too soon, and the wrong kind of modules.

The kernel log names it where the driver refused a GPU. Before that the catalog tells: by the device id, the branches
that know the GPU and whether it takes the open modules, and by the module or packages, version and licence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpunode.catalog import branches
from gpunode.catalog.driver import Choice, choose
from gpunode.catalog.gpus import GpuModel
from gpunode.diagnoses import chains, packaged, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE, OPEN_MODULES
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.model import Citation, Fix, Rule, RuleFamily, Sign
from gpunode.diagnoses.remedies import by_hand, fabric_manager_too, guest_driver, reboot, run, takes_gpunode, uninstall
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
from gpunode.diagnoses.views import boards, cards, driver, guests, kernel, modules, packages
from gpunode.diagnoses.views.driver import VERSION
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern
from gpunode.recipe import Driver

LEGACY: Final = "gpu-legacy-unsupported-by-branch"
TOO_NEW: Final = "gpu-too-new-for-driver"
OPEN: Final = "open-module-on-pre-turing"
CLOSED: Final = "proprietary-module-on-blackwell"


def _refusal(pattern: str) -> Sign:
    return any_of(kernel_line(pattern), message_line(pattern))


_IGNORED: Final = _refusal(
    r"supported through the NVIDIA \d{2,3}\.\S{0,4} [Ll]egacy"
    r"|only supported (?:by|up to) the (?:Tesla )?\d{3} (?:legacy )?drivers"
)
_NO_GSP: Final = _refusal(
    r"not supported by open nvidia\.ko because it does not include|does not include the required GPU System Processor"
)
_NEEDS_OPEN: Final = _refusal(r"requires use of the NVIDIA open kernel modules")
_UNKNOWN: Final = _refusal(
    rf"not supported by the\s+(?:NVIDIA )?{VERSION} (?:NVIDIA )?(?:Linux graphics )?driver release"
)
_REFUSED: Final = any_of(_IGNORED, _NO_GSP, _NEEDS_OPEN, _UNKNOWN)
# By the kernel module, and by NVIDIA's installer.
_REFUSING: Final = Pattern(
    rf"[Tt]he\s+(?:NVIDIA )?(?P<version>{VERSION}|\d+\.xx)\s+(?:NVIDIA )?(?:Linux graphics )?driver"
)
_OPEN_PACKAGES: Final = ("nvidia-dkms-*open", "nvidia-kernel-open*", "nvidia-open*", "kmod-nvidia-open*", "*-open-dkms")
_CLOSED_PACKAGES: Final = ("nvidia-dkms-*", "nvidia-kernel-dkms", "kmod-nvidia-latest*", "nvidia-driver-[0-9]*")


@dataclass(frozen=True, slots=True)
class Release:
    """The driver of this node.

    Attributes:
        version: empty where nothing shows it.
        is_open: whether its modules are the open ones; None where nothing shows it.
    """

    version: str
    is_open: bool | None
    citations: tuple[Citation, ...]

    @property
    def branch(self) -> int:
        """The number before the first dot; 0 where the version is not known."""
        return whole(self.version.partition(".")[0]) or 0


def release(snapshot: Snapshot) -> Release:
    """The driver that is loaded, else the one on disk, in the packages, or that refused a GPU."""
    seen = [one for one in (driver.loaded(snapshot), driver.on_disk(snapshot)) if one is not None]
    installed = [one for one in driver.packaged(snapshot) if one.is_installed][:1]
    versions = [*(one.version for one in seen), *(one.upstream for one in installed), *_refusing(snapshot)]
    kinds = [(one.is_open, one.citation) for one in seen]
    kinds += [(one.is_open, one.citation) for one in snapshot.view(modules.driver_info)]
    kinds += _kinds_of_packages(snapshot)
    is_open, place = next((one for one in kinds if one[0] is not None), (None, None))
    cited = (*(one.citation for one in (seen or installed)), *filter(None, [place]))
    return Release(versions[0] if versions else "", is_open, tuple(dict.fromkeys(cited)))


def _refusing(snapshot: Snapshot) -> Iterator[str]:
    messages = (_REFUSING.search(message.text) for message in kernel.said(snapshot, _REFUSING))
    yield from (match["version"] for match in (*messages, snapshot.match(_REFUSING)) if match)


def _kinds_of_packages(snapshot: Snapshot) -> list[tuple[bool | None, Citation]]:
    is_open = [one for one in packages.matching(snapshot, *_OPEN_PACKAGES) if one.is_installed]
    closed = [one for one in packages.matching(snapshot, *_CLOSED_PACKAGES) if "open" not in one.name]
    closed = [one for one in closed if one.is_installed]
    return [(bool(is_open), (is_open or closed)[0].citation)] if bool(is_open) != bool(closed) else []


def _cause(model: GpuModel, found: Release) -> str:
    """What keeps a driver from a GPU, by the catalog alone; a GPU that no list has is not judged."""
    branch = found.branch
    if branch and model.last_branch is not None and branch > model.last_branch:
        return LEGACY
    if found.is_open and not model.takes_open_modules:
        return OPEN
    if branch and (model.listed or not model.device_id) and branch < model.first_branch:
        return TOO_NEW
    if found.is_open is False and model.needs_open_modules and (model.listed or not model.device_id):
        return CLOSED
    return ""


def _misfits(snapshot: Snapshot, cause: str) -> list[cards.Card]:
    """The GPUs that the installed driver does not drive for this reason."""
    return [card for card in snapshot.view(cards.cards) if _cause(card.model, snapshot.view(release)) == cause]


def _by_catalog(cause: str) -> Sign:
    """The GPUs that the installed driver does not drive, with the driver; what the kernel log says goes before."""

    def read(snapshot: Snapshot) -> Iterable[Citation]:
        misfits = [card.citation for card in _misfits(snapshot, cause)]
        return (*misfits, *snapshot.view(release).citations) if misfits else ()

    return unless(custom_sign(read), _REFUSED)


def _named(cause: str, words: str) -> Callable[[Snapshot], str]:
    """The sentence ``words`` with the GPU and the driver of this node."""

    def summary(snapshot: Snapshot) -> str:
        known = snapshot.view(cards.cards)
        card = next(iter(_misfits(snapshot, cause)), known[0] if len(known) == 1 else None)
        gpu = card.model.label if card else "this GPU"
        return words.format(gpu=gpu, driver=f"driver {snapshot.view(release).version}".rstrip())

    return summary


def undriven(snapshot: Snapshot) -> frozenset[str]:
    """The addresses of the GPUs that the driver does not take up; an empty one for each of which no address is known.

    That nvidia-smi does not show them is as it must be.
    """
    known, found = snapshot.view(cards.cards), snapshot.view(release)
    left = frozenset(card.address for card in known if _cause(card.model, found))
    return left or frozenset({""} if snapshot.view(_REFUSED) else ())


def _shows_all(snapshot: Snapshot) -> bool:
    shown = [one.count for one in snapshot.view(boards.inventories) if one.count is not None]
    return driver.works(snapshot) and not (shown and max(shown) < len(snapshot.view(cards.cards)))


def _drives_others(snapshot: Snapshot) -> bool:
    """Whether the installed driver drives another GPU of the node."""
    found, models = snapshot.view(release), {card.model for card in snapshot.view(cards.cards)}
    return bool(found.branch) and len(models) > 1 and any(not _cause(model, found) for model in models)


def _left(snapshot: Snapshot) -> Iterator[Fix]:
    """The driver as it is, where it drives other GPUs of the node and none that is maintained drives all."""
    common = choose([card.model for card in snapshot.view(cards.cards)], Driver())
    if _drives_others(snapshot) and not isinstance(common, Choice):
        text = f"leave the driver as it is, for the GPUs that it drives: {common.what} ({common.why})"
        yield by_hand("hardware", f"{text}; where this GPU is to be used, put it into another machine")


def _install(snapshot: Snapshot, *, keep: bool = False) -> Fix:
    """The driver for all GPUs of this node; of the installed branch where that may stay."""
    models = tuple(card.model for card in snapshot.view(cards.cards))
    here = branches.find(snapshot.view(release).branch)
    if guests.is_vgpu(snapshot):
        return guest_driver("install a driver that fits this share of a GPU")
    found = choose(models, Driver(version=str(here.number))) if keep and here and here.active else None
    chosen = found if isinstance(found, Choice) else choose(models, Driver())
    if takes_gpunode(snapshot) and isinstance(chosen, Choice):
        # By its number: a maintained branch that is installed would stay.
        text = f"install driver {chosen.branch} with its {chosen.flavour} kernel modules"
        return run("install", text, command("sudo", "gpunode", "setup", "--driver", str(chosen.branch)))
    return packaged.installing(snapshot, "install the driver that this GPU takes")


def _other_driver(*, keep: bool = False) -> Callable[[Snapshot], Iterable[Fix]]:
    def remedy(snapshot: Snapshot) -> Iterable[Fix]:
        if left := tuple(_left(snapshot)):
            yield from left
            return
        yield _install(snapshot, keep=keep)
        yield from fabric_manager_too(snapshot)
        yield reboot()

    return remedy


def _in_the_place_of(old: str, *, keep: bool = False) -> Callable[[Snapshot], Iterable[Fix]]:
    """Takes the packages of the driver away, by their names; where those are not known, by what takes their place."""

    def remedy(snapshot: Snapshot) -> Iterable[Fix]:
        if left := tuple(_left(snapshot)):
            yield from left
            return
        names = [one.name for one in (*driver.kernel_side(snapshot), *driver.whole(snapshot))]
        instead = _install(snapshot, keep=keep)
        if names and instead.commands:
            yield uninstall(snapshot, f"remove the packages {old}", *names)
            yield instead
        else:
            yield replace(instead, kind="remove", text=f"replace the packages {old}: {instead.text}")
        yield from fabric_manager_too(snapshot)
        yield reboot()

    return remedy


def _any_model(will_do: Callable[[GpuModel], bool], words: str) -> Sign:
    return predicate(lambda snapshot: any(will_do(model) for model in snapshot.view(cards.models)), words)


def _is_ended(model: GpuModel) -> bool:
    last = branches.find(model.last_branch) if model.last_branch else None
    return last is not None and not last.active


_DROPPED: Final = custom_sign(lambda snapshot: (card.citation for card in _misfits(snapshot, LEGACY)))
_OLD_GPU: Final = _any_model(lambda one: one.last_branch is not None, "a GPU that newer branches no longer drive")
_NEW_GPU: Final = _any_model(lambda one: one.needs_open_modules, "a GPU that the open modules alone drive")
_WITHOUT_GSP: Final = _any_model(lambda one: not one.takes_open_modules, "a GPU that the open modules do not drive")
_ENDED: Final = _any_model(_is_ended, "a GPU that no maintained branch drives")
_VERSION: Final = predicate(lambda snapshot: bool(snapshot.view(release).version), "the driver's version is known")
_FAILS: Final = any_of(symptoms.NO_DEVICES, symptoms.NOT_STARTED)
_OPEN_ON_DISK: Final = predicate(
    lambda snapshot: snapshot.view(release).is_open is True, "the open modules are installed"
)
_CLOSED_ON_DISK: Final = predicate(
    lambda snapshot: snapshot.view(release).is_open is False, "the proprietary modules are installed"
)
_FOR_OTHERS: Final = any_of(symptoms.DRIVER_WORKS, predicate(_drives_others, "the driver drives another GPU"))
_LICENCE_SHOWN: Final = all_of(command_run(r"\bmodinfo\b"), message_line(r"^license:", "modinfo"))
_AGAINST: Final = (predicate(_shows_all, "nvidia-smi shows all GPUs"),)
_SUPPORTED: Final = "https://docs.nvidia.com/datacenter/tesla/drivers/"
_MODULES: Final = f"{DRIVER_GUIDE}kernel-modules.html"

FAMILY: Final = RuleFamily(
    "support",
    "which driver drives which GPU",
    (
        Rule(
            cause=LEGACY,
            layer="driver",
            disruption="reboot",
            title="the installed branch no longer drives this GPU",
            share=2,
            symptoms=(symptoms.NOT_STARTED, symptoms.NO_DEVICES, symptoms.NO_DRIVER, symptoms.BUILD_FAILED),
            look_at=(Shell("sudo dmesg | grep -i nvrm"), Shell("lspci -nn -d 10de:")),
            story=(
                "NVIDIA ends the support of old generations with a certain branch: 390 is the last for Fermi, 470 for "
                "Kepler, 580 for Maxwell, Pascal and Volta. A newer driver installs and builds without complaint, "
                "then ignores the GPU: the kernel log names the legacy branch, the module finds no GPU and unloads, "
                "and nvidia-smi cannot reach it. Only a driver of the last branch, or another GPU, helps."
            ),
            sources=(
                f"{_SUPPORTED}cuda-toolkit-driver-and-architecture-matrix.html",
                "https://www.nvidia.com/en-us/drivers/unix/legacy-gpu/",
                "https://github.com/siderolabs/talos/issues/8764",
            ),
            decisive=any_of(_IGNORED, all_of(_UNKNOWN, _DROPPED)),
            typical=any_of(_by_catalog(LEGACY), unless(all_of(_ENDED, any_of(_FAILS, symptoms.NO_DRIVER)), _VERSION)),
            latent=_FOR_OTHERS,
            summary=_named(LEGACY, "{driver} no longer drives {gpu}: an older branch was the last that does"),
            context=_OLD_GPU,
            against=_AGAINST,
            remedy=_in_the_place_of("of the branch that no longer drives this GPU"),
            explains=chains.NO_DRIVER | {"open-module-on-pre-turing", "no-gpu-present"},
        ),
        Rule(
            cause=TOO_NEW,
            layer="driver",
            disruption="reboot",
            title="the installed driver does not know this GPU yet",
            share=1.2,
            symptoms=(symptoms.NOT_STARTED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
            look_at=(Shell("lspci -nn -d 10de:"), Shell("cat /proc/driver/nvidia/version")),
            story=(
                "Each driver knows the GPUs that existed when it was released. A newer one is on the bus and in "
                "lspci, often without a name, and the module refuses it as not supported by this release, or does not "
                "start it. A branch that lists the GPU is needed; for the newest generations that is one with the "
                "open kernel modules."
            ),
            sources=(
                f"{_SUPPORTED}cuda-toolkit-driver-and-architecture-matrix.html",
                f"{OPEN_MODULES}/issues/862",
                "https://github.com/MrMEEE/bumblebee-Old-and-abbandoned/issues/583",
            ),
            decisive=unless(_UNKNOWN, _DROPPED),
            typical=_by_catalog(TOO_NEW),
            latent=_FOR_OTHERS,
            summary=_named(TOO_NEW, "{driver} does not know {gpu}: it is older than that GPU"),
            context=_NEW_GPU,
            against=_AGAINST,
            remedy=_other_driver(),
            explains=chains.NO_DRIVER | {"proprietary-module-on-blackwell", "no-gpu-present"},
        ),
        Rule(
            cause=OPEN,
            layer="driver",
            disruption="reboot",
            title="the open kernel modules on a GPU before Turing",
            share=1.2,
            symptoms=(symptoms.NOT_STARTED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
            look_at=(Shell("modinfo -F license nvidia"), Shell("lspci -nn -d 10de:")),
            story=(
                "NVIDIA's open kernel modules leave much of the work to the GPU System Processor (GSP), which GPUs "
                "have from Turing on. From branch 560 the open modules are the default of NVIDIA's packages, so an "
                "upgrade brings them to Maxwell, Pascal and Volta, too, where they find no GSP and give up. Up to "
                "branch 580 the same driver with its proprietary modules drives these GPUs."
            ),
            sources=(_MODULES, "https://github.com/negativo17/nvidia-driver/issues/158", f"{OPEN_MODULES}/issues/19"),
            decisive=_NO_GSP,
            typical=any_of(_by_catalog(OPEN), all_of(_LICENCE_SHOWN, _OPEN_ON_DISK, symptoms.NO_DEVICES)),
            latent=_FOR_OTHERS,
            summary=_named(OPEN, "the open kernel modules are installed, and {gpu} has no GSP, which they need"),
            context=any_of(all_of(_OPEN_ON_DISK, _FAILS), _WITHOUT_GSP),
            against=_AGAINST,
            remedy=_other_driver(keep=True),
            explains=chains.NO_DRIVER,
        ),
        Rule(
            cause=CLOSED,
            layer="driver",
            disruption="reboot",
            title="the proprietary kernel modules on a GPU that needs the open ones",
            share=1.8,
            symptoms=(symptoms.CLOSED_OR_BAR, symptoms.NOT_STARTED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
            look_at=(Shell("modinfo -F license nvidia"), Shell("lspci -nn -d 10de:")),
            story=(
                "Blackwell and Grace Hopper are driven by NVIDIA's open kernel modules only. With the proprietary "
                "ones of the same version the module loads, the kernel log asks for the open modules, the GPU fails "
                "to start (RmInitAdapter failed, 0x22:0x56), and nvidia-smi finds no devices. The same number is met "
                "with a memory region that firmware left without an address: the line before it, or the module's "
                "licence, decides."
            ),
            sources=(_MODULES, f"{OPEN_MODULES}/issues/862", f"{OPEN_MODULES}/issues/872"),
            decisive=_NEEDS_OPEN,
            typical=any_of(
                _by_catalog(CLOSED),
                unless(all_of(_NEW_GPU, symptoms.NO_DEVICES), _VERSION),
                all_of(_LICENCE_SHOWN, _CLOSED_ON_DISK, symptoms.NO_DEVICES),
            ),
            latent=_FOR_OTHERS,
            summary=_named(CLOSED, "{driver} has its proprietary modules, and the open ones alone drive {gpu}"),
            context=any_of(all_of(_CLOSED_ON_DISK, _FAILS), _NEW_GPU),
            against=_AGAINST,
            remedy=_in_the_place_of("with the proprietary kernel modules", keep=True),
            explains=chains.NO_DRIVER | {"gsp-firmware-missing", "gsp-init-failed-platform"},
        ),
    ),
)
