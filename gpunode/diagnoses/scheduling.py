"""Pods that get no GPU: all are taken, a taint is not borne, the node does not offer any, the wrong node was set up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DEVICE_PLUGIN
from gpunode.diagnoses.cluster import node_word, plugin_logs, restart_plugin
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, run
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import kube, nested, pci
from gpunode.facts.patterns import Pattern

_INSUFFICIENT: Final = Pattern(rf"Insufficient (?P<resource>{kube.RESOURCE})", re.IGNORECASE)
_UNTOLERATED: Final = Pattern(
    r"untolerated taint[s(]*\)?:? ?\{\s*(?P<key>[\w./-]+)\s*(?::\s*(?P<value>[\w.-]*))?\s*\}"
    r"|had taints? \{\s*(?P<old>[\w./-]+)\s*(?::\s*(?P<old_value>[\w.-]*))?\s*\},? that the pod didn.t tolerate"
    r"|\bdid not tolerate (?:taint )?(?P<keyed>[\w./-]+)(?:=(?P<keyed_value>[\w.-]*))?:No(?:Schedule|Execute)\b"
)
_NOT_TOLERATED: Final = Pattern(r"had untolerated taint|had taints? .{0,80}didn.t tolerate")
# Taints that the cluster sets for a state of the node, or that keep work off its control plane.
_OF_CLUSTER: Final = Pattern(
    r"^(?:node\.kubernetes\.io/|node-role\.kubernetes\.io/|node\.cloudprovider\.kubernetes\.io/|node\.cilium\.io/"
    r"|node\.cluster\.x-k8s\.io/|CriticalAddonsOnly$|ToBeDeletedByClusterAutoscaler|DeletionCandidateOfClusterAutoscaler"
    r"|karpenter\.sh/|node\.ocs|ignore-taint\.)"
)
_OF_GPUS: Final = Pattern(r"nvidia|gpu|accelerat|cuda", re.IGNORECASE)


# Taints.


def _taints(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    if found := tuple(_refused(snapshot)):
        key = found[0][0]
        certain = bool(_OF_GPUS.search(key))
        summary = f"the node with the GPU has the taint {key}, and the pod does not tolerate it"
        ruled_out = ("too few GPUs: the scheduler names the taint, not the resource",) if certain else ()
        cited = (*(place for _, place in found), *_of_nodes(snapshot, key))
        proof = Proof(summary, tuple(dict.fromkeys(cited)), "certain" if certain else "likely", ruled_out)
        yield "pod-missing-gpu-toleration", proof
    elif proof_of_plugin := _plugin_kept_off(snapshot):
        yield "pod-missing-gpu-toleration", proof_of_plugin
    elif by_facts := _unborne(snapshot):
        yield "pod-missing-gpu-toleration", by_facts


def _refused(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    """The taints that the scheduler says were not tolerated, but for those that keep all pods away."""
    for place in kube.said(snapshot, _UNTOLERATED, "taint", "not tolerate"):
        for match in _UNTOLERATED.finditer(place.line):
            key = match["key"] or match["old"] or match["keyed"]
            if key and not _OF_CLUSTER.match(key):
                yield key, place
    if not any(_UNTOLERATED.search(place.line) for place in kube.said(snapshot, _NOT_TOLERATED, "taint")):
        for _ in kube.said(snapshot, _NOT_TOLERATED, "taint"):
            for key, place in _own_taints(snapshot):
                yield key, place


def _own_taints(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    for node in snapshot.view(kube.nodes):
        for taint, place in node.taints:
            if not _OF_CLUSTER.match(taint.key) and taint.effect != "PreferNoSchedule":
                yield taint.key, place


def _of_nodes(snapshot: Snapshot, key: str) -> Iterator[Citation]:
    yield from (place for name, place in _own_taints(snapshot) if name == key)


def _plugin_kept_off(snapshot: Snapshot) -> Proof | None:
    """A GPU node's own taint keeps the device plugin away: none is wanted there, and the node offers no GPU."""
    idle = [one for one in snapshot.view(kube.daemons) if _is_gpu_daemon(one.name) and one.desired == 0]
    taints = [(key, place) for key, place in _own_taints(snapshot) if _OF_GPUS.search(key)]
    if not idle or not taints:
        return None
    key, place = taints[0]
    summary = f"the taint {key} keeps {idle[0].name} off the node: it is wanted on no node, so no GPU is offered"
    return Proof(summary, (place, *(one.citation for one in idle)), "likely")


