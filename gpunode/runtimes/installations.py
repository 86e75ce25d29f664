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
from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.model import RUNC_FAMILY, DesiredConfig, Files, Runtime


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
    """The runtime to use, and what the user should know about the choice."""

    runtime: Runtime
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
    return next((installation.sockets[0] for installation in INSTALLATIONS if unit in installation.units), "")


def resolve_runtime(runtime: Runtime, facts: Facts) -> ChosenRuntime:
    """Return the runtime to configure for ``runtime``: the kubelet's containerd, if any; docker as it is installed.

    Raises:
        Refused: it is unknown what the kubelet's containerd reads.
    """
    if is_shipped_by_products(runtime):
        return _choose_for_kubelet(_adapt_to_node(runtime, facts), facts)
    return ChosenRuntime(_adapt_to_node(runtime, facts))


def is_shipped_by_products(runtime: Runtime) -> bool:
    """Return whether products ship this runtime, each with its own rules."""
    return runtime.id == "containerd"


def _adapt_to_node(runtime: Runtime, facts: Facts) -> Runtime:
    files = {path: fact.value.content for path, fact in facts.files.items() if isinstance(fact, Known) and fact.value}
    masked = {path: b"" for path, fact in facts.files.items() if isinstance(fact, Unknown) and is_unit_file(path)}
    return runtime.adapt_to_node(runtime, {**files, **masked}, DesiredConfig())


def resolve_runtime_if_possible(runtime: Runtime, facts: Facts) -> Runtime:
    """Return the runtime to inspect: the result of ``resolve_runtime``, or ``runtime`` itself if that refuses."""
    try:
        return resolve_runtime(runtime, facts).runtime
    except Refused:
        return runtime


def kubelet_using(runtime: Runtime, facts: Facts) -> Kubelet | None:
    """Return the kubelet that runs its pods in this runtime; None if there is none, or that is unknown."""
    kubelet = facts.kubelet.value if isinstance(facts.kubelet, Known) else None
    return kubelet if kubelet is not None and kubelet.socket == runtime.socket else None


def with_kubelet_cgroup_driver(runtime: Runtime, facts: Facts, desired: DesiredConfig, files: Files) -> DesiredConfig:
    """Return ``desired`` with systemd's cgroup driver if the kubelet uses it and no handler has one to inherit."""
    kubelet = kubelet_using(runtime, facts)
    if not runtime.cgroup_by_handler or runtime.product or kubelet is None or kubelet.cgroup_driver != "systemd":
        return desired
    present = runtime.inspect(files, desired)
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

            return ChosenRuntime(
                products.make_bundled_runtime(product.id, containerd, kubelet, product.units[0], facts)
            )
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
