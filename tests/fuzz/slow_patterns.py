"""Regular expressions of gpunode whose time grows faster than their text; prints them, each with what makes it slow.

    python tests/fuzz/slow_patterns.py [KIB]

Every pattern of facts and diagnoses that doctor searches with, and every one that finds secrets, is searched in texts
made of its own literals and of the signs that repeat in logs, at two lengths; four times the time for twice the length
is a square. Which are asked only at the start of a text, as names are, is seen while doctor reads the scenarios: these
are left out. Short texts are enough to see a square in, so that this takes minutes: what takes an hour is not run, and
finds nothing. It ends with 1 where it found one.
"""

from __future__ import annotations

import gc
import importlib
import json
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpunode.facts.patterns import Pattern

SCENARIOS = Path(__file__).parent.parent / "scenarios/doctor"
SIGNS = (
    *(" ", "a", "0", "a ", "0 ", ":", ".", "-", "/", "\n", "\t", "(", "[", "'", '"', "=", "_", "a:", "a.", "0.", "ab/"),
    *("\n ", "0:", " :", "aA0", ", ", "a=", "\n\n", "a\n", "{", "<"),
)
LIMIT_S = 1.0
# A line takes a fifth of this for each character.
LINEAR_S = 4e-7


def load() -> None:
    """Import all of facts and diagnoses, and let doctor read every scenario."""
    for name in ("facts", "diagnoses"):
        package = importlib.import_module(f"gpunode.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"gpunode.{name}."):
            importlib.import_module(module.name)
    from gpunode.diagnoses import diagnose
    from gpunode.diagnoses.snapshot import take_snapshot
    from gpunode.facts import pasted

    for path in sorted(SCENARIOS.rglob("*.json")):
        pieces = json.loads(path.read_text())["evidence"]
        diagnose(take_snapshot(pasted.collect_pieces([(one["source"], one["text"]) for one in pieces])), guarded=True)


def watched() -> frozenset[Pattern]:
    """The patterns that look for a place to begin: all but those that doctor asked at the start of a text alone."""
    asked: dict[str, set[Pattern]] = {}

    def keep(name: str) -> None:
        method = getattr(Pattern, name)

        def watching(pattern: Pattern, *rest: Any, **named: Any) -> Any:
            asked.setdefault(name, set()).add(pattern)
            return method(pattern, *rest, **named)

        setattr(Pattern, name, watching)

    names = ("search", "finditer", "findall", "sub", "split", "match", "fullmatch")
    for name in names:
        keep(name)
    load()
    searched = frozenset[Pattern]().union(*(asked.get(name, set()) for name in names[:5]))
    at_start = asked.get("match", set()) | asked.get("fullmatch", set())
    every = {one for one in gc.get_objects() if isinstance(one, Pattern)}
    return frozenset(every - (at_start - searched)) | of_host()


def of_host() -> frozenset[Pattern]:
    """Return the patterns with which secrets and names are looked for."""
    from gpunode.facts.evidence import Capture
    from gpunode.redaction import anonymize, config, named, patterns, secrets

    asked: set[re.Pattern[str]] = set()
    compiled = patterns.compile_cached

    def keep(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
        asked.add(one := compiled(pattern, flags))
        return one

    for module in (anonymize, named, patterns, secrets, config):
        vars(module)["compiled"] = keep
    text = "\n".join(
        f"{word}=x@" for words, _ in (*secrets.CONTEXT_FREE_FORMS, *secrets.CONTEXTUAL_FORMS) for word in words
    )
    secrets.redact_text(text)
    config.redact_config('[a]\nb = "c" # d\ne: |\n  f\n{"g": ["h"]}\n')
    anonymize.anonymize_evidence({"x": Capture("dmesg", "ok", b"Node: gpu-7\nhttps://a.acme.io Serial: 12345678\n")})
    return frozenset(Pattern(one.pattern, one.flags) for one in asked)


def units(pattern: str) -> Iterator[str]:
    """Yield what to repeat: the signs, and the pattern's own words with and without a sign behind each."""
    yield from SIGNS
    plain = re.sub(r"\(\?[:<!=P][^)]{0,20}?[>:]?|\\[bBdDsSwWAZ]|[()|^$?+*]|\[[^\]]*\]|\{[\d,]*\}", "\x00", pattern)
    words = {word.replace("\\", "") for word in plain.split("\x00") if word.strip(" \\")}
    for word in sorted(words, key=len, reverse=True)[:8]:
        yield from (word, f"{word} ", f"{word}a", f"{word}\n")


class Slow(Exception):
    """Exception for a search that took longer than it may."""


def spent(pattern: Pattern, text: str) -> float:
    """Return the processor time of finding all matches of ``pattern`` in ``text``."""
    started = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        for _ in pattern.compiled.finditer(text):
            pass
    except Slow:
        return LIMIT_S
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - started


def slowest(pattern: Pattern, length: int) -> tuple[float, float, str]:
    """The times for twice ``length`` and for ``length`` of what costs most, and what it is made of; zeros for none."""
    worst = (0.0, 0.0, "")
    for unit in units(pattern.pattern):
        text = unit * (2 * length // len(unit) + 1)
        if spent(pattern, text[:length]) < length * LINEAR_S:
            continue
        # Again: the first time has the compiling in it, and whatever else the machine did.
        once, twice = spent(pattern, text[:length]), spent(pattern, text[: 2 * length])
        if once >= length * LINEAR_S and (twice > 2.9 * once or twice >= LIMIT_S):
            worst = max(worst, (twice, once, unit))
    return worst


def main() -> None:
    """Print the slow ones."""

    def raise_slow(*_: object) -> None:
        raise Slow

    signal.signal(signal.SIGVTALRM, raise_slow)
    patterns = watched()
    length = int(sys.argv[1]) << 10 if len(sys.argv) > 1 else 1 << 12
    print(f"{len(patterns)} patterns")
    found = 0
    for pattern in sorted(patterns, key=lambda one: one.pattern):
        twice, once, unit = slowest(pattern, length)
        if twice:
            found += 1
            print(f"{once:.3f} s, {twice:.3f} s of {unit!r}: {pattern.pattern[:300]!r}", flush=True)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
