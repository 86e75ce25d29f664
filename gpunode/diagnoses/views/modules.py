"""Kernel modules: which are loaded, which stand on disk, for which kernel, in which version and under what licence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
from gpunode.diagnoses.views import packages, system
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_ROW: Final = Pattern(r"^[ \t]*(?P<name>[a-z]\w*)\s+\d+\s+\d+\b")
_FIELD: Final = Pattern(r"^[ \t]*([\w-]+):\s+(.*)$", re.MULTILINE)
_DKMS: Final = Pattern(
    r"^[ \t]*(?P<module>[\w.+-]+)(?:/|, )\s*(?P<version>[^,:\s]+)"
    r"(?:,\s*(?P<kernel>[^,:\s]+),\s*\w+)?:\s*(?P<state>added|built|installed|broken)",
    re.MULTILINE,
)
# The main module alone: Debian calls it nvidia-current or nvidia-tesla-470; nvidia-uvm, -drm and the rest follow it.
_MAIN: Final = r"nvidia(?:[-_](?:current|tesla(?:[-_]\d+)?|legacy[-_]\w+|\d+|srv))?(?:[-_]open)?"
_KO: Final = Pattern(
    rf"/lib/modules/(?P<kernel>\d[^/\s'\"]*)/(?P<place>[^\s'\":]{{0,120}}?){_MAIN}\.ko(?:\.(?:xz|gz|zst))?(?![\w.-])"
)
_BARE_KO: Final = Pattern(rf"(?:^|\s|/)({_MAIN}\.ko(?:\.(?:xz|gz|zst))?)(?=\s|$)")
_DRIVER: Final = Pattern(_MAIN)
_FOLDER: Final = Pattern(r"/lib/modules/(?P<kernel>[^/\s]+)(?P<place>/[^\s]*)?$")
_NOT_FOUND: Final = Pattern(
    r"(?:FATAL: |[Mm]odule )'?nvidia(?:[-_](?:current|uvm|drm|modeset)\w*)?'? not found"
    r"(?: in directory \S*?/lib/modules/(?P<kernel>[^\s/]+))?|could not find module by name ?=? ?'?nvidia|"
    r"[Mm]odule '?nvidia'?: No such file or directory|Failed to find module 'nvidia(?:[-_]\w+)?'|"
    r"module not found: '?nvidia\b"
)
_MAIN_NOT_FOUND: Final = Pattern(rf"[Mm]odule '?{_MAIN}'? not found")
_PREBUILT: Final = Pattern(
    r"(?:linux-(?:modules|objects)-nvidia-(?P<branch>\d{1,18})(?:-server)?(?:-open)?-(?P<deb>\d\S+)|"
    r"kmod-nvidia(?:-open)?(?:-latest)?-(?P<rpm>\d\S*?(?:\.el\d+\w*|\.fc\d+)(?:\.x86_64|\.aarch64)?))"
)


@dataclass(frozen=True, slots=True)
class DkmsRow:
    """A line of ``dkms status``.

    Attributes:
        kernel: empty where the module is only added.
    """

    module: str
    version: str
    kernel: str
    state: str
    citation: Citation

    @property
    def is_driver(self) -> bool:
        """Whether it is NVIDIA's driver, under whatever name, and not nvidia-fs or another module beside it."""
        return _DRIVER.fullmatch(self.module) is not None


RUNNING: Final = "(running)"
"""Stands for the running kernel where nothing names that."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """NVIDIA's main module for one kernel, as a file, a DKMS state or an installed package tells.

    Attributes:
        kernel: ``RUNNING`` where a folder was named by the shell, and nothing tells what that made of it.
        place: the folder below /lib/modules/<kernel>; empty where only a package or DKMS tells.
        version: empty where nothing beside it tells.
    """

    kernel: str
    place: str
    version: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class Modinfo:
    """What modinfo said of a module; a field that it did not print is empty."""

    module: str
    filename: str
    version: str
    license: str
    vermagic: str
    citation: Citation

    @property
    def kernel(self) -> str:
        """The kernel that it was built for; empty where that was not printed."""
        return self.vermagic.split()[0] if self.vermagic else ""

    @property
    def is_driver(self) -> bool:
        """Whether it is the driver's main module."""
        return _DRIVER.fullmatch(self.module) is not None

    @property
    def is_open(self) -> bool | None:
        """Whether it is of NVIDIA's open modules; None where the licence was not printed."""
        return None if not self.license else "GPL" in self.license


