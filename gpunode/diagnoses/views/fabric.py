"""NVSwitches, the fabric manager that programs them, and the NVLinks of each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
from gpunode.diagnoses.views import boards, driver, packages, pci, smi_query, system
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

UNIT: Final = "nvidia-fabricmanager.service"
UnitState: TypeAlias = Literal["active", "inactive", "failed", "masked", "missing", ""]

_MISMATCH: Final = Pattern(
    rf"fabric manager NVIDIA GPU driver interface version (?P<manager>{driver.VERSION}) do(?:es)?n.?t match with "
    rf"(?:the )?driver version (?P<driver>{driver.VERSION})",
    re.IGNORECASE,
)
_NOTHING: Final = Pattern(
    r"NV_WARN_NOTHING_TO_DO|NVSwitch driver failed with error:\s*WARNING Nothing to do", re.IGNORECASE
)
_NOT_READY: Final = Pattern(
    r"system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|"
    r"\b(?:CUDA|cudart|cudaGetDeviceCount|cuInit|cudaSetDevice)\b.{0,80}\b802\b|\berror 802\b|"
    r"\[802\] Call to cuInit|configuration error in the Fabric Manager or NVSwitch",
    re.IGNORECASE,
)
_SWITCH_SEEN: Final = Pattern(r"\bnvidia-nvswitch\d+: |\bSW_MNG\b|\bNVSwitch LPF\b")
_ABOUT: Final = Pattern(r"fabric-?manager", re.IGNORECASE)
_ABOUT_UNIT: Final = Pattern(r"grep\b.{0,20}\bfabric", re.IGNORECASE)
_NO_UNIT: Final = Pattern(
    r"Unit nvidia-fabricmanager(?:\.service)? (?:could not be found|not found)|"
    r"nvidia-fabricmanager(?:\.service)?: unrecognized service|"
    r"Unit nvidia-fabricmanager\.service not loaded|nv-fabricmanager: command not found",
)
_NOT_FOUND: Final = Pattern(r"^[ \t]*Loaded: not-found\b", re.MULTILINE)
_MASKED: Final = Pattern(r"nvidia-fabricmanager\.service(?: is masked|[^\n]{0,40}masked)|Loaded: masked")
_ACTIVE: Final = Pattern(r"^ *Active:\s*(?P<state>active|inactive|failed|activating|deactivating)\b", re.MULTILINE)
_FAILED: Final = Pattern(
    r"Job for nvidia-fabricmanager\.service failed|nvidia-fabricmanager\.service: (?:Control process exited|"
    r"Main process exited|"
    r"Failed with result|Start request repeated too quickly)|Failed to start (?:NVIDIA fabric manager|"
    r"nvidia-fabricmanager)"
)
_STATES: Final[dict[str, UnitState]] = {
    "active": "active",
    "inactive": "inactive",
    "failed": "failed",
    "activating": "failed",
    "dead": "inactive",
    "not-found": "missing",
    "masked": "masked",
}
_SHOWN: Final = Pattern(r"^(?P<name>LoadState|ActiveState)=(?P<state>[\w-]+)", re.MULTILINE)
_PACKAGES: Final = ("nvidia-fabricmanager*", "nvidia-fabric-manager*", "cuda-drivers-fabricmanager*", "nvlink5*")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The fabric manager's version and the driver's, which differ."""

    manager: str
    driver: str
    citations: tuple[Citation, ...]

    @property
    def summary(self) -> str:
        """As a sentence."""
        return (
            f"the fabric manager is of version {self.manager} and the driver of {self.driver}: "
            "it only starts with a driver of exactly its own"
        )


@dataclass(frozen=True, slots=True)
class Manager:
    """The fabric manager's service.

    Attributes:
        state: empty where nothing tells.
    """

    state: UnitState
    citations: tuple[Citation, ...] = ()


