"""What doctor costs: a live node whose nvidia-smi hangs, a capture, and a thousand captures in one call."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.alone import ENVIRONMENT, GPUNODE, ROOT
from benchmarks.measure import Cost, cost, row, side_by_side, title

REPORTS = ROOT / "tests/scenarios/doctor"
# What a stuck driver makes of nvidia-smi: it cannot even be ended politely.
HANGING = "#!/bin/sh\ntrap '' TERM\nsleep 600 & sleep 600\n"
# gpunode looks for programs in a path of its own; this one begins with the stand-ins. Where no driver is loaded,
# nvidia-smi is not asked, so that nothing is loaded by a look; here it is.
WITH_STAND_INS = """\
import sys
from gpunode.facts import follow_ups
from gpunode.host import process
process.PATH = {path!r} + ":" + process.PATH
from gpunode.workflow import doctor
follow_ups.may_ask_driver = doctor.may_ask_driver = lambda evidence: True
sys.argv = ["gpunode", "doctor"]
from gpunode.__main__ import main
sys.exit(main())
"""
FLEETS = (10, 100, 1000)
PICTURED = (500, 5000)
# As many captures differ; a larger fleet has each of them several times.
DISTINCT = 40


def diagnosing(times: int = 5) -> None:
    """All three; the captures are of this machine, with pieces of real reports in them."""
    title(f"doctor: median of {times}, in turns (goals: a capture ≤ 0.5 s; a hanging tool costs its limit, 10 s, once)")
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as name:
        folder = Path(name)
        _live(folder)
        capture = folder / "node.tar.gz"
        taken = cost((*GPUNODE, "capture", str(capture)), ENVIRONMENT)
        row(
            "gpunode capture",
            f"{taken.wall_s:.2f} s",
            f"cpu {taken.cpu_s:.2f} s",
            f"{capture.stat().st_size >> 10} KiB",
        )
        _captures(folder, capture, times)


def _live(folder: Path) -> None:
    stand_ins = folder / "bin"
    stand_ins.mkdir()
    plain = cost((*GPUNODE, "doctor"), ENVIRONMENT)
    program = stand_ins / "nvidia-smi"
    program.write_text(HANGING)
    program.chmod(0o755)
    hanging = cost((sys.executable, "-c", WITH_STAND_INS.format(path=str(stand_ins))), ENVIRONMENT)
    row("doctor, this machine", f"{plain.wall_s:.2f} s", f"cpu {plain.cpu_s:.2f} s", f"exit {plain.exit_status}")
    beyond = f"{hanging.wall_s - 10:+.2f} s of 10"
    row("doctor, nvidia-smi hangs", f"{hanging.wall_s:.2f} s", f"cpu {hanging.cpu_s:.2f} s", beyond)


def _captures(folder: Path, capture: Path, times: int) -> None:
    """One by one and by the thousand."""
    fleet = folder / "fleet"
    fleet.mkdir()
    reports = sorted(REPORTS.rglob("*.json"))
    for number in range(DISTINCT):
        made = fleet / f"{number:04}"
        made.mkdir()
        _mixed(capture, reports[number % len(reports)], made / "node.tar.gz")
    one = side_by_side({"one": partial(_doctor, fleet / "0000/node.tar.gz")}, times)["one"]
    row("doctor CAPTURE", f"{one.wall_s:.2f} s", f"cpu {one.cpu_s:.2f} s", "goal ≤ 0.5 s")
    each = 0.0
    for size in FLEETS:
        part = folder / f"part{size}"
        part.mkdir()
        for number in range(size):
            os.link(fleet / f"{number % DISTINCT:04}/node.tar.gz", part / f"{number:04}.tar.gz")
        run = _doctor(part)
        former, each = each, run.cpu_s / size
        grown = f"{each / former:.2f}× the former" if former else ""
        row(f"doctor DIR, {size} captures", f"{run.wall_s:.1f} s", f"cpu {1000 * each:.0f} ms each",
            f"{each / one.cpu_s:.2f}× of one", f"{run.peak_mb:.0f} MB", grown)  # fmt: skip


def _doctor(path: Path) -> Cost:
    return cost((*GPUNODE, "doctor", str(path), "--json"), ENVIRONMENT)


def _mixed(capture: Path, report: Path, target: Path) -> None:
    """The capture with what somebody pasted of a broken node in it."""
    from gpunode.facts import pasted
    from gpunode.host.capture import load_capture, save_capture

    pieces = json.loads(report.read_text())["evidence"]
    save_capture(
        {**load_capture(capture), **pasted.collect_pieces([(one["source"], one["text"]) for one in pieces])}, target
    )


def picturing() -> None:
    """The picture of a fleet with injected faults and odd nodes, at two sizes: what a node costs must not grow."""
    title("doctor DIR --html: a fleet of three models, 1 of 100 nodes broken, 1 odd (goals: linear; page ≤ 5 MB)")
    from tests.fleets import make

    each = 0.0
    with tempfile.TemporaryDirectory(prefix="gpunode-bench-") as name:
        for size in PICTURED:
            folder, page = Path(name, str(size)), Path(name, f"{size}.html")
            folder.mkdir()
            make(folder, size)
            run = cost((*GPUNODE, "doctor", str(folder), "--html", str(page)), ENVIRONMENT)
            former, each = each, run.cpu_s / size
            grown = f"{each / former:.2f}× the former" if former else ""
            row(f"{size} nodes", f"{run.wall_s:.0f} s", f"cpu {1000 * each:.0f} ms each", f"{run.peak_mb:.0f} MB",
                f"page {page.stat().st_size / 1e6:.2f} MB", grown)  # fmt: skip
