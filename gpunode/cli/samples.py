"""The captures that come with gpunode: each can be named in place of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SAMPLE: Final = "debian12-gtx1080"
SAMPLES: Final = Path(__file__).parent.parent / "samples"


def samples() -> tuple[str, ...]:
    """Return the names of the shipped captures."""
    return tuple(sorted(one.parent.name for one in SAMPLES.glob("*/capture.json")))


def sample() -> Path:
    """Return the folder of the capture that is shown where none is named."""
    return SAMPLES / SAMPLE


def report_at(name: str) -> str:
    """Return the path of a shipped sample for its name; any other name as it is."""
    return str(SAMPLES / name) if name in samples() and not Path(name).exists() else name
