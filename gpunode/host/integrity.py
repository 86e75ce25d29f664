"""gpunode's own files, against the checksums that came with them."""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpunode import installed
from gpunode.check import Check
from gpunode.command import command
from gpunode.errors import Undetermined, UsageError

if TYPE_CHECKING:
    import zipfile
    from importlib.metadata import Distribution, PackagePath

_AGAIN: Final = "install this release of gpunode again"
_MANAGERS: Final = {"deb": ("dpkg", "--verify", "gpunode"), "rpm": ("rpm", "--verify", "--nodeps", "gpunode")}
_MISSING_DOCUMENT: Final = re.compile(r"missing\s.* /usr/share/(doc|man)/")
_NAMED: Final = 5


def checks(sums: str) -> Iterator[Check]:
    """Each check of the files that this gpunode consists of.

    Args:
        sums: a release's SHA256SUMS that the zipapp shall be in; empty for none.

    Raises:
        Undetermined: a source tree, which came with no checksums.
        UsageError: ``sums`` cannot be read, or this gpunode is no file that it could list.
    """
    kind, place = installed.how()
    if kind == "source":
        raise Undetermined(
            "a source tree has no checksums to check against",
            why=f"this gpunode runs from {place}",
            hint=f"its differences from the last commit:\n{command('git', '-C', place, 'status')}",
        )
    if kind == "wheel":
        if sums:
            raise UsageError(
                "an installed wheel is no file that SHA256SUMS lists",
                why=f"pip unpacked it into {place}",
                hint="compare its files with the checksums that pip recorded:\ngpunode self-check",
            )
        yield _wheel()
        return
    yield from _zipapp(place)
    if argv := _MANAGERS.get(kind):
        yield _package(argv)
    if sums:
        yield _listed(place, sums)


def _zipapp(place: str) -> Iterator[Check]:
    import zipfile

    expected = sys.modules["__main__"].PAYLOAD_SHA256
    try:
        with zipfile.ZipFile(place) as outer:
            payload = outer.read("payload.zip")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        yield _check("zipapp", "zipapp", [f"{place} cannot be read: {error}"], "")
        return
    same = hashlib.sha256(payload).hexdigest() == expected
    wrong = [] if same else [f"the content of {place} does not match its sha256"]
    yield _check("zipapp", "zipapp", wrong, f"the content of {place} matches the sha256 that it was built with")
    if same:
        folder = Path(__file__).parents[2]
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            wrong = list(_unpacked(archive, folder))
            detail = f"{len(archive.namelist())} files in {folder}, and their bytecode, match the zipapp"
        yield _check(
            "unpacked",
            "unpacked files",
            wrong,
            detail,
            f"gpunode unpacks itself again:\n{command('rm', '-r', str(folder))}",
        )


def _unpacked(archive: zipfile.ZipFile, folder: Path) -> Iterator[str]:
    """What of ``folder`` is not what ``archive`` holds, one sentence each."""
    names = set(archive.namelist())
    for name in sorted(names):
        content = archive.read(name)
        try:
            if (folder / name).read_bytes() != content:
                yield f"{name} was changed"
        except OSError as error:
            yield f"{name}: {error.strerror}"
        if name.endswith(".py") and _has_foreign_bytecode(folder / name, content):
            yield f"the bytecode of {name} was changed"
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_bytecode = path.suffix == ".pyc" and path.parent.name == "__pycache__"
        if name not in names and not is_bytecode and (path.is_symlink() or not path.is_dir()):
            yield f"{name} is not part of gpunode"


def _has_foreign_bytecode(source: Path, content: bytes) -> bool:
    """Whether this Python would run something else than ``content`` for ``source``."""
    import marshal
    from importlib.util import MAGIC_NUMBER, cache_from_source

    try:
        compiled = Path(cache_from_source(source)).read_bytes()
    except OSError:
        return False
    if compiled[:4] != MAGIC_NUMBER:
        return False
    try:
        found: Any = marshal.loads(compiled[16:])  # noqa: S302 - Python itself would load it; nothing of it is run
        return bool(found != compile(content, source, "exec", dont_inherit=True))
    except (EOFError, ValueError, TypeError, SyntaxError):
        return True


def _package(argv: tuple[str, ...]) -> Check:
    from gpunode.host.process import Runner

    done = Runner().run(argv, timeout_s=60, only_reads=True)
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    # Settings are the administrator's to change, and both programs mark them so. A minimal system leaves out documents.
    wrong = [line for line in lines if " c /" not in line and not _MISSING_DOCUMENT.match(line)]
    if not done.ok and not lines:
        why = "it is not installed" if done.missing else done.stderr.decode("utf-8", "replace").strip()
        return Check("package", "package", "not run", f"{argv[0]}: {why}")
    return _check("package", "package", wrong, f"{' '.join(argv)} finds every file as it was installed")


def _listed(place: str, sums: str) -> Check:
    """Whether the zipapp is the one that a release lists."""
    try:
        lines = Path(sums).read_text("utf-8").splitlines()
        own = hashlib.sha256(Path(place).read_bytes()).hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {sums}", why=str(error), hint="name the SHA256SUMS of a release") from error
    words = [line.split() for line in lines]
    is_listed = any(word == [own, "gpunode.pyz"] for word in words)
    wrong = [] if is_listed else [f"{place} has the sha256 {own}, which {sums} does not list for gpunode.pyz"]
    return _check("release", "release", wrong, f"{sums} lists {place} as gpunode.pyz")


def _wheel() -> Check:
    from importlib.metadata import distribution

    gpunode = distribution("gpunode")
    wrong: list[str] = []
    count = 0
    for one in (gpunode, *_requirements(gpunode)):
        for file in one.files or ():
            if file.hash is not None and file.suffix != ".pyc":
                count += 1
                wrong += _differences(file)
    return _check("wheel", "wheels", wrong, f"{count} files match the checksums that pip recorded")


def _requirements(of: Distribution) -> Iterator[Distribution]:
    """What ``of`` needs, and what that needs, as far as it is installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    pending, seen = list(of.requires or ()), {"gpunode"}
    while pending:
        found = re.match(r"[\w.-]+", pending.pop())
        if found is None or found[0].lower() in seen:
            continue
        seen.add(found[0].lower())
        try:
            one = distribution(found[0])
        except PackageNotFoundError:  # for another Python, or an extra
            continue
        pending += one.requires or ()
        yield one


def _differences(file: PackagePath) -> Iterator[str]:
    import base64

    assert file.hash is not None
    path = os.fspath(file.locate())
    try:
        digest = hashlib.new(file.hash.mode, Path(path).read_bytes()).digest()
    except OSError as error:
        yield f"{path}: {error.strerror}"
        return
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
        yield f"{path} was changed"


def _check(name: str, title: str, wrong: list[str], detail: str, remedy: str = "") -> Check:
    if not wrong:
        return Check(name, title, "passed", detail)
    named = "; ".join(wrong[:_NAMED]) + (f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else "")
    return Check(name, title, "failed", named, remedy or _AGAIN)
