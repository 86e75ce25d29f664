"""Argo CD Applications for the charts and, if the GPUs are in another cluster, for the plain objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpunode.kubernetes.model import ChartRelease, RenderedObject
from gpunode.recipe.kubernetes import ArgoCd

_ANNOTATIONS: Final = "argocd.argoproj.io"
# Argo CD applies wave 0 by default; ours come before what a team adds without a wave.
_FIRST_WAVE: Final = -3
_OWN_CLUSTER: Final = "https://kubernetes.default.svc"
PLAIN_OBJECTS: Final = "gpu-objects"


def add_sync_wave(one: RenderedObject) -> Mapping[str, Any]:
    """Return the object's body with its sync wave.

    kustomize's commonAnnotations would also annotate pod templates, and so restart the pods.
    """
    annotations = {f"{_ANNOTATIONS}/sync-wave": str(_FIRST_WAVE + one.wave)}
    if one.kind == "NodeFeatureRule":
        # A chart brings its definition; the first dry run comes before that.
        annotations[f"{_ANNOTATIONS}/sync-options"] = "SkipDryRunOnMissingResource=true"
    return {**one.body, "metadata": {**one.body["metadata"], "annotations": annotations}}


def is_elsewhere(argocd: ArgoCd) -> bool:
    """Return whether the GPUs are in another cluster than Argo CD itself."""
    return bool(argocd.cluster or argocd.server not in {"", _OWN_CLUSTER})


def chart_application(release: ChartRelease, argocd: ArgoCd) -> Mapping[str, Any]:
    """Return the Application that holds the release with its values."""
    source = {
        # Argo CD wants an OCI registry without its scheme.
        "repoURL": release.repository.removeprefix("oci://"),
        "chart": release.chart,
        "targetRevision": release.version,
        "helm": {"releaseName": release.name, "valuesObject": release.values},
    }
    body = _application(release.name, argocd, source, _destination(argocd, release.namespace), release.wave)
    if release.chart == "gpu-operator":
        # The API server fills in defaults of the ClusterPolicy that the chart leaves out (gpu-operator issue 2795).
        policy = {"group": "nvidia.com", "kind": "ClusterPolicy", "jsonPointers": ["/spec/cdi/default", "/status"]}
        body["spec"]["ignoreDifferences"] = [policy]
    return body


def objects_application(argocd: ArgoCd) -> Mapping[str, Any]:
    """Return the Application that brings the plain objects, in ``manifests``, to another cluster."""
    return _application(
        PLAIN_OBJECTS, argocd, _git_source(argocd, f"{argocd.path}/manifests"), _destination(argocd, "default"), 0
    )


def folder_application(argocd: ArgoCd) -> Mapping[str, Any]:
    """Return the Application of the rendered folder, which brings the others: an app of apps."""
    destination = {"server": _OWN_CLUSTER, "namespace": argocd.namespace}
    return _application("gpu-stack", argocd, _git_source(argocd, argocd.path), destination, None)


def _git_source(argocd: ArgoCd, path: str) -> Mapping[str, Any]:
    return {"repoURL": argocd.repository, "targetRevision": argocd.revision, "path": path.removeprefix("./")}


def _destination(argocd: ArgoCd, namespace: str) -> Mapping[str, str]:
    place = {"name": argocd.cluster} if argocd.cluster else {"server": argocd.server or _OWN_CLUSTER}
    return {**place, "namespace": namespace}


def _application(
    name: str, argocd: ArgoCd, source: Mapping[str, Any], destination: Mapping[str, str], wave: int | None
) -> dict[str, Any]:
    annotations = {} if wave is None else {"annotations": {f"{_ANNOTATIONS}/sync-wave": str(_FIRST_WAVE + wave)}}
    policy = {
        "automated": {"prune": True, "selfHeal": True},
        "syncOptions": ["CreateNamespace=true", "ServerSideApply=true", "SkipDryRunOnMissingResource=true"],
        # An object may come before its definition, which an Application beside it brings; Argo CD does not try the same
        # commit again by itself.
        "retry": {"limit": 10, "backoff": {"duration": "10s", "factor": 2, "maxDuration": "3m"}},
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": argocd.namespace, **annotations},
        "spec": {"project": argocd.project, "destination": destination, "source": source, "syncPolicy": policy},
    }
