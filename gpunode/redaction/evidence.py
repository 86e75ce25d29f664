"""What of evidence may leave a node: each probe says what it holds, and what nobody vouches for is masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import count
from typing import TypeVar, cast

from gpunode.change import FileChange, FileState
from gpunode.facts.evidence import Capture, Evidence, Found, Holds, decode_found, encode_found
from gpunode.redaction import config, secrets

T = TypeVar("T")


def redact(evidence: Evidence) -> Evidence:
    """``evidence`` without its secrets. Law: redacting twice is redacting once."""
    redacted: dict[str, Capture] = {}
    for key, capture in evidence.items():
        # What was pasted stands under its source, which may be a command with a password.
        shown = _text(key, "log") if key.startswith(capture.source) else key
        while shown in redacted:
            shown = next(name for number in count(2) if (name := f"{shown}#{number}") not in redacted)
        redacted[shown] = _capture(capture)
    return redacted


def masked(before: Evidence, after: Evidence) -> Mapping[Holds, tuple[int, int]]:
    """By what they hold, how many captures there are and in how many of them something is masked."""
    pairs = [(before[key], after[key]) for key in before if key in after]
    changed = Counter(one.holds for one, other in pairs if one != other)
    return {holds: (number, changed[holds]) for holds, number in Counter(one.holds for one, _ in pairs).items()}


def _capture(capture: Capture) -> Capture:
    source = _text(capture.source, "log")
    if capture.holds == "table":
        return capture if source == capture.source else replace(capture, source=source)
    data = _globbed(capture) if "*" in capture.source else None
    data = content(capture.data, capture.holds) if data is None else data
    return replace(capture, source=source, data=data, error=_text(capture.error, "log"))


def _globbed(capture: Capture) -> bytes | None:
    """The files of a glob, each by itself; None where these are none."""
    try:
        return encode_found(_found(one, capture.holds) for one in decode_found(capture.data))
    except (ValueError, KeyError, TypeError):
        return None


def _found(found: Found, holds: Holds) -> Found:
    return found if found.data is None else replace(found, data=content(found.data, holds))


def content(data: bytes, holds: Holds) -> bytes:
    """``data`` as it may be shown."""
    if holds == "config" and b"\0" in data:
        return secrets.MASK.encode()  # no text, so nobody can tell
    text = data.decode("utf-8", "surrogateescape")
    return _text(text, holds).encode("utf-8", "surrogateescape")


def _text(text: str, holds: Holds) -> str:
    match holds:
        case "table":
            return text
        case "log":
            return config.masked(text) if "Secret" in text and config.shows_secret(text) else secrets.text(text)
        case "config":
            return config.masked(text)


def throughout(value: T) -> T:
    """``value``, with the words from outside that stand in it, without the secrets in them."""
    if isinstance(value, str):
        return cast("T", secrets.text(value))
    if isinstance(value, tuple):
        return cast("T", tuple(map(throughout, value)))
    if is_dataclass(value) and not isinstance(value, type):
        return cast("T", replace(value, **{one.name: throughout(getattr(value, one.name)) for one in fields(value)}))
    return value


def without_secrets(change: FileChange) -> FileChange:
    """``change`` as its diff may be shown: its owner sees what he has set, but for the secrets in it."""

    def shown(state: FileState) -> FileState:
        text = state.content.decode("utf-8", "surrogateescape")
        return replace(state, content=config.masked(text, strict=False).encode("utf-8", "surrogateescape"))

    after = change.after
    before = change.before and shown(change.before)
    return replace(change, before=before, after=shown(after) if isinstance(after, FileState) else after)
