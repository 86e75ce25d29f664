"""The objects of Flux: a HelmRepository and HelmRelease for each chart, and the Kustomizations of the folder. Pure.

Source: the definitions in fluxcd/source-controller (2026-07-02), helm-controller (2026-07-23) and kustomize-controller
(2026-08-01); ``tests/unit/kubernetes/gitops_schemas.yaml`` holds what gpunode uses of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpunode.kubernetes.model import ChartRelease
from gpunode.recipe.kubernetes import Flux

# The folders in the order in which they are applied.
BASE, RELEASES, RULES = "manifests", "releases", "rules"
_RELEASE_API: Final = "helm.toolkit.fluxcd.io/v2"


def release_objects(release: ChartRelease) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the chart's HelmRepository and the HelmRelease, in the release's own namespace.

    There Helm keeps its record of the release. No reference crosses namespaces, which Flux can be set to forbid.
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
        # Helm itself leaves definitions as the first version of the chart had them.
        "upgrade": {"crds": "CreateReplace", "remediation": {"retries": 3}},
        "values": release.values,
    }
    return repository, {"apiVersion": _RELEASE_API, "kind": "HelmRelease", "metadata": metadata, "spec": spec}


def kustomizations(flux: Flux, folders: Sequence[str], releases: Sequence[ChartRelease]) -> Iterator[Mapping[str, Any]]:
    """Yield a Kustomization for each of ``folders``, which waits for the one before."""
    previous = ""
    for folder in folders:
        name = f"gpu-stack-{folder}"
        spec: dict[str, Any] = {"dependsOn": [{"name": previous}]} if previous else {}
        checks = [{"apiVersion": _RELEASE_API, "kind": "HelmRelease", **_name_fields(one)} for one in releases]
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


def _name_fields(release: ChartRelease) -> Mapping[str, str]:
    return {"name": release.name, "namespace": release.namespace}
