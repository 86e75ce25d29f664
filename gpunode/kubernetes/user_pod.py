"""The lines that a user's own pod needs for a GPU, and why. Pure.

Sources: NVIDIA/k8s-device-plugin 0.20.0, internal/plugin/server.go and docs/cdi.md; KEP-4009 (from Kubernetes 1.29 the
kubelet passes on a device plugin's CDI devices); NVIDIA/gpu-operator 26.7, controllers/object_controls.go
(with ``cdi.enabled`` its plugin only hands out CDI devices); Project-HAMi/HAMi 2.10, pkg/device/nvidia/device.go
(its webhook adds ``devicePlugin.runtimeClassName`` to pods that request a GPU).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode import yaml
from gpunode.kubernetes.cluster_nodes import is_gke
from gpunode.kubernetes.model import ClusterNode, UserPodNeeds
from gpunode.kubernetes.objects import make_tolerations
from gpunode.kubernetes.sharing import MIG_RESOURCE_PREFIX
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kubernetes
from gpunode.wording import join_names

# The first device plugin that supports cdi-cri.
_FIRST_PLUGIN_VERSION_WITH_CDI: Final = (0, 15)
_GPUS_BY_CDI_TEXT: Final = "by CDI (Kubernetes 1.29 or later)"


def can_use_cdi(recipe: Recipe, node: ClusterNode) -> bool:
    """Return whether the device plugin can pass GPUs to pods of the node as CDI devices.

    The host's container toolkit runs the CDI hooks. With nvidia as the default runtime, CDI is not needed.
    """
    desired, runtime = _kubernetes_tables(recipe), recipe.runtime
    if desired.kind.workers or runtime.set_as_default or runtime.cdi is False:
        return False
    version = tuple(int(one) for one in desired.versions.device_plugin.lstrip("v").partition("-")[0].split(".") if one)
    return bool(node.reads_cdi) and node.toolkit and (not version or version >= _FIRST_PLUGIN_VERSION_WITH_CDI)


def device_list_strategies(recipe: Recipe, nodes: Sequence[ClusterNode]) -> tuple[str, ...]:
    """Return how the device plugin passes GPUs to the container runtime; empty for its default, ``envvar``.

    ``envvar`` stays beside ``cdi-cri``, for nodes whose runtime does not read CDI devices: one DaemonSet serves all.
    Where CDI is read, its specification sets NVIDIA_VISIBLE_DEVICES to ``void``, and NVIDIA's runtime adds nothing.
    """
    return ("envvar", "cdi-cri") if any(can_use_cdi(recipe, node) for node in nodes) else ()


def operator_uses_cdi(recipe: Recipe, nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the GPU Operator's plugin passes CDI devices, which it then does on every node."""
    return recipe.runtime.cdi is True or is_gke(nodes) or all(can_use_cdi(recipe, node) for node in nodes)


def with_common_cdi_choice(recipe: Recipe, nodes: Sequence[ClusterNode]) -> Recipe:
    """Return the recipe with the CDI choice of all nodes together, so that a single node can be rendered."""
    if _kubernetes_tables(recipe).stack != "gpu-operator":
        return recipe
    return replace(recipe, runtime=replace(recipe.runtime, cdi=operator_uses_cdi(recipe, nodes)))


def required_runtime_class(recipe: Recipe, nodes: Sequence[ClusterNode]) -> str:
    """Return the RuntimeClass that a pod must name to get a GPU on any of these nodes; empty for none."""
    desired = _kubernetes_tables(recipe)
    if desired.stack in {"dra", "hami"} or (recipe.runtime.set_as_default and not desired.kind.workers):
        return ""
    if desired.stack == "gpu-operator":
        return "" if operator_uses_cdi(recipe, nodes) else desired.runtime_class
    return "" if all(can_use_cdi(recipe, node) for node in nodes) else desired.runtime_class