def loaded(snapshot: Snapshot, name: str) -> bool | None:
    """Whether the kernel module ``name`` is loaded; None where nothing tells."""
    driver = snapshot.facts.loaded_driver
    if name == "nvidia" and isinstance(driver, Known) and driver.value is not None:
        return True
    present, tables = snapshot.view(_seen)
    if name in present:
        return True
    if isinstance(snapshot.facts.modules, Known):
        return name in snapshot.facts.modules.value
    # A table that was not cut, or whose pattern would have let the name through, says by silence that it is not there.
    return False if any(_would_show(item, name) for item in tables) else None


def listed(snapshot: Snapshot) -> frozenset[str]:
    """The modules that a table of the loaded ones names, be it cut."""
    return snapshot.view(_seen)[0]


def _would_show(item: Item, name: str) -> bool:
    if not item.source.only:
        # People paste the lines that they find telling: only the table's head or a probe shows that it is whole.
        return not item.source.is_part and item.text.lstrip().startswith("Module")
    return not item.source.is_part and item.source.lets_through(name)


def _seen(snapshot: Snapshot) -> tuple[frozenset[str], tuple[Item, ...]]:
    tables = tuple(item for item in snapshot.of("lsmod") if item.where == "host")
    names = {match["name"] for item in tables for line in item.lines if (match := _ROW.match(line))}
    known = snapshot.facts.modules.value if isinstance(snapshot.facts.modules, Known) else frozenset[str]()
    return frozenset(names) | known, tables


def lsmod_line(snapshot: Snapshot, name: str) -> tuple[Citation, ...]:
    """The line of ``name`` in the table of loaded modules; else the driver's own file, or the table that is silent."""
    tables = snapshot.of("lsmod")
    for item in tables:
        for number, line in enumerate(item.lines, 1):
            if (match := _ROW.match(line)) and match["name"] == name:
                return (cite(item, number),)
    driver = snapshot.facts.loaded_driver
    if name == "nvidia" and isinstance(driver, Known) and driver.value is not None:
        return (told_version(snapshot),)
    return tuple(stated(item.written, f"{name} is not among them", item.key) for item in tables)


def told_version(snapshot: Snapshot) -> Citation:
    """The line in which the loaded driver tells its version, which it does."""
    # By its key, which made it a fact: a capture may have been written by anybody, and name any source.
    item = next(item for item in snapshot.items if item.key == snapshot.facts.loaded_driver.probe)
    return cite(item, next((number for number, line in enumerate(item.lines, 1) if "NVRM version" in line), 1))


def dkms(snapshot: Snapshot) -> tuple[DkmsRow, ...]:
    """The lines of ``dkms status``."""
    return tuple(_dkms_rows(snapshot))


def _dkms_rows(snapshot: Snapshot) -> Iterator[DkmsRow]:
    for item in snapshot.of("dkms-status", "dkms-output", "text"):
        for number, line in enumerate(item.lines, 1):
            if match := _DKMS.match(line):
                kernel = match["kernel"] or ""
                yield DkmsRow(match["module"], match["version"], kernel, match["state"], cite(item, number))


def modinfo(snapshot: Snapshot) -> tuple[Modinfo, ...]:
    """What modinfo said, module by module."""
    return tuple(_modinfo(item) for item in snapshot.of("modinfo") if item.outcome == "ok" and item.text.strip())


def _modinfo(item: Item) -> Modinfo:
    words = item.source.words
    asked = words[words.index("-F") + 1] if "-F" in words[:-1] else "filename" if "-n" in words else ""
    fields = {name.lower(): value.strip() for name, value in reversed(_FIELD.findall(item.text))}
    if asked and asked not in fields:
        fields[asked] = next((line.strip() for line in item.lines if line.strip()), "")
    return Modinfo(
        item.subject.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_"),
        fields.get("filename", ""),
        fields.get("version", ""),
        fields.get("license", ""),
        fields.get("vermagic", ""),
        cite(item, 1),
    )


def driver_info(snapshot: Snapshot) -> tuple[Modinfo, ...]:
    """What modinfo said of the driver's main module, under whatever name."""
    return tuple(info for info in snapshot.view(modinfo) if info.is_driver)


