"""Effect of ``ctk runtime unconfigure`` on files: bytes in, bytes out, with recorded edits."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.change import FileChange, FileState
from gpunode.facts.derive import derive_runtime_facts
from gpunode.host.rehearsal import RehearsalHost
from gpunode.journal.footprint import FileTrail, NetChange
from gpunode.runtimes import ConfigEdit, DesiredConfig, Edit, Files, Runtime, find_runtime
from gpunode.steps.runtime import RuntimeTarget
from gpunode.workflow import ctk_plan


def unconfigure(row: Runtime | str, files: Files, desired: DesiredConfig, recorded: Iterable[Edit]) -> ConfigEdit:
    """Return the edits, the reason and the notes of the command."""
    row = find_runtime(row) if isinstance(row, str) else row
    present = {path: FileState(content) for path, content in files.items()}
    target = RuntimeTarget(row.adapt_to_node(row, files, desired), desired, present, derive_runtime_facts({}))
    trails = {edit.path: _trail(edit) for edit in recorded}
    plan = ctk_plan.plan_unconfigure_edit(RehearsalHost({}, {}), target, trails)
    changed = tuple(Edit(change.path, _content(change.before), _content(change.after)) for change in plan.changed_files)
    return ConfigEdit(changed, plan.planned.reason, plan.planned.all_notes)


def _trail(edit: Edit) -> FileTrail:
    before, after = (None if content is None else FileState(content) for content in (edit.before, edit.after))
    return (NetChange("runtime", "runtime-config", FileChange(edit.path, before, after)),)


def _content(state: object) -> bytes | None:
    return state.content if isinstance(state, FileState) else None
