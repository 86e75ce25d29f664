"""View packages: those that dpkg, apt or rpm list as installed, whether one is certainly absent, and their history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from functools import cache
from typing import Final

from gpunode.catalog import conflicts
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

_DPKG_ROW: Final = Pattern(
    r"^(?P<want>[uirph])(?P<state>[nicuHFWt])(?P<bad>R?)\s+"
    r"(?P<name>[a-z0-9][\w.+-]+)(?::(?P<arch>\w+))?\s+(?P<version>\S+)"
)
_APT_LIST_ROW: Final = Pattern(
    r"^(?P<name>[a-z0-9][\w.+-]+)/\S+\s+(?P<version>\S+)\s+\w+\s+\[(?P<marks>[^\]]*installed[^\]]*)\]"
)
_RPM_ROW: Final = Pattern(
    r"^(?P<name>[a-zA-Z0-9][\w.+-]*?)-(?P<version>(?:\d+:)?\d[\w.+~^]*-[\w.+~^]+?)"
    r"(?:\.(?:x86_64|aarch64|noarch|i686))?"
    # rpm --last appends a date.
    r"(?:\s+\w{3} (?:\d{1,2} \w{3}|\w{3} +\d{1,2}) [^\n]{4,40})?$"
)
# dnf list installed, yum list: "nvidia-driver.x86_64   3:550.54.15-1.el9   @cuda-rhel9-x86_64".
_DNF_LIST_ROW: Final = Pattern(
    r"^(?P<name>[a-zA-Z0-9][\w.+-]*?)\.(?:x86_64|aarch64|noarch|i686)\s+"
    r"(?P<version>(?:\d+:)?\d[\w.+~^]*-[\w.+~^]+)\s+@?(?P<origin>\S+)\s*$"
)
# dpkg-query -W, pacman -Q, dpkg -s.
_NAME_AND_VERSION_ROW: Final = Pattern(
    r"^(?P<name>[a-z0-9][\w.+-]+)(?::(?P<arch>\w+))?\s+(?P<version>(?:\d+:)?\d[\w.+~:-]*)\s*$"
)
_PACKAGE_NOT_FOUND: Final = Pattern(
    r"no packages? found matching (?P<name>\S+)|package (?P<rpm>\S+) is not installed"
    r"|package ['‘](?P<pacman>[^'’\s]+)['’] was not found|Unable to locate package (?P<apt>[\w.+-]+)"
)
# dpkg(1): the states in which a package is usable.
_INSTALLED_STATE_LETTERS: Final = frozenset("iWt")
_HALF_DONE_STATE_LETTERS: Final = frozenset("UFH")


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package, or the rest of one.

    Attributes:
        state: dpkg's letter for its state (``i`` installed, ``c`` configuration files only, ``F`` half configured …).
        want: dpkg's letter for the wanted state (``h`` is a hold).
        origin: the repository that it was installed from, if listed.
    """

    name: str
    version: str
    state: str
    want: str
    citation: Citation
    origin: str = ""

    @property
    def is_installed(self) -> bool:
        """True if it is installed and configured."""
        return self.state in _INSTALLED_STATE_LETTERS

    @property
    def is_half_done(self) -> bool:
        """True if dpkg began to unpack or configure it but did not finish."""
        return self.state in _HALF_DONE_STATE_LETTERS

    @property
    def has_failed_script(self) -> bool:
        """True if dpkg began to configure it, and its script did not end well."""
        return self.state == "F"

    @property
    def is_broken(self) -> bool:
        """True if some of its files are missing, so that it must be installed again."""
        return self.state == "H"

    @property
    def upstream(self) -> str:
        """The version without epoch, packaging revision and the kernel suffix of SUSE's modules (``550.107.02``)."""
        return self.version.split(":")[-1].split("-")[0].split("~")[0].split("_k")[0]


def listed_packages(snapshot: Snapshot) -> Mapping[str, Package]:
    """Return the node's packages by name; of duplicates the unfinished one, else the installed one."""
    packages: dict[str, Package] = {}
    for package in _find_packages(snapshot):
        before = packages.get(package.name)
        if before is None or (package.is_half_done, package.is_installed) >= (before.is_half_done, before.is_installed):
            packages[package.name] = package
    return packages


