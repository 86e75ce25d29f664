"""Users of the GPUs who would be disturbed, by the kernel's process list."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.host.workloads import find_workloads


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc"


def process(proc: Path, pid: int, *words: str, files: tuple[str, ...] = ()) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    (folder / "comm").write_text(Path(words[0]).name[:15] + "\n" if words else "kworker\n")
    for number, target in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(target)


def test_process_with_an_open_gpu_is_named_with_its_command(proc: Path) -> None:
    process(proc, 1, "/sbin/init", files=("/dev/null",))
    process(proc, 812, "python3", "train.py", "--token=abc", files=("/dev/null", "/dev/nvidia0"))
    (named,) = find_workloads(proc).gpu
    assert named.startswith("812 (python3 train.py")
    assert "abc" not in named


def test_nvidia_daemons_are_no_workload(proc: Path) -> None:
    process(proc, 5, "/usr/bin/nvidia-persistenced", "--user", "x", files=("/dev/nvidia0",))
    process(proc, 6, "/usr/bin/nv-fabricmanager", files=("/dev/nvidiactl",))
    assert find_workloads(proc).gpu == ()


def test_container_is_named_by_its_shim(proc: Path) -> None:
    process(proc, 9, "/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "4f2a", "-address", "/x")
    process(proc, 10, "/usr/bin/containerd-shim-runc-v2", "-v")
    assert find_workloads(proc).containers == ("k8s.io/4f2a",)


def test_kernel_threads_and_ended_processes_are_ignored(proc: Path) -> None:
    process(proc, 2)
    (proc / "3").mkdir()
    (proc / "self").mkdir()
    assert find_workloads(proc) == find_workloads(proc / "nowhere")
