"""What ``k8s render`` costs for one node and for a thousand captures in one call."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.alone import ENVIRONMENT, GPUNODE
from benchmarks.measure import cost, row, title

FLEETS = (1, 10, 100, 1000)
SAMPLE = "debian12-gtx1080"


def rendering() -> None:
    """The shipped sample under as many names."""
    title("k8s render: one run each (goals: one node ≤ 0.3 s of processor, linear in the captures)")
    former, before = None, 0
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as folder:
        for size in FLEETS:
            nodes = (word for number in range(size) for word in ("--node", f"gpu-{number:04}={SAMPLE}"))
            run = cost((*GPUNODE, "k8s", "render", *nodes, "--out", str(Path(folder, str(size)))), ENVIRONMENT)
            cells = [f"{run.wall_s:.2f} s", f"cpu {run.cpu_s:.2f} s", f"{run.peak_mb:.0f} MB"]
            if former:
                more = size - before
                cells += [f"+{1000 * (run.cpu_s - former.cpu_s) / more:.1f} ms each"]
                cells += [f"+{1024 * (run.peak_mb - former.peak_mb) / more:.0f} KiB each"]
            row(f"k8s render, {size} node{'s' if size > 1 else ''}", *cells, f"exit {run.exit_status}")
            former, before = run, size


if __name__ == "__main__":
    rendering()
