"""View the package history of the driver in the logs of apt, dpkg, dnf, zypper and pacman."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.catalog import conflicts
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern
from gpunode.package_id import PackageId

# Of a long log the newest part: what broke a driver is seldom older.
_NEWEST: Final = 1 << 21
_STAMP: Final = Pattern(r"^Start-Date:\s*(?P<at>\S+\s+\S+)")
_COMMAND: Final = Pattern(r"^(?:Commandline|Command [Ll]ine)\s*:\s*(?P<command>.*)$")
_CHANGES: Final = Pattern(r"^(?:Upgrade|Install|Reinstall|Downgrade):\s")
_ENTRY: Final = Pattern(r"(?<![\w.+-])(?P<name>[a-z0-9][\w.+-]+)(?::\w+)? \((?P<one>[^,)\s]+)(?:, (?P<two>[^)]+))?\)")
_DPKG: Final = Pattern(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:upgrade|install) (?P<name>[a-z0-9][\w.+-]+)(?::\w+)? "
    r"(?P<old>\S+) (?P<new>\S+)$"
)
_TERM: Final = Pattern(
    r"^Unpacking (?P<name>[a-z0-9][\w.+-]+)(?::\w+)? \((?P<new>[^)\s]+)\)(?: over \((?P<old>[^)\s]+)\))?"
)
_UNATTENDED: Final = Pattern(r"Packages that (?:will be|were) upgraded:\s*(?P<names>\S.*)$")
_PACMAN: Final = Pattern(r"\[ALPM\] upgraded (?P<name>\S+) \((?P<old>\S+) -> (?P<new>[^)\s]+)\)")
# «Upgraded» and, in yum's history, «Updated» name what was replaced.
_RPM_LOG: Final = Pattern(
    r"(?:SUBDEBUG |\s|^)(?:Upgrade:?|Updated:|Update|Install(?:ed)?:?)\s+"
    r"(?:\d+:)?(?P<name>[a-zA-Z][\w.+-]*?)-(?:\d+:)?(?P<new>\d[\w.+~^]*-[\w.+~^]+?)"
    r"(?:\.(?:x86_64|noarch|aarch64|i686))?(?:\s|$)"
)
_ZYPP: Final = Pattern(r"^(?P<at>\d{4}-\d\d-\d\d [\d:]{8})\|install\|(?P<name>[^|]+)\|(?P<new>[^|]+)\|")
_AUTOMATIC: Final = Pattern(
    r"unattended-upgrade|Packages that will be upgraded:|\bdnf-automatic|\byum-cron"
    r"|packagekit role='update-packages'|transactional-update|apt-daily"
)
_RPM_DRIVER: Final = Pattern(
    r"^(?:(?:a?kmod|dkms)-nvidia|nvidia-(?:driver|kmod|open|persistenced|modprobe|libXNVCtrl|utils|compute|gl|lts|dkms)"
    r"|xorg-x11-drv-nvidia|x11-video-nvidia|libnvidia-(?:ml|cfg|fbc)|nvidia$|lib32-nvidia-utils)"
)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A new version of a driver package.

    Attributes:
        before: the replaced version; empty if none or unknown.
        after: the new version; empty if unknown.
        is_automatic: the system did it by itself.
        by: the command in the log.
    """

    name: str
    before: str
    after: str
    is_automatic: bool
    by: str
    citation: Citation

    @property
    def driver(self) -> str:
        """The driver's version in ``after``, without epoch and revision."""
        return self.after.split(":")[-1].split("-")[0].split("~")[0]


def package_upgrades(snapshot: Snapshot) -> tuple[Upgrade, ...]:
    """Return the changes of driver packages in the order of the evidence, the oldest first in each log."""
    # Stable: apart from logs that were put away, which are older than their successors, the order is the evidence's.
    logs = sorted(snapshot.items_of("package-history", "package-output", "unit-log", "journal", "text"), key=_log_age)
    return tuple(one for item in logs if "nvidia" in item.text for one in _parse_log(item))


_PUT_AWAY: Final = Pattern(r"\.log\.(?P<number>\d{1,3})(?:\.\w{2,3})?$")


def _log_age(item: Item) -> int:
    match = _PUT_AWAY.search(item.subject)
    return -int(match["number"]) if match else 0


def is_driver_package(name: str) -> bool:
    """Return whether a package of this name, deb or rpm, is part of a driver."""
    return conflicts.is_drivers(PackageId.of(name).name) or bool(_RPM_DRIVER.match(name))


def _parse_log(item: Item) -> Iterator[Upgrade]:
    automatic_log = "unattended-upgrades" in item.written or "apt-daily" in item.written
    command, first = "", item.text.count("\n", 0, max(0, len(item.text) - _NEWEST))
    for number, line in enumerate(item.lines[first:], first + 1):
        if _STAMP.match(line):
            command = ""
        elif match := _COMMAND.match(line):
            command = match["command"].strip()
        elif "nvidia" in line or "libcuda" in line:
            automatic = automatic_log or bool(_AUTOMATIC.search(command) or _AUTOMATIC.search(line))
            for name, before, after in _parse_changes(line, item):
                if is_driver_package(name):
                    yield Upgrade(name, before, after, automatic, command, cite(item, number))


def _parse_changes(line: str, item: Item) -> Iterator[tuple[str, str, str]]:
    if _CHANGES.match(line):
        for entry in _ENTRY.finditer(line):
            two = (entry["two"] or "").removesuffix("automatic").strip(", ")
            yield entry["name"], entry["one"] if two else "", two or entry["one"]
    elif match := _UNATTENDED.search(line):
        for name in match["names"].split():
            yield name.partition(":")[0], "", ""
    elif pair := _DPKG.match(line) or _TERM.match(line) or _PACMAN.search(line):
        old = pair["old"] or ""
        yield pair["name"], "" if old == "<none>" else old, pair["new"]
    elif item.kind == "package-history" and (one := _ZYPP.match(line) or _RPM_LOG.search(line)):
        yield one["name"], "", one["new"]
