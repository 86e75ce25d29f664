"""Keep the lists of package sources that remain after an undo readable as a whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpunode.change import FileChange, FileState
from gpunode.command import command
from gpunode.facts.model import Facts, PackageSource, known
from gpunode.packages import system
from gpunode.workflow.undo import KeptItem, UndoStep


def keep_sources_readable(
    steps: Sequence[UndoStep], kept: Sequence[KeptItem], facts: Facts, backup_of: Callable[[bytes], str]
) -> tuple[tuple[UndoStep, ...], tuple[KeptItem, ...]]:
    """Leave out of ``steps`` what would make the package manager refuse all of its sources, or an entry that stays.

    That is a former list that contradicts one that stays: where gpunode's own list stays, the list that it replaced
    does not come back. And it is a keyring that an entry which stays names: gpunode's own entry needs gpunode's
    keyring, and an entry of somebody else's any.

    Args:
        steps: of the undo.
        kept: what it leaves already, gpunode's own list maybe among it.
        facts: of the node before it.
        backup_of: where the backup with this content is.

    Returns:
        The remaining steps, and what is kept now, each with the reason.
    """
    own = {one.subject for one in kept}
    kept_items = list(kept)
    remaining = list(steps)
    while (found := _find_contradiction(remaining, facts)) is not None:
        step, other = found
        remaining.remove(step)
        if step.file:
            kept_items.append(_describe_kept_list(step.file, other, backup_of, system(facts).manager))
    for source in known(facts.sources, ()):
        if source.enabled and source.file not in _changed_paths(remaining):
            for step in [one for one in remaining if _is_keyring_of(source, one, is_own=source.file in own)]:
                remaining.remove(step)
                kept_items.append(KeptItem(step.change.subject, f"stays: {source.file} names it"))
    return tuple(remaining), tuple(kept_items)


def _is_keyring_of(source: PackageSource, step: UndoStep, *, is_own: bool) -> bool:
    """Return whether ``step`` removes an entry's keyring, or changes it if gpunode wrote the entry (``is_own``)."""
    file = step.file
    if file is None or file.path not in source.signed_by.replace(",", " ").split():
        return False
    return is_own or file.after is None


def _find_contradiction(steps: Sequence[UndoStep], facts: Facts) -> tuple[UndoStep, PackageSource] | None:
    """Return the first step that puts back an entry which contradicts one that is there then, and that one."""
    there = [source for source in known(facts.sources, ()) if source.file not in _changed_paths(steps)]
    architecture = known(facts.architecture, "")
    for step in steps:
        coming = _restored_entries(step, facts)
        for source in coming:
            if other := next((one for one in there if system(facts).contradict(source, one, architecture)), None):
                return step, other
        there += coming
    return None


def _restored_entries(step: UndoStep, facts: Facts) -> tuple[PackageSource, ...]:
    """Return the entries that ``step`` puts in a list of sources; none for any other step, nor for what is no list."""
    if step.file is None or not isinstance(former := step.file.after, FileState):
        return ()
    try:
        return system(facts).sources_in(step.file.path, former.content.decode("utf-8", "replace")) or ()
    except ValueError:
        return ()  # the package manager could not read it before gpunode, either


def _changed_paths(steps: Sequence[UndoStep]) -> frozenset[str]:
    return frozenset(step.file.path for step in steps if step.file)


def _describe_kept_list(
    file: FileChange, other: PackageSource, backup_of: Callable[[bytes], str], manager: str
) -> KeptItem:
    former = file.after
    assert isinstance(former, FileState)
    copy = command("sudo", "install", "-m", f"{former.mode:04o}", backup_of(former.content), file.path)
    does = "not restored" if file.before is None else "kept as it is"
    return KeptItem(
        file.path,
        f"{does}: {other.file}:{other.line} is for the same archive with another key or option, and is kept; {manager} "
        f"would read no list at all. Once that entry is gone, `{copy}` restores the former list",
    )
