"""Diagnose pods without a GPU, and requests that are invalid or that no node serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.cluster import (
    MAKE_RUNTIME_CLASS,
    kubectl_node_name,
    restart_plugin,
    show_plugin_logs,
)
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import make_fixed_remedy, manual_step, run_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import in_container, kubernetes_nodes
from gpunode.facts.items import COMMAND_NOT_FOUND_WORDS

_NODE_OFFERS_GPUS: Final = custom_sign(
    lambda node: (
        one.citation for node in node.view(kubernetes_nodes.kube_nodes) for one in node.available.values() if one.value
    )
)
_NODE_WITHOUT_GPU_CAPACITY: Final = custom_sign(
    lambda node: (node.citation for node in node.view(kubernetes_nodes.kube_nodes) if node.has_no_gpu)
)

# Taints, except those for a node's state and the control plane, which keep all pods away.

_GPU_WORD: Final = r"(?:nvidia|gpu|accelerat|cuda)"
_TAINT_NOT_TOLERATED: Final = message_line(
    r"(?:untolerated taints?(?:\(s\))?:? ?|had taints? )\{(?!\s*(?:node(?:-role|\.cloudprovider)?\.kubernetes\.io/"
    r"|node\.c(?:ilium\.io|luster\.x-k8s)|CriticalAddonsOnly|ToBeDeletedBy|DeletionCandidate|karpenter\.sh/))"
    r"|did not tolerate (?:taint )?[\w./-]+|had untolerated taints?\b(?!(?:\(s\))?:? ?\{)"
)
_GPU_TAINT: Final = any_of(
    message_line(rf"^(?:Taints:)?[ \t]+[\w./-]*{_GPU_WORD}[\w./-]*(?:=[\w.-]*)?:No(?:Schedule|Execute)\s*$"
         rf"|map\[effect:No(?:Schedule|Execute) key:[\w./-]*{_GPU_WORD}"
         # As a list in YAML or JSON; a toleration also has an operator.
         rf"|effect[\W\n]+No(?:Schedule|Execute)[\W\n]+key[\W\n]+[\w./-]*{_GPU_WORD}[\w./-]*\W+value\b",
         "kubernetes-node"),
    message_line(rf"(?i)\btaints?\b.*{_GPU_WORD}.*:No(?:Schedule|Execute)\b")
)  # fmt: skip
_TOLERATES_GPU_TAINT: Final = message_line(
    r"(?:^|\s)(?:nvidia\.com/gpu)?(?::NoSchedule)? op=Exists\s*$|operator: \"?Exists\"?[\s\n]+key: nvidia"
)
# If a toleration names one value, the nodes have a taint, perhaps with another value.
_TOLERATES_ONE_TAINT_VALUE: Final = message_line(
    r"nvidia\.com/gpu=[\w.-]+:No(?:Schedule|Execute)|nvidia\.com/gpu[\s\n]+operator: \"?Equal\"?[\s\n]+value:",
    *("kubernetes", "kubernetes-pod", "text"),
)


# Allocation.


def _nodes_with_all_gpus_used(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield nodes whose healthy GPUs are all assigned."""
    for node in snapshot.view(kubernetes_nodes.kube_nodes):
        for name, offered in node.available.items():
            used, capacity = node.allocated.get(name), node.capacity.get(name, offered)
            if used and used.value >= offered.value > 0 and capacity.value <= offered.value:
                yield from (offered.citation, used.citation)


def _used_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the assigned GPUs of nodes with unknown capacity."""
    for node in snapshot.view(kubernetes_nodes.kube_nodes):
        yield from (amount.citation for amount in node.allocated.values() if amount.value and not node.available)


_HAMI_FINDS_NO_ROOM: Final = message_line(
    r"\bCardInsufficient(?:Memory|Core)\b|\bCard(?:TimeSlicing|ComputeUnits)Exhausted\b"
)


def _gpus_in_use(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the assigned GPUs."""
    for node in snapshot.view(kubernetes_nodes.kube_nodes):
        yield from (amount.citation for amount in node.allocated.values() if amount.value)


