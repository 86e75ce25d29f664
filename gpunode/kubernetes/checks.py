"""Checks of a recipe's Kubernetes tables that hold for any nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.errors import Refused
from gpunode.kubernetes.gitops import is_remote_cluster
from gpunode.kubernetes.sharing import refuse_bad_configs
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import ArgoCd, Kubernetes, refuse_foreign_labels

_FORBIDDEN_NAMESPACES: Final = frozenset({"default", "kube-public", "kube-node-lease"})


def refuse_bad_tables(recipe: Recipe) -> None:
    """Refuse a recipe whose Kubernetes tables do not fit together or with the rest.

    Raises:
        Refused: if they do not, or there are none.
    """
    desired = recipe.kubernetes
    if desired is None or desired.stack == "none":
        raise Refused(
            f"the recipe {recipe.name} does not configure Kubernetes",
            why="it has no [kubernetes] table with a stack",
            hint='add one, such as:\n[kubernetes]\nstack = "device-plugin"',
        )
    _refuse_bad_names(desired)
    _refuse_bad_argocd(desired.argocd)
    _refuse_bad_runtime(recipe, desired)
    if desired.stack in {"hami", "dra"}:
        _refuse_ignored_sharing(desired)
    if desired.stack != "hami":
        refuse_bad_configs(desired)
    strategies = {one.strategy for one in desired.configs.values()} | {desired.mig.strategy}
    if desired.stack == "gpu-operator" and len(strategies - {"none"}) > 1:
        raise Refused(
            "the configurations differ in their MIG strategy",
            why="the GPU Operator has one strategy for all nodes; its setting overrides the device plugin's file",
            hint="use single or mixed in [kubernetes.mig] and all [kubernetes.configs]",
        )


def _refuse_bad_names(desired: Kubernetes) -> None:
    if desired.namespace in _FORBIDDEN_NAMESPACES:
        raise Refused(
            f"[kubernetes] namespace cannot be {desired.namespace}",
            why="it is the cluster's own, and its pods would become privileged",
            hint="leave namespace out, or name one for the GPU stack",
        )
    refuse_foreign_labels(desired)
    if desired.taint.value and not desired.taint.key:
        raise Refused(
            "[kubernetes.taint] has a value and no key",
            why="without a key there is no taint",
            hint='set key, such as key = "nvidia.com/gpu"',
        )


def _refuse_bad_argocd(argocd: ArgoCd) -> None:
    if argocd.server and argocd.cluster:
        raise Refused(
            "[kubernetes.argocd] has both a server and a cluster",
            why="both name the cluster that has the GPUs, and Argo CD takes only one of them",
            hint="leave one of them out",
        )
    if is_remote_cluster(argocd) and not argocd.repository:
        raise Refused(
            "[kubernetes.argocd] names another cluster and no repository",
            why="Argo CD applies the namespace and other plain objects to that cluster from git",
            hint="set repository to the git repository that holds the rendered folder, and path to the folder in it",
        )


def _refuse_bad_runtime(recipe: Recipe, desired: Kubernetes) -> None:
    runtime = recipe.runtime
    row = CONTAINER_RUNTIMES.get(runtime.name)
    if row is not None and not row.runs_pods:
        raise Refused(
            f"kubelets do not run pods with {row.id}",
            why=f"the recipe {recipe.name} configures {row.id}",
            hint='set name in [runtime] to "containerd" or "crio"',
        )
    is_docker = row is not None and row.client == "docker run"
    if desired.kind.workers and not (is_docker and runtime.set_as_default and recipe.toolkit.volume_mounts):
        raise Refused(
            "the nodes of the kind cluster would get no GPU",
            why="they are docker containers with docker's default runtime, and request GPUs by mounts",
            hint='set name = "docker" and set_as_default = true in [runtime], and volume_mounts = true in [toolkit]',
        )
    needs_class = desired.stack in {"device-plugin", "hami"} and runtime.name != "none"
    if needs_class and not desired.runtime_class and not runtime.set_as_default:
        raise Refused(
            "the device plugin would find no GPU",
            why="its pod has no RuntimeClass, and nvidia is not the default runtime",
            hint='set runtime_class = "nvidia" in [kubernetes], or set_as_default = true in [runtime]',
        )
    if desired.stack == "dra" and row is not None and row.cdi == "switch" and not runtime.cdi:
        raise Refused(
            "the DRA driver needs CDI in containerd",
            why="it gives GPUs to containers as CDI devices",
            hint="set cdi = true in [runtime]",
        )


def _refuse_ignored_sharing(desired: Kubernetes) -> None:
    if not (ignored := list(_ignored_tables(desired))):
        return
    if desired.stack == "hami":
        raise Refused(
            f"HAMi does not use {', '.join(ignored)}",
            why="it shares GPUs itself: its scheduler gives each pod the memory and cores that it asks for",
            hint="leave them out; in [kubernetes.sharing], HAMi takes replicas",
        )
    raise Refused(
        f"gpunode renders no {', '.join(ignored)} for the DRA driver",
        why="the driver offers whole GPUs; sharing is an alpha feature of it, off by default",
        hint='leave them out, or use stack = "device-plugin"',
    )


def _ignored_tables(desired: Kubernetes) -> Iterator[str]:
    """Yield the tables and keys that the stack would ignore."""
    sharing = desired.sharing
    if sharing.mode != "none" or sharing.rename or (desired.stack == "dra" and sharing.replicas > 1):
        yield "[kubernetes.sharing]"
    if desired.mig.strategy != "none" or desired.mig.layout:
        yield "[kubernetes.mig]"
    if desired.configs:
        yield "[kubernetes.configs]"
    if desired.extras.gfd:
        yield "gfd in [kubernetes.extras]"
