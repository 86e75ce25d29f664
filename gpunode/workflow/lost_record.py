"""Traces of gpunode without a recorded run: the node's record was lost, in whole or in part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.catalog.repositories import cuda_repository, toolkit_repository
from gpunode.change import FileState, digest
from gpunode.command import command, sudo_gpunode
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import VerifyFailed
from gpunode.facts.model import Facts, Known, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.journal.additions import RecordedAdditions
from gpunode.package_id import PackageId
from gpunode.packages import deb


@dataclass(frozen=True, slots=True)
class LostRecord:
    """gpunode's own files without a record of the run that wrote them.

    Attributes:
        files: their paths.
        packages: driver packages that the pin among ``files`` holds and that no recorded run installed.
        ambiguous_items: files and packages that gpunode or somebody else may have added; they look the same.
        folder: where the record should be.
        removal_commands: commands that remove the files and the packages, and leave ``ambiguous_items``.
    """

    files: tuple[str, ...]
    packages: tuple[PackageId, ...]
    ambiguous_items: tuple[str, ...]
    folder: str
    removal_commands: tuple[str, ...]

    def __str__(self) -> str:
        number = len(self.packages)
        are = f"{number} driver packages are" if number > 1 else "1 driver package is"
        pinned = f", and {are} installed under its pin" if number else ""
        return (
            f"gpunode's record of this node was lost: {self._written}{pinned}; setup still works, but rollback cannot "
            f"undo this, and `{sudo_gpunode('remove')}` only names it: restore {self.folder} from a backup"
        )

    @property
    def _written(self) -> str:
        were, them = ("was", "it") if len(self.files) == 1 else ("were", "them")
        return f"{', '.join(self.files)} {were} written by gpunode, but no run in {self.folder} wrote {them}"

    def removal_error(self) -> VerifyFailed:
        """Return the error of a removal that cannot remove these things."""
        why = [self._written]
        if self.packages:
            why.append(f"installed under its pin: {', '.join(map(str, self.packages))}")
        if self.ambiguous_items:
            why.append(f"possibly added by gpunode, but anybody would add the same: {', '.join(self.ambiguous_items)}")
        why.append("without the record gpunode cannot tell what was there before, so it removed none of this")
        hint = f"restore {self.folder} from a backup of this node and run the command again, or remove by hand:"
        return VerifyFailed(
            "gpunode is not fully removed: it keeps things whose record was lost",
            why="\n".join(why),
            hint="\n".join((hint, *self.removal_commands)),
        )


def assess_lost_record(
    marked: Mapping[str, FileState], facts: Facts, recorded: RecordedAdditions, folder: str
) -> LostRecord | None:
    """Return the ``marked`` files that no recorded run wrote, and other files and packages that a setup may have left.

    A file that had the mark before the first recorded run wrote it belongs to an unrecorded run.

    ``recorded`` is what all journals in ``folder`` say about the node.
    """
    names, before = {path: digest(state.content) for path, state in marked.items()}, recorded.sha256_before
    files = {path: state for path, state in marked.items() if before.get(path, names[path]) == names[path]}
    if not files:
        return None
    installed = value_or(facts.packages, {})
    pin = files.get(deb.PIN_FILE)
    pinned_packages = deb.packages_at_pinned_version(pin.content, installed) if pin else frozenset()
    drivers = tuple(sorted(pinned_packages - recorded.packages))
    toolkit = tuple(
        package for package in TOOLKIT_PACKAGES if package in installed and package not in recorded.packages
    )
    lists = tuple(
        path for path in _repository_files(facts) if value_or(facts.file(path), None) is not None and path not in before
    )
    purge = [f"sudo {deb.purge_command(list(map(str, drivers)))}"] if drivers else []
    removal_commands = (*purge, str(command("sudo", "rm", *files)))
    return LostRecord(tuple(files), drivers, (*lists, *map(str, toolkit)), folder, removal_commands)


def _repository_files(facts: Facts) -> Iterator[str]:
    """Yield the paths of the lists and keyrings that setup and NVIDIA's instructions both write."""
    toolkit = toolkit_repository()
    yield from (toolkit.list_file, toolkit.keyring)
    if isinstance(facts.distro, Known):
        cuda = cuda_repository(facts.distro.value, value_or(facts.architecture, ""))
        yield from (cuda.list_file, cuda.keyring) if cuda else ()
