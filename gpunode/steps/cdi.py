"""The CDI specification: there, and of the driver and the GPUs that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpunode.change import Deferred, FileChange, ServiceChange, ServiceState, Trigger
from gpunode.container_runtimes import CONTAINER_RUNTIMES, takes_only_cdi
from gpunode.facts.layout import Layout
from gpunode.facts.model import Facts, Known, LoadedDriver, Unknown, known, need
from gpunode.facts.probes import CDI_FOLDERS, CDI_SPEC
from gpunode.facts.project import PLAN
from gpunode.outcome import Outcome, Planned, Step
from gpunode.package_id import PackageId
from gpunode.packages.version import numbers
from gpunode.recipe import Recipe
from gpunode.runtimes import DesiredConfig, runtime
from gpunode.runtimes.found import contents, in_facts
from gpunode.steps.installed_driver import matches
from gpunode.steps.kernel import is_loaded
from gpunode.steps.selection import WantedDriver, wanted_driver

if TYPE_CHECKING:
    from gpunode.facts.cdi import Offer, Spec
    from gpunode.runtimes import podman

UNIT = "nvidia-cdi-refresh.service"
PATH_UNIT = "nvidia-cdi-refresh.path"
# What the unit's owner may have told it, such as another place for its output.
ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
# These take GPUs as CDI devices, whatever the recipe says of the runtime's own support.
_TOOLKIT = PackageId("nvidia-container-toolkit-base")
# The first toolkit whose package brings the units.
_WITH_UNITS = (1, 18)
_OUTPUT = re.compile(r"^[ \t]*NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=[\"']?([^\"'\n]*?)[\"']?[ \t]*$", re.MULTILINE)
_ALL = "all"
KEPT = "; the toolkit's units keep it fresh"


@dataclass(frozen=True, slots=True)
class Judged:
    """What the specifications of a node are worth.

    Attributes:
        spec: the one that ``nvidia.com/gpu=all`` is taken from; None where there is none.
        fault: why it has to be written anew, a clause; empty when it has not.
        notes: what writing it anew does not put right, a sentence each.
    """

    spec: Spec | None
    fault: str
    notes: tuple[str, ...] = ()


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """A specification offers the GPUs of the loaded driver; nvidia-ctk writes it at the end of the run."""
    if facts.is_image:
        return Planned((), "an image's specification is written after its first boot", later=True)
    if not is_wanted(recipe, facts):
        reason = "CDI is not requested, and the toolkit has no unit that would write a specification"
        return Planned((), reason, tuple(_stale(recipe, facts)))
    loaded = _loaded(facts)
    if loaded is None:
        return Planned((), "written once the driver is loaded", later=True)
    if _is_about_to_change(recipe, facts, loaded):
        return Planned((), f"written after the reboot, which replaces driver {loaded.version}", later=True)
    path = output(facts)
    fact = facts.file(path)
    if isinstance(fact, Unknown) and fact.probe == PLAN:
        return Planned((), "nvidia-ctk writes it in this run", later=True)
    if isinstance(fact, Unknown) and not is_asked(recipe):
        return Planned((), f"the recipe does not ask for CDI, and {path} cannot be read")
    before = need(fact, f"what {path} holds")
    judged = judge(recipe, facts, loaded)
    if not is_asked(recipe) and judged.spec is None and not _has_failed(facts):
        reason = f"CDI is not requested; {UNIT} writes a specification when it next runs"
        return Planned((), reason, judged.notes, later=True)
    units = tuple(_enabled(facts)) if is_asked(recipe) else ()
    if not judged.fault:
        return Planned(units, f"{described(judged)}{KEPT if units else ''}", judged.notes)
    promise = Deferred("the GPUs as the driver lists them", "nvidia-ctk has asked it")
    trigger = Trigger("cdi", "" if is_asked(recipe) else "if-possible")
    change = FileChange(path, before, promise, frozenset({trigger}))
    reason = f"containers request GPUs as nvidia.com/gpu=…; {judged.fault}{KEPT if units else ''}"
    return Planned((change, *units), reason, judged.notes)


def _stale(recipe: Recipe, facts: Facts) -> Iterator[str]:
    """Yield what is wrong with specifications that nobody asks for and nothing rewrites; engines read them as well."""
    loaded = _loaded(facts)
    if loaded is None or not loaded.version:
        return
    judged = judge(recipe, facts, loaded)
    if judged.spec is None:
        return  # none, or one that only an engine needs to understand
    yield from judged.notes
    if judged.fault:
        yield f"{judged.fault}, and nothing on this node writes it again: remove it unless containers use CDI devices"


def _enabled(facts: Facts) -> Iterator[ServiceChange]:
    """The toolkit's units, so that they write it again at boot and when the driver changes; what is masked stays so."""
    for name, watches in ((UNIT, False), (PATH_UNIT, True)):
        fact = facts.unit(name)
        if isinstance(fact, Known) and fact.value.exists and not fact.value.masked:
            before = fact.value.state
            wanted = ServiceState(enabled=True, active=before.active or (watches and facts.can_start(name)))
            if before != wanted:
                yield ServiceChange(name, before, wanted)


