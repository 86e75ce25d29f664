"""NVIDIA GPUs by PCI device id, and what each needs from a driver.

Sources: see gpus.csv, vgpu_guests.csv and other_devices.csv; the NVSwitch ids are those of nv-pci-table.c and of the
NVSwitch driver's headers in NVIDIA/open-gpu-kernel-modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal, TypeAlias, cast

from gpunode.catalog import branches, tables
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

OpenModuleSupport: TypeAlias = Literal["no", "yes", "required"]
NvSwitchBoard: TypeAlias = Literal["", "no", "possible", "external"]

# lspci before 3.8 rejects `03xx`: VGA compatible controllers, then 3D controllers.
LIST_GPUS = "lspci -nn -d 10de::0300; lspci -nn -d 10de::0302"
"""The command that lists NVIDIA's GPUs with their ids, without their audio functions and NVSwitches."""

# LR10 (A100 boards), LS10 (H100 and H200 boards), and DGX-2's, which today's drivers no longer bind.
_NVSWITCH_DEVICE_IDS = frozenset({0x1AE8, 0x1AC2, *range(0x1AF0, 0x1B00), *range(0x22A0, 0x22A8)})
# The rule that holds for all 1185 ids on NVIDIA's list, applied to ids that no list has.
_FIRST_TURING, _FIRST_MAXWELL = 0x1E00, 0x1340
_LAST_BRANCH_OF_KEPLER = 470
_LAST_BRANCH_OF_VOLTA = 580