def _free_gpus_for_pod(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_HAMI_FINDS_NO_ROOM):
        text = "give each pod a limit of nvidia.com/gpumem: without one, HAMi gives it all memory of its GPUs"
        yield manual_step("configure", text, when="pods shall share a GPU")
    yield manual_step("application", "no action needed: another pod gets a GPU when one of these ends")
    yield run_step(
        "inspect", "list the pods that hold one", command("kubectl", "describe", "node", kubectl_node_name(snapshot))
    )
    yield manual_step("configure", "share GPUs by time-slicing or MPS, or add nodes", when="pods often wait")


# Labels set by GPU feature discovery, by clouds, and by the discovery of PCI devices.

_GPU_LABELS_SEEN: Final = any_line(
    r"(?:nvidia\.com/(?:gpu\.(?:count|product|memory|family|compute|machine|present)|(?:cuda|gfd)\.[\w.]+)"
    r"|cloud\.google\.com/gke-accelerator|k8s\.amazonaws\.com/accelerator|kubernetes\.azure\.com/accelerator)"
    r"[\"']?(?:=|:\s+)[\"']?(?!0\b|false)\w"
)
# Any of these labels brings the device plugin's daemon set to a node; the operator also accepts the PCI labels.
_SCHEDULING_LABELS: Final = (
    r"nvidia\.com/gpu\.present|feature\.node\.kubernetes\.io/(?:pci-10de\.present|cpu-model\.vendor_id)"
)
_LABELLED_FOR_PLUGIN: Final = message_line(
    rf"(?:{_SCHEDULING_LABELS})\W{{1,4}}(?:true|NVIDIA)\b", "kubernetes-node", "kubernetes", "text"
)
_NODE_LABELS_SHOWN: Final = message_line(r"\bkubernetes\.io/(?:os|arch)\b", "kubernetes-node", "kubernetes", "text")
_NO_GPU_LABEL: Final = unless(_NODE_LABELS_SHOWN, any_line(r"nvidia\.com/|accelerator"))
_LABELLED_WITHOUT_GPU: Final = unless(all_of(_GPU_LABELS_SEEN, _NODE_WITHOUT_GPU_CAPACITY), _NODE_OFFERS_GPUS)
_PLUGIN_UNREGISTERED: Final = message_line(
    r"[Cc]ould not register device plugin|Could not contact Kubelet|registration failed"
)
_GPU_DAEMON_SET_ROW: Final = r"^[ \t]*(?:\S+\s+)?\S*(?:device-plugin|nvdp|gpu-feature)\S*"
_IDLE_DAEMON_SET: Final = message_line(rf"{_GPU_DAEMON_SET_ROW}\s+0\s+0\s+0\s+0\s+\d"
                                                r"|^[ \t]*Desired Number of Nodes Scheduled: 0"
                    r"|desiredNumberScheduled\W+0\b")  # fmt: skip
_OPERATOR_FINDS_NO_GPU_NODE: Final = message_line(
    r"No GPU node in the cluster|Number of nodes with GPU label[\"',\s{}]*NodeCount[\"':\s]*0\b"
    r"|Could not get any nodes to match nvidia\.com/gpu\.present|did you run the node feature discovery"
    r"|\bNFDLabelsMissing\b|No NFD labels found"
)


def _label_node(snapshot: Snapshot) -> Iterable[Fix]:
    mark = command(
        "kubectl", "label", "node", kubectl_node_name(snapshot), "nvidia.com/gpu.present=true", "--overwrite"
    )
    yield run_step(
        "configure", "label the node that has the GPU: NVIDIA's daemon sets run only on labelled nodes", mark
    )
    text = "let feature discovery set it: gfd.enabled=true in the plugin's chart, nfd.enabled=true in the operator's"
    yield manual_step("install", text, when="more nodes will be added")
    yield run_step(
        "inspect", "check that the daemon sets now want pods", Shell("kubectl get daemonsets -A | grep -i nvidia")
    )


# Nested nodes.

_NESTED_CLUSTER_CREATED: Final = r"\b(?:minikube\s+start|kind\s+create|k3d\s+cluster\s+create|Creating cluster)\b"
_GPUS_PASSED_INTO_CLUSTER: Final = any_line(r"nvidia-container-devices/all")
_NO_GPU_INSIDE_CLUSTER: Final = any_of(
    message_line(
        r"device-plugin|libnvidia-ml\.so\.1|Insufficient nvidia\.com/gpu|No devices found\. Waiting|No valid resources"
    ),
    *(symptoms.DRIVER_MISSING_IN_CONTAINER, symptoms.PLUGIN_FAILS, _NODE_WITHOUT_GPU_CAPACITY),
)


