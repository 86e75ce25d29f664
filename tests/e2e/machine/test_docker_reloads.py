"""docker on a booted machine: reloaded where that does, restarted with leave, never left with what it cannot use."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.lab.bases import Bases
from tests.e2e.lab.image import import_image
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.toolkit import CALLS
from tests.e2e.machine.scenario import (
    DOCKER,
    DOCKER_CONFIG,
    Machines,
    ask,
    impatient,
    is_up,
    make_fussy,
    restore,
    setup,
    setup_ok,
    start_of,
)

pytestmark = pytest.mark.e2e

OPTIONS = "/etc/default/docker"


@pytest.fixture(scope="module")
def machine(bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    with machines.make(bases["bookworm"].runtime) as node:
        machines.furnish(node)
        setup_ok(node, "docker")
        import_image(node)
        yield node
        left = marks(node)
    assert leftovers(left) == []


@pytest.fixture
def node(machine: Machine) -> Machine:
    """The machine with its driver, and with docker as it was before gpunode came."""
    machine.path(OPTIONS).unlink(missing_ok=True)
    restore(machine, DOCKER, DOCKER_CONFIG, None)
    return machine


def runtimes(node: Machine) -> tuple[set[str], str]:
    """The runtimes that the running daemon has, and its default."""
    told = json.loads(node.run("docker", "info", "--format", "{{json .}}").stdout)
    return set(told["Runtimes"]), told["DefaultRuntime"]


def test_docker_learns_of_nvidia_without_a_restart(node: Machine) -> None:
    before = start_of(node, DOCKER)

    done = setup_ok(node, "docker")

    assert [one["trigger"]["kind"] for one in done.result["triggers"]] == ["reload"]
    names, default = runtimes(node)
    assert "nvidia" in names
    assert default == "runc"
    assert setup_ok(node, "docker").envelope["changed"] is False
    assert start_of(node, DOCKER) == before
    said = node.run("docker", "run", "--rm", "--runtime=nvidia", "lab", "/hello").stdout
    assert said == "hello from a container\n"
    assert " create " in node.read(CALLS)


def test_nvidia_becomes_the_default_runtime_without_a_restart(node: Machine) -> None:
    before = start_of(node, DOCKER)

    setup_ok(node, "docker-default")

    assert runtimes(node)[1] == "nvidia"
    assert start_of(node, DOCKER) == before


def test_what_docker_will_not_read_again_is_put_back_before_it_stops_the_next_start(node: Machine) -> None:
    # dockerd goes on when it cannot use the file on SIGHUP, and refuses the same file at its next start.
    node.write(OPTIONS, "DOCKER_OPTS=--default-runtime=runc\n")
    node.run("systemctl", "restart", DOCKER)
    before = start_of(node, DOCKER)

    done = setup(node, "docker-default")

    assert done.exit_code == 6
    assert "specified both as a flag and in the configuration file: default-runtime" in done.error
    assert not node.path(DOCKER_CONFIG).exists()
    assert start_of(node, DOCKER) == before
    node.run("systemctl", "restart", DOCKER)
    assert is_up(node, DOCKER)


def test_a_restart_that_stops_containers_needs_leave(node: Machine) -> None:
    before = start_of(node, DOCKER)
    node.run("docker", "run", "--detach", "--stop-timeout=1", "--name=training", "lab", "/hello", "wait")

    refused = setup(node, "docker-cdi")

    assert refused.exit_code == 11
    assert "training" in refused.error
    assert start_of(node, DOCKER) == before
    assert not node.path(DOCKER_CONFIG).exists()
    assert node.run("docker", "ps", "--format={{.Names}}").stdout == "training\n"

    setup_ok(node, "docker-cdi", "--allow-disruption")
    assert start_of(node, DOCKER).starts == before.starts + 1
    assert "nvidia" in runtimes(node)[0]
    node.run("docker", "rm", "--force", "training")


def test_a_docker_that_would_hang_for_ever_gets_its_old_configuration_back(node: Machine) -> None:
    # As docker's own unit says: systemd alone would wait for ever.
    make_fussy(node, DOCKER, "hangs", "TimeoutStartSec=0")
    node.run("systemctl", "restart", DOCKER)

    done = setup(node, "docker-cdi", program=impatient(node))

    assert done.exit_code == 6
    assert "no answer within" in done.error
    assert not node.path(DOCKER_CONFIG).exists()
    assert is_up(node, DOCKER)


def test_verify_asks_the_daemon_itself(node: Machine) -> None:
    setup_ok(node, "docker")
    assert ask(node, "verify", "/root/docker.toml").exit_code == 0
    # The file says it, the daemon does not have it.
    written = node.read(DOCKER_CONFIG)
    restore(node, DOCKER, DOCKER_CONFIG, None)
    node.write(DOCKER_CONFIG, written)

    lost = ask(node, "verify", "/root/docker.toml")

    assert lost.exit_code == 7
    failed = {check["id"] for check in lost.result["checks"] if check["status"] == "failed"}
    assert failed == {"configuration", "runtime"}


def test_docker_reads_what_was_written_since_its_start_without_a_restart(node: Machine) -> None:
    setup_ok(node, "docker")
    before = start_of(node, DOCKER)
    node.write(DOCKER_CONFIG, node.read(DOCKER_CONFIG) + "\n")

    found = ask(node, "plan", "/root/docker.toml", "--check")
    assert found.exit_code == 4
    done = setup_ok(node, "docker")

    assert [one["trigger"]["kind"] for one in done.result["triggers"]] == ["reload"]
    assert start_of(node, DOCKER) == before
    assert ask(node, "plan", "/root/docker.toml", "--check").exit_code == 0
