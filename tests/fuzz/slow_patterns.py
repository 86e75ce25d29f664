"""Regular expressions of gpunode whose time grows faster than their text; prints them, each with what makes it slow.

    python tests/fuzz/slow_patterns.py [KIB]

Every pattern that is compiled on import, or while doctor reads the scenarios, is searched in texts made of its own
literals and of the signs that repeat in logs, at two lengths. Four times the time for twice the length is a square.
"""

from __future__ import annotations

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

SCENARIOS = Path(__file__).parent.parent / "scenarios/doctor"
SIGNS = (
    *(" ", "a", "0", "a ", "0 ", ":", ".", "-", "/", "\n", "\t", "(", "[", "'", '"', "=", "_", "a:", "a.", "0.", "ab/"),
    *("\n ", "0:", " :", "aA0", ", ", "a=", "\n\n", "a\n", "{", "<"),
)
LIMIT_S = 20.0
PATTERNS: dict[tuple[str, int], re.Pattern[str]] = {}


def watch() -> None:
    """Every pattern that is compiled from now on is kept."""
    compiled = re._compile  # type: ignore[attr-defined]

    def keep(pattern: Any, flags: Any) -> Any:
        made = compiled(pattern, flags)
        if isinstance(made.pattern, str):
            PATTERNS[made.pattern, made.flags] = made
        return made

    re._compile = keep  # type: ignore[attr-defined]


def load() -> None:
    """All of facts, diagnoses and host is imported, and doctor has read every scenario."""
    for name in ("facts", "diagnoses", "host", "catalog"):
        package = importlib.import_module(f"gpunode.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"gpunode.{name}."):
            importlib.import_module(module.name)
    from gpunode.diagnoses import diagnose
    from gpunode.diagnoses.snapshot import snapshot
    from gpunode.facts import pasted

    for path in sorted(SCENARIOS.rglob("*.json")):
        pieces = json.loads(path.read_text())["evidence"]
        diagnose(snapshot(pasted.evidence([(one["source"], one["text"]) for one in pieces])), guarded=True)


def units(pattern: str) -> Iterator[str]:
    """What to repeat: the signs, and the pattern's own words with and without a sign behind each."""
    yield from SIGNS
    plain = re.sub(r"\(\?[:<!=P][^)]{0,20}?[>:]?|\\[bBdDsSwWAZ]|[()|^$?+*]|\[[^\]]*\]|\{[\d,]*\}", "\x00", pattern)
    words = {word.replace("\\", "") for word in plain.split("\x00") if word.strip(" \\")}
    for word in sorted(words, key=len, reverse=True)[:8]:
        yield from (word, f"{word} ", f"{word}a", f"{word}\n")


class Slow(Exception):
    """One search took longer than it may."""


def spent(pattern: re.Pattern[str], text: str) -> float:
    """The processor time of finding all matches of ``pattern`` in ``text``."""
    started = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        for _ in pattern.finditer(text):
            pass
    except Slow:
        return LIMIT_S
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - started


def main() -> None:
    """Prints the slow ones."""

    def raise_slow(*_: object) -> None:
        raise Slow

    signal.signal(signal.SIGVTALRM, raise_slow)
    watch()
    load()
    length = int(sys.argv[1]) << 10 if len(sys.argv) > 1 else 1 << 15
    print(f"{len(PATTERNS)} patterns")
    for pattern in list(PATTERNS.values()):
        worst = (0.0, 0.0, "")
        for unit in units(pattern.pattern):
            once = spent(pattern, (unit * (length // len(unit) + 1))[:length])
            if once < length * 1e-6:
                continue
            twice = spent(pattern, (unit * (2 * length // len(unit) + 1))[: 2 * length])
            if twice > 2.9 * once or twice >= LIMIT_S:
                worst = max(worst, (twice, once, unit))
        if worst[0]:
            print(f"{worst[1]:.2f} s, {worst[0]:.2f} s of {worst[2]!r}: {pattern.pattern[:300]!r}", flush=True)


if __name__ == "__main__":
    main()
