"""The laws of captures: a capture holds what was seen, without the secrets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Ownership, encode_matches
from gpunode.facts.probes import PROBES
from gpunode.host.capture import load_capture, save_capture
from gpunode.redaction.evidence import redact
from gpunode.redaction.secrets import redact_text
from tests.fakes.examples import examples

PIECES = st.sampled_from(
    (
        *("password", "token", "auth", "headers", "X-Key", "https://", "u:p@h", "abc", "true", "é"),
        *("-----BEGIN PRIVATE KEY-----", "-----END", "\n", '"""', "'''", *"=: \"'[]{},#\\@/?&"),
    )
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)
DATA = TEXTS.map(str.encode) | st.binary(max_size=60)
OWNERS = st.builds(Ownership, st.integers(0, 0o7777), st.integers(0, 9), st.integers(0, 9))
FOUND = st.lists(
    st.builds(GlobMatch, st.text(max_size=9), st.none() | st.text(max_size=9), st.none() | DATA, st.none() | OWNERS)
).map(lambda found: encode_matches(iter(found)))


def captures(sources: Iterable[str], data: st.SearchStrategy[bytes]) -> st.SearchStrategy[Capture]:
    return st.builds(
        Capture,
        source=st.sampled_from(sorted(sources)),
        outcome=st.sampled_from(["ok", "ok", "absent", "denied", "failed", "timeout"]),
        data=data,
        error=TEXTS,
        exit_status=st.none() | st.integers(0, 255),
        ownership=st.none() | OWNERS,
    )


CAPTURES = captures({probe.source for probe in PROBES if not probe.glob}, DATA | FOUND) | captures(
    {probe.source for probe in PROBES if probe.glob}, FOUND
)
EVIDENCE = st.dictionaries(st.sampled_from([probe.key for probe in PROBES]) | st.text(min_size=1, max_size=9), CAPTURES)


@given(EVIDENCE)
@settings(max_examples=examples(60), deadline=None)
def test_loaded_capture_equals_the_redacted_evidence(evidence: Evidence) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar.gz"
        save_capture(evidence, path)
        assert load_capture(path) == redact(evidence)
        assert derive(load_capture(path)) == derive(redact(evidence))


@given(EVIDENCE)
@settings(deadline=None)
def test_redaction_is_idempotent(evidence: Evidence) -> None:
    once = redact(evidence)
    assert redact(once) == once


@given(TEXTS)
@example("https://passwordhttps:///}u:p@h")
@settings(max_examples=examples(500), deadline=None)
def test_text_redaction_is_idempotent(value: str) -> None:
    once = redact_text(value)
    assert redact_text(once) == once
