"""Benchmark of ``k8s render``, for one node and for a thousand captures in one call."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.alone import ENVIRONMENT, GPUNODE
from benchmarks.measure import measure_command, print_row, print_title

FLEET_SIZES = (1, 10, 100, 1000)
SAMPLE = "debian12-gtx1080"


def measure_rendering() -> None:
    """Print the cost of rendering the shipped sample under many names."""
    print_title("k8s render: one run each (goals: one node ≤ 0.3 s of processor, linear in the captures)")
    smaller, smaller_size = None, 0
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as folder:
        for size in FLEET_SIZES:
            nodes = (word for number in range(size) for word in ("--node", f"gpu-{number:04}={SAMPLE}"))
            run = measure_command(
                (*GPUNODE, "k8s", "render", *nodes, "--output", str(Path(folder, str(size)))), ENVIRONMENT
            )
            cells = [f"{run.wall_s:.2f} s", f"cpu {run.cpu_s:.2f} s", f"{run.peak_mb:.0f} MB"]
            if smaller:
                added = size - smaller_size
                cells += [f"+{1000 * (run.cpu_s - smaller.cpu_s) / added:.1f} ms each"]
                cells += [f"+{1024 * (run.peak_mb - smaller.peak_mb) / added:.0f} KiB each"]
            print_row(f"k8s render, {size} node{'s' if size > 1 else ''}", *cells, f"exit {run.exit_status}")
            smaller, smaller_size = run, size


if __name__ == "__main__":
    measure_rendering()
