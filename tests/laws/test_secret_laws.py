"""The law of secrets: wherever a secret was left, no capture contains it, and the diagnosis stays the same."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture, ContentKind, GlobMatch, Probe, encode_matches
from gpunode.facts.examination import DOCTOR_PROBES
from gpunode.facts.probes import PROBES
from gpunode.host.capture import load_capture, save_capture
from gpunode.redaction.evidence import redact, redact_content
from gpunode.redaction.secrets import redact_text
from tests.fakes.examples import examples
from tests.laws.secrets import ADDRESSES, PLACES, TOKEN_SHAPES
from tests.scenarios.reports import reports

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
HOLDS: dict[str, ContentKind] = {probe.key: probe.content_kind for probe in (*PROBES, *DOCTOR_PROBES)}
PROBED = [
    probe
    for probe in (*PROBES, *DOCTOR_PROBES)
    if probe.content_kind != "table" and (not probe.glob or probe.contents) and (not probe.glob or "*" in probe.glob)
]


def word(alphabet: str, least: int = 10, most: int = 60) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most)


# Invented secrets: with a digit, an upper-case and a lower-case letter, or with punctuation.
secrets = st.one_of(
    word(LETTERS + DIGITS, 12).map(lambda one: f"q7W{one}"),
    word(LETTERS + DIGITS + "+", 20).map(lambda one: f"q7W{one}=="),
    st.builds("{}{}{}7".format, word(LETTERS, 4, 9), word("!^*._~%-", 1, 3), word(LETTERS + DIGITS, 6, 20)),
)
shaped = st.sampled_from(list(TOKEN_SHAPES.values())).flatmap(
    lambda shape: st.text(shape[1], min_size=shape[2], max_size=shape[2]).map(lambda rest: shape[0] + rest)
)


def capture_of(probe: Probe, data: str, *, is_said: bool) -> Capture:
    if probe.glob:
        is_said = True  # the error of an unreadable folder has no text from the node
        data = encode_matches(iter([GlobMatch(probe.glob.replace("*", "x"), data=data.encode())])).decode()
    said, complained = (data.encode(), "") if is_said else (b"", data)
    return Capture(probe.source, "ok" if is_said else "failed", said, complained, content_kind=probe.content_kind)


def leaks(secret: str, kept: str) -> bool:
    # A part of the secret is as bad; a shorter match may be chance.
    return any(
        secret[at : at + 8] in kept for at in range(max(len(secret) - 7, 1)) if secret[at : at + 8] != "redacted"
    )


@given(st.sampled_from(sorted(PLACES)), secrets, st.sampled_from(PROBED), st.booleans())
@settings(max_examples=examples(250), deadline=None)
def test_capture_contains_no_secret_from_any_place(place: str, secret: str, probe: Probe, is_said: bool) -> None:
    seen = {probe.key: capture_of(probe, f"before\n{PLACES[place].format(secret)}\nafter\n", is_said=is_said)}
    with tempfile.TemporaryDirectory() as folder:
        save_capture(seen, path := Path(folder) / "node.tar.gz")
        kept = load_capture(path)[probe.key]
    assert not leaks(secret, f"{kept.source}{kept.text}{kept.error}"), (place, kept.text)
    assert kept.text.count("\n") == seen[probe.key].text.count("\n")


# Random configuration with arbitrary keys: they are unknown, so none of their values is shown.
keys = word("bcdfgjkqvxz", 5, 9)
values = st.recursive(
    secrets, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)


def _leaves(value: object) -> list[str]:
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    return [leaf for one in value for leaf in _leaves(one)] if isinstance(value, list) else [str(value)]


def _yaml(value: object, lead: str = "") -> str:
    if isinstance(value, dict):
        return "".join(f"\n{lead}{key}: {_yaml(one, lead + '  ')}" for key, one in value.items())
    if isinstance(value, list):
        return "".join(f"\n{lead}- {_yaml(one, lead + '  ')}" for one in value)
    return str(value)


WRITTEN = {
    "json": lambda tree: json.dumps(tree),
    "json over lines": lambda tree: json.dumps(tree, indent=2),
    "toml": lambda tree: "".join(f"[x.{key}]\n  {key} = {json.dumps(one)}\n" for key, one in tree.items()),
    "yaml": lambda tree: _yaml(tree) + "\n",
    "environment": lambda tree: "".join(f"export {key.upper()}={leaf}\n" for key in tree for leaf in _leaves(tree)),
    "unit": lambda tree: "".join(
        f'[Service]\nEnvironment="{key}={leaf}" "X=1"\n' for key in tree for leaf in _leaves(tree)
    ),
}


@given(st.sampled_from(sorted(WRITTEN)), st.dictionaries(keys, values, min_size=1, max_size=4))
@example("yaml", {"bbbbb": ["q7W00000000000000000PSK=="]})
@settings(max_examples=examples(250), deadline=None)
def test_unknown_configuration_value_is_not_kept(how: str, tree: dict[str, object]) -> None:
    whole = WRITTEN[how](tree)
    kept = redact_content(whole.encode(), "config").decode()
    # A part of a secret that its surroundings contain anyway is no leak.
    around = WRITTEN[how](dict.fromkeys(tree, ""))
    assert not [leaf for leaf in _leaves(tree) if leaks(leaf, kept) and not leaks(leaf, around)]
    assert redact_content(kept.encode(), "config").decode() == kept
    assert kept.count("\n") == whole.count("\n")
    if how.startswith("json"):
        assert list(json.loads(kept)) == list(tree)


@pytest.mark.parametrize("sign", [*"<>,;:#?/!$&*()[]{}|^~`+=%\\", " ", " -"])
@pytest.mark.parametrize("place", ADDRESSES)
def test_password_in_an_address_is_redacted(place: str, sign: str) -> None:
    kept = redact_text(ADDRESSES[place].format(f"q7Wk2nVx{sign}9Lr4Tz8P"))
    assert "q7Wk2nVx" not in kept
    assert "9Lr4Tz8P" not in kept
    assert redact_text(kept) == kept


@given(shaped, st.sampled_from(["{}", "x={}", "said {} then", '"{}"', "https://h/{}/x", "[{}]"]))
@settings(max_examples=examples(120), deadline=None)
def test_secret_with_a_known_form_is_redacted(secret: str, place: str) -> None:
    assume(secret[-1] not in "-_")
    assert not leaks(secret, redact_text(place.format(secret)))


# Places cut at random and joined by the delimiters of every form: one replacement may create another form.
pieces = st.sampled_from(
    (
        *("password", "token", "proxy", "key", "is ", "again", "redacted", "Bearer ", "ghp_", "$6$", "kind: Secret\n"),
        *(
            "echo ",
            "| chpasswd",
            "curl -u ",
            "docker login -p ",
            "<<<",
            "<<EOF\n",
            "EOF\n",
            "--password ",
            "root=iscsi:",
        ),
        *("data:\n", "name: ", "value: ", "|\n", "- ", "  ", "$(", ")", "`", '"""', "\x1b[31m", "\r\n", "\t", "\0"),
        *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "https://", "u:p@h", *"=: \"'[]{},;#\\@/?&<>%|"),
    )
)
fragments = st.builds(
    lambda place, secret, start, end: place.format(secret)[start:end],
    st.sampled_from([*PLACES.values(), *ADDRESSES.values()]),
    st.sampled_from(["q7Wk2nVx9Lr4Tz8P", "hunter2xx", "="]),
    st.integers(0, 30),
    st.integers(10, 200),
)
texts = st.lists(pieces | fragments, max_size=25).map("".join)


