"""Which driver drives which GPU: branches that came too early or end too soon, and the wrong kind of modules.

Most of it is known before the kernel log says so: the device id tells the generation, the catalog the branches that
know it and whether it takes the open modules, and the module on disk its version and licence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpunode import distros
from gpunode.catalog import branches
from gpunode.catalog.driver import Choice, Impossible, choose
from gpunode.catalog.gpus import GpuModel
from gpunode.diagnoses import chains, packaged, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE, OPEN_MODULES
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.model import Citation, Confidence, Family, Fix, Proof, Rule, Sign, Verdict, only
from gpunode.diagnoses.remedies import (
    by_hand,
    fabric_manager_too,
    guest_driver,
    reboot,
    run,
    takes_gpunode,
    uninstall,
)
from gpunode.diagnoses.signs import all_of, any_of, holds
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, cards, driver, guests, kernel, modules, packages, pci, system
from gpunode.diagnoses.views.cards import Card
from gpunode.diagnoses.views.driver import VERSION
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern
from gpunode.recipe import Driver

_LEGACY: Final = Pattern(
    r"supported through the NVIDIA (?P<branch>\d{2,3})\.\S{0,4} [Ll]egacy"
    r"|only supported (?:by|up to) the (?:Tesla )?(?P<series>\d{3}) (?:legacy )?drivers"
)
_IGNORED: Final = Pattern(rf"[Tt]he (?P<version>{VERSION}|\d+\.xx) NVIDIA (?:Linux graphics )?driver will ignore")
_NO_GSP: Final = Pattern(
    r"not supported by open nvidia\.ko because it does not include|does not include the required GPU System Processor"
)
_NEEDS_OPEN: Final = Pattern(r"requires use of the NVIDIA open kernel modules")
_UNKNOWN: Final = Pattern(
    rf"not supported by the\s+(?:NVIDIA )?(?P<version>{VERSION}) (?:NVIDIA )?(?:Linux graphics )?driver release"
)
# NVIDIA's installer says so also where there is no GPU at all.
_NONE_OF_MINE: Final = Pattern(rf"do not appear to have an NVIDIA GPU supported by the (?P<version>{VERSION})")
_OPEN_PACKAGES: Final = ("nvidia-dkms-*open", "nvidia-kernel-open*", "nvidia-open*", "kmod-nvidia-open*", "*-open-dkms")
_CLOSED_PACKAGES: Final = ("nvidia-dkms-*", "nvidia-kernel-dkms", "kmod-nvidia-latest*", "nvidia-driver-[0-9]*")


@dataclass(frozen=True, slots=True)
class Release:
    """The driver of this node.

    Attributes:
        version: empty where nothing tells it.
        is_open: whether its modules are the open ones; None where nothing tells.
    """

    version: str
    is_open: bool | None
    citations: tuple[Citation, ...]

    @property
    def branch(self) -> int:
        """The number before the first dot; 0 where the version is not known."""
        head = self.version.partition(".")[0]
        return whole(head) or 0


def release(snapshot: Snapshot) -> Release:
    """The driver that is loaded or refused, else the one on disk, else the one that packages brought."""
    seen = [one for one in (driver.loaded(snapshot), driver.on_disk(snapshot)) if one is not None]
    packaged = [one for one in driver.packaged(snapshot) if one.is_installed]
    version = next((one.version for one in seen), packaged[0].upstream if packaged else _from_words(snapshot))
    kinds = [(one.is_open, one.citation) for one in seen if one.is_open is not None]
    kinds += [(info.is_open, info.citation) for info in snapshot.view(modules.driver_info) if info.is_open is not None]
    kinds += list(_kinds_of_packages(snapshot))
    cited = [one.citation for one in seen] or [one.citation for one in packaged[:1]]
    return Release(
        version, kinds[0][0] if kinds else None, tuple(dict.fromkeys([*cited, *(kind[1] for kind in kinds[:1])]))
    )


def _from_words(snapshot: Snapshot) -> str:
    """The version that the kernel's refusal names."""
    for pattern in (_UNKNOWN, _IGNORED, _NONE_OF_MINE):
        for message in kernel.said(snapshot, pattern):
            if match := pattern.search(message.text):
                return match["version"]
        if match := snapshot.match(pattern):
            return match["version"]
    return ""


