"""View kernel modules: loaded, on disk and in the initramfs, with kernel, version and licence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, lines_with
from gpunode.diagnoses.views import packages, system
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_LSMOD_ROW: Final = Pattern(r"^[ \t]*(?P<name>[a-z]\w*)\s+\d+\s+\d+\b(?:[ \t]+(?P<users>[a-z][\w,]*))?")
_MODINFO_FIELD: Final = Pattern(r"(?m)^[ \t]*([\w-]+):\s+(.*)$")
_DKMS_STATUS_ROW: Final = Pattern(
    r"(?m)^[ \t]*(?P<module>[\w.+-]+)(?:/|, )\s*(?P<version>[^,:\s]+)"
    r"(?:,\s*(?P<kernel>[^,:\s]+),\s*\w+)?:\s*(?P<state>added|built|installed|broken)"
)
# Only the main module: Debian calls it nvidia-current or nvidia-tesla-470; nvidia-uvm, -drm and others depend on it.
_MAIN_MODULE_NAME: Final = r"nvidia(?:[-_](?:current|tesla(?:[-_]\d+)?|legacy[-_]\w+|\d+|srv))?(?:[-_]open)?"
_MODULE_FILE_PATH: Final = Pattern(
    rf"/lib/modules/(?P<kernel>\d[^/\s'\"]*)/(?P<place>[^\s'\":]{{0,120}}?){_MAIN_MODULE_NAME}\.ko(?:\.(?:xz|gz|zst))?(?![\w.-])"
)
_MODULE_FILE_NAME: Final = Pattern(rf"(?:^|\s|/)({_MAIN_MODULE_NAME}\.ko(?:\.(?:xz|gz|zst))?)(?=\s|$)")
_DRIVER_MODULE_NAME: Final = Pattern(_MAIN_MODULE_NAME)
_KERNEL_MODULES_FOLDER: Final = Pattern(r"/lib/modules/(?P<kernel>[^/\s]+)(?P<place>/[^\s]*)?$")
_MODULE_NOT_FOUND_MESSAGE: Final = Pattern(
    r"(?:FATAL: |[Mm]odule )'?nvidia(?:[-_](?:current|uvm|drm|modeset)\w*)?'? not found"
    r"(?: in directory \S*?/lib/modules/(?P<kernel>[^\s/]+))?|could not find module by name ?=? ?'?nvidia|"
    r"[Mm]odule '?nvidia'?: No such file or directory|Failed to find module 'nvidia(?:[-_]\w+)?'|"
    r"module not found: '?nvidia\b|没有找到模块 '?nvidia\b"
)
_MAIN_NOT_FOUND: Final = Pattern(
    rf"[Mm]odule '?{_MAIN_MODULE_NAME}'? not found|没有找到模块 '?{_MAIN_MODULE_NAME}(?![\w-])"
)
_PREBUILT_MODULE_PACKAGE: Final = Pattern(
    r"(?:linux-(?:modules|objects)-nvidia-(?P<branch>\d{1,18})(?:-server)?(?:-open)?-(?P<deb>\d\S+)|"
    r"kmod-nvidia(?:-open)?(?:-latest)?-(?P<rpm>\d\S*?(?:\.el\d+\w*|\.fc\d+)(?:\.x86_64|\.aarch64)?))"
)


@dataclass(frozen=True, slots=True)
class DkmsRow:
    """A line of ``dkms status``.

    Attributes:
        kernel: empty if the module is only added.
    """

    module: str
    version: str
    kernel: str
    state: str
    citation: Citation

    @property
    def is_driver(self) -> bool:
        """True if it is NVIDIA's driver, under any name, and not nvidia-fs or another accompanying module."""
        return _DRIVER_MODULE_NAME.fullmatch(self.module) is not None


RUNNING_KERNEL_PLACEHOLDER: Final = "(running)"
"""The name of the running kernel if nothing shows its release."""


@dataclass(frozen=True, slots=True)
class InstalledModule:
    """NVIDIA's main module for one kernel, known from a file, a DKMS state or an installed package.

    Attributes:
        kernel: ``RUNNING_KERNEL_PLACEHOLDER`` if the folder was given as a shell expression of unknown value.
        place: the folder below /lib/modules/<kernel>; empty if known only from a package or DKMS.
    """

    kernel: str
    place: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class Modinfo:
    """The output of modinfo for a module; fields that it did not print are empty."""

    module: str
    filename: str
    version: str
    license: str
    vermagic: str
    citation: Citation

    @property
    def kernel(self) -> str:
        """The kernel that it was built for; empty if not printed."""
        return self.vermagic.split()[0] if self.vermagic else ""

    @property
    def is_driver(self) -> bool:
        """True if it is the driver's main module."""
        return _DRIVER_MODULE_NAME.fullmatch(self.module) is not None

    @property
    def is_open(self) -> bool | None:
        """True if it belongs to NVIDIA's open modules; None if unknown."""
        return None if not self.license else "GPL" in self.license


