"""View NVLinks, NVSwitches and the fabric manager that programs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_first
from gpunode.diagnoses.views import boards, driver, packages, pci, smi_query, system
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

UNIT: Final = "nvidia-fabricmanager.service"
UnitState: TypeAlias = Literal["active", "inactive", "failed", "masked", "missing", ""]

_VERSION_MISMATCH_MESSAGE: Final = Pattern(
    rf"(?i)interface version {driver.VERSION} do(?:es)?n.?t match with (?:the )?driver version {driver.VERSION}"
)
_NVSWITCH_MESSAGE: Final = Pattern(r"\bnvidia-nvswitch\d+: |\bSW_MNG\b|\bNVSwitch LPF\b")
_MANAGER_WORDS: Final = Pattern(r"(?i)fabric-?manager")
# Not of units in some state, nor of packages to upgrade or on hold.
_SEARCH_COMMAND: Final = Pattern(
    r"(?i)^(?![^\n]*(?:--(?:failed|state|upgradable)|showhold)\b)"
    r"[^\n]*\b(?:grep|list-unit\S*|rpm|dpkg|dnf|apt|yum)\b.*fabric"
)
_NOT_INSTALLED_ANSWER: Final = Pattern(r"(?i)^\s*0?\s*$|no packages found|is not installed")
# Messages of systemd, its log and older tools; bare states only count if the unit was queried.
_UNIT_STATE_PATTERNS: Final[tuple[tuple[UnitState, Pattern], ...]] = (
    ("masked", Pattern(rf"{re.escape(UNIT)}(?: is masked|[^\n]{{0,40}}masked)")),
    ("failed", Pattern(
        r"Job for nvidia-fabricmanager\.service failed|Failed to start (?:NVIDIA fabric manager|nvidia-fabricmanager)"
        r"|nvidia-fabricmanager\.service: (?:Control process exited|Main process exited|Failed with|Start request)"
    )),
    ("missing", Pattern(
        r"(?:Unit )?nvidia-fabricmanager(?:\.service)?:? (?:could not be found|not found|not loaded"
        r"|unrecognized service)|nv-fabricmanager: command not found"
    )),
)  # fmt: skip
_UNIT_STATE_LINE: Final = Pattern(
    r"(?m)^[ \t]*(?:(?:Load|Active)State=|(?:Loaded|Active):\s*)?"
    r"(?P<state>not-found|masked|failed|activating|inactive|deactivating|active)\b"
)
_UNIT_STATE_BY_WORD: Final[dict[str, UnitState]] = {
    "masked": "masked", "failed": "failed", "activating": "failed", "not-found": "missing", "inactive": "inactive",
    "deactivating": "inactive", "active": "active",
}  # fmt: skip
_STATES_GRAVEST_FIRST: Final[tuple[UnitState, ...]] = ("masked", "failed", "missing", "inactive", "active")
_PACKAGES: Final = ("nvidia-fabricmanager*", "nvidia-fabric-manager*", "cuda-drivers-fabricmanager*", "nvlink5*")


def switch_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that show an NVSwitch on this node."""
    listed = tuple(nvswitch.citation for nvswitch in snapshot.view(pci.nvswitches))
    folder = tuple(cite(item, 1) for item in snapshot.files("/proc/driver/nvidia-nvswitch/*") if item.text.strip())
    return (*listed, *folder, *snapshot.matching_lines(_NVSWITCH_MESSAGE))[:4]


