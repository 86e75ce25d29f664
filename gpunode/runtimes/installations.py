"""Which containerd to configure, and by which rules: the one whose socket the kubelet uses.

Kubernetes distributions ship their own containerd and regenerate its configuration at every start, so edits of that
file are lost; a row says where such a distribution reads additions. The facts are from the products' documentation
and source, named where they are used; none of these products was run here (docs/verification.md).

GKE, EKS, AKS and kind nodes have containerd in its usual place, run by containerd.service: EKS' file imports
/etc/containerd/config.d/*.toml (awslabs/amazon-eks-ami, nodeadm), AKS' and GKE's import nothing (Azure/AgentBaker;
vector 047 of nvidia-ctk's), kind's is inside the node's container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gpunode.errors import Refused
from gpunode.facts.evidence import NOT_CAPTURED_REASON
from gpunode.facts.model import Facts, Known, Kubelet, MisreadKubelet, Unknown
from gpunode.facts.systemd import is_unit_file
from gpunode.runtimes.model import RUNC_FAMILY, DesiredConfig, Files, Runtime
from gpunode.values import dataclass


@dataclass(frozen=True, slots=True)
class ContainerdInstallation:
    """A containerd as a product installs it.

    Attributes:
        sockets: where its containerd listens.
        units: the units that start its containerd; the kubelet's own is preferred, else the first.
    """

    id: str
    sockets: tuple[str, ...]
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChosenRuntime:
    """The row to use, and what the user should know about the choice."""

    row: Runtime
    notes: tuple[str, ...] = ()


INSTALLATIONS: Final[tuple[ContainerdInstallation, ...]] = (
    ContainerdInstallation("k3s", ("/run/k3s/containerd/containerd.sock",), ("k3s.service", "k3s-agent.service")),
    ContainerdInstallation(
        "rke2",
        # The second in releases that use the product's own name.
        ("/run/k3s/containerd/containerd.sock", "/run/rke2/containerd/containerd.sock"),
        ("rke2-server.service", "rke2-agent.service"),
    ),
    ContainerdInstallation(
        "microk8s",
        ("/var/snap/microk8s/common/run/containerd.sock",),
        ("snap.microk8s.daemon-containerd.service",),
    ),
    ContainerdInstallation("k0s", ("/run/k0s/containerd.sock",), ("k0sworker.service", "k0scontroller.service")),
)
# Sockets of runtimes other than containerd, or of a containerd that is not configured separately.
_OTHER_RUNTIME_BY_SOCKET: Final[Mapping[str, str]] = {
    "/run/crio/crio.sock": "CRI-O",
    "/run/dockershim.sock": "docker",
    "/run/cri-dockerd.sock": "docker",
    "/run/k3s/cri-dockerd/cri-dockerd.sock": "docker",
    "/run/rke2/cri-dockerd/cri-dockerd.sock": "docker",
}
_DOCKERS_CONTAINERD_SOCKET: Final = "/run/docker/containerd/containerd.sock"


def containerd_socket_of(unit: str) -> str:
    """Return the socket of the containerd that ``unit`` starts; empty for other units."""
    return next((row.sockets[0] for row in INSTALLATIONS if unit in row.units), "")


def choose_row(row: Runtime, facts: Facts) -> ChosenRuntime:
    """Return the row to configure for ``row``: the kubelet's containerd if there is one; docker as it is installed.

    Raises:
        Refused: it is unknown what the kubelet's containerd reads.
    """
    if is_shipped_by_products(row):
        return _choose_for_kubelet(_locate_row(row, facts), facts)
    return ChosenRuntime(_locate_row(row, facts))


def is_shipped_by_products(row: Runtime) -> bool:
    """Return whether products ship this runtime, each with its own rules."""
    return row.id == "containerd"


def _locate_row(row: Runtime, facts: Facts) -> Runtime:
    files = {path: fact.value.content for path, fact in facts.files.items() if isinstance(fact, Known) and fact.value}
    masked = {path: b"" for path, fact in facts.files.items() if isinstance(fact, Unknown) and is_unit_file(path)}
    return row.locate_row(row, {**files, **masked}, DesiredConfig())


def choose_row_if_possible(row: Runtime, facts: Facts) -> Runtime:
    """Return the row to inspect for ``row``: the result of ``choose_row``, or ``row`` itself if that refuses."""
    try:
        return choose_row(row, facts).row
    except Refused:
        return row


def kubelet_using(row: Runtime, facts: Facts) -> Kubelet | None:
    """Return the kubelet that runs its pods in this runtime; None if there is none, or that is unknown."""
    kubelet = facts.kubelet.value if isinstance(facts.kubelet, Known) else None
    return kubelet if kubelet is not None and kubelet.socket == row.socket else None


def with_kubelet_cgroup_driver(row: Runtime, facts: Facts, desired: DesiredConfig, files: Files) -> DesiredConfig:
    """Return ``desired`` with systemd's cgroup driver if the kubelet uses it and no handler has one to inherit."""
    kubelet = kubelet_using(row, facts)
    if not row.cgroup_by_handler or row.product or kubelet is None or kubelet.cgroup_driver != "systemd":
        return desired
    present = row.inspect(files, desired)
    if any(name in present.handlers for name in (*RUNC_FAMILY, present.default)):
        return desired
    return replace(desired, systemd_cgroup=True)


