"""Lines that a pod of the user's own needs for a GPU, and why. Pure.

Sources: NVIDIA/k8s-device-plugin 0.20.0, internal/plugin/server.go and docs/cdi.md; KEP-4009 (the kubelet passes a
device plugin's CDI devices on from Kubernetes 1.29); NVIDIA/gpu-operator 26.7, controllers/object_controls.go
(with ``cdi.enabled`` its plugin hands out CDI devices alone); Project-HAMi/HAMi 2.10, pkg/device/nvidia/device.go
(its webhook adds ``devicePlugin.runtimeClassName`` to pods that ask for a GPU).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode import yaml
from gpunode.kubernetes.managed import is_gke
from gpunode.kubernetes.model import ClusterNode, OwnPod
from gpunode.kubernetes.objects import tolerations
from gpunode.kubernetes.sharing import MIG
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kubernetes

# The first device plugin with cdi-cri.
_WITH_CDI: Final = (0, 15)
_BY_CDI: Final = "by CDI (Kubernetes 1.29 or later)"


def can_use_cdi(recipe: Recipe, node: ClusterNode) -> bool:
    """Return whether the device plugin can hand GPUs to pods of the node as CDI devices.

    Their hooks are run by the host's container toolkit. With nvidia as default runtime there is no need of CDI.
    """
    wanted, runtime = _tables(recipe), recipe.runtime
    if wanted.kind.workers or runtime.default or runtime.cdi is False:
        return False
    version = tuple(int(one) for one in wanted.versions.device_plugin.lstrip("v").partition("-")[0].split(".") if one)
    return bool(node.reads_cdi) and node.toolkit and (not version or version >= _WITH_CDI)


def device_list_strategies(recipe: Recipe, nodes: Sequence[ClusterNode]) -> tuple[str, ...]:
    """Return how the device plugin hands GPUs to the container runtime; empty for its default, ``envvar``.

    ``envvar`` stays beside ``cdi-cri``, for nodes whose runtime reads no CDI devices: one DaemonSet serves all. Where
    CDI is read, its specification sets NVIDIA_VISIBLE_DEVICES to ``void``, and NVIDIA's runtime adds nothing.
    """
    return ("envvar", "cdi-cri") if any(can_use_cdi(recipe, node) for node in nodes) else ()


def operator_uses_cdi(recipe: Recipe, nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the GPU Operator's plugin is to hand out CDI devices, which it then does on every node."""
    return recipe.runtime.cdi is True or is_gke(nodes) or all(can_use_cdi(recipe, node) for node in nodes)


def settle_cdi(recipe: Recipe, nodes: Sequence[ClusterNode]) -> Recipe:
    """Return the recipe with what all nodes decide together written out, so that one can be rendered by itself."""
    if _tables(recipe).stack != "gpu-operator":
        return recipe
    return replace(recipe, runtime=replace(recipe.runtime, cdi=operator_uses_cdi(recipe, nodes)))


def runtime_class_of_pods(recipe: Recipe, nodes: Sequence[ClusterNode]) -> str:
    """Return the RuntimeClass that a pod has to name to get a GPU on any of these nodes; empty for none."""
    wanted = _tables(recipe)
    if wanted.stack in {"dra", "hami"} or (recipe.runtime.default and not wanted.kind.workers):
        return ""
    if wanted.stack == "gpu-operator":
        return "" if operator_uses_cdi(recipe, nodes) else wanted.runtime_class
    return "" if all(can_use_cdi(recipe, node) for node in nodes) else wanted.runtime_class


def own_pods(
    recipe: Recipe, nodes: Sequence[ClusterNode], resources: Mapping[str, Sequence[str]]
) -> tuple[OwnPod, ...]:
    """Return what pods of one's own need, one for each resource; MIG instances that need the same share one.

    Args:
        recipe: with its Kubernetes tables.
        nodes: all GPU nodes of the cluster. A pod may run on any that offers its resource, whatever else it offers.
        resources: what each offers, by its name; with DRA one empty name, and empty where only the MIG layout tells.
    """
    every = dict.fromkeys(name for names in resources.values() for name in names)
    found: dict[tuple[str, str], tuple[OwnPod, list[str]]] = {}
    for resource in every:
        own = own_pod(recipe, nodes, [node for node in nodes if resource in resources[node.name]], resource)
        group = MIG if resource.startswith(MIG) else resource
        found.setdefault((group, own.why), (own, []))[1].append(resource)
    if len(every) == 1:
        return tuple(own for own, _ in found.values())
    return tuple(replace(own, why=f"that asks for {' or '.join(names)} {own.why}") for own, names in found.values())


def own_pod(recipe: Recipe, nodes: Sequence[ClusterNode], offering: Sequence[ClusterNode], resource: str) -> OwnPod:
    """Return what a pod needs that may run on the nodes ``offering`` the resource, among all GPU ``nodes``."""
    wanted = _tables(recipe)
    if wanted.stack != "gpu-operator":  # whose plugin hands GPUs over alike on every node
        nodes = offering
    name = runtime_class_of_pods(recipe, nodes)
    spec: dict[str, Any] = {"runtimeClassName": name} if name else {}
    if tolerated := tolerations(wanted, usual=False):
        spec["tolerations"] = tolerated
    if wanted.stack == "dra":
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "NAME"}]
    spec["containers"] = [{"resources": _resources(wanted, resource)}]
    return OwnPod(spec, _why(recipe, nodes, name))


def own_pod_text(own: OwnPod) -> str:
    """Return what a pod has to say, as YAML."""
    return yaml.document({"spec": own.spec})


def _resources(wanted: Kubernetes, resource: str) -> Mapping[str, Any]:
    if wanted.stack == "dra":
        return {"claims": [{"name": "gpu"}]}
    return {"limits": {resource: 1, **({"nvidia.com/gpumem": 1024} if wanted.stack == "hami" else {})}}


def _why(recipe: Recipe, nodes: Sequence[ClusterNode], name: str) -> str:
    wanted = _tables(recipe)
    if wanted.stack == "dra":
        return "gets a GPU by a claim; NAME is a ResourceClaimTemplate in its namespace, as in test-pod.yaml"
    if wanted.stack == "hami":
        return "gets a GPU by its limits; HAMi's webhook adds the RuntimeClass and HAMi's scheduler"
    if name:
        return f"gets a GPU only with runtimeClassName: {name}{_because(recipe, nodes)}"
    if recipe.runtime.default or not wanted.runtime_class:
        return "gets a GPU by its limits alone: nvidia is the default runtime"
    return f"gets a GPU by its limits alone, {_BY_CDI}"


def _because(recipe: Recipe, nodes: Sequence[ClusterNode]) -> str:
    if recipe.runtime.cdi is False or _tables(recipe).kind.workers:
        return ""
    if unable := [node.name for node in nodes if node.reads_cdi is False]:
        who = f"the container runtime of {_some(unable)} reads no CDI devices"
        return f", because {who}; containerd 1.7 or later does after gpunode setup"
    if unknown := [node.name for node in nodes if node.reads_cdi is None]:
        return f", unless captures (--node) show that the container runtime of {_some(unknown)} reads CDI devices"
    return ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _tables(recipe: Recipe) -> Kubernetes:
    assert recipe.kubernetes is not None  # checked before anything is rendered
    return recipe.kubernetes
