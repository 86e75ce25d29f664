"""Evidence, read by the key of its probe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpunode.facts.evidence import NOT_CAPTURED, Capture, Evidence, Found, decode_found
from gpunode.facts.model import NOT_INSTALLED, Fact, Known, Unknown

T = TypeVar("T")


class Missing(ValueError):
    """A probe gave nothing to read; ``key`` is its name."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


@dataclass(frozen=True, slots=True)
class Reader:
    """Evidence, read by key; what is not there raises ``Missing``."""

    evidence: Evidence

    def capture(self, key: str) -> Capture:
        """What the probe returned, whatever that is."""
        capture = self.evidence.get(key)
        if capture is None:
            raise Missing(key, NOT_CAPTURED)
        return capture

    def data(self, key: str) -> bytes | None:
        """The content; None when the thing is not there."""
        capture = self.capture(key)
        if capture.outcome == "absent":
            return None
        if capture.outcome != "ok":
            raise Missing(key, reason(capture))
        return capture.data

    def text(self, key: str) -> str:
        """The content, which must be there."""
        data = self.data(key)
        if data is None:
            raise Missing(key, reason(self.capture(key)))
        return data.decode("utf-8", "replace")

    def optional(self, key: str) -> str:
        """The content; empty when the thing is not there."""
        return (self.data(key) or b"").decode("utf-8", "replace")

    def found(self, key: str) -> tuple[Found, ...]:
        """The matches of a glob; none when there is nothing."""
        return decode_found(self.data(key) or b"")


def reason(capture: Capture) -> str:
    """Why ``capture`` has nothing to read."""
    if capture.outcome == "absent" and not capture.source.startswith("/"):
        return f"{capture.source.partition(' ')[0]}{NOT_INSTALLED}"
    word = {"absent": "is not there", "denied": "may not be read", "timeout": "did not answer in time"}
    status = "" if capture.exit_status is None else f" (exit status {capture.exit_status})"
    said = capture.error.strip().split("\n")[0][:200]
    return f"{capture.source} {word.get(capture.outcome, 'failed')}{status}" + (f": {said}" if said else "")


def fact(key: str, read: Callable[[], T]) -> Fact[T]:
    """What ``read`` returns, known from ``key``; whatever stops it is the reason for not knowing."""
    try:
        return Known(read(), key)
    except Missing as missing:
        return Unknown(str(missing), missing.key)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return Unknown(f"not understood: {error}"[:500], key)