_PASS_GPUS_INTO_CLUSTER: Final = make_fixed_remedy(
    manual_step(
        "configure",
        ("save the cluster's data: to pass GPUs in, the cluster is recreated, and everything in it is deleted"),
    ),
    run_step(
        "configure",
        "then recreate the cluster with the GPUs passed in; minikube configures the inside",
        Shell("minikube delete"),
        Shell("minikube start --driver=docker --container-runtime=docker --gpus=all"),
        when="minikube created it",
    ),
    run_step(
        "configure",
        "let docker pass GPUs to the node's container, then create the cluster with nvkind (nvkind cluster create)",
        Shell("sudo nvidia-ctk runtime configure --runtime=docker --set-as-default --cdi.enabled"),
        Shell("sudo nvidia-ctk config --set accept-nvidia-visible-devices-as-volume-mounts=true --in-place"),
        Shell("sudo systemctl restart docker"),
        when="kind created it",
    ),
)


_NVIDIA_RESOURCE: Final = r"(?:nvidia\.com/[\w.-]+)"
# Kubernetes' validation prints the field, then the value.
_REQUEST_NOT_INTEGER: Final = message_line(rf"{_NVIDIA_RESOURCE}\]?: Invalid value: [^\n]{{1,80}}: must be an integer")
_REQUEST_DIFFERS_FROM_LIMIT: Final = message_line(rf"must be equal to {_NVIDIA_RESOURCE} limit")
_GPU_LIMIT_REQUIRED_MESSAGE: Final = message_line(
    rf"{_NVIDIA_RESOURCE}\]?: Required value: Limit must be set for non overcommitable resources"
    rf"|limits\[?[^\n]{{0,40}}{_NVIDIA_RESOURCE}\]?: Required value"
)
_VIDEO_LIBRARY_MISSING: Final = unless(
    message_line(
        r"Cannot load lib(?:nvidia-encode|nvcuvid)\.so|lib(?:nvidia-encode"
        r"|nvcuvid)\.so[.\d]*: cannot open shared object"
        r"|(?:dlopen[^\n]{0,40})?lib(?:nvidia-encode|nvcuvid)\.so[^\n]{0,60}(?:fail|not (?:found|injected|mounted))"
    ),
    message_line(r"Cannot load libcuda\.so|libcuda\.so[.\d]*: cannot open"),
)
_NVCC_NOT_FOUND: Final = unless(
    message_line(
        rf"\bnvcc[’'\"]?[:：]? {{0,2}}(?:{COMMAND_NOT_FOUND_WORDS}|not found)|not found: nvcc$"
        r"|Command ['‘]nvcc['’] not found"
        r"|[Nn]o such file or directory: [^\n]{0,80}/nvcc\b|nvcc was not found|Could not find nvcc\b"
        r"|The 'nvcc' command was not found"
    ),
    symptoms.NO_DRIVER, symptoms.NO_MODULE, symptoms.NO_NVML_LIBRARY, symptoms.DRIVER_MISMATCH,
    symptoms.NO_DEVICES,
)  # fmt: skip
# A request near 2^64 is not real: HAMi-core's counter fell below zero (Project-HAMi/HAMi issue 1181).
_HAMI_MEMORY_LIMIT_HIT: Final = message_line(
    r"\[(?:HAMI-core|4pdvGPU) ERROR[^\n]{0,120}\b[Dd]evice (?:\d+ OOM \d{1,18} / \d+|OOM encountered: usage=\d)"
)

_rule = partial(Rule, layer="kubernetes")

