"""APT's preferences, apt_preferences(5), where the first matching record decides about a package."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from typing import Final

from gpunode.catalog.conflicts import driver_versioned_packages
from gpunode.catalog.driver import DriverChoice
from gpunode.change import PackageState
from gpunode.facts.model import Facts
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.packages.version import without_epoch

PREFERENCES_FILE: Final = "/etc/apt/preferences"
PREFERENCES_FOLDER: Final = "/etc/apt/preferences.d"
# apt ignores other names in its preferences folder.
_PREFERENCES_FILE_NAME = Pattern(r"[A-Za-z0-9_-]{1,255}(\.pref)?|[A-Za-z0-9_.-]{1,255}\.pref")

PIN_FILE: Final = "/etc/apt/preferences.d/gpunode-nvidia"
CUDA_PIN_FILE: Final = "/etc/apt/preferences.d/gpunode-cuda"

# Above 1000 apt even downgrades a package to this version; below 0 it never installs the version.
_WANTED, _NEVER = 1001, -1
_EXACT_DRIVER_PIN_LINE = re.compile(rb"^Pin: version (\d{3}(?:\.\d+)+)-\*$", re.MULTILINE)
_DRIVER_PACKAGE_GLOBS = ("libnvidia-*", "nvidia-*")
_PIN_FILE_HEADER = """\
# Written by gpunode: NVIDIA driver packages come from NVIDIA's repository, in one branch.
# `gpunode setup` rewrites this file when it is edited; without it apt may move the driver to another branch.
"""

_DISTRO_PIN_HEADER = """\
# Written by gpunode: NVIDIA driver packages come from the distribution's own archive, in one branch, not from NVIDIA's.
# `gpunode setup` rewrites this file when it is edited; without it apt may move the driver to another branch.
"""

_CUDA_PIN_HEADER = """\
# Written by gpunode: the CUDA toolkit comes whole from NVIDIA's repository, not in part from the distribution's.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a preferences file.

    Attributes:
        line: where it begins in ``file``, from 1.
        packages: names, globs and regular expressions (``/…/``), without architectures.
        pin: what it is about: ``version 580.*``, ``release o=Debian``.
    """

    file: str
    line: int
    packages: tuple[str, ...]
    pin: str

    def names(self, package: str) -> bool:
        """Return whether it names ``package``; a record about all packages is weaker than any that does."""
        return any(_matches_pattern(pattern, package) for pattern in self.packages if pattern != "*")


def files_in_order(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the ``paths`` that apt reads, in its order."""
    read = [path for path in paths if path == PREFERENCES_FILE or _is_read_from_folder(path)]
    return tuple(sorted(read, key=lambda path: (path != PREFERENCES_FILE, path)))


