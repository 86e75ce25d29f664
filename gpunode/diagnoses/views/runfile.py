"""What NVIDIA's .run installer leaves on a node: its uninstaller, its words, and a module where only it puts one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
from gpunode.diagnoses.views import driver
from gpunode.diagnoses.views.driver import Seen
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

_UNINSTALLER: Final = Pattern(r"/usr/(?:local/)?bin/nvidia-uninstall")
# Where NVIDIA's .run installer puts a module when it does not use DKMS; no package of today does.
_PLACE: Final = Pattern(r"/kernel/drivers/video/nvidia\.ko")
_SAYS: Final = Pattern(
    rf"NVIDIA-Linux-\w+-(?P<version>{driver.VERSION})"
    rf"|(?:installing (?:NVIDIA )?driver version|installer version:|\(version:) (?P<log>{driver.VERSION})",
    re.IGNORECASE,
)


def traces(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where its uninstaller is seen, which every installation of it has."""
    known = snapshot.facts.run_installer
    if isinstance(known, Known):
        return (stated("/usr/bin/nvidia-uninstall", "it is there", known.probe),) if known.value else ()
    seen = snapshot.of("listing", "which", "file", "installer-log")
    found = (item for item in seen if item.outcome == "ok" and item.where == "host" and "nvidia-uninstall" in item.text)
    return tuple(
        cite(item, number)
        for item in found
        for number, line in enumerate(item.lines, 1)
        if _UNINSTALLER.search(line) and "No such file" not in line and "cannot access" not in line
    )


def installed(snapshot: Snapshot) -> Seen | None:
    """The driver that it put here, by a module where only it puts one, or by its own words."""
    uninstaller = snapshot.facts.run_installer
    # Without it, somebody has only copied a module to that place.
    is_whole = not isinstance(uninstaller, Known) or uninstaller.value
    for item in snapshot.of("modinfo") if is_whole else ():
        if _PLACE.search(item.text) and (disk := driver.on_disk(snapshot)):
            return disk
    return next(named(snapshot, "installer-log", "listing", "text"), None)


def named(snapshot: Snapshot, *kinds: Kind) -> Iterator[Seen]:
    """The drivers that its file's name, or what it says of itself, tells of in items of these kinds."""
    for item in snapshot.of(*kinds):
        for match in _SAYS.finditer(item.text):
            yield Seen(match["version"] or match["log"], cite(item, item.number_at(match.start())))
