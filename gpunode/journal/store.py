"""The journal on disk: every record is there before the change that it announces is made.

Layout below ``<root>/var/lib/gpunode``: ``runs/<number>-<time>/journal.jsonl`` and ``objects/<2 digits>/<sha256>``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode import __version__
from gpunode.change import FileChange, Trigger
from gpunode.command import Command, command, gpunode_command, sudo_gpunode
from gpunode.errors import Refused, UsageError
from gpunode.host import rooted_paths
from gpunode.host.files import write_all
from gpunode.host.locks import LockHolder
from gpunode.host.ownership import read_regular_file, refuse_untrusted_folder
from gpunode.host.port import OnProgress, ignore_progress
from gpunode.journal import history, record
from gpunode.journal.history import RunRecord
from gpunode.journal.lock import hold_lock, read_holder
from gpunode.journal.objects import (
    MAX_BACKUP_BYTES,
    OBJECTS_FOLDER,
    BackupStore,
    RecordFolder,
    damaged_backup_error,
    raise_as_change_failed,
)
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent, Verb
from gpunode.journal.run import JOURNAL_FILE, REQUEST_FILE, RUNS_FOLDER, Announce, Run

if TYPE_CHECKING:
    from gpunode.journal.additions import RecordedAdditions
    from gpunode.journal.footprint import Footprint


_STANDALONE_VERBS: frozenset[Verb] = frozenset({"repair", "configure", "unconfigure"})
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_VALID_RUN_ID = re.compile(r"([0-9]{6,12})-[0-9]{8}T[0-9]{6}Z")
# A journal of a thousand packages takes half a megabyte.
_MAX_JOURNAL_BYTES = 16 << 20
_RECORD_SUBFOLDERS: tuple[tuple[str, ...], ...] = ((), (RUNS_FOLDER,), (OBJECTS_FOLDER,))
_CHANGE_NOT_MADE_REASON = "its run was cut short before it"
_NO_ENTRY_REASON = (
    "its first entry is missing: the file was damaged, or a gpunode from before the release 0.1.0 was killed as it "
    "began this run, before it changed anything"
)
_NOTHING_LEFT_REASON = "cut short; a later run found nothing left to do"


class Store:
    """The journals and backups of one node.

    Args:
        root: the root of the node's file system; ``/`` unless an image is built.
        announce: called with each entry once it is on disk, after all of its run so far.
        folder: the folder of journals that are not a node's, such as those of a user's clusters.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        *,
        announce: Announce = lambda _entries, _entry: None,
        folder: Path | None = None,
    ) -> None:
        self.root = Path(root)
        self.folder = folder or self.root / "var/lib/gpunode"
        self._record_folder = RecordFolder(str(root), str(folder.absolute()) if folder else "/var/lib/gpunode")
        self.objects = BackupStore(self._record_folder)
        self._lock_folder = self._record_folder if folder else RecordFolder(str(root), "/run/gpunode")
        self._announce = announce

    def command(self, *words: str) -> Command:
        """Return the gpunode command with ``words`` for this journal; a node's needs root and the same root folder."""
        if self._lock_folder is self._record_folder:
            return gpunode_command(*words)
        return sudo_gpunode(*words, *(() if str(self.root) == "/" else ("--root", str(self.root))))

    def begin(
        self,
        verb: Verb,
        *,
        recipe: str = "",
        recipe_sha256: str = "",
        argv: Sequence[str] | None = None,
        undoes: str = "",
        with_packages: bool = False,
    ) -> Run:
        """Begin a new run on disk. Call it under ``lock``.

        ``argv`` are the words after the program's name; None means those of this process.

        Raises:
            ChangeFailed: it could not be written.
        """
        now = time.time()
        with raise_as_change_failed(f"{self.folder} cannot be written, so nothing was changed", self.folder):
            self._make_folders()
            number = max(map(_run_number, self.ids()), default=0) + 1
            run = f"{number:06d}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
            words = tuple(sys.argv[1:] if argv is None else argv)
            who = (invoking_user(), words, undoes, with_packages, os.getuid(), loginuid())
            begin = Begin(run, now, verb, __version__, recipe, recipe_sha256, self._boot_id(), *who)
            with _convert_folder_errors():
                return Run(begin, self._record_folder, self._announce)

    def _boot_id(self) -> str:
        """Return the boot id of the running kernel; empty for an image, and if it cannot be read."""
        if self.root != Path("/"):
            return ""
        with contextlib.suppress(OSError):
            return _BOOT_ID_FILE.read_text("ascii").strip()
        return ""

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all runs, oldest first; sorted by number, since clocks may jump.

        Raises:
            UsageError: only root may read them.
            Refused: another user may have put them there.
        """
        try:
            for name in _RECORD_SUBFOLDERS:
                refuse_untrusted_folder(self._record_folder.path(*name), self.root)
            with _convert_folder_errors(), self._record_folder.open(RUNS_FOLDER) as folder:
                names = filter(_VALID_RUN_ID.fullmatch, rooted_paths.list_names(folder))
        except FileNotFoundError:
            return ()
        except PermissionError as error:
            raise _needs_root_error(error) from error
        return tuple(sorted(names, key=_run_number))

    def read_runs(self) -> tuple[RunRecord, ...]:
        """Return all runs, newest last.

        Reads no backups and takes no lock.

        Raises:
            JournalDamaged: a journal is damaged.
        """
        return history.mark_undone_runs([RunRecord(self._read_entries(run)) for run in self.ids()])

    def find_runs(self, run: str = "") -> tuple[RunRecord, ...]:
        """Return ``read_runs``, or the run with that id or label; the newest one knows whether it is running.

        Raises:
            UsageError: there is no such run.
            JournalDamaged: a journal is damaged.
        """
        runs = self.read_runs()
        if runs and runs[-1].commit is None and self.lock_holder():
            runs = (*runs[:-1], replace(runs[-1], is_running=True))
        matching_runs = tuple(one for one in runs if not run or run in {one.id, one.label})
        if run and not matching_runs:
            known = ", ".join(one.label for one in runs)
            raise UsageError(
                f"there is no run {run}", why=f"recorded: {known or 'none'}", hint=str(self.command("log"))
            )
        return matching_runs

    def read_with_contents(self, run: str) -> tuple[Entry, ...]:
        """Return the entries of a run with the bytes of its files.

        Raises:
            UsageError: there is no such run.
            JournalDamaged: the journal or one of its backups is damaged.
        """
        return record.decode(
            self._read_known_journal(run), lambda name: self._load_backup(name, run), file=str(self._path(run))
        )

    def entries(self, run: str) -> tuple[Entry, ...]:
        """Return the entries of a run as recorded; each ``content`` is the name of its backup object.

        Raises:
            UsageError: there is no such run.
            JournalDamaged: the journal is damaged.
        """
        self._read_known_journal(run)
        return self._read_entries(run)

    def read_request(self, run: str) -> bytes:
        """Return the request of ``run`` that ``Run.save_request`` saved.

        Raises:
            UsageError: there is no such run, it saved nothing, or others could have read or changed the request.
        """
        self._read_known_journal(run)
        try:
            with self._record_folder.open(RUNS_FOLDER, run) as folder:
                return read_regular_file(REQUEST_FILE, folder, MAX_BACKUP_BYTES, private=True)
        except OSError as error:
            raise UsageError(
                f"run {run} cannot be continued",
                why=f"{self._path(run).with_name(REQUEST_FILE)}: {error.strerror}",
                hint="run `gpunode setup` with the recipe and the options that you want",
            ) from error

    def footprint(self) -> Footprint:
        """Return the footprint of all runs on this node, with the bytes of files.

        Raises:
            JournalDamaged: a journal or a needed backup object is damaged.
        """
        from gpunode.journal.footprint import footprint_of_node  # loaded on use: only an undo needs it

        return footprint_of_node(self.read_runs()).with_contents(self.objects.find)

    def read_run_footprint(self, run: str) -> Footprint:
        """Return the footprint of one run on this node, with the bytes of files.

        Raises:
            UsageError, JournalDamaged: as ``read_with_contents``.
        """
        from gpunode.journal.footprint import footprint_of_run

        self.read_with_contents(run)
        return footprint_of_run(RunRecord(self._read_entries(run))).with_contents(self.objects.find)

    def read_additions(self) -> RecordedAdditions:
        """Return everything that any run ever added to this node, even if it was removed since; reads no backups.

        Raises:
            JournalDamaged: a journal is damaged.
        """
        from gpunode.journal.additions import collect_additions  # loaded on use: a plan of a bare node needs none

        return collect_additions(self.read_runs())

    def find_pending_triggers(self) -> dict[Trigger, float]:
        """Return the pending triggers of all runs, each with the time when it last became pending.

        Raises:
            JournalDamaged: a journal is damaged.
        """
        return history.pending_trigger_times(entry for run in self.ids() for entry in self._read_entries(run))

    def find_interrupted_run(self) -> RunRecord | None:
        """Return the newest run if it was interrupted, else None. Call it under ``lock``.

        Raises:
            JournalDamaged: its journal is damaged.
        """
        # Look behind a package repair, which is the first step of the next command, whose user may have declined the
        # rest; and behind an edit of a runtime's files, which continues nothing.
        runs = (RunRecord(self._read_entries(run)) for run in reversed(self.ids()))
        newest = next((run for run in runs if run.commit is None or run.verb not in _STANDALONE_VERBS), None)
        return newest if newest and newest.commit is None else None

    def list_runs_since_completed(self) -> frozenset[str]:
        """Return the runs after the newest completed run, which also finished what earlier runs had left.

        Raises:
            JournalDamaged: a journal is damaged.
        """
        since: set[str] = set()
        for run in reversed(self.ids()):
            each = RunRecord(self._read_entries(run))
            if each.verb not in _STANDALONE_VERBS and each.ending in history.COMPLETED_RESULTS:
                break
            since.add(run)
        return frozenset(since)

    def close_interrupted_run(self, run: str) -> None:
        """Record that the interrupted run is over, since a later one found nothing to do. Call it under ``lock``.

        Raises:
            ChangeFailed: that could not be written.
        """
        with raise_as_change_failed(f"the end of run {run} could not be recorded", self._path(run)):
            self._append_entries(run, Commit("interrupted", _NOTHING_LEFT_REASON, time.time()))

    def find_open_intents(self) -> dict[str, tuple[Intent, ...]]:
        """Return by run, newest first, the intents without a recorded end whose subject no later run changed.

        Raises:
            JournalDamaged: a journal is damaged.
        """
        found: dict[str, tuple[Intent, ...]] = {}
        changed_since: set[str] = set()
        for run in reversed(self.read_runs()):
            intents = (record.intent for record in run.change_records if record.outcome == "unknown")
            found[run.id] = tuple(intent for intent in intents if intent.change.subject not in changed_since)
            changed_since.update(run.subjects)
        return {run: intents for run, intents in found.items() if intents}

    def record_change_outcomes(self, run: str, made: Sequence[Intent], not_made: Sequence[Intent]) -> None:
        """Record which changes of an ended run were made, according to the node. Call it under ``lock``.

        They are dated by their intents, since their triggers may have been settled in the meantime.

        Raises:
            ChangeFailed: that could not be written.
        """
        outcomes: list[Entry] = [Done(intent.seq, intent.at) for intent in made]
        outcomes += (Failed(intent.seq, _CHANGE_NOT_MADE_REASON, intent.at) for intent in not_made)
        with raise_as_change_failed(f"what run {run} changed could not be recorded", self._path(run)):
            self._append_entries(run, *outcomes)

    def _append_entries(self, run: str, *entries: Entry) -> None:
        """Append ``entries`` to an ended run. Raises OSError."""
        written = record.without_torn_line(self._read_known_journal(run))
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._record_folder.open(RUNS_FOLDER, run) as folder:
            descriptor = os.open(JOURNAL_FILE, flags, dir_fd=folder)
        try:
            # Remove a torn last line: followed by another, it would count as damage.
            os.ftruncate(descriptor, len(written))
            # A complete line that a killed run may not have synced must be on disk before another follows it.
            os.fsync(descriptor)
            write_all(descriptor, record.encode(*entries, previous_line=written.splitlines(keepends=True)[-1]))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_temporary_files(self) -> None:
        """Delete the partial backups of a killed run, which are not needed. Call it under ``lock``."""
        with contextlib.suppress(OSError):
            self.objects.remove_files(lambda name: name.startswith("."))

    def find_untriggered_changes(self, triggers: Collection[Trigger]) -> tuple[FileChange, ...]:
        """Return the file changes of all runs, newest first, with one of ``triggers`` that none of them has settled.

        Raises:
            JournalDamaged: a journal is damaged, or a backup object of a run with pending triggers.
        """
        if not self.find_pending_triggers():
            return ()
        runs = self.ids()
        indebted = next(index for index, run in enumerate(runs) if history.pending_triggers(self._read_entries(run)))
        waiting = history.untriggered_changes(entry for run in runs[indebted:] for entry in self._read_entries(run))
        loaded = (
            change.with_contents(self.objects.find) for change in waiting if not change.triggers.isdisjoint(triggers)
        )
        return tuple(change for change in loaded if change is not None)

    def lock(
        self, timeout_s: float = 0.0, on_progress: OnProgress = ignore_progress
    ) -> contextlib.AbstractContextManager[None]:
        """Prevent others from changing this node for the duration; see ``lock.hold_lock``.

        Raises:
            Refused: its folder belongs to somebody else, or is a link out of an image.
        """
        refuse_untrusted_folder(self._lock_folder.path(), self.root)
        return hold_lock(self._lock_folder, timeout_s, on_progress)

    def lock_holder(self) -> LockHolder | None:
        """Return the gpunode that is changing this node, if the lock names it; takes no lock."""
        return read_holder(self._lock_folder)

    def _path(self, run: str) -> Path:
        return self._record_folder.path(RUNS_FOLDER, run, JOURNAL_FILE)

    def _read_known_journal(self, run: str) -> bytes:
        """Return the journal of ``run``. Raises UsageError if there is none."""
        if run not in self.ids():
            raise UsageError(
                f"there is no run {run!r}", hint=f"list the recorded runs: {self.command('rollback', '--list')}"
            )
        return self._read_journal(run)

    def _read_journal(self, run: str) -> bytes:
        try:
            with self._record_folder.open(RUNS_FOLDER, run) as folder:
                journal = read_regular_file(JOURNAL_FILE, folder, _MAX_JOURNAL_BYTES)
        except FileNotFoundError:
            journal = b""
        except PermissionError as error:
            raise _needs_root_error(error) from error
        except OSError as error:
            raise record.damaged_line_error(str(self._path(run)), 1, f"it cannot be read: {error.strerror}") from error
        if not record.without_torn_line(journal):  # a run's folder gets its name after its first entry
            raise record.damaged_line_error(str(self._path(run)), 1, _NO_ENTRY_REASON)
        return journal

    def _read_entries(self, run: str) -> tuple[Entry, ...]:
        return record.decode_without_contents(self._read_journal(run), file=str(self._path(run)), run=run)

    def _load_backup(self, name: str, run: str) -> bytes:
        if (content := self.objects.find(name, run)) is None:
            raise damaged_backup_error(self.objects.path(name), run, "is missing")
        return content

    def _make_folders(self) -> None:
        with _convert_folder_errors():
            for name in _RECORD_SUBFOLDERS:
                refuse_untrusted_folder(self._record_folder.path(*name), self.root)
                with self._record_folder.open(*name, make=True) as folder:
                    if stat.S_IMODE(os.fstat(folder).st_mode) != 0o700:
                        os.chmod(".", 0o700, dir_fd=folder)
            self.objects.folder_names()


@contextlib.contextmanager
def _convert_folder_errors() -> Iterator[None]:
    """Turn the error for something else in place of a folder into a refusal."""
    try:
        yield
    except NotADirectoryError as error:
        wrong = str(error.filename)
        raise Refused(
            str(error.strerror),
            why="gpunode keeps its journals there, and follows no link: it could lead anywhere",
            hint=f"look at it with `{command('ls', '-ld', wrong)}`, move it away, then run the command again",
        ) from error


def _run_number(run: str) -> int:
    return int(run.partition("-")[0])


def _needs_root_error(error: PermissionError) -> UsageError:
    why = f"{error.filename}: {error.strerror}"
    return UsageError("the journal is readable by root only", why=why, hint="run it with sudo")


_NO_LOGIN_UID = 0xFFFFFFFF


def invoking_user() -> str:
    """Return the user who started gpunode; with sudo, the user who called it."""
    if sudo := os.environ.get("SUDO_USER"):
        return sudo
    import getpass  # loaded on use: only a run that begins needs it

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def loginuid() -> int | None:
    """Return the login uid, which su and sudo keep; None if nobody logged in. Source: proc(5), /proc/pid/loginuid."""
    try:
        number = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        return None
    return None if number == _NO_LOGIN_UID else number
