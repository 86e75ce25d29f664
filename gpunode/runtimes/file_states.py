"""The files of a runtime, from facts or from probes, each with its mode and owner."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpunode.change import FileChange, FileState, PackageState, Trigger, restrict_writes_to_root
from gpunode.errors import Refused, Undetermined
from gpunode.facts.evidence import Capture, Probe, decode_matches
from gpunode.facts.model import Facts, Unknown, require
from gpunode.facts.reader import make_file_state
from gpunode.facts.systemd import is_unit_file
from gpunode.package_id import PackageId
from gpunode.packages.version import leading_numbers
from gpunode.runtimes.containerd_files import is_pattern, match_pattern
from gpunode.runtimes.model import (
    TOOLKIT_PROGRAM_NAME,
    ConfigEdit,
    DesiredConfig,
    Edit,
    Files,
    ObservedConfig,
    Runtime,
)

States = Mapping[str, FileState]
# A file with twenty thousand mirrors takes more than a megabyte.
_MAX_CONFIG_FILE_BYTES = 16 << 20
# A unit whose file is a link to /dev/null.
_FILE_MASKING_UNIT = FileState(b"")


def packaged_version(runtime: Runtime, packages: Mapping[PackageId, PackageState]) -> tuple[int, ...] | None:
    """Return the version of the runtime's installed package; None if none is installed."""
    states = (packages.get(PackageId(name)) for name in runtime.packages)
    return leading_numbers(next((state.version for state in states if state and not state.config_files_only), ""))


def contents_of_states(states: States) -> Files:
    """Return the files' bytes, as the runtimes' functions expect them."""
    return {path: state.content for path, state in states.items()}


def file_changes(
    edited: ConfigEdit, present: States, triggers: frozenset[Trigger], *, is_roots: bool = True
) -> tuple[FileChange, ...]:
    """Return the edits as file changes; a file keeps its mode and owner.

    A new file may contain secrets of its ownership template, so no more users may read it. If a daemon of root reads
    it, only root may write it, even if others may write the template.
    """

    def make_state(edit: Edit, before: FileState | None) -> FileState | None:
        like = before or present.get(edit.ownership_template) or FileState(b"")
        like = restrict_writes_to_root(like) if is_roots and before is None else like
        return None if edit.after is None else replace(like, content=edit.after)

    states = ((edit, present.get(edit.path)) for edit in edited.edits)
    return tuple(FileChange(edit.path, before, make_state(edit, before), triggers) for edit, before in states)


def states_from_facts(facts: Facts, runtime: Runtime, desired: DesiredConfig) -> States:
    """Return the files that ``facts`` have; a file beside the root file that was not probed counts as missing.

    Raises:
        Undetermined: a file could not be read.
    """

    def find(pattern: str) -> States:
        paths = match_pattern(pattern, dict.fromkeys(facts.files, b"")) if is_pattern(pattern) else [pattern]
        known = [path for path in paths if path in facts.files or path == (desired.config or runtime.config)]
        states = ((path, _state_from_facts(facts, path)) for path in known)
        return {path: state for path, state in states if state}

    return gather_states(runtime, desired, find)


def _state_from_facts(facts: Facts, path: str) -> FileState | None:
    fact = facts.file(path)
    return (
        _FILE_MASKING_UNIT if isinstance(fact, Unknown) and is_unit_file(path) else require(fact, f"what {path} holds")
    )


def gather_states(runtime: Runtime, desired: DesiredConfig, find: Callable[[str], States]) -> States:
    """Return every file that the runtime reads, looking up each path and pattern once with ``find``."""
    states: dict[str, FileState] = {}
    visited: set[str] = set()
    while new := [path for path in runtime.list_read_paths(contents_of_states(states), desired) if path not in visited]:
        visited.update(new)
        for path in new:
            states.update(find(path))
    return states


def inspect_from_facts(facts: Facts, runtime: Runtime) -> ObservedConfig:
    """Return the configuration in the runtime's files. Raises like ``states_from_facts``."""
    return runtime.inspect(contents_of_states(states_from_facts(facts, runtime, DesiredConfig())), DesiredConfig())


def list_toolkit_handlers(facts: Facts, runtime: Runtime) -> tuple[str, ...]:
    """Return the names under which the runtime runs a program of the toolkit; none if its files cannot be read."""
    try:
        programs = inspect_from_facts(facts, runtime).handlers
    except (Refused, Undetermined):
        return ()  # the next command that edits such a file reports the problem
    return tuple(
        name for name in sorted(programs) if posixpath.basename(programs[name]).startswith(TOOLKIT_PROGRAM_NAME)
    )


def probe_states(run_probe: Callable[[Probe], Capture], runtime: Runtime, desired: DesiredConfig) -> States:
    """Return the files that ``run_probe`` finds.

    Raises:
        Undetermined: only root may read one of them.
        Refused: a path is not a file, or the file is too long.
    """

    def find(path: str) -> States:
        return _probe_matches(run_probe, path) if is_pattern(path) else probe_state(run_probe, path)

    return gather_states(runtime, desired, find)


def probe_state(run_probe: Callable[[Probe], Capture], path: str) -> States:
    """Read only the file at ``path``, as ``probe_states`` does."""
    capture = run_probe(Probe(f"file:{path}", path=path, limit_bytes=_MAX_CONFIG_FILE_BYTES))
    if capture.outcome == "absent":
        return {}
    if capture.outcome == "ok":
        return {path: make_file_state(capture.data, capture.ownership)}
    if capture.outcome == "failed" and is_unit_file(path):
        return {path: _FILE_MASKING_UNIT}
    raise _unreadable_error(path, capture)


def _probe_matches(run_probe: Callable[[Probe], Capture], pattern: str) -> States:
    capture = run_probe(Probe(f"files:{pattern}", glob=pattern, limit_bytes=_MAX_CONFIG_FILE_BYTES))
    if capture.outcome == "absent":
        return {}
    if capture.outcome != "ok":
        raise _unreadable_error(pattern, capture)
    states: dict[str, FileState] = {}
    for match in decode_matches(capture.data):
        if match.data is not None and match.ownership is not None:
            states[match.path] = make_file_state(match.data, match.ownership)
        else:  # a symbolic link, or a file that a glob does not read: probe it by its own name
            states.update(probe_state(run_probe, match.path))
    return states


def _unreadable_error(path: str, capture: Capture) -> Refused | Undetermined:
    why = capture.error.strip()[:300] or capture.outcome
    if capture.outcome == "denied":
        return Undetermined(f"cannot tell what {path} holds", why=why, hint="run the command as root")
    return Refused(f"{path} cannot be read as a file", why=why, hint=f"ls -ld {path} shows what it is; fix that")