def is_wanted(recipe: Recipe, facts: Facts) -> bool:
    """Whether somebody needs a specification: the recipe, or the toolkit's own unit, which is there to keep one."""
    return is_asked(recipe) or _has_unit(facts)


def is_asked(recipe: Recipe) -> bool:
    """Whether the recipe itself has containers get GPUs as CDI devices."""
    row = CONTAINER_RUNTIMES.get(recipe.runtime.name)
    return row is not None and (row.cdi != "switch" or recipe.runtime.cdi is True)


def _has_failed(facts: Facts) -> bool:
    """Whether the unit gave up, as it does when it is started more than once before the driver is ready.

    Source: nvidia-container-toolkit issues 1517 and 1611.
    """
    fact = facts.unit(UNIT)
    return isinstance(fact, Known) and fact.value.failed


def _has_unit(facts: Facts) -> bool:
    fact = facts.unit(UNIT)
    if isinstance(fact, Known) and fact.value.exists:
        return not fact.value.masked
    if isinstance(facts.packages, Unknown) or facts.packages.probe != PLAN:
        return False
    to_come = facts.packages.value.get(_TOOLKIT)
    if not matches(to_come, "") or to_come is None:
        return False
    version = numbers(to_come.version)  # none: the newest, known after the index is read
    return version is None or version >= _WITH_UNITS


def _loaded(facts: Facts) -> LoadedDriver | None:
    """The driver that is loaded now, or will be by the steps before; its version empty where only that is known."""
    fact = facts.loaded_driver
    if isinstance(fact, Unknown):
        return LoadedDriver("", open_module=False) if fact.probe == PLAN else None
    return fact.value


def _is_about_to_change(recipe: Recipe, facts: Facts, loaded: LoadedDriver) -> bool:
    driver = wanted_driver(recipe, facts)
    return isinstance(driver, WantedDriver) and loaded.version != "" and not is_loaded(loaded, driver.chosen)


def output(facts: Facts) -> str:
    """Where a specification is written: as the unit's own settings say."""
    fact = facts.file(ENVIRONMENT)
    text = fact.value.content.decode("utf-8", "replace") if isinstance(fact, Known) and fact.value else ""
    said = [path for path in _OUTPUT.findall(text) if path.startswith("/")]
    return said[-1] if said else CDI_SPEC


