"""The plain objects that gpunode renders itself, and the parts that they and the charts' values share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpunode import yaml
from gpunode.catalog.charts import chart
from gpunode.errors import Refused
from gpunode.facts.model import KubeletKind
from gpunode.kubernetes.model import GPU_PRESENT, MANAGED_BY, PLUGIN_CONFIG, ClusterNode, OwnPod, RenderedObject
from gpunode.kubernetes.sharing import GPU
from gpunode.recipe.kubernetes import Kubernetes

PLUGIN: Final = "nvidia-device-plugin"
TEST_POD: Final = "gpunode-test"
VECTOR_ADD: Final = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
NAMESPACE_WAVE, CONFIG_WAVE, PLUGIN_WAVE, EXTRAS_WAVE, TEST_WAVE = range(5)
_CDI_VOLUMES: Final = (
    {"name": "cdi-root", "hostPath": {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}},
    {"name": "driver-root", "hostPath": {"path": "/", "type": "Directory"}},
)
_CDI_MOUNTS: Final = (
    {"name": "cdi-root", "mountPath": "/var/run/cdi"},
    {"name": "driver-root", "mountPath": "/driver-root", "readOnly": True},
)
CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_PLUGIN_IMAGE: Final = "nvcr.io/nvidia/k8s-device-plugin"
_KUBELET_ROOT: Final = "/var/lib/kubelet"
# Sources: canonical/microk8s microk8s-resources/default-args/kubelet; k0s pkg/component/worker/kubelet.
_KUBELET_ROOTS: Final[Mapping[KubeletKind, str]] = {
    "microk8s": "/var/snap/microk8s/common/var/lib/kubelet",
    "k0s": "/var/lib/k0s/kubelet",
}


def kubelet_root(nodes: Sequence[ClusterNode]) -> str:
    """The folder of the nodes' kubelets.

    Raises:
        Refused: they differ, and one DaemonSet cannot mount several.
    """
    roots = {_KUBELET_ROOTS.get(node.kubelet, _KUBELET_ROOT) if node.kubelet else _KUBELET_ROOT for node in nodes}
    if len(roots) > 1:
        raise Refused(
            "the nodes keep the kubelet's files in different folders",
            why=", ".join(sorted(roots)),
            hint="render for the nodes of one Kubernetes distribution at a time",
        )
    return next(iter(roots), _KUBELET_ROOT)


def has_usual_root(nodes: Sequence[ClusterNode]) -> bool:
    """Whether the kubelets' folder is the one that charts take for granted."""
    return kubelet_root(nodes) == _KUBELET_ROOT


def mirrored(image: str, registry: str) -> str:
    """``image``, from the mirror ``registry`` where there is one: the registry's host is replaced, the path stays."""
    return f"{registry}/{image.partition('/')[2]}" if registry else image


def tolerations(wanted: Kubernetes, *, usual: bool = True) -> list[dict[str, str]]:
    """Return what lets a pod run on the GPU nodes of the recipe, and if ``usual`` on those of clouds.

    The taint of those is nvidia.com/gpu, which NVIDIA's charts tolerate, too.
    """
    effects = {CONTROL_PLANE: "NoSchedule"} if wanted.control_plane else {}
    effects |= {GPU: "NoSchedule"} if usual else {}
    effects |= {wanted.taint.key: wanted.taint.effect} if wanted.taint.key else {}
    return [{"key": key, "operator": "Exists", "effect": effect} for key, effect in effects.items()]


def namespace(name: str) -> RenderedObject:
    """The namespace, whose pods may mount folders of the node."""
    enforce = {"pod-security.kubernetes.io/enforce": "privileged"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**MANAGED_BY, **enforce}}}
    return RenderedObject(
        body, "Its pods mount folders of the node, such as the kubelet's; only privileged ones may.", NAMESPACE_WAVE
    )


def runtime_class(name: str) -> RenderedObject:
    """The RuntimeClass that selects NVIDIA's runtime."""
    # No label of ours: RKE2 and k3s have this class, too, and RKE2 sets app.kubernetes.io/managed-by itself.
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "nvidia"}
    why = 'Pods of this class run through the runtime "nvidia", which gpunode registers on each node.'
    return RenderedObject(body, why, NAMESPACE_WAVE)


def plugin_config_map(where: str, config: Mapping[str, Any], why: str, *, hashed: bool) -> RenderedObject:
    """Return the device plugin's configuration.

    If ``hashed``, it is named by its content, so that another content restarts the plugin's pods: the plugin does not
    watch its file (gpu-operator issue 1144). kustomize does this itself.
    """
    text = yaml.document(config)
    name = f"{PLUGIN}-{hashlib.sha256(text.encode()).hexdigest()[:8]}" if hashed else PLUGIN
    metadata = {"name": name, "namespace": where, "labels": dict(MANAGED_BY)}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.yaml": text}}
    return RenderedObject(body, why, CONFIG_WAVE)


def static_cpus(nodes: Sequence[ClusterNode]) -> str:
    """Why the device plugin passes device nodes to the kubelet, in a sentence; empty where it need not."""
    names = [node.name for node in nodes if node.static_cpus]
    if not names:
        return ""
    return (
        f"Privileged, and passes device nodes to the kubelet: the static CPU manager of {_several(names)} needs that."
    )