@given(texts, st.sampled_from(["log", "config"]))
@example('Environment="DB_PASSWORD= | "proxy', "config")
@example('s/$6$user=#"--password name: value: -----BEGIN PRIVATE KEY-----', "config")
@example(
    ';\x1b[31m-----BEGIN PRIVATE KEY-----{"}root=kind: Secret\n_-----END PRIVATE KEY-----\x1b[31m\'"data:\niscsi:',
    "log",
)
@settings(max_examples=examples(250), deadline=None)
def test_redaction_of_any_text_is_idempotent(value: str, content_kind: ContentKind) -> None:
    once = redact_content(value.encode(), content_kind)
    assert redact_content(once, content_kind) == once


@given(st.sampled_from(sorted(PLACES)), secrets, st.sampled_from(["log", "config"]))
@settings(max_examples=examples(100), deadline=None)
def test_redaction_of_a_secret_is_idempotent(place: str, secret: str, content_kind: ContentKind) -> None:
    once = redact_content(PLACES[place].format(secret).encode(), content_kind)
    assert redact_content(once, content_kind) == once


@pytest.mark.parametrize("place", sorted(name for name, text in PLACES.items() if "\n" not in text))
@given(secret=secrets)
@settings(max_examples=examples(5), deadline=None)
def test_secret_in_a_typed_command_is_redacted(place: str, secret: str) -> None:
    command = PLACES[place].format(secret)
    (key,) = after = redact({command: Capture(command, "ok", b"x\n", content_kind="log")})
    assert not leaks(secret, key + after[key].source)


def diagnosis_words(found: Diagnosis) -> object:
    return [(one.cause, one.confidence, one.explained_by, one.gpus) for one in found.findings], found.open_questions


def test_redaction_changes_no_finding() -> None:
    """Only reports in which something is redacted; each file has the class of its probe."""
    for report in reports():
        pieces = pasted.collect_pieces([(one["source"], one["text"]) for one in report.evidence])
        seen = {key: replace(one, content_kind=HOLDS.get(key.partition("#")[0], "log")) for key, one in pieces.items()}
        if (redacted := redact(seen)) != seen:
            assert diagnosis_words(diagnose(take_snapshot(redacted))) == diagnosis_words(
                diagnose(take_snapshot(seen))
            ), report.name
