"""Everything that any run ever put on a node, whatever became of it: what `remove` looks for at its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpunode.change import (
    FileChange,
    FileState,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    Unsettled,
    is_generated,
)
from gpunode.journal.record import CONFFILES, OBSOLETE, Begin, Entry, Failed, Intent
from gpunode.package_id import PackageId

_OF_PACKAGES = frozenset({CONFFILES, OBSOLETE})


@dataclass(frozen=True, slots=True)
class RecordedAdditions:
    """What all runs of a journal ever added to a node.

    Attributes:
        written: by path, the sha256 of each content that gpunode wrote there and had not found there.
        found: by path, the sha256 of each content that was there before gpunode wrote another.
        generated: the files that another program wrote because gpunode asked it to.
        packages: those that were not there before a run installed them.
        units: those that a run enabled or started.
        modules: the kernel modules that a run loaded.
    """

    written: Mapping[str, frozenset[str]] = field(default_factory=dict)
    found: Mapping[str, frozenset[str]] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()
    packages: frozenset[PackageId] = frozenset()
    units: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()


def collect_additions(entries: Iterable[Entry]) -> RecordedAdditions:
    """Return the additions of ``entries``: those of all runs, oldest first, without the bytes of files.

    An intent without an end counts: its change may have been made.
    """
    written: dict[str, set[str]] = {}
    found: dict[str, set[str]] = {}
    generated, packages, units, modules = set[str](), set[PackageId](), set[str](), set[str]()
    for intent in _made_intents(entries):
        match intent.change:
            case FileChange(path=path) as change if is_generated(change):
                generated.add(path)
            case FileChange(path=path, before=before, after=after):
                found.setdefault(path, set()).update(_object_names(before) - written.setdefault(path, set()))
                written[path] |= _object_names(after) - found[path]
            case (
                PackageChange(id=package, before=None)
                | PackageChange(id=package, before=PackageState(config_files_only=True))
            ):
                packages.add(package)
            case ServiceChange(unit=unit, before=was, after=now):
                if (now.enabled and not was.enabled) or (now.active and not was.active):
                    units.add(unit)
            case ModuleChange(module=module, after=True):
                modules.add(module)
            case _:
                pass
    return RecordedAdditions(
        {path: frozenset(names) for path, names in written.items()},
        {path: frozenset(names) for path, names in found.items()},
        frozenset(generated),
        frozenset(packages),
        frozenset(units),
        frozenset(modules),
    )


def _made_intents(entries: Iterable[Entry]) -> Iterable[Intent]:
    """Return the intents that did not fail, in their order; the numbers of entries begin anew with each run."""
    made: dict[tuple[int, int], Intent] = {}
    run = 0
    for entry in entries:
        match entry:
            case Begin():
                run += 1
            case Intent(seq=seq):
                made[run, seq] = entry
            case Failed(seq=seq):
                made.pop((run, seq), None)
            case _:
                pass
    return [intent for intent in made.values() if intent.step not in _OF_PACKAGES]


def _object_names(state: FileState | Unsettled | None) -> set[str]:
    """Return the name of the object that holds the content of ``state``; none for no known content."""
    return {state.content.decode()} if isinstance(state, FileState) else set()
