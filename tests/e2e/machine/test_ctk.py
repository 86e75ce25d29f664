"""gpunode ctk by itself on a booted machine: nothing is restarted unasked, and what is asked for is proven."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.chroot.scenario import Answer
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.image import import_image
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.machine.scenario import (
    CONTAINERD,
    CONTAINERD_CONFIG,
    DOCKER,
    DOCKER_CONFIG,
    Machines,
    ask,
    is_up,
    make_fussy,
    restore,
    start_of,
)

pytestmark = pytest.mark.e2e

CONFIG = """\
# Written by hand on this node.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:3.9" # pinned
"""


@pytest.fixture(scope="module")
def machine(bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    with machines.make(bases["bookworm"].runtime) as node:
        machines.furnish(node)
        import_image(node)
        yield node
        left = marks(node)
    assert leftovers(left) == []


@pytest.fixture
def node(machine: Machine) -> Machine:
    """The machine with its daemons as they were before gpunode came."""
    restore(machine, CONTAINERD, CONTAINERD_CONFIG, CONFIG)
    restore(machine, DOCKER, DOCKER_CONFIG, None)
    return machine


def ctk(node: Machine, verb: str, *options: str) -> Answer:
    return ask(node, "ctk", "runtime", verb, *options)


def default_of(node: Machine) -> str:
    return node.run("docker", "info", "--format", "{{.DefaultRuntime}}").stdout.strip()


def test_containerd_is_left_alone_until_it_is_asked_for(node: Machine) -> None:
    before = start_of(node, CONTAINERD)

    done = ctk(node, "configure", "--runtime=containerd", "--set-as-default")

    assert (done.exit_code, done.result["next"]) == (0, "sudo systemctl restart containerd")
    assert done.result["checked"] == "checked: `containerd config dump` reads it as meant"
    assert start_of(node, CONTAINERD) == before
    unread = ctk(node, "check", "--runtime=containerd", "--set-as-default")
    assert (unread.exit_code, unread.envelope["status"]) == (7, "verify-failed")

    assert ctk(node, "configure", "--runtime=containerd", "--set-as-default", "--restart").exit_code == 0

    assert start_of(node, CONTAINERD).starts == before.starts + 1
    assert ctk(node, "check", "--runtime=containerd", "--set-as-default").exit_code == 0
    again = ctk(node, "configure", "--runtime=containerd", "--set-as-default", "--restart")
    assert (again.exit_code, again.envelope["changed"]) == (0, False)
    assert ctk(node, "unconfigure", "--runtime=containerd", "--restart").exit_code == 0
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    assert start_of(node, CONTAINERD).starts == before.starts + 2


@pytest.mark.long
def test_a_containerd_that_does_not_come_back_gets_its_files_back(node: Machine) -> None:
    make_fussy(node, CONTAINERD, "refuses")
    node.run("systemctl", "restart", CONTAINERD)

    done = ctk(node, "configure", "--runtime=containerd", "--restart")

    assert done.exit_code == 6
    assert f"put back: {CONTAINERD_CONFIG}; {CONTAINERD} runs with it again" in done.error
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    assert is_up(node, CONTAINERD)


def test_dockers_containers_outlive_what_a_reload_brings_and_are_named_before_a_restart(node: Machine) -> None:
    before = start_of(node, DOCKER)
    node.run("docker", "run", "--detach", "--stop-timeout=1", "--name=training", "lab", "/hello", "wait")
    try:
        done = ctk(node, "configure", "--set-as-default", "--restart")
        assert done.exit_code == 0, done.error
        assert [one["trigger"]["kind"] for one in done.result["triggers"]] == ["reload"]
        assert default_of(node) == "nvidia"
        assert ctk(node, "check", "--set-as-default").exit_code == 0

        written = node.read(DOCKER_CONFIG)
        refused = ctk(node, "configure", "--set-as-default", "--cdi.enabled", "--restart")
        assert refused.exit_code == 11
        assert "training" in refused.error
        assert node.read(DOCKER_CONFIG) == written

        # dockerd would keep a default that its file names no more, so what a reload brought a reload does not undo.
        drain = ask(node, "rollback", "--yes")
        assert drain.exit_code == 11
        assert "training" in drain.error
        assert node.run("docker", "ps", "--format={{.Names}}").stdout == "training\n"
        assert start_of(node, DOCKER) == before
        assert ask(node, "rollback", "--yes", "--allow-disruption").exit_code == 0
        assert not node.path(DOCKER_CONFIG).exists()
        assert default_of(node) == "runc"
    finally:
        node.run("docker", "rm", "--force", "training")
