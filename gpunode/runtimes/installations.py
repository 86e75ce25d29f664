"""Which containerd is the one to configure, and by whose rules: the one whose socket the kubelet uses.

Kubernetes distributions bring a containerd of their own and make its configuration at every start, so an edit of that
file is lost; a row says where such a product reads what others add. The facts are from the products' documentation and
source, named where they are used; none of these products was run here (docs/verification.md).

GKE, EKS, AKS and kind nodes have containerd at its usual places, run by containerd.service: EKS' file imports
/etc/containerd/config.d/*.toml (awslabs/amazon-eks-ami, nodeadm), AKS' and GKE's import nothing (Azure/AgentBaker;
vector 047 of nvidia-ctk's), kind's is inside of the node's container.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gpunode.errors import Refused
from gpunode.facts.evidence import NOT_CAPTURED
from gpunode.facts.model import Facts, Known, Kubelet, Unknown, known
from gpunode.facts.systemd import is_unit_file
from gpunode.runtimes.model import RUNC_FAMILY, DesiredConfig, Files, Removal, Runtime


@dataclass(frozen=True, slots=True)
class ContainerdInstallation:
    """A containerd as some product installs it.

    Attributes:
        title: the product, as people call it.
        brings: the id of the runtime that it installs.
        sockets: where its containerd answers.
        units: what starts its containerd; the one that the kubelet runs in counts, else the first.
        row: what to configure, given containerd's own row and the kubelet that uses it.
    """

    id: str
    title: str
    sockets: tuple[str, ...]
    units: tuple[str, ...]
    row: Callable[[Runtime, Kubelet, Facts], Runtime]
    brings: str = "containerd"


@dataclass(frozen=True, slots=True)
class ChosenRuntime:
    """The row to go by, and what the user should know of the choice."""

    row: Runtime
    notes: tuple[str, ...] = ()


# What follows loads a product's rules on their use: most nodes have none of these products.


def _rancher_row(product: str, containerd: Runtime, kubelet: Kubelet, _: Facts) -> Runtime:
    from gpunode.runtimes.rancher import Rancher

    place = Rancher(product, kubelet.data or f"/var/lib/rancher/{product}")

    def complete_removal(removal: Removal, desired: DesiredConfig) -> Removal:
        return place.complete_removal(
            containerd.complete_removal(removal, place.locate(removal.files, desired)), desired
        )

    return replace(
        _bundled_containerd(containerd, product, kubelet, place.locate),
        config=place.config,
        reads=place.reads,
        configure=place.configure,
        complete_removal=complete_removal,
        inspect=place.inspect,
        beside=place.beside,
        generated=frozenset({place.config}),
    )


def _microk8s_row(containerd: Runtime, kubelet: Kubelet, _: Facts) -> Runtime:
    from gpunode.runtimes import microk8s

    # What runs the kubelet is another daemon of the snap; its containerd can be restarted alone.
    return replace(
        _bundled_containerd(containerd, "microk8s", replace(kubelet, unit=""), microk8s.locate),
        config=microk8s.CONTAINERD_TEMPLATE_FILE,
        reads=microk8s.reads,
        configure=microk8s.configure,
        inspect=microk8s.inspect,
    )


def _k0s_row(containerd: Runtime, kubelet: Kubelet, facts: Facts) -> Runtime:
    from gpunode.runtimes import k0s

    state = known(facts.file(k0s.K0S_CONFIG_FILE), None)
    is_managed = k0s.is_managed_by_k0s(state.content if state else None)
    return replace(
        _bundled_containerd(containerd, "k0s", kubelet, k0s.locate),
        config=k0s.K0S_CONFIG_FILE,
        beside=frozenset({k0s.DROP_IN}),
        reads=k0s.reads,
        configure=k0s.configure,
        inspect=k0s.inspect,
        generated=frozenset({k0s.K0S_CONFIG_FILE} if is_managed else ()),
        watches=is_managed,
    )


def _bundled_containerd(
    containerd: Runtime, product: str, kubelet: Kubelet, locate: Callable[[Files, DesiredConfig], DesiredConfig]
) -> Runtime:
    """Return a row of a containerd that no package of its own brings, and whose files ``locate`` finds."""
    unit = kubelet.unit or installation(product).units[0]
    return replace(
        containerd,
        product=product,
        unit=unit,
        socket=kubelet.socket,
        drop_in="",
        packages=(),
        config_packages=frozenset(),
        layers=lambda files, desired: containerd.layers(files, locate(files, desired)),
        complete_removal=lambda removal, desired: containerd.complete_removal(removal, locate(removal.files, desired)),
    )


INSTALLATIONS: Final[tuple[ContainerdInstallation, ...]] = (
    ContainerdInstallation(
        "k3s",
        "k3s",
        ("/run/k3s/containerd/containerd.sock",),
        ("k3s.service", "k3s-agent.service"),
        partial(_rancher_row, "k3s"),
    ),
    ContainerdInstallation(
        "rke2",
        "RKE2",
        # The second in releases that name it after themselves.
        ("/run/k3s/containerd/containerd.sock", "/run/rke2/containerd/containerd.sock"),
        ("rke2-server.service", "rke2-agent.service"),
        partial(_rancher_row, "rke2"),
    ),
    ContainerdInstallation(
        "microk8s",
        "microk8s",
        ("/var/snap/microk8s/common/run/containerd.sock",),
        ("snap.microk8s.daemon-containerd.service",),
        _microk8s_row,
    ),
    ContainerdInstallation(
        "k0s", "k0s", ("/run/k0s/containerd.sock",), ("k0sworker.service", "k0scontroller.service"), _k0s_row
    ),
)
# Of runtimes that are no containerd, or whose containerd is not configured by itself.
_OTHER_RUNTIME_BY_SOCKET: Final[Mapping[str, str]] = {
    "/run/crio/crio.sock": "CRI-O",
    "/run/dockershim.sock": "docker",
    "/run/cri-dockerd.sock": "docker",
    "/run/k3s/cri-dockerd/cri-dockerd.sock": "docker",
    "/run/rke2/cri-dockerd/cri-dockerd.sock": "docker",
}
_DOCKERS_CONTAINERD_SOCKET: Final = "/run/docker/containerd/containerd.sock"


def installation(id: str) -> ContainerdInstallation:  # noqa: A002 - the rows' own word
    """The row named ``id``."""
    return {row.id: row for row in INSTALLATIONS}[id]


def containerd_socket_of(unit: str) -> str:
    """Return the socket of the containerd that ``unit`` starts; empty for other units."""
    return next((row.sockets[0] for row in INSTALLATIONS if unit in row.units), "")


def choose_row(row: Runtime, facts: Facts) -> ChosenRuntime:
    """Return what to configure for ``row``: of containerds the kubelet's, where one is here; docker as it is installed.

    Raises:
        Refused: the kubelet uses a containerd of which nobody knows what it reads.
    """
    if is_brought_by_products(row):
        return _choose_for_kubelet(_locate_row(row, facts), facts)
    return ChosenRuntime(_locate_row(row, facts))


def is_brought_by_products(row: Runtime) -> bool:
    """Return whether products bring this runtime, each with rules of its own."""
    return any(product.brings == row.id for product in INSTALLATIONS)


def _locate_row(row: Runtime, facts: Facts) -> Runtime:
    files = {path: fact.value.content for path, fact in facts.files.items() if isinstance(fact, Known) and fact.value}
    masked = {path: b"" for path, fact in facts.files.items() if isinstance(fact, Unknown) and is_unit_file(path)}
    return row.locate_row(row, {**files, **masked}, DesiredConfig())


def choose_row_if_possible(row: Runtime, facts: Facts) -> Runtime:
    """The row to look at for ``row``: as ``choose_row`` says, and ``row`` itself where it cannot say."""
    try:
        return choose_row(row, facts).row
    except Refused:
        return row


def kubelet_using(row: Runtime, facts: Facts) -> Kubelet | None:
    """The kubelet that runs its pods in this runtime; None where there is none, or nobody can tell."""
    kubelet = facts.kubelet.value if isinstance(facts.kubelet, Known) else None
    return kubelet if kubelet is not None and kubelet.socket == row.socket else None


def with_kubelet_cgroup_driver(row: Runtime, facts: Facts, desired: DesiredConfig, files: Files) -> DesiredConfig:
    """``desired`` with systemd's cgroup driver, if it is the kubelet's and no handler is there to inherit one from."""
    kubelet = kubelet_using(row, facts)
    if not row.cgroup_by_handler or row.product or kubelet is None or kubelet.cgroup_driver != "systemd":
        return desired
    present = row.inspect(files, desired)
    if any(name in present.handlers for name in (*RUNC_FAMILY, present.default)):
        return desired
    return replace(desired, systemd_cgroup=True)


def _choose_for_kubelet(containerd: Runtime, facts: Facts) -> ChosenRuntime:
    if isinstance(facts.kubelet, Unknown):
        return ChosenRuntime(containerd, _unknown_kubelet_note(containerd, facts.kubelet))
    kubelet = facts.kubelet.value
    if kubelet is None or kubelet.socket == containerd.socket:
        return ChosenRuntime(containerd)
    if other := _OTHER_RUNTIME_BY_SOCKET.get(kubelet.socket):
        note = f"the kubelet here uses {other} ({kubelet.socket}): no pod runs in the containerd of {containerd.unit}"
        return ChosenRuntime(containerd, (note,))
    for product in INSTALLATIONS:
        if product.id == kubelet.kind and kubelet.socket in product.sockets:
            return ChosenRuntime(product.row(containerd, kubelet, facts))
    raise _unknown_socket_error(kubelet)


def _unknown_kubelet_note(containerd: Runtime, why: Unknown) -> tuple[str, ...]:
    """A note, unless nobody looked: an older capture tells nothing of kubelets."""
    if why.reason == NOT_CAPTURED:
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
