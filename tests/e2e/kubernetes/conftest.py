"""Clusters that tests share: a control plane without nodes, and one whose node gpunode has set up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.chroot.scenario import DIRECTORIES
from tests.e2e.kubernetes.cluster import RECIPE, Cluster
from tests.e2e.kubernetes.control_plane import API_PROGRAMS, SCHEDULING_PROGRAMS, ControlPlane
from tests.e2e.kubernetes.faults import DEVICES, Joined
from tests.e2e.kubernetes.kubelet_node import KUBELET, NAME, KubeletNode, lacking_network
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.code import Mounts
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.pci import GTX_1080, Device
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.snapshot import snapshot
from tests.e2e.machine.scenario import CONTAINERD_CONFIG, Machines, put_programs, setup_ok
from tests.needs import lacking_assets

NODES: Final = ("gpu-1", "gpu-2")
# Seconds after its kubelet's last message until a node counts as unreachable; 50 by default.
_GRACE_S: Final = 15
_REGISTRATION: Final = 'kubernetes.node_registration = "kubelet"\nkubernetes.labels = { "example.org/team" = "a" }\n'


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a control plane with scheduling and credentials for the nodes of NODES, none of which has joined."""
    if reason := lacking_assets(*API_PROGRAMS, *SCHEDULING_PROGRAMS):
        pytest.skip(reason)
    with ControlPlane(tmp_path_factory.mktemp("kubernetes") / "plane", nodes=NODES) as plane:
        yield plane


@pytest.fixture(scope="session")
def kubelet_programs() -> None:
    """Require all programs of a cluster with a node, before building the lab's bases for it."""
    if reason := lacking_assets(*API_PROGRAMS, *SCHEDULING_PROGRAMS, "kubelet") or lacking_network():
        pytest.skip(reason)


@pytest.fixture(
    scope="module",
    params=["bookworm", pytest.param("trixie", marks=pytest.mark.long), pytest.param("sid", marks=pytest.mark.long)],
)
def joined(
    request: pytest.FixtureRequest,
    kubelet_programs: None,
    lab: Path,
    bases: dict[str, Bases],
    repositories: Repositories,
    code: Mounts,
) -> Iterator[Joined]:
    """Yield a node with containerd 1.6, 1.7 or 2.1 that gpunode has set up and that offers GPUs to pods."""
    # sid's programs over Debian 13.
    suite = "bookworm" if request.param == "bookworm" else "trixie"
    machines = Machines(lab, repositories, code)
    with machines.make_of(KubeletNode, bases[suite].runtime, _gpus()) as node:
        machines.furnish(node, DIRECTORIES[suite])
        recipe = f'schema = 1\nextends = "k8s-containerd"\n{_REGISTRATION}{repositories.recipe(DIRECTORIES[suite])}'
        node.write(RECIPE, recipe)
        if request.param == "sid":
            put_programs(node, request.getfixturevalue("runtime_bases")("sid"))
        plane = ControlPlane(lab / f"plane-{suite}", nodes=[NAME], enter=node.sandbox.argv, node_grace_s=_GRACE_S)
        with plane:
            yield _join(Cluster(node, plane), request.param)
        left = marks(node)
    assert leftovers(left) == []


def _join(cluster: Cluster, suite: str) -> Joined:
    node = cluster.node
    node.provide_kubelet(cluster.plane)
    stock = node.read(CONTAINERD_CONFIG)
    joined = Joined(cluster, suite, snapshot(node), stock)
    setup_ok(node, "kubernetes")
    node.run("systemctl", "start", KUBELET)
    cluster.await_ready()
    cluster.import_images()
    node.offer_gpus(DEVICES)
    cluster.apply()
    return joined


def _gpus() -> list[Device]:
    return [replace(GTX_1080, address=f"0000:{number:02x}:00.0") for number in range(1, DEVICES + 1)]


@pytest.fixture
def cluster(joined: Joined) -> Cluster:
    """Return the cluster of that node, with all GPUs free."""
    joined.cluster.await_gpus(DEVICES)
    return joined.cluster
