"""The order in which a run's writes reach the disk, as the kernel saw it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import lacking

RUN = """
import os, sys
from gpunode.change import FileChange, FileState
from gpunode.journal.store import Store
run = Store(sys.argv[1]).begin("setup")
change = FileChange("/etc/x", FileState(b"old bytes"), FileState(b"new bytes"))
seq = run.record_intent("runtime", "configure", change)
os.write(1, b"THE EFFECT")
run.record_done(seq)
"""
TRACED = "trace=write,pwrite64,fsync,fdatasync,rename,renameat,renameat2"
# The subject of a call, from its path or data as printed by strace -y.
EVENTS = (
    ("effect", r'write\(1\b.*"THE EFFECT"'),
    ("object written", r'write\(\d+<.*objects/.*"(old|new) bytes"'),
    ("object synced", r"fsync\(\d+<.*objects/../\.[^>]*>"),
    ("object named", r"rename\w*\(.*objects/"),
    ("folder synced", r"fsync\(\d+<.*objects/..>"),
    ("intent written", r"write\(\d+<.*journal\.jsonl>.*intent"),
    ("done written", r"write\(\d+<.*journal\.jsonl>.*done"),
    ("journal synced", r"fsync\(\d+<.*journal\.jsonl>"),
)


def can_trace() -> str:
    if reason := lacking("strace"):
        return reason
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else f"strace cannot trace here: {probe.stderr.decode().strip()}"


@pytest.mark.usefixtures("allow_subprocess")
def test_backup_intent_effect_and_done_are_synced_in_order(tmp_path: Path) -> None:
    if reason := can_trace():
        pytest.skip(reason)
    log = tmp_path / "strace"
    (tmp_path / "root").mkdir()
    command = [sys.executable, "-c", RUN, str(tmp_path / "root")]
    subprocess.run(["strace", "-f", "-y", "-s", "400", "-e", TRACED, "-o", str(log), *command], check=True)
    seen = [name for line in log.read_text().splitlines() for name, shape in EVENTS if re.search(shape, line)]
    one_object = ["object written", "object synced", "object named", "folder synced"]
    assert seen[seen.index("object written") :] == [
        *one_object,
        *one_object,
        "intent written",
        "journal synced",
        "effect",
        "done written",
        "journal synced",
    ]