def is_module_loaded(snapshot: Snapshot, name: str) -> bool | None:
    """Return whether the kernel module ``name`` is loaded; None if unknown."""
    driver = snapshot.facts.loaded_driver
    if name == "nvidia" and isinstance(driver, Known) and driver.value is not None:
        return True
    present, tables = snapshot.view(_loaded_modules_and_tables)
    if name in present:
        return True
    if isinstance(snapshot.facts.modules, Known):
        return name in snapshot.facts.modules.value
    # A complete table, or one filtered by a pattern that matches the name, shows by omission that it is not loaded.
    return False if any(_would_list_module(item, name) for item in tables) else None


def listed_modules(snapshot: Snapshot) -> frozenset[str]:
    """Return the modules in tables of loaded modules, even incomplete ones."""
    return snapshot.view(_loaded_modules_and_tables)[0]


def _would_list_module(item: EvidenceItem, name: str) -> bool:
    if not item.source.pattern:
        # People paste only relevant lines: the table is complete only with its header or from a probe.
        return not item.source.is_part and item.text.lstrip().startswith("Module")
    return not item.source.is_part and item.source.lets_through(name)


def _loaded_modules_and_tables(snapshot: Snapshot) -> tuple[frozenset[str], tuple[EvidenceItem, ...]]:
    tables = tuple(item for item in snapshot.items_of("lsmod") if item.where == "host")
    rows = [match for item in tables for line in item.lines if (match := _LSMOD_ROW.match(line))]
    # A filtered table also names loaded modules in the column "Used by".
    names = {match["name"] for match in rows}.union(*((match["users"] or "").split(",") for match in rows))
    known = snapshot.facts.modules.value if isinstance(snapshot.facts.modules, Known) else frozenset[str]()
    return frozenset(names - {""}) | known, tables


def lsmod_line(snapshot: Snapshot, name: str) -> tuple[Citation, ...]:
    """Return the line of ``name`` in the module table, else the driver's file, else the table that lacks it."""
    tables = snapshot.items_of("lsmod")
    for item in tables:
        for number, line in enumerate(item.lines, 1):
            if (match := _LSMOD_ROW.match(line)) and match["name"] == name:
                return (cite(item, number),)
    driver = snapshot.facts.loaded_driver
    if name == "nvidia" and isinstance(driver, Known) and driver.value is not None:
        return (loaded_version_line(snapshot),)
    return tuple(cite_fact(item.written, f"{name} is not among them", item.key) for item in tables)


def loaded_version_line(snapshot: Snapshot) -> Citation:
    """Return the line with the loaded driver's version, which must exist."""
    # By the key that produced the fact, since anyone may have written a capture and named any source in it.
    item = next(item for item in snapshot.items if item.key == snapshot.facts.loaded_driver.probe)
    return cite(item, next((number for number, line in enumerate(item.lines, 1) if "NVRM version" in line), 1))


def dkms_rows(snapshot: Snapshot) -> tuple[DkmsRow, ...]:
    """Return the lines of ``dkms status``."""
    return tuple(
        DkmsRow(match["module"], match["version"], match["kernel"] or "", match["state"], cite(item, number))
        for item in snapshot.items_of("dkms-status", "dkms-output", "text")
        for number, line in enumerate(item.lines, 1)
        if (match := _DKMS_STATUS_ROW.match(line))
    )


def modinfo_answers(snapshot: Snapshot) -> tuple[Modinfo, ...]:
    """Return modinfo's output, module by module."""
    return tuple(
        _parse_modinfo(item) for item in snapshot.items_of("modinfo") if item.outcome == "ok" and item.text.strip()
    )


def _parse_modinfo(item: EvidenceItem) -> Modinfo:
    words = item.source.words
    asked = words[words.index("-F") + 1] if "-F" in words[:-1] else "filename" if "-n" in words else ""
    fields = {name.lower(): value.strip() for name, value in reversed(_MODINFO_FIELD.findall(item.text))}
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


def driver_modinfo(snapshot: Snapshot) -> tuple[Modinfo, ...]:
    """Return modinfo's output about the driver's main module, under any name."""
    return tuple(info for info in snapshot.view(modinfo_answers) if info.is_driver)


def driver_dkms_rows(snapshot: Snapshot) -> tuple[DkmsRow, ...]:
    """Return the lines of ``dkms status`` about the driver."""
    return tuple(row for row in snapshot.view(dkms_rows) if row.is_driver)


def modules_on_disk(snapshot: Snapshot) -> tuple[InstalledModule, ...]:
    """Return each file of the module nvidia, for any kernel, once."""
    modules: dict[tuple[str, str], InstalledModule] = {}
    for module in _find_modules(snapshot):
        modules.setdefault((module.kernel, module.place), module)
    return tuple(modules.values())


def _find_modules(snapshot: Snapshot) -> Iterator[InstalledModule]:
    known = snapshot.facts.module_files
    if isinstance(known, Known):
        for one in known.value:
            place = one.path.partition(one.kernel)[2].rpartition("/")[0].strip("/")
            yield InstalledModule(one.kernel, place, cite_fact(one.path, "it is there", known.probe))
    running = running_or_searched_kernel(snapshot)
    for item in snapshot.items_of("listing", "text", "modinfo", "which", "file", "package-owner", "modprobe"):
        if item.outcome == "ok" and "nvidia" in item.text and not item.is_package_record:
            yield from _module_files_in_listing(item, running)
    for row in snapshot.view(driver_dkms_rows):
        if row.state == "installed" and row.kernel:
            yield InstalledModule(row.kernel, "", row.citation)
    yield from _packaged_modules(snapshot)


