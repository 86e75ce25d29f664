"""The node on one line or one screen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpunode.catalog.gpus import find_model
from gpunode.cli.screen.text import DOT, Line, Span, indent_lines, pad_right, span
from gpunode.facts.model import Facts, Kernels, Known, PciDevice
from gpunode.steps.gpus import find_own_gpus
from gpunode.wording import join_names

if TYPE_CHECKING:
    from gpunode.recipe import Recipe


_PLATFORM_NAMES = {
    "bare-metal": "bare metal",
    "vm": "virtual machine",
    "container": "container",
    "wsl2": "WSL2",
    "jetson": "Jetson",
    "image": "image",
}
_LABEL_WIDTH = 10


def node_line(facts: Facts, recipe: Recipe | None = None) -> Line:
    """Return distribution, kernel, GPUs, platform and recipe on one line."""
    distro, platform = "unknown distribution", "unknown platform"
    if isinstance(facts.distro, Known):
        distro = f"{facts.distro.value.id} {facts.distro.value.version_id}".strip()
    if isinstance(facts.platform, Known):
        platform = _PLATFORM_NAMES[facts.platform.value.kind]
    parts = [
        span(distro, "bold"),
        span(_kernel_text(facts.kernels)),
        span(_gpu_text(facts.devices)),
        span(platform),
    ]
    if recipe is not None:
        parts.append(span(f"recipe {recipe.name}"))
    joined = [piece for part in parts if part.text for piece in (DOT, part)][1:]
    return Line(tuple(joined), hang=2)


def _kernel_text(fact: Known[Kernels] | object) -> str:
    if not isinstance(fact, Known):
        return "unknown kernel"
    return fact.value.running or (f"kernel {fact.value.installed[-1]}" if fact.value.installed else "no kernel")


def _gpu_text(fact: Known[tuple[PciDevice, ...]] | object) -> str:
    if not isinstance(fact, Known):
        return "PCI not readable"
    usable = find_own_gpus(fact.value)
    if not usable:
        return "no NVIDIA GPU"
    counts: dict[str, int] = {}
    for device in usable:
        name = short_model_name(find_model(device.device).name)
        counts[name] = counts.get(name, 0) + 1
    named = join_names(f"{number} × {name}" if number > 1 else name for name, number in counts.items())
    return named if len(usable) > 1 else f"{named} at {usable[0].address}"


def short_model_name(name: str) -> str:
    """Return a GPU's name in its usual short form."""
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def label_rows(label: str, rows: Iterable[Line]) -> Iterator[Line]:
    """Yield ``rows`` with a label column, filled only in the first row; nothing without rows."""
    for number, row in enumerate(indent_lines(rows, _LABEL_WIDTH)):
        head = Span(pad_right(label if number == 0 else "", _LABEL_WIDTH), "dim")
        yield Line((head, *row.spans[1:]), row.hang or _LABEL_WIDTH)
