"""Everything that any run ever added to a node, even if it was removed since: `remove` looks for it last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from gpunode.change import (
    FILE_STEP_IDS,
    FileChange,
    FileState,
    ModuleChange,
    PackageChange,
    ServiceChange,
    UnknownContent,
    digest,
)
from gpunode.fast_dataclass import dataclass
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Verb
from gpunode.package_id import PackageId

# The verbs whose runs add something to a node.
_ADDING_VERBS: frozenset[Verb] = frozenset({"setup", "configure"})


@dataclass(frozen=True, slots=True)
class RecordedAdditions:
    """All that the runs of a journal ever added to a node.

    Attributes:
        written: by path, the sha256 of each content that a run wrote there, with the sha256 of the content that it was
            derived from: somebody else's, or None if it is only gpunode's.
        sha256_before: by path of each file that any run changed, the sha256 of its content before the first of these
            changes; None for no file.
        generated: the files that another program wrote at gpunode's request.
        packages: the packages that were not installed before a run installed them.
        units: the units that a run enabled, and that were not enabled before the first recorded change.
        modules: the kernel modules that a run loaded.
    """

    written: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    sha256_before: Mapping[str, str | None] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()
    packages: frozenset[PackageId] = frozenset()
    units: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()

    def is_other_own_version(self, change: FileChange, current: FileState | None) -> bool:
        """Return whether ``current`` is not what ``change`` wrote, but what another run derived from the same state.

        False for another owner or mode, which restoring the former file would lose.
        """
        after = change.after
        if current is None or (isinstance(after, FileState) and after.content == current.content):
            return False
        if isinstance(after, FileState) and change.before and replace(after, content=current.content) != current:
            return False
        origins, name = self.written.get(change.path, {}), digest(current.content)
        origin = digest(change.before.content) if isinstance(change.before, FileState) else None
        return name in origins and origins[name] == origin


def collect_additions(runs: Iterable[RunRecord]) -> RecordedAdditions:
    """Return the additions of all ``runs``, which are sorted oldest first and without the bytes of files.

    An intent without an end counts: its change may have been made. What a run restored to undo another, or to remove a
    handler, belongs to the user and is not an addition.
    """
    records = [(run, record) for run in runs for record in run.change_records if record.outcome != "failed"]
    made_changes = [(run, record.change) for run, record in records if record.intent.step not in FILE_STEP_IDS]
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
        # Skip content that somebody else wrote before.
        if after is not None and after not in {before, backup_by_path[file.path], *former.values()}:
            former.setdefault(after, former.get(before, before) if before else None)
    return RecordedAdditions(
        written,
        backup_by_path,
        generated=frozenset(file.path for file in files if file.is_generated),
        packages=frozenset(change.id for change in PackageChange.of_kind(added) if change.action == "install"),
        units=frozenset(
            change.unit
            for change in ServiceChange.of_kind(added)
            if change.after.enabled and not was_enabled[change.unit]
        ),
        modules=frozenset(module_change.module for module_change in ModuleChange.of_kind(added) if module_change.after),
    )


def _backup_name_of(state: FileState | UnknownContent | None) -> str | None:
    """Return the name of the object with the content of ``state``; None if its content is unknown."""
    return state.content.decode() if isinstance(state, FileState) else None
