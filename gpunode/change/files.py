"""Changes of files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import ClassVar, TypeAlias

from gpunode.change.base import FILE_STEP_IDS, RUNTIME_CONFIG_STAGE, SET_ASIDE_STEP_ID, Action, BaseChange, Trigger
from gpunode.fast_dataclass import dataclass


def digest(content: bytes) -> str:
    """Return the name of the backup object that holds ``content``: its sha256."""
    from hashlib import sha256  # loaded on use: doctor makes no backup

    return sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class FileState:
    """The present or planned state of a file.

    Attributes:
        mode: only the permission bits (``0o644``).
        xattrs: the extended attributes by name, including ACLs and capabilities. No plan requests any, so comparisons
            of states ignore them; a restored file gets them back.
    """

    content: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    xattrs: tuple[tuple[str, bytes], ...] = field(default=(), compare=False)

    def with_digest(self) -> FileState:
        """Return the state with its content replaced by its digest, as in a journal."""
        return replace(self, content=digest(self.content).encode())

    @property
    def record(self) -> dict[str, object]:
        """The state in JSON's types; requires a state whose content is a digest."""
        return {"sha256": self.content.decode(), "mode": f"{self.mode:04o}", "uid": self.uid, "gid": self.gid}

    def __str__(self) -> str:
        return f"mode {self.mode:04o} owner {self.uid}:{self.gid}"


def restrict_writes_to_root(state: FileState) -> FileState:
    """Return the file as owned by root and writable only by root; its readers stay the same."""
    return replace(state, uid=0, mode=state.mode & ~0o022)


