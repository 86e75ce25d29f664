"""The plain objects that gpunode renders, and the parts that they share with the charts' values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode import yaml
from gpunode.catalog.charts import chart
from gpunode.errors import Refused
from gpunode.facts.model import KubeletKind
from gpunode.kubernetes.model import (
    GPU_PRESENT_LABEL,
    MANAGED_BY_LABEL,
    PLUGIN_CONFIG_LABEL,
    ChartRelease,
    ClusterNode,
    NodeEdit,
    RenderedObject,
    UserPodNeeds,
)
from gpunode.kubernetes.sharing import GPU_RESOURCE
from gpunode.recipe.kubernetes import Kubernetes, Taint
from gpunode.wording import join_names

DEVICE_PLUGIN_NAME: Final = "nvidia-device-plugin"
TEST_POD_NAME: Final = "gpunode-test"
VECTOR_ADD_IMAGE: Final = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
NAMESPACE_WAVE, CONFIG_WAVE, PLUGIN_WAVE, EXTRAS_WAVE, TEST_WAVE = range(5)
_CDI_VOLUMES: Final = (
    {"name": "cdi-root", "hostPath": {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}},
    {"name": "driver-root", "hostPath": {"path": "/", "type": "Directory"}},
)
_CDI_MOUNTS: Final = (
    {"name": "cdi-root", "mountPath": "/var/run/cdi"},
    {"name": "driver-root", "mountPath": "/driver-root", "readOnly": True},
)
CONTROL_PLANE_TAINT_KEY: Final = "node-role.kubernetes.io/control-plane"
_PLUGIN_IMAGE: Final = "nvcr.io/nvidia/k8s-device-plugin"
_USUAL_KUBELET_ROOT: Final = "/var/lib/kubelet"
# Sources: canonical/microk8s microk8s-resources/default-args/kubelet; k0s pkg/component/worker/kubelet.
_KUBELET_ROOTS: Final[Mapping[KubeletKind, str]] = {
    "microk8s": "/var/snap/microk8s/common/var/lib/kubelet",
    "k0s": "/var/lib/k0s/kubelet",
}


def kubelet_root(nodes: Sequence[ClusterNode]) -> str:
    """Return the root folder of the nodes' kubelets.

    Raises:
        Refused: they differ, since one DaemonSet cannot mount several.
    """
    roots = {
        _KUBELET_ROOTS.get(node.kubelet, _USUAL_KUBELET_ROOT) if node.kubelet else _USUAL_KUBELET_ROOT for node in nodes
    }
    if len(roots) > 1:
        raise Refused(
            "the nodes keep the kubelet's files in different folders",
            why=", ".join(sorted(roots)),
            hint="render for the nodes of one Kubernetes distribution at a time",
        )
    return next(iter(roots), _USUAL_KUBELET_ROOT)


def has_usual_kubelet_root(nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the kubelets' root folder is the one that charts assume."""
    return kubelet_root(nodes) == _USUAL_KUBELET_ROOT


def mirror_image(image: str, registry: str) -> str:
    """Return the image in the mirror ``registry``, if any: its host is replaced, its path stays."""
    return f"{registry}/{image.partition('/')[2]}" if registry else image


def make_tolerations(desired: Kubernetes, *, with_usual: bool = True) -> list[dict[str, str]]:
    """Return the tolerations for the recipe's GPU nodes and, if ``with_usual``, for those of clouds.

    Clouds taint them with nvidia.com/gpu, which NVIDIA's charts tolerate as well.
    """
    taints = [(CONTROL_PLANE_TAINT_KEY, "NoSchedule")] if desired.control_plane else []
    taints += [(GPU_RESOURCE, "NoSchedule")] if with_usual else []
    taints += [(desired.taint.key, desired.taint.effect)] if desired.taint.key else []
    return [{"key": key, "operator": "Exists", "effect": effect} for key, effect in dict.fromkeys(taints)]


def make_namespace(name: str) -> RenderedObject:
    """Return the namespace, whose pods may mount folders of the node."""
    enforce = {"pod-security.kubernetes.io/enforce": "privileged"}
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {**MANAGED_BY_LABEL, **enforce}},
    }
    return RenderedObject(
        body, "Its pods mount host folders, such as the kubelet's; only privileged pods may do that.", NAMESPACE_WAVE
    )


def make_nvidia_runtime_class(name: str) -> RenderedObject:
    """Return the RuntimeClass that selects NVIDIA's runtime."""
    # Not labelled as ours: RKE2 and k3s have this class as well, and RKE2 sets app.kubernetes.io/managed-by itself.
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "nvidia"}
    why = 'Pods of this class run through the runtime "nvidia", which gpunode registers on each node.'
    return RenderedObject(body, why, NAMESPACE_WAVE)


