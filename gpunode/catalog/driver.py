"""The choice of a driver for a set of GPUs: branch and kernel module flavour, from the PCI ids alone.

Source: NVIDIA's supported-gpus.json and driver installation guide (releases 590 to 620), in gpus.csv and
branches.csv. The order of checks matters: a GPU's last branch comes before its open modules (see GpuModel).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpunode.catalog import branches
from gpunode.catalog.branches import Branch, BranchKind, ModuleFlavour
from gpunode.catalog.gpus import LIST_GPUS, GpuModel
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Refusal
from gpunode.wording import join_with_and

if TYPE_CHECKING:
    from gpunode.recipe import Driver, DriverSource

# NVIDIA's current repositories start after Kepler's last branch.
LAST_UNAVAILABLE_BRANCH = 470
# From this branch on NVIDIA's own installer installs the open modules by default.
_OPEN_BY_DEFAULT_FROM = 560
_REQUESTED_VERSION = re.compile(r"([0-9]{2,4})(\.[0-9]+){0,2}")


@dataclass(frozen=True, slots=True)
class DriverChoice:
    """The driver to be installed.

    Attributes:
        exact: the full version (``580.178.04``); empty when any version of the branch will do.
        reason: one sentence for the user.
        source: whose packages are installed.
    """

    branch: int
    exact: str
    flavour: ModuleFlavour
    reason: str
    warnings: tuple[str, ...] = ()
    source: DriverSource = "nvidia"

    @property
    def suffixed_names(self) -> bool:
        """True if Ubuntu's package names include the branch."""
        branch = branches.find(self.branch)
        return branch is not None and branch.has_suffixed_packages


@dataclass(frozen=True, slots=True)
class _BranchPick:
    """A branch, and why this one."""

    branch: Branch
    exact: str
    reason: str


def choose_driver(models: Sequence[GpuModel], request: Driver, branch_reason: str = "") -> DriverChoice | Refusal:
    """Return the driver for all of ``models`` that the recipe's request allows, or why there is none.

    Args:
        models: of the node's GPUs.
        request: of the recipe.
        branch_reason: why this branch, if it is not the request alone.

    Raises:
        ValueError: if no driver is requested.
    """
    if request.version == "none":
        raise ValueError("no driver is requested, so there is none to choose")
    gpus = tuple({model.device_id: model for model in models}.values())
    pick = _find_common_branch_obstacle(gpus) or _pick_branch(gpus, request)
    if isinstance(pick, Refusal):
        return pick
    pick = replace(pick, reason=branch_reason or pick.reason)
    flavour = _find_undriven_gpu_refusal(gpus, pick) or _choose_flavour(gpus, pick.branch, request)
    if isinstance(flavour, Refusal):
        return flavour
    reason = f"{_join_gpu_labels(gpus)}: {pick.reason}; {_explain_module_flavour(gpus, pick.branch, flavour)}"
    return DriverChoice(
        pick.branch.number, pick.exact, flavour, reason, tuple(_warnings(gpus, pick.branch)), request.source
    )


def _find_common_branch_obstacle(gpus: Sequence[GpuModel]) -> Refusal | None:
    """Return the refusal for limits that no recipe can change."""
    if not gpus:
        return Refusal("there is no GPU to choose a driver for", "no NVIDIA GPU was found or named", _NO_GPU_HINT)
    old = [gpu for gpu in gpus if gpu.last_branch is not None and gpu.last_branch <= LAST_UNAVAILABLE_BRANCH]
    if old:
        why = "; ".join(f"{gpu.last_branch} is the last branch that supports {gpu.label}" for gpu in old)
        return Refusal(f"no driver of NVIDIA's current repositories drives {_join_gpu_labels(old)}", why, _OLD_GPU_HINT)
    last, first = _first_dropped_gpu(gpus), _most_demanding_gpu(gpus)
    if last is not None and first.first_branch > (last.last_branch or 0):
        why = f"{last.label} needs branch {last.last_branch} or older, {first.label} {first.first_branch} or newer"
        return Refusal("no driver branch drives all GPUs of this host", why, _MIXED_GPUS_HINT)
    closed = [gpu for gpu in gpus if not gpu.takes_open_modules]
    opened = [gpu for gpu in gpus if gpu.needs_open_modules]
    if closed and opened:
        need = "needs" if len(closed) == 1 else "need"
        proprietary = f"{_join_gpu_labels(closed)} {need} the proprietary kernel modules"
        why = f"{proprietary}, {_join_gpu_labels(opened)} the open ones"
        return Refusal("no kernel modules drive all GPUs of this host", why, _MIXED_GPUS_HINT)
    return None


