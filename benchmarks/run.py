"""Print benchmarks of gpunode as ratios measured in one run. Nothing is asserted: a person judges the ratios.

``make bench`` runs all of them; ``make bench BENCH_ARGS="startup memory"`` only these. Those on a test node need root
and the tools of the test lab.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

BENCHMARKS = ("startup", "memory", "patching", "configuring", "diagnosing", "picturing", "rendering", "node", "fleet")


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return the exit status."""
    if unknown := [name for name in names if name not in BENCHMARKS]:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}\n")
        return 2
    from gpunode import __version__

    load = os.getloadavg()[0]
    print(f"gpunode {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f}")
    if load > 1:
        print("other work runs on this machine: trust the ratios of processor time, not the seconds")
    for name in names or BENCHMARKS:
        if name in {"node", "fleet"}:
            importlib.import_module(f"benchmarks.{name}").benchmark()
        else:
            from benchmarks import alone, configure, diagnosing, rendering

            functions = {
                "startup": alone.measure_startup,
                "memory": alone.measure_memory,
                "patching": alone.measure_patching,
            }
            functions |= {"configuring": configure.measure_configuring, "diagnosing": diagnosing.measure_doctor}
            {**functions, "picturing": diagnosing.measure_fleet_page, "rendering": rendering.measure_rendering}[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