def container_packages(snapshot: Snapshot) -> tuple[Package, ...]:
    """Return the packages that were listed inside a container."""
    return tuple(
        row for item in snapshot.items_of("packages") if item.where == "container" for row in _parse_rows(item)
    )


def held_packages(snapshot: Snapshot) -> Mapping[str, Citation]:
    """Return the packages on hold or excluded from upgrades, by name."""
    held = {one.name: one.citation for one in snapshot.view(listed_packages).values() if one.want == "h"}
    listings = [
        item for item in snapshot.items_of("packages") if {"showhold", "versionlock"}.intersection(item.source.words)
    ]
    for item in (*listings, *snapshot.files("*/versionlock.list")):
        for number, line in enumerate(item.lines, 1):
            # dnf 4 and yum write an exclusion with a leading "!".
            if match := _HELD_PACKAGE_NAME.match(line.strip().lstrip("!")):
                held[match["name"]] = cite(item, number)
    return held


_HELD_PACKAGE_NAME: Final = Pattern(r"(?:\d+:)?(?P<name>[a-z0-9][\w.+-]*?)(?:-\d+:[\w.+~-]+(?:\.\*)?|:\w+)?$")


def matching_packages(snapshot: Snapshot, *patterns: str) -> tuple[Package, ...]:
    """Return the listed packages whose name matches one of the shell ``patterns``."""
    beginnings = tuple(_literal_beginning(pattern) for pattern in patterns)
    names = snapshot.view(_listed_names)
    if not any(f"\n{beginning}" in names for beginning in beginnings):
        return ()
    wanted = _compile_globs(patterns)
    likely = ((name, one) for name, one in snapshot.view(listed_packages).items() if name.startswith(beginnings))
    return tuple(one for name, one in likely if wanted.match(name))


def _listed_names(snapshot: Snapshot) -> str:
    """Return the names of the listed packages, each after a line end."""
    return "".join(f"\n{name}" for name in snapshot.view(listed_packages))


@cache
def _literal_beginning(pattern: str) -> str:
    """Return the part of a shell pattern before its first special character."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]


@cache
def _compile_globs(patterns: tuple[str, ...]) -> Pattern:
    return Pattern("|".join(map(translate, patterns)))


def is_installed(snapshot: Snapshot, name: str) -> bool | None:
    """Return whether the package is installed; None if unknown."""
    if (found := snapshot.view(listed_packages).get(name)) is not None:
        return found.is_installed
    if isinstance(snapshot.facts.packages, Known):
        return False
    asked = snapshot.items_of("packages", "package-owner", "package-output", "package-policy")
    return False if any(_shows_absence(item, name) for item in asked) else None


def _shows_absence(item: EvidenceItem, name: str) -> bool:
    """Return whether the item reports the package as missing, or would have listed it."""
    if any(name in match.groups() for match in _PACKAGE_NOT_FOUND.finditer(item.text)):
        return True
    filtered = item.kind == "packages" and item.source.pattern and not item.source.is_part
    return bool(filtered) and item.source.lets_through(name)


def _find_packages(snapshot: Snapshot) -> Iterator[Package]:
    known = snapshot.facts.packages
    if isinstance(known, Known):
        for package, state in known.value.items():
            letter = "c" if state.config_files_only else "i"
            place = cite_fact("/var/lib/dpkg/status", f"{package} {state.version}", known.probe)
            yield Package(str(package), state.version, letter, "h" if state.held else "i", place)
    yield from _unfinished_packages(snapshot)
    for item in snapshot.items_of("packages", "package-output", "text"):
        if item.where == "host":
            yield from _parse_rows(item)


_UNFINISHED_STATUS_LINE: Final = Pattern(
    r"(?m)^Status: (?P<want>\w)\w* \w+ (?P<state>unpacked|half-configured|half-installed)$"
)
_DPKG_STATE_LETTERS: Final = {"unpacked": "U", "half-configured": "F", "half-installed": "H"}
_NAME_OR_VERSION_FIELD: Final = Pattern(r"(?m)^(?P<name>Package|Version): (?P<value>\S+)$")


def _unfinished_packages(snapshot: Snapshot) -> Iterator[Package]:
    """Yield the packages whose installation is unfinished according to dpkg's status file."""
    status = snapshot.file("/var/lib/dpkg/status")
    # The file is long, and each of its paragraphs has a status.
    if status is None or not any(f" {state}\n" in f"{status.text}\n" for state in _DPKG_STATE_LETTERS):
        return
    for match in _UNFINISHED_STATUS_LINE.finditer(status.text):
        start = status.text.rfind("\n\n", 0, match.start())
        end = status.text.find("\n\n", match.end())
        stanza = status.text[max(start, 0) : end if end > 0 else None]
        fields = {match["name"]: match["value"] for match in _NAME_OR_VERSION_FIELD.finditer(stanza)}
        name, version = fields.get("Package", ""), fields.get("Version", "")
        place = cite_fact(status.written, f"{name}: {match[0]}", status.key)
        yield Package(name, version, _DPKG_STATE_LETTERS[match["state"]], match["want"], place)


