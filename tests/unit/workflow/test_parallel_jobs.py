from __future__ import annotations

from pathlib import Path

from gpunode.workflow.parallel_jobs import available_memory_bytes, own_address_space_bytes


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_available_memory_is_read_from_meminfo(tmp_path: Path) -> None:
    assert (
        available_memory_bytes(write(tmp_path, proc__meminfo="MemTotal: 9 kB\nMemAvailable:    4096 kB\n")) == 4 << 20
    )


def test_available_memory_is_limited_by_the_cgroup(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemAvailable:    4096 kB\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    assert available_memory_bytes(tmp_path) == 4 << 20
    (group / "memory.max").write_text("1048576\n")
    assert available_memory_bytes(tmp_path) == (1 << 20) - 5
    (group / "memory.current").write_text("2048576\n")
    assert available_memory_bytes(tmp_path) == 0


def test_available_memory_defaults_to_2_gib(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) == 2 << 30


def test_own_memory_size_is_measured(tmp_path: Path) -> None:
    assert own_address_space_bytes() > 1 << 20
    assert own_address_space_bytes(tmp_path) == 0
