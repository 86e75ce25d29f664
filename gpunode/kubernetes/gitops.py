"""The objects that make Argo CD and Flux apply the charts, the plain objects and the folders. Pure.

Source: the definitions in fluxcd/source-controller (2026-07-02), helm-controller (2026-07-23) and kustomize-controller
(2026-08-01); ``tests/unit/kubernetes/gitops_schemas.yaml`` has the parts that gpunode uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpunode.kubernetes.model import ChartRelease, RenderedObject
from gpunode.recipe.kubernetes import ArgoCd, Flux

_ARGOCD_ANNOTATION_PREFIX: Final = "argocd.argoproj.io"
# Argo CD applies wave 0 by default; our waves come before objects that a team adds without a wave.
_FIRST_WAVE: Final = -3
_OWN_CLUSTER_SERVER_URL: Final = "https://kubernetes.default.svc"
PLAIN_APPLICATION_NAME: Final = "gpu-objects"


def add_sync_wave(rendered_object: RenderedObject) -> Mapping[str, Any]:
    """Return the object's body with its sync wave.

    kustomize's commonAnnotations would also annotate pod templates, which restarts the pods.
    """
    annotations = {f"{_ARGOCD_ANNOTATION_PREFIX}/sync-wave": str(_FIRST_WAVE + rendered_object.wave)}
    if rendered_object.kind == "NodeFeatureRule":
        # A chart installs the definition of this kind, but only after the first dry run.
        annotations[f"{_ARGOCD_ANNOTATION_PREFIX}/sync-options"] = "SkipDryRunOnMissingResource=true"
    return {**rendered_object.body, "metadata": {**rendered_object.body["metadata"], "annotations": annotations}}


def is_remote_cluster(argocd: ArgoCd) -> bool:
    """Return whether the GPUs are in another cluster than Argo CD itself."""
    return bool(argocd.cluster or argocd.server not in {"", _OWN_CLUSTER_SERVER_URL})


def chart_application(release: ChartRelease, argocd: ArgoCd) -> Mapping[str, Any]:
    """Return the Application for the release with its values."""
    source = {
        # Argo CD expects an OCI registry without its scheme.
        "repoURL": release.repository.removeprefix("oci://"),
        "chart": release.chart,
        "targetRevision": release.version,
        "helm": {"releaseName": release.name, "valuesObject": release.values},
    }
    body = _application(release.name, argocd, source, _argocd_destination(argocd, release.namespace), release.wave)
    if release.chart == "gpu-operator":
        # The API server adds defaults to the ClusterPolicy that the chart leaves out (gpu-operator issue 2795).
        policy = {"group": "nvidia.com", "kind": "ClusterPolicy", "jsonPointers": ["/spec/cdi/default", "/status"]}
        body["spec"]["ignoreDifferences"] = [policy]
    return body


def objects_application(argocd: ArgoCd) -> Mapping[str, Any]:
    """Return the Application that applies the plain objects, in ``manifests``, to another cluster."""
    source = _git_source(argocd, f"{argocd.path}/manifests")
    return _application(PLAIN_APPLICATION_NAME, argocd, source, _argocd_destination(argocd, "default"), 0)


def folder_application(argocd: ArgoCd) -> Mapping[str, Any]:
    """Return the Application of the rendered folder, which applies the other Applications: an app of apps."""
    destination = {"server": _OWN_CLUSTER_SERVER_URL, "namespace": argocd.namespace}
    return _application("gpu-stack", argocd, _git_source(argocd, argocd.path), destination, None)


def _git_source(argocd: ArgoCd, path: str) -> Mapping[str, Any]:
    return {"repoURL": argocd.repository, "targetRevision": argocd.revision, "path": path.removeprefix("./")}


def _argocd_destination(argocd: ArgoCd, namespace: str) -> Mapping[str, str]:
    cluster = {"name": argocd.cluster} if argocd.cluster else {"server": argocd.server or _OWN_CLUSTER_SERVER_URL}
    return {**cluster, "namespace": namespace}


def _application(
    name: str, argocd: ArgoCd, source: Mapping[str, Any], destination: Mapping[str, str], wave: int | None
) -> dict[str, Any]:
    annotations = (
        {} if wave is None else {"annotations": {f"{_ARGOCD_ANNOTATION_PREFIX}/sync-wave": str(_FIRST_WAVE + wave)}}
    )
    policy = {
        "automated": {"prune": True, "selfHeal": True},
        "syncOptions": ["CreateNamespace=true", "ServerSideApply=true", "SkipDryRunOnMissingResource=true"],
        # An object may come before its definition, which another Application installs; Argo CD does not retry the same
        # commit by itself.
        "retry": {"limit": 10, "backoff": {"duration": "10s", "factor": 2, "maxDuration": "3m"}},
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": argocd.namespace, **annotations},
        "spec": {"project": argocd.project, "destination": destination, "source": source, "syncPolicy": policy},
    }


# The folders in the order in which they are applied.
BASE, RELEASES, RULES = "manifests", "releases", "rules"
_RELEASE_API: Final = "helm.toolkit.fluxcd.io/v2"


def release_objects(release: ChartRelease) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the chart's HelmRepository and the HelmRelease, in the release's own namespace.

    Helm keeps its record of the release there. No reference crosses namespaces, which Flux can be set to forbid.
    """
    metadata = {"name": release.name, "namespace": release.namespace}
    oci = {"type": "oci"} if release.repository.startswith("oci://") else {}
    repository = {
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": "HelmRepository",
        "metadata": metadata,
        "spec": {**oci, "url": release.repository, "interval": "1h"},
    }
    chart = {
        "chart": release.chart,
        "version": release.version,
        "sourceRef": {"kind": "HelmRepository", "name": release.name},
    }
    spec = {
        "releaseName": release.name,
        "interval": "10m",
        "timeout": "10m",
        "chart": {"spec": chart},
        "install": {"crds": "CreateReplace", "remediation": {"retries": 3}},
        # Helm itself keeps the definitions of the chart's first installed version.
        "upgrade": {"crds": "CreateReplace", "remediation": {"retries": 3}},
        "values": release.values,
    }
    return repository, {"apiVersion": _RELEASE_API, "kind": "HelmRelease", "metadata": metadata, "spec": spec}


def kustomizations(flux: Flux, folders: Sequence[str], releases: Sequence[ChartRelease]) -> Iterator[Mapping[str, Any]]:
    """Yield a Kustomization for each of ``folders``; each waits for the one before."""
    previous = ""
    for folder in folders:
        name = f"gpu-stack-{folder}"
        spec: dict[str, Any] = {"dependsOn": [{"name": previous}]} if previous else {}
        checks = [
            {"apiVersion": _RELEASE_API, "kind": "HelmRelease", "name": release.name, "namespace": release.namespace}
            for release in releases
        ]
        spec |= {
            "interval": "10m",
            "retryInterval": "1m",
            "timeout": "15m",
            "prune": True,
            "sourceRef": {"kind": "GitRepository", "name": flux.source},
            "path": f"./{flux.path.removeprefix('./')}/{folder}",
            **({"healthChecks": checks} if folder == RELEASES else {"wait": True}),
        }
        yield {
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
            "kind": "Kustomization",
            "metadata": {"name": name, "namespace": flux.namespace},
            "spec": spec,
        }
        previous = name
