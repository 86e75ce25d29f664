"""View the NVLinks of each GPU in ``nvidia-smi nvlink --status`` and ``dcgmi nvlink --link-status``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_LINE: Final = Pattern(
    r"^[ \t]*(?:GPU (?P<gpu>\d{1,3}):|gpuId (?P<id>\d{1,3}):"
    r"|Link (?P<link>\d{1,2}): *(?:<?inactive>?|(?P<rate>[\d.]+ GB/s))|(?P<row>[UDX_](?: [UDX_]){2,})\s*$"
    r"|(?P<none>.*\ball links are inactive\b)|(?P<other>NvSwitches:|physicalId ))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class GpuNvlinks:
    """The NVLinks of one GPU.

    Attributes:
        index: of the GPU; None where the answer names none.
        rates: of each link, by its number; empty where it is down. Where nvidia-smi says that all are, none is named.
        citation: the first that is down, else the GPU's.
    """

    index: int | None
    rates: Mapping[int, str]
    citation: Citation

    @property
    def gpu(self) -> str:
        """The GPU as a sentence names it."""
        return "a GPU" if self.index is None else f"GPU {self.index}"

    @property
    def down(self) -> tuple[int, ...]:
        """The links that are down, as far as they are named."""
        return tuple(link for link, rate in self.rates.items() if not rate)

    @property
    def up(self) -> int:
        """The number of active links."""
        return sum(map(bool, self.rates.values()))


def gpu_nvlinks(snapshot: Snapshot) -> tuple[GpuNvlinks, ...]:
    """Return the links of each GPU, by the fullest answer about it."""
    best: dict[int, GpuNvlinks] = {}
    for item in snapshot.items_of("nvidia-smi-nvlink", "nvidia-smi", "text", "application", "nvidia-smi-q"):
        for one in _parse_nvlinks(item):
            key = -len(best) - 1 if one.index is None else one.index
            if key not in best or len(one.rates) > len(best[key].rates):
                best[key] = one
    return tuple(best.values())


def _parse_nvlinks(item: Item) -> Iterator[GpuNvlinks]:
    index: int | None = None
    rates, place, is_none = dict[int, str](), 0, False
    found = ((number, match) for number, line in enumerate(item.lines, 1) if (match := _LINE.match(line)))
    for number, match in (*found, (0, None)):
        if match is None or match["gpu"] or match["id"] or match["other"]:
            if rates or is_none:
                yield GpuNvlinks(index, rates, cite(item, place))
            named = (match["gpu"] or match["id"]) if match else None
            index, rates, place, is_none = int(named) if named else None, {}, 0, False
            continue
        if match["none"]:
            is_none = True
        elif match["row"]:
            states = enumerate(match["row"].split())
            rates = {link: "up" if state == "U" else "" for link, state in states if state in "UD"}
        else:
            rates[int(match["link"])] = match["rate"] or ""
        if not place or (match["link"] and not match["rate"] and all(list(rates.values())[:-1])):
            place = number
