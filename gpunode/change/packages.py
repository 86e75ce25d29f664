"""Changes of packages."""

from __future__ import annotations

from dataclasses import asdict, field, replace
from typing import ClassVar

from gpunode.change.base import Action, BaseChange, Trigger
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId


@dataclass(frozen=True, slots=True)
class PackageState:
    """An installed package, or what a removed one left behind.

    Attributes:
        auto: installed as a dependency, so autoremove may remove it.
        config_files_only: removed, except for its configuration files.
        origin: the archive that it comes from and its signing key; only recorded, so not compared.
    """

    version: str
    auto: bool = False
    held: bool = False
    config_files_only: bool = False
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class KnownAfter:
    """A package's state whose exact version is known only from the package index.

    Attributes:
        prefix: what the version must start with, without the epoch (``580.``); empty for any version.
        auto: whether it is marked automatic afterwards, which it only is if it was before.
    """

    prefix: str = ""
    why: str = ""
    auto: bool = False


@dataclass(frozen=True, slots=True)
class PackageChange(BaseChange):
    """A package is installed, changed to another version, or purged (``after`` is None)."""

    kind_name: ClassVar[str] = "package"
    rank: ClassVar[int] = 1
    _undo_ranks: ClassVar[tuple[int, int]] = (3, 2)
    leaves_node_unchanged_on_failure: ClassVar[bool] = True

    id: PackageId
    before: PackageState | None
    after: PackageState | KnownAfter | None
    triggers: frozenset[Trigger] = frozenset()

    @property
    def subject(self) -> str:
        return str(self.id)

    @property
    def is_final_state_known(self) -> bool:
        return not isinstance(self.after, KnownAfter)

    @property
    def records_unchanged_state(self) -> bool:
        return self.before == self.after

    @property
    def exists_before(self) -> bool:
        return self.before is not None and not self.before.config_files_only

    @property
    def exists_after(self) -> bool:
        return self.after is not None and not (self.known_final_state and self.known_final_state.config_files_only)

    @property
    def final_state_known_when(self) -> str:
        return "" if self.is_final_state_known else "the package index is read"

    @property
    def origin(self) -> str:
        return self.known_final_state.origin if self.known_final_state else ""

    @property
    def outcome_text(self) -> str:
        before, after = self.states
        if self.is_mark:
            marks = dict.fromkeys(map(_name_marks, (self.before, self.known_final_state)))
            return f"{before}, {' → '.join(marks)}"
        return f"{before} → {after}" if before and after else f"{after or before} {self.participle}"

    @property
    def known_final_state(self) -> PackageState | None:
        """The state afterwards, if its version is known; else None."""
        return self.after if isinstance(self.after, PackageState) else None

    @property
    def is_mark(self) -> bool:
        """True if only the package's marks change."""
        before, after = self.before, self.known_final_state
        if before is None or after is None or before.config_files_only or after.config_files_only:
            return False
        return before.version == after.version

    @property
    def removes_or_replaces(self) -> bool:
        """True if the installed version is removed, or replaced by another one."""
        return self.exists_before and not self.is_mark

    @property
    def action(self) -> Action:
        if self.after is None:
            return "purge"
        if not self.exists_before:
            return "install"
        return "mark" if self.is_mark else "upgrade"

    @property
    def participle(self) -> str:
        return "installed" if self.before is None else "purged" if self.after is None else "changed"

    @property
    def states(self) -> tuple[str, str]:
        before, after = self.before, self.known_final_state
        return before.version if before else "", after.version if after else ""

    @property
    def record(self) -> dict[str, object]:
        before, after = (asdict(state) if state else None for state in (self.before, self.known_final_state))
        return {"before": before, "after": after}

    def inverse(self) -> PackageChange | None:
        return None if isinstance(self.after, KnownAfter) else replace(self, before=self.after, after=self.before)


def _name_marks(state: PackageState | None) -> str:
    """Return the marks: ``auto, hold``."""
    return ("auto" if state and state.auto else "manual") + (", hold" if state and state.held else "")
