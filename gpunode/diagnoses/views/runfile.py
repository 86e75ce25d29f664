"""View traces of the .run installer: uninstaller, messages, and module in its own folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.diagnoses.views import driver
from gpunode.diagnoses.views.driver import SeenVersion
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


def uninstaller_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence of its uninstaller, which every installation has."""
    known = snapshot.facts.run_installer
    if isinstance(known, Known):
        return (cite_fact("NVIDIA's .run installer", "it is in /usr/bin", known.probe),) if known.value else ()
    seen = snapshot.items_of("listing", "which", "file", "installer-log")
    found = (item for item in seen if item.outcome == "ok" and item.where == "host" and "nvidia-uninstall" in item.text)
    return tuple(
        cite(item, number)
        for item in found
        for number, line in enumerate(item.lines, 1)
        if _UNINSTALLER.search(line) and "No such file" not in line and "cannot access" not in line
    )


def runfile_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the driver that it put here, by a module where only it puts one, or by its own words."""
    uninstaller = snapshot.facts.run_installer
    # Without it, somebody has only copied a module to that place.
    is_whole = not isinstance(uninstaller, Known) or uninstaller.value
    for item in snapshot.items_of("modinfo") if is_whole else ():
        if _PLACE.search(item.text) and (disk := driver.on_disk_version(snapshot)):
            return disk
    return next(named_versions(snapshot, "installer-log", "listing", "text"), None)


def named_versions(snapshot: Snapshot, *kinds: Kind) -> Iterator[SeenVersion]:
    """Yield the drivers that its file's name, or what it says of itself, tells of in items of these kinds."""
    for item in snapshot.items_of(*kinds):
        for match in _SAYS.finditer(item.text):
            yield SeenVersion(match["version"] or match["log"], cite(item, item.number_at(match.start())))
