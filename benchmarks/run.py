"""Prints what gpunode costs, as ratios measured in one run. Nothing is asserted: a ratio is for a person to judge.

``make bench`` runs all of it; ``make bench BENCH_ARGS="startup memory"`` a part. Those in a test node need root and the
tools of the test lab.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

PARTS = ("startup", "memory", "patching", "configuring", "diagnosing", "picturing", "rendering", "node", "fleet")


def main(wanted: list[str]) -> int:
    """Runs the named parts, or all."""
    if unknown := [name for name in wanted if name not in PARTS]:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are: {', '.join(PARTS)}\n")
        return 2
    from gpunode import __version__

    load = os.getloadavg()[0]
    print(f"gpunode {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f}")
    if load > 1:
        print("other work runs on this machine: trust the ratios of processor time, not the seconds")
    for name in wanted or PARTS:
        if name in {"node", "fleet"}:
            importlib.import_module(f"benchmarks.{name}").benchmark()
        else:
            from benchmarks import alone, configure, diagnosing, rendering

            parts = {"startup": alone.startup, "memory": alone.memory, "patching": alone.patching}
            parts |= {"configuring": configure.configuring, "diagnosing": diagnosing.diagnosing}
            {**parts, "picturing": diagnosing.picturing, "rendering": rendering.rendering}[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
