"""The contents of a namespace, which are deleted with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from gpunode.errors import GpunodeError, Undetermined
from gpunode.host.cluster import Body, Cluster

# Kinds that describe other objects; nobody creates them by hand.
_DERIVED_KINDS: Final = frozenset(
    {"events", "events.events.k8s.io", "endpoints", "endpointslices.discovery.k8s.io", "leases.coordination.k8s.io"}
)
# In every namespace; the second line on OpenShift.
_DEFAULT_OBJECTS: Final = frozenset(
    {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}
    | {"ConfigMap openshift-service-ca.crt", "ServiceAccount builder", "ServiceAccount deployer"}
    | {f"RoleBinding system:{name}" for name in ("deployers", "image-builders", "image-pullers")}
)
# The group of ClusterPolicy and NVIDIADriver.
_OPERATOR_GROUP: Final = "nvidia.com/"
_MAX_SHOWN: Final = 3


def describe_contents(namespace: str, cluster: Cluster, removed: Collection[str] = ()) -> Iterator[str]:
    """Yield the titles of the objects and Helm releases in the namespace beside ``removed``; the first few.

    Raises:
        Undetermined: if the cluster does not answer.
    """
    try:
        kinds = [kind for kind in cluster.list_namespaced_kinds() if kind not in _DERIVED_KINDS]
        found = cluster.list(",".join(kinds), "--namespace", namespace)
    except Undetermined:
        raise
    except GpunodeError as error:
        yield f"what cannot be seen ({error.why.strip().splitlines()[-1]})"
        return
    uids = frozenset(str(one["metadata"].get("uid", "")) for one in found)
    remaining = [
        one for one in found if _is_content(one, uids) and not {_title(one), *_release_titles(one)} & set(removed)
    ]
    # A kind of two API groups is listed twice.
    titles = list(dict.fromkeys(f"{one['kind']} {one['metadata']['name']}" for one in remaining))
    yield from titles[:_MAX_SHOWN]
    if len(titles) > _MAX_SHOWN:
        yield f"{len(titles) - _MAX_SHOWN} more"


def _is_content(body: Body, uids: Collection[str]) -> bool:
    """Return whether the object counts as the namespace's content.

    Objects owned by another object of the namespace do not count. Those owned by an object elsewhere do, such as the
    Secret of a cluster-wide database object, but not the GPU Operator's, which it deletes itself.

    Args:
        body: the object.
        uids: those of all objects in the namespace.
    """
    metadata = body["metadata"]
    by_server = f"{body['kind']} {metadata['name']}" in _DEFAULT_OBJECTS
    belongs = any(
        one.get("uid") in uids or str(one.get("apiVersion", "")).startswith(_OPERATOR_GROUP)
        for one in metadata.get("ownerReferences") or ()
    )
    return not (belongs or metadata.get("deletionTimestamp") or by_server or _is_automatic_token(body))


def _is_automatic_token(body: Body) -> bool:
    """Return whether it is the token of a ServiceAccount that every namespace has."""
    account = (body["metadata"].get("annotations") or {}).get("kubernetes.io/service-account.name", "")
    is_token = body.get("type") in {"kubernetes.io/service-account-token", "kubernetes.io/dockercfg"}
    return is_token and f"ServiceAccount {account}" in _DEFAULT_OBJECTS


def _title(body: Body) -> str:
    return f"{body['kind']} {body['metadata']['namespace']}/{body['metadata']['name']}"


def _release_titles(body: Body) -> Sequence[str]:
    """Return the title of the Helm release that the object belongs to, if any."""
    metadata = body["metadata"]
    labels, notes = metadata.get("labels", {}), metadata.get("annotations", {})
    name = notes.get("meta.helm.sh/release-name") or (labels.get("name") if labels.get("owner") == "helm" else "")
    return [f"Helm release {metadata['namespace']}/{name}"] if name else []