def _packaged_modules(snapshot: Snapshot) -> Iterator[InstalledModule]:
    """Yield the modules in installed packages, with the kernel in the package's name."""
    for package in packages.matching_packages(snapshot, "linux-modules-nvidia-*", "kmod-nvidia-*"):
        if package.is_installed and (match := _PREBUILT_MODULE_PACKAGE.fullmatch(package.name)):
            yield InstalledModule(match["deb"] or match["rpm"], "", package.citation)


def _module_files_in_listing(item: EvidenceItem, running: str) -> Iterator[InstalledModule]:
    folder = _KERNEL_MODULES_FOLDER.search(
        item.subject.replace("$(uname -r)", running or RUNNING_KERNEL_PLACEHOLDER).rstrip("/*")
    )
    for number, line in enumerate(item.lines, 1):
        if "nvidia" not in line or ".ko" not in line or "not found" in line:
            continue
        if match := _MODULE_FILE_PATH.search(line):
            yield InstalledModule(match["kernel"], match["place"].strip("/"), cite(item, number))
        elif folder and folder["kernel"] and item.kind == "listing" and (bare := _MODULE_FILE_NAME.search(line)):
            below = line[: bare.start(1)].rpartition(" ")[2].strip("./")
            place = "/".join(part for part in ((folder["place"] or "").strip("/"), below.strip("/")) if part)
            yield InstalledModule(folder["kernel"], place, cite(item, number))


def not_found_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines in which modprobe, modinfo or mkinitcpio found no NVIDIA module for the running kernel."""
    running = snapshot.view(system.running_kernel)
    # Probes query all modules of the driver; a missing one is no fault as long as the main module exists.
    said = (*snapshot.matching_lines(_MODULE_NOT_FOUND_MESSAGE), *snapshot.matching_lines(_MAIN_NOT_FOUND, "modinfo"))
    return tuple(line for line in said if _is_for_kernel(_MODULE_NOT_FOUND_MESSAGE.search(line.line), running))


def _is_for_kernel(match: re.Match[str] | None, running: str) -> bool:
    return match is None or not match["kernel"] or not running or match["kernel"] == running


def running_or_searched_kernel(snapshot: Snapshot) -> str:
    """Return the running kernel: from uname, else from the folder that modprobe searched."""
    if running := snapshot.view(system.running_kernel):
        return running
    for line in snapshot.matching_lines(_MODULE_NOT_FOUND_MESSAGE):
        if (match := _MODULE_NOT_FOUND_MESSAGE.search(line.line)) and match["kernel"]:
            return match["kernel"]
    return ""


def is_built_for(snapshot: Snapshot, kernel: str) -> bool | None:
    """Return whether NVIDIA's module is on disk for ``kernel``; None if unknown.

    ``dkms status`` and a listing of /lib/modules name every kernel, so a missing one has no module.
    """
    modules = snapshot.view(modules_on_disk)
    if kernel and any(module.kernel == kernel for module in modules):
        return True
    if any(info.filename and (not kernel or f"/{kernel}/" in info.filename) for info in snapshot.view(driver_modinfo)):
        return True
    if snapshot.view(not_found_lines) or isinstance(snapshot.facts.module_files, Known):
        return False
    if kernel and (modules or snapshot.view(driver_dkms_rows)):
        return False
    return None


# Paths in an image have no leading slash; a path with one is on the node.
_INITRAMFS_MODULE: Final = Pattern(
    r"(?<![\w/.+-])(?!/)[\w./+-]{0,160}/nvidia(?:[-_](?:current|tesla|legacy)\S*)?\.ko(?:\.\w+)?\b"
)
_NONZERO_GREP_COUNT: Final = Pattern(r"(?m)^[ \t]*[1-9]\d{0,3}[ \t]*$")
_INITRAMFS_RELEASE: Final = Pattern(r"/(?:initrd\.img|initrd|initramfs)-(?P<release>\d[^/\s]*?)(?:\.img)?$")


def running_initramfs_listings(snapshot: Snapshot) -> tuple[EvidenceItem, ...]:
    """Return the listings of the running kernel's initramfs, without those of other kernels."""
    running = system.running_kernel(snapshot)
    return tuple(
        item for item in snapshot.items_of("initramfs") if not running or _release_of_initramfs(item) in {"", running}
    )


def _release_of_initramfs(item: EvidenceItem) -> str:
    match = _INITRAMFS_RELEASE.search(item.subject)
    return match["release"] if match else ""


def nvidia_in_initramfs_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that show NVIDIA's main module in the initramfs."""
    pattern = {False: _INITRAMFS_MODULE, True: _NONZERO_GREP_COUNT}
    return tuple(
        line
        for item in running_initramfs_listings(snapshot)
        for line in lines_with(item, pattern[item.source.is_count])
    )
