"""The first boot of a cloud machine: gpunode waits for cloud-init unless cloud-init runs it, and logs to the journal.

systemd and its journal are real; cloud-init is a stand-in with the same units, files and command lines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from gpunode.journal import announce
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.machine.scenario import CONTAINERD_CONFIG, Machines, ask, setup, setup_ok

pytestmark = pytest.mark.e2e

# Like /usr/bin/cloud-init: a stage lasts until it is told to end; the last one runs the user's script.
_CLOUD_INIT: Final = """\
#!/usr/bin/python3
import os, pathlib, subprocess, sys, time
run = pathlib.Path("/run/cloud-init")
run.mkdir(exist_ok=True)
(run / "status.json").write_text("{}")
stage = sys.argv[-1]
while not (run / f"lab-end{stage}").exists():
    time.sleep(0.05)
if stage == "--mode=final":
    if os.path.exists("/root/runcmd"):
        subprocess.run(["/bin/sh", "/root/runcmd"])
    (run / "result.json").write_text("{}")
"""
_UNIT: Final = """\
[Unit]
After={after}

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutSec=0
ExecStart=/usr/bin/cloud-init modules --mode={mode}
"""
_PATIENCE_S: Final = 60.0


@pytest.fixture
def node(bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    with machines.make(bases["bookworm"].runtime) as node:
        machines.furnish(node)
        node.write("/usr/bin/cloud-init", _CLOUD_INIT, 0o755)
        node.write("/etc/systemd/system/cloud-config.service", _UNIT.format(after="basic.target", mode="config"))
        node.write("/etc/systemd/system/cloud-final.service", _UNIT.format(after="cloud-config.service", mode="final"))
        node.run("systemctl", "daemon-reload")
        yield node
        left = marks(node)
    assert leftovers(left) == []


def ends(node: Machine, stage: str) -> None:
    """Let the stage end."""
    node.write(f"/run/cloud-init/lab-end--mode={stage}", "")


def says(node: Machine, log: str, word: str) -> None:
    """Wait until ``log`` contains ``word``."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (node.path(log).exists() and word in node.read(log)):
        assert time.monotonic() < deadline, f"no {word!r} in {log}: {node.path(log).exists() and node.read(log)}"
        time.sleep(0.1)


def messages(node: Machine, message_id: str) -> list[dict[str, Any]]:
    """Return the messages of one kind in systemd's journal."""
    node.run("journalctl", "--sync")
    found = node.run("journalctl", "-q", "-o", "json", f"MESSAGE_ID={message_id}").stdout
    return [json.loads(line) for line in found.splitlines()]


@pytest.mark.long
def test_running_cloud_init_is_waited_for_between_its_stages(node: Machine) -> None:
    node.run("systemctl", "start", "--no-block", "cloud-config.service", "cloud-final.service")
    until = time.monotonic() + _PATIENCE_S
    while not node.path("/run/cloud-init/status.json").exists():
        assert time.monotonic() < until

    busy = setup(node, "containerd", "--lock-timeout", "1")

    assert busy.exit_code == 12
    assert "/usr/bin/cloud-init modules --mode=config" in busy.error
    pid = node.run("systemctl", "show", "--value", "--property=MainPID", "cloud-config.service").stdout.strip()
    assert f"process {pid} (" in busy.error

    # Its process has ended, and its next stage is only queued.
    node.write("/usr/local/sbin/lab-hold", "#!/bin/sh\nwhile [ ! -e /root/go ]; do sleep 0.05; done\n", 0o755)
    hold = "[Service]\nExecStartPre=/usr/local/sbin/lab-hold\nType=oneshot\nExecStart=/bin/true\n"
    node.write("/etc/systemd/system/lab-between.service", hold)
    more = "[Unit]\nAfter=lab-between.service\n"
    node.write("/etc/systemd/system/cloud-final.service.d/between.conf", more)
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "start", "--no-block", "lab-between.service")
    ends(node, "config")
    deadline = time.monotonic() + _PATIENCE_S
    while node.finish("pgrep", "-f", "cloud-init modules --mode=config").returncode == 0:
        assert time.monotonic() < deadline

    between = setup(node, "containerd", "--lock-timeout", "1")

    assert between.exit_code == 12
    assert "cloud-final.service has not run yet" in between.error

    patient = node.start("gpunode", "setup", "/root/containerd.toml", "--yes", log="/root/patient.log")
    says(node, "/root/patient.log", ": cloud-init is still setting this machine up")
    node.write("/root/go", "")
    ends(node, "final")
    assert patient.wait(_PATIENCE_S) == 0, node.read("/root/patient.log")


@pytest.mark.long
def test_setup_started_by_cloud_init_does_not_wait_for_it(node: Machine) -> None:
    node.write("/root/runcmd", "gpunode setup /root/containerd.toml --yes --lock-timeout 5 >/root/user-data.log 2>&1\n")
    node.run("mkdir", "-p", "/run/cloud-init")
    ends(node, "config")
    ends(node, "final")

    node.run("systemctl", "start", "cloud-config.service", "cloud-final.service")

    assert "nvidia" in node.read(CONTAINERD_CONFIG), node.read("/root/user-data.log")
    assert "cloud-init is still" not in node.read("/root/user-data.log")
    assert node.path("/run/cloud-init/result.json").exists(), "cloud-init itself came to its end"


@pytest.mark.long
def test_systemd_journal_records_a_run(node: Machine) -> None:
    node.run("mkdir", "-p", "/run/cloud-init")
    done = setup_ok(node, "containerd")
    run = done.result["run"]

    (begun,), (ended,) = messages(node, announce.RUN_BEGUN_MESSAGE_ID), messages(node, announce.RUN_ENDED_MESSAGE_ID)
    made = messages(node, announce.CHANGE_MADE_MESSAGE_ID)

    assert begun["SYSLOG_IDENTIFIER"] == "gpunode"
    assert begun["GPUNODE_USER"] == "root"
    assert (ended["GPUNODE_RESULT"], ended["GPUNODE_RUN"]) == ("done", run)
    recorded = ask(node, "log", "1").result["run"]["changes"]
    assert [one["GPUNODE_SUBJECT"] for one in made] == [row["subject"] for row in recorded]
    (config,) = (one for one in made if one["GPUNODE_SUBJECT"] == CONTAINERD_CONFIG)
    (row,) = (row for row in recorded if row["subject"] == CONTAINERD_CONFIG)
    assert config["GPUNODE_AFTER"] == f"sha256:{row['after']['sha256']}"
    assert messages(node, announce.CHANGE_FAILED_MESSAGE_ID) == []

    ask(node, "rollback", "--yes")
    assert [one["GPUNODE_VERB"] for one in messages(node, announce.RUN_ENDED_MESSAGE_ID)] == ["setup", "rollback"]
