"""What needs no test node: start-up, peak memory, and how patching grows with its file."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import cost, row, side_by_side, title

ROOT = Path(__file__).parent.parent
SAMPLE = str(ROOT / "gpunode/samples/debian12-gtx1080")
GPUNODE = (sys.executable, "-m", "gpunode")
# Compiled modules are kept, as an installed gpunode's are, whatever this shell says.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONPATH": str(ROOT),
    "PYTHONPYCACHEPREFIX": str(ROOT / "build/bench-pycache"),
    "NO_COLOR": "1",
}


def startup(times: int = 15) -> None:
    """Processor time of the two commands that do nothing, as multiples of a Python that does nothing."""
    title(f"Start-up: processor time, median of {times}, in turns")
    commands = {
        "python3 -c pass": (sys.executable, "-c", "pass"),
        "gpunode --version": (*GPUNODE, "--version"),
        "gpunode plan --help": (*GPUNODE, "plan", "--help"),
        "gpunode status --node SAMPLE": (*GPUNODE, "status", "--node", SAMPLE),
        "gpunode plan containerd --node SAMPLE": (*GPUNODE, "plan", "containerd", "--node", SAMPLE),
    }
    costs = side_by_side({name: partial(cost, argv, ENVIRONMENT) for name, argv in commands.items()}, times)
    bare = costs["python3 -c pass"].cpu_s
    goals = {"gpunode --version": "goal ≤ 2×", "gpunode plan --help": "goal ≤ 8×"}
    for name, one in costs.items():
        row(name, f"{one.cpu_s * 1000:.0f} ms", f"{one.cpu_s / bare:.1f}×", goals.get(name, ""))


def memory() -> None:
    """The peak of each verb that runs without a node of its own."""
    title("Peak memory of any one process (goal: under 80 MB)")
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as folder:
        verbs = {
            "plan": ("plan", "containerd", "--node", SAMPLE),
            "rehearse": ("rehearse", "containerd"),
            "status": ("status", "--node", SAMPLE),
            "verify": ("verify", "containerd"),
            "rollback --list": ("rollback", "--list"),
            "capture": ("capture", f"{folder}/node.tar.gz"),
            "doctor on a capture": ("doctor", f"{folder}/node.tar.gz"),
            "recipe list": ("recipe", "list"),
            "recipe from-node": ("recipe", "from-node", "--node", SAMPLE),
        }
        for name, words in verbs.items():
            one = cost((*GPUNODE, *words), ENVIRONMENT)
            row(name, f"{one.peak_mb:.0f} MB", f"exit {one.exit_status}")


def patching() -> None:
    """How the time of adding NVIDIA's runtime grows with the file: 1.0 is linear, 2.0 quadratic."""
    from gpunode.runtimes import DesiredConfig, runtime

    title("Patching: processor time by size of the file")
    for name, make in (("containerd", _containerd), ("docker", _docker)):
        before: tuple[int, float] | None = None
        for entries in (50, 200, 800, 3200):
            content = make(entries)
            spent = min(
                _timed(partial(runtime(name).configure, {runtime(name).config: content}, DesiredConfig()))
                for _ in range(3)
            )
            growth = "" if before is None else _exponent(before, (len(content), spent))
            row(f"{name}, {len(content) / 1024:.0f} KiB", f"{spent * 1000:.1f} ms", growth)
            before = (len(content), spent)


def _exponent(before: tuple[int, float], after: tuple[int, float]) -> str:
    import math

    return f"size^{math.log(after[1] / before[1]) / math.log(after[0] / before[0]):.2f}"


def _timed(work: partial[object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _containerd(mirrors: int) -> bytes:
    head = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry.mirrors]\n'
    one = '  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."r{0}.example"] # mirror {0}\n    endpoint = ["https://m{0}.example"]\n'
    return (head + "".join(one.format(n) for n in range(mirrors))).encode()


def _docker(labels: int) -> bytes:
    listed = ",\n".join(f'    "label-{n}=value-{n}"' for n in range(labels))
    return f'{{\n  "log-driver": "json-file",\n  "labels": [\n{listed}\n  ]\n}}\n'.encode()
