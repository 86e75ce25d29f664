"""The kernel that likely boots next on a node that was examined, and whether NVIDIA's module is missing for it.

A kernel of another flavour is not the next of this one, and where a default is named, nothing is said against that.
"""

from __future__ import annotations

import re
from typing import Final

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts import kernels
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_NUMBERS: Final = Pattern(r"\d{1,9}(?:[.-]\d{1,9}){1,9}(?!\w)")
_MINOR: Final = Pattern(r"(?<=\.el\d)_\d+|(?<=\.el\d\d)_\d+")
# weak-modules links what stands in extra and updates into kernels that fit, and no probe lists those links.
_LINKED_NOWHERE: Final = Pattern(r"/updates/dkms/|/kernel/")
_DEFAULT: Final = Pattern(
    r"^[ \t]*(?:export )?(?:GRUB_DEFAULT=(?![\"']?0[\"']?[ \t]*(?:#|$))|GRUB_TOP_LEVEL=\S)",
    re.MULTILINE,
)


def _flavour(kernel: str) -> str:
    """What stands behind the numbers of a kernel's release (``-generic``, ``.el9.x86_64+rt``); empty where unknown."""
    match = _NUMBERS.match(kernel)
    return _MINOR.sub("", kernel[match.end() :]) if match else ""


def _numbers(kernel: str) -> tuple[object, ...]:
    match = _NUMBERS.match(kernel)
    return kernels.version_key(match[0] if match else kernel)


def without_module(snapshot: Snapshot) -> str:
    """The newer kernel that likely boots next, where it has no module and the running one has; empty otherwise."""
    known, files = snapshot.facts.kernels, snapshot.facts.module_files
    if not (isinstance(known, Known) and isinstance(files, Known) and known.value.running):
        return ""
    running, there = known.value.running, known.value.installed
    own = _flavour(running)
    newest = max((one for one in there if _flavour(one) == own), key=_numbers, default=running)
    # RHEL never makes a variant (+rt, +debug) the default by itself; elsewhere the highest name of all may be it.
    others = (one for one in there if _flavour(one) not in {"", own} and not _flavour(one).startswith(f"{own}+"))
    is_next = own and "debug" not in own and running in there and newest != running
    if not is_next or any(_numbers(one) >= _numbers(newest) for one in others):
        return ""
    is_built = any(one.kernel == running and _LINKED_NOWHERE.search(one.path) for one in files.value)
    is_chosen = any(_DEFAULT.search(item.text) for item in snapshot.files("/etc/default/grub*"))
    return newest if is_built and not is_chosen and all(one.kernel != newest for one in files.value) else ""