def describe_user_pods(
    recipe: Recipe, nodes: Sequence[ClusterNode], resources: Mapping[str, Sequence[str]]
) -> tuple[UserPodNeeds, ...]:
    """Return what the user's pods need, for each resource; MIG instances with the same needs share an entry.

    Args:
        recipe: a recipe with Kubernetes tables.
        nodes: all GPU nodes of the cluster. A pod may run on any that offers its resource, whatever else it offers.
        resources: the resources of each node, by its name; an empty name for DRA, none for an unknown MIG layout.
    """
    resource_names = dict.fromkeys(name for names in resources.values() for name in names)
    needs: dict[tuple[str, str], tuple[UserPodNeeds, list[str]]] = {}
    for resource in resource_names:
        own = describe_user_pod(recipe, nodes, [node for node in nodes if resource in resources[node.name]], resource)
        group = MIG_RESOURCE_PREFIX if resource.startswith(MIG_RESOURCE_PREFIX) else resource
        needs.setdefault((group, own.why), (own, []))[1].append(resource)
    if len(resource_names) == 1:
        return tuple(own for own, _ in needs.values())
    return tuple(replace(own, why=f"that asks for {' or '.join(names)} {own.why}") for own, names in needs.values())


def describe_user_pod(
    recipe: Recipe, nodes: Sequence[ClusterNode], eligible: Sequence[ClusterNode], resource: str
) -> UserPodNeeds:
    """Return what a pod needs that may run on the ``eligible`` nodes, among all GPU ``nodes``."""
    desired = _kubernetes_tables(recipe)
    if desired.stack != "gpu-operator":  # the plugin works the same on every node
        nodes = eligible
    name = required_runtime_class(recipe, nodes)
    spec: dict[str, Any] = {"runtimeClassName": name} if name else {}
    if own_tolerations := make_tolerations(desired, with_usual=False):
        spec["tolerations"] = own_tolerations
    requests: dict[str, Any] = {"limits": {resource: 1}}
    if desired.stack == "dra":
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "NAME"}]
        requests = {"claims": [{"name": "gpu"}]}
    elif desired.stack == "hami":
        requests["limits"]["nvidia.com/gpumem"] = 1024
    spec["containers"] = [{"resources": requests}]
    return UserPodNeeds(spec, _explain_gpu_access(recipe, nodes, name))


def format_user_pod(user_pod: UserPodNeeds) -> str:
    """Return the lines of the pod as YAML."""
    return yaml.render_document({"spec": user_pod.spec})


def _explain_gpu_access(recipe: Recipe, nodes: Sequence[ClusterNode], name: str) -> str:
    desired = _kubernetes_tables(recipe)
    if desired.stack == "dra":
        return "gets a GPU by a claim; NAME is a ResourceClaimTemplate in its namespace, as in test-pod.yaml"
    if desired.stack == "hami":
        return "gets a GPU by its limits; HAMi's webhook adds the RuntimeClass and HAMi's scheduler"
    if name:
        return f"gets a GPU only with runtimeClassName: {name}{_reason_for_runtime_class(recipe, nodes)}"
    if recipe.runtime.set_as_default or not desired.runtime_class:
        return "gets a GPU by its limits alone: nvidia is the default runtime"
    return f"gets a GPU by its limits alone, {_GPUS_BY_CDI_TEXT}"


def _reason_for_runtime_class(recipe: Recipe, nodes: Sequence[ClusterNode]) -> str:
    if recipe.runtime.cdi is False or _kubernetes_tables(recipe).kind.workers:
        return ""
    if unable := [node.name for node in nodes if node.reads_cdi is False]:
        who = f"the container runtime of {join_names(unable, 3)} reads no CDI devices"
        return f", because {who}; containerd 1.7 or later does after gpunode setup"
    if unknown := [node.name for node in nodes if node.reads_cdi is None]:
        return (
            f", unless captures (--node) show that the container runtime of {join_names(unknown, 3)} reads CDI devices"
        )
    return ""


def _kubernetes_tables(recipe: Recipe) -> Kubernetes:
    assert recipe.kubernetes is not None  # checked before anything is rendered
    return recipe.kubernetes
