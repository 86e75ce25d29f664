"""Debian's real podman and crun with a CDI specification: gpunode's answer matches podman's behaviour.

The GPU is a device node without a driver, and nvidia-ctk a stand-in that writes what the real one writes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.lab.archive import NoArchive, debian_archive, demand_archive, transport_options
from tests.e2e.lab.code import Mounts

# Making the two roots takes a minute and a half.
pytestmark = [pytest.mark.e2e, pytest.mark.long]
HERE = Path(__file__).parent
PACKAGES = "podman,crun,python3,busybox-static"
SPEC = "/var/run/cdi/nvidia.yaml"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
PODMAN = "podman --storage-driver vfs --cgroup-manager cgroupfs --runtime crun"
SETTINGS = "export PYTHONPATH=/opt/project:/opt/site PYTHONDONTWRITEBYTECODE=1; rm -rf /var/lib/gpunode /etc/cdi"
# crun may not set limits here, and has no controllers of its own for that.
RUN = (
    f"{PODMAN} run --rm --network none --cgroups=disabled --device nvidia.com/gpu=all localhost/lab /bin/busybox sh -c "
    f"'ls /dev/nvidia0 /dev/nvidiactl {LIBRARY}; echo $NVIDIA_VISIBLE_DEVICES'"
)
IMAGE = f"mkdir -p /tmp/image/bin && cp /bin/busybox /tmp/image/bin && tar -C /tmp/image -c . | {PODMAN} import - lab"


@dataclass(frozen=True, slots=True)
class Machine:
    """A root folder with podman in it."""

    root: Path
    code: Mounts

    def run(self, *commands: str) -> subprocess.CompletedProcess[str]:
        """Run ``commands`` one after the other, regardless of exit status, with a new /run, /dev and /tmp."""
        script = "\n".join((SETTINGS, *commands))
        inside = ["bash", HERE / "podman-node.sh", self.root, self.code.project, self.code.site, script]
        namespaces = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        return subprocess.run([*namespaces, *map(str, inside)], check=False, capture_output=True, text=True)


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, code: Mounts
) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("namespaces and podman need root")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("no mmdebstrap here")
    try:
        archive = debian_archive()
        demand_archive(archive, request.param)
    except NoArchive as missing:
        pytest.skip(str(missing))
    root = tmp_path_factory.mktemp(request.param)
    options = [f"--aptopt={option.replace('=', ' ', 1)}" for option in transport_options()]
    made = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={PACKAGES}",
        *options,
        request.param,
        str(root),
        archive,
    ]
    subprocess.run(made, check=True, capture_output=True)
    shutil.copy(HERE / "fake-nvidia-ctk", root / "usr/bin/nvidia-ctk")
    (root / "usr/bin/nvidia-cdi-hook").write_text("#!/bin/sh\ncat >/dev/null\n")
    (root / "usr/bin/systemd-detect-virt").write_text("#!/bin/sh\necho none\nexit 1\n")
    for name in ("nvidia-ctk", "nvidia-cdi-hook", "systemd-detect-virt"):
        (root / "usr/bin" / name).chmod(0o755)
    (root / LIBRARY.lstrip("/")).write_text("not a library\n")
    yield Machine(root, code)
    subprocess.run(["rm", "-rf", str(root)], check=True)


def output_on_one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output on one line: the screen wraps lines as in a terminal."""
    return " ".join((done.stdout + done.stderr).split())


def gpunode(words: str) -> str:
    return f"python3 -m gpunode ctk runtime {words} --runtime podman; echo ended with $?"


def test_container_gets_what_the_cdi_specification_lists(machine: Machine) -> None:
    done = machine.run(IMAGE, gpunode("configure"), gpunode("configure"), gpunode("check"), RUN)
    assert f"/dev/nvidia0\n/dev/nvidiactl\n{LIBRARY}\nvoid\n" in done.stdout, done
    assert done.stdout.count("ended with 0") == 3
    assert "nothing to do: podman: " in output_on_one_line(done)


@pytest.mark.parametrize("gone", ["/dev/nvidia0", LIBRARY, "/usr/bin/nvidia-cdi-hook"])
def test_missing_cdi_file_is_named_before_a_container_fails(machine: Machine, gone: str) -> None:
    kept = f"{gone}.kept"
    done = machine.run(IMAGE, gpunode("configure"), f"mv {gone} {kept}", gpunode("check"), RUN, f"mv {kept} {gone}")
    assert "void" not in done.stdout
    assert f"{SPEC} names missing files: {gone}" in output_on_one_line(done)
    assert "ended with 7" in done.stdout


def test_cdi_version_too_new_for_podman_is_reported(machine: Machine) -> None:
    done = machine.run(IMAGE, "echo 0.7.0 > /run/cdi-version", gpunode("configure"), gpunode("check"), RUN)
    works = "void" in done.stdout
    assert ("cannot read" in output_on_one_line(done)) is not works
    assert works is ("trixie" in machine.root.name)


def test_duplicate_device_in_two_cdi_files_is_reported(machine: Machine) -> None:
    done = machine.run(IMAGE, gpunode("configure"), f"cp {SPEC} /var/run/cdi/other.yaml", gpunode("check"), RUN)
    assert "void" not in done.stdout
    assert "both offer nvidia.com/gpu=all, so no container gets it" in output_on_one_line(done)
    assert "ended with 7" in done.stdout


def test_outdated_cdi_file_in_etc_is_overridden(machine: Machine) -> None:
    stale = f"mkdir /etc/cdi; sed s/580.95.05/535.104.05/ {SPEC} > /etc/cdi/nvidia.yaml; rm {SPEC}"
    done = machine.run(IMAGE, gpunode("configure"), stale, gpunode("configure"), RUN)
    assert "/etc/cdi/nvidia.yaml is for driver 535.104.05, but 580.95.05 is loaded" in output_on_one_line(done)
    assert "void" in done.stdout, done


def test_podman_loads_and_runs_the_image_of_the_container_check(machine: Machine) -> None:
    words = ["/bin/busybox", "echo", "ran"]
    build = (
        "from gpunode.host.container import build_image; import sys; sys.stdout.buffer.write(build_image("
        f"{{'/bin/busybox': open('/bin/busybox', 'rb').read()}}, 'x86_64', 'localhost/check:1', {words}))"
    )
    done = machine.run(
        f'python3 -c "{build}" | {PODMAN} load',
        f"{PODMAN} run --rm --network none --cgroups=disabled localhost/check:1",
    )
    assert "localhost/check:1\nran\n" in done.stdout, done
