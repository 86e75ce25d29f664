"""Benchmarks of doctor: a live node whose nvidia-smi hangs, a capture, and a thousand captures in one call."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.alone import ENVIRONMENT, GPUNODE, ROOT
from benchmarks.measure import Cost, measure_command, measure_in_turns, print_row, print_title

REPORTS = ROOT / "tests/scenarios/doctor"
# nvidia-smi when the driver is stuck: SIGTERM does not end it.
HANGING_SMI_SCRIPT = "#!/bin/sh\ntrap '' TERM\nsleep 600 & sleep 600\n"
# gpunode searches for programs in its own path; this one begins with the stand-ins. Without a loaded driver, doctor
# does not run nvidia-smi, which could load it; here it does.
DOCTOR_SCRIPT = """\
import sys
from gpunode.facts import follow_ups
from gpunode.host import process
process.PATH = {path!r} + ":" + process.PATH
from gpunode.workflow import doctor
follow_ups.can_query_driver = doctor.can_query_driver = lambda evidence: True
sys.argv = ["gpunode", "doctor"]
from gpunode.__main__ import main
sys.exit(main())
"""
FLEET_SIZES = (10, 100, 1000)
PAGE_FLEET_SIZES = (500, 5000)
# The number of different captures; a larger fleet repeats them.
DISTINCT_CAPTURES = 40


def measure_doctor(times: int = 5) -> None:
    """Print the costs of all three; the captures are of this machine, with parts of real reports added."""
    print_title(
        f"doctor: median of {times}, in turns (goals: a capture ≤ 0.5 s; a hanging tool costs its limit, 10 s, once)"
    )
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as name:
        folder = Path(name)
        _measure_live_node(folder)
        capture = folder / "node.tar.gz"
        cost = measure_command((*GPUNODE, "capture", str(capture)), ENVIRONMENT)
        print_row(
            "gpunode capture",
            f"{cost.wall_s:.2f} s",
            f"cpu {cost.cpu_s:.2f} s",
            f"{capture.stat().st_size >> 10} KiB",
        )
        _measure_captures(folder, capture, times)


def _measure_live_node(folder: Path) -> None:
    stand_ins = folder / "bin"
    stand_ins.mkdir()
    normal = measure_command((*GPUNODE, "doctor"), ENVIRONMENT)
    program = stand_ins / "nvidia-smi"
    program.write_text(HANGING_SMI_SCRIPT)
    program.chmod(0o755)
    hanging = measure_command((sys.executable, "-c", DOCTOR_SCRIPT.format(path=str(stand_ins))), ENVIRONMENT)
    print_row(
        "doctor, this machine", f"{normal.wall_s:.2f} s", f"cpu {normal.cpu_s:.2f} s", f"exit {normal.exit_status}"
    )
    excess = f"{hanging.wall_s - 10:+.2f} s of 10"
    print_row("doctor, nvidia-smi hangs", f"{hanging.wall_s:.2f} s", f"cpu {hanging.cpu_s:.2f} s", excess)


def _measure_captures(folder: Path, capture: Path, times: int) -> None:
    """Print the cost of one capture, and of fleets of up to a thousand."""
    fleet = folder / "fleet"
    fleet.mkdir()
    reports = sorted(REPORTS.rglob("*.json"))
    for number in range(DISTINCT_CAPTURES):
        node_folder = fleet / f"{number:04}"
        node_folder.mkdir()
        _add_report(capture, reports[number % len(reports)], node_folder / "node.tar.gz")
    single = measure_in_turns({"single": partial(_run_doctor, fleet / "0000/node.tar.gz")}, times)["single"]
    print_row("doctor CAPTURE", f"{single.wall_s:.2f} s", f"cpu {single.cpu_s:.2f} s", "goal ≤ 0.5 s")
    node_cpu_s = 0.0
    for size in FLEET_SIZES:
        part_folder = folder / f"part{size}"
        part_folder.mkdir()
        for number in range(size):
            os.link(fleet / f"{number % DISTINCT_CAPTURES:04}/node.tar.gz", part_folder / f"{number:04}.tar.gz")
        run = _run_doctor(part_folder)
        smaller, node_cpu_s = node_cpu_s, run.cpu_s / size
        growth = f"{node_cpu_s / smaller:.2f}× the smaller" if smaller else ""
        print_row(f"doctor DIR, {size} captures", f"{run.wall_s:.1f} s", f"cpu {1000 * node_cpu_s:.0f} ms each",
            f"{node_cpu_s / single.cpu_s:.2f}× of one", f"{run.peak_mb:.0f} MB", growth)  # fmt: skip


def _run_doctor(path: Path) -> Cost:
    return measure_command((*GPUNODE, "doctor", str(path), "--json"), ENVIRONMENT)


def _add_report(capture: Path, report: Path, target: Path) -> None:
    """Write ``capture`` with the evidence of ``report``, a pasted report of a broken node, into ``target``."""
    from gpunode.facts import pasted
    from gpunode.host.capture import load_capture, save_capture

    pieces = json.loads(report.read_text())["evidence"]
    save_capture(
        {**load_capture(capture), **pasted.collect_pieces([(piece["source"], piece["text"]) for piece in pieces])},
        target,
    )


def measure_fleet_page() -> None:
    """Print the cost of the page of a fleet with faults and outliers, at two sizes; the cost per node must not grow."""
    print_title("doctor DIR --html: a fleet of three models, 1 of 100 nodes broken, 1 odd (goals: linear; page ≤ 5 MB)")
    from tests.fleets import make

    node_cpu_s = 0.0
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as name:
        for size in PAGE_FLEET_SIZES:
            folder, page = Path(name, str(size)), Path(name, f"{size}.html")
            folder.mkdir()
            make(folder, size)
            run = measure_command((*GPUNODE, "doctor", str(folder), "--html", str(page)), ENVIRONMENT)
            smaller, node_cpu_s = node_cpu_s, run.cpu_s / size
            growth = f"{node_cpu_s / smaller:.2f}× the smaller" if smaller else ""
            row = (f"{run.wall_s:.0f} s", f"cpu {1000 * node_cpu_s:.0f} ms each", f"{run.peak_mb:.0f} MB")
            print_row(f"{size} nodes", *row, f"page {page.stat().st_size / 1e6:.2f} MB", growth)
