"""Containers run with the runtime that gpunode configured, with three versions each of containerd and docker."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT
from tests.e2e.lab.image import write_archive
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.runtimes import SUITES
from tests.e2e.lab.toolkit import CALLS, RUNTIME

pytestmark = pytest.mark.e2e

# Before the real one on PATH, for settings that a lab's machine may not permit: an OOM score below its own, and the
# controllers if they are in cgroup v1. CRI requests both, whatever its settings.
RUNC = """\
#!/bin/sh
bundle=$(echo "$*" | sed -n 's/.*--bundle \\([^ ]*\\).*/\\1/p')
[ -z "$bundle" ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/; s/"shares":[0-9]*//' "$bundle/config.json"
exec /usr/sbin/runc "$@"
"""


@pytest.fixture(
    scope="module",
    params=[pytest.param(suite, marks=() if suite == "bookworm" else pytest.mark.long) for suite in SUITES],
)
def seen(request: pytest.FixtureRequest, make_node: Callable[[str], Chroot]) -> Iterator[dict[str, Any]]:
    """Yield the observations of a suite's daemons."""
    with make_node(request.param) as node:
        node.write("/usr/bin/nvidia-container-runtime", RUNTIME, 0o755)
        node.write("/usr/local/sbin/runc", RUNC, 0o755)
        node.write("/etc/resolv.conf", "")
        node.write(CALLS, "")
        write_archive(node.sandbox.scratch / "image", node.path("/root/image.tar"))
        command = [sys.executable, "-m", "tests.e2e.runtimes.containers", os.fspath(node.merged)]
        done = node.sandbox.finish(*command, env={**os.environ, "PYTHONPATH": os.fspath(PROJECT)}, timeout=300)
        assert done.returncode == 0, done.stderr
        left = marks(node)
        yield json.loads(done.stdout)
    assert leftovers(left) == []


def test_docker_runs_a_container_by_name_and_by_default(seen: dict[str, Any]) -> None:
    docker = seen["docker"]
    assert "wrong" not in docker, docker["wrong"]
    assert docker["by name"] == ["hello from a container\n", True]
    assert docker["not asked for"] == ["hello from a container\n", False]
    assert docker["by default"] == ["hello from a container\n", True]
    assert docker["file afterwards"]


def test_docker_reports_containers_with_gpus_and_no_secret(seen: dict[str, Any]) -> None:
    said = seen["docker"]["inspected"]
    (found,) = [json.loads(line) for line in said.splitlines() if line.strip()]
    assert found["Name"] == "/asks"
    # docker 28 looks for CDI's devices first.
    assert re.search('could not select device driver "" with capabilities|GPU vendor', found["State"]["Error"])
    assert found["HostConfig"]["DeviceRequests"][0]["Capabilities"] == [["gpu"]]
    assert found["Config"]["Env"] == ["LD_LIBRARY_PATH=/opt/own", None]
    assert "secret" not in said


def test_pod_uses_the_handler_by_name_and_by_default(seen: dict[str, Any]) -> None:
    pods = seen["containerd"]
    assert "wrong" not in pods, pods["wrong"]
    for name, through_nvidia in (("by name", True), ("not asked for", False), ("by default", True)):
        said, is_nvidia = pods[name]
        assert said.endswith("stdout F hello from a container\n")
        assert is_nvidia is through_nvidia, name
    assert pods["after unconfigure"][1] is False
    assert pods["files afterwards"]


def test_packaged_containerd_io_file_runs_pods_once_cri_is_enabled(seen: dict[str, Any]) -> None:
    shipped = seen["shipped"]
    assert "wrong" not in shipped, shipped["wrong"]
    assert shipped["told"]
    assert "UNIMPLEMENTED" in shipped["as shipped"]
    assert shipped["by name"][1] is True
    assert shipped["not asked for"][1] is False
