"""The journal of a run while it is written."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from gpunode.change import Change, Trigger
from gpunode.host import rooted_paths
from gpunode.host.files import write_all
from gpunode.journal import record
from gpunode.journal.objects import (
    BackupStore,
    RecordFolder,
    raise_as_change_failed,
    remove_file,
    replace_private_file,
)
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent, Result, TriggerCompleted

# The file beside a run's journal with the request.
REQUEST_FILE = "request.json"
RUNS_FOLDER = "runs"
JOURNAL_FILE = "journal.jsonl"
# A run's folder until its first entry is on the disk; readers ignore it, and the next run removes what was left.
_DRAFT_FOLDER = ".draft"
Announce: TypeAlias = Callable[[Sequence[Entry], Entry], None]


class Run:
    """The journal of one run, open for writing."""

    def __init__(self, begin: Begin, record_folder: RecordFolder, announce: Announce) -> None:
        self.id = begin.run
        self.path = record_folder.path(RUNS_FOLDER, self.id, JOURNAL_FILE)
        self._record_folder = record_folder
        self._objects = BackupStore(record_folder)
        self._announce = announce
        self._entries: list[Entry] = []
        self._last = b""
        self._broken = ""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        _remove_draft(record_folder)
        with record_folder.open(RUNS_FOLDER, _DRAFT_FOLDER, make=True) as folder:
            self._descriptor = os.open(JOURNAL_FILE, flags, 0o600, dir_fd=folder)
            self._write(begin)
            rooted_paths.sync_folder(folder)
        with record_folder.open(RUNS_FOLDER) as runs:
            os.rename(_DRAFT_FOLDER, self.id, src_dir_fd=runs, dst_dir_fd=runs)
            rooted_paths.sync_folder(runs)
        self._announce(self._entries, begin)

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries written so far."""
        return tuple(self._entries)

    def record_intent(self, stage: str, step: str, change: Change, reason: str = "") -> int:
        """Write the backups and the intent of ``change`` durably, and return its number; the change may then be made.

        Raises:
            ChangeFailed: they could not be written; the change must not be made.
        """
        return self.record_intents(stage, step, (change,), reason)[0]

    def record_intents(self, stage: str, step: str, changes: Iterable[Change], reason: str = "") -> tuple[int, ...]:
        """Write the intents of ``changes`` together, such as those of a package transaction; return their numbers.

        Raises:
            ChangeFailed: they could not be written; none of the changes must be made.
        """
        changes, now = tuple(changes), time.time()
        first = 1 + sum(isinstance(entry, Intent) for entry in self._entries)
        with raise_as_change_failed("the journal cannot be written, so this change was not made", self.path):
            for content in (content for change in changes for content in change.contents):
                self._objects.save(content)
            intents = [Intent(first + n, stage, step, change, reason, now) for n, change in enumerate(changes)]
            self._append(*intents)
        return tuple(intent.seq for intent in intents)

    def record_done(self, *seqs: int) -> None:
        """Record that the changes were made. Raises ChangeFailed if it cannot."""
        ends = (Done(seq, time.time()) for seq in seqs)
        self._record_entries("the change was made but could not be recorded; its backup is on the disk", *ends)

    def record_failed(self, seq: int, error: str) -> None:
        """Record that the change failed. Raises ChangeFailed if it cannot."""
        self._record_entries("the journal could not record that a change failed", Failed(seq, error, time.time()))

    def record_trigger(self, trigger: Trigger, note: str = "") -> None:
        """Record that ``trigger`` is settled, whichever run required it. Raises ChangeFailed if it cannot."""
        self._record_entries(
            f"{trigger} is done, but that could not be recorded", TriggerCompleted(trigger, note, time.time())
        )

    def save_rejected_file(self, path: str, content: bytes) -> str:
        """Save ``content``, which a daemon rejected as its ``path``, beside the journal; return its path.

        Raises:
            ChangeFailed: it could not be written.
        """
        name = f"rejected-{path.strip('/').replace('/', '-')}"
        return self._save_file(name, content, f"the rejected {path} could not be kept")

    def save_request(self, request: bytes) -> None:
        """Save the request of this run, which ``Store.read_request`` returns to continue after a reboot.

        Raises:
            ChangeFailed: it could not be written.
        """
        self._save_file(REQUEST_FILE, request, "could not save the recipe for after the reboot")

    def _save_file(self, name: str, content: bytes, unsaved: str) -> str:
        """Write a file beside the journal and return its path; the error says ``unsaved`` if that fails."""
        path = self.path.with_name(name)
        with raise_as_change_failed(unsaved, path), self._record_folder.open(RUNS_FOLDER, self.id) as folder:
            replace_private_file(name, folder, content)
            rooted_paths.sync_folder(folder)
        return str(path)

    def commit(self, result: Result, reason: str = "") -> None:
        """Record the end of the run and close the journal. Raises ChangeFailed if it cannot."""
        self._record_entries("the journal could not record the end of this run", Commit(result, reason, time.time()))
        self.close()

    def close(self) -> None:
        """Close the file; a run that was not committed before counts as interrupted."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _record_entries(self, unrecorded: str, *entries: Entry) -> None:
        """Write ``entries``; the error says ``unrecorded`` if that fails."""
        with raise_as_change_failed(unrecorded, self.path):
            self._append(*entries)

    def _append(self, *entries: Entry) -> None:
        """Write ``entries`` as ``_write`` does, and announce them."""
        if not entries:
            return
        self._write(*entries)
        for entry in entries:
            self._announce(self._entries, entry)

    def _write(self, *entries: Entry) -> None:
        """Write ``entries`` durably: all of them or, if the disk allows, none."""
        if self._broken:
            raise OSError(f"an earlier write to it failed: {self._broken}")
        before = os.fstat(self._descriptor).st_size
        try:
            line = record.encode(*entries, previous_line=self._last)
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            self._remove_torn_line(before, error)
            raise
        self._last = line
        self._entries.extend(entries)

    def _remove_torn_line(self, size: int, error: OSError) -> None:
        """Remove a torn line; if that fails, nothing may be appended, since the line would be in the middle."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError:
            self._broken = str(error)


def _remove_draft(record_folder: RecordFolder) -> None:
    """Remove the folder of a run that was stopped before its first entry was on the disk, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        with record_folder.open(RUNS_FOLDER, _DRAFT_FOLDER) as draft:
            for name in rooted_paths.list_names(draft):
                remove_file(name, draft)
        with record_folder.open(RUNS_FOLDER) as runs:
            os.rmdir(_DRAFT_FOLDER, dir_fd=runs)
