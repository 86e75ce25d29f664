"""Access to evidence by the key of its probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpunode.change import FileState
from gpunode.facts.evidence import NOT_CAPTURED_REASON, Capture, Evidence, GlobMatch, Ownership, decode_matches
from gpunode.facts.model import NOT_INSTALLED_ENDING, Fact, Known, Unknown
from gpunode.fast_dataclass import dataclass

T = TypeVar("T")
_DEFAULT_OWNERSHIP = Ownership(0o644, 0, 0)


class EvidenceMissing(ValueError):
    """The probe ``key`` gave nothing to read."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


@dataclass(frozen=True, slots=True)
class EvidenceReader:
    """Access to evidence by key; missing evidence raises ``EvidenceMissing``."""

    evidence: Evidence

    def capture(self, key: str) -> Capture:
        """Return the probe's capture, whatever its outcome."""
        capture = self.evidence.get(key)
        if capture is None:
            raise EvidenceMissing(key, NOT_CAPTURED_REASON)
        return capture

    def data(self, key: str) -> bytes | None:
        """Return the content; None if the file does not exist."""
        capture = self.capture(key)
        if capture.outcome == "absent":
            return None
        if capture.outcome != "ok":
            raise EvidenceMissing(key, explain_missing(capture))
        return capture.data

    def text(self, key: str) -> str:
        """Return the content as text; raise ``EvidenceMissing`` if there is none."""
        data = self.data(key)
        if data is None:
            raise EvidenceMissing(key, explain_missing(self.capture(key)))
        return data.decode("utf-8", "replace")

    def text_or_empty(self, key: str) -> str:
        """Return the content as text; empty if the file does not exist."""
        return (self.data(key) or b"").decode("utf-8", "replace")

    def matches(self, key: str) -> tuple[GlobMatch, ...]:
        """Return the matches of a glob."""
        return decode_matches(self.data(key) or b"")


def find_matches(evidence: Evidence, key: str) -> tuple[GlobMatch, ...]:
    """Return the matches of a glob as far as they were read; none if there is no answer, or a malformed one."""
    try:
        return decode_matches(evidence[key].data) if key in evidence else ()
    except (ValueError, KeyError, TypeError):
        return ()


def read_text(evidence: Evidence, key: str) -> str:
    """Return the text of an answer; empty if there is none."""
    capture = evidence.get(key)
    return capture.text if capture is not None and capture.outcome == "ok" else ""


def make_file_state(data: bytes, ownership: Ownership | None) -> FileState:
    """Return the state of a file with this content; without an owner it is root's, and readable for all."""
    own = ownership or _DEFAULT_OWNERSHIP
    return FileState(data, own.mode, own.uid, own.gid)


def explain_missing(capture: Capture) -> str:
    """Explain why ``capture`` has nothing to read."""
    if capture.outcome == "absent" and not capture.source.startswith("/"):
        return f"{capture.source.partition(' ')[0]}{NOT_INSTALLED_ENDING}"
    word = {"absent": "does not exist", "denied": "is not readable", "timeout": "did not answer in time"}
    status = "" if capture.exit_status is None else f" (exit status {capture.exit_status})"
    message = capture.error.strip().split("\n")[0][:200]
    return f"{capture.source} {word.get(capture.outcome, 'failed')}{status}" + (f": {message}" if message else "")


def derive_fact(key: str, read: Callable[[], T]) -> Fact[T]:
    """Return the result of ``read`` as known from ``key``, or Unknown with its error as the reason."""
    try:
        return Known(read(), key)
    except EvidenceMissing as missing:
        return Unknown(str(missing), missing.key)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return Unknown(f"not understood: {error}"[:500], key)