def switches(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that show an NVSwitch on this node."""
    listed = tuple(one.citation for one in snapshot.view(pci.switches))
    folder = tuple(cite(item, 1) for item in snapshot.files("/proc/driver/nvidia-nvswitch/*") if item.text.strip())
    return (*listed, *folder, *snapshot.said(_SWITCH_SEEN))[:4]


def not_ready(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which CUDA or NCCL says that the system's fabric is not ready (802 most often)."""
    return snapshot.said(_NOT_READY) or tuple(_returned(snapshot))


def _returned(snapshot: Snapshot) -> Iterator[Citation]:
    """The bare code that a line of a program's prints of cuInit."""
    for item in snapshot.of("application"):
        if "cuInit" in item.written:
            yield from (cite(item, number) for number, line in enumerate(item.lines, 1) if line.strip() == "802")


def in_progress(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The GPUs whose registration with the fabric has not come to an end."""
    rows = (*smi_query.rows(snapshot, "Fabric", "State"), *smi_query.rows(snapshot, "fabric.state"))
    return tuple(row.citation for _, row in rows if row.value.lower() in {"in progress", "not started"})


def refused(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The GPUs that the fabric has answered, and not taken in: their registration is complete and no success."""
    rows = smi_query.rows(snapshot, "Fabric", "Status")
    fine = {"success", "n/a", "[n/a]", "not supported", "requested functionality has not been implemented"}
    return tuple(row.citation for _, row in rows if row.value.lower() not in fine)


def nothing_to_do(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which the fabric manager finds no NVSwitch by NVIDIA's switch driver."""
    return snapshot.said(_NOTHING)


def mismatch(snapshot: Snapshot) -> Mismatch | None:
    """The two versions where they differ: by the fabric manager's word, else by what is installed and loaded."""
    if match := snapshot.match(_MISMATCH):
        return Mismatch(match["manager"], match["driver"], snapshot.said(_MISMATCH))
    program, loaded = version(snapshot), driver.loaded(snapshot) or driver.smi_version(snapshot)
    if program is None:
        return None
    of_driver = [(one.upstream, one.citation) for one in driver.whole(snapshot) if _is_driver(one)][:1]
    of_driver = [(loaded.version, loaded.citation)] if loaded else of_driver
    others = [(version, citation) for version, citation in of_driver if version != program[0]]
    return Mismatch(program[0], others[0][0], (program[1], others[0][1])) if others else None


_SAYS: Final = Pattern(rf"Fabric Manager version is\s*:\s*(?P<version>{driver.VERSION})")


def version(snapshot: Snapshot) -> tuple[str, Citation] | None:
    """The fabric manager's version, as the program itself or its package has it; None where nothing tells."""
    if match := snapshot.match(_SAYS):
        return match["version"], snapshot.said(_SAYS)[0]
    installed = (one for one in packages.matching(snapshot, *_PACKAGES) if one.is_installed and _is_driver(one))
    return next(((one.upstream, one.citation) for one in installed), None)


_IMEX_SAYS: Final = Pattern(rf"\bIMEX version(?: is)?\s*:?\s*(?P<version>{driver.VERSION})")


def imex_version(snapshot: Snapshot) -> tuple[str, Citation] | None:
    """The version of IMEX, which joins the fabrics of several nodes, by its own word; None where it says none."""
    match = snapshot.match(_IMEX_SAYS)
    return (match["version"], snapshot.said(_IMEX_SAYS)[0]) if match else None


def _is_driver(package: packages.Package) -> bool:
    return bool(re.match(driver.VERSION, package.upstream)) and "dev" not in package.name


def installed(snapshot: Snapshot) -> bool | None:
    """Whether a package of the fabric manager is installed; None where nothing tells."""
    found = packages.matching(snapshot, *_PACKAGES)
    if any(one.is_installed for one in found):
        return True
    return False if packages.installed(snapshot, "nvidia-fabricmanager") is False else None


def manager(snapshot: Snapshot) -> Manager:
    """The service's state by systemd, its log, or its package."""
    fact = snapshot.facts.unit(UNIT)
    if isinstance(fact, Known):
        state: UnitState = "missing"
        if fact.value.exists:
            running: UnitState = "active" if fact.value.state.active else "inactive"
            state = "masked" if fact.value.masked else ("failed" if fact.value.failed else running)
        if state == "failed":
            return Manager(state, (system.failed_line(snapshot, UNIT),))
        shown = "LoadState" if state in {"missing", "masked"} else "ActiveState"
        return Manager(state, (system.unit_line(snapshot, UNIT, shown),))
    found = [known for item in snapshot.items if item.where == "host" and (known := _of(item)) is not None]
    for state in ("masked", "failed", "missing", "inactive", "active"):
        cited = tuple(citation for one, citation in found if one == state)
        # systemctl is-active calls a unit that does not exist inactive too.
        if state == "inactive" and (absent := snapshot.view(_absent)):
            return Manager("missing", (*cited, *absent))
        if cited:
            return Manager(state, cited)
    return Manager("missing" if snapshot.view(installed) is False else "", _of_packages(snapshot))


def _absent(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What tells that no fabric manager is on this node: a search for its package or its unit that found nothing."""
    units = (item for item in snapshot.of("listing", "unit-show", "unit-status", "text") if "list-unit" in item.written)
    unlisted = tuple(cite(item) for item in units if _ABOUT_UNIT.search(item.written) and not item.text.strip())
    return unlisted or (_of_packages(snapshot) if snapshot.view(installed) is False else ())


def _of_packages(snapshot: Snapshot) -> tuple[Citation, ...]:
    listings = (item for item in snapshot.of("packages") if _ABOUT.search(item.written))
    return tuple(stated(item.written, "no fabric manager among them", item.key) for item in listings)


def _of(item: Item) -> tuple[UnitState, Citation] | None:
    about = item.subject == UNIT or bool(_ABOUT.search(item.written))
    if match := _NO_UNIT.search(item.text) or (_NOT_FOUND.search(item.text) if about else None):
        return "missing", _at(item, match)
    if match := _MASKED.search(item.text) if about or "fabricmanager" in item.text else None:
        return "masked", _at(item, match)
    if match := _FAILED.search(item.text):
        return "failed", _at(item, match)
    if not about or item.kind not in {"unit-status", "unit-show", "unit-action", "text"}:
        return None
    if item.outcome == "absent":
        return "missing", cite(item)
    if match := _ACTIVE.search(item.text):
        return _STATES.get(match["state"], "inactive"), _at(item, match)
    if match := _SHOWN.search(item.text):
        states = {found["name"]: found["state"] for found in _SHOWN.finditer(item.text)}
        load = _STATES.get(states.get("LoadState", ""))
        return load or _STATES.get(states.get("ActiveState", ""), "inactive"), _at(item, match)
    word = item.text.strip().split("\n")[0].strip()
    return (_STATES[word], cite(item, 1)) if word in _STATES else None


def _at(item: Item, match: re.Match[str]) -> Citation:
    return cite(item, item.number_at(match.start()))


def is_needed(snapshot: Snapshot) -> bool | None:
    """Whether the GPUs of this node are joined by NVSwitches of its own; None where nothing tells."""
    if snapshot.view(switches):
        return True
    carriers = snapshot.view(boards.carriers)
    if carriers and carriers <= {"card", "rack"}:
        return False
    if "baseboard" in carriers and (snapshot.view(in_progress) or snapshot.view(not_ready)):
        return True
    if snapshot.view(in_progress):
        return True
    if pci.is_listed(snapshot) and snapshot.view(pci.gpus) and "baseboard" not in carriers:
        return False
    return None


# ---- the links

_GPU: Final = Pattern(r"^[ \t]*GPU (?P<index>\d{1,3}): (?P<name>[^(\n]{2,60}?)(?: \(UUID|\s*$)")
_LINK: Final = Pattern(
    r"^[ \t]*Link (?P<link>\d{1,2}):\s*(?P<state><inactive>|inactive|(?P<speed>[\d.]+) GB/s)", re.IGNORECASE
)
_ALL_DOWN: Final = Pattern(r"all links are inActive", re.IGNORECASE)
_DCGM_DOWN: Final = Pattern(
    r"\bNvLink link \d+ is currently down|\bDCGM_FR_NVLINK_DOWN\b|\bNVLINK_DOWN\b", re.IGNORECASE
)
_DCGM_GPU: Final = Pattern(r"^[ \t]*(?:gpuId (?P<index>\d{1,3})|physicalId \d+):\s*$")
# Every monitor has its own words for it.
_ALERT: Final = Pattern(
    r"\b0 ?(?:of|/) ?\d{1,3} NV-?Links?\b|(?:\bno|missing|lost)(?: active)? NV-?Links?\b"
    r"|NV-?Link[^\n]{0,60}(?:down\b|inactive|missing|absent|\b0 ?/ ?\d|[=:] ?0\b|\b0 (?:of|active|up)\b"
    r"|CRITICAL|\bFAIL|not (?:active|present|detected|found|up))",
    re.IGNORECASE,
)
_DCGM_ROW: Final = Pattern(r"^[ \t]+(?P<links>[UDX_](?: [UDX_]){2,})\s*$")


@dataclass(frozen=True, slots=True)
class Links:
    """The NVLinks of one GPU.

    Attributes:
        index: of the GPU; None where the answer names none.
        down: the numbers of those that are inactive.
        up: how many are active.
        none: whether the driver says that all are inactive, without naming them.
    """

    index: int | None
    name: str
    down: tuple[int, ...]
    up: int
    none: bool
    citation: Citation

    @property
    def all_down(self) -> bool:
        """Whether none of its links is active."""
        return self.none or (bool(self.down) and not self.up)


def nvlinks(snapshot: Snapshot) -> tuple[Links, ...]:
    """The links of each GPU, as ``nvidia-smi nvlink`` and ``dcgmi nvlink`` show them."""
    found = snapshot.of("nvidia-smi-nvlink", "nvidia-smi", "text", "application", "nvidia-smi-q")
    seen = _each_once(one for item in found for one in (*_of_smi(item), *_of_dcgm(item)))
    whole = {one.index for one in seen if one.up or one.name}
    # A monitor lists those that are down alone.
    return tuple(one for one in seen if one.up or one.name or not (whole and one.index is None))


def _each_once(found: Iterable[Links]) -> tuple[Links, ...]:
    """The fullest answer for each GPU that has a number; of two tools that were asked, both name it."""
    best: dict[object, Links] = {}
    for place, one in enumerate(found):
        key = ("a GPU", place) if one.index is None else one.index
        before = best.get(key)
        if before is None or (len(one.down) + one.up, bool(one.name)) > (
            len(before.down) + before.up,
            bool(before.name),
        ):
            best[key] = one
    return tuple(best.values())


def _of_smi(item: Item) -> Iterator[Links]:
    if not ("Link " in item.text or _ALL_DOWN.search(item.text)):
        return
    index: int | None = None
    name, start = "", 0
    down, up, none = list[int](), 0, False
    for number, line in enumerate((*item.lines, "GPU 999: end"), 1):
        if match := _GPU.match(line):
            if down or up or none:
                yield Links(index, name, tuple(down), up, none, cite(item, start))
            index, name, start, down, up, none = int(match["index"]), match["name"], number, [], 0, False
        elif match := _LINK.match(line):
            if match["speed"]:
                up += 1
            else:
                start = number if not down else start
                down.append(int(match["link"]))
        elif _ALL_DOWN.search(line):
            none, start = True, number


def _of_dcgm(item: Item) -> Iterator[Links]:
    if "NvLink Link Status" not in item.text and "gpuId" not in item.text:
        return
    index: int | None = None
    for number, line in enumerate(item.lines, 1):
        if match := _DCGM_GPU.match(line):
            index = int(match["index"]) if match["index"] else None
        elif match := _DCGM_ROW.match(line):
            states = match["links"].split()
            down = tuple(place for place, state in enumerate(states) if state == "D")
            if down or index is not None:
                yield Links(index, "", down, states.count("U"), False, cite(item, number))


_TOPOLOGY_ROW: Final = Pattern(r"^\s*GPU(?P<index>\d{1,3})\s+(?P<cells>(?:X|NV\d+|SYS|NODE|PHB|PXB|PIX)(?:\s+\S+)*)")
_JOINED: Final = 3


def left_out(snapshot: Snapshot) -> tuple[Links, ...]:
    """The GPUs without a link in a topology where at least three others are all linked to each other."""
    return tuple(one for item in snapshot.of("nvidia-smi-topo", "text", "application") for one in _left_out(item))


def _left_out(item: Item) -> Iterator[Links]:
    rows = [(number, match) for number, line in enumerate(item.lines, 1) if (match := _TOPOLOGY_ROW.match(line))]
    linked = {
        int(match["index"]): sum(cell.startswith("NV") for cell in match["cells"].split()[: len(rows)])
        for _, match in rows
    }
    joined = [count for count in linked.values() if count]
    if len(joined) < _JOINED or any(count != len(joined) - 1 for count in joined):
        return
    for number, match in rows:
        if not linked[int(match["index"])]:
            yield Links(int(match["index"]), "", (), 0, True, cite(item, number))


def complaints(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which a monitor calls NVLinks down."""
    return tuple(dict.fromkeys((*snapshot.said(_DCGM_DOWN), *snapshot.said(_ALERT, "text", "application"))))
