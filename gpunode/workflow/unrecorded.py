"""What says that gpunode made it, and no recorded run did: the record of the node was lost, all of it or a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.change import FileState
from gpunode.command import command, sudo_gpunode
from gpunode.errors import VerifyFailed
from gpunode.facts.model import Facts, known
from gpunode.journal.inventory import Inventory
from gpunode.journal.record import digest
from gpunode.package_id import PackageId
from gpunode.packages import system


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """gpunode's own files without a record of the run that wrote them.

    Attributes:
        files: their paths.
        packages: the driver packages that the pin among them holds, and that no run is known to have installed.
        folder: where the record should be.
        purge: the command that removes the packages.
    """

    files: tuple[str, ...]
    packages: tuple[PackageId, ...]
    folder: str
    purge: str

    def __str__(self) -> str:
        return (
            f"gpunode's record of this node was lost: {_files(self.files)} by gpunode, but no run in {self.folder} "
            f"wrote {'it' if len(self.files) == 1 else 'them'}{self._pinned()}; setup still works, but rollback cannot "
            f"undo this, and `{sudo_gpunode('remove')}` only names it: restore {self.folder} from a backup"
        )

    def _pinned(self) -> str:
        """Return a clause about the packages; empty without any."""
        number = len(self.packages)
        are = f"{number} driver packages are" if number > 1 else "1 driver package is"
        return f", and {are} installed under its pin" if number else ""

    def refusal(self) -> VerifyFailed:
        """Return the error with which a removal ends that cannot take these things away."""
        packages = ", ".join(map(str, self.packages))
        installed = f"; these packages are installed under its pin: {packages}" if packages else ""
        by_hand = [f"sudo {self.purge}"] if self.packages else []
        restore = f"restore {self.folder} from a backup of this node and run the command again, or remove these by hand"
        return VerifyFailed(
            "this node is not without gpunode: things of which its record was lost stay",
            why=f"{_files(self.files)} by gpunode, but no run in {self.folder} wrote "
            f"{'it' if len(self.files) == 1 else 'them'}{installed}; without the record gpunode cannot tell what was "
            "there before, so it took none of this away",
            hint="\n".join((f"{restore}:", *by_hand, str(command("sudo", "rm", *self.files)))),
        )


def _files(paths: tuple[str, ...]) -> str:
    return f"{', '.join(paths)} {'was' if len(paths) == 1 else 'were'} written"


def unrecorded(marked: Mapping[str, FileState], facts: Facts, recorded: Inventory, folder: str) -> Unrecorded | None:
    """Return those of the ``marked`` files that no recorded run wrote, with the packages under their pin.

    A file that was there with the mark before the first recorded run wrote it belongs to a run that is not recorded.

    Args:
        marked: files that say that gpunode wrote them.
        facts: of the node.
        recorded: all that the journals say of it.
        folder: where these are.
    """
    files = {path: state for path, state in marked.items() if not _is_recorded(path, state, recorded)}
    if not files:
        return None
    packages = system(facts)
    pin = files.get(packages.pin_file)
    held = packages.held_by_pin(pin.content, known(facts.packages, {})) if pin else frozenset()
    without_record = tuple(sorted(held - recorded.packages))
    return Unrecorded(tuple(files), without_record, folder, packages.purge(list(map(str, without_record))))


def _is_recorded(path: str, state: FileState, recorded: Inventory) -> bool:
    return path in recorded.written and digest(state.content) not in recorded.found.get(path, frozenset())
