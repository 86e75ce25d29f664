"""The CDI specification: that it exists and fits the driver and the GPUs."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.change import Deferred, FileChange, ServiceChange, ServiceState, Trigger
from gpunode.container_runtimes import CONTAINER_RUNTIMES, takes_only_cdi
from gpunode.errors import Refused, Undetermined
from gpunode.facts.layout import GpuLayout
from gpunode.facts.model import Facts, Known, LoadedDriver, Unknown, require, value_or
from gpunode.facts.probes import CDI_FOLDERS, CDI_REFRESH_ENVIRONMENT_FILE, find_cdi_output_path
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Planned, Step, StepOutcome
from gpunode.package_id import PackageId
from gpunode.packages.version import leading_numbers
from gpunode.recipe import Recipe
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.runtimes.file_states import contents_of_states, inspect_from_facts, states_from_facts
from gpunode.runtimes.installations import resolve_runtime_if_possible
from gpunode.steps.installed_driver import is_at_version
from gpunode.steps.kernel import is_chosen_driver_loaded
from gpunode.steps.selection import WantedDriver, wanted_driver

if TYPE_CHECKING:
    from gpunode.facts.cdi import CdiDevices, CdiSpec
    from gpunode.runtimes import podman

CDI_REFRESH_UNIT = "nvidia-cdi-refresh.service"
REFRESH_PATH_UNIT = "nvidia-cdi-refresh.path"
_TOOLKIT_BASE_PACKAGE = PackageId("nvidia-container-toolkit-base")
# The first toolkit whose package has the units.
_FIRST_VERSION_WITH_UNITS = (1, 18)
_ALL_GPUS_DEVICE = "all"
KEPT_FRESH_PHRASE = "; the toolkit's units keep it fresh"


@dataclass(frozen=True, slots=True)
class CdiVerdict:
    """The verdict on a node's specifications.

    Attributes:
        spec: the one that defines ``nvidia.com/gpu=all``; None if there is none.
        fault: why it must be written again, a clause; empty if it need not.
        notes: problems that writing it again does not fix, a sentence each.
    """

    spec: CdiSpec | None
    fault: str
    notes: tuple[str, ...] = ()


def plan(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan a specification for the loaded driver's GPUs, which nvidia-ctk writes at the end of the run."""
    if facts.is_image:
        return Planned((), "an image's specification is written after its first boot", is_deferred=True)
    if not needs_specification(recipe, facts):
        reason = "CDI is not requested, and the toolkit has no unit that would write a specification"
        return Planned((), reason, tuple(_stale_unrequested_spec_notes(recipe, facts)))
    loaded = _expected_driver(facts)
    if loaded is None:
        return Planned((), "written once the driver is loaded", is_deferred=True)
    driver = wanted_driver(recipe, facts)
    is_other = isinstance(driver, WantedDriver) and not is_chosen_driver_loaded(loaded, driver.chosen)
    if loaded.version and is_other:
        return Planned((), f"written after the reboot, which replaces driver {loaded.version}", is_deferred=True)
    path = output_path(facts)
    fact = facts.file(path)
    if isinstance(fact, Unknown) and fact.probe == PLAN_PROBE_KEY:
        return Planned((), "nvidia-ctk writes it in this run", is_deferred=True)
    if isinstance(fact, Unknown) and not requests_cdi(recipe):
        return Planned((), f"the recipe does not ask for CDI, and {path} cannot be read")
    before = require(fact, f"what {path} holds")
    judged = judge_specifications(recipe, facts, loaded)
    refresh = facts.unit(CDI_REFRESH_UNIT)
    # It fails if started repeatedly before the driver is ready (nvidia-container-toolkit issues 1517 and 1611).
    has_failed = isinstance(refresh, Known) and refresh.value.failed
    if not requests_cdi(recipe) and judged.spec is None and not has_failed:
        reason = f"CDI is not requested; {CDI_REFRESH_UNIT} writes a specification when it next runs"
        return Planned((), reason, judged.notes, is_deferred=True)
    units = tuple(_enable_units(facts)) if requests_cdi(recipe) else ()
    if not judged.fault:
        return Planned(units, f"{describe_verdict(judged)}{KEPT_FRESH_PHRASE if units else ''}", judged.notes)
    promise = Deferred("the GPUs as the driver lists them", "nvidia-ctk has asked the driver")
    trigger = Trigger("cdi", "" if requests_cdi(recipe) else "if-possible")
    change = FileChange(path, before, promise, frozenset({trigger}))
    reason = f"containers request GPUs as nvidia.com/gpu=…; {judged.fault}{KEPT_FRESH_PHRASE if units else ''}"
    return Planned((change, *units), reason, judged.notes)