_NO_GPU_HINT = f"run `{LIST_GPUS}` to see what the system finds; for an image, name the GPUs with `--gpu 10de:1b80`"
_OLD_GPU_HINT = (
    "install the distribution's own driver of that branch, if it has one, and run the same command again with "
    "`--driver none`; or remove the GPU"
)
_MIXED_GPUS_HINT = "remove one kind of GPU, or bind one to vfio-pci for a virtual machine"


def _pick_branch(gpus: Sequence[GpuModel], request: Driver) -> _BranchPick | Refusal:
    """Return the branch that was requested, or the best one."""
    if request.version == "auto":
        return _pick_best_branch(gpus)
    if request.version == "production":
        return _BranchPick(branches.production(), "", f"{branches.production().number} is the production branch")
    if request.version == "lts":
        return _pick_lts(gpus, request)
    return _parse_version_request(request.version)


def _pick_lts(gpus: Sequence[GpuModel], request: Driver) -> _BranchPick:
    """Return the newest maintained LTS branch that drives all GPUs with the wanted modules; else the newest one."""
    lts_branches = branches.maintained_lts_branches()
    picks = [_BranchPick(branch, "", f"{branch.number} is the newest LTS branch") for branch in lts_branches]
    usable = [
        pick
        for pick in picks
        if _find_undriven_gpu_refusal(gpus, pick) is None
        and not isinstance(_choose_flavour(gpus, pick.branch, request), Refusal)
    ]
    if not usable or usable[0] == picks[0]:
        return picks[0]
    whom = "it" if len(gpus) == 1 else "all of them"
    return replace(usable[0], reason=f"{usable[0].branch.number} is the newest LTS branch that supports {whom}")


_BRANCH_KIND_WORDS: Mapping[BranchKind, str] = {
    "lts": "LTS branch",
    "production": "production branch",
    "new-feature": "branch",
    "legacy": "branch",
}


def _pick_best_branch(gpus: Sequence[GpuModel]) -> _BranchPick:
    """Return the production branch, unless a GPU needs an older or newer one; then the nearest that all can use."""
    wanted, last, first = branches.production(), _first_dropped_gpu(gpus), _most_demanding_gpu(gpus)
    if last is not None and last.last_branch is not None and last.last_branch < wanted.number:
        every = len(gpus) == 1 or all(gpu.last_branch == last.last_branch for gpu in gpus)
        whom = "it" if len(gpus) == 1 else "them" if every else last.label
        branch = _find_branch(last.last_branch)
        return _BranchPick(branch, "", f"{branch.number} is the last branch that supports {whom}")
    if first.first_branch > wanted.number:
        able = [b for b in branches.all_branches() if b.number >= first.first_branch and b.is_maintained]
        # A new-feature branch is maintained for months only, so it comes last.
        branch = min(able, key=lambda b: (b.kind == "new-feature", b.number))
        whom = "it" if len(gpus) == 1 else first.label
        kind = _BRANCH_KIND_WORDS[branch.kind]
        known = f"{branch.number} is the first {kind} known to support {whom}"
        return _BranchPick(branch, "", known if first.listed else f"{branch.number} is the newest branch")
    return _BranchPick(wanted, "", f"{wanted.number} is the production branch")


def _parse_version_request(version: str) -> _BranchPick | Refusal:
    if not _REQUESTED_VERSION.fullmatch(version):
        why = f"`{version}` is neither a branch (580) nor a full version (580.178.04)"
        return Refusal("the driver version cannot be understood", why, _ALLOWED_VERSIONS_HINT)
    number, exact = int(version.partition(".")[0]), version if "." in version else ""
    branch = branches.find(number)
    if branch is None or number <= LAST_UNAVAILABLE_BRANCH:
        is_old = number <= LAST_UNAVAILABLE_BRANCH
        why = "it is older than what they contain" if is_old else "NVIDIA never released such a branch"
        return Refusal(f"branch {number} is not in NVIDIA's current repositories", why, _ALLOWED_VERSIONS_HINT)
    return _BranchPick(branch, exact, f"{version} was requested")


_ALLOWED_VERSIONS_HINT = "use auto, production, lts, a branch such as 580, or a full version such as 580.178.04"


def _find_undriven_gpu_refusal(gpus: Sequence[GpuModel], pick: _BranchPick) -> Refusal | None:
    """Return why the branch cannot drive one of the GPUs."""
    number, hint = pick.branch.number, "use `--driver auto`, which picks a branch that drives every GPU of this host"
    for gpu in gpus:
        if gpu.last_branch is not None and gpu.last_branch < number:
            why = f"{pick.reason}; {gpu.last_branch} is the last branch that supports this GPU"
            return Refusal(f"branch {number} does not drive {gpu.label}", why, hint)
        if gpu.first_branch > number:
            why = f"{pick.reason}; {gpu.first_branch} is the first branch known to support this GPU"
            return Refusal(f"branch {number} does not drive {gpu.label}", why, hint)
    return None