def registering_gpus(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the GPUs whose registration with the fabric is not finished."""
    rows = smi_query.find_rows(snapshot, "Fabric", "State")
    return tuple(row.citation for _, row in rows if row.value.lower() in {"in progress", "not started"})


def version_mismatch(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence that fabric manager and driver differ in version."""
    if lines := snapshot.matching_lines(_VERSION_MISMATCH_MESSAGE):
        return lines
    manager, loaded = manager_version(snapshot), driver.loaded_version(snapshot) or driver.smi_version(snapshot)
    if loaded is not None:
        expected: tuple[str, Citation] | None = (loaded.version, loaded.citation)
    else:
        packaged = (package for package in driver.metapackages(snapshot) if _is_versioned_like_driver(package))
        expected = next(((package.upstream, package.citation) for package in packaged), None)
    if manager is None or expected is None or expected[0] == manager[0]:
        return ()
    return manager[1], expected[1]


_MANAGER_VERSION: Final = Pattern(rf"Fabric Manager version is\s*:\s*(?P<version>{driver.VERSION})")
_IMEX_VERSION: Final = Pattern(rf"\bIMEX version(?: is)?\s*:?\s*(?P<version>{driver.VERSION})")


def manager_version(snapshot: Snapshot) -> tuple[str, Citation] | None:
    """Return the fabric manager's version, from the program itself or its package; None if unknown."""
    if match := snapshot.match(_MANAGER_VERSION):
        return match["version"], snapshot.matching_lines(_MANAGER_VERSION)[0]
    found = (
        package
        for package in packages.matching_packages(snapshot, *_PACKAGES)
        if package.is_installed and _is_versioned_like_driver(package)
    )
    return next(((package.upstream, package.citation) for package in found), None)


def imex_version(snapshot: Snapshot) -> tuple[str, Citation] | None:
    """Return the version of IMEX, which connects the fabrics of several nodes; None if unknown."""
    match = snapshot.match(_IMEX_VERSION)
    return (match["version"], snapshot.matching_lines(_IMEX_VERSION)[0]) if match else None


def _is_versioned_like_driver(package: packages.Package) -> bool:
    return bool(re.match(driver.VERSION, package.upstream)) and "dev" not in package.name


def is_manager_installed(snapshot: Snapshot) -> bool:
    """Return whether a package of the fabric manager is known to be installed."""
    return any(package.is_installed for package in packages.matching_packages(snapshot, *_PACKAGES))


def manager_state(snapshot: Snapshot) -> tuple[UnitState, tuple[Citation, ...]]:
    """Return the service's state and its evidence; ``missing`` if a search found none."""
    if isinstance(fact := snapshot.facts.unit(UNIT), Known):
        unit = fact.value
        if unit.masked or not unit.exists:
            return "masked" if unit.exists else "missing", (system.unit_line(snapshot, UNIT, "LoadState"),)
        if unit.failed:
            return "failed", (system.failed_unit_line(snapshot, UNIT),)
        return "active" if unit.state.active else "inactive", (system.unit_line(snapshot, UNIT, "ActiveState"),)
    states = [unit_state for item in snapshot.items if item.where == "host" for unit_state in _unit_states(item)]
    state: UnitState = min((state for state, _ in states), key=_STATES_GRAVEST_FIRST.index) if states else ""
    lines = tuple(citation for one, citation in states if one == state)
    # systemctl is-active also calls a missing unit inactive.
    absent = tuple(_failed_searches(snapshot)) if state in {"", "inactive"} else ()
    return ("missing", (*lines, *absent)) if absent else (state, lines)


def _failed_searches(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items_of("listing", "unit-show", "unit-status", "text", "packages"):
        if item.where == "host" and _SEARCH_COMMAND.search(item.written) and _NOT_INSTALLED_ANSWER.search(item.text):
            yield cite_fact(item.written, "no fabric manager among them", item.key)


def _unit_states(item: EvidenceItem) -> Iterator[tuple[UnitState, Citation]]:
    for state, pattern in _UNIT_STATE_PATTERNS:
        if match := find_first(item, pattern):
            yield state, cite(item, item.line_number_at(match.start()))
    is_about = item.subject == UNIT or _MANAGER_WORDS.search(item.written)
    if is_about and item.kind in {"unit-status", "unit-show", "unit-action", "text"}:
        if item.outcome == "absent":
            yield "missing", cite(item)
        for match in _UNIT_STATE_LINE.finditer(item.text):
            yield _UNIT_STATE_BY_WORD[match["state"]], cite(item, item.line_number_at(match.start()))


def is_manager_needed(snapshot: Snapshot) -> bool | None:
    """Return whether NVSwitches of this node connect its GPUs; None if unknown."""
    if snapshot.view(switch_lines):
        return True
    kinds = snapshot.view(boards.board_kinds)
    if kinds and kinds <= {"card", "rack"}:
        return False
    if snapshot.view(registering_gpus) or ("baseboard" in kinds and snapshot.view(symptoms.CUDA_SYSTEM_NOT_READY)):
        return True
    return False if "baseboard" not in kinds and pci.is_bus_listed(snapshot) and snapshot.view(pci.pci_gpus) else None


_NVLINK_LINE: Final = Pattern(
    r"(?i)^(?:(?P<none>.*\ball links are inactive\b)|[ \t]*(?:GPU (?P<gpu>\d{1,3}):|gpuId (?P<id>\d{1,3}):"
    r"|Link (?P<link>\d{1,2}): *(?:<?inactive>?|(?P<rate>[\d.]+ GB/s))|(?P<row>[UDX_](?: [UDX_]){2,})\s*$"
    r"|(?P<other>NvSwitches:|physicalId )))"
)


@dataclass(frozen=True, slots=True)
class GpuNvlinks:
    """The NVLinks of one GPU.

    Attributes:
        index: the GPU's index; None if the output names none.
        rates: the rate of each link by its number, empty if it is down; no links if nvidia-smi reports all down.
        citation: the line of the first link that is down, else the GPU's.
    """

    index: int | None
    rates: Mapping[int, str]
    citation: Citation

    @property
    def gpu(self) -> str:
        """The GPU's name in a sentence."""
        return "a GPU" if self.index is None else f"GPU {self.index}"

    @property
    def down(self) -> tuple[int, ...]:
        """The links that are down, if they are named."""
        return tuple(link for link, rate in self.rates.items() if not rate)

    @property
    def up(self) -> int:
        """The number of active links."""
        return sum(map(bool, self.rates.values()))


def gpu_nvlinks(snapshot: Snapshot) -> tuple[GpuNvlinks, ...]:
    """Return the links of each GPU, from the most complete output about it."""
    best: dict[int, GpuNvlinks] = {}
    for item in snapshot.items_of("nvidia-smi-nvlink", "nvidia-smi", "text", "application", "nvidia-smi-q"):
        for nvlink in _parse_nvlinks(item):
            # Output without a GPU's name counts as another GPU.
            key = -len(best) - 1 if nvlink.index is None else nvlink.index
            if key not in best or len(nvlink.rates) > len(best[key].rates):
                best[key] = nvlink
    return tuple(best.values())


def _parse_nvlinks(item: EvidenceItem) -> Iterator[GpuNvlinks]:
    index: int | None = None
    rates, cited_number, are_all_inactive = dict[int, str](), 0, False
    matches = ((number, match) for number, line in enumerate(item.lines, 1) if (match := _NVLINK_LINE.match(line)))
    for number, match in (*matches, (0, None)):  # the end of the text completes the last GPU
        if match is None or match["gpu"] or match["id"] or match["other"]:
            if rates or are_all_inactive:
                yield GpuNvlinks(index, rates, cite(item, cited_number))
            named = (match["gpu"] or match["id"]) if match else None
            index, rates, cited_number, are_all_inactive = int(named) if named else None, {}, 0, False
            continue
        if match["none"]:
            are_all_inactive = True
        elif match["row"]:
            states = enumerate(match["row"].split())
            rates = {link: "up" if state == "U" else "" for link, state in states if state in "UD"}
        else:
            rates[int(match["link"])] = match["rate"] or ""
        is_first_down = match["link"] and not match["rate"] and all(list(rates.values())[:-1])
        if not cited_number or is_first_down:
            cited_number = number