def _stale_unrequested_spec_notes(recipe: Recipe, facts: Facts) -> Iterator[str]:
    """Yield problems of specifications that nobody requests and nothing rewrites; engines read them as well."""
    loaded = _expected_driver(facts)
    if loaded is None or not loaded.version:
        return
    judged = judge_specifications(recipe, facts, loaded)
    if judged.spec is None:
        return  # none, or one that only an engine needs to understand
    yield from judged.notes
    if judged.fault:
        yield f"{judged.fault}, and nothing on this node writes it again: remove it unless containers use CDI devices"


def _enable_units(facts: Facts) -> Iterator[ServiceChange]:
    """Enable the toolkit's units, which write it at boot and when the driver changes, unless they are masked."""
    for name, watches in ((CDI_REFRESH_UNIT, False), (REFRESH_PATH_UNIT, True)):
        fact = facts.unit(name)
        if isinstance(fact, Known) and fact.value.exists and not fact.value.masked:
            before = fact.value.state
            wanted = ServiceState(enabled=True, active=before.active or (watches and facts.can_start(name)))
            if before != wanted:
                yield ServiceChange(name, before, wanted)


def needs_specification(recipe: Recipe, facts: Facts) -> bool:
    """Return True if the recipe, or the toolkit's own unit, needs a specification."""
    return requests_cdi(recipe) or _has_usable_refresh_unit(facts)


def requests_cdi(recipe: Recipe) -> bool:
    """Return True if the recipe makes containers get GPUs as CDI devices."""
    runtime = CONTAINER_RUNTIMES.get(recipe.runtime.name)
    return runtime is not None and (runtime.cdi_support != "switch" or recipe.runtime.cdi is True)


def _has_usable_refresh_unit(facts: Facts) -> bool:
    fact = facts.unit(CDI_REFRESH_UNIT)
    if isinstance(fact, Known) and fact.value.exists:
        return not fact.value.masked
    if isinstance(facts.packages, Unknown) or facts.packages.probe != PLAN_PROBE_KEY:
        return False
    to_come = facts.packages.value.get(_TOOLKIT_BASE_PACKAGE)
    if not is_at_version(to_come, "") or to_come is None:
        return False
    version = leading_numbers(to_come.version)  # none: the newest, known after the index is read
    return version is None or version >= _FIRST_VERSION_WITH_UNITS


def _expected_driver(facts: Facts) -> LoadedDriver | None:
    """Return the driver loaded now or by earlier steps, its version empty if unknown."""
    fact = facts.loaded_driver
    if isinstance(fact, Unknown):
        return LoadedDriver("", open_module=False) if fact.probe == PLAN_PROBE_KEY else None
    return fact.value


def output_path(facts: Facts) -> str:
    """Return the path at which the unit writes the specification."""
    return find_cdi_output_path(facts.text(CDI_REFRESH_ENVIRONMENT_FILE))


