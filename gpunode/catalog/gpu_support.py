"""The needs and abilities of a GPU model: driver branches, kernel modules, CUDA, packages beside the driver."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.catalog import branches, cuda
from gpunode.catalog.branches import Branch, ModuleFlavour
from gpunode.catalog.driver import LAST_UNAVAILABLE_BRANCH, DriverChoice, choose_driver
from gpunode.catalog.fabric import UNSUPPORTED_NOTE
from gpunode.catalog.gpus import GpuModel, explain_guess
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Refusal
from gpunode.recipe import Driver


@dataclass(frozen=True, slots=True)
class GpuSupport:
    """The support that NVIDIA gives one GPU model.

    Attributes:
        branches: those in NVIDIA's current repositories that drive it, newest first.
        choice: the driver that setup installs for it alone with ``--driver auto``, or why there is none.
        flavours: the kernel modules that drive it, of any branch.
        cuda: the newest CUDA that the chosen driver supports and whose compiler still targets this GPU; None if
            one of the two is unknown.
        cuda_limit: what keeps it from a newer CUDA; empty if nothing does.
        packages: those that its boards need beside the driver, each with the reason.
        assumption: for a GPU that is on none of the lists, what is assumed and why; else empty.
    """

    model: GpuModel
    branches: tuple[Branch, ...]
    choice: DriverChoice | Refusal
    flavours: tuple[ModuleFlavour, ...]
    cuda: cuda.Version | None
    cuda_limit: str
    packages: tuple[str, ...]
    assumption: str

    @property
    def reason(self) -> str:
        """Why setup installs that driver, without the name of the GPU; empty if it installs none."""
        return self.choice.reason.removeprefix(f"{self.model.label}: ") if isinstance(self.choice, DriverChoice) else ""

    @property
    def end_of_life(self) -> str:
        """The month in which fixes end for this GPU, ``2028-06``; empty while newer branches drive it, or unknown."""
        last = branches.find(self.model.last_branch) if self.model.last_branch is not None else None
        return last.eol if last else ""


def describe_support(model: GpuModel) -> GpuSupport:
    """Return what NVIDIA supports for ``model``. Sources: gpus.csv, branches.csv, cuda_releases.csv."""
    choice = choose_driver([model], Driver())
    newest, limit = _find_newest_cuda(model, choice)
    return GpuSupport(
        model,
        tuple(_find_branches(model)),
        choice,
        ("open",) if model.needs_open_modules else ("open", "proprietary") if model.takes_open_modules
        else ("proprietary",),
        newest,
        limit,
        tuple(_list_extra_packages(model)),
        _explain_assumption(model),
    )  # fmt: skip


def _find_branches(model: GpuModel) -> Iterator[Branch]:
    """Yield the branches in NVIDIA's current repositories that drive ``model``, newest first."""
    last = model.last_branch or branches.all_branches()[-1].number
    for branch in reversed(branches.all_branches()):
        if branch.number > LAST_UNAVAILABLE_BRANCH and model.first_branch <= branch.number <= last:
            yield branch


def _find_newest_cuda(model: GpuModel, choice: DriverChoice | Refusal) -> tuple[cuda.Version | None, str]:
    """Return the newest CUDA for the GPU, and what rules out a newer one."""
    capability = cuda.parse_version(model.compute_capability) if model.compute_capability else ()
    if isinstance(choice, Refusal) or not capability:
        return None, ""
    branch = branches.find(choice.branch)
    of_driver = cuda.newest_supported_by_driver(branch.newest_seen) if branch and branch.newest_seen else None
    of_compiler = cuda.newest_for_capability(capability)
    if of_driver is None or of_compiler is None:
        return None, ""
    if of_compiler < of_driver:
        return of_compiler, f"later releases do not compile for {model.architecture}"
    newest = cuda.releases()[-1].version
    return of_driver, f"the newest that driver {choice.branch} supports" if of_driver < min(of_compiler, newest) else ""


def _list_extra_packages(model: GpuModel) -> Iterator[str]:
    """Yield what boards of this GPU need beside the driver. Source: NVIDIA's fabric manager and IMEX guides."""
    if model.has_old_switches:
        yield UNSUPPORTED_NOTE
    elif model.nvswitch_board == "possible":
        nvlsm = ", and nvlsm," if model.architecture == "Blackwell" else ""
        yield (
            f"nvidia-fabricmanager of the driver's exact version{nvlsm} on a board with NVSwitches (HGX, DGX); "
            "none on a PCIe card"
        )
    elif model.nvswitch_board == "external":
        yield "nvidia-imex, of the driver's exact version, where several trays share one NVLink domain"


def _explain_assumption(model: GpuModel) -> str:
    if model.listed:
        return ""
    unlisted = f"no list of NVIDIA's up to branch {branches.all_branches()[-1].number} has it"
    if model.compute_capability:
        return f"{unlisted}; pci.ids does, so it is taken to be like the other {model.architecture} GPUs"
    return f"{unlisted}: {explain_guess(model.device_id)}"
