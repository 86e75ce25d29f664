"""The law of secrets: wherever somebody has left one, no capture has it, and no diagnosis is another for that."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture, Found, Probe, encode_found
from gpunode.facts.examination import EXAMINATION
from gpunode.facts.probes import PROBES
from gpunode.host.capture import load, save
from gpunode.host.redact import redact, text
from tests.fakes.examples import examples
from tests.laws.pulls import FRAMES, WHY_NOT
from tests.laws.secrets import ADDRESSES, ANY_SIGNS, PLACES, SENTENCES, SHAPES
from tests.scenarios.reports import Report, reports

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
# The system's own tables, in which no person writes: dpkg describes password managers, the kernel names its symbols.
TABLES = ("/proc/", "/sys/", "/dev/", "/var/lib/apt/", "/var/lib/dkms/", "/var/lib/dpkg/", "/var/log/dpkg.log", "lspci",
          "uname")  # fmt: skip
LOGS = ("journalctl", "dmesg")
PROBED = [
    probe
    for probe in (*PROBES, *EXAMINATION)
    if not probe.source.startswith(TABLES) and (not probe.glob or probe.contents)
]


def word(alphabet: str, least: int = 10, most: int = 60) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most)


drawn = word(LETTERS + DIGITS, 12).filter(lambda one: any(sign in DIGITS for sign in one))
secrets = st.one_of(
    drawn,
    word(LETTERS),
    word(DIGITS).map(lambda one: f"7{one}"),
    word(LETTERS + DIGITS + "+", 20).map(lambda one: f"q{one}=="),
    st.builds("{}{}{}".format, word(LETTERS, 4, 9), word("!^*._~%-", 1, 3), word(LETTERS + DIGITS, 6, 20)),
)
shaped = st.sampled_from(list(SHAPES.values())).flatmap(
    lambda shape: st.text(shape[1], min_size=shape[2], max_size=shape[2]).map(lambda rest: shape[0] + rest)
)


def captured(probe: Probe, data: str, *, is_said: bool) -> Capture:
    if probe.glob:
        assert "*" in probe.glob, "one file is a path"
        is_said = True  # what a folder says when it cannot be read has no text of anybody's
        data = encode_found(iter([Found(probe.glob.replace("*", "x"), data=data.encode())])).decode()
    return Capture(
        probe.source, "ok" if is_said else "failed", data.encode() if is_said else b"", "" if is_said else data
    )


def leaks(secret: str, kept: str) -> bool:
    # A part of it is as bad; what is shorter may stand there by chance.
    return any(
        secret[at : at + 8] in kept for at in range(max(len(secret) - 7, 1)) if secret[at : at + 8] != "redacted"
    )


@given(st.sampled_from(sorted(PLACES)), secrets, st.sampled_from(PROBED), st.booleans())
@settings(max_examples=examples(250), deadline=None)
def test_no_capture_holds_a_secret_wherever_it_stood(place: str, secret: str, probe: Probe, is_said: bool) -> None:
    # Journals tell each thing in a line, and are read so.
    assume("\n" not in PLACES[place].rstrip("\n") or not probe.source.startswith(LOGS))
    seen = {probe.key: captured(probe, f"before\n{PLACES[place].format(secret)}\nafter\n", is_said=is_said)}
    with tempfile.TemporaryDirectory() as folder:
        save(seen, path := Path(folder) / "node.tar.gz")
        kept = load(path)[probe.key]
    assert not leaks(secret, f"{kept.source}{kept.text}{kept.error}"), (place, kept.text)
    assert "before" in kept.text + kept.error
    assert "after" in kept.text + kept.error


@given(st.sampled_from(sorted(ANY_SIGNS)), word(LETTERS, 8, 9), drawn, st.sampled_from("#[]{},\\=@/:?&%$|;!*()+^~`é"))
@settings(max_examples=examples(250), deadline=None)
def test_nor_a_part_of_it_whatever_signs_it_is_of(place: str, first: str, second: str, sign: str) -> None:
    assume(not leaks(first, ANY_SIGNS[place]))  # `password` stands in its option's name
    for secret in (f"{first}{sign}{second}", f"{sign}{second}"):
        assume(not secret.startswith(("=", "://")) and "//" not in secret)
        # JSON's own line feed, which ends what stands in front of it.
        assume(not ("json" in place and secret.startswith(("\\n", "\\r"))))
        kept = text(ANY_SIGNS[place].format(secret))
        assert not leaks(first, kept), kept
        assert not leaks(second, kept), kept
        assert text(kept) == kept


@pytest.mark.parametrize("sign", [*"<>,;:#?/!$&*()[]{}|^~`+=%\\", " ", " -", '\\"'])
@pytest.mark.parametrize("place", ADDRESSES)
def test_nor_of_an_addresses_password(place: str, sign: str) -> None:
    kept = text(ADDRESSES[place].format(f"q7Wk2nVx{sign}9Lr4Tz8P"))
    assert "q7Wk2nVx" not in kept
    assert "9Lr4Tz8P" not in kept
    assert "no-proxy" in kept or place != "docker"
    assert text(kept) == kept


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("place", ["environment", "export", "more than one", "unit without quotes", "yaml", "kernel"])
def test_nor_where_a_quote_stands_in_a_word(place: str, quote: str) -> None:
    kept = text(ANY_SIGNS[place].format(f"q7Wk2nVx{quote}9Lr4Tz8P"))
    assert "q7Wk2nVx" not in kept
    assert "9Lr4Tz8P" not in kept
    assert text(kept) == kept


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('{"password": "x7", "Runtimes": {"nvidia": {}}}', '{"password": "redacted", "Runtimes": {"nvidia": {}}}'),
        ('{"Env":["A_TOKEN=x7","B=c"],"Image":"x"}', '{"Env":["A_TOKEN=redacted","B=c"],"Image":"x"}'),
        ('{"tokens": [128, 256], "x": 1}', '{"tokens": [128, 256], "x": 1}'),
        ("{Username:bob Password:x7 URL:https://h}", None),
        ("{token: x7, image: cuda}", "{token: redacted, image: cuda}"),
        ("tokens: [x7a, x7b]", "tokens: [redacted]"),
        ("secret: {name: gpu}", "secret: {name: gpu}"),
        ('auth = { username = "u", password = "x7" }', 'auth = { username = "u", password = "redacted" }'),
        ("mount -o username=bob,password=x7,vers=3.0", "mount -o username=bob,password=redacted,vers=3.0"),
        ('msg="token=x7" image="nvidia/cuda"', 'msg="token=redacted" image="nvidia/cuda"'),
        ("HF_TOKEN=x7 CUDA_VISIBLE_DEVICES=0", None),
        ("docker run -e HF_TOKEN=x7 --gpus all cuda", "docker run -e HF_TOKEN=redacted --gpus all cuda"),
        ('sh -c "TOKEN=x7 -v"', 'sh -c "TOKEN=redacted -v"'),
        ('authorization: failed to pull image "nvcr.io/x"', 'authorization: failed to pull image "nvcr.io/x"'),
        ("token:   # rotated", "token:   # rotated"),
        ("<https://h:8080>, <bob@example.org>", "<https://h:8080>, <bob@example.org>"),
        ('{"url":"https://h:8080","by":"bob@example.org"}', '{"url":"https://h:8080","by":"bob@example.org"}'),
        ("netroot=iscsi:10.0.0.1::3260::iqn.x", "netroot=iscsi:10.0.0.1::3260::iqn.x"),
        ("XAUTHORITY=/root/.Xauthority SSH_AUTH_SOCK=/run/x", "XAUTHORITY=/root/.Xauthority SSH_AUTH_SOCK=/run/x"),
        ("NVIDIA_BYPASS=a COMPASS=b", "NVIDIA_BYPASS=a COMPASS=b"),
        ('MOK_SIGNING_KEY="/var/lib/dkms/mok.key"', 'MOK_SIGNING_KEY="/var/lib/dkms/mok.key"'),
    ],
)
def test_what_stands_beside_a_secret_stays(written: str, kept: str | None) -> None:
    assert "x7" not in text(written)
    if kept is not None:
        assert text(written) == kept


@given(st.sampled_from(sorted(SENTENCES)), drawn)
@settings(max_examples=examples(60), deadline=None)
def test_nor_where_a_sentence_speaks_of_it(place: str, secret: str) -> None:
    assert not leaks(secret, text(SENTENCES[place].format(secret)))


@given(shaped, st.sampled_from(["{}", "x={}", "said {} then", '"{}"', "https://h/{}/x", "[{}]"]))
@settings(max_examples=examples(120), deadline=None)
def test_nor_one_that_tells_by_its_form_what_it_is(secret: str, place: str) -> None:
    assume(secret[-1] not in "-_")
    assert not leaks(secret, text(place.format(secret)))


@given(st.sampled_from(sorted(PLACES)), secrets)
@settings(max_examples=examples(100), deadline=None)
def test_taking_secrets_out_twice_is_doing_it_once(place: str, secret: str) -> None:
    once = text(PLACES[place].format(secret))
    assert text(once) == once


@given(st.sampled_from(sorted(PLACES)), secrets)
@settings(max_examples=examples(60), deadline=None)
def test_the_command_that_somebody_typed_is_its_source_too(place: str, secret: str) -> None:
    assume("\n" not in PLACES[place])
    command = PLACES[place].format(secret)
    (key,) = after = redact({command: Capture(command, "ok", b"x\n")})
    assert not leaks(secret, key + after[key].source)


def told(found: Diagnosis) -> object:
    return [(one.cause, one.confidence, one.explained_by, one.gpus) for one in found.findings], found.unknown


@pytest.mark.parametrize("report", reports()[::20], ids=lambda report: report.name)
def test_secrets_beside_the_evidence_take_nothing_of_it_along(report: Report) -> None:
    """Every place in every piece, before the lines that decide and behind them."""
    one_line = [place.format("q7Wk2nVx9Lr4Tz8P") for place in PLACES.values() if "\n" not in place.rstrip("\n")]
    rows = [(one["source"], one["text"]) for one in report.evidence]
    noise = ("/root/.bash_history", "\n".join(one_line))
    plain = diagnose(snapshot(redact(pasted.evidence([*rows, noise]))))
    assert [one.cause for one in plain.roots] == [one.cause for one in diagnose(snapshot(pasted.evidence(rows))).roots]


@pytest.mark.parametrize(
    "said",
    [
        "ClientConfigTokenPath=/etc/nvidia/ClientConfigToken",
        "K3S_TOKEN_FILE=/x",
        "token: invalid NVIDIA license token",
        "nvidia-gridd: Failed to acquire license; token=expired",
        "authorization: failed to pull image",
        "MOK password: invalid",
        "auth: nvidia-persistenced: failed",
        "data/../../etc/passwd: its name leads out of the capture's data folder",
        "cat: /etc/nvidia/ClientConfigToken/token: No such file or directory",
    ],
)
def test_what_a_diagnosis_needs_is_no_secret(said: str) -> None:
    assert text(said) == said


def test_no_finding_is_another_without_the_secrets() -> None:
    """Of the reports in which anything is taken out; of the others nothing changes."""
    for report in reports():
        seen = pasted.evidence([(one["source"], one["text"]) for one in report.evidence])
        if (redacted := redact(seen)) != seen:
            assert told(diagnose(snapshot(redacted))) == told(diagnose(snapshot(seen))), report.name


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("why", WHY_NOT)
def test_why_an_image_was_not_pulled_is_told_without_the_secrets_too(why: str, frame: str) -> None:
    """A registry's answers speak of tokens and passwords, and their addresses end in such words."""
    seen = pasted.evidence(FRAMES[frame](WHY_NOT[why]))
    assert redact(seen) == seen
    assert told(diagnose(snapshot(redact(seen)))) == told(diagnose(snapshot(seen)))
