"""View listings of the initramfs: whether NVIDIA's module is in it."""

from __future__ import annotations

import re
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.diagnoses.views import system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# In an image paths have no leading slash; one that has is of the node.
_FILE: Final = Pattern(r"(?<![\w/.+-])(?!/)[\w./+-]{0,160}/nvidia(?:[-_](?:current|tesla|legacy)\S*)?\.ko(?:\.\w+)?\b")
_COUNT: Final = Pattern(r"^[ \t]*[1-9]\d{0,3}[ \t]*$", re.MULTILINE)
_RELEASE: Final = Pattern(r"/(?:initrd\.img|initrd|initramfs)-(?P<release>\d[^/\s]*?)(?:\.img)?$")


def running_kernel_listings(snapshot: Snapshot) -> tuple[Item, ...]:
    """Return the listings of the running kernel's image, without those of other kernels."""
    running = system.running_kernel(snapshot)
    return tuple(item for item in snapshot.items_of("initramfs") if not running or _release_of(item) in {"", running})


def _release_of(item: Item) -> str:
    match = _RELEASE.search(item.subject)
    return match["release"] if match else ""


def nvidia_module_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that show NVIDIA's main module in the initramfs."""
    pattern = {False: _FILE, True: _COUNT}
    return tuple(
        line for item in running_kernel_listings(snapshot) for line in lines_with(item, pattern[item.source.is_count])
    )