# Admission refuses a pod of the GPU stack, or one because of its GPUs.
_GPU_POD_FORBIDDEN: Final = rf"(?i)pods? [\"']?[\w.-]*(?:{_GPU_WORD}|dcgm|hami)[\w.-]*[\"']? is forbidden: "
_FORBIDDEN_BY_POD_SECURITY: Final = message_line(rf"{_GPU_POD_FORBIDDEN}violates PodSecurity")
_FORBIDDEN_BY_QUOTA: Final = message_line(
    rf"{_GPU_POD_FORBIDDEN}(?:exceeded|failed) quota|exceeded quota: [^\n]*{_NVIDIA_RESOURCE}"
)
# GKE demands such a quota outside of kube-system, of any pod.
_PRIORITY_WITHOUT_QUOTA: Final = message_line(
    r"insufficient quota to match these scopes: [^\n]*system-(?:node|cluster)-critical"
)


def _lift_refusal(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_FORBIDDEN_BY_POD_SECURITY):
        levels = Shell("kubectl get namespaces -L pod-security.kubernetes.io/enforce")
        yield run_step("inspect", "see which Pod Security level each namespace enforces", levels)
        yield manual_step(
            "configure", "have the level of the pod's namespace set to privileged: the pod mounts the node's folders"
        )
    else:
        yield run_step("inspect", "see each namespace's quota, and its use", Shell("kubectl get resourcequota -A"))
        text = "have a quota for that priority class made in the namespace, or the quota that is named raised"
        yield manual_step("configure", text)


# The API server's admission; source: plugin/pkg/admission/runtimeclass/admission.go of Kubernetes.
_RUNTIME_CLASS_REJECTED: Final = message_line(r"pod rejected: RuntimeClass \\?[\"']nvidia\\?[\"'] not found")


_CREATE_RUNTIME_CLASS: Final = make_fixed_remedy(
    run_step("inspect", "see which RuntimeClasses the cluster has", Shell("kubectl get runtimeclass")),
    run_step("configure", "create it, for the handler nvidia of the nodes' container runtime", MAKE_RUNTIME_CLASS),
    run_step(
        "configure",
        "on the GPU node, register that handler (with CRI-O: --runtime=crio)",
        Shell("sudo gpunode ctk runtime configure --runtime=containerd --restart"),
        when='the pod then fails with: no runtime for "nvidia" is configured',
    ),
    manual_step(
        "application",
        "or leave runtimeClassName out of the pod",
        when="nvidia is the default runtime of the nodes, or they give GPUs as CDI devices",
    ),
)


_HELM_TEMPLATE_OPTION: Final = message_line(r"unknown (?:shorthand )?flag: --include-crds\b")


def _spell_option(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_HELM_TEMPLATE_OPTION):
        text = "leave --include-crds away: only helm template has it, and helm install installs the chart's CRDs anyway"
        yield manual_step("application", text)
    else:
        yield run_step("application", "for docker write --gpus", Shell("docker run --rm --gpus all ubuntu nvidia-smi"))


