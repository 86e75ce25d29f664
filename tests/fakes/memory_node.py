"""A node in memory, changed by gpunode's own commands: files and packages in dictionaries, a journal on disk.

Its power may fail after any entry of the journal is on disk, and before or after any effect on the node.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

from gpunode.change import Change, FileState, PackageChange, Trigger
from gpunode.cli.boundary import run_cli
from gpunode.facts.evidence import Capture, GlobMatch, Ownership, Probe, encode_matches
from gpunode.host.port import TriggerResult
from gpunode.host.rehearsal import RehearsalHost
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Simulation
from tests.fakes.dpkg import EXTENDED_STATES, STATUS, Packages, obey


class PowerCut(BaseException):
    """The machine has lost power: nothing runs afterwards, not even handlers of ordinary errors."""


@dataclass
class Supply:
    """The power of a node: it fails at the moment ``cut_at``, counted from 0; never for -1."""

    cut_at: int = -1
    moments: int = 0
    on_cut: Callable[[], None] = lambda: None

    def moment(self) -> None:
        """Let a moment pass.

        Raises:
            PowerCut: this was the moment to fail.
        """
        self.moments += 1
        if self.moments - 1 == self.cut_at:
            self.on_cut()
            raise PowerCut


class MemoryNode(RehearsalHost):
    """Replaces ``LocalHost``: an image at ``root``, a folder that itself has only gpunode's own files."""

    def __init__(self, root: Path, packages: Packages, files: Mapping[str, FileState]) -> None:
        super().__init__({}, files)
        self.root, self.supply = str(root), Supply()
        self.versions: dict[PackageId, frozenset[str]] = {}
        (root / "etc").mkdir(exist_ok=True)
        self.keep(packages)

    @property
    def packages(self) -> Packages:
        """The installed packages."""
        return Packages.read(self._text(STATUS), self._text(EXTENDED_STATES))

    def _text(self, path: str) -> str:
        state = self.files[path]
        assert state is not None
        return state.content.decode()

    def keep(self, packages: Packages) -> None:
        """Write ``packages`` to the package database."""
        self.files[STATUS] = FileState(packages.status.encode())
        self.files[EXTENDED_STATES] = FileState(packages.extended_states.encode())
        for package, state in packages.states.items():
            self.versions[package] = self.versions.get(package, frozenset()) | {state.version}

    def run_probe(self, probe: Probe, /) -> Capture:
        if not probe.glob:
            return super().run_probe(probe)
        found = (
            GlobMatch(path, data=state.content, ownership=Ownership(state.mode, state.uid, state.gid))
            for path, state in self.files.items()
            if state is not None and fnmatch(path, probe.glob)
        )
        return Capture(probe.source, "ok", encode_matches(found))

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        return obey(tuple(change for change in changes if not change.is_mark))

    def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        return {one: self.versions[one] for one in packages if one in self.versions}

    def apply(self, changes: Sequence[Change], /) -> None:
        self.supply.moment()
        if packages := tuple(change for change in changes if isinstance(change, PackageChange)):
            self._transact(packages)
        else:
            super().apply(changes)
        self.supply.moment()

    def _transact(self, changes: tuple[PackageChange, ...]) -> None:
        """Act like apt and dpkg: the actions one package at a time, then the marks."""
        self.keep(self.packages.announced(changes))
        for change in changes:
            self.supply.moment()
            if not change.is_mark:
                self.keep(self.packages.changed(change))
        self.supply.moment()
        self.keep(self.packages.marked(changes))

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        self.supply.moment()
        return super().run_triggers(triggers)

    def remove_temporary_files(self, paths: Sequence[str]) -> None:
        """Do nothing: memory never holds a partial file."""

    def wait_until_idle(self) -> None:
        """Return at once: no other package manager runs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command: its exit code, and the envelope, which is missing if the power failed."""

    exit_code: int
    envelope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All its text for a person, without the changes."""
        errors = (text for error in self.envelope["errors"] for text in (error["what"], error["why"], error["hint"]))
        return "\n".join((*self.envelope["notes"], *errors))


@contextlib.contextmanager
def _standing_in(node: MemoryNode) -> Iterator[None]:
    """Let gpunode's commands use ``node`` instead of the machine, as root."""
    with contextlib.ExitStack() as stack:
        for name, stand_in in (
            ("gpunode.cli.session.LocalHost", lambda *_, **__: node),
            ("gpunode.cli.session.create_announcer", lambda _: lambda *_: node.supply.moment()),
            ("gpunode.cli.undo.require_root", lambda *_: None),
        ):
            stack.enter_context(mock.patch(name, stand_in))
        yield


def command(node: MemoryNode, *arguments: str, cut_at: int = -1) -> Answer:
    """Return the answer of ``gpunode ARGUMENTS`` on ``node``; the journal ends where the power failed, if it did."""
    store = Store(node.root)
    kept: dict[Path, bytes] = {}

    def remember() -> None:
        # A machine without power would not write what handlers of this process write afterwards.
        kept.update({path: path.read_bytes() for path in store.folder.glob("runs/*/journal.jsonl")})

    node.supply = Supply(cut_at, on_cut=remember)
    words = [*arguments, "--yes", "--json", "--root", node.root]
    said = io.StringIO()
    try:
        with _standing_in(node), mock.patch.object(sys, "argv", ["gpunode", *words]), contextlib.redirect_stdout(said):
            exit_code = run_cli(words)
    except PowerCut:
        for path, content in kept.items():
            path.write_bytes(content)
        return Answer(-9)
    return Answer(exit_code, json.loads(said.getvalue()))