def _several(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def plugin_daemon_set(
    wanted: Kubernetes, where: str, config_map: str, nodes: Sequence[ClusterNode], *, mig: bool, cdi: bool
) -> RenderedObject:
    """NVIDIA's device plugin on every node with the label ``nvidia.com/gpu.present=true``.

    As deployments/static/nvidia-device-plugin.yml of NVIDIA/k8s-device-plugin 0.20.0, with what that leaves out: the
    RuntimeClass, without which the plugin finds no NVML where nvidia is not the default runtime, and the configuration.
    To offer MIG instances it needs CAP_SYS_ADMIN; for a static CPU manager, as in
    nvidia-device-plugin-compat-with-cpumanager.yml there, it is privileged. For CDI it writes specifications of the
    driver's files, which it finds below /driver-root, as the chart with nvidiaDriverRoot=/ (docs/cdi.md there); their
    hooks are the host's /usr/bin/nvidia-ctk, its default.
    """
    root, needed = kubelet_root(nodes), static_cpus(nodes)
    labels = {"app.kubernetes.io/name": PLUGIN}
    pod = {
        **({"runtimeClassName": wanted.runtime_class} if wanted.runtime_class else {}),
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "nodeSelector": {GPU_PRESENT: "true"},
        "tolerations": tolerations(wanted),
        "containers": [_plugin_container(wanted, mig=mig, cdi=cdi, privileged=bool(needed))],
        "volumes": [
            {"name": "device-plugins", "hostPath": {"path": f"{root}/device-plugins", "type": "Directory"}},
            {"name": "config", "configMap": {"name": config_map}},
            *(_CDI_VOLUMES if cdi else ()),
        ],
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": PLUGIN, "namespace": where, "labels": {**labels, **MANAGED_BY}},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    by_cdi = "Writes their CDI specification to /var/run/cdi, from the driver's files below /." if cdi else ""
    why = " ".join(filter(None, ("Offers the node's GPUs to pods as nvidia.com/gpu.", by_cdi, needed)))
    return RenderedObject(body, why, PLUGIN_WAVE)


def _plugin_container(wanted: Kubernetes, *, mig: bool, cdi: bool, privileged: bool) -> dict[str, Any]:
    capabilities = {"capabilities": {"add": ["SYS_ADMIN"]}}
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    environment = [{"name": "CONFIG_FILE", "value": "/config/config.yaml"}]
    return {
        "name": "plugin",
        "image": mirrored(f"{_PLUGIN_IMAGE}:{_image_tag(wanted) or chart(PLUGIN).app}", wanted.registry),
        "env": environment + ([{"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}] if mig else []),
        "securityContext": {"privileged": True} if privileged else capabilities if mig else confined,
        "volumeMounts": [
            {"name": "device-plugins", "mountPath": "/var/lib/kubelet/device-plugins"},
            {"name": "config", "mountPath": "/config", "readOnly": True},
            *(_CDI_MOUNTS if cdi else ()),
        ],
    }


def _image_tag(wanted: Kubernetes) -> str:
    version = wanted.versions.device_plugin
    return f"v{version.removeprefix('v')}" if version else ""


def test_pod(
    wanted: Kubernetes, where: str, own: OwnPod, only: tuple[str, Sequence[str]] | None
) -> tuple[RenderedObject, ...]:
    """Return a pod that adds two vectors on a GPU and ends, and what it needs before it; its log says ``Test PASSED``.

    It says what the user's ``own`` pod has to say, and tolerates the usual taint of GPU nodes beside the recipe's.
    ``only`` is the configuration of the nodes that it is for, with their names, where others have other ones.
    """
    said = dict(own.spec)
    (container,) = said.pop("containers")
    if claims := said.get("resourceClaims"):
        said["resourceClaims"] = [{**claims[0], "resourceClaimTemplateName": TEST_POD}]
    image = mirrored(VECTOR_ADD, wanted.registry)
    spec = {
        "restartPolicy": "Never",
        **said,
        "tolerations": tolerations(wanted),
        "containers": [{"name": "vectoradd", "image": image, **container}],
    }
    metadata = {"name": TEST_POD, "namespace": where, "labels": dict(MANAGED_BY)}
    place = "a GPU"
    if only is not None:
        config, nodes = only
        metadata["name"] = f"{TEST_POD}-{config}"
        spec["nodeSelector"] = {PLUGIN_CONFIG: config}
        place = f"{_several(nodes)}, with the configuration {config}"
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    pod = RenderedObject(body, f"Adds two vectors on {place}; its log ends with: Test PASSED", TEST_WAVE)
    return (_claim_template(where), pod) if claims else (pod,)


def _claim_template(where: str) -> RenderedObject:
    """Return the template of a claim for one GPU, for Dynamic Resource Allocation."""
    metadata = {"name": TEST_POD, "namespace": where, "labels": dict(MANAGED_BY)}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    return RenderedObject(template, "Each pod that names it gets a claim of its own, for one GPU.", TEST_WAVE)