def spec_folders(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """Return the folders in which the runtime looks for specifications; the last one wins."""
    if not takes_only_cdi(recipe.runtime.name):
        return _configured_folders(recipe, facts) if requests_cdi(recipe) else CDI_FOLDERS
    from gpunode.runtimes import podman

    return podman.spec_folders(
        contents_of_states(states_from_facts(facts, find_runtime("podman"), DesiredConfig())), podman_version(facts)
    )


def _configured_folders(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """Return the folders that the runtime's own files name, else the standard folders."""
    try:
        runtime = resolve_runtime_if_possible(find_runtime(recipe.runtime.name), facts)
        folders = inspect_from_facts(facts, runtime).cdi_folders
    except (Refused, Undetermined):
        return CDI_FOLDERS  # the runtime's own step reports what is wrong
    # /var/run is a link to /run on every host with systemd.
    paths = (re.sub("^/run/", "/var/run/", posixpath.normpath(folder)) for folder in folders)
    return tuple(dict.fromkeys(paths)) or CDI_FOLDERS


def podman_version(facts: Facts) -> podman.Version | None:
    """Return the installed package's version; None if there is none or it is unknown."""
    state = value_or(facts.packages, {}).get(PackageId("podman"))
    return leading_numbers(state.version) if state else None


def judge_specifications(recipe: Recipe, facts: Facts, loaded: LoadedDriver) -> CdiVerdict:
    """Judge the specifications for the recipe's runtime and the driver ``loaded``."""
    places, written = spec_folders(recipe, facts), output_path(facts)
    offer = find_devices(facts, places)
    spec = offer.devices.get(_ALL_GPUS_DEVICE)
    folder = written.rpartition("/")[0]
    missed = () if folder in places else (_explain_missed_folder(recipe.runtime.name, written, places),)
    notes = [*_unsolved_problems(offer, written), *missed, *_foreign_specifications(offer, spec, loaded)]
    if spec is not None and (fault := _find_fault(spec, facts, loaded)):
        return CdiVerdict(spec, fault, tuple(notes))
    rivals = [spec for spec in offer.unreadable if spec.path != written and spec.path.rpartition("/")[0] == folder]
    # One more file can add the missing devices: the runtime reads it, and nothing conflicts.
    is_addable = _ALL_GPUS_DEVICE not in offer.conflicts and folder in places and not rivals
    return CdiVerdict(spec, "there is no specification yet" if spec is None and is_addable else "", tuple(notes))


def find_devices(facts: Facts, places: Sequence[str] = CDI_FOLDERS) -> CdiDevices:
    """Return the devices that a runtime finds in ``places``."""
    from gpunode.facts import cdi

    folders = tuple(f"{folder}/" for folder in CDI_FOLDERS)
    states = {path: fact.value for path, fact in facts.files.items() if isinstance(fact, Known) and fact.value}
    return cdi.resolve_devices(
        {path: state.content for path, state in states.items() if path.startswith(folders)}, places
    )


def describe_verdict(verdict: CdiVerdict) -> str:
    """Describe the verdict for the plan and the checks."""
    spec = verdict.spec
    if spec is None:
        return "no usable specification"
    of = f" for driver {', '.join(sorted(spec.drivers))}" if spec.drivers else ""
    return f"{spec.path}{of} offers {', '.join(spec.devices)}"


def _find_fault(spec: CdiSpec, facts: Facts, loaded: LoadedDriver) -> str:
    """Return why ``spec`` does not fit the driver and its GPUs, a clause; empty if it does or that is unknown."""
    if _is_of_other_driver(spec, loaded):
        return f"{spec.path} is for driver {', '.join(sorted(spec.drivers))}, but {loaded.version} is loaded"
    layout: GpuLayout | None = value_or(facts.layout, None)
    if layout is None or not spec.gpus:
        return ""
    if layout.minors and spec.gpus != layout.minors:
        listed, there = (
            ", ".join(f"/dev/nvidia{minor}" for minor in sorted(minors)) for minors in (spec.gpus, layout.minors)
        )
        return f"{spec.path} names {listed}, but the driver has {there}"
    if spec.mig_capabilities != layout.mig_capabilities:
        return f"{spec.path} does not have the MIG instances of the driver"
    named = frozenset(name for name in spec.devices if name.startswith("GPU-"))
    if strange := sorted(named - layout.uuids):
        return f"{spec.path} names {strange[0]}, which is missing" if len(layout.uuids) == len(layout.minors) else ""
    return ""


def _is_of_other_driver(spec: CdiSpec, loaded: LoadedDriver) -> bool:
    """Return whether ``spec`` names driver versions, and none that is ``loaded``, whose version may be unknown."""
    fits = any(f"{version}.".startswith(f"{loaded.version}.") for version in spec.drivers)
    return bool(spec.drivers and loaded.version) and not fits


def _explain_missed_folder(name: str, written: str, places: Sequence[str]) -> str:
    """Explain that the runtime does not look where the specification is written, and what to change."""
    from gpunode.runtimes import podman

    wanted = json.dumps([*dict.fromkeys((*places, *CDI_FOLDERS))])
    file, line = {
        "podman": (podman.PODMAN_CONFIG, f"[engine] cdi_spec_dirs = {wanted}"),
        "docker": (CONTAINER_RUNTIMES["docker"].config, f'"cdi-spec-dirs": {wanted}'),
    }.get(name, ("its configuration", f"cdi_spec_dirs = {wanted}"))
    mismatch = f"the specification is written to {written}, and {name} looks only in {', '.join(places)}"
    return f"{mismatch}: name both folders in {file} ({line})"


def _unsolved_problems(offer: CdiDevices, written: str) -> Iterator[str]:
    for name, paths in offer.conflicts.items():
        yield f"{' and '.join(paths)} both offer nvidia.com/gpu={name}, so no container gets it: remove one of them"
    for spec in offer.unreadable:
        if spec.path != written:
            yield f"{spec.path} cannot be parsed ({spec.reason}); a container engine may still read it"


def _foreign_specifications(offer: CdiDevices, spec: CdiSpec | None, loaded: LoadedDriver) -> Iterator[str]:
    """Yield a note for each other specification of another driver: only its shared names are overridden."""
    for other in offer.specs:
        if spec is None or other.path == spec.path:
            continue
        if _is_of_other_driver(other, loaded):
            names = sorted(name for name, device in offer.devices.items() if device.path == other.path)
            also = f"; only it still offers {', '.join(names)}" if names else ""
            versions = ", ".join(sorted(other.drivers))
            yield f"{other.path} is for driver {versions}, and {spec.path} overrides it{also}: remove it"


CDI_STEP = Step(
    "cdi",
    "CDI specification",
    "runtime",
    plan,
    serves=("toolkit",),
    needs=("toolkit",),
    files=(CDI_REFRESH_ENVIRONMENT_FILE,),
)