def _choose_flavour(gpus: Sequence[GpuModel], branch: Branch, request: Driver) -> ModuleFlavour | Refusal:
    """Return the requested kernel modules, or those that drive every GPU; the open ones if both do."""
    flavour = _default_flavour(gpus, branch) if request.kernel_module_type == "auto" else request.kernel_module_type
    for gpu in gpus:
        if flavour == "open" and not gpu.takes_open_modules:
            why = "open modules need Turing or newer"
            return Refusal(f"the open kernel modules do not drive {gpu.label}", why, _MODULE_FLAVOUR_HINT)
        if flavour == "proprietary" and gpu.needs_open_modules:
            why = f"NVIDIA supports {gpu.architecture} with the open modules only"
            return Refusal(f"the proprietary kernel modules do not drive {gpu.label}", why, _MODULE_FLAVOUR_HINT)
    if flavour not in branch.flavours:
        why = f"NVIDIA's packages of this branch contain the {' and '.join(sorted(branch.flavours))} modules only"
        return Refusal(f"branch {branch.number} has no {flavour} kernel modules", why, _MODULE_FLAVOUR_HINT)
    return flavour


_MODULE_FLAVOUR_HINT = 'leave `kernel_module_type = "auto"` under [driver], or choose another branch'


def _default_flavour(gpus: Sequence[GpuModel], branch: Branch) -> ModuleFlavour:
    if not all(gpu.takes_open_modules for gpu in gpus):
        return "proprietary"
    needed = any(gpu.needs_open_modules for gpu in gpus)
    return "open" if needed or branch.number >= _OPEN_BY_DEFAULT_FROM else "proprietary"


def _explain_module_flavour(gpus: Sequence[GpuModel], branch: Branch, flavour: ModuleFlavour) -> str:
    if flavour == "proprietary":
        closed = [gpu for gpu in gpus if not gpu.takes_open_modules]
        if closed:
            return "open modules need Turing or newer"
        early = branch.number < _OPEN_BY_DEFAULT_FROM
        return f"proprietary modules are NVIDIA's default below {_OPEN_BY_DEFAULT_FROM}" if early else _AS_REQUESTED
    needed = [gpu for gpu in gpus if gpu.needs_open_modules]
    if needed:
        return f"open modules, the only ones for {_join_gpu_labels(needed) if len(needed) < len(gpus) else 'it'}"
    if branch.number >= branches.FIRST_OPEN_ONLY_BRANCH:
        return f"open modules, the only ones from {branches.FIRST_OPEN_ONLY_BRANCH} on"
    return f"open modules, NVIDIA's default from {_OPEN_BY_DEFAULT_FROM} on"


_AS_REQUESTED = "proprietary modules, as requested"


def _warnings(gpus: Sequence[GpuModel], branch: Branch) -> list[str]:
    """Return what the user should know before agreeing."""
    warnings = [
        f"{gpu.label} is not on any of NVIDIA's lists known to gpunode: branch {branch.number} is a guess from its "
        "PCI id"
        for gpu in gpus
        if not gpu.listed
    ]
    if not branch.is_maintained:
        since = f" (since {branch.eol})" if branch.eol else ""
        warnings.append(f"branch {branch.number} no longer gets fixes from NVIDIA{since}")
    elif not branch.newest_seen:
        warnings.append(f"branch {branch.number} is newer than what gpunode knows")
    elif branch.kind == "new-feature":
        warnings.append(f"{branch.number} is a new-feature branch: NVIDIA maintains it for months, not years")
    return warnings


def _first_dropped_gpu(gpus: Sequence[GpuModel]) -> GpuModel | None:
    """Return the GPU that current drivers dropped first; None if they drive all."""
    dropped = [gpu for gpu in gpus if gpu.last_branch is not None]
    return min(dropped, key=lambda gpu: gpu.last_branch or 0) if dropped else None


def _most_demanding_gpu(gpus: Sequence[GpuModel]) -> GpuModel:
    """Return the GPU that needs the newest driver."""
    return max(gpus, key=lambda gpu: gpu.first_branch)


def _find_branch(number: int) -> Branch:
    branch = branches.find(number)
    assert branch is not None, f"gpus.csv names branch {number}, branches.csv does not"
    return branch


def _join_gpu_labels(gpus: Sequence[GpuModel]) -> str:
    return join_with_and(list(dict.fromkeys(gpu.label for gpu in gpus)))
