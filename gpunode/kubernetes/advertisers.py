"""What offers NVIDIA GPUs in a cluster already: two of a kind on one node count each GPU twice. Pure.

Source of what a node selector and a required affinity let run where: the Kubernetes documentation, "Assigning Pods to
Nodes".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from gpunode.command import Command, gpunode
from gpunode.errors import Refused
from gpunode.facts.helm import Released
from gpunode.kubernetes.model import MANAGED_BY, Rendered
from gpunode.kubernetes.owned import owned_fields
from gpunode.kubernetes.reconcile import MANAGER, Key, find_installed, object_key

Body: TypeAlias = Mapping[str, Any]
Typed: TypeAlias = Callable[..., Command]
Advertiser: TypeAlias = Literal["device-plugin", "gpu-operator", "hami", "dra", "provider"]
# By the last part of an image's name. Sources: the charts of gpunode/catalog/charts.csv;
# GoogleCloudPlatform/container-engine-accelerators (nvidia-gpu-device-plugin), which GKE runs itself;
# mcr.microsoft.com/oss/.../nvidia-gpu, AKS.
_IMAGES: Final[Mapping[str, Advertiser]] = {
    "k8s-device-plugin": "device-plugin",
    "hami": "hami",
    "k8s-dra-driver-gpu": "dra",
    "dra-driver-nvidia-gpu": "dra",
    "nvidia-gpu-device-plugin": "provider",
}
# It offers whole GPUs to virtual machines, on nodes of its own.
_FOR_MACHINES: Final = "kubevirt-gpu-device-plugin"
# Where the kubelet looks for plugins, below its root.
_PLUGINS: Final = "/device-plugins"
# The operator's pods say it by a label; its plugin has the device plugin's image.
_OPERATOR: Final = ("app.kubernetes.io/managed-by", "gpu-operator")
# Source: NVIDIA/gpu-operator deployments/gpu-operator, crds and templates/operator.yaml (26.7). The first two have the
# operator deploy what offers GPUs; without them it waits for one.
OPERATOR_GROUP: Final = "nvidia.com"
OPERATOR_KINDS: Final = ("clusterpolicies", "gpuclusters", "nvidiadrivers")
OPERATOR_SELECTOR: Final = "app.kubernetes.io/component=gpu-operator"
_ASKING: Final = frozenset({"ClusterPolicy", "GPUCluster"})


@dataclass(frozen=True, slots=True)
class Found:
    """An object that offers GPUs, or has the GPU Operator do it.

    Attributes:
        title: ``DaemonSet nvdp/nvidia-device-plugin``.
        body: the object.
        release: ``namespace/name`` of the Helm release that made it; empty for none.
    """

    title: str
    kind: Advertiser
    body: Body
    release: str = ""


def advertisers(objects: Sequence[Body], rendered: Collection[Key] = ()) -> Iterator[Found]:
    """Yield those of ``objects`` that offer GPUs, or have the GPU Operator do it, and that gpunode does not bring.

    What gpunode rendered and Argo CD, Flux or a person applied is theirs, unless it is what is applied now.

    Args:
        objects: the DaemonSets, the objects of OPERATOR_KINDS and the Deployments of OPERATOR_SELECTOR.
        rendered: the keys of what is applied now.
    """
    asking = [one for one in objects if one["kind"] in _ASKING]
    for one in objects:
        labels = one["metadata"].get("labels", {})
        is_labelled = all(labels.get(name) == value for name, value in MANAGED_BY.items())
        if is_labelled and (object_key(one) in rendered or owned_fields(one, MANAGER) is not None):
            continue
        kind: Advertiser | None
        if one["kind"] == "DaemonSet":
            kind = _kind(one)
            if kind is not None and is_of_operator(one):
                kind = "gpu-operator"
        else:
            # A ClusterPolicy without a plugin leaves that to somebody else, such as HAMi.
            is_asked = one in asking and one.get("spec", {}).get("devicePlugin", {}).get("enabled") is not False
            kind = "gpu-operator" if is_asked or not asking else None
        if kind is not None:
            yield Found(_title(one), kind, one, release_of(one))


def _title(body: Body) -> str:
    place = "/".join(body["metadata"][key] for key in ("namespace", "name") if body["metadata"].get(key))
    return f"{body['kind']} {place}"


def is_advertiser(daemon_set: Body) -> bool:
    """Return whether it offers GPUs, whoever made it."""
    return _kind(daemon_set) is not None


def is_of_operator(daemon_set: Body) -> bool:
    """Whether the GPU Operator made it."""
    metadata = daemon_set["metadata"]
    return metadata.get("labels", {}).get(_OPERATOR[0]) == _OPERATOR[1] or _owner(metadata) in _ASKING


def release_of(body: Body) -> str:
    """``namespace/name`` of the Helm release that made the object; empty for none."""
    notes = body["metadata"].get("annotations", {})
    name = notes.get("meta.helm.sh/release-name", "")
    return f"{notes.get('meta.helm.sh/release-namespace', '')}/{name}" if name else ""


def _kind(daemon_set: Body) -> Advertiser | None:
    pod = daemon_set["spec"]["template"]["spec"]
    names = [_name(container.get("image", "")) for container in pod.get("containers", [])]
    kind = next((_IMAGES[name] for name in names if name in _IMAGES), None)
    if kind is None and _FOR_MACHINES not in names and _is_plugin_of_nvidia(daemon_set, names):
        kind = "device-plugin"
    return None if kind == "device-plugin" and _is_no_plugin(daemon_set["metadata"]["name"]) else kind


def _is_plugin_of_nvidia(daemon_set: Body, images: Sequence[str]) -> bool:
    """Return whether the DaemonSet registers with the kubelet, and says NVIDIA: an image may be built or named anew."""
    volumes = daemon_set["spec"]["template"]["spec"].get("volumes") or ()
    paths = (str((one.get("hostPath") or {}).get("path", "")) for one in volumes)
    return any(path.rstrip("/").endswith(_PLUGINS) for path in paths) and any(
        "nvidia" in word for word in (daemon_set["metadata"]["name"], *images)
    )


def refuse_second(
    rendered: Rendered,
    objects: Sequence[Body],
    nodes: Sequence[Body],
    releases: Sequence[Released],
    kubectl: Typed,
    helm: Typed,
) -> tuple[str, ...]:
    """Refuse to offer GPUs that something else offers; return a sentence for each such thing that never can.

    Args:
        rendered: for the cluster.
        objects: as ``advertisers`` takes them.
        nodes: the Nodes for which it is rendered.
        releases: those of its charts that the cluster has; one of each is brought to the recipe's values.
        kubectl: makes the command of words that is meant for this cluster.
        helm: likewise.

    Raises:
        Refused: something does; it is named, with what to do about it.
    """
    if not _offers(rendered):
        return ()
    there = _foreign_advertisers(rendered, objects, releases)
    added = {edit.node: edit.labels for edit in rendered.nodes}
    labels = {
        name: {**node["metadata"].get("labels", {}), **added.get(name, {})}
        for node in nodes
        for name in (str(node["metadata"]["name"]),)
    }
    active = [one for one in there if not _is_idle(one.body, labels)]
    if not active:
        return tuple(
            f"{one.title} is {_NAMES[one.kind]}, too. It runs on no node, and these nodes lack the labels that it asks "
            "for; a node that gets them would offer each GPU twice."
            for one in there
        )
    raise _second_advertiser_error(active, kubectl, helm)


def _foreign_advertisers(rendered: Rendered, objects: Sequence[Body], releases: Sequence[Released]) -> list[Found]:
    """Return the advertisers that are not what is rendered, nor a release that is brought to its values."""
    kept = [find_installed(one, releases) or one for one in rendered.releases]
    released = {f"{one.namespace}/{one.name}" for one in kept}
    brought = [object_key(one.body) for one in rendered.objects]
    there = [one for one in advertisers(objects, brought) if one.release not in released]
    if any(one.chart == "gpu-operator" for one in rendered.releases):
        there = [one for one in there if one.kind != "gpu-operator"]
    return there


def _second_advertiser_error(active: Sequence[Found], kubectl: Typed, helm: Typed) -> Refused:
    """Return the error that names the first of them, with the way out."""
    # Of an operator what made its DaemonSet, which it would make again.
    first = min(active, key=lambda one: (one.kind == "gpu-operator", _is_operand(one), not one.release))
    is_daemon_set = first.body["kind"] == "DaemonSet"
    it = f"it is {_NAMES[first.kind]}" if is_daemon_set else "the operator deploys a device plugin of its own"
    return Refused(
        f"{first.title} {'offers' if is_daemon_set else 'has the GPU Operator offer'} the GPUs of this cluster already",
        why=f"{it}{f', Helm release {first.release}' if first.release else ''}; with a second one each GPU would be "
        "offered twice",
        hint=_hint(first, kubectl, helm),
    )


def _offers(rendered: Rendered) -> bool:
    """Return whether what is rendered offers GPUs; a recipe can ask for metrics alone."""
    return any(one.kind == "DaemonSet" for one in rendered.objects) or any(
        one.chart != "dcgm-exporter" for one in rendered.releases
    )


def _is_idle(body: Body, nodes: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether it is a DaemonSet that runs nowhere, and cannot run on these nodes by their labels."""
    status = body.get("status", {})
    if body["kind"] != "DaemonSet" or "observedGeneration" not in status or status.get("desiredNumberScheduled"):
        return False
    pod = body["spec"]["template"]["spec"]
    return not any(may_run(pod, name, labels) for name, labels in nodes.items())


