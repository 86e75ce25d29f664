"""Redact evidence by kind of content: keep tables, mask unknown configuration, remove secrets from logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import count
from typing import Final, TypeVar, cast

from gpunode.change import FileChange, FileState
from gpunode.facts.evidence import Capture, ContentKind, Evidence, GlobMatch, decode_matches, encode_matches
from gpunode.redaction import config, patterns, secrets

T = TypeVar("T")
# Marks a Kubernetes object as a Secret.
_SENSITIVE_KIND: Final = r"\bkind\"?:[ \t]*\"?Secret(?:List)?\b"


def redact(evidence: Evidence) -> Evidence:
    """Return ``evidence`` without its secrets. Idempotent."""
    redacted: dict[str, Capture] = {}
    for key, capture in evidence.items():
        # The key of pasted text is its source, possibly a command with a password.
        shown = _redact_log(key) if key.startswith(capture.source) else key
        while shown in redacted:
            shown = next(name for number in count(2) if (name := f"{shown}#{number}") not in redacted)
        # A command's error message may contain a Kubernetes object, just like its output.
        contents = partial(redact_content, content_kind=capture.content_kind)
        redacted[shown] = rewrite_capture(capture, contents, _redact_log)
    return redacted


def count_masked(before: Evidence, after: Evidence) -> Mapping[ContentKind, tuple[int, int]]:
    """Return, by kind of content, the number of captures and the number of masked ones."""
    pairs = [(before[key], after[key]) for key in before if key in after]
    changed = Counter(one.content_kind for one, other in pairs if one != other)
    return {kind: (number, changed[kind]) for kind, number in Counter(one.content_kind for one, _ in pairs).items()}


def rewrite_capture(
    capture: Capture,
    contents: Callable[[bytes], bytes],
    words: Callable[[str], str],
    *,
    paths: Callable[[str], str] = str,
) -> Capture:
    """Return ``capture`` with contents, text and file paths rewritten, each file of a glob separately."""

    def file(match: GlobMatch) -> GlobMatch:
        link, data = match.link and paths(match.link), match.data and contents(match.data)
        return replace(match, path=paths(match.path), link=link, data=data)

    try:
        files = decode_matches(capture.data) if "*" in capture.source else None
    except (ValueError, KeyError, TypeError):
        files = None
    data = contents(capture.data) if files is None else encode_matches(map(file, files))
    return replace(capture, source=words(capture.source), data=data, error=words(capture.error))


def redact_content(data: bytes, content_kind: ContentKind) -> bytes:
    """Return ``data`` without its secrets."""
    match content_kind:
        case "table":
            return data
        case "log":
            return mask_bytes(data, _redact_log)
        case "config":
            # Content with a zero byte is not text.
            return patterns.MASK.encode() if b"\0" in data else mask_bytes(data, config.redact_config)


def mask_bytes(data: bytes, mask: Callable[[str], str]) -> bytes:
    """Return ``data`` masked as text; bytes that are not UTF-8 are kept."""
    return mask(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _redact_log(text: str) -> str:
    kept = secrets.redact_text(text)
    return config.redact_config(kept) if patterns.compile_cached(_SENSITIVE_KIND, 0).search(kept) else kept


def redact_recursively(value: T) -> T:
    """Return ``value`` without the secrets in any of its strings."""
    if isinstance(value, str):
        return cast("T", secrets.redact_text(value))
    if isinstance(value, tuple):
        return cast("T", tuple(map(redact_recursively, value)))
    if is_dataclass(value) and not isinstance(value, type):
        return cast(
            "T", replace(value, **{one.name: redact_recursively(getattr(value, one.name)) for one in fields(value)})
        )
    return value


def redact_change(change: FileChange) -> FileChange:
    """Return ``change`` for its diff, which shows settings to their owner, but no secrets."""

    def redact_state(state: FileState) -> FileState:
        return replace(state, content=mask_bytes(state.content, lambda text: config.redact_config(text, strict=False)))

    after = change.after
    before = change.before and redact_state(change.before)
    return replace(change, before=before, after=redact_state(after) if isinstance(after, FileState) else after)
