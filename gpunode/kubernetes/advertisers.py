"""Workloads that already offer NVIDIA GPUs in a cluster: a second one on a node would count each GPU twice. Pure.

Source for where a node selector and a required affinity let a pod run: the Kubernetes documentation, "Assigning Pods to
Nodes".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from gpunode.command import command, gpunode_command
from gpunode.errors import Refused
from gpunode.facts.helm import HelmRelease
from gpunode.fast_dataclass import dataclass
from gpunode.kubernetes.model import Body, RenderedCluster
from gpunode.kubernetes.owned import is_labelled, object_title, owned_fields
from gpunode.kubernetes.reconcile import FIELD_MANAGER, ObjectKey, find_release_of_chart, object_key

Advertiser: TypeAlias = Literal["device-plugin", "gpu-operator", "hami", "dra", "provider"]
# Keys are the last part of an image's name. Sources: the charts of gpunode/catalog/charts.csv;
# GoogleCloudPlatform/container-engine-accelerators (nvidia-gpu-device-plugin), which GKE runs itself;
# mcr.microsoft.com/oss/.../nvidia-gpu, AKS.
_ADVERTISER_BY_IMAGE_NAME: Final[Mapping[str, Advertiser]] = {
    "k8s-device-plugin": "device-plugin",
    "hami": "hami",
    "k8s-dra-driver-gpu": "dra",
    "dra-driver-nvidia-gpu": "dra",
    "nvidia-gpu-device-plugin": "provider",
}
# It offers whole GPUs to virtual machines, on separate nodes.
_VM_PLUGIN_IMAGE_NAME: Final = "kubevirt-gpu-device-plugin"
# Where the kubelet looks for plugins, below its root.
_DEVICE_PLUGIN_FOLDER_ENDING: Final = "/device-plugins"
# The label of the operator's pods; its plugin has the device plugin's image.
_MANAGED_BY_OPERATOR_LABEL: Final = ("app.kubernetes.io/managed-by", "gpu-operator")
# Source: NVIDIA/gpu-operator deployments/gpu-operator, crds and templates/operator.yaml (26.7). The first two make the
# operator deploy what offers GPUs; without them it waits for one.
OPERATOR_GROUP: Final = "nvidia.com"
OPERATOR_KINDS: Final = ("clusterpolicies", "gpuclusters", "nvidiadrivers")
OPERATOR_SELECTOR: Final = "app.kubernetes.io/component=gpu-operator"
_OPERATOR_REQUEST_KINDS: Final = frozenset({"ClusterPolicy", "GPUCluster"})


@dataclass(frozen=True, slots=True)
class AdvertiserObject:
    """An object that offers GPUs, or makes the GPU Operator do so.

    Attributes:
        title: ``DaemonSet nvdp/nvidia-device-plugin``.
        body: the object.
        release: ``namespace/name`` of the Helm release that made it; empty for none.
    """

    title: str
    kind: Advertiser
    body: Body
    release: str = ""

    @property
    def is_operand(self) -> bool:
        """True if the GPU Operator made it, and would make it again."""
        return self.kind == "gpu-operator" and self.body["kind"] == "DaemonSet"


def find_advertisers(objects: Sequence[Body], rendered: Collection[ObjectKey] = ()) -> Iterator[AdvertiserObject]:
    """Yield the ``objects`` that offer GPUs, or make the GPU Operator do so, and are not gpunode's.

    Objects that gpunode rendered but Argo CD, Flux or a person applied count as theirs, unless they are applied now.

    Args:
        objects: the DaemonSets, the objects of OPERATOR_KINDS and the Deployments of OPERATOR_SELECTOR.
        rendered: the keys of the objects that are applied now.
    """
    requesting = [one for one in objects if one["kind"] in _OPERATOR_REQUEST_KINDS]
    for one in objects:
        if is_labelled(one) and (object_key(one) in rendered or owned_fields(one, FIELD_MANAGER) is not None):
            continue
        kind: Advertiser | None
        if one["kind"] == "DaemonSet":
            kind = _advertiser_kind(one)
            if kind is not None and is_made_by_operator(one):
                kind = "gpu-operator"
        else:
            # A ClusterPolicy without a plugin leaves offering GPUs to another component, such as HAMi.
            is_asked = one in requesting and one.get("spec", {}).get("devicePlugin", {}).get("enabled") is not False
            kind = "gpu-operator" if is_asked or not requesting else None
        if kind is not None:
            yield AdvertiserObject(object_title(one), kind, one, release_of(one))


def is_advertiser(daemon_set: Body) -> bool:
    """Return whether the DaemonSet offers GPUs, regardless of its creator."""
    return _advertiser_kind(daemon_set) is not None


def is_made_by_operator(daemon_set: Body) -> bool:
    """Return whether the GPU Operator made the DaemonSet."""
    metadata = daemon_set["metadata"]
    return (
        metadata.get("labels", {}).get(_MANAGED_BY_OPERATOR_LABEL[0]) == _MANAGED_BY_OPERATOR_LABEL[1]
        or (metadata.get("ownerReferences") or [{}])[0].get("kind") in _OPERATOR_REQUEST_KINDS
    )


def release_of(body: Body) -> str:
    """Return ``namespace/name`` of the Helm release that made the object; empty for none."""
    notes = body["metadata"].get("annotations", {})
    name = notes.get("meta.helm.sh/release-name", "")
    return f"{notes.get('meta.helm.sh/release-namespace', '')}/{name}" if name else ""


def _advertiser_kind(daemon_set: Body) -> Advertiser | None:
    pod = daemon_set["spec"]["template"]["spec"]
    # The last part of each image's name, without tag and digest.
    images = (str(one.get("image", "")) for one in pod.get("containers", []))
    names = [image.partition("@")[0].rpartition("/")[2].partition(":")[0] for image in images]
    kind = next((_ADVERTISER_BY_IMAGE_NAME[name] for name in names if name in _ADVERTISER_BY_IMAGE_NAME), None)
    # Images get renamed: a DaemonSet that registers with the kubelet and names NVIDIA counts as well.
    paths = (str((one.get("hostPath") or {}).get("path", "")) for one in pod.get("volumes") or ())
    registers = any(path.rstrip("/").endswith(_DEVICE_PLUGIN_FOLDER_ENDING) for path in paths)
    names_nvidia = any("nvidia" in word for word in (daemon_set["metadata"]["name"], *names))
    if kind is None and registers and names_nvidia and _VM_PLUGIN_IMAGE_NAME not in names:
        kind = "device-plugin"
    # The device plugin's chart uses one image for all of its parts.
    is_other_part = any(word in daemon_set["metadata"]["name"] for word in ("gpu-feature-discovery", "mps-control"))
    return None if kind == "device-plugin" and is_other_part else kind


def check_other_advertisers(
    rendered: RenderedCluster,
    objects: Sequence[Body],
    nodes: Sequence[Body],
    releases: Sequence[HelmRelease],
) -> tuple[str, ...]:
    """Refuse to offer GPUs that something else offers; return notes about such workloads that cannot run.

    ``objects`` are those of ``find_advertisers``. Among ``releases``, one per rendered chart will get the recipe's
    values.

    Raises:
        Refused: something else offers them; names it and what to do about it.
    """
    has_plugin = any(one.kind == "DaemonSet" for one in rendered.objects)
    if not has_plugin and all(release.chart == "dcgm-exporter" for release in rendered.releases):  # only metrics
        return ()
    kept = [find_release_of_chart(release, releases) or release for release in rendered.releases]
    own_releases = {f"{release.namespace}/{release.name}" for release in kept}
    is_operator = any(release.chart == "gpu-operator" for release in kept)
    advertisers = [
        advertiser
        for advertiser in find_advertisers(objects, [object_key(one.body) for one in rendered.objects])
        if advertiser.release not in own_releases and not (is_operator and advertiser.kind == "gpu-operator")
    ]
    new_labels = {edit.node: edit.labels for edit in rendered.nodes}
    labels = {
        name: {**node["metadata"].get("labels", {}), **new_labels.get(name, {})}
        for node in nodes
        for name in (str(node["metadata"]["name"]),)
    }

    def is_idle(body: Body) -> bool:
        """Return whether the DaemonSet runs nowhere, and cannot run on these nodes."""
        status = body.get("status", {})
        if body["kind"] != "DaemonSet" or "observedGeneration" not in status or status.get("desiredNumberScheduled"):
            return False
        pod = body["spec"]["template"]["spec"]
        return not any(may_run_on_node(pod, name, there) for name, there in labels.items())

    active = [one for one in advertisers if not is_idle(one.body)]
    if not active:
        return tuple(
            f"{one.title} is {_ADVERTISER_NAMES[one.kind]}, too. It runs on no node now, because these nodes lack "
            "the labels that it selects; a node with these labels would offer each GPU twice."
            for one in advertisers
        )
    # Among an operator's objects, prefer the one that made its DaemonSet, since it would make that again.
    first = min(active, key=lambda one: (one.kind == "gpu-operator", one.is_operand, not one.release))
    is_daemon_set = first.body["kind"] == "DaemonSet"
    it = (
        f"it is {_ADVERTISER_NAMES[first.kind]}" if is_daemon_set else "the operator deploys a device plugin of its own"
    )
    raise Refused(
        f"{first.title} {'offers' if is_daemon_set else 'has the GPU Operator offer'} the GPUs of this cluster already",
        why=f"{it}{f', Helm release {first.release}' if first.release else ''}; with a second one each GPU would be "
        "offered twice",
        hint=_removal_advice(first, [release.chart for release in kept]),
    )


_ADVERTISER_NAMES: Final[Mapping[Advertiser, str]] = {
    "device-plugin": "NVIDIA's device plugin",
    "gpu-operator": "the device plugin of the GPU Operator",
    "hami": "HAMi",
    "dra": "NVIDIA's DRA driver",
    "provider": "your provider's own device plugin",
}


_RECIPES_OF_RELEASES: Final = {
    "device-plugin": "a recipe with gfd = true in [kubernetes.extras]",
    "gpu-operator": "the recipe gpu-operator",
    "hami": "the recipe hami",
    "dra": "the recipe dra",
}


def _removal_advice(advertiser: AdvertiserObject, charts: Sequence[str]) -> str:
    if advertiser.kind == "provider":
        return "leave these nodes to your provider; gpunode has nothing to do in this cluster"
    metadata = advertiser.body["metadata"]
    where = ("--namespace", metadata["namespace"]) if metadata.get("namespace") else ()
    target = (advertiser.body["kind"].lower(), *where, metadata["name"])
    if advertiser.release:
        namespace, _, name = advertiser.release.partition("/")
        uninstall = command("helm", "uninstall", name, "--namespace", namespace)
        keep = f"keep it, and use {_RECIPES_OF_RELEASES[advertiser.kind]}, which gives the release its settings\nor "
        # Another chart's release that includes it, or a second release, is not found as the recipe's own chart.
        keep = "" if any(advertiser.kind in chart for chart in charts) else keep
        return (
            f"{keep}remove it first: with {gpunode_command('k8s', 'remove')} if gpunode released it, else: {uninstall}"
        )
    if advertiser.is_operand:
        return "find the operator that made it, and keep or remove it: helm list --all-namespaces"
    look, removal = command("kubectl", "get", *target, "-o", "yaml"), command("kubectl", "delete", *target)
    return f"look at it: {look}\nthen keep it, or remove it first: {removal}"


# Labels that Node Feature Discovery, NVIDIA's software or HAMi's users may set later.
_DISCOVERED_LABEL_PREFIXES: Final = ("feature.node.kubernetes.io/", "nvidia.com/")
_DISCOVERED_LABELS: Final = frozenset({"gpu"})


def may_run_on_node(pod_spec: Body, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether such a pod may run on the node, now or once the node's GPUs are discovered.

    An unknown operator counts as a match.
    """
    selector = pod_spec.get("nodeSelector") or {}
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms")
    return all(_expression_holds(labels, key, "In", [value]) for key, value in selector.items()) and (
        terms is None or any(_term_holds(term, name, labels) for term in terms)
    )


def _term_holds(term: Body, name: str, labels: Mapping[str, str]) -> bool:
    by_label, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return bool(by_label or by_field) and all(
        _expression_holds(there, expression["key"], expression["operator"], expression.get("values") or ())
        for there, expressions in ((labels, by_label), ({"metadata.name": name}, by_field))
        for expression in expressions
    )


def _expression_holds(labels: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    if key.startswith(_DISCOVERED_LABEL_PREFIXES) or key in _DISCOVERED_LABELS:
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