def _kinds_of_packages(snapshot: Snapshot) -> Iterator[tuple[bool, Citation]]:
    is_open = [one for one in packages.matching(snapshot, *_OPEN_PACKAGES) if one.is_installed]
    closed = [
        one for one in packages.matching(snapshot, *_CLOSED_PACKAGES) if one.is_installed and "open" not in one.name
    ]
    if bool(is_open) != bool(closed):
        yield bool(is_open), (is_open or closed)[0].citation


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """What stands between each GPU and the driver: the kernel's own word, else what catalog and module tell."""
    said = tuple(_said(snapshot))
    if said:
        yield from said
        return
    found, known = snapshot.view(release), snapshot.view(cards.cards)
    # A driver that works drives all there is, unless it shows fewer GPUs than the bus.
    for card in known if not driver.works(snapshot) or _shows_fewer(snapshot, len(known)) else ():
        yield from _predicted(snapshot, card, found)


def _shows_fewer(snapshot: Snapshot, count: int) -> bool:
    shown = [one.count for one in snapshot.view(boards.inventories) if one.count is not None]
    return bool(shown) and max(shown) < count


def _said(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    for cause, pattern in _WORDS:
        lines = tuple(message.citation for message in kernel.said(snapshot, pattern)) or snapshot.said(pattern)
        if lines:
            card, found = _card_of(snapshot, pattern), snapshot.view(release)
            decided = _in_truth(cause, card, found)
            summary = _summary(decided, card.model if card else None, found, _named_branch(snapshot))
            address = card.address if card else ""
            told = Proof(summary, (*lines, *found.citations), "certain", _RULED_OUT.get(decided, ()), address)
            yield decided, _beside_others(snapshot, decided, told, card, found)


_WORDS: Final = (
    ("gpu-legacy-unsupported-by-branch", _LEGACY),
    ("open-module-on-pre-turing", _NO_GSP),
    ("proprietary-module-on-blackwell", _NEEDS_OPEN),
    ("gpu-too-new-for-driver", _UNKNOWN),
)
_RULED_OUT: Final = {
    "proprietary-module-on-blackwell": (
        "a memory region without an address: the driver names the modules as the reason",
    ),
    "open-module-on-pre-turing": ("a GPU too new for the driver: it lacks the GSP, which newer ones have",),
}


def _in_truth(cause: str, card: Card | None, found: Release) -> str:
    """The driver says "not supported by this release" of a GPU that is too new, and of one that it has dropped."""
    if cause == "gpu-too-new-for-driver" and card is not None and found.branch:
        last = card.model.last_branch
        if last is not None and last < found.branch:
            return "gpu-legacy-unsupported-by-branch"
    return cause


def _card_of(snapshot: Snapshot, pattern: Pattern) -> Card | None:
    """The GPU that the message is about, where it names one, else the only one."""
    known = snapshot.view(cards.cards)
    lines = {message.citation for message in kernel.said(snapshot, pattern)}
    named = [card for card in known if card.citation in lines]
    named += [card for card in known if any(card.address in line.line for line in lines if card.address)]
    named += [card for card in known if any(_is_named(card, line.line) for line in lines)]
    # Of several the one that the table has this said of.
    untaken = [card for card in known if _cause(card.model, snapshot.view(release))]
    named += untaken if len(untaken) == 1 else []
    return named[0] if named else known[0] if len(known) == 1 else None


def _is_named(card: Card, line: str) -> bool:
    return f" {card.model.name.removeprefix('NVIDIA ')} GPU " in line


def _predicted(snapshot: Snapshot, card: Card, found: Release) -> Iterator[tuple[str, Verdict]]:
    if not found.branch and found.is_open is None:
        return
    if cause := _cause(card.model, found):
        confidence: Confidence = "likely"
        summary = _summary(cause, card.model, found, card.model.last_branch)
        told = Proof(summary, (card.citation, *found.citations), confidence, gpu=card.address)
        yield cause, _beside_others(snapshot, cause, told, card, found)


def _beside_others(snapshot: Snapshot, cause: str, told: Proof, card: Card | None, found: Release) -> Proof:
    """The proof as it is where the driver drives another GPU of the node: that one is not to be lost over this one."""
    known = snapshot.view(cards.cards)
    here = replace(found, is_open=_IS_OPEN.get(cause, found.is_open))
    # What the driver takes by the table is not held back by the GPU that it leaves alone.
    others = [one for one in known if card and one.model != card.model and here.branch and not _cause(one.model, here)]
    bound = {gpu.address for gpu in snapshot.view(pci.gpus) if gpu.driver == "nvidia"}
    works = driver.works(snapshot) or any(one.address in bound for one in others)
    if not works and (not others or kernel.said(snapshot, _NONE_STARTED)):
        return told
    lone = replace(told, severity="warning" if works else "info")
    common = choose([one.model for one in known], Driver())
    # A driver that nobody maintains any more may drive all of them, and is no reason to take a working one away.
    if known and isinstance(common, Impossible):
        return replace(lone, remedy=(_leave(common),), disruption="none")
    return lone


_NONE_STARTED: Final = Pattern(
    r"None of the NVIDIA (?:graphics adapters|devices) were initialized|No NVIDIA (?:graphics adapter|GPU) found"
)
# Which modules the driver has by what it says.
_IS_OPEN: Final = {"open-module-on-pre-turing": True, "proprietary-module-on-blackwell": False}


def _leave(apart: Impossible) -> Fix:
    text = f"leave the driver as it is, for the GPUs that it drives: {apart.what} ({apart.why})"
    return by_hand("hardware", f"{text}; where this GPU is to be used, put it into another machine")


def undriven(snapshot: Snapshot) -> frozenset[str]:
    """The addresses of the GPUs that the driver does not take up; an empty one for each of which no address is known.

    That nvidia-smi does not show them is as it must be.
    """
    return frozenset(verdict.gpu for _, verdict in snapshot.view(_decided) if isinstance(verdict, Proof))


def _decided(snapshot: Snapshot) -> tuple[tuple[str, Verdict], ...]:
    return tuple(_decide(snapshot))


def _cause(model: GpuModel, found: Release) -> str:
    """What keeps a driver from a GPU, by the catalog alone; a GPU that no list has is not judged."""
    branch = found.branch
    if branch and model.last_branch is not None and branch > model.last_branch:
        return "gpu-legacy-unsupported-by-branch"
    if found.is_open and not model.takes_open_modules:
        return "open-module-on-pre-turing"
    if branch and (model.listed or not model.device_id) and branch < model.first_branch:
        return "gpu-too-new-for-driver"
    if found.is_open is False and model.needs_open_modules and (model.listed or not model.device_id):
        return "proprietary-module-on-blackwell"
    return ""


def _named_branch(snapshot: Snapshot) -> int | None:
    match = snapshot.match(_LEGACY) or next(
        (match for message in kernel.said(snapshot, _LEGACY) if (match := _LEGACY.search(message.text))), None
    )
    return int(match["branch"] or match["series"]) if match else None


def _summary(cause: str, model: GpuModel | None, found: Release, last: int | None) -> str:
    gpu = model.label if model else "this GPU"
    installed = f"driver {found.version}" if found.version else "the installed driver"
    if cause == "gpu-legacy-unsupported-by-branch":
        limit = last or (model.last_branch if model else None)
        until = f"{limit} is the last branch that drives it" if limit else "an older branch does"
        return f"{installed} no longer drives {gpu}: {until}"
    if cause == "open-module-on-pre-turing":
        return f"the open kernel modules are installed, and {gpu} has no GSP, which they need"
    if cause == "proprietary-module-on-blackwell":
        return f"the proprietary kernel modules of {installed} are installed, and {gpu} is driven by the open ones only"
    first = model.first_branch if model else 0
    since = f"; {first} is the first branch that does" if first > found.branch else ""
    return f"{installed} does not know {gpu}: it is older than that GPU{since}"


# What to install instead.


def _choice(snapshot: Snapshot, *, keep_branch: bool) -> Choice | Impossible:
    """The driver for the GPUs of this node; of the installed branch where that may stay."""
    models = tuple(card.model for card in snapshot.view(cards.cards))
    branch = snapshot.view(release).branch
    known = branches.find(branch) if keep_branch else None
    if known is not None and known.active:
        kept = choose(models, Driver(version=str(branch)))
        if isinstance(kept, Choice):
            return kept
    return choose(models, Driver())


def _no_common_driver(snapshot: Snapshot) -> Impossible | None:
    """Why no driver takes all GPUs of this node; None where one does, though it may be an old one."""
    models = tuple(card.model for card in snapshot.view(cards.cards))
    found = choose(models, Driver())
    last = min((model.last_branch for model in models if model.last_branch), default=None)
    if not models or isinstance(found, Choice) or last is None:
        return found if models and isinstance(found, Impossible) else None
    is_too_new = any(model.first_branch > last for model in models)
    return found if last >= _OFFERED_FROM or is_too_new else None


def _install(snapshot: Snapshot, cause: str, *, keep_branch: bool = False) -> Iterator[Fix]:
    if guests.is_vgpu(snapshot):
        yield guest_driver("install a driver that fits this share of a GPU")
        return
    if apart := _no_common_driver(snapshot):
        yield by_hand("replace", f"{apart.what}: {apart.why}; {apart.hint}")
        return
    choice = _choice(snapshot, keep_branch=keep_branch)
    last = _named_branch(snapshot) or min(
        (card.model.last_branch for card in snapshot.view(cards.cards) if card.model.last_branch), default=None
    )
    if last is not None and last < _OFFERED_FROM:
        yield _of_distribution(snapshot, last)
    else:
        yield _from_repository(snapshot, cause, choice if isinstance(choice, Choice) else None, last)


_OFFERED_FROM: Final = 580


def _from_repository(snapshot: Snapshot, cause: str, choice: Choice | None, last: int | None) -> Fix:
    kind = _flavours(cause, choice)
    branch = choice.branch if choice else last
    what = f"driver {branch} with its {kind} kernel modules" if branch else f"the {kind} kernel modules of the driver"
    manager = snapshot.view(system.package_manager)
    if manager == "apt":
        known = system.distro(snapshot)
        family = distros.family(known) if known else None
        names = f": {' '.join(family.driver_packages(choice, 'compute'))}" if family and choice else ""
        # By its number: a maintained branch that is installed would stay.
        chosen = ("--driver", str(branch)) if branch else ()
        if takes_gpunode(snapshot):
            return run("install", f"install {what}{names}", command("sudo", "gpunode", "setup", *chosen))
        return by_hand("install", f"install {what}{names}, from the distribution or NVIDIA's repository")
    if manager == "dnf":
        return _by_dnf(snapshot, f"install {what}", kind, branch)
    way = packaged.of_branch(snapshot, (branch or _OFFERED_FROM) if kind != "open" else None)
    words = f"install {what}: {way.words}" if way.words else f"install {what}"
    return run("install", words, *way.commands)


def _flavours(cause: str, choice: Choice | None) -> str:
    if choice is not None:
        return choice.flavour
    return "proprietary" if cause in {"open-module-on-pre-turing", "gpu-legacy-unsupported-by-branch"} else "open"


def _by_dnf(snapshot: Snapshot, text: str, kind: str, branch: int | None) -> Fix:
    """RHEL 8 and 9 have module streams; RHEL 10 and Fedora choose by the meta package; RPM Fusion builds by akmods."""
    is_dropped = kind != "open" and (snapshot.view(release).branch or 0) > _OFFERED_FROM
    if packages.matching(snapshot, "akmod-nvidia*") and not is_dropped:
        value = "kernel-open" if kind == "open" else "kernel"
        conf = command("sudo", "sed", "-i.bak", "-E", f"s/kernel(-open)?$/{value}/", "/etc/nvidia/kernel.conf")
        return run("install", text, conf, Shell("sudo akmods --force --rebuild"))
    if packaged.has_streams(snapshot):
        own = f"{branch}-{'open' if kind == 'open' else 'dkms'}" if branch else "open-dkms"
        # With its profile: the packages of the other branch may be gone before.
        stream = f"nvidia-driver:{own}/default" if kind == "open" or branch else "nvidia-driver:latest-dkms/default"
        return run("install", text, command("sudo", "dnf", "module", "switch-to", stream, "--allowerasing"))
    if kind == "open":
        return run("install", text, command("sudo", "dnf", "install", "--allowerasing", "nvidia-open"))
    way = packaged.of_branch(snapshot, branch or _OFFERED_FROM)
    return run("install", f"{text}: {way.words}", *way.commands)


def _of_distribution(snapshot: Snapshot, last: int) -> Fix:
    """The legacy branches are not in NVIDIA's repositories; distributions keep some of them."""
    way = packaged.ended(snapshot, last)
    return run("install", f"install the last driver for this GPU: {way.words}", *way.commands)


def _in_the_place_of(snapshot: Snapshot, old: str, cause: str, *, keep_branch: bool = False) -> Iterator[Fix]:
    """Takes the packages of the driver away, by their names; where those are not known, by what takes their place."""
    instead = tuple(_install(snapshot, cause, keep_branch=keep_branch))
    if _no_common_driver(snapshot) or guests.is_vgpu(snapshot):
        yield from instead  # what is there goes when something can come in its place
        return
    if names := [one.name for one in (*driver.kernel_side(snapshot), *driver.whole(snapshot))]:
        yield uninstall(snapshot, f"remove the packages {old}", *names)
        yield from instead
        return
    first, *rest = instead
    if first.commands:
        # What conflicts goes in the same transaction, and is named before.
        yield replace(first, kind="remove", text=f"replace the packages {old}: {first.text}")
    else:
        yield by_hand("remove", f"remove the packages {old}; leave the container toolkit and its libraries in place")
        yield first
    yield from rest


def _go_back(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _in_the_place_of(
        snapshot, "of the branch that no longer drives this GPU", "gpu-legacy-unsupported-by-branch"
    )
    yield from fabric_manager_too(snapshot)
    yield reboot()


def _go_on(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _install(snapshot, "gpu-too-new-for-driver")
    yield from fabric_manager_too(snapshot)
    yield reboot()


def _close(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _install(snapshot, "open-module-on-pre-turing", keep_branch=True)
    yield from fabric_manager_too(snapshot)
    yield reboot()


def _open(snapshot: Snapshot) -> Iterable[Fix]:
    old = "with the proprietary kernel modules"
    yield from _in_the_place_of(snapshot, old, "proprietary-module-on-blackwell", keep_branch=True)
    yield from fabric_manager_too(snapshot)
    yield reboot()


def _any_model(will_do: Callable[[GpuModel], bool], words: str) -> Sign:
    return holds(lambda snapshot: any(will_do(model) for model in snapshot.view(cards.models)), words)


_OLD_GPU: Final = _any_model(lambda one: one.last_branch is not None, "a GPU that newer branches no longer drive")
_NEW_GPU: Final = _any_model(lambda one: one.needs_open_modules, "a GPU that the open modules alone drive")
_WITHOUT_GSP: Final = _any_model(lambda one: not one.takes_open_modules, "a GPU that the open modules do not drive")
_FAILS: Final = any_of(symptoms.NO_DEVICES, symptoms.NOT_STARTED)
_OPEN_ON_DISK: Final = holds(lambda snapshot: snapshot.view(release).is_open is True, "the open modules are installed")
_CLOSED_ON_DISK: Final = holds(
    lambda snapshot: snapshot.view(release).is_open is False, "the proprietary modules are installed"
)
_DRIVES_ALL: Final = holds(
    lambda snapshot: driver.works(snapshot) and not _shows_fewer(snapshot, len(snapshot.view(cards.cards))),
    "nvidia-smi shows all GPUs",
)
_SUPPORTED: Final = "https://docs.nvidia.com/datacenter/tesla/drivers/"
_MODULES: Final = f"{DRIVER_GUIDE}kernel-modules.html"

FAMILY: Final = Family(
    "support",
    "which driver drives which GPU",
    (
        Rule(
            cause="gpu-legacy-unsupported-by-branch",
            layer="driver",
            storey="driver",
            disruption="reboot",
            title="the installed branch no longer drives this GPU",
            share=2,
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
                symptoms.BUILD_FAILED,
            ),
            look_at=(
                Shell("sudo dmesg | grep -i nvrm"),
                Shell("lspci -nn -d 10de:"),
            ),
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
            check=only("gpu-legacy-unsupported-by-branch", _decide),
            context=_OLD_GPU,
            against=(_DRIVES_ALL,),
            remedy=_go_back,
            explains=chains.NO_DRIVER | {"open-module-on-pre-turing", "no-gpu-present"},
        ),
        Rule(
            cause="gpu-too-new-for-driver",
            layer="driver",
            storey="driver",
            disruption="reboot",
            title="the installed driver does not know this GPU yet",
            share=1.2,
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(
                Shell("lspci -nn -d 10de:"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
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
            check=only("gpu-too-new-for-driver", _decide),
            context=_NEW_GPU,
            against=(_DRIVES_ALL,),
            remedy=_go_on,
            explains=chains.NO_DRIVER | {"proprietary-module-on-blackwell", "no-gpu-present"},
        ),
        Rule(
            cause="open-module-on-pre-turing",
            layer="driver",
            storey="driver",
            disruption="reboot",
            title="the open kernel modules on a GPU before Turing",
            share=1.2,
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(
                Shell("modinfo -F license nvidia"),
                Shell("lspci -nn -d 10de:"),
            ),
            story=(
                "NVIDIA's open kernel modules leave much of the work to the GPU System Processor (GSP), which GPUs "
                "have from Turing on. From branch 560 the open modules are the default of NVIDIA's packages, so an "
                "upgrade brings them to Maxwell, Pascal and Volta, too, where they find no GSP and give up. Up to "
                "branch 580 the same driver with its proprietary modules drives these GPUs."
            ),
            sources=(_MODULES, "https://github.com/negativo17/nvidia-driver/issues/158", f"{OPEN_MODULES}/issues/19"),
            check=only("open-module-on-pre-turing", _decide),
            context=any_of(all_of(_OPEN_ON_DISK, _FAILS), _WITHOUT_GSP),
            against=(_DRIVES_ALL,),
            remedy=_close,
            explains=chains.NO_DRIVER,
        ),
        Rule(
            cause="proprietary-module-on-blackwell",
            layer="driver",
            storey="driver",
            disruption="reboot",
            title="the proprietary kernel modules on a GPU that needs the open ones",
            share=1.8,
            symptoms=(
                symptoms.CLOSED_OR_BAR,
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(
                Shell("modinfo -F license nvidia"),
                Shell("lspci -nn -d 10de:"),
            ),
            story=(
                "Blackwell and Grace Hopper are driven by NVIDIA's open kernel modules only. With the proprietary "
                "ones of the same version the module loads, the kernel log asks for the open modules, the GPU fails "
                "to start (RmInitAdapter failed, 0x22:0x56), and nvidia-smi finds no devices. The same number is met "
                "with a memory region that firmware left without an address: the line before it, or the module's "
                "licence, decides."
            ),
            sources=(_MODULES, f"{OPEN_MODULES}/issues/862", f"{OPEN_MODULES}/issues/872"),
            check=only("proprietary-module-on-blackwell", _decide),
            context=any_of(all_of(_CLOSED_ON_DISK, _FAILS), _NEW_GPU),
            against=(_DRIVES_ALL,),
            remedy=_open,
            explains=chains.NO_DRIVER | {"gsp-firmware-missing", "gsp-init-failed-platform"},
        ),
    ),
)