def _is_gpu_daemon(name: str) -> bool:
    return bool(re.search(r"device-plugin|nvdp|gpu-feature|node-feature-discovery-worker|nfd-worker", name))


def _unborne(snapshot: Snapshot) -> Proof | None:
    """A waiting pod's tolerations, compared with the taints of the node that has the GPUs."""
    for pod in snapshot.view(kube.pods):
        if pod.tolerations is None or pod.node not in {"", "<none>"} or not (pod.gpus or pod.is_device_plugin):
            continue
        if pod.status not in {"", "Pending"}:
            continue
        for node in snapshot.view(kube.nodes):
            for taint, place in node.taints:
                is_own = not _OF_CLUSTER.match(taint.key) and taint.effect != "PreferNoSchedule"
                if is_own and not any(one.bears(taint) for one in pod.tolerations):
                    summary = (
                        f"the node has the taint {taint.key}, and {pod.name or 'the pod'} has no toleration for it"
                    )
                    cited = (place, *((pod.citation,) if pod.citation else ()))
                    return Proof(summary, cited, "certain" if _OF_GPUS.search(taint.key) else "likely")
    return None


# Allocation.


def _allocation(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    waiting = kube.said(snapshot, _INSUFFICIENT, "nsufficient nvidia")
    full = tuple(_full(snapshot))
    if full:
        names = sorted({name for name, _, _ in full})
        count = full[0][1]
        summary = (
            f"all {count} {names[0]} are given to pods" if count != 1 else f"the only {names[0]} is given to a pod"
        )
        cited = (*(place for _, _, places in full for place in places), *waiting)
        ruled_out = ("the device plugin: every GPU that it has is healthy and offered",)
        yield "gpus-all-allocated", Proof(summary, tuple(dict.fromkeys(cited)), "certain", ruled_out)
        return
    if not waiting or snapshot.view(_labels_only) or any(True for _ in _refused(snapshot)):
        return
    nodes = snapshot.view(kube.nodes)
    if any(node.allocatable for node in nodes) and any(_is_less(node) or node.allocated for node in nodes):
        return
    if any(node.allocatable for node in nodes):
        question = "a pod waits for a GPU though the node offers some: how many of them are taken was not shown"
        yield (
            "gpus-all-allocated",
            Doubt(question, (Shell("kubectl describe node | grep -A9 'Allocated resources'"),), waiting),
        )
    elif any(node.has_no_gpu for node in nodes) or not nodes:
        question = "a pod waits for a GPU that no node offers: whether a device plugin runs there was not shown"
        look_at = (
            Shell("kubectl describe node | grep -A9 -E 'Capacity|Allocatable|Allocated resources'"),
            Shell("kubectl logs -n kube-system -l name=nvidia-device-plugin-ds"),
        )
        yield "gpu-labels-without-capacity", Doubt(question, look_at, waiting, ("gpus-all-allocated",))


def _full(snapshot: Snapshot) -> Iterator[tuple[str, int, tuple[Citation, ...]]]:
    for node in snapshot.view(kube.nodes):
        for name, offered in (node.allocatable or node.capacity).items():
            used = node.allocated.get(name)
            if used and used.value >= offered.value > 0 and not _is_less(node):
                yield name, offered.value, (offered.citation, used.citation)
    yield from _full_by_pods(snapshot)


def _full_by_pods(snapshot: Snapshot) -> Iterator[tuple[str, int, tuple[Citation, ...]]]:
    """A node whose GPUs are all asked for by the running pods that were shown."""
    running = [pod for pod in snapshot.view(kube.pods) if pod.gpus and pod.status == "Running" and pod.node]
    for node in snapshot.view(kube.nodes):
        mine = [pod.gpus for pod in running if pod.node == node.name and pod.gpus]
        offered = node.allocatable.get("nvidia.com/gpu")
        if offered and not node.allocated and mine and sum(one.value for one in mine) >= offered.value > 0:
            yield "nvidia.com/gpu", offered.value, (offered.citation, *(one.citation for one in mine))


def _is_less(node: kube.Node) -> bool:
    """Whether fewer are healthy than there are."""
    return any(
        name in node.allocatable and node.allocatable[name].value < one.value for name, one in node.capacity.items()
    )


# Labels without capacity.

# Of the feature discovery, of the clouds, and of the discovery of PCI devices.
_DISCOVERED: Final = Pattern(
    r"^(?:nvidia\.com/(?:gpu\.(?:count|product|memory|family|compute|machine|present)|cuda\.|gfd\.)"
    r"|feature\.node\.kubernetes\.io/pci-(?:\d{4}_)?10de|cloud\.google\.com/gke-accelerator$"
    r"|k8s\.amazonaws\.com/accelerator|kubernetes\.azure\.com/accelerator)"
)
_FROM_DRIVER: Final = Pattern(r"^nvidia\.com/(?:gpu\.(?:count|product|memory|family|compute)|cuda\.|gfd\.)")


_UNREGISTERED: Final = Pattern(r"[Cc]ould not register device plugin|Could not contact Kubelet|registration failed")


def _labels_only(snapshot: Snapshot) -> tuple[tuple[kube.Node, Citation], ...]:
    """The nodes on which a GPU was discovered and none is offered, each with the label that tells most."""
    found = list[tuple[kube.Node, Citation]]()
    for node in snapshot.view(kube.nodes):
        labels = [
            name for name in node.labels if _DISCOVERED.match(name) and node.values.get(name) not in {"0", "false"}
        ]
        labels.sort(key=lambda name: not _FROM_DRIVER.match(name))
        if labels and node.has_no_gpu:
            found.append((node, node.labels[labels[0]]))
    return tuple(found)


def _labels(snapshot: Snapshot) -> Iterator[Verdict]:
    for node, place in snapshot.view(_labels_only):
        by_driver = any(_FROM_DRIVER.match(name) for name in node.labels)
        seen = "a GPU was discovered on the node" if by_driver else "the node is labelled as one with a GPU"
        summary = f"{seen}, and it offers no nvidia.com/gpu: no device plugin has registered with its kubelet"
        refused = kube.said(snapshot, _UNREGISTERED, "register", "contact Kubelet")
        cited = (place, *_capacity_line(snapshot, node), *refused)
        yield Proof(summary, cited, "likely")


def _capacity_line(snapshot: Snapshot, node: kube.Node) -> Iterator[Citation]:
    for piece in snapshot.view(kube.pieces):
        if piece.name in {node.name, ""}:
            for offset, line in enumerate(piece.lines):
                if re.match(r"\s*[\"']?(?:capacity|allocatable)[\"']?:", line, re.IGNORECASE):
                    yield cite(piece.item, piece.first + offset)
                    return


# Labels that are missing.

# What the chart of the device plugin wants a node to have, any of them; the operator looks for the labels of PCI too.
_MARKS_GPU: Final = Pattern(
    r"nvidia\.com/gpu\.present|feature\.node\.kubernetes\.io/(?:pci-10de\.present|cpu-model\.vendor_id)"
)
_FINDS_NO_NODE: Final = Pattern(
    r"No GPU node in the cluster|Number of nodes with GPU label[\"',\s{}]*NodeCount[\"':\s]*0\b"
    r"|Could not get any nodes to match nvidia\.com/gpu\.present|did you run the node feature discovery"
    r"|\bNFDLabelsMissing\b|No NFD labels found"
)
_EVERY_NODE: Final = Pattern(r"kubernetes\.io/(?:arch|os|hostname)$")


def _unlabelled(snapshot: Snapshot) -> Iterator[Verdict]:
    """No node has a label that leads the device plugin, or the operator's daemon sets, to it."""
    daemons = [one for one in snapshot.view(kube.daemons) if _is_gpu_daemon(one.name) and "nfd" not in one.name]
    daemons = [one for one in daemons if "node-feature-discovery" not in one.name]
    idle = tuple(one.citation for one in daemons if one.desired == 0)
    said = kube.said(snapshot, _FINDS_NO_NODE, "GPU node", "GPU label", "gpu.present", "feature discovery", "NFD")
    is_kept_off = any(_OF_GPUS.search(key) for key, _ in _own_taints(snapshot))
    if pci.has_gpu(snapshot) is False or is_kept_off or any(one.desired for one in daemons) or not (idle or said):
        return
    shown = [node for node in snapshot.view(kube.nodes) if any(map(_EVERY_NODE.search, node.labels))]
    if any(_is_marked(node) for node in shown):
        return
    labels = tuple(dict.fromkeys(next(iter(node.labels.values())) for node in shown))
    summary = "no node has a label that marks it as one with a GPU, so the device plugin is wanted on none"
    if shown or said:
        ruled_out = ("a taint: the nodes have none of GPUs",) if shown else ()
        yield Proof(summary, (*idle, *said, *labels), "certain" if shown and idle else "likely", ruled_out)
        return
    question = "the device plugin is wanted on no node: has a node the label that it looks for, or a taint against it?"
    look_at = (Shell("kubectl get nodes --show-labels"), Shell("kubectl describe node | grep -A3 Taints"))
    yield Doubt(question, look_at, idle, ("pod-missing-gpu-toleration",))


def _is_marked(node: kube.Node) -> bool:
    marks = (name for name in node.labels if _MARKS_GPU.fullmatch(name))
    return any(node.values.get(name, "true") in {"true", "NVIDIA", ""} for name in marks)


def _label(snapshot: Snapshot) -> Iterable[Fix]:
    shown = [node.name for node in snapshot.view(kube.nodes) if node.name]
    name = node_word(shown[0] if len(set(shown)) == 1 else "")
    text = "mark the node that has the GPU; every daemon set of NVIDIA's that looks for this label is led there"
    yield run(
        "configure", text, command("kubectl", "label", "node", name, "nvidia.com/gpu.present=true", "--overwrite")
    )
    text = "have feature discovery set it: gfd.enabled=true in the plugin's chart, nfd.enabled=true in the operator's"
    yield by_hand("install", text, when="more nodes will come")
    show = Shell("kubectl get daemonsets -A | grep -i nvidia")
    yield run("inspect", "see that pods are wanted now", show)


# Nested nodes.

_NO_GPU_INSIDE: Final = Pattern(
    r"could not load NVML library|NVML not detected|Detected non-NVML platform|Incompatible (?:strategy|platform)"
    r"|libnvidia-ml\.so\.1|no runtime for [\\\"']*nvidia|RuntimeHandler [\\\"']*nvidia[\\\"']* not supported"
    r"|Insufficient nvidia\.com/gpu|No devices found\. Waiting|Failed to initialize NVML"
    r"|nvidia-smi[\"']?: (?:executable file )?not found|Driver was not detected|No valid resources"
    r"|could not select device driver"
)


def _nested(snapshot: Snapshot) -> Iterator[Verdict]:
    if not snapshot.view(nested.is_nested):
        return
    failing = (
        *kube.said(
            snapshot, _NO_GPU_INSIDE, "nvidia", "NVML", "Driver", "ncompatible", "resources", "driver", logs=True
        ),
        *(place for _, place in snapshot.view(_labels_only)),
    )
    empty = [node for node in snapshot.view(kube.nodes) if node.has_no_gpu and node.citation]
    if not failing and not empty:
        return
    signs = snapshot.view(nested.signs)
    summary = (
        "the cluster's node is a container on this host with a container runtime of its own: what was configured on "
        "the host does not count inside, and no GPU was passed in"
    )
    cited = (*signs, *failing, *(node.citation for node in empty if node.citation))
    ruled_out = ("the host's driver and runtime: the plugin runs inside the node's container",)
    yield Proof(summary, tuple(dict.fromkeys(cited)), "certain" if failing else "likely", ruled_out)


# Remedies.


def _tolerate(snapshot: Snapshot) -> Iterable[Fix]:
    keys = [key for key, _ in (*_refused(snapshot), *_own_taints(snapshot))]
    key = keys[0] if keys else "nvidia.com/gpu"
    yield by_hand("configure", f"give the pod a toleration: key {key}, operator Exists, effect NoSchedule")
    yield run(
        "inspect",
        "see which taints the node has",
        Shell("kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints"),
    )


def _make_room(snapshot: Snapshot) -> Iterable[Fix]:
    names = [node.name for node in snapshot.view(kube.nodes) if node.name]
    show = command("kubectl", "describe", "node", node_word(names[0] if names else ""))
    inspect = run("inspect", "see which pods hold one", show)
    if _is_at_rest(snapshot):
        yield by_hand("application", "nothing is to be done: a further pod gets a GPU when one of these ends")
        yield inspect
        return
    yield by_hand("application", "end a pod that holds a GPU, or wait for it", when="a pod waits for one")
    yield inspect
    yield by_hand("configure", "share GPUs by time-slicing or MPS, or add nodes, where this happens often")


def _is_at_rest(snapshot: Snapshot) -> bool:
    """Whether all GPUs are given out and no pod is seen to wait for one: then nothing is to be done."""
    waits = any(pod.status == "Pending" for pod in snapshot.view(kube.pods))
    return not waits and any(_full(snapshot)) and not kube.said(snapshot, _INSUFFICIENT, "nsufficient nvidia")


def _register(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "inspect",
        "see whether a device plugin runs on the node, and what keeps it from it",
        Shell("kubectl get daemonsets -A | grep -i nvidia"),
        Shell("kubectl get pods -A -o wide | grep -i device-plugin"),
    )
    yield plugin_logs("read what the device plugin says")
    yield restart_plugin("restart the device plugin: it registers with the kubelet as it starts")


def _pass_in(snapshot: Snapshot) -> Iterable[Fix]:
    words = " ".join(place.words for place in snapshot.view(nested.signs))
    if "kind" in words and "minikube" not in words:
        yield run(
            "configure",
            "let docker pass GPUs to the node's container, then make the cluster with nvkind, which sets up its inside",
            Shell("sudo nvidia-ctk runtime configure --runtime=docker --set-as-default --cdi.enabled"),
            Shell("sudo nvidia-ctk config --set accept-nvidia-visible-devices-as-volume-mounts=true --in-place"),
            Shell("sudo systemctl restart docker"),
        )
        yield by_hand("install", "make the cluster anew: nvkind cluster create")
        return
    yield by_hand("configure", "save what the cluster holds: to pass GPUs in it is made anew, and all in it is deleted")
    yield run(
        "configure",
        "then make the cluster anew with the GPUs passed in; minikube sets up its inside",
        Shell("minikube delete"),
        Shell("minikube start --driver=docker --container-runtime=docker --gpus=all"),
    )


FAMILY: Final = Family(
    "scheduling",
    "pods that get no GPU",
    (
        Rule(
            cause="gpus-all-allocated",
            layer="kubernetes",
            storey="kubernetes",
            severity="info",
            disruption="none",
            title="every GPU is given to a pod",
            share=0.6,
            symptoms=(symptoms.POD_PENDING,),
            look_at=(Shell("kubectl describe nodes | grep -A10 'Allocated resources'"),),
            story=(
                "The node offers its GPUs, they are healthy, and pods have asked for all of them. A further pod waits "
                "with Insufficient nvidia.com/gpu until one ends. That is how it should be: the scheduler counts what "
                "pods ask for, not what they use, so an idle pod holds its GPU, too. nvidia-smi may show no process."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/165",
                "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
            ),
            check=only("gpus-all-allocated", _allocation),
            remedy=_make_room,
        ),
        Rule(
            cause="pod-missing-gpu-toleration",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="none",
            title="the pod does not tolerate the GPU node's taint",
            share=0.6,
            symptoms=(symptoms.POD_PENDING,),
            look_at=(Shell("kubectl describe nodes | grep Taints"),),
            story=(
                "GPU nodes are often tainted, so that pods without a GPU stay away. A pod then needs a toleration for "
                "that taint besides its request: without it the scheduler passes the node over and names the taint. "
                "The same keeps a device plugin or the node feature discovery off the node, whose charts tolerate "
                "`nvidia.com/gpu` with one value only; the node then offers no GPU at all."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/826",
                f"{DEVICE_PLUGIN}/issues/1934",
                "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",
            ),
            check=only("pod-missing-gpu-toleration", _taints),
            remedy=_tolerate,
            explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
        ),
        Rule(
            cause="gpu-labels-without-capacity",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the node is labelled as a GPU node and offers none",
            share=0.8,
            symptoms=(
                symptoms.POD_PENDING,
                symptoms.NO_CAPACITY,
            ),
            look_at=(
                Shell("kubectl describe nodes | grep -E 'nvidia.com/gpu'"),
                Shell("kubectl get pods -A | grep -i nvidia"),
            ),
            story=(
                "The labels nvidia.com/gpu.* come from the feature discovery, or from a person's hand; the number of "
                "GPUs that pods can ask for comes from the device plugin alone, when it registers with the kubelet. "
                "Here the labels are there and the capacity has no nvidia.com/gpu: no plugin has registered, though "
                "pods with a node selector are led to this node and wait."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/826",
                "https://github.com/NVIDIA/gpu-feature-discovery/issues/36",
                "https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/",
            ),
            check=lambda snapshot: (
                verdict
                for verdict in (
                    *_labels(snapshot),
                    *(v for c, v in _allocation(snapshot) if c == "gpu-labels-without-capacity"),
                )
            ),
            remedy=_register,
        ),
        Rule(
            cause="gpu-node-not-labelled",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="none",
            title="no label leads the device plugin to the GPU node",
            symptoms=(
                symptoms.POD_PENDING,
                symptoms.NO_CAPACITY,
                symptoms.OPERATOR_WAITS,
            ),
            look_at=(Shell("kubectl get nodes --show-labels | grep -o 'nvidia.com[^,]*'"),),
            story=(
                "The device plugin's chart (since 0.15) and the GPU operator want their pods on nodes with a label "
                "alone: nvidia.com/gpu.present=true, or what node feature discovery writes of NVIDIA's PCI devices. "
                "Where discovery does not run, cannot reach its master, or writes its labels in another form (with the "
                "PCI class: pci-0300_10de), no node has it. Nothing fails then: the daemon set wants 0 pods, there is "
                "no event, and pods that ask for a GPU wait for ever."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/315",
                f"{DEVICE_PLUGIN}/issues/708",
                f"{DEVICE_PLUGIN}/issues/1213",
                "https://github.com/NVIDIA/gpu-operator/issues/423",
                "https://github.com/NVIDIA/gpu-operator/issues/607",
                "https://github.com/NVIDIA/nvkind/issues/20",
            ),
            check=_unlabelled,
            remedy=_label,
            explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
        ),
        Rule(
            cause="nested-node-config-not-applied",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the host was set up, and the node is a container inside it",
            symptoms=(
                symptoms.POD_PENDING,
                symptoms.NO_CAPACITY,
                symptoms.PLUGIN_FAILS,
                symptoms.NO_RUNTIME,
            ),
            look_at=(
                Shell("docker ps"),
                Shell("docker info | grep -i 'default runtime'"),
            ),
            story=(
                "minikube with the docker driver, kind and k3d run each node as a container, with containerd or docker "
                "of its own inside. NVIDIA's runtime in the host's configuration serves the host's containers; pods "
                "are started by the one inside, which knows nothing of it, and the node's container was given no GPU. "
                "The host's files look perfect, and the device plugin finds no NVML."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/478",
                "https://minikube.sigs.k8s.io/docs/tutorials/nvidia/",
                "https://github.com/NVIDIA/nvkind",
            ),
            check=_nested,
            remedy=_pass_in,
            explains=frozenset(
                {
                    "containerd-nvidia-runtime-missing",
                    "device-plugin-library-not-found",
                    "gpu-labels-without-capacity",
                    "k3s-runtime-config-overwritten",
                    "nvidia-runtime-not-default-no-runtimeclass",
                    "nvidia-runtime-not-registered",
                    "toolkit-not-installed",
                }
            ),
        ),
    ),
)