def _choose_for_kubelet(containerd: Runtime, facts: Facts) -> ChosenRuntime:
    if isinstance(facts.kubelet, Unknown):
        _refuse_misread_product(facts.kubelet)
        return ChosenRuntime(containerd, _unknown_kubelet_note(containerd, facts.kubelet))
    kubelet = facts.kubelet.value
    if kubelet is None or kubelet.socket == containerd.socket:
        return ChosenRuntime(containerd)
    if other := _OTHER_RUNTIME_BY_SOCKET.get(kubelet.socket):
        note = f"the kubelet here uses {other} ({kubelet.socket}): no pod runs in the containerd of {containerd.unit}"
        return ChosenRuntime(containerd, (note,))
    for product in INSTALLATIONS:
        if product.id == kubelet.kind and kubelet.socket in product.sockets:
            from gpunode.runtimes import products  # loaded on use: most nodes have none of these

            return ChosenRuntime(products.make_row(product.id, containerd, kubelet, product.units[0], facts))
    raise _unknown_socket_error(kubelet)


def _refuse_misread_product(kubelet: Unknown) -> None:
    """Refuse if a file of a product that runs a containerd of its own could not be parsed.

    Raises:
        Refused: names the file and the line.
    """
    if isinstance(kubelet, MisreadKubelet) and any(product.id == kubelet.kind for product in INSTALLATIONS):
        raise Refused(
            "cannot tell which containerd the kubelet here uses",
            why=kubelet.problem,
            hint="correct that file, then run the same command again",
        )


def _unknown_kubelet_note(containerd: Runtime, why: Unknown) -> tuple[str, ...]:
    """Return a note, unless kubelets were not probed: an older capture has nothing about them."""
    if why.reason == NOT_CAPTURED_REASON:
        return ()
    return (f"cannot tell which containerd the kubelet uses ({why.reason}); assuming that of {containerd.unit}",)


def _unknown_socket_error(kubelet: Kubelet) -> Refused:
    if kubelet.socket == _DOCKERS_CONTAINERD_SOCKET:
        return Refused(
            f"the kubelet here uses {kubelet.socket}, which is dockerd's own containerd",
            why="dockerd generates that containerd's configuration at every start, without the CRI plugin",
            hint="give the kubelet a separate containerd, or configure docker: --runtime docker",
        )
    return Refused(
        f"the kubelet here ({kubelet.unit or kubelet.kind}) uses {kubelet.socket}, which gpunode does not know",
        why="gpunode cannot tell which configuration that runtime reads, and editing another one would change nothing",
        hint="name its configuration: gpunode ctk runtime configure --runtime containerd --config FILE",
    )