# NVIDIA's chip codes (pci.ids), by generation: first branch (0: older than every branch in question), last, modules.
_CHIP_GENERATIONS: tuple[tuple[str, str, int, int | None, OpenModuleSupport], ...] = (
    ("GR", "Rubin", 615, None, "required"),
    ("GB", "Blackwell", 570, None, "required"),
    ("GH", "Hopper", 520, None, "yes"),
    ("AD", "Ada", 520, None, "yes"),
    ("GA", "Ampere", 0, None, "yes"),
    ("TU", "Turing", 0, None, "yes"),
    ("GV", "Volta", 0, _LAST_BRANCH_OF_VOLTA, "no"),
    ("GP", "Pascal", 0, _LAST_BRANCH_OF_VOLTA, "no"),
    ("GM", "Maxwell", 0, _LAST_BRANCH_OF_VOLTA, "no"),
    ("GK", "Kepler", 0, _LAST_BRANCH_OF_KEPLER, "no"),
    ("GF", "Fermi", 0, 390, "no"),
    ("GT", "Tesla", 0, 340, "no"),
    ("G", "Tesla", 0, 340, "no"),
)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU as the catalog knows it.

    Attributes:
        device_id: four lower-case hex digits.
        compute_capability: empty for GPUs before CUDA.
        first_branch: the oldest driver branch that is known to name it; 0 when older than every branch in question.
        last_branch: the last branch that supports it; None when current drivers do.
        open_modules: whether the open kernel modules drive it, or are the only ones that do.
        nvswitch_board: ``possible`` parts are sold on boards with and without NVSwitches; ``external`` ones sit in
            racks whose switches are in other trays; empty when it is no data center part.
        listed: whether NVIDIA's own lists name it.
    """

    device_id: str
    name: str
    architecture: str
    first_branch: int
    last_branch: int | None
    open_modules: OpenModuleSupport
    compute_capability: str = ""
    nvswitch_board: NvSwitchBoard = ""
    listed: bool = False

    @property
    def has_old_switches(self) -> bool:
        """True if the NVSwitches on its boards are of the generation that current drivers do not bind (DGX-2)."""
        return self.nvswitch_board == "possible" and self.architecture == "Volta"

    @property
    def label(self) -> str:
        """The GPU as people call it, with its architecture: ``GeForce GTX 1080 (Pascal)``."""
        return f"{self.name.removeprefix('NVIDIA ')} ({self.architecture})"

    @property
    def takes_open_modules(self) -> bool:
        """True if the open kernel modules drive it.

        last_branch is checked first: NVIDIA's own list marks all Maxwell, Pascal and Volta parts ``kernelopen`` by
        mistake (supported-gpus.json 590.48.01), and would give them modules that do not drive them.
        """
        return self.last_branch is None and self.open_modules != "no"

    @property
    def needs_open_modules(self) -> bool:
        """True if only the open kernel modules drive it."""
        return self.takes_open_modules and self.open_modules == "required"


@cache
def find_model(device_id: str) -> GpuModel:
    """Return the GPU with this PCI device id; an id that no list has is judged by its range.

    Raises:
        ValueError: if ``device_id`` is not four hex digits.
    """
    number = _parse_device_id(device_id)
    row = tables.find("gpus.csv", f"{number:04x}")
    return _model_from_row(row) if row else _guess_unlisted(number)


def find_by_name(name: str) -> GpuModel | None:
    """Return the first GPU of this name in the table (``GeForce GT 1030``); None if there is none."""
    return next(find_all_by_name(name), None)


def find_all_by_name(name: str) -> Iterator[GpuModel]:
    """Return every GPU of this name: some names are of two generations (``GeForce GT 730``)."""
    wanted = name.removeprefix("NVIDIA ").strip().lower()
    named = (row for row in tables.rows("gpus.csv") if row["name"].removeprefix("NVIDIA ").lower() == wanted)
    return (_model_from_row(row) for row in named)


def search_models(text: str) -> tuple[GpuModel, ...]:
    """Return the GPUs whose name contains each word of ``text``, in any case; those with the fewest other words first.

    So ``GTX 1080`` finds the GTX 1080 before the GTX 1080 Ti.
    """
    words = text.lower().split()
    found = (row for row in tables.rows("gpus.csv") if all(word in row["name"].lower().split() for word in words))
    closest_first = sorted(found, key=lambda row: len(row["name"].split()))
    return tuple(map(_model_from_row, closest_first)) if words else ()


def find_by_label(label: str) -> GpuModel | None:
    """Return the GPU with this label of GPU Feature Discovery (``NVIDIA-H100-80GB-HBM3``); None if there is none."""
    row = _rows_by_label().get(label.removeprefix("NVIDIA-").lower())
    return _model_from_row(row) if row else None


@cache
def _rows_by_label() -> Mapping[str, Mapping[str, str]]:
    rows_by_label: dict[str, Mapping[str, str]] = {}
    for row in tables.rows("gpus.csv"):
        plain = re.sub(r"[^A-Za-z0-9_. -]", "", row["name"].removeprefix("NVIDIA "))
        rows_by_label.setdefault("-".join(plain.split()).lower(), row)
    return rows_by_label


def model_of_chip(chip: str, name: str) -> GpuModel | None:
    """Return a GPU by its chip (``GP108``), as far as its generation tells; None if the code is not that of a GPU."""
    for start, architecture, first, last, modules in _CHIP_GENERATIONS:
        if chip.startswith(start) and chip[len(start) : len(start) + 1].isdigit():
            return GpuModel("", name or chip, architecture, first, last, modules)
    return None


def is_nvswitch(device_id: str) -> bool:
    """Return whether the PCI device id is that of an NVSwitch.

    Raises:
        ValueError: if ``device_id`` is not four hex digits.
    """
    return _parse_device_id(device_id) in _NVSWITCH_DEVICE_IDS


def non_gpu_kind_and_name(device_id: str) -> tuple[str, str] | None:
    """Return kind and name of an NVIDIA device that is not a GPU; None for a GPU, and for an id that no list has.

    Raises:
        ValueError: if ``device_id`` is not four hex digits.
    """
    number = _parse_device_id(device_id)
    if row := tables.find("other_devices.csv", f"{number:04x}"):
        return row["kind"], row["name"]
    return ("NVSwitch", "NVSwitch") if number in _NVSWITCH_DEVICE_IDS else None


def vgpu_profile(device_id: str, subsystem: tuple[str, str] | None) -> str | None:
    """Return the vGPU profile that a guest sees (``GRID T4-16Q``); None for a physical GPU.

    A guest shows the physical GPU's device id, with an NVIDIA subsystem that names the profile.
    """
    if subsystem is None or subsystem[0].lower() != "10de":
        return None
    row = tables.find("vgpu_guests.csv", device_id.lower(), subsystem[1].lower())
    return row["profile"] if row else None


# "-8Q", and "-1-5C" of a MIG instance; some profiles have no letter, and only the list knows them.
_VGPU_PROFILE_SUFFIX = Pattern(r"-[0-9]{1,3}(?P<letter>[ABCQ][0-9]?)?")


def is_vgpu_profile(name: str) -> bool:
    """Return whether a GPU of this name is a vGPU, as nvidia-smi names it in a guest (``GRID T4-8Q``)."""
    match = _VGPU_PROFILE_SUFFIX.search(name, name.rfind("-")) if "-" in name else None
    if match is None or match.end() != len(name):
        return False
    return bool(match["letter"]) or any(row["profile"] == name for row in tables.rows("vgpu_guests.csv"))


def _parse_device_id(device_id: str) -> int:
    if len(device_id) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in device_id):
        raise ValueError(f"not a PCI device id of four hex digits: {device_id!r}")
    return int(device_id, 16)


def _model_from_row(row: Mapping[str, str]) -> GpuModel:
    return GpuModel(
        device_id=row["device_id"],
        name=row["name"],
        architecture=row["architecture"],
        compute_capability=row["compute_capability"],
        first_branch=int(row["first_branch"]),
        last_branch=int(row["last_branch"]) if row["last_branch"] else None,
        open_modules=cast("OpenModuleSupport", row["open_modules"]),
        nvswitch_board=cast("NvSwitchBoard", row["nvswitch_board"]),
        listed=row["listed"] == "yes",
    )


def _guess_unlisted(number: int) -> GpuModel:
    """Return a GPU that no list has: newer than this catalog, unless its id is among those of old ones."""
    device_id = f"{number:04x}"
    name = f"NVIDIA device 10de:{device_id}"
    if number >= _FIRST_TURING:
        newest = branches.newest_maintained_branch().number
        return GpuModel(device_id, name, "unknown, newer than this catalog", newest, None, "required")
    if number >= _FIRST_MAXWELL:
        return GpuModel(device_id, name, "Maxwell to Volta by its id", 0, _LAST_BRANCH_OF_VOLTA, "no")
    return GpuModel(device_id, name, "Kepler or older by its id", 0, _LAST_BRANCH_OF_KEPLER, "no")


def explain_guess(device_id: str) -> str:
    """Return what is assumed about a GPU that no list has, and why."""
    number = _parse_device_id(device_id)
    if number >= _FIRST_TURING:
        return (
            f"ids from {_FIRST_TURING:04x} on are Turing or newer, so it is taken for newer than these lists, "
            "to be driven by the newest branch and its open modules"
        )
    if number >= _FIRST_MAXWELL:
        return (
            f"ids from {_FIRST_MAXWELL:04x} to {_FIRST_TURING - 1:04x} are Maxwell to Volta, "
            f"whose last branch is {_LAST_BRANCH_OF_VOLTA}"
        )
    return f"ids below {_FIRST_MAXWELL:04x} are Kepler or older, whose last branch is {_LAST_BRANCH_OF_KEPLER}"