_DRIVER_PACKAGE_MENTION: Final = Pattern(
    r"\b(?:nvidia-(?:driver|dkms|utils|kernel|headless|open|smi|current)|libnvidia-(?:compute|ml1|ml-|cfg1)|libcuda1"
    r"|(?:a?kmod|dkms)-nvidia|xorg-x11-drv-nvidia|cuda-drivers|linux-modules-nvidia)"
)


def is_present_driver_row(line: str) -> bool:
    """Return whether a line of a package list shows a driver package that is installed or half installed."""
    return bool(_DRIVER_PACKAGE_MENTION.search(line)) and not line.startswith(("un ", "rc ", "pn "))


def _parse_rows(item: EvidenceItem) -> Iterator[Package]:
    words = " ".join(item.source.words)
    listing = item.kind == "packages"
    by_rpm = listing and ("rpm" in words or "dnf" in words or "yum" in words or "zypper" in words)
    by_query = listing and any(word in item.written for word in ("dpkg-query", "pacman", " -W", "awk"))
    for number, line in enumerate(item.lines, 1):
        if match := _DPKG_ROW.match(line):
            yield Package(match["name"], match["version"], match["state"], match["want"], cite(item, number))
        elif match := _APT_LIST_ROW.match(line):
            yield Package(match["name"], match["version"], "i", "i", cite(item, number))
        elif match := _DNF_LIST_ROW.match(line):
            yield Package(match["name"], match["version"], "i", "i", cite(item, number), match["origin"])
        elif match := (
            _RPM_ROW.match(line.strip()) if by_rpm else _NAME_AND_VERSION_ROW.match(line) if by_query else None
        ):
            yield Package(match["name"], match["version"], "i", "i", cite(item, number))


# Only the end of a long log is read, since the change that broke a driver is rarely older.
_MAX_LOG_LENGTH: Final = 1 << 21
_APT_START_DATE: Final = Pattern(r"^Start-Date:\s*(?P<at>\S+\s+\S+)")
_LOGGED_COMMAND: Final = Pattern(r"^(?:Commandline|Command [Ll]ine)\s*:\s*(?P<command>.*)$")
_APT_CHANGES_LINE: Final = Pattern(r"^(?:Upgrade|Install|Reinstall|Downgrade):\s")
_APT_CHANGED_PACKAGE: Final = Pattern(
    r"(?<![\w.+-])(?P<name>[a-z0-9][\w.+-]+)(?::\w+)? \((?P<one>[^,)\s]+)(?:, (?P<two>[^)]+))?\)"
)
_DPKG_LOG_LINE: Final = Pattern(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:upgrade|install) (?P<name>[a-z0-9][\w.+-]+)(?::\w+)? "
    r"\S+ (?P<new>\S+)$"
)
_UNPACKING_LINE: Final = Pattern(r"^Unpacking (?P<name>[a-z0-9][\w.+-]+)(?::\w+)? \((?P<new>[^)\s]+)\)")
_UNATTENDED_UPGRADE_LINE: Final = Pattern(r"Packages that (?:will be|were) upgraded:\s*(?P<names>\S.*)$")
_PACMAN_LOG_LINE: Final = Pattern(r"\[ALPM\] upgraded (?P<name>\S+) \(\S+ -> (?P<new>[^)\s]+)\)")
# «Upgraded» and, in yum's history, «Updated» name the replaced package.
_RPM_LOG_LINE: Final = Pattern(
    r"(?:SUBDEBUG |\s|^)(?:Upgrade:?|Updated:|Update|Install(?:ed)?:?)\s+"
    r"(?:\d+:)?(?P<name>[a-zA-Z][\w.+-]*?)-(?:\d+:)?(?P<new>\d[\w.+~^]*-[\w.+~^]+?)"
    r"(?:\.(?:x86_64|noarch|aarch64|i686))?(?:\s|$)"
)
_ZYPP_LOG_LINE: Final = Pattern(r"^(?P<at>\d{4}-\d\d-\d\d [\d:]{8})\|install\|(?P<name>[^|]+)\|(?P<new>[^|]+)\|")
_AUTOMATIC_UPGRADE: Final = Pattern(
    r"unattended-upgrade|Packages that will be upgraded:|\bdnf-automatic|\byum-cron"
    r"|packagekit role='update-packages'|transactional-update|apt-daily"
)
_RPM_DRIVER_PACKAGE: Final = Pattern(
    r"^(?:(?:a?kmod|dkms)-nvidia|nvidia-(?:driver|kmod|open|persistenced|modprobe|libXNVCtrl|utils|compute|gl|lts|dkms)"
    r"|xorg-x11-drv-nvidia|x11-video-nvidia|libnvidia-(?:ml|cfg|fbc)|nvidia$|lib32-nvidia-utils)"
)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A new version of a driver package.

    Attributes:
        after: the new version; empty if unknown.
        is_automatic: whether the system did it without a user.
    """

    name: str
    after: str
    is_automatic: bool
    citation: Citation

    @property
    def driver(self) -> str:
        """The driver's version in ``after``, without epoch and revision."""
        return self.after.split(":")[-1].split("-")[0].split("~")[0]


