"""Whose Kubernetes node this is, where somebody else than its owner builds the host.

Each is told by a file that only its product makes. The cloud that a machine runs in is no sign: people run kubeadm and
k3s there, too, with the same DMI vendor, the same provider ids and, on Azure, the same azure.json.

Sources: kind images/base/files/usr/local/bin/entrypoint; awslabs/amazon-eks-ami templates and nodeadm; Azure/AgentBaker
parts/linux/cloud-init/artifacts; kubernetes/kubernetes cluster/gce/gci/configure-helper.sh; Bottlerocket os-release;
openshift/machine-config-operator pkg/daemon/constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpunode.facts.model import Distro, Fact, Known, Provider, Unknown

# By probe key; nobody reads what is in the files.
MARKS: Final[Mapping[str, tuple[Provider, str]]] = {
    "provider-kind": ("kind", "/kind/version"),
    "provider-eks": ("eks", "/etc/eks"),
    "provider-aks": ("aks", "/opt/azure/containers"),
    "provider-gke": ("gke", "/home/kubernetes/bin/kubelet"),
    "provider-openshift": ("openshift", "/etc/machine-config-daemon/currentconfig"),
}

# By the ID in os-release.
_SYSTEMS: Final[Mapping[str, Provider]] = {"bottlerocket": "bottlerocket", "rhcos": "openshift"}
TITLES: Final[Mapping[Provider, str]] = {
    "kind": "a kind node",
    "eks": "an EKS node",
    "bottlerocket": "a Bottlerocket node",
    "aks": "an AKS node",
    "gke": "a GKE node",
    "openshift": "an OpenShift node",
}


def fact(is_there: Callable[[str], Fact[bool]], distro: Fact[Distro]) -> Fact[Provider | None]:
    """Whose node this is; None where it is its owner's.

    Args:
        is_there: whether the mark of a probe is there.
        distro: Bottlerocket and RHCOS say themselves what they are.
    """
    if isinstance(distro, Known) and distro.value.id in _SYSTEMS:
        return Known(_SYSTEMS[distro.value.id], distro.probe)
    looks = {key: is_there(key) for key in MARKS}
    for key, look in looks.items():
        if isinstance(look, Known) and look.value:
            return Known(MARKS[key][0], key)
    unknown = next((look for look in looks.values() if isinstance(look, Unknown)), None)
    return unknown or Known(None, next(iter(MARKS)))
