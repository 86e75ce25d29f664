"""Everything that any run ever added to a node, whatever became of it: `remove` looks for it at its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpunode.change import (
    FILE_STEP_IDS,
    FileChange,
    FileState,
    ModuleChange,
    PackageChange,
    ServiceChange,
    UnknownContent,
)
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Verb
from gpunode.package_id import PackageId

# The verbs whose runs add something to a node.
_ADDING_VERBS: frozenset[Verb] = frozenset({"setup", "configure"})


@dataclass(frozen=True, slots=True)
class RecordedAdditions:
    """All that the runs of a journal ever added to a node.

    Attributes:
        written: by path, the sha256 of each content that a run made there, with that of what it was made from: of
            somebody else's content, or None where it is gpunode's alone.
        sha256_before: by path of each file that any run changed, the sha256 of what was there before the first of these
            changes; None for no file.
        generated: the files that another program wrote because gpunode asked it to.
        packages: those that were not there before a run installed them.
        units: those that a run enabled, and that were not enabled before the first recorded change.
        modules: the kernel modules that a run loaded.
    """

    written: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    sha256_before: Mapping[str, str | None] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()
    packages: frozenset[PackageId] = frozenset()
    units: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()


def collect_additions(runs: Iterable[RunRecord]) -> RecordedAdditions:
    """Return the additions of all ``runs``, which come oldest first and without the bytes of files.

    An intent without an end counts: its change may have been made. What a run brought back that undoes another, or
    takes a handler out, is the user's own, and no addition.
    """
    records = [(run, record) for run in runs for record in run.change_records if record.outcome != "failed"]
    made_changes = [(run, one.change) for run, one in records if one.intent.step not in FILE_STEP_IDS]
    changed = [change for change in FileChange.of_kind(change for _, change in made_changes) if not change.is_generated]
    backup_by_path = {change.path: _backup_name_of(change.before) for change in reversed(changed)}
    services = ServiceChange.of_kind(change for _, change in made_changes)
    was_enabled = {change.unit: change.before.enabled for change in reversed(services)}
    added = [change for run, change in made_changes if run.verb in _ADDING_VERBS]
    files = FileChange.of_kind(added)
    written: dict[str, dict[str, str | None]] = {}
    for file in (file for file in files if not file.is_generated):
        former = written.setdefault(file.path, {})
        before, after = _backup_name_of(file.before), _backup_name_of(file.after)
        # Not a content that was somebody else's before.
        if after is not None and after not in {before, backup_by_path[file.path], *former.values()}:
            former.setdefault(after, former.get(before, before) if before else None)
    return RecordedAdditions(
        written,
        backup_by_path,
        generated=frozenset(file.path for file in files if file.is_generated),
        packages=frozenset(change.id for change in PackageChange.of_kind(added) if change.action == "install"),
        units=frozenset(
            one.unit for one in ServiceChange.of_kind(added) if one.after.enabled and not was_enabled[one.unit]
        ),
        modules=frozenset(module_change.module for module_change in ModuleChange.of_kind(added) if module_change.after),
    )


def _backup_name_of(state: FileState | UnknownContent | None) -> str | None:
    """Return the name of the object that holds the content of ``state``; None for no known content."""
    return state.content.decode() if isinstance(state, FileState) else None
