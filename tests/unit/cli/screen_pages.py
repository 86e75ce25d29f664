"""The pages of the screen that are kept as golden files; ``python -m tests.unit.cli.screen_pages`` rewrites them.

Review the difference with git before you commit it: people read these pages.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileChange, FileState, PackageChange, Trigger
from gpunode.check import Check
from gpunode.cli.doctor import cause_explanation_lines, diagnosis_lines
from gpunode.cli.log import run_lines, run_table_lines
from gpunode.cli.node_screen import Screen
from gpunode.cli.rehearse import rehearsal_header_lines, rehearsal_lines
from gpunode.cli.screen.failures import error_lines
from gpunode.cli.screen.plans import plan_lines
from gpunode.cli.screen.printer import Printer
from gpunode.cli.screen.text import BLANK_LINE
from gpunode.cli.setup import setup_lines
from gpunode.cli.status import status_lines
from gpunode.cli.undo import already_undone_lines, rollback_lines, undo_plan_lines
from gpunode.cli.verify import report_lines
from gpunode.diagnoses.cause_texts import CauseText
from gpunode.diagnoses.model import Rule
from gpunode.errors import ChangeFailed, GpunodeError, RebootRequired
from gpunode.host.port import Progress, TriggerResult
from gpunode.journal import record
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Begin, Commit, Intent
from gpunode.workflow.events import Applied, Applying, Triggered, Triggering
from gpunode.workflow.recovery import Backlog
from gpunode.workflow.rollback import NothingToUndo, UndoResult
from gpunode.workflow.setup import SetupResult
from gpunode.workflow.status import status
from gpunode.workflow.undo import UndoPlan, UndoStep
from gpunode.workflow.verify import VerifyReport
from tests.fakes.journals import encode_lines
from tests.unit.cli import screen_nodes as nodes
from tests.unit.journal.chronicles import BEGIN, RUN, entries
from tests.unit.page import nodes as doctor_nodes

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_WIDTH = 80
CHECKS = (
    Check("configuration", "matches recipe containerd", "passed", "planned again: nothing left to do"),
    Check("nvml", "the driver answers (NVML)", "passed", "driver 580.178.04, CUDA 13.0, 1 GPU"),
    Check("gpu-0", "GPU 0", "passed", "NVIDIA GeForce GTX 1080, 8192 MiB, persistence on"),
    Check("runtime", "containerd reads the runtime nvidia", "passed", "nvidia runs nvidia-container-runtime"),
)
HELD = "process 4711 (apt-get update) holds /var/lib/dpkg/lock-frontend"
RESTART = Trigger("restart", "containerd.service")
BACK = FileChange(nodes.CONFIG, FileState(b"version = 2\n[x]\n"), FileState(b"version = 2\n"), frozenset({RESTART}))


def ended(screen: Screen, done: SetupResult, report: VerifyReport, failure: GpunodeError | None = None) -> None:
    log = "/var/log/gpunode/setup.log"
    screen.show_result(setup_lines(nodes.RECIPE, done, report, failure, log, screen.argv), failure)


def plan(screen: Screen) -> None:
    node = nodes.facts()
    screen.put(*plan_lines(nodes.RECIPE, node, nodes.planned(node), Backlog(), screen.argv, verbose=screen.verbose))


def rehearse(screen: Screen) -> None:
    with screen:
        screen.begin_rehearsal(rehearsal_header_lines(nodes.RECIPE, "debian12-gtx1080"))
        done = nodes.rehearsed(nodes.free(), screen.show_event)
        screen.put(*rehearsal_lines(nodes.RECIPE, done, "debian12-gtx1080", screen))


def setup(screen: Screen) -> None:
    """Print events with fixed times, as in a real run."""
    done = nodes.set_up(nodes.free(), lambda _: None)
    trigger_results = (TriggerResult(Trigger("initramfs"), 8.14), TriggerResult(RESTART, 0.4))
    with screen:
        for stage in done.applied:
            packages = tuple(c for c in stage.ordered_changes if isinstance(c, PackageChange))
            if packages:
                screen.show_event(Applying("packages", packages))
                screen.update_progress(Progress("wait", 1.0, f"up to 600 s: {HELD}"))
                screen.update_progress(Progress("download", 43.0, "libcuda1"))
                screen.show_event(Applied("packages", packages, 41.2))
        screen.show_event(Triggering((RESTART,)))
        for one in trigger_results:
            screen.show_event(Triggered(one))
        finished = replace(done, run="000003-20250501T120000Z", seconds=63.2, trigger_results=trigger_results)
        ended(screen, finished, VerifyReport(CHECKS, nodes.INVENTORY))


def converged(screen: Screen) -> None:
    done = replace(nodes.set_up(nodes.converged(), screen.show_event), seconds=0.41)
    ended(screen, done, VerifyReport(CHECKS, nodes.INVENTORY))


def one_step(screen: Screen) -> None:
    """Print ``setup --only runtime-config``: the other steps are not mentioned."""
    whole = nodes.set_up(nodes.converged(), screen.show_event)
    stages = tuple(
        replace(stage, steps=tuple(one for one in stage.steps if one.step.id == "runtime-config"))
        for stage in whole.preview
    )
    done = replace(whole, preview=stages, seconds=0.2)
    ended(screen, done, VerifyReport(CHECKS[3:]))
    changed = replace(done, run="000003-20250501T120000Z", trigger_results=(TriggerResult(RESTART, 0.4),))
    ended(screen, changed, VerifyReport(CHECKS[3:]))


def reboot(screen: Screen) -> None:
    done = nodes.set_up(nodes.facts(), lambda _: None)
    finished = replace(done, run="000003-20250501T120000Z", seconds=63.2, trigger_results=())
    failure = RebootRequired(
        "a reboot is needed; everything before it is done",
        why="\n".join(wait.reason for wait in done.waits),
        hint="sudo systemctl reboot, then run the same command again",
    )
    ended(screen, finished, VerifyReport(()), failure)


def verify(screen: Screen) -> None:
    failed = Check("expect-gpus", "expected gpus", "failed", "expected 8, found 1", "run gpunode doctor")
    idle = Check("container", "a container sees the same GPUs", "skipped", "NVML does not answer", "")
    screen.put(*report_lines(nodes.RECIPE, VerifyReport((*CHECKS, failed, idle), nodes.INVENTORY)))


def status_bare(screen: Screen) -> None:
    node = nodes.facts()
    screen.put(*status_lines(node, status(node, nodes.host(node), Backlog())))


def status_good(screen: Screen) -> None:
    node = nodes.converged()
    found = replace(
        status(node, nodes.host(node), Backlog()), nvml=nodes.INVENTORY, held_packages=("nvidia-driver-cuda",)
    )
    screen.put(*status_lines(node, found))


def rollback(screen: Screen) -> None:
    left = ("nvidia-driver-cuda", "nvidia-container-toolkit")
    undone = UndoPlan("000003-20250501T120000Z", (UndoStep("runtime", "runtime-config", BACK),), not_undone=left)
    screen.put(*undo_plan_lines(undone, verbose=screen.verbose))
    done = UndoResult(undone, "000004-20250501T121500Z", (TriggerResult(RESTART, 0.4),))
    screen.show_result(rollback_lines(done, None, screen.argv))


def _run(begin: Begin, *paths: str, is_done: bool = False) -> RunRecord:
    """Return a run that changed these files, or was interrupted while doing so."""
    intents = (Intent(n, "runtime", "x", FileChange(path, None, FileState(b""))) for n, path in enumerate(paths))
    return RunRecord((begin, *intents, *([Commit("done")] if is_done else [])))


def undone(screen: Screen) -> None:
    docker = Begin("000005-20250501T120000Z", 1746100800.0, "setup", "0.1", "docker", "", "", "root", ())
    newest = _run(docker, "/etc/docker/daemon.json", is_done=True)
    older = _run(replace(docker, run="000004-20250501T120000Z", recipe="containerd"), "libcuda1", nodes.CONFIG)
    screen.put(*already_undone_lines(NothingToUndo(newest, "run 6 undid it", older, "sudo gpunode rollback 4")))
    screen.put(
        *already_undone_lines(
            NothingToUndo(newest, "what is left of it is kept", notes=("dkms stays: zfs-dkms needs it now",))
        ),
        *already_undone_lines(NothingToUndo(_run(docker, is_done=True), "nothing of it is left")),
        *already_undone_lines(
            NothingToUndo(older, "run 5 undid it", older, "sudo gpunode rollback 4 --packages", is_partial=True)
        ),
    )


def runs(screen: Screen) -> None:
    first = Begin("000003-20250501T120000Z", 1746100800.0, "setup", "0.1", "containerd", "", "", "root", ())
    undo = replace(first, run="000004-20250501T121500Z", at=1746101700.0, verb="rollback", recipe="", undoes=first.run)
    cut = replace(first, run="000005-20250501T130000Z", at=1746104400.0)
    found = (
        replace(_run(first, "libcuda1", nodes.CONFIG, is_done=True), undone_by=undo.run),
        _run(undo, nodes.CONFIG, is_done=True),
        _run(cut, *(f"package-{number}" for number in range(12))),
    )
    prospects = {
        first.run: "undone by run 4",
        undo.run: f"cannot be undone now: {nodes.CONFIG} was edited since gpunode wrote it",
        cut.run: "can be undone now",
    }
    screen.put(*run_table_lines(found, prospects))


def _logged() -> tuple[RunRecord, ...]:
    """Return a run as the log reads it, the same run interrupted, and one that undid it."""
    data = [b"".join(encode_lines(entries(ended=ended))) for ended in (True, False)]
    undo = replace(BEGIN, run="000004-20261121T091500Z", verb="rollback", recipe="", recipe_sha256="", undoes=RUN)
    return (
        RunRecord(record.decode_without_contents(data[0]), undone_by=undo.run),
        RunRecord((undo, Commit("done", "", BEGIN.at + 2))),
        RunRecord(record.decode_without_contents(data[1])),
    )


def log(screen: Screen) -> None:
    screen.put(*run_table_lines(_logged()))


def log_run(screen: Screen) -> None:
    for run in (_logged()[0], _logged()[2]):
        screen.put(*run_lines(run, {1000: "alice"}), BLANK_LINE)


def failure(screen: Screen) -> None:
    error = ChangeFailed(
        "containerd does not come back with its new configuration",
        why="exit status 1; its last lines:\nfailed to load [plugins] from config\n"
        f"restored: {nodes.CONFIG}; containerd.service is running with the former file again",
        hint="read what it says, then run the command again:\njournalctl -u containerd -n 50",
    )
    screen.put(*error_lines(error))


def doctor(screen: Screen) -> None:
    screen.put(*diagnosis_lines(doctor_nodes.examined(), verbose=screen.verbose, page="gpu-17.html"))


def doctor_verbose(screen: Screen) -> None:
    screen.verbose = True
    screen.put(*diagnosis_lines(doctor_nodes.examined(), verbose=screen.verbose))


def doctor_healthy(screen: Screen) -> None:
    screen.put(*diagnosis_lines(doctor_nodes.healthy(), verbose=screen.verbose))


def doctor_unknown(screen: Screen) -> None:
    screen.put(*diagnosis_lines(doctor_nodes.untold(), verbose=screen.verbose))


def story(screen: Screen) -> None:
    rule = Rule(
        cause="sample-lost",
        layer="gpu",
        severity="error",
        disruption="power-cycle",
        check=lambda _: (),
        remedy=lambda _: (),
        explains=frozenset({"sample-stopped", "sample-hung"}),
    )
    text = CauseText(
        "a GPU fell off the bus",
        "The board stops answering on the PCI bus. Every read of it returns all ones, so the driver gives up on it."
        "\n\nPower, heat and a bad seat are the usual reasons; `nvidia-smi` shows one GPU less.",
        ("https://docs.nvidia.com/deploy/xid-errors/",),
    )
    remedy = doctor_nodes.examined().diagnosis.findings[0].remedy
    screen.put(
        *cause_explanation_lines(rule, text, remedy, ("sample-power",), verbose=screen.verbose, width=screen.width)
    )


PAGES: tuple[Callable[[Screen], None], ...] = (
    plan, rehearse, setup, converged, one_step, reboot, verify, status_bare, status_good, rollback, undone, runs, log,
    log_run, failure, doctor, doctor_verbose, doctor_healthy, doctor_unknown, story,
)  # fmt: skip


class Wide(io.StringIO):
    """A stream that accepts Unicode and is no terminal."""

    encoding = "utf-8"


@contextmanager
def _in_utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        try:
            yield
        finally:
            patch.undo()
            time.tzset()


def drawn(page: Callable[[Screen], None], width: int, *, verbose: bool = False) -> str:
    """Return the page at ``width`` columns, without the time at which it was drawn."""
    stream = Wide()
    with redirect_stdout(stream), _in_utc():
        screen = Screen(verbose=verbose, silent=False, argv=("plan", "--runtime", "containerd"))
        screen._printer = screen._live._printer = Printer(stream, width=width)
        page(screen)
    return re.sub(r"000001-\d{8}T\d{6}Z", "000001-20250501T120000Z", stream.getvalue())


def file(page: Callable[[Screen], None]) -> Path:
    """Return the path of the stored page."""
    return GOLDEN / f"{page.__name__}-{GOLDEN_WIDTH}.txt"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    os.environ.pop("LC_ALL", None)
    os.environ["LANG"] = "C.UTF-8"
    for each in PAGES:
        file(each).write_text(drawn(each, GOLDEN_WIDTH))
