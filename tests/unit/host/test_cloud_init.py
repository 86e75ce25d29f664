from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.errors import Busy
from gpunode.host import cloud_init
from gpunode.host.port import Progress
from gpunode.host.process import Runner
from tests.conftest import Tools

pytestmark = pytest.mark.usefixtures("skipped_time")

FINAL = ("/usr/bin/python3", "/usr/bin/cloud-init", "modules", "--mode=final")
SSH = "0::/user.slice/user-0.slice/session-3.scope"
QUEUED = "Id=cloud-config.service\nActiveState=active\n\nId=cloud-final.service\nActiveState=inactive\nJob=181\n"
ENDED = "Id=cloud-config.service\nActiveState=failed\n\nId=cloud-final.service\nActiveState=inactive\nJob=\n"


class Node:
    """A node's /run and /proc; this process has pid 40."""

    def __init__(self, root: Path, cgroup: str = SSH) -> None:
        self.root = root
        self.process(40, 30, "gpunode", "setup")
        self.process(30, 1, "-bash")
        (root / "proc/self").symlink_to("40")
        (root / "proc/40/cgroup").write_text(cgroup + "\n")
        self.heard: list[str] = []

    def process(self, pid: int, parent: int, *words: str) -> None:
        folder = self.root / f"proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pid} (a) name) S {parent} 1 1 0")
        (folder / "cmdline").write_bytes("\0".join((*words, "")).encode())

    def has(self, *names: str) -> None:
        for name in names:
            path = self.root / "run/cloud-init" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")

    def wait(self, limit_s: float = 3.0, *, ends_with: str = "") -> list[str]:
        """Return the messages during the wait; with ``ends_with``, cloud-init ends at the first one."""

        def hear(progress: Progress) -> None:
            self.heard.append(progress.detail)
            if ends_with:
                self.has(ends_with)

        cloud_init.wait_until_done(Runner(), limit_s, hear, root=self.root)
        return self.heard


@pytest.mark.parametrize("files", [(), ("disabled",), ("status.json", "result.json"), ("status.json", "disabled")])
def test_absent_or_finished_cloud_init_is_not_waited_for(tmp_path: Path, files: tuple[str, ...]) -> None:
    """The guard fails this test if a process is started."""
    node = Node(tmp_path)
    node.process(9, 1, *FINAL)
    node.has(*files)
    assert node.wait() == []


def test_running_cloud_init_is_waited_for_and_named(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.process(9, 1, *FINAL)
    node.has("status.json")
    (told,) = node.wait(ends_with="result.json")
    assert "cloud-init" in told
    assert f"process 9 ({' '.join(FINAL)})" in told


def test_cloud_init_beyond_the_timeout_is_busy(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.process(9, 1, *FINAL)
    node.has("status.json")
    with pytest.raises(Busy) as stopped:
        node.wait()
    assert stopped.value.exit_code == 12
    assert "process 9" in stopped.value.what
    assert "waited 3 s" in stopped.value.why
    assert "cloud-init status --wait" in stopped.value.hint
    assert len(node.heard) == 3


def test_gpunode_started_by_cloud_init_does_not_wait_for_it(tmp_path: Path) -> None:
    """runcmd: cloud-init's last stage runs a script and waits for it."""
    node = Node(tmp_path)
    node.process(9, 1, *FINAL)
    node.process(30, 9, "/bin/sh", "/var/lib/cloud/instance/scripts/runcmd")
    node.has("status.json")
    assert node.wait() == []


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/cloud-final.service",
        "3:cpu:/\n1:name=systemd:/system.slice/cloud-init-main.service\n0::/x",
        "0::/system.slice/cloud-config.service/inner",
    ],
)
def test_gpunode_in_the_unit_of_cloud_init_does_not_wait_for_it(tmp_path: Path, cgroup: str) -> None:
    """``nohup gpunode setup &`` has lost its ancestor, not its group."""
    node = Node(tmp_path, cgroup)
    node.process(9, 1, *FINAL)
    node.has("status.json")
    assert node.wait() == []


def test_similarly_named_unit_is_not_cloud_init(tmp_path: Path, tools: Tools) -> None:
    tools.add("systemctl", f"cat <<'.'\n{ENDED}.")
    node = Node(tmp_path, "0::/system.slice/cloud-agent.service")
    node.process(9, 1, *FINAL)
    node.has("status.json")
    assert len(node.wait(ends_with="result.json")) == 1


def test_pending_cloud_init_stage_is_waited_for(tmp_path: Path, tools: Tools) -> None:
    tools.add("systemctl", f"cat <<'.'\n{QUEUED}.")
    node = Node(tmp_path)
    node.has("status.json")
    (told,) = node.wait(ends_with="result.json")
    assert "cloud-final.service has not run yet" in told


def test_crashed_cloud_init_is_not_waited_for(tmp_path: Path, tools: Tools) -> None:
    """It reports forever that it runs, because it died before it wrote its result."""
    tools.add("systemctl", f"cat <<'.'\n{ENDED}.")
    node = Node(tmp_path)
    node.has("status.json")
    node.process(9, 1, "/usr/bin/python3", "/usr/bin/cloud-init", "status", "--wait")
    assert node.wait() == []


def test_without_systemd_only_cloud_init_processes_count(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpunode.host.process.PATH", str(tools.folder))
    node = Node(tmp_path)
    node.has("status.json")
    assert node.wait() == []


@pytest.mark.parametrize("words", [FINAL, ("/usr/bin/python3", "/usr/bin/cloud-init", "--all-stages")])
def test_unit_that_blocks_the_boot_does_not_wait_for_cloud_init(
    tmp_path: Path, tools: Tools, words: tuple[str, ...]
) -> None:
    """cloud-final comes after multi-user.target, which comes after every unit that it wants: both would wait."""
    starting = "Id=ours.service\nActiveState=activating\n\nId=multi-user.target\nActiveState=inactive\nJob=1\n"
    tools.add("systemctl", f"cat <<'.'\n{starting}.")
    node = Node(tmp_path, "0::/system.slice/ours.service")
    node.has("status.json")
    node.process(9, 1, *words)
    assert node.wait() == []
    assert "ours.service" in tools.calls[0]


@pytest.mark.parametrize(
    "states",
    [
        "Id=ours.service\nActiveState=activating\n\nId=multi-user.target\nActiveState=active\n",
        "Id=ours.service\nActiveState=active\n\nId=multi-user.target\nActiveState=inactive\nJob=1\n",
    ],
)
def test_unit_that_does_not_block_the_boot_waits_for_cloud_init(tmp_path: Path, tools: Tools, states: str) -> None:
    """Such a unit runs after the boot, like the one that resumes after a reboot, or like a running daemon."""
    tools.add("systemctl", f"cat <<'.'\n{states}.")
    node = Node(tmp_path, "0::/system.slice/ours.service")
    node.has("status.json")
    node.process(9, 1, *FINAL)
    assert len(node.wait(ends_with="result.json")) == 1
