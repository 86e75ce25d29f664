from __future__ import annotations

from pathlib import Path

from gpunode.workflow.parallel_jobs import available_bytes, own_bytes


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_what_the_kernel_says_is_free(tmp_path: Path) -> None:
    assert available_bytes(write(tmp_path, proc__meminfo="MemTotal: 9 kB\nMemAvailable:    4096 kB\n")) == 4 << 20


def test_a_container_has_no_more_than_its_cgroup(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemAvailable:    4096 kB\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    assert available_bytes(tmp_path) == 4 << 20
    (group / "memory.max").write_text("1048576\n")
    assert available_bytes(tmp_path) == (1 << 20) - 5
    (group / "memory.current").write_text("2048576\n")
    assert available_bytes(tmp_path) == 0


def test_where_nobody_says_it_is_that_of_a_small_machine(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == 2 << 30


def test_a_process_has_a_size_of_its_own(tmp_path: Path) -> None:
    assert own_bytes() > 1 << 20
    assert own_bytes(tmp_path) == 0