def make_plugin_config_map(namespace: str, config: Mapping[str, Any], why: str, *, hashed: bool) -> RenderedObject:
    """Return the ConfigMap with the device plugin's configuration.

    If ``hashed``, its name contains a hash, so that new content restarts the plugin's pods: the plugin does not watch
    its file (gpu-operator issue 1144). kustomize adds the hash itself.
    """
    text = yaml.render_document(config)
    name = f"{DEVICE_PLUGIN_NAME}-{hashlib.sha256(text.encode()).hexdigest()[:8]}" if hashed else DEVICE_PLUGIN_NAME
    metadata = {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY_LABEL)}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.yaml": text}}
    return RenderedObject(body, why, CONFIG_WAVE)


def explain_static_cpus(nodes: Sequence[ClusterNode]) -> str:
    """Return a sentence on why the device plugin passes device nodes to the kubelet; empty if it does not."""
    names = [node.name for node in nodes if node.static_cpus]
    if not names:
        return ""
    of_nodes = join_names(names, 3)
    return f"Privileged, and passes device nodes to the kubelet, because {of_nodes} uses the static CPU manager."


def make_plugin_daemon_set(
    desired: Kubernetes, namespace: str, config_map: str, nodes: Sequence[ClusterNode], *, mig: bool, cdi: bool
) -> RenderedObject:
    """Return NVIDIA's device plugin for every node with the label ``nvidia.com/gpu.present=true``.

    Like deployments/static/nvidia-device-plugin.yml of NVIDIA/k8s-device-plugin 0.20.0, plus the configuration and the
    RuntimeClass: without that, the plugin finds NVML only if nvidia is the default runtime. To offer MIG instances it
    needs CAP_SYS_ADMIN; for a static CPU manager it is privileged, as in
    nvidia-device-plugin-compat-with-cpumanager.yml there. For CDI it writes specifications of the driver's files below
    /driver-root, like the chart with nvidiaDriverRoot=/ (docs/cdi.md there); their hooks are the host's
    /usr/bin/nvidia-ctk, its default.
    """
    root, needed = kubelet_root(nodes), explain_static_cpus(nodes)
    labels = {"app.kubernetes.io/name": DEVICE_PLUGIN_NAME}
    pod = {
        **({"runtimeClassName": desired.runtime_class} if desired.runtime_class else {}),
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "nodeSelector": {GPU_PRESENT_LABEL: "true"},
        "tolerations": make_tolerations(desired),
        "containers": [_plugin_container(desired, mig=mig, cdi=cdi, privileged=bool(needed))],
        "volumes": [
            {"name": "device-plugins", "hostPath": {"path": f"{root}/device-plugins", "type": "Directory"}},
            {"name": "config", "configMap": {"name": config_map}},
            *(_CDI_VOLUMES if cdi else ()),
        ],
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": DEVICE_PLUGIN_NAME, "namespace": namespace, "labels": {**labels, **MANAGED_BY_LABEL}},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    by_cdi = "Writes their CDI specification to /var/run/cdi, from the driver's files below /." if cdi else ""
    why = " ".join(filter(None, ("Offers the node's GPUs to pods.", by_cdi, needed)))
    return RenderedObject(body, why, PLUGIN_WAVE)


def _plugin_container(desired: Kubernetes, *, mig: bool, cdi: bool, privileged: bool) -> dict[str, Any]:
    capabilities = {"capabilities": {"add": ["SYS_ADMIN"]}}
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    version = desired.versions.device_plugin
    tag = f"v{version.removeprefix('v')}" if version else chart(DEVICE_PLUGIN_NAME).app
    environment = [{"name": "CONFIG_FILE", "value": "/config/config.yaml"}]
    return {
        "name": "plugin",
        "image": mirror_image(f"{_PLUGIN_IMAGE}:{tag}", desired.registry),
        "env": environment + ([{"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}] if mig else []),
        "securityContext": {"privileged": True} if privileged else capabilities if mig else confined,
        "volumeMounts": [
            {"name": "device-plugins", "mountPath": "/var/lib/kubelet/device-plugins"},
            {"name": "config", "mountPath": "/config", "readOnly": True},
            *(_CDI_MOUNTS if cdi else ()),
        ],
    }


def make_test_pod(
    desired: Kubernetes, namespace: str, user_pod: UserPodNeeds, only: tuple[str, Sequence[str]] | None
) -> tuple[RenderedObject, ...]:
    """Return a pod that adds two vectors on a GPU, after the objects it needs; its log ends with ``Test PASSED``.

    It has the lines of the ``user_pod``, and tolerates the usual taint of GPU nodes as well as the recipe's.
    ``only`` is its nodes' configuration with their names, if other nodes have another one.
    """
    own_spec = dict(user_pod.spec)
    (container,) = own_spec.pop("containers")
    if claims := own_spec.get("resourceClaims"):
        own_spec["resourceClaims"] = [{**claims[0], "resourceClaimTemplateName": TEST_POD_NAME}]
    image = mirror_image(VECTOR_ADD_IMAGE, desired.registry)
    spec = {
        "restartPolicy": "Never",
        **own_spec,
        "tolerations": make_tolerations(desired),
        "containers": [{"name": "vectoradd", "image": image, **container}],
    }
    metadata = {"name": TEST_POD_NAME, "namespace": namespace, "labels": dict(MANAGED_BY_LABEL)}
    place = "a GPU"
    if only is not None:
        config, nodes = only
        metadata["name"] = f"{TEST_POD_NAME}-{config}"
        spec["nodeSelector"] = {PLUGIN_CONFIG_LABEL: config}
        place = f"{join_names(nodes, 3)}, with the configuration {config}"
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    pod = RenderedObject(body, f"Adds two vectors on {place}; its log ends with: Test PASSED", TEST_WAVE)
    return (_claim_template(namespace), pod) if claims else (pod,)


def _claim_template(namespace: str) -> RenderedObject:
    """Return the template of a claim for one GPU, for Dynamic Resource Allocation."""
    metadata = {"name": TEST_POD_NAME, "namespace": namespace, "labels": dict(MANAGED_BY_LABEL)}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    return RenderedObject(template, "Each pod that names it gets a claim of its own, for one GPU.", TEST_WAVE)


# The keys of the charts' values for Node Feature Discovery, if they install it.
NFD_SUBCHARTS: Final = ("nfd", "node-feature-discovery")
# VGA and 3D controllers: a GPU's sound and USB functions have NVIDIA's vendor id as well.
_NFD_GPU_MATCH_EXPRESSIONS: Final = {
    "vendor": {"op": "In", "value": ["10de"]},
    "class": {"op": "In", "value": ["0300", "0302"]},
}


def can_nfd_set_label(key: str) -> bool:
    """Return whether Node Feature Discovery keeps the label's name: it adds its prefix to a name without one."""
    return "/" in key


def can_nfd_set_taint(taint: Taint) -> bool:
    """Return whether Node Feature Discovery may set the taint."""
    return "/" in taint.key and not f".{taint.key.partition('/')[0]}".endswith(".kubernetes.io")


def allow_tainting(release: ChartRelease) -> ChartRelease:
    """Return the release with the permission of nfd-master to set taints."""
    values = dict(release.values)
    for key in NFD_SUBCHARTS:
        if key in values:
            values[key] = {**values[key], "master": {"enableTaints": True}}
    return replace(release, values=values)


def make_feature_rule(edits: Sequence[NodeEdit], taint: Taint) -> RenderedObject | None:
    """Return the rule that sets what ``edits`` set; None if they set nothing.

    What all ``edits`` share is set on every node with an NVIDIA GPU, including nodes that join later; the rest is set
    by the nodes' names.
    """
    shared = {
        key: value
        for key, value in edits[0].labels.items()
        if can_nfd_set_label(key) and all(edit.labels.get(key) == value for edit in edits)
    }
    rules: list[Mapping[str, Any]] = []
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect}] if can_nfd_set_taint(taint) else []
    if shared or taints:
        rule = {
            "name": "gpu-nodes",
            **({"labels": shared} if shared else {}),
            **({"taints": taints} if taints else {}),
            "matchFeatures": [{"feature": "pci.device", "matchExpressions": _NFD_GPU_MATCH_EXPRESSIONS}],
        }
        rules.append(rule)
    rules += _node_name_rules(edits, shared)
    if not rules:
        return None
    body = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeatureRule",
        "metadata": {"name": "gpunode", "labels": dict(MANAGED_BY_LABEL)},
        "spec": {"rules": rules},
    }
    return RenderedObject(body, "With it Node Feature Discovery sets the labels that apply.sh sets.", EXTRAS_WAVE + 1)


def _node_name_rules(edits: Sequence[NodeEdit], shared: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    names: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for edit in edits:
        own = tuple((key, value) for key, value in edit.labels.items() if can_nfd_set_label(key) and key not in shared)
        names.setdefault(own, []).append(edit.node)
    for number, (own, nodes) in enumerate(names.items(), 1):
        if own:
            match = {"feature": "system.name", "matchExpressions": {"nodename": {"op": "In", "value": nodes}}}
            yield {"name": f"nodes-{number}", "labels": dict(own), "matchFeatures": [match]}
