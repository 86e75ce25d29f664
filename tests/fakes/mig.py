"""The file in which the stand-in NVML keeps the MIG layout of its GPUs (tests/fakes/nvml/mig.h)."""

from __future__ import annotations

from pathlib import Path


def reboot(state: Path, *, keeps_mode: bool = True) -> None:
    """Remove the instances and apply a pending mode. Newer GPUs also disable MIG."""
    rows = [line.split() for line in state.read_text().splitlines() if line.startswith("gpu")]
    modes = ((index, pending if keeps_mode else "0") for _, index, _, pending in rows)
    state.write_text("".join(f"gpu {index} {mode} {mode}\n" for index, mode in modes))
