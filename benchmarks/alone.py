"""Benchmarks without a test node: start-up, peak memory, and the growth of patching with the file size."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import measure_command, measure_in_turns, print_row, print_title

ROOT = Path(__file__).parent.parent
SAMPLE = str(ROOT / "gpunode/samples/debian12-gtx1080")
GPUNODE = (sys.executable, "-m", "gpunode")
# Compiled modules are kept, as for an installed gpunode, whatever this shell's settings are.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONPATH": str(ROOT),
    "PYTHONPYCACHEPREFIX": str(ROOT / "build/bench-pycache"),
    "NO_COLOR": "1",
}


def measure_startup(times: int = 15) -> None:
    """Print the processor time of short commands as multiples of a Python that does nothing."""
    print_title(f"Start-up: processor time, median of {times}, in turns")
    commands = {
        "python3 -c pass": (sys.executable, "-c", "pass"),
        "gpunode --version": (*GPUNODE, "--version"),
        "gpunode plan --help": (*GPUNODE, "plan", "--help"),
        "gpunode status --node SAMPLE": (*GPUNODE, "status", "--node", SAMPLE),
        "gpunode plan containerd --node SAMPLE": (*GPUNODE, "plan", "containerd", "--node", SAMPLE),
    }
    costs = measure_in_turns(
        {name: partial(measure_command, argv, ENVIRONMENT) for name, argv in commands.items()}, times
    )
    python_cpu_s = costs["python3 -c pass"].cpu_s
    goals = {"gpunode --version": "goal ≤ 2×", "gpunode plan --help": "goal ≤ 8×"}
    for name, cost in costs.items():
        print_row(name, f"{cost.cpu_s * 1000:.0f} ms", f"{cost.cpu_s / python_cpu_s:.1f}×", goals.get(name, ""))


def measure_memory() -> None:
    """Print the peak memory of each command that needs no test node."""
    print_title("Peak memory of any one process (goal: under 80 MB)")
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as folder:
        commands = {
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
        for name, words in commands.items():
            cost = measure_command((*GPUNODE, *words), ENVIRONMENT)
            print_row(name, f"{cost.peak_mb:.0f} MB", f"exit {cost.exit_status}")


def measure_patching() -> None:
    """Print how the time to add NVIDIA's runtime grows with the file: 1.0 is linear, 2.0 quadratic."""
    from gpunode.runtimes import DesiredConfig, find_runtime

    print_title("Patching: processor time by size of the file")
    for name, make_content in (("containerd", _make_containerd_config), ("docker", _make_docker_config)):
        smaller: tuple[int, float] | None = None
        for entries in (50, 200, 800, 3200):
            content = make_content(entries)
            cpu_s = min(
                _measure_cpu_time(
                    partial(find_runtime(name).configure, {find_runtime(name).config: content}, DesiredConfig())
                )
                for _ in range(3)
            )
            growth = "" if smaller is None else _describe_growth(smaller, (len(content), cpu_s))
            print_row(f"{name}, {len(content) / 1024:.0f} KiB", f"{cpu_s * 1000:.1f} ms", growth)
            smaller = (len(content), cpu_s)


def _describe_growth(smaller: tuple[int, float], larger: tuple[int, float]) -> str:
    import math

    return f"size^{math.log(larger[1] / smaller[1]) / math.log(larger[0] / smaller[0]):.2f}"


def _measure_cpu_time(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _make_containerd_config(mirrors: int) -> bytes:
    head = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry.mirrors]\n'
    mirror = '  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."r{0}.example"] # mirror {0}\n    endpoint = ["https://m{0}.example"]\n'
    return (head + "".join(mirror.format(n) for n in range(mirrors))).encode()


def _make_docker_config(labels: int) -> bytes:
    label_lines = ",\n".join(f'    "label-{n}=value-{n}"' for n in range(labels))
    return f'{{\n  "log-driver": "json-file",\n  "labels": [\n{label_lines}\n  ]\n}}\n'.encode()
