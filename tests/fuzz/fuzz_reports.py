"""Mutated reports for all that doctor reads: an answer, or a refusal, in bounded time.

Run by hand (docs/verification.md says when it was): in an environment with atheris and gpunode,

    python tests/fuzz/fuzz_reports.py text CORPUS -max_total_time=600 -timeout=20 -rss_limit_mb=2048 -max_len=65536

for ``text`` (any report that somebody sends: list, terminal, bug report), ``evidence`` (a text under the name of any
probe or source, through rules, stack and comparison), ``archive`` (a capture) or ``redact`` (its secrets and names).
CORPUS is a folder that gets what it finds; it begins with the pieces of the scenarios. An input that breaks a promise
is left as a file in the current folder.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gpunode", "json"]):
    from gpunode.diagnoses import diagnose
    from gpunode.diagnoses.comparison import compare
    from gpunode.diagnoses.snapshot import take_snapshot
    from gpunode.diagnoses.stack import stack_layers
    from gpunode.errors import GpunodeError
    from gpunode.facts import pasted
    from gpunode.facts.evidence import Capture, ProbeOutcome
    from gpunode.facts.examination import DOCTOR_PROBES
    from gpunode.facts.follow_ups import follow_ups
    from gpunode.facts.probes import PROBES
    from gpunode.host import capture, reports
    from gpunode.redaction.anonymize import anonymize_evidence
    from gpunode.redaction.evidence import redact

SCENARIOS = Path(__file__).parent.parent / "scenarios/doctor"
PIECES = [(one["source"], one["text"]) for path in sorted(SCENARIOS.rglob("*.json"))
          for one in json.loads(path.read_text())["evidence"]]  # fmt: skip
SOURCES = [(probe.key, probe.source) for probe in (*PROBES, *DOCTOR_PROBES)] + [
    (source, source) for source, _ in PIECES
]
RULE = b"_" * 44


def by_line(data: bytes, max_size: int, seed: int) -> bytes:
    """``data`` with lines moved, doubled, dropped, cut, or a line of another report among them; or mutated blindly."""
    chance = random.Random(seed)
    if chance.random() < 0.3:
        return bytes(atheris.Mutate(data, max_size))
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(lines))
        foreign = chance.choice(chance.choice(PIECES)[1].encode().split(b"\n"))
        what = chance.random()
        if what < 0.3 and len(lines) > 1:
            del lines[at]
        elif what < 0.4:
            lines[at] = lines[at][: chance.randint(0, len(lines[at]))]
        else:
            lines[at:at] = chance.choice(
                [[lines[at]] * chance.choice([1, 50]), [foreign], [b"  " + foreign], [RULE, b""]]
            )
    return b"\n".join(lines)[:max_size]


def _examined(evidence: dict[str, Capture]) -> None:
    seen = take_snapshot(evidence)
    found = diagnose(seen)  # unguarded: a rule's bug is to be seen
    stack_layers(seen, found)
    compare(seen, seen, found)
    compare(take_snapshot({}), seen, found)
    follow_ups(evidence)


def text(data: bytes) -> None:
    """Assert that whatever somebody sends is an answer or a refusal."""
    try:
        evidence = reports._parse_bytes(data, "x")
    except GpunodeError:
        return
    _examined(dict(evidence))
    decoded = data.decode("utf-8", "replace")
    pasted.parse_bug_report(decoded)
    pasted.parse_text_report(decoded)


OUTCOMES: tuple[ProbeOutcome, ...] = ("ok", "ok", "ok", "failed", "timeout")


def evidence(data: bytes) -> None:
    """Assert that any text may be what any probe said, beside the rest of a real report."""
    chance = random.Random(zlib.crc32(data))
    key, source = chance.choice(SOURCES)
    start = chance.randrange(len(PIECES))
    others = pasted.collect_pieces(PIECES[start : start + 3])
    outcome: ProbeOutcome = chance.choice(OUTCOMES)
    _examined({**others, key: Capture(source, outcome, data, error=data[:80].decode("utf-8", "replace"))})


def archive(data: bytes) -> None:
    """Assert that a capture whose index, archive or compression is damaged is refused, or is a capture."""
    index = {"schema": 2, "probes": {"dmesg": {"source": "dmesg", "outcome": "ok", "file": "data/x"}}}
    chance = random.Random(zlib.crc32(data))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar.gz"
        if chance.random() < 0.4:
            path.write_bytes(gzip.compress(data))
        else:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as file:
                named = (
                    {"capture.json": data} if chance.random() < 0.6 else {"capture.json": json.dumps(index).encode()}
                )
                for name, content in {**named, "data/x": data}.items():
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
            raw = bytearray(packed.getvalue())
            if chance.random() < 0.5:
                raw[chance.randrange(min(1024, len(raw)))] ^= 1 << chance.randrange(8)
            path.write_bytes(gzip.compress(bytes(raw), 1))
        try:
            loaded = capture.load_capture(path)
        except GpunodeError:
            return
        _examined(dict(loaded))


def secrets(data: bytes) -> None:
    """Assert that redacting twice is redacting once; masking does not fail, and keeps the number of lines."""
    once = redact({"x": Capture("journalctl -u kubelet", "ok", data), "y": Capture("/etc/x", "ok", data)})
    assert redact(once) == once
    assert anonymize_evidence(once)["x"].data.count(b"\n") == once["x"].data.count(b"\n")


def main() -> None:
    """Fuzz what the first argument names; the rest is libFuzzer's."""
    what, corpus = sys.argv[1:3]
    targets = {"text": text, "evidence": evidence, "archive": archive, "redact": secrets}
    folder = Path(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (source, said) in enumerate(PIECES):
        typed = f"$ {source}\n{said}\n" if what == "text" else said
        (folder / f"piece-{number:04}").write_bytes(typed.encode())
    if what == "archive":
        rows = {
            "schema": 2,
            "probes": {"x": {"source": "dmesg", "outcome": "ok", "file": "data/x", "exit_status": 0}},
        }
        (folder / "index").write_text(json.dumps(rows))
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets[what], custom_mutator=by_line)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
