"""The GPUs that NVML lists."""

from __future__ import annotations

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts import nvml


def nvml_inventory(snapshot: Snapshot) -> nvml.NvmlInventory | None:
    """Return NVML's first answer with GPUs; None if it failed or was damaged."""
    for item in snapshot.items_of("nvml"):
        try:
            answer = nvml.parse_answer(item.text.encode()) if item.outcome == "ok" else None
        except ValueError:
            continue
        if isinstance(answer, nvml.NvmlInventory):
            return answer
    return None
