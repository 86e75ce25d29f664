"""Adapter for apt: simulate a transaction, execute exactly that one, and explain failures.

It never weakens the host's package checks: no unauthenticated install, no autoremove, no removal of essentials.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Literal
from urllib.parse import urlsplit

from gpunode.change import PackageChange, PackageState
from gpunode.command import command
from gpunode.errors import ChangeFailed, GpunodeError
from gpunode.fast_dataclass import dataclass
from gpunode.host import files, rooted_paths
from gpunode.host.apt_failures import (
    FAILURE_TEXTS,
    AptFailureKind,
    classify_failure,
    explain_failure,
    find_build_log,
    find_failed_packages,
)
from gpunode.host.locks import (
    STARTED_BY_GPUNODE_VARIABLE,
    busy_error,
    find_first_holder,
    wait_until_free,
    wait_until_reason_is_gone,
)
from gpunode.host.port import OnProgress, Progress
from gpunode.host.process import SIGNAL_EXIT_STATUS_BASE, FinishedCommand, Runner
from gpunode.package_id import PackageId
from gpunode.packages.deb import sources
from gpunode.packages.deb.apt_output import list_versions, parse_archives
from gpunode.packages.deb.status import DpkgEntry, find_unconfigured, native_architecture, package_id_of, parse_status
from gpunode.packages.deb.transactions import (
    arguments,
    failed_fetches,
    index_file_prefix,
    is_update_incomplete,
    parse_simulation,
    purged_by_dpkg,
)
from gpunode.packages.simulation import Simulation, differences_from_plan
from gpunode.redaction.secrets import redact_text as redact

_QUERY_TIMEOUT_S = 120.0
_REFRESH_TIMEOUT_S = 1800.0
# DKMS builds for every installed kernel, and disks may be slow; killing dpkg halfway is worse than waiting.
_TRANSACTION_TIMEOUT_S = 10800.0
_URL_TIMEOUT_S = 300.0
_MAX_OUTPUT_BYTES = 16 << 20
_MAX_MAKE_LOG_BYTES = 4 << 20
# Pauses between tries when a server or repository fails; apt itself has retried each file three times by then.
_RETRY_DELAYS_S = (2.0, 8.0, 20.0)
_TRANSIENT_FAILURE_KINDS: frozenset[AptFailureKind] = frozenset({"network", "mid-sync"})

UNATTENDED_APT_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "APT_LISTBUGS_FRONTEND": "none",
    # needrestart would restart containerd under running containers; gpunode itself restarts what needs it.
    "NEEDRESTART_SUSPEND": "1",
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
    STARTED_BY_GPUNODE_VARIABLE[0]: STARTED_BY_GPUNODE_VARIABLE[1],
}
"""The environment in which apt, dpkg and their hooks ask no questions and restart no services."""


def _apt_options(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("-o", setting))


# Set explicitly even where they are apt's defaults: the host's configuration may override those.
_SIGNED_ARCHIVES_OPTIONS = _apt_options(
    "Acquire::AllowInsecureRepositories=false",
    "Acquire::AllowWeakRepositories=false",
    "Acquire::AllowDowngradeToInsecureRepositories=false",
)
_INSTALL_OPTIONS = (
    "-q",
    "-y",
    "--no-install-recommends",
    *_SIGNED_ARCHIVES_OPTIONS,
    *_apt_options(
        "APT::Get::AutomaticRemove=false",
        "APT::Get::AllowUnauthenticated=false",
        "APT::Get::allow-remove-essential=false",
        "APT::Get::allow-change-held-packages=false",
        "APT::Get::allow-downgrades=false",
        "APT::Get::Force-Yes=false",
        "APT::Install-Suggests=false",
        # Show-Versions mixes versions into the lists of names, which then cannot be parsed.
        "APT::Get::Show-Versions=false",
        "APT::Get::Upgrade=true",
        "APT::Get::Remove=true",
        # Each of these would make apt silently run a different transaction, or none.
        *(f"APT::Get::{name}=false" for name in ("Only-Upgrade", "Purge", "ReInstall", "Mark-Auto", "Trivial-Only")),
        *(f"APT::Get::{name}=false" for name in ("Download-Only", "Print-URIs")),
    ),
)
SIMULATE_COMMAND = ("apt-get", "--simulate", *_apt_options("Debug::NoLocking=1"), *_INSTALL_OPTIONS, "install")
"""The command that simulates a transaction for the packages appended to it; it changes and locks nothing."""
_FETCH_OPTIONS = _apt_options("Acquire::Retries=3", "APT::Status-Fd={status_fd}")
_TRANSACTION_OPTIONS = (
    *_FETCH_OPTIONS,
    *_apt_options("APT::Get::Simulate=false"),
    *_apt_options("Dpkg::Use-Pty=0", "Dpkg::Options::=--force-confdef", "Dpkg::Options::=--force-confold"),
    # dpkg uses the last of conflicting options, and those of apt's configuration files come first.
    *_apt_options("Dpkg::Options::=--refuse-bad-verify"),
)
_UPDATE_OPTIONS = ("-q", *_FETCH_OPTIONS, *_SIGNED_ARCHIVES_OPTIONS, *_apt_options("APT::Update::Error-Mode=any"))


def _verification_options(uris: Iterable[str]) -> tuple[str, ...]:
    """Return the options that make apt check dates and certificates of ``uris``, whatever the host has configured.

    An option for one host wins over the general one (methods/aptmethod.h, ``setPostfixForMethodNames``; apt 2.6.2).
    """
    hosts = {urlsplit(uri.rpartition("+")[2]).hostname or "" for uri in uris}
    scopes = ("", *(f"{host}::" for host in sorted(hosts) if host and ":" not in host))
    tls = [f"Acquire::https::{scope}{name}=true" for scope in scopes for name in ("Verify-Peer", "Verify-Host")]
    return _apt_options("Acquire::Check-Valid-Until=true", "Acquire::Check-Date=true", *tls)


_TEMPORARY_FOLDER_PREFIX = "gpunode-"
_TEMPORARY_FOLDER_NAME = re.compile(r"gpunode-[a-z0-9_]{8}")  # hexadecimal; earlier versions used tempfile's names
_APT_STATE_FOLDER = "/var/lib/apt"

_FailureHandler = Callable[[AptFailureKind, FinishedCommand], bool]


def _retry_nothing(_kind: AptFailureKind, _finished: FinishedCommand) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _AptPaths:
    """The folders of this apt, as paths in its root. Source: apt-config(8)."""

    lists: str
    package_cache: str
    dpkg_folder: str
    sandbox_user: str

    @property
    def list_locks(self) -> tuple[str, ...]:
        return (f"{self.lists}/lock",)

    @property
    def install_locks(self) -> tuple[str, ...]:
        return f"{self.dpkg_folder}/lock-frontend", f"{self.dpkg_folder}/lock", f"{self.package_cache}/lock"


class Apt:
    """The package manager of a Debian or Ubuntu system, this one or the one under the runner's root."""

    def __init__(self, runner: Runner, on_progress: OnProgress, lock_timeout_s: float) -> None:
        self._runner = runner
        self._root = runner.root
        self._on_progress = on_progress
        self._lock_timeout_s = lock_timeout_s

    def simulate(self, changes: Sequence[PackageChange]) -> Simulation | None:
        """Simulate one transaction of ``changes`` without any lock; return None without apt."""
        words = self._apt_arguments(changes)
        if not words:
            return Simulation(())
        finished = self._run((*SIMULATE_COMMAND, *words), _QUERY_TIMEOUT_S)
        if finished.is_program_missing:
            return None
        return parse_simulation(finished.text, finished.error, ok=finished.ok)

    def list_offered_versions(self, packages: Collection[PackageId]) -> Mapping[PackageId, frozenset[str]]:
        """Return the versions of each package in the index, without those that are only installed."""
        if not packages:
            return {}
        finished = self._run(("apt-cache", "madison", *map(str, packages)), _QUERY_TIMEOUT_S)
        return list_versions(parse_archives(finished.text))

    def transact(self, changes: Sequence[PackageChange]) -> None:
        """Apply ``changes`` in one transaction, and mark packages as their states say.

        Raises:
            ChangeFailed: if it failed, or a refreshed index makes apt deviate from the plan.
            Busy: if another program held a lock past the timeout.
        """
        words, purged = self._apt_arguments(changes), purged_by_dpkg(changes)
        before = self._read_dpkg_status() if purged else ()
        if words:
            self._install(changes, words)
        self._run_dpkg("purge", purged, before)
        self._mark_packages(changes)

    def download(self, changes: Sequence[PackageChange]) -> None:
        """Download what ``transact`` would install into apt's cache; change nothing else.

        Raises:
            ChangeFailed: if it failed; Busy: if another program held a lock past the timeout.
        """
        if words := self._apt_arguments(changes):
            argv = ("apt-get", *_INSTALL_OPTIONS, *_FETCH_OPTIONS, "--download-only", "install", *words)
            self._retry_transient(
                "download the packages",
                lambda: self._run(argv, _TRANSACTION_TIMEOUT_S, status=True),
                self._paths.install_locks,
                _retry_nothing,
            )

    def refresh(self, lists: Sequence[str]) -> None:
        """Update the package index of the sources in the files ``lists``, or of all if empty.

        A list file that no longer exists has no index to refresh.

        Raises:
            ChangeFailed: if an index could not be fetched; the previous ones stay.
            Busy: if another program held the lock past the timeout.
        """
        present = [path for path in lists if files.read_file(path, root=self._root).outcome != "absent"]
        if lists and not present:
            return
        # For other archives, such as a frozen mirror without a valid date, the host's configuration decides.
        checked = _verification_options(self._archive_uris(present)) if present else ()
        with (
            self._restrict_to_lists(present) as selection,
            _quarantine_lists(self._paths.lists, self._root) as set_aside,
        ):
            # Set once a try has failed mid-sync: a proxy cache may lag behind the repository.
            uncached: list[str] = []

            def cure(kind: AptFailureKind, finished: FinishedCommand) -> bool:
                if kind == "mid-sync":
                    uncached[:] = _apt_options("Acquire::http::No-Cache=true")
                    for uri in failed_fetches(_join_output(finished)):
                        set_aside(index_file_prefix(uri))
                return False

            def attempt() -> FinishedCommand:
                argv = ("apt-get", *_UPDATE_OPTIONS, *checked, *selection, *uncached, "update")
                finished = self._run(argv, _REFRESH_TIMEOUT_S, status=True)
                # An update that skipped an index has failed, even if apt reports success.
                is_incomplete = finished.ok and is_update_incomplete(_join_output(finished))
                return replace(finished, exit_status=100) if is_incomplete else finished

            self._retry_transient("refresh the package index", attempt, self._paths.list_locks, cure)

    def fetch(self, url: str, limit_bytes: int) -> bytes:
        """Fetch ``url`` with apt's downloader: its proxy, its CA, its credentials.

        Raises:
            ChangeFailed: if it could not be fetched, or is larger than ``limit_bytes``.
        """
        with _make_temporary_folder(self._paths.lists, self._root) as folder:
            self._give_to_sandbox(folder)
            target = f"{folder.path}/fetched"
            # For file: URLs apt-helper would leave a symlink, which resolves differently from outside its root.
            source = f"copy:{url.removeprefix('file:')}" if url.startswith("file:") else url
            # apt's downloader has no size limit, so the kernel enforces one.
            options = (*_FETCH_OPTIONS, *_verification_options((url,)))
            limited = ("prlimit", f"--fsize={limit_bytes}", "/usr/lib/apt/apt-helper")
            argv = (*limited, *options, "download-file", source, target)

            def too_large(_kind: AptFailureKind, finished: FinishedCommand) -> bool:
                # SIGXFSZ kills apt's method unless it is ignored, as it is in gpunode's Python; then the write fails.
                if re.search(r"File too large|received signal 25\b", _join_output(finished)):
                    raise _too_large_error(url, limit_bytes)
                with suppress(FileNotFoundError):
                    os.unlink("fetched", dir_fd=folder.folder)
                return False

            self._retry_transient(f"fetch {url}", lambda: self._run(argv, _URL_TIMEOUT_S, status=True), (), too_large)
            fetched = files.read_file(target, limit_bytes, root=self._root)
        if len(fetched.data) >= limit_bytes and fetched.outcome == "failed":
            raise _too_large_error(url, limit_bytes)
        if fetched.outcome != "ok":
            raise ChangeFailed(
                f"could not fetch {redact(url)}: apt's downloader left nothing to read",
                why=f"{target}: {fetched.error}",
                hint="see gpunode's log for what it said, then run the same command again",
            )
        return fetched.data

    # -- a transaction ------------------------------------------------------------------------------------------

    def _apt_arguments(self, changes: Sequence[PackageChange]) -> tuple[str, ...]:
        leaving = [change.id for change in changes if not change.exists_after]
        return arguments(changes, self._find_in_dpkg_database(leaving))

    def _find_in_dpkg_database(self, packages: Collection[PackageId]) -> frozenset[PackageId]:
        """Return the packages that dpkg knows, as an interrupted run may have removed some; all if the query fails."""
        if not packages:
            return frozenset()
        fields = "${Package} ${binary:Package} ${db:Status-Status}\n"
        found = self._run(("dpkg-query", "--show", f"--showformat={fields}", *map(str, packages)), _QUERY_TIMEOUT_S)
        if found.exit_status not in (0, 1):  # 1 if one of them is not found
            return frozenset(packages)
        rows = [line.split() for line in found.text.splitlines()]
        known = [row for row in rows if len(row) == 3 and row[2] != "not-installed"]
        return frozenset(PackageId.of(name) for row in known for name in row[:2])

    def _install(self, changes: Sequence[PackageChange], words: tuple[str, ...]) -> None:
        refreshed = was_killed = False
        failed: tuple[str, ...] = ()
        is_removal = all(change.is_mark or not change.exists_after for change in changes)
        before = self._read_dpkg_status() if is_removal else ()

        def cure(kind: AptFailureKind, finished: FinishedCommand) -> bool:
            nonlocal refreshed, was_killed, failed
            was_killed = finished.timed_out or finished.exit_status > SIGNAL_EXIT_STATUS_BASE
            failed = find_failed_packages(_join_output(finished))
            if refreshed or kind not in ("stale-index", "mid-sync"):
                return False
            refreshed = True
            self.refresh(())
            self._require_planned_transaction(changes)
            return True

        timeout = f"DPkg::Lock::Timeout={int(self._lock_timeout_s)}"
        argv = ("apt-get", *_INSTALL_OPTIONS, *_TRANSACTION_OPTIONS, *_apt_options(timeout), "install", *words)
        try:
            self._retry_transient(
                "change the packages", lambda: self._run_transaction(argv), self._paths.install_locks, cure
            )
        except GpunodeError:
            if was_killed:
                self._wait_for_dpkg()
            # apt drops a package's hold once dpkg has unpacked it, even if the transaction fails later. When told to
            # remove an automatic package, it drops that mark even if dpkg never removes it. A killed apt has not yet
            # marked its new dependencies as automatic.
            try:
                if was_killed or not _were_unconfigured(failed, before, changes):
                    raise
                self._remove_with_dpkg(changes, before)
            except GpunodeError:
                self._restore_marks(changes)
                raise

    def _remove_with_dpkg(self, changes: Sequence[PackageChange], before: Sequence[DpkgEntry]) -> None:
        """Remove what apt left: it also configures all unconfigured packages, and stops if one of them fails."""
        self._run_dpkg("remove", [change.id for change in changes if not change.exists_after], before)
        self._run_dpkg("purge", [change.id for change in changes if change.after is None], before)

    def _run_dpkg(self, verb: str, packages: Sequence[PackageId], before: Sequence[DpkgEntry]) -> None:
        """Remove or purge ``packages``, which dpkg had ``before`` apt removed them.

        dpkg refuses a bare name that several architectures have, and takes the one that is left for the one that left.
        """
        native = native_architecture(before) if before else ""
        names = {package_id_of(entry, native): f"{entry.name}:{entry.architecture}" for entry in before}
        if packages:
            argv = ("dpkg", f"--{verb}", *(names.get(package, str(package)) for package in packages))
            self._run_with_retries(f"{verb} {' '.join(map(str, packages))}", argv)

    def _read_dpkg_status(self) -> tuple[DpkgEntry, ...]:
        """Return dpkg's entries; none if they cannot be read, or if none of them is dpkg's own."""
        with suppress(ValueError):
            entries = parse_status(files.read_file(f"{self._paths.dpkg_folder}/status", root=self._root).text)
            native_architecture(entries)
            return entries
        return ()

    def _wait_for_dpkg(self) -> None:
        """Wait for the dpkg that outlives a killed apt; until it exits, what it changes is unknown."""
        with suppress(GpunodeError):
            deadline = time.monotonic() + _TRANSACTION_TIMEOUT_S
            self._wait_until_free(self._paths.install_locks, deadline)

    def _wait_until_free(self, locks: Sequence[str], deadline: float) -> None:
        wait_until_free(locks, deadline, self._on_progress, root=self._root)

    def _require_planned_transaction(self, changes: Sequence[PackageChange]) -> None:
        simulation = self.simulate(changes)
        if simulation is not None and (differences := differences_from_plan(changes, simulation)):
            raise ChangeFailed(
                "with the refreshed package index apt would no longer do what was planned; no package was changed",
                why="\n".join(differences),
                hint="run the same command again: it makes a new plan with the refreshed index",
            )

    def _mark_packages(self, changes: Sequence[PackageChange]) -> None:
        """Mark packages as automatic, manual or held; apt itself marked those we named as manual."""
        for verb, names in plan_marks(changes).items():
            if names:
                patience = _apt_options(f"DPkg::Lock::Timeout={int(self._lock_timeout_s)}")
                self._run_with_retries(f"mark packages ({verb})", ("apt-mark", "-q", *patience, verb, *names))

    def _restore_marks(self, changes: Sequence[PackageChange]) -> None:
        """Restore the marks of what is still installed; ignore errors, so that the original failure is reported."""
        states = {str(change.id): change.before for change in changes if change.before is not None}
        held = [name for name, state in states.items() if state.held]
        auto = [str(change.id) for change in changes if _is_automatic_still(change)]
        for verb, names in (("hold", held), ("auto", auto)):
            if names:
                self._run(("apt-mark", "-q", verb, *names), _QUERY_TIMEOUT_S)

    def _run_with_retries(self, action: str, argv: tuple[str, ...]) -> None:
        locks = self._paths.install_locks
        self._retry_transient(action, lambda: self._run_transaction(argv), locks, _retry_nothing)

    # -- trying, waiting, failing -------------------------------------------------------------------------------

    def _retry_transient(
        self, action: str, attempt: Callable[[], FinishedCommand], locks: Sequence[str], on_failure: _FailureHandler
    ) -> None:
        """Run ``attempt`` until it succeeds, retrying transient failures.

        ``attempt`` is called when no lock is held; if ``on_failure`` returns True, the next try follows at once.
        """
        pauses = iter(_RETRY_DELAYS_S)
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            self._wait_until_free(locks, deadline)
            finished = attempt()
            if finished.ok:
                return
            kind = classify_failure(finished.text, finished.error)
            if kind == "lock" and time.monotonic() < deadline:
                time.sleep(1.0)
                continue
            if not on_failure(kind, finished):
                pause = next(pauses, None) if kind in _TRANSIENT_FAILURE_KINDS and not finished.timed_out else None
                if pause is None:
                    raise self._error(action, kind, finished, locks)
                again = f"{pause:.0f} s, then trying again to {redact(action)}: {FAILURE_TEXTS[kind]}"
                wait_until_reason_is_gone(pause, lambda again=again: again, self._on_progress)  # type: ignore[misc]
            deadline = time.monotonic() + self._lock_timeout_s

    def _error(
        self, action: str, kind: AptFailureKind, finished: FinishedCommand, locks: Sequence[str]
    ) -> GpunodeError:
        if finished.timed_out:
            return ChangeFailed(
                f"could not {action}: it did not finish within {finished.seconds / 60:.0f} minutes and was stopped",
                why=finished.last_lines(8),
                hint="see gpunode's log for what hangs; if dpkg was at work:\n  sudo dpkg --configure -a\nthen run it "
                "again",
            )
        if kind == "lock" and (holder := find_first_holder(locks, root=self._root)):
            return busy_error(holder, self._lock_timeout_s)
        said, complained = redact(finished.text), redact(finished.error)
        log = find_build_log(_join_output(finished))
        make_log = files.read_file(log, _MAX_MAKE_LOG_BYTES, root=self._root).text if log else ""
        return explain_failure(redact(action), said, complained, make_log=make_log, exit_status=finished.exit_status)

    def _run_transaction(self, argv: tuple[str, ...]) -> FinishedCommand:
        """Run apt or dpkg so that it survives even if gpunode is killed."""
        return self._run(argv, _TRANSACTION_TIMEOUT_S, status=argv[0] == "apt-get", survives_gpunode=True)

    def _run(
        self, argv: tuple[str, ...], timeout_s: float, *, status: bool = False, survives_gpunode: bool = False
    ) -> FinishedCommand:
        return self._runner.run(
            argv,
            timeout_s=timeout_s,
            env=UNATTENDED_APT_ENVIRONMENT,
            limit_bytes=_MAX_OUTPUT_BYTES,
            status=self._report_progress if status else None,
            survives_gpunode=survives_gpunode,
        )

    def _report_progress(self, line: str) -> None:
        if progress := parse_apt_progress(line):
            self._on_progress(progress)

    # -- places -------------------------------------------------------------------------------------------------

    @cached_property
    def _paths(self) -> _AptPaths:
        folders = ("L", "Dir::State::lists/d", "A", "Dir::Cache::archives/d", "S", "Dir::State::status/f")
        finished = self._run(("apt-config", "shell", *folders, "U", "APT::Sandbox::User"), _QUERY_TIMEOUT_S)
        if not finished.ok:
            raise explain_failure("ask apt for its configuration", finished.text, finished.error)
        config_values = dict(word.split("=", 1) for word in shlex.split(finished.text) if "=" in word)
        lists, archives, status = paths = [config_values.get(key, "").rstrip("/") for key in "LAS"]
        if any(not path.startswith("/") or ".." in path.split("/") for path in paths):
            raise ChangeFailed(
                "apt's configuration names folders that gpunode does not use",
                why=", ".join(map(repr, paths)),
                hint="give absolute paths without '..' in apt.conf:\n  apt-config dump Dir",
            )
        return _AptPaths(lists, archives, posixpath.dirname(status), config_values.get("U", ""))

    @contextmanager
    def _restrict_to_lists(self, lists: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield the options that restrict apt to these list files and keep the indexes of all others."""
        if not lists:
            yield ()
            return
        with _make_temporary_folder(self._paths.lists, self._root) as folder:
            for path in lists:
                os.symlink(path, posixpath.basename(path), dir_fd=folder.folder)
            selected = f"Dir::Etc::sourceparts={folder.path}"
            yield _apt_options("Dir::Etc::sourcelist=/dev/null", selected, "APT::Get::List-Cleanup=0")

    def _archive_uris(self, lists: Sequence[str]) -> Iterator[str]:
        """Yield the archives that the source lists name."""
        for path in lists:
            with suppress(ValueError):  # apt itself reports what is wrong with it
                text = files.read_file(path, root=self._root).text
                yield from (source.uri for source in sources.parse(path, text))

    def _give_to_sandbox(self, folder: rooted_paths.OpenedPath) -> None:
        """Let apt's download user enter ``folder``; otherwise apt would download as root."""
        owner = _find_user_id(files.read_file("/etc/passwd", root=self._root).text, self._paths.sandbox_user)
        # Without root there is no sandbox either.
        with suppress(PermissionError):
            if owner is not None:
                os.chown(".", owner, -1, dir_fd=folder.folder)


@contextmanager
def _make_temporary_folder(lists: str, root: str) -> Iterator[rooted_paths.OpenedPath]:
    """Make a private temporary folder beside ``lists``, opened.

    apt can read it, and its download user can enter its parent folders.
    """
    parent, name = posixpath.dirname(lists), f"{_TEMPORARY_FOLDER_PREFIX}{os.urandom(4).hex()}"
    try:
        with rooted_paths.open_path(f"{parent}/{name}", root) as place:
            os.mkdir(name, 0o700, dir_fd=place.folder)
            above = place.folder
            try:
                place.enter(name)
                place.name = "."
                yield place
            finally:
                _remove_folder(name, above)
    except OSError as error:
        raise ChangeFailed(
            f"{parent} cannot be used for apt's temporary files",
            why=error.strerror or str(error),
            hint=f"look at it with `{command('ls', '-la', parent)}`, then run the same command again",
        ) from error


def _remove_folder(name: str, above: int) -> None:
    """Remove a folder and its content as far as possible, without following links."""
    # Through /proc, because rmtree accepts a directory descriptor only since Python 3.11.
    shutil.rmtree(f"/proc/self/fd/{above}/{name}", ignore_errors=True)


def remove_temporary_folders(root: str) -> None:
    """Remove the temporary folders that a killed run of this module left."""
    with suppress(OSError), rooted_paths.open_folder(_APT_STATE_FOLDER, root=root) as folder:
        for name in filter(_TEMPORARY_FOLDER_NAME.fullmatch, rooted_paths.list_names(folder)):
            _remove_folder(name, folder)


def plan_marks(changes: Sequence[PackageChange]) -> dict[str, tuple[str, ...]]:
    """Return the arguments of ``apt-mark`` after a transaction, by verb.

    A package whose state is known only afterwards keeps the hold that it had. One that is marked as it is, or as
    automatic, may still be selected for removal by an apt that was killed: ``install`` selects it again.
    """
    kept = [change for change in changes if change.exists_after]
    held = {str(change.id): change.before is not None and change.before.held for change in kept}
    known = {str(change.id): change.after for change in kept if isinstance(change.after, PackageState)}
    stays = [change for change in kept if change.is_mark and not known[str(change.id)].held]
    return {
        "install": tuple(
            str(change.id) for change in stays if change.before == change.after or known[str(change.id)].auto
        ),
        "auto": tuple(name for name, state in known.items() if state.auto),
        "manual": tuple(
            str(change.id) for change in kept if _was_auto(change) and change.is_mark and not known[str(change.id)].auto
        ),
        "hold": tuple(name for name, was in held.items() if (known[name].held if name in known else was)),
        "unhold": tuple(name for name, state in known.items() if held[name] and not state.held),
    }


def _were_unconfigured(failed: Collection[str], before: Sequence[DpkgEntry], changes: Sequence[PackageChange]) -> bool:
    """Return whether all packages that ``failed`` were unconfigured ``before``, and are ones that ``changes`` leave.

    One that was configured failed by this removal, such as the builder of the initramfs on a full disk.
    """
    names = {PackageId.of(name).name for name in failed}
    if not names or not before:
        return False
    others = {package.name for package in find_unconfigured(before, ())} - {change.id.name for change in changes}
    return names <= others


def _was_auto(change: PackageChange) -> bool:
    return change.before is not None and change.before.auto


def _is_automatic_still(change: PackageChange) -> bool:
    """Return whether to mark a package as automatic if a failed transaction left it installed."""
    if not change.exists_after:
        return _was_auto(change)
    return not change.exists_before and change.known_final_state is not None and change.known_final_state.auto


@contextmanager
def _quarantine_lists(lists: str, root: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that sets index files aside by prefix; on an error, put back those not replaced."""
    moved: list[tuple[str, str]] = []
    with _make_temporary_folder(lists, root) as away:

        def set_aside(prefix: str) -> None:
            for path in (lists, f"{lists}/partial"):
                with suppress(FileNotFoundError), rooted_paths.open_folder(path, root=root) as folder:
                    for name in (name for name in rooted_paths.list_names(folder) if name.startswith(prefix)):
                        os.rename(name, str(len(moved)), src_dir_fd=folder, dst_dir_fd=away.folder)
                        moved.append((path, name))

        try:
            yield set_aside
        except BaseException:
            with suppress(OSError), rooted_paths.open_folder(lists, root=root) as folder:
                present = rooted_paths.list_names(folder)
                for number, (path, name) in enumerate(moved):
                    if path == lists and name not in present:
                        os.rename(str(number), name, src_dir_fd=away.folder, dst_dir_fd=folder)
            raise


def _join_output(finished: FinishedCommand) -> str:
    return f"{finished.text}\n{finished.error}"


def _too_large_error(url: str, limit_bytes: int) -> ChangeFailed:
    return ChangeFailed(
        f"could not fetch {redact(url)}: it is larger than {limit_bytes} bytes",
        why="no file of this kind is that large, so this is something else",
        hint="open the address in a browser: a proxy or a login page may answer instead",
    )


def _find_user_id(passwd: str, name: str) -> int | None:
    """Return the user's id in the system that apt runs in, which need not be this one."""
    with suppress(ValueError, IndexError):
        rows = (line.split(":") for line in passwd.splitlines())
        return next((int(row[2]) for row in rows if row[0] == name), None)
    return None


_PHASE_BY_STATUS_KIND: dict[str, Literal["download", "install"]] = {"dlstatus": "download", "pmstatus": "install"}


def parse_apt_progress(line: str) -> Progress | None:
    """Parse a line of APT::Status-Fd; return None without progress. Source: apt's README.progress-reporting."""
    kind, _, rest = line.partition(":")
    fields = rest.split(":", 2)
    if kind not in _PHASE_BY_STATUS_KIND or len(fields) != 3:
        return None
    try:
        percent = float(fields[1])
    except ValueError:
        return None
    # This range check also rejects NaN.
    return Progress(_PHASE_BY_STATUS_KIND[kind], percent, fields[2].strip()) if 0 <= percent <= 100 else None
