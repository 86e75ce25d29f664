"""The words for states, layers and disruptions, on the page, on the screen and in the documentation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpunode.diagnoses.model import Disruption
from gpunode.diagnoses.stack import State

DISRUPTIONS: Final[Mapping[Disruption, str]] = {
    "none": "no disruption",
    "restart-container": "restarts containers",
    "restart-service": "restarts a service",
    "reset-gpu": "resets the GPU: its work stops",
    "reboot": "reboots the node",
    "power-cycle": "powers the node off and on",
    "RMA": "replaces the part",
}
# A mark that tells without colour, and the word; none where nothing is wrong: ✓ was seen to work, ○ was seen.
STATES: Final[Mapping[State, tuple[str, str]]] = {
    "broken": ("✗", "broken"),
    "warned": ("!", "at risk"),
    "affected": ("!", "suffers"),
    "works": ("✓", ""),
    "seen": ("○", ""),
    "unseen": ("?", "not seen"),
    "absent": ("–", ""),
}


def count(number: int, noun: str) -> str:
    """``1 line``, ``2 lines``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def condition(when: str) -> str:
    """When a fix is made, as it stands behind it: ``(if it comes back)``; empty where it always is."""
    return f" (if {when})" if when else ""
