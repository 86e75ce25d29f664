"""GPU users who would be disturbed, from the kernel's process list."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.host.port import GpuClient
from gpunode.host.workloads import find_disturbable_workloads


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc"


def process(proc: Path, pid: int, *words: str, files: tuple[str, ...] = (), cgroup: str = "/") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    (folder / "comm").write_text(Path(words[0]).name[:15] + "\n" if words else "kworker\n")
    for number, target in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(target)


def test_process_with_an_open_gpu_is_named_with_its_command(proc: Path) -> None:
    process(proc, 1, "/sbin/init", files=("/dev/null",))
    process(proc, 812, "python3", "train.py", "--token=abc", files=("/dev/null", "/dev/nvidia0"))
    (named,) = find_disturbable_workloads(proc.parent).gpu_clients
    assert str(named).startswith("812 (python3 train.py")
    assert "abc" not in str(named)


POD = "5d3c0f7e-1b2a-4c5d-8e9f-0a1b2c3d4e5f"
CONTAINER = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("cgroup", "unit", "container", "pod"),
    [
        ("/system.slice/nvidia-dcgm.service", "nvidia-dcgm.service", "", ""),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service", "", ""),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", "", "", ""),
        ("/user.slice/user-1000.slice/session-2.scope", "", "", ""),
        ("/user.slice/user-1000.slice/user@1000.service/system.slice/ssh.service", "", "", ""),
        (f"/user.slice/user-1000.slice/user@1000.service/x-pod{POD}/{CONTAINER}", "", "", ""),
        (f"/system.slice/docker-{CONTAINER}.scope", "", CONTAINER[:12], ""),
        (f"/docker/{CONTAINER}", "", CONTAINER[:12], ""),
        (f"/machine.slice/libpod-{CONTAINER}.scope/container", "", CONTAINER[:12], ""),
        (f"/kubepods/burstable/pod{POD}/{CONTAINER}", "", CONTAINER[:12], "team/web-0"),
        (
            f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            "",
            CONTAINER[:12],
            "team/web-0",
        ),
        (f"/system.slice/k3s.service/kubepods/pod{POD}/{CONTAINER}", "", CONTAINER[:12], "team/web-0"),
    ],
)
def test_owner_of_a_gpu_process_is_told_by_its_cgroup(
    proc: Path, cgroup: str, unit: str, container: str, pod: str
) -> None:
    (proc.parent / f"var/log/pods/team_web-0_{POD}/app").mkdir(parents=True)
    process(proc, 5, "python", files=("/dev/nvidia0",), cgroup=cgroup)
    assert find_disturbable_workloads(proc.parent).gpu_clients == (GpuClient(5, "python", unit, container, pod),)


def test_pod_without_a_log_folder_is_named_by_its_uid(proc: Path) -> None:
    process(proc, 5, "python", files=("/dev/nvidia0",), cgroup=f"/kubepods/pod{POD}/{CONTAINER}")
    assert [client.pod for client in find_disturbable_workloads(proc.parent).gpu_clients] == [POD]


def test_ordinary_file_with_the_name_of_a_device_is_no_gpu(proc: Path) -> None:
    (proc.parent / "nvidia0").write_text("")
    process(proc, 5, "vi", files=(str(proc.parent / "nvidia0"),))
    assert find_disturbable_workloads(proc.parent).gpu_clients == ()


def test_container_is_named_by_its_shim(proc: Path) -> None:
    process(proc, 9, "/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "4f2a", "-address", "/x")
    process(proc, 10, "/usr/bin/containerd-shim-runc-v2", "-v")
    assert find_disturbable_workloads(proc.parent).containers == ("k8s.io/4f2a",)


def test_kernel_threads_and_ended_processes_are_ignored(proc: Path) -> None:
    process(proc, 2)
    (proc / "3").mkdir()
    (proc / "self").mkdir()
    assert find_disturbable_workloads(proc.parent) == find_disturbable_workloads(proc / "nowhere")