@dataclass(frozen=True, slots=True)
class Deferred:
    """A file's state that cannot be known yet, such as a file that a package will ship."""

    what: str
    known_after: str


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A repository's key: its fingerprints are known in advance, its bytes only once fetched.

    Attributes:
        url: where it is downloaded from.
        fingerprints: the exact set of primary keys that it must hold; 40 upper-case hex digits each.
    """

    url: str
    fingerprints: frozenset[str]
    mode: int = 0o644

    @property
    def what(self) -> str:
        """The key as the plan shows it."""
        return f"signing key {' '.join(sorted(self.fingerprints))} from {self.url}"

    @property
    def known_after(self) -> str:
        """When the bytes are known."""
        return "its download; a file with any other key is refused"


UnknownContent: TypeAlias = Deferred | SigningKey


@dataclass(frozen=True, slots=True)
class FileChange(BaseChange):
    """A file is created (``before`` is None), replaced, or removed (``after`` is None).

    An unchanged file (``before == after``) still has its triggers: somebody else has changed it, and its daemon has not
    read it. A deferred file with the trigger ``cdi`` is written by the program that the trigger starts.

    Attributes:
        folders: the folders that are created for a new file, outermost first; an undo removes them again. They are only
            known when the change is about to be made, and comparisons of changes ignore them.
    """

    kind_name: ClassVar[str] = "file"
    rank: ClassVar[int] = 0
    is_undone_by_plain_rollback: ClassVar[bool] = True

    path: str
    before: FileState | None
    after: FileState | UnknownContent | None
    triggers: frozenset[Trigger] = frozenset()
    folders: tuple[str, ...] = field(default=(), compare=False)

    @property
    def subject(self) -> str:
        return self.path

    @property
    def is_generated(self) -> bool:
        """True if the change only triggers another program to write the file."""
        return isinstance(self.after, Deferred) and any(trigger.kind == "cdi" for trigger in self.triggers)

    @property
    def is_final_state_known(self) -> bool:
        return not isinstance(self.after, Deferred | SigningKey)

    @property
    def only_triggers_reread(self) -> bool:
        return self.before == self.after

    @property
    def may_recur_in_stage(self) -> bool:
        return self.only_triggers_reread or isinstance(self.after, Deferred)

    @property
    def exists_before(self) -> bool:
        return self.before is not None

    @property
    def exists_after(self) -> bool:
        return self.after is not None

    @property
    def final_state_known_when(self) -> str:
        return self.after.known_after if isinstance(self.after, Deferred | SigningKey) else ""

    @property
    def log_details(self) -> tuple[str, ...]:
        folders = (f"created for it: {', '.join(self.folders)}",) if self.folders else ()
        return f"before {_describe_state(self.before)}", f"after  {_describe_state(self.after)}", *folders

    @property
    def action(self) -> Action:
        if self.before == self.after:
            return "reload"
        return "create" if self.before is None else "delete" if self.after is None else "edit"

    @property
    def participle(self) -> str:
        if self.is_generated:
            return "to be written again"
        if self.before == self.after:
            return "left as it is"
        return "created" if self.before is None else "removed" if self.after is None else "changed"

    @property
    def states(self) -> tuple[str, str]:
        before, after = (f"sha256:{digest(file_state.content)}" if isinstance(file_state, FileState) else ""
                         for file_state in (self.before, self.after))  # fmt: skip
        return before, after

    @property
    def contents(self) -> tuple[bytes, ...]:
        return tuple(state.content for state in (self.before, self.after) if isinstance(state, FileState))

    def with_contents(self, load: Callable[[str], bytes | None]) -> FileChange | None:
        """Return it with the bytes in place of the digests in its states; None if ``load`` lacks one of them."""
        contents = {name: content for name in self.contents if (content := load(name.decode())) is not None}
        if not contents.keys() >= {*self.contents}:
            return None
        before, after = self.before, self.after
        if isinstance(after, FileState):
            after = replace(after, content=contents[after.content])
        return replace(self, before=before and replace(before, content=contents[before.content]), after=after)

    @property
    def record(self) -> dict[str, object]:
        before, after = (one.record if isinstance(one, FileState) else None for one in (self.before, self.after))
        return {"before": before, "after": after, "folders": list(self.folders)}

    def inverse(self) -> FileChange | None:
        if isinstance(self.after, Deferred | SigningKey):
            return None
        return replace(self, before=self.after, after=self.before)

    def undo_rank(self, stage: str, step: str, *, is_redo: bool) -> int:
        if step in FILE_STEP_IDS:
            return 3 if is_redo else 4
        if step == SET_ASIDE_STEP_ID:
            return 1  # before another change of packages, which may put another one there
        return (
            {"sources": 0, RUNTIME_CONFIG_STAGE: 5}.get(stage, 1)
            if is_redo
            else 1
            if stage == RUNTIME_CONFIG_STAGE
            else 4
        )

    def removes_what_packages_need(self, stage: str, step: str) -> bool:
        return self.after is None and stage != RUNTIME_CONFIG_STAGE and step not in {*FILE_STEP_IDS, SET_ASIDE_STEP_ID}

    def restrict_writes_to_root(self) -> FileChange:
        return replace(self, after=restrict_writes_to_root(self.after)) if isinstance(self.after, FileState) else self

    def diff(self) -> Iterator[str]:
        """Yield the change as a unified diff, line by line without line ends; a single line if it is not text."""
        after = self.after
        if isinstance(after, Deferred | SigningKey):
            yield f"--- {self.path if self.before else '/dev/null'}"
            yield f"+++ {self.path}"
            yield f"+ ({after.what}; known after {after.known_after})"
            return
        if self.before is not None and after is not None and self.before.content == after.content:
            if modes := tuple(_diff_ownership(self.before, after)):
                yield from (f"--- {self.path}", f"+++ {self.path}", *modes)
            return
        old, new = _lines_if_text(self.before), _lines_if_text(after)
        if old is None or new is None:
            did = "is removed" if after is None else "is created" if self.before is None else "differs"
            yield f"binary file {self.path} {did}"
            yield from _diff_ownership(self.before, after)
            return
        marked = difflib.unified_diff(
            old, new, self.path if self.before else "/dev/null", self.path if after else "/dev/null", lineterm=""
        )
        yield from (part for line in marked for part in line.split("\n"))
        yield from _diff_ownership(self.before, after)


def _describe_state(state: FileState | UnknownContent | None) -> str:
    """Return a state for the log; its content is a digest."""
    if isinstance(state, FileState):
        return f"sha256 {state.content.decode()} {state}"
    return state.what if state else "nothing"


def _lines_if_text(state: FileState | None) -> list[str] | None:
    """Return the file's lines, including carriage returns; None if it is not text."""
    if state is None:
        return []
    try:
        text = state.content.decode()
    except UnicodeDecodeError:
        return None
    *lines, rest = text.split("\n")
    return None if "\0" in text else [*lines, *([f"{rest}\n\\ No newline at end of file"] if rest else [])]


def _diff_ownership(before: FileState | None, after: FileState | None) -> Iterator[str]:
    if before is not None and after is not None and str(before) != str(after):
        yield f"-{before}"
        yield f"+{after}"
