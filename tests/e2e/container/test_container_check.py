"""The container check with Debian's real containerd, docker and runc; a stand-in mounts the GPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.compile import library, program

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGES = ("containerd", "runc", "docker.io", "docker-cli")
UUIDS = [f"GPU-00000000-0000-0000-0000-{n:012x}" for n in range(3)]

INSIDE = """
import json, subprocess, sys
from gpunode.host.container import check_container, containerd_commands, docker_commands
from gpunode.host.process import Runner

uuids, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
found = {}
for name, commands in (
    ("containerd", containerd_commands("t", binary="/usr/local/bin/nvidia-container-runtime")),
    ("docker", docker_commands("t")),
):
    one = check_container(Runner(), commands, uuids, timeout_s=seconds)
    found[name] = [one.passed, sorted(one.seen), one.failure, list(one.leftovers)]
left = [f"ctr -n gpunode-t {kind} ls -q" for kind in ("namespaces", "images", "containers", "tasks", "content")]
left += ["docker ps -aq", "docker images -q"]
found["left"] = [subprocess.run(one.split(), capture_output=True, text=True, check=True).stdout.split() for one in left]
print("RESULT" + json.dumps(found))
"""


@pytest.fixture(scope="session")
def runtimes() -> Path:
    """Return a folder with Debian's containerd, docker and runc and the programs that they start."""
    if os.geteuid() != 0:
        pytest.skip("namespaces and container runtimes need root")
    for tool in ("apt-get", "dpkg-deb", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpunode-tests" / "runtimes"
    if not (cache / "bin").is_dir():
        _fetch(cache)
    return cache / "bin"


def _fetch(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    available = [p for p in PACKAGES if "Candidate: (none)" not in _apt_policy(p) and _apt_policy(p)]
    done = subprocess.run(
        ["apt-get", "-q", "download", *available], check=False, capture_output=True, text=True, cwd=cache
    )
    if done.returncode:
        pytest.skip(f"the Debian archive cannot be reached: {done.stderr.strip()[-300:]}")
    for deb in cache.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(cache / "root")], check=True)
    unfinished = cache / "bin.new"
    unfinished.mkdir(exist_ok=True)
    for folder in ("usr/sbin", "usr/bin"):
        for file in (cache / "root" / folder).glob("*"):
            if file.is_file() and not file.is_symlink():
                shutil.copy2(file, unfinished / file.name)
    unfinished.rename(cache / "bin")


def _apt_policy(package: str) -> str:
    return subprocess.run(["apt-cache", "policy", package], check=False, capture_output=True, text=True).stdout


def _check(runtimes: Path, tmp_path: Path, *, gpus: int = 3, faults: str = "", seconds: float = 60.0) -> dict[str, Any]:
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    shutil.copy(HERE / "fake-nvidia-container-runtime", stand_ins / "nvidia-container-runtime")
    shutil.copy(program("nvml/nvidia-smi.c"), stand_ins / "nvidia-smi")
    shutil.copy(library("nvml/nvml.c", "libnvidia-ml.so.1") / "libnvidia-ml.so.1", stand_ins)
    (stand_ins / "environment").write_text(f"FAKE_NVML_GPUS={gpus}\nFAKE_NVML_FAULTS={faults}\n")
    for file in stand_ins.iterdir():
        file.chmod(0o755)
    inside = [sys.executable, "-c", INSIDE, json.dumps(UUIDS), str(seconds)]
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    script = ["bash", str(HERE / "daemons.sh"), f"{stand_ins}:{runtimes}", str(tmp_path), *inside]
    done = subprocess.run(
        [*namespaces, *script],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    logs = "".join(log.read_text()[-2000:] for log in tmp_path.glob("*.log"))
    assert result, f"{done.stdout}\n{done.stderr}\n{logs}"
    found: dict[str, Any] = json.loads(result[0].removeprefix("RESULT"))
    return found


NOTHING_LEFT: list[list[str]] = [[] for _ in range(7)]


def test_container_sees_the_gpus_and_leaves_nothing(runtimes: Path, tmp_path: Path) -> None:
    found = _check(runtimes, tmp_path)
    for runtime in ("containerd", "docker"):
        assert found[runtime] == [True, UUIDS, "", []]
    assert [[n for n in row if n != "moby"] for row in found["left"]] == NOTHING_LEFT


def test_container_that_sees_fewer_gpus_fails(runtimes: Path, tmp_path: Path) -> None:
    found = _check(runtimes, tmp_path, gpus=2)
    for runtime in ("containerd", "docker"):
        assert found[runtime][:2] == [False, UUIDS[:2]]


@pytest.mark.long
def test_hanging_container_is_stopped_and_leaves_nothing(runtimes: Path, tmp_path: Path) -> None:
    found = _check(runtimes, tmp_path, faults="nvmlDeviceGetUUID@1=hang", seconds=5)
    for runtime in ("containerd", "docker"):
        passed, _, failure, leftovers = found[runtime]
        assert not passed
        assert "timed out after" in failure
        assert leftovers == []
    assert [[n for n in row if n != "moby"] for row in found["left"]] == NOTHING_LEFT