_NAMES: Final[Mapping[Advertiser, str]] = {
    "device-plugin": "NVIDIA's device plugin",
    "gpu-operator": "the device plugin of the GPU Operator",
    "hami": "HAMi",
    "dra": "NVIDIA's DRA driver",
    "provider": "your provider's own device plugin",
}


def _is_operand(found: Found) -> bool:
    return found.kind == "gpu-operator" and found.body["kind"] == "DaemonSet"


def _hint(found: Found, kubectl: Typed, helm: Typed) -> str:
    if found.kind == "provider":
        return "leave these nodes to your provider; gpunode has nothing to do in this cluster"
    metadata = found.body["metadata"]
    where = ("--namespace", metadata["namespace"]) if metadata.get("namespace") else ()
    place = (found.body["kind"].lower(), *where, metadata["name"])
    gone = f"or take it away first: {kubectl('delete', *place)}"
    if found.release:
        namespace, _, name = found.release.partition("/")
        uninstall = helm("uninstall", name, "--namespace", namespace)
        gone = f"or take it away first, with {gpunode('k8s', 'remove')} if gpunode released it, else: {uninstall}"
    if found.kind == "gpu-operator" and found.release:
        return f"keep it, and use the recipe gpu-operator, which gives the release its settings\n{gone}"
    if _is_operand(found):
        return f"find the operator that made it, and keep that or take it away: {helm('list', '--all-namespaces')}"
    if found.release:
        values = gpunode("k8s", "render", "--form", "helm", "--out", "gpu-node")
        return f"keep it and give its release gpunode's values:\n{values}\n{gone}"
    return f"look at it: {kubectl('get', *place, '-o', 'yaml')}\nthen keep it, {gone}"