def _is_read_from_folder(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == PREFERENCES_FOLDER and _PREFERENCES_FILE_NAME.fullmatch(name) is not None


def parse(file: str, text: str) -> tuple[Record, ...]:
    """Return the records of ``text``, the content of ``file``; anything else is skipped."""
    return tuple(_parse_records(file, text))


def _parse_records(file: str, text: str) -> Iterator[Record]:
    start, fields, key = 0, dict[str, str](), ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.startswith("#"):
            continue
        if line.strip():
            start = start or number
            name, colon, value = line.partition(":")
            begins = line[0] not in " \t" and bool(colon)
            key = name.lower() if begins else key
            fields[key] = f"{fields.get(key, '')} {(value if begins else line).strip()}".strip()
            continue
        if {"package", "pin"} <= fields.keys():
            names = (word if word[0] == "/" else word.partition(":")[0] for word in fields["package"].split())
            yield Record(file, start, tuple(names), fields["pin"])
        start, fields, key = 0, {}, ""


def _matches_pattern(pattern: str, package: str) -> bool:
    if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
        try:
            return re.search(pattern[1:-1], package) is not None
        except re.error:
            return False
    return fnmatchcase(package, pattern)


def render_driver_pin(choice: DriverChoice, origins: Sequence[str], foreign: Sequence[str] = ()) -> bytes:
    """Return the text of PIN_FILE: driver packages come from NVIDIA's repository in the chosen version, or not at all.

    apt uses the first record that matches a version (apt_preferences(5)): the first excludes the distribution's own
    packages even in a fitting version, the second prefers what fits, the third excludes the rest, so that a name that
    the chosen branch lacks never brings in another branch. NVIDIA's repository is not identified by its origin, since a
    mirror's may differ. ``:any`` also holds foreign architectures. The globs catch what NVIDIA may add to the branch;
    they are in one record only, since each slows down every apt command on the node.

    ``origins``: prefixes of the Origin of archives whose own driver packages are never mixed with NVIDIA's.
    ``foreign``: the archives that are never mixed with the distribution's own driver, if that is the chosen one.
    """
    names = driver_versioned_packages(choice.branch)
    version = f"{choice.exact}-*" if choice.exact else f"{choice.branch}.*"
    if choice.source == "distro":
        # No third record: the distribution itself has other versions of some packages, such as nvidia-modprobe.
        records = [
            *(_render_record(names, f"release {one}", _NEVER) for one in foreign),
            _render_record(names, f"version {version}", _WANTED),
        ]
        return "\n".join([_DISTRO_PIN_HEADER, *records]).encode()
    records = [
        _render_record(names, f"release o=/^({'|'.join(origins)})/", _NEVER),
        _render_record((*_DRIVER_PACKAGE_GLOBS, *names), f"version {version}", _WANTED),
        _render_record(names, "release *", _NEVER),
    ]
    return "\n".join([_PIN_FILE_HEADER, *records]).encode()


def render_cuda_pin(patterns: Sequence[str], origins: Sequence[str]) -> bytes:
    """Return the text of CUDA_PIN_FILE: packages that match ``patterns`` never come from archives of ``origins``."""
    record = _render_record(tuple(patterns), f"release o=/^({'|'.join(origins)})/", _NEVER)
    return f"{_CUDA_PIN_HEADER}\n{record}".encode()


@lru_cache(maxsize=16)
def _render_record(names: tuple[str, ...], pin: str, priority: int) -> str:
    # Cached: on a node that is held at an exact version every driver step compares the file with its text.
    listed = " ".join(f"{name}:any" for name in names)
    package = textwrap.fill(
        f"Package: {listed}", width=120, subsequent_indent=" ", break_on_hyphens=False, break_long_words=False
    )
    return f"{package}\nPin: {pin}\nPin-Priority: {priority}\n"


def pinned_version(content: bytes) -> str:
    """Return the exact driver version at which a text of PIN_FILE holds the driver; empty if it holds a branch."""
    match = _EXACT_DRIVER_PIN_LINE.search(content)
    return match[1].decode() if match else ""


def packages_at_pinned_version(content: bytes, packages: Mapping[PackageId, PackageState]) -> frozenset[PackageId]:
    """Return the installed ``packages`` whose version is the one that a text of PIN_FILE pins."""
    records = parse(PIN_FILE, content.decode("utf-8", "replace"))
    wanted = [(record, record.pin.removeprefix("version ")) for record in records if record.pin.startswith("version ")]

    def is_held(package: PackageId, version: str) -> bool:
        return any(
            one.names(package.name) and _matches_pattern(pattern, without_epoch(version)) for one, pattern in wanted
        )

    return frozenset(
        package
        for package, state in packages.items()
        if not state.config_files_only and is_held(package, state.version)
    )


def list_foreign_records(facts: Facts, packages: Iterable[PackageId]) -> Iterator[str]:
    """Yield the place of every record about one of ``packages`` by name that gpunode did not write."""
    names = sorted({package.name for package in packages})
    for path in files_in_order(facts.files):
        for record in parse(path, facts.text(path) if path not in {PIN_FILE, CUDA_PIN_FILE} else ""):
            if any(map(record.names, names)):
                yield f"{record.file}:{record.line}"


def note_overriding_records(facts: Facts, choice: DriverChoice, names: Collection[str]) -> Iterator[str]:
    """Yield a note for each record that apt reads before PIN_FILE and that decides about one of the ``names``."""
    for path in takewhile(lambda path: path != PIN_FILE, files_in_order({*facts.files, PIN_FILE})):
        for record in parse(path, facts.text(path)):
            name = next(filter(record.names, names), "")
            if name and not _pins_chosen_branch(record.pin, choice):
                place = f"{record.file}:{record.line}"
                yield f"{place} pins {name} with precedence over {PIN_FILE}: apt may install another driver; remove it"


def _pins_chosen_branch(pin: str, choice: DriverChoice) -> bool:
    """Return whether a record is about the chosen versions, which it may pin at any priority."""
    kind, _, version = pin.partition(" ")
    return kind == "version" and f"{version.strip().rstrip('*-')}.".replace("..", ".").startswith(f"{choice.branch}.")