def folders(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """Where the runtime looks for specifications; the last one wins."""
    if not takes_only_cdi(recipe.runtime.name):
        return CDI_FOLDERS
    from gpunode.runtimes import podman

    return podman.spec_folders(contents(in_facts(facts, runtime("podman"), DesiredConfig())), podman_version(facts))


def podman_version(facts: Facts) -> podman.Version | None:
    """Of the installed package; None where there is none, or nobody knows yet."""
    state = known(facts.packages, {}).get(PackageId("podman"))
    return numbers(state.version) if state else None


def judge(recipe: Recipe, facts: Facts, loaded: LoadedDriver) -> Judged:
    """What the specifications are worth to the runtime of ``recipe`` while ``loaded`` drives the GPUs."""
    places, written = folders(recipe, facts), output(facts)
    offer = offered(facts, places)
    spec = offer.devices.get(_ALL)
    notes = [*_unsolved(offer, written, places), *_others(offer, spec, loaded)]
    if spec is not None and (fault := _fault(spec, facts, loaded)):
        return Judged(spec, fault, tuple(notes))
    if spec is None and _ALL not in offer.conflicts and _helps(offer, written, places):
        return Judged(None, "there is no specification yet", tuple(notes))
    return Judged(spec, "", tuple(notes))


def offered(facts: Facts, places: Sequence[str] = CDI_FOLDERS) -> Offer:
    """What the specifications of the node offer to a runtime that looks in ``places``."""
    from gpunode.facts import cdi

    return cdi.offer(_files(facts), places)


def described(judged: Judged) -> str:
    """What there is, for the plan and the checks."""
    spec = judged.spec
    if spec is None:
        return "no usable specification"
    of = f" of driver {', '.join(sorted(spec.drivers))}" if spec.drivers else ""
    return f"{spec.path}{of} offers {', '.join(spec.devices)}"


def _files(facts: Facts) -> dict[str, bytes]:
    folders = tuple(f"{folder}/" for folder in CDI_FOLDERS)
    states = {path: fact.value for path, fact in facts.files.items() if isinstance(fact, Known)}
    return {path: state.content for path, state in states.items() if state is not None and path.startswith(folders)}


def _helps(offer: Offer, written: str, places: Sequence[str]) -> bool:
    """Whether one more file could give what is missing: the runtime reads it, and nothing there contradicts it."""
    folder = written.rpartition("/")[0]
    rivals = [one.path for one in offer.unread if one.path != written and one.path.rpartition("/")[0] == folder]
    return folder in places and not rivals


def _fault(spec: Spec, facts: Facts, loaded: LoadedDriver) -> str:
    """Why ``spec`` does not fit the driver and its GPUs, a clause; empty when it does or nobody can tell."""
    if spec.drivers and not any(f"{version}.".startswith(loaded.version) for version in spec.drivers):
        return f"{spec.path} is of driver {', '.join(sorted(spec.drivers))}, and {loaded.version} is loaded"
    layout: Layout | None = known(facts.layout, None)
    if layout is None or not spec.gpus:
        return ""
    if layout.minors and spec.gpus != layout.minors:
        return f"{spec.path} names {_nodes(spec.gpus)}, and the driver has {_nodes(layout.minors)}"
    if spec.mig_caps != layout.mig_caps:
        return f"{spec.path} has other MIG instances than the driver"
    named = frozenset(name for name in spec.devices if name.startswith("GPU-"))
    if strange := sorted(named - layout.uuids):
        return f"{spec.path} names {strange[0]}, which is missing" if len(layout.uuids) == len(layout.minors) else ""
    return ""


def _nodes(minors: frozenset[int]) -> str:
    return ", ".join(f"/dev/nvidia{minor}" for minor in sorted(minors))


def _unsolved(offer: Offer, written: str, places: Sequence[str]) -> Iterator[str]:
    for name, paths in offer.conflicts.items():
        yield f"{' and '.join(paths)} both offer nvidia.com/gpu={name}, so no container gets it: remove one of them"
    for one in offer.unread:
        if one.path != written:
            yield f"{one.path} cannot be parsed ({one.reason}); a container engine may still read it"
    if written.rpartition("/")[0] not in places:
        from gpunode.runtimes import podman

        yield (
            f"the specification is written to {written}, and podman looks only in {', '.join(places)}: name both "
            f'folders in {podman.CONFIG} ([engine] cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"])'
        )


def _others(offer: Offer, spec: Spec | None, loaded: LoadedDriver) -> Iterator[str]:
    """The specifications of another driver that the one in use overrules only where it has the same names."""
    for other in offer.specs:
        if spec is None or other.path == spec.path:
            continue
        if other.drivers and not any(f"{version}.".startswith(loaded.version) for version in other.drivers):
            names = sorted(name for name, one in offer.devices.items() if one.path == other.path)
            also = f"; only it still offers {', '.join(names)}" if names else ""
            versions = ", ".join(sorted(other.drivers))
            yield f"{other.path} is of driver {versions}, and {spec.path} overrides it{also}: remove it"


CDI = Step("cdi", "CDI specification", "runtime", plan, needs=("toolkit",), files=(ENVIRONMENT,))