RULES: Final = (
    _rule(
        cause="gpus-all-allocated",
        severity="info",
        decisive=custom_sign(_nodes_with_all_gpus_used),
        typical=any_of(custom_sign(_used_gpus), all_of(_HAMI_FINDS_NO_ROOM, custom_sign(_gpus_in_use))),
        symptoms=(symptoms.POD_PENDING, symptoms.NOT_ENOUGH_GPUS),
        look_at=(Shell("kubectl describe nodes | grep -A10 'Allocated resources'"),),
        share=4,
        remedy=_free_gpus_for_pod,
    ),
    _rule(
        cause="pod-missing-gpu-toleration",
        decisive=message_line(rf"(?i)(?:untolerated taint[^\n{{]{{0,6}}|had taints? )\{{[^}}\n]*{_GPU_WORD}"),
        typical=any_of(
            _TAINT_NOT_TOLERATED,
            unless(_GPU_TAINT, _NODE_OFFERS_GPUS, _TOLERATES_GPU_TAINT),
            unless(
                all_of(_GPU_TAINT, message_line(r"^Status:\s+Pending|had taints that the pod didn't tolerate")),
                _TOLERATES_GPU_TAINT,
            ),
        ),
        symptoms=(symptoms.POD_PENDING,),
        context=any_of(_GPU_TAINT, command_run(r"\btaints?\b"), _TOLERATES_ONE_TAINT_VALUE),
        look_at=(Shell("kubectl describe nodes | grep Taints"),),
        remedy=make_fixed_remedy(
            manual_step("configure", "give the pod a toleration for the taint: its key, operator Exists, its effect"),
            run_step(
                "inspect",
                "list the node's taints",
                Shell("kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints"),
            ),
        ),
        explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
    ),
    _rule(
        cause="runtime-class-not-found",
        decisive=_RUNTIME_CLASS_REJECTED,
        look_at=(Shell("kubectl get runtimeclass"),),
        remedy=_CREATE_RUNTIME_CLASS,
        explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
    ),
    _rule(
        cause="pod-forbidden-by-policy",
        decisive=any_of(_FORBIDDEN_BY_POD_SECURITY, _FORBIDDEN_BY_QUOTA),
        typical=_PRIORITY_WITHOUT_QUOTA,
        look_at=(Shell("kubectl get events -A --field-selector reason=FailedCreate"),),
        remedy=_lift_refusal,
        explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
    ),
    _rule(
        cause="gpu-labels-without-capacity",
        disruption="restart-container",
        typical=any_of(
            _LABELLED_WITHOUT_GPU, _PLUGIN_UNREGISTERED, unless(_GPU_LABELS_SEEN, _IDLE_DAEMON_SET, _NODE_OFFERS_GPUS)
        ),
        context=any_of(_GPU_LABELS_SEEN, _NODE_WITHOUT_GPU_CAPACITY),
        symptoms=(symptoms.POD_PENDING, symptoms.NOT_ENOUGH_GPUS, symptoms.NO_GPUS_OFFERED),
        look_at=(
            Shell("kubectl describe nodes | grep -E 'nvidia.com/gpu'"),
            Shell("kubectl get pods -A | grep -i nvidia"),
        ),
        remedy=make_fixed_remedy(
            run_step(
                "inspect",
                "check whether a device plugin runs on the node, and what prevents it",
                Shell("kubectl get daemonsets -A | grep -i nvidia"),
                Shell("kubectl get pods -A -o wide | grep -i device-pl"),
            ),
            show_plugin_logs("read the device plugin's log"),
            restart_plugin("restart the device plugin: it registers with the kubelet as it starts"),
        ),
    ),
    _rule(
        cause="gpu-node-not-labelled",
        decisive=all_of(_IDLE_DAEMON_SET, _NODE_LABELS_SHOWN),
        typical=any_of(
            _OPERATOR_FINDS_NO_GPU_NODE,
            unless(_IDLE_DAEMON_SET, _TOLERATES_ONE_TAINT_VALUE),
            all_of(command_run(r"--show-labels|metadata\.labels"), _NO_GPU_LABEL),
        ),
        symptoms=(_IDLE_DAEMON_SET, _OPERATOR_FINDS_NO_GPU_NODE, symptoms.POD_PENDING, symptoms.NO_GPUS_OFFERED),
        context=_NO_GPU_LABEL,
        against=(
            symptoms.NO_GPU_ON_BUS,
            _GPU_TAINT,
            message_line(rf"{_GPU_DAEMON_SET_ROW}\s+[1-9]\d*\s+\d+\s+\d+\s+\d+\s+\d"),
            _LABELLED_FOR_PLUGIN,
        ),
        look_at=(Shell("kubectl get nodes --show-labels | grep -o 'nvidia.com[^,]*'"),),
        remedy=_label_node,
        explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
    ),
    _rule(
        cause="nested-node-config-not-applied",
        disruption="restart-container",
        decisive=all_of(in_container.NODE_IN_CONTAINER, _NO_GPU_INSIDE_CLUSTER),
        typical=unless(
            all_of(
                in_container.NODE_IN_CONTAINER,
                any_of(command_run(_NESTED_CLUSTER_CREATED), message_line(_NESTED_CLUSTER_CREATED)),
            ),
            _GPUS_PASSED_INTO_CLUSTER,
        ),
        against=(_NODE_OFFERS_GPUS, symptoms.CONTAINER_WORKS),
        context=unless(in_container.NODE_IN_CONTAINER, _GPUS_PASSED_INTO_CLUSTER),
        symptoms=(
            symptoms.POD_PENDING,
            symptoms.NO_GPUS_OFFERED,
            symptoms.PLUGIN_FAILS,
            symptoms.DRIVER_MISSING_IN_CONTAINER,
            symptoms.NO_NVML_LIBRARY,
        ),
        may_be_normal=True,
        look_at=(Shell("docker ps"), Shell("docker info | grep -i 'default runtime'")),
        remedy=_PASS_GPUS_INTO_CLUSTER,
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
    _rule(
        cause="gpu-share-request-above-one",
        decisive=message_line(
            rf"request for '?{_NVIDIA_RESOURCE}: \d+'? too large: maximum request size for shared resources is 1"
        ),
        look_at=(Shell("kubectl describe nodes | grep -E 'nvidia.com/gpu'"),),
        remedy=make_fixed_remedy(
            manual_step(
                "application", "ask for nvidia.com/gpu: 1 in the pod, delete the refused one and create it again"
            ),
            manual_step("configure", "or take nodes whose GPUs are not shared", when="it needs several whole GPUs"),
        ),
        explains=frozenset(
            {
                *("kubelet-stale-device-allocation", "device-plugin-not-ready-after-reboot"),
                "kubelet-restart-admission-bug",
            }
        ),
    ),
    _rule(
        cause="gpu-amount-invalid",
        decisive=any_of(_REQUEST_NOT_INTEGER, _REQUEST_DIFFERS_FROM_LIMIT, _GPU_LIMIT_REQUIRED_MESSAGE),
        remedy=make_fixed_remedy(
            manual_step("application", "write only resources.limits, with a whole number: nvidia.com/gpu: 1"),
            manual_step("configure", "share the GPUs by time-slicing, MPS or MIG", when="a pod needs less than one"),
        ),
    ),
    Rule(
        cause="option-misspelt",
        layer="toolkit",
        decisive=any_of(
            message_line(
                r"unknown flag: --gpu$|unknown (?:shorthand )?flag: --(?:gpu-?id|gpu-devices)\b"
                r"|unrecognized arguments?: --gpu$"
            ),
            _HELM_TEMPLATE_OPTION,
        ),
        remedy=_spell_option,
    ),
    Rule(
        cause="video-libraries-missing",
        layer="toolkit",
        disruption="restart-container",
        typical=_VIDEO_LIBRARY_MISSING,
        symptoms=(
            _VIDEO_LIBRARY_MISSING,
            message_line(r"(?i)encoder[^\n]{0,30}fail[^\n]{0,40}\b(?:h264|hevc|av1)_nvenc\b"),
        ),
        look_at=(Shell("ldconfig -p | grep -E 'libnvidia-encode|libnvcuvid'"),),
        remedy=make_fixed_remedy(
            run_step(
                "inspect", "see whether the node has them", Shell("ldconfig -p | grep -E 'libnvidia-encode|libnvcuvid'")
            ),
            manual_step(
                "application",
                "start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,video,utility",
                when="the node has them",
            ),
            manual_step("install", 'set [driver] scope = "media" in the recipe and set up again', when="it lacks them"),
        ),
        explains=frozenset({"driver-too-old-for-image"}),
    ),
    Rule(
        cause="cuda-toolkit-not-in-path",
        layer="programs",
        severity="warning",
        typical=_NVCC_NOT_FOUND,
        symptoms=(_NVCC_NOT_FOUND,),
        look_at=(Shell("ls -d /usr/local/cuda*/bin/nvcc"),),
        remedy=make_fixed_remedy(
            run_step("inspect", "see whether a toolkit is there", Shell("ls -d /usr/local/cuda*/bin/nvcc")),
            run_step(
                "configure",
                "put its folder into PATH",
                Shell("export PATH=/usr/local/cuda/bin:$PATH"),
                when="it is there",
            ),
            manual_step(
                "install",
                "or let setup install the newest that the driver runs: --cuda-toolkit auto",
                when="programs are compiled here",
            ),
        ),
    ),
    _rule(
        cause="hami-memory-limit",
        layer="programs",
        disruption="restart-container",
        decisive=_HAMI_MEMORY_LIMIT_HIT,
        look_at=(Shell("kubectl get pods -A -o yaml | grep -E 'gpumem|gpucores'"),),
        remedy=make_fixed_remedy(
            manual_step("application", "raise nvidia.com/gpumem in the pod's limits, or let the program use less")
        ),
        explains=frozenset({"gpu-memory-taken"}),
    ),
)