def driver_builds(snapshot: Snapshot) -> tuple[DkmsRow, ...]:
    """The lines of ``dkms status`` that speak of the driver."""
    return tuple(row for row in snapshot.view(dkms) if row.is_driver)


def on_disk(snapshot: Snapshot) -> tuple[OnDisk, ...]:
    """Where NVIDIA's main module stands, for whatever kernel, each file once."""
    found: dict[tuple[str, str], OnDisk] = {}
    for one in _on_disk(snapshot):
        found.setdefault((one.kernel, one.place), one)
    return tuple(found.values())


def _on_disk(snapshot: Snapshot) -> Iterator[OnDisk]:
    known = snapshot.facts.module_files
    if isinstance(known, Known):
        for one in known.value:
            place = one.path.partition(one.kernel)[2].rpartition("/")[0].strip("/")
            yield OnDisk(one.kernel, place, one.version, stated(one.path, "it is there", known.probe))
    running = kernel_of_search(snapshot)
    for item in snapshot.of("listing", "text", "modinfo", "which", "file", "package-owner", "modprobe"):
        if item.outcome == "ok":
            yield from _files_in(item, running)
    for row in snapshot.view(driver_builds):
        if row.state == "installed" and row.kernel:
            yield OnDisk(row.kernel, "", row.version, row.citation)
    yield from _packaged(snapshot)


def _packaged(snapshot: Snapshot) -> Iterator[OnDisk]:
    """The kernels that an installed package names, whose module it brings."""
    for package in packages.matching(snapshot, "linux-modules-nvidia-*", "kmod-nvidia-*"):
        if package.is_installed and (match := _PREBUILT.fullmatch(package.name)):
            yield OnDisk(match["deb"] or match["rpm"], "", match["branch"] or package.upstream, package.citation)


def _files_in(item: Item, running: str) -> Iterator[OnDisk]:
    folder = _FOLDER.search(item.subject.replace("$(uname -r)", running or RUNNING).rstrip("/*"))
    for number, line in enumerate(item.lines, 1):
        if "nvidia" not in line or ".ko" not in line or "not found" in line:
            continue
        if match := _KO.search(line):
            yield OnDisk(match["kernel"], match["place"].strip("/"), "", cite(item, number))
        elif folder and folder["kernel"] and item.kind == "listing" and (bare := _BARE_KO.search(line)):
            below = line[: bare.start(1)].rpartition(" ")[2].strip("./")
            place = "/".join(part for part in ((folder["place"] or "").strip("/"), below.strip("/")) if part)
            yield OnDisk(folder["kernel"], place, "", cite(item, number))


def not_found(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which modprobe, modinfo or mkinitcpio found no module of NVIDIA's for the running kernel."""
    running = snapshot.view(system.running_kernel)
    # A node is asked for every module of the driver; that some are not there is no fault while the first one is.
    said = (*snapshot.said(_NOT_FOUND), *snapshot.said(_MAIN_NOT_FOUND, "modinfo"))
    return tuple(line for line in said if _is_of(_NOT_FOUND.search(line.line), running))


def _is_of(match: re.Match[str] | None, running: str) -> bool:
    return match is None or not match["kernel"] or not running or match["kernel"] == running


def kernel_of_search(snapshot: Snapshot) -> str:
    """The running kernel: by uname, else by the folder in which modprobe looked."""
    if running := snapshot.view(system.running_kernel):
        return running
    for line in snapshot.said(_NOT_FOUND):
        if (match := _NOT_FOUND.search(line.line)) and match["kernel"]:
            return match["kernel"]
    return ""


def built_for(snapshot: Snapshot, kernel: str) -> bool | None:
    """Whether NVIDIA's module stands on disk for ``kernel``; None where nobody looked so that it would have been seen.

    A table of other kernels tells by its silence: ``dkms status`` and a listing of /lib/modules name every kernel.
    """
    found = snapshot.view(on_disk)
    if kernel and any(one.kernel == kernel for one in found):
        return True
    if any(info.filename and (not kernel or f"/{kernel}/" in info.filename) for info in snapshot.view(driver_info)):
        return True
    if snapshot.view(not_found) or isinstance(snapshot.facts.module_files, Known):
        return False
    if kernel and (found or snapshot.view(driver_builds)):
        return False
    return None
