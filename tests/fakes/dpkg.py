"""dpkg's status file and apt's extended_states, changed like the real ones, one package at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpunode.change import PackageChange, PackageState
from gpunode.package_id import PackageId
from gpunode.packages.deb import status
from gpunode.packages.simulation import Action, Simulation

STATUS = "/var/lib/dpkg/status"
EXTENDED_STATES = "/var/lib/apt/extended_states"
_DPKG = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n"


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages of a node.

    Attributes:
        states: by id, without dpkg itself.
        depends: the dependencies of each package.
    """

    states: Mapping[PackageId, PackageState]
    depends: Mapping[PackageId, PackageId]

    @classmethod
    def read(cls, status_text: str, extended_states: str) -> Packages:
        """Return the packages in the two files."""
        states = dict(status.packages(status.parse_status(status_text), extended_states))
        states.pop(PackageId("dpkg"))
        pairs = (_depends(paragraph) for paragraph in status_text.split("\n\n"))
        return cls(states, {package: needed for package, needed in pairs if needed is not None})

    @property
    def status(self) -> str:
        """The text of the status file."""
        return "\n".join((_DPKG, *(self._paragraph(package, state) for package, state in sorted(self.states.items()))))

    def _paragraph(self, package: PackageId, state: PackageState) -> str:
        want, is_now = ("deinstall", "config-files") if state.config_files_only else ("install", "installed")
        needs = f"Depends: {self.depends[package]}\n" if package in self.depends else ""
        return (
            f"Package: {package}\nStatus: {'hold' if state.held else want} ok {is_now}\nArchitecture: amd64\n"
            f"Version: {state.version}\n{needs}"
        )

    @property
    def extended_states(self) -> str:
        """The text of apt's file."""
        auto = (package for package, state in sorted(self.states.items()) if state.auto)
        return "".join(f"Package: {package}\nArchitecture: amd64\nAuto-Installed: 1\n\n" for package in auto)

    def announced(self, changes: tuple[PackageChange, ...]) -> Packages:
        """Return the packages as apt leaves them before dpkg starts: those to remove lose the automatic mark."""
        leaving = {change.id for change in changes if not change.exists_after}
        return self._with({one: replace(state, auto=False) for one, state in self.states.items() if one in leaving})

    def changed(self, change: PackageChange) -> Packages:
        """Return the packages after dpkg's work for ``change``; apt marks explicitly installed ones as manual."""
        after = change.after
        if after is None:
            return replace(self, states={one: state for one, state in self.states.items() if one != change.id})
        assert isinstance(after, PackageState)
        return self._with({change.id: replace(after, auto=False, held=False)})

    def marked(self, changes: tuple[PackageChange, ...]) -> Packages:
        """Return the packages with the marks that ``changes`` request."""
        return self._with({change.id: change.after for change in changes if isinstance(change.after, PackageState)})

    def _with(self, states: Mapping[PackageId, PackageState]) -> Packages:
        return replace(self, states={**self.states, **states})


def obey(changes: tuple[PackageChange, ...]) -> Simulation:
    """Return the actions of apt if only ``changes`` are needed."""
    return Simulation(
        tuple(
            Action("purge" if change.after is None else "remove", change.id)
            if not change.exists_after
            else Action("install", change.id, getattr(change.after, "version", ""))
            for change in changes
        )
    )


def _depends(paragraph: str) -> tuple[PackageId, PackageId | None]:
    fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
    needed = fields.get("Depends")
    return PackageId(fields["Package"]), PackageId(needed) if needed else None
