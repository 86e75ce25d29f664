"""Redacts evidence by what each probe holds: tables stay, unknown configuration is masked, logs lose their secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import count
from typing import Final, TypeVar, cast

from gpunode.change import FileChange, FileState
from gpunode.facts.evidence import Capture, Evidence, Found, Holds, decode_found, encode_found
from gpunode.redaction import config, patterns, secrets

T = TypeVar("T")
# Of a Kubernetes object that is a Secret.
_KIND: Final = r"\bkind\"?:[ \t]*\"?Secret(?:List)?\b"


def redact(evidence: Evidence) -> Evidence:
    """``evidence`` without its secrets. Law: redacting twice is redacting once."""
    redacted: dict[str, Capture] = {}
    for key, capture in evidence.items():
        # The key of pasted text is its source, which may be a command with a password.
        shown = secrets.text(key) if key.startswith(capture.source) else key
        while shown in redacted:
            shown = next(name for number in count(2) if (name := f"{shown}#{number}") not in redacted)
        redacted[shown] = _capture(capture)
    return redacted


def masked(before: Evidence, after: Evidence) -> Mapping[Holds, tuple[int, int]]:
    """For each kind of content, the number of captures and of those in which something is masked."""
    pairs = [(before[key], after[key]) for key in before if key in after]
    changed = Counter(one.holds for one, other in pairs if one != other)
    return {holds: (number, changed[holds]) for holds, number in Counter(one.holds for one, _ in pairs).items()}


def _capture(capture: Capture) -> Capture:
    # A command's complaint may show an object of Kubernetes, as its output may.
    return rewritten(capture, lambda data: content(data, capture.holds), _log)


def rewritten(
    capture: Capture,
    contents: Callable[[bytes], bytes],
    words: Callable[[str], str],
    *,
    paths: Callable[[str], str] = str,
) -> Capture:
    """``capture`` with its contents, its words and the paths of its files rewritten, each file of a glob by itself."""

    def file(found: Found) -> Found:
        link, data = found.link and paths(found.link), found.data and contents(found.data)
        return replace(found, path=paths(found.path), link=link, data=data)

    try:
        files = decode_found(capture.data) if "*" in capture.source else None
    except (ValueError, KeyError, TypeError):
        files = None
    data = contents(capture.data) if files is None else encode_found(map(file, files))
    return replace(capture, source=words(capture.source), data=data, error=words(capture.error))


def content(data: bytes, holds: Holds) -> bytes:
    """``data`` without its secrets."""
    match holds:
        case "table":
            return data
        case "log":
            return recoded(data, _log)
        case "config":
            # What has a zero in it is not text.
            return patterns.MASK.encode() if b"\0" in data else recoded(data, config.masked)


def recoded(data: bytes, mask: Callable[[str], str]) -> bytes:
    """``data``, masked as text. Other bytes stay."""
    return mask(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _log(text: str) -> str:
    kept = secrets.text(text)
    return config.masked(kept) if patterns.compiled(_KIND, 0).search(kept) else kept


def throughout(value: T) -> T:
    """``value`` without the secrets in any of its strings."""
    if isinstance(value, str):
        return cast("T", secrets.text(value))
    if isinstance(value, tuple):
        return cast("T", tuple(map(throughout, value)))
    if is_dataclass(value) and not isinstance(value, type):
        return cast("T", replace(value, **{one.name: throughout(getattr(value, one.name)) for one in fields(value)}))
    return value


def without_secrets(change: FileChange) -> FileChange:
    """``change`` for its diff. Its owner sees the settings, but no secrets."""

    def shown(state: FileState) -> FileState:
        return replace(state, content=recoded(state.content, lambda text: config.masked(text, strict=False)))

    after = change.after
    before = change.before and shown(change.before)
    return replace(change, before=before, after=shown(after) if isinstance(after, FileState) else after)
