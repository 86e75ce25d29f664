"""The captures that gpunode ships; their names are accepted in place of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEFAULT_SAMPLE: Final = "debian12-gtx1080"
SAMPLES_FOLDER: Final = Path(__file__).parent.parent / "samples"


def sample_capture_names() -> tuple[str, ...]:
    """Return the names of the shipped captures."""
    return tuple(sorted(path.parent.name for path in SAMPLES_FOLDER.glob("*/capture.json")))


def default_sample() -> Path:
    """Return the folder of the default capture."""
    return SAMPLES_FOLDER / DEFAULT_SAMPLE


def resolve_sample(name: str) -> str:
    """Return the path of the shipped sample ``name``; any other name unchanged."""
    return str(SAMPLES_FOLDER / name) if name in sample_capture_names() and not Path(name).exists() else name