def logged_driver_upgrades(snapshot: Snapshot) -> tuple[Upgrade, ...]:
    """Return the changes of driver packages in the order of the evidence, oldest first in each log."""
    # A stable sort: rotated logs, which are older, come first; otherwise the order of the evidence remains.
    logs = sorted(
        snapshot.items_of("package-history", "package-output", "unit-log", "journal", "text"), key=_log_rotation_number
    )
    return tuple(upgrade for item in logs if "nvidia" in item.text for upgrade in _parse_log(item))


_ROTATED_LOG_NUMBER: Final = Pattern(r"\.log\.(?P<number>\d{1,3})(?:\.\w{2,3})?$")


def _log_rotation_number(item: EvidenceItem) -> int:
    match = _ROTATED_LOG_NUMBER.search(item.subject)
    return -int(match["number"]) if match else 0


def is_driver_package(name: str) -> bool:
    """Return whether a package of this name, deb or rpm, is part of a driver."""
    return conflicts.is_deb_driver_package(PackageId.of(name).name) or bool(_RPM_DRIVER_PACKAGE.match(name))


def _parse_log(item: EvidenceItem) -> Iterator[Upgrade]:
    automatic_log = "unattended-upgrades" in item.written or "apt-daily" in item.written
    command, first = "", item.text.count("\n", 0, max(0, len(item.text) - _MAX_LOG_LENGTH))
    for number, line in enumerate(item.lines[first:], first + 1):
        if _APT_START_DATE.match(line):
            command = ""
        elif match := _LOGGED_COMMAND.match(line):
            command = match["command"].strip()
        elif "nvidia" in line or "libcuda" in line:
            automatic = automatic_log or bool(_AUTOMATIC_UPGRADE.search(command) or _AUTOMATIC_UPGRADE.search(line))
            for name, after in _parse_changes(line, item):
                if is_driver_package(name):
                    yield Upgrade(name, after, automatic, cite(item, number))


def _parse_changes(line: str, item: EvidenceItem) -> Iterator[tuple[str, str]]:
    if _APT_CHANGES_LINE.match(line):
        for entry in _APT_CHANGED_PACKAGE.finditer(line):
            two = (entry["two"] or "").removesuffix("automatic").strip(", ")
            yield entry["name"], two or entry["one"]
    elif match := _UNATTENDED_UPGRADE_LINE.search(line):
        for name in match["names"].split():
            yield name.partition(":")[0], ""
    elif pair := _DPKG_LOG_LINE.match(line) or _UNPACKING_LINE.match(line) or _PACMAN_LOG_LINE.search(line):
        yield pair["name"], pair["new"]
    elif item.kind == "package-history" and (one := _ZYPP_LOG_LINE.match(line) or _RPM_LOG_LINE.search(line)):
        yield one["name"], one["new"]
