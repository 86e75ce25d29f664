"""The GPUs that NVML lists."""

from __future__ import annotations

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts import nvml


def inventory(snapshot: Snapshot) -> nvml.Inventory | None:
    """NVML's first answer that has GPUs; None where it failed, or was damaged on its way here."""
    for item in snapshot.of("nvml"):
        try:
            answer = nvml.parse(item.text.encode()) if item.outcome == "ok" else None
        except ValueError:
            continue
        if isinstance(answer, nvml.Inventory):
            return answer
    return None
