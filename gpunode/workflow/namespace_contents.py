"""What a namespace holds, before it is deleted with all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from gpunode.errors import GpunodeError, Undetermined
from gpunode.host.cluster import Body, Cluster

# Kinds that tell of others, and hold nothing that anybody made.
_TELLING: Final = frozenset(
    {"events", "events.events.k8s.io", "endpoints", "endpointslices.discovery.k8s.io", "leases.coordination.k8s.io"}
)
# Every namespace has them; the second line on OpenShift.
_EVERYWHERE: Final = frozenset(
    {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}
    | {"ConfigMap openshift-service-ca.crt", "ServiceAccount builder", "ServiceAccount deployer"}
    | {f"RoleBinding system:{name}" for name in ("deployers", "image-builders", "image-pullers")}
)
# The group of ClusterPolicy and NVIDIADriver.
_OPERATORS: Final = "nvidia.com/"
_SHOWN: Final = 3


def contents(namespace: str, cluster: Cluster, going: Collection[str] = ()) -> Iterator[str]:
    """What it holds beside ``going``, objects and Helm releases by their titles; the first few.

    Raises:
        Undetermined: the cluster does not answer.
    """
    try:
        kinds = [kind for kind in cluster.list_namespaced_kinds() if kind not in _TELLING]
        found = cluster.list(",".join(kinds), "--namespace", namespace)
    except Undetermined:
        raise
    except GpunodeError as error:
        yield f"what cannot be seen ({error.why.strip().splitlines()[-1]})"
        return
    here = frozenset(str(one["metadata"].get("uid", "")) for one in found)
    left = [one for one in found if _is_kept(one, here) and not {_title(one), *_releases(one)} & set(going)]
    # A kind of two API groups is listed twice.
    titles = list(dict.fromkeys(f"{one['kind']} {one['metadata']['name']}" for one in left))
    yield from titles[:_SHOWN]
    if len(titles) > _SHOWN:
        yield f"{len(titles) - _SHOWN} more"


def _is_kept(body: Body, here: Collection[str]) -> bool:
    """Return whether the object counts as the namespace's content.

    What belongs to an object of the namespace is counted with that one. What belongs to something elsewhere, such as
    the Secret of a database that a cluster-wide object stands for, counts itself; the GPU Operator's own is gone soon.

    Args:
        body: the object.
        here: the uids of the namespace's objects.
    """
    metadata = body["metadata"]
    by_server = f"{body['kind']} {metadata['name']}" in _EVERYWHERE
    belongs = any(
        one.get("uid") in here or str(one.get("apiVersion", "")).startswith(_OPERATORS)
        for one in metadata.get("ownerReferences") or ()
    )
    return not (belongs or metadata.get("deletionTimestamp") or by_server or _is_automatic_token(body))


def _is_automatic_token(body: Body) -> bool:
    """Return whether the cluster made it for a ServiceAccount that every namespace has."""
    account = (body["metadata"].get("annotations") or {}).get("kubernetes.io/service-account.name", "")
    is_token = body.get("type") in {"kubernetes.io/service-account-token", "kubernetes.io/dockercfg"}
    return is_token and f"ServiceAccount {account}" in _EVERYWHERE


def _title(body: Body) -> str:
    return f"{body['kind']} {body['metadata']['namespace']}/{body['metadata']['name']}"


def _releases(body: Body) -> Sequence[str]:
    """The Helm release that the object belongs to, by its title, if any."""
    metadata = body["metadata"]
    labels, notes = metadata.get("labels", {}), metadata.get("annotations", {})
    name = notes.get("meta.helm.sh/release-name") or (labels.get("name") if labels.get("owner") == "helm" else "")
    return [f"Helm release {metadata['namespace']}/{name}"] if name else []
