"""View logs of kernel module builds by DKMS, akmods, the .run installer or a container."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, find_first, lines_with
from gpunode.diagnoses.views import driver, system
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_LOGS: Final = frozenset(
    {
        *("make-log", "dkms-output", "dkms-status", "package-output", "installer-log", "unit-log", "unit-status"),
        *("journal", "text", "application", "kubernetes-log", "package-history", "modprobe", "unit-action"),
    }
)
_BUILDERS: Final = frozenset({"dkms-output", "dkms-status", "installer-log"})
# What a log says that is about the building of a kernel module at all.
_BUILDS: Final = Pattern(
    r"dkms|akmod|make\.log|make(?:\[\d+\])?: \*\*\*|nvidia-installer|kernel module|modpost|kernel headers|CONFTEST"
    r"|Kbuild|compile modules for|kernel sources|-headers-|kernel-devel|kernel source|CC \[M\]",
    re.IGNORECASE,
)
_OF: Final = Pattern(r"^DKMS (?:\([^)]*\) )?make\.log for (?P<module>\S+)", re.MULTILINE)
_MODULES: Final = Pattern(r"/var/lib/dkms/(?P<tree>[^/\s]+)/|^(?P<row>[\w.+-]+)/[\w.+~-]+, \d", re.MULTILINE)
_KERNEL: Final = r"(?P<kernel>\d+\.\d+[^\s/'\",;:()]*[^\s/'\",;:().])"
_TARGETS: Final = tuple(
    Pattern(before + _KERNEL)
    for before in (
        *(r"kernel headers for kernel ", r"make\.log for \S+ for kernel ", r"module build on kernel: "),
        r"(?:[Mm]odule build|autoinstall|Building(?: module| initial module)?|development files) for (?:kernel )?",
        *(r"Missing ", r"-for-", r"/usr/src/(?:linux-headers-|kernels/|linux-)", r"/lib/modules/"),
        *(r"(?:linux|proxmox|pve)-headers-", r" -k "),
    )
)


_RELEASE: Final = Pattern(r"(?:nvidia[\w-]*|NVIDIA-Linux-\w+)[/-](?P<version>\d{2,3}\.\d+(?:\.\d+)?)")


def build_logs(snapshot: Snapshot) -> tuple[Item, ...]:
    """Return the logs of builds that still matter."""
    return tuple(item for item in snapshot.items if _is_build_log(item) and not _is_outdated(snapshot, item))


def build_kernel(snapshot: Snapshot) -> str:
    """Return the kernel that the module was built for, else the running one; empty where nothing names it."""
    return next(filter(None, map(target_kernel, snapshot.view(build_logs))), "") or snapshot.view(system.running_kernel)


def release(snapshot: Snapshot) -> str:
    """Return the driver's version that was built; empty where nothing names it."""
    texts = (text for item in snapshot.view(build_logs) for text in (item.written, item.text))
    return next((match["version"] for text in texts if (match := _RELEASE.search(text))), "")


@dataclass(frozen=True, slots=True)
class _LogLine:
    """A sign: what a log of a build says."""

    pattern: Pattern

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        found = (line for item in snapshot.view(build_logs) for line in lines_with(item, self.pattern))
        return tuple(line for line in found if not _names_other_module(snapshot, line))


def build_log_line(pattern: str) -> _LogLine:
    """Return a line that ``pattern`` matches in a log of a build."""
    return _LogLine(Pattern(pattern, re.MULTILINE))


def _names_other_module(snapshot: Snapshot, line: Citation) -> bool:
    """Return whether it or the line below names another vendor's module; DKMS goes on without that."""
    item = next(item for item in snapshot.view(build_logs) if item.key == line.key and item.written == line.source)
    at = (line.line_number or 1) - 1
    named = re.search(r"/dkms/(?P<tree>[^/\s]+)/|Error! (?P<row>[\w.+-]+)/\S+:", "\n".join(item.lines[at : at + 2]))
    return named is not None and not (named["tree"] or named["row"]).startswith("nvidia")


def _is_build_log(item: Item) -> bool:
    """Return whether it tells of a kernel module's build, and not of another vendor's module only."""
    if item.kind not in _LOGS or item.is_register or not item.is_seen:
        return False
    if item.kind == "make-log":
        header = _OF.search(item.text[:2000])
        return header is None or header["module"].startswith("nvidia")
    if item.kind not in _BUILDERS and find_first(item, _BUILDS) is None:
        return False
    # DKMS names no module where headers are missing or its tree is damaged.
    return "nvidia" in item.written.lower() or "nvidia" in item.lowered or not _MODULES.search(item.text[:200_000])


def _is_outdated(snapshot: Snapshot, item: Item) -> bool:
    """Return whether the log is outdated: its kernel is gone, or the driver works on it."""
    running, wanted = snapshot.view(system.running_kernel), target_kernel(item)
    kernels = snapshot.facts.kernels
    if wanted and isinstance(kernels, Known) and wanted not in {*kernels.value.installed, running}:
        return True
    return driver.works(snapshot) and bool(running) and (wanted or running) == running


def target_kernel(item: Item) -> str:
    """Return the kernel that a build was for; empty where the log does not name it."""
    for pattern in _TARGETS:
        if match := pattern.search(item.text) or pattern.search(item.written):
            return match["kernel"].partition(".failed")[0].removesuffix("-common")
    return ""
