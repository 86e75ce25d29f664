"""The part of a node's facts that the cluster's objects depend on."""

from __future__ import annotations

import re

from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.errors import Refused, Undetermined
from gpunode.facts.evidence import Evidence
from gpunode.facts.model import Facts, Known, require, value_or
from gpunode.facts.probes import DEVICE_PLUGIN_SERVICE
from gpunode.kubernetes.cluster_nodes import GKE_PLUGIN_OPT_OUT_LABEL
from gpunode.kubernetes.model import ClusterNode
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.runtimes.file_states import contents_of_states, packaged_version, states_from_facts
from gpunode.runtimes.installations import resolve_runtime
from gpunode.runtimes.model import reads_cdi
from gpunode.steps.gpus import find_models, find_own_gpus
from gpunode.steps.managed import has_providers_driver

# A valid Node name (RFC 1123).
_VALID_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_NODE_NAME_LENGTH = 253
_SOCKETS_WITH_CDI = frozenset(
    runtime.socket for runtime in CONTAINER_RUNTIMES.values() if runtime.cdi_support == "always"
)


def derive_cluster_node(facts: Facts, name: str) -> ClusterNode:
    """Return the node's facts that its Kubernetes objects depend on.

    Raises:
        Refused: if ``name`` is not a valid Node name.
        Undetermined: if its GPUs are unknown.
    """
    lowered = name.lower()
    if not _VALID_NODE_NAME.fullmatch(lowered) or len(lowered) > _MAX_NODE_NAME_LENGTH:
        raise Refused(
            f"{name[:80]!r} cannot be the name of a Kubernetes node",
            why="a node's name consists of lower-case letters, digits, - and .",
            hint="name the node as `kubectl get nodes` shows it: --node NAME=CAPTURE",
        )
    loaded, kubelet = value_or(facts.loaded_driver, None), value_or(facts.kubelet, None)
    is_opted_out = kubelet is not None and GKE_PLUGIN_OPT_OUT_LABEL in kubelet.labels.split(",")
    plugin = facts.unit(DEVICE_PLUGIN_SERVICE)
    has_unit = isinstance(plugin, Known) and (plugin.value.state.active or plugin.value.state.enabled)
    has_plugin = has_unit or (value_or(facts.provider, None) == "gke" and not is_opted_out)
    provides = {"driver": has_providers_driver(facts), "device-plugin": has_plugin}
    return ClusterNode(
        name=lowered,
        gpus=find_models(find_own_gpus(require(facts.devices, f"which GPUs {lowered} has"))),
        driver=loaded.version if loaded else "",
        kubelet=kubelet.kind if kubelet else None,
        toolkit=value_or(facts.toolkit_program, default=False),
        provider=value_or(facts.provider, None),
        provides=frozenset(part for part, is_provided in provides.items() if is_provided),
        static_cpus=kubelet is not None and kubelet.static_cpus,
        reads_cdi=_reads_cdi(facts),
    )


def _reads_cdi(facts: Facts) -> bool:
    """Return whether the kubelet's container runtime reads CDI devices; without a kubelet, judge containerd.

    Return False if that cannot be determined.
    """
    kubelet = value_or(facts.kubelet, None)
    if kubelet is not None and kubelet.socket in _SOCKETS_WITH_CDI:
        return True
    try:
        runtime = resolve_runtime(find_runtime("containerd"), facts).runtime
        if kubelet is not None and kubelet.socket != runtime.socket:
            return False
        version = packaged_version(runtime, value_or(facts.packages, {}))
        desired = DesiredConfig(version=version)
        return reads_cdi(
            runtime, runtime.inspect(contents_of_states(states_from_facts(facts, runtime, desired)), desired), version
        )
    except (Refused, Undetermined):
        return False


def derive_node_name(facts: Facts, evidence: Evidence, fallback: str) -> str:
    """Return the Node's name: from the kubelet's options, else the host's own name, else ``fallback``."""
    kubelet, capture = value_or(facts.kubelet, None), evidence.get("node-name")
    host = capture.text.strip() if capture and capture.outcome == "ok" else ""
    return (kubelet.node_name if kubelet else "") or host or fallback
