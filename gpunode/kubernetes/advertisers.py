"""What offers NVIDIA GPUs in a cluster already: two of a kind on one node count each GPU twice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from gpunode.command import Command, gpunode
from gpunode.errors import Refused
from gpunode.kubernetes.model import MANAGED_BY, Rendered

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
# The operator's pods say it by a label; its plugin has the device plugin's image.
_OPERATOR: Final = ("app.kubernetes.io/managed-by", "gpu-operator")


@dataclass(frozen=True, slots=True)
class Found:
    """A DaemonSet that offers GPUs.

    Attributes:
        release: ``namespace/name`` of the Helm release that made it; empty for none.
    """

    namespace: str
    name: str
    kind: Advertiser
    release: str = ""


def advertisers(daemon_sets: Sequence[Body]) -> Iterator[Found]:
    """Those of ``daemon_sets`` that offer GPUs and that gpunode did not apply."""
    for one in daemon_sets:
        metadata = one["metadata"]
        labels = metadata.get("labels", {})
        if all(labels.get(name) == value for name, value in MANAGED_BY.items()):
            continue
        if not one.get("status", {}).get("desiredNumberScheduled", 1):
            continue
        kind = _kind(one)
        if kind is None:
            continue
        if is_of_operator(one):
            kind = "gpu-operator"
        yield Found(metadata["namespace"], metadata["name"], kind, release_of(one))


def is_advertiser(daemon_set: Body) -> bool:
    """Whether it offers GPUs, whoever made it."""
    return _kind(daemon_set) is not None


def is_of_operator(daemon_set: Body) -> bool:
    """Whether the GPU Operator made it."""
    metadata = daemon_set["metadata"]
    return metadata.get("labels", {}).get(_OPERATOR[0]) == _OPERATOR[1] or _owner(metadata) == "ClusterPolicy"


def release_of(body: Body) -> str:
    """``namespace/name`` of the Helm release that made the object; empty for none."""
    notes = body["metadata"].get("annotations", {})
    name = notes.get("meta.helm.sh/release-name", "")
    return f"{notes.get('meta.helm.sh/release-namespace', '')}/{name}" if name else ""


def _kind(daemon_set: Body) -> Advertiser | None:
    pod = daemon_set["spec"]["template"]["spec"]
    names = [_name(container.get("image", "")) for container in pod.get("containers", [])]
    kind = next((_IMAGES[name] for name in names if name in _IMAGES), None)
    return None if kind == "device-plugin" and _is_no_plugin(daemon_set["metadata"]["name"]) else kind


def refuse_second(rendered: Rendered, daemon_sets: Sequence[Body], kubectl: Typed, helm: Typed) -> None:
    """Nothing, if nobody but what is rendered offers the GPUs.

    Args:
        rendered: for the cluster.
        daemon_sets: that the cluster has.
        kubectl: makes the command of words that is meant for this cluster.
        helm: likewise.

    Raises:
        Refused: something does; it is named, with what to do about it.
    """
    released = {f"{one.namespace}/{one.name}" for one in rendered.releases}
    there = [one for one in advertisers(daemon_sets) if one.release not in released]
    if rendered.releases and any(one.chart == "gpu-operator" for one in rendered.releases):
        there = [one for one in there if one.kind != "gpu-operator"]
    if not there:
        return
    first = there[0]
    raise Refused(
        f"{first.namespace}/{first.name} offers the GPUs of this cluster already",
        why=f"it is {_TOLD[first.kind]}"
        + (f", Helm release {first.release}" if first.release else "")
        + "; with a second one each GPU would be offered twice",
        hint=_hint(first, kubectl, helm),
    )


_TOLD: Final[Mapping[Advertiser, str]] = {
    "device-plugin": "NVIDIA's device plugin",
    "gpu-operator": "the device plugin of the GPU Operator",
    "hami": "HAMi",
    "dra": "NVIDIA's DRA driver",
    "provider": "your provider's own device plugin",
}


def _hint(found: Found, kubectl: Typed, helm: Typed) -> str:
    if found.kind == "provider":
        return "leave these nodes to your provider; gpunode has nothing to do in this cluster"
    show = kubectl("get", "daemonset", "--namespace", found.namespace, found.name, "-o", "yaml")
    if found.release:
        namespace, _, name = found.release.partition("/")
        gone = helm("uninstall", name, "--namespace", namespace)
        values = gpunode("k8s", "render", "--form", "helm", "--out", "gpu-node")
        return f"keep it and give its release gpunode's values:\n{values}\nor take it away first: {gone}"
    gone = kubectl("delete", "daemonset", "--namespace", found.namespace, found.name)
    return f"look at it: {show}\nthen keep it, or take it away: {gone}"


def _name(image: str) -> str:
    """The last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _is_no_plugin(name: str) -> bool:
    """Whether it is another part of the device plugin's chart, which has one image for all."""
    return any(word in name for word in ("gpu-feature-discovery", "mps-control"))


def _owner(metadata: Mapping[str, Any]) -> str:
    return next((str(one.get("kind", "")) for one in metadata.get("ownerReferences", [])), "")