def _name(image: str) -> str:
    """The last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _is_no_plugin(name: str) -> bool:
    """Whether it is another part of the device plugin's chart, which has one image for all."""
    return any(word in name for word in ("gpu-feature-discovery", "mps-control"))


def _owner(metadata: Mapping[str, Any]) -> str:
    return next((str(one.get("kind", "")) for one in metadata.get("ownerReferences", [])), "")


# Labels that Node Feature Discovery, NVIDIA's software or HAMi's users set any day.
_COMING: Final = ("feature.node.kubernetes.io/", "nvidia.com/")
_COMING_LABELS: Final = frozenset({"gpu"})


def may_run(pod_spec: Body, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether such a pod may run on the node, now or once the node's GPUs are discovered.

    What cannot be judged counts as yes.

    Args:
        pod_spec: the pod's ``spec``.
        name: the node's.
        labels: the node's.
    """
    selector = pod_spec.get("nodeSelector") or {}
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms")
    return all(_holds(labels, key, "In", [value]) for key, value in selector.items()) and (
        terms is None or any(_term_holds(term, name, labels) for term in terms)
    )


def _term_holds(term: Body, name: str, labels: Mapping[str, str]) -> bool:
    by_label, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return bool(by_label or by_field) and all(
        _holds(there, one["key"], one["operator"], one.get("values") or ())
        for there, expressions in ((labels, by_label), ({"metadata.name": name}, by_field))
        for one in expressions
    )


def _holds(labels: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    if key.startswith(_COMING) or key in _COMING_LABELS:
        return True
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return True
