"""Test pods that try a node's GPUs. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from gpunode.kubernetes.model import MANAGED_BY, ClusterNode, RenderedObject
from gpunode.kubernetes.node_checks import read_resource
from gpunode.kubernetes.sharing import SharingConfig

Body: TypeAlias = Mapping[str, Any]
# What a pod shows beside a correct sum: a MIG instance, HAMi's memory limit, or a GPU shared with another pod.
Purpose: TypeAlias = Literal["", "mig", "memory", "shared"]

# The label by which the pods of a run are found.
RUN_LABEL: Final = "gpunode-test"
_VECTOR_ADD_PROGRAM: Final = "/cuda-samples/vectorAdd"
# The image of the CUDA samples has a shell and this program; NVIDIA's runtime brings nvidia-smi.
_SCRIPTS: Final[Mapping[Purpose, str]] = {
    "mig": f"nvidia-smi -L; {_VECTOR_ADD_PROGRAM}",
    "memory": f"nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; {_VECTOR_ADD_PROGRAM}",
    # An addition takes less than a second: the pods keep their GPUs a while, so that they have them at the same time.
    "shared": f"nvidia-smi -L; {_VECTOR_ADD_PROGRAM} && sleep 10",
}
CORDON_TOLERATION: Final = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
_HOST_NAME_LABEL: Final = "kubernetes.io/hostname"
MEMORY_RESOURCE: Final = "nvidia.com/gpumem"
# Time to read the pods after their limit; then what is left of a check is deleted.
_READ_TIME_S: Final = 30
# Allowed difference between this machine's clock and the API server's.
_CLOCK_SKEW_S: Final = 60


@dataclass(frozen=True, slots=True)
class GpuTestPod:
    """A pod that tries a GPU of a node.

    Attributes:
        resource: the resource that it requests; empty for a claim.
        bodies: the objects to create, the pod last.
    """

    node: str
    resource: str
    bodies: tuple[Body, ...]
    purpose: Purpose = ""

    @property
    def pod(self) -> Body:
        """The pod as it is created."""
        return self.bodies[-1]

    @property
    def name(self) -> str:
        """The name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace of the pod."""
        return str(self.pod["metadata"]["namespace"])


def make_test_pods(
    node: ClusterNode,
    live: Body,
    test_pod: Sequence[RenderedObject],
    config: SharingConfig,
    expected: Mapping[str, int] | None,
    *,
    run: str,
    new_name: Callable[[], str],
    image: str,
    timeout_s: int,
) -> Iterator[GpuTestPod]:
    """Yield the pods that try the node: one for each resource, and with sharing one more than it has GPUs.

    Args:
        node: what is known of the machine.
        live: the Node.
        test_pod: the recipe's test pod for this node, and what it needs.
        config: how the node offers its GPUs.
        expected: the count of each resource that the node should offer; None if the recipe does not tell.
        run: the id of this run, by which its pods are found.
        new_name: returns a unique name for each pod.
        image: in place of the recipe's; empty for the recipe's.
        timeout_s: when the kubelet ends them if nobody deletes them.
    """
    limits = resource_limits(test_pod[-1].body)
    own_resource = next((name for name in limits if name != MEMORY_RESOURCE), "")
    for resource in expected or (own_resource,):
        purpose = _choose_purpose(limits, config)
        copies = _count_copies(live, resource, config, expected or {}) if purpose == "shared" else 1
        for name in (new_name() for _ in range(copies)):
            options = _PodOptions(name, run, live, image, timeout_s)
            others = [_make_body(one.body, options) for one in test_pod[:-1]]
            pod = _make_pod(test_pod[-1].body, options, {own_resource: resource}, purpose)
            yield GpuTestPod(node.name, resource, (*others, pod), purpose)


def deadline_job(first: GpuTestPod, timeout_s: int) -> Body:
    """Return a Job without pods that owns what a check creates: if gpunode is killed, the cluster deletes both.

    A pod's own limit counts from its start, so one that is never scheduled has none. A Job's counts from its creation
    (Kubernetes documentation, "Jobs", activeDeadlineSeconds); then the cluster deletes it with all that it owns.
    """
    name, labels = first.pod["metadata"]["name"], first.pod["metadata"]["labels"]
    container = {"name": "none", "image": first.pod["spec"]["containers"][0]["image"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": first.namespace, "labels": labels},
        "spec": {
            "parallelism": 0,
            "activeDeadlineSeconds": timeout_s + _READ_TIME_S,
            "ttlSecondsAfterFinished": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def with_owner(job: Body, bodies: Sequence[Body]) -> list[Body]:
    """Return the objects as owned by the live ``job``."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"]}
    owner |= {name: job["metadata"][name] for name in ("name", "uid")}
    return [{**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}} for one in bodies]


def is_left_over(body: Body, now: float) -> bool:
    """Return whether a killed run left the pod or Job: it belongs to a check and is past its limit.

    Args:
        body: the object as it is.
        now: the time, in seconds since 1970.
    """
    labels = body["metadata"].get("labels", {})
    limit = body.get("spec", {}).get("activeDeadlineSeconds")
    if RUN_LABEL not in labels or not labels.items() >= MANAGED_BY.items() or not isinstance(limit, int):
        return False
    created = datetime.fromisoformat(body["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp()
    return created + limit + _READ_TIME_S + _CLOCK_SKEW_S < now


@dataclass(frozen=True, slots=True)
class _PodOptions:
    """The name and run of a test pod, and the options of ``make_test_pods``."""

    name: str
    run: str
    node: Body
    image: str
    timeout_s: int


def resource_limits(pod: Body) -> Mapping[str, Any]:
    """Return the resource limits of the pod's container."""
    found: Mapping[str, Any] = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return found


def _choose_purpose(limits: Mapping[str, Any], config: SharingConfig) -> Purpose:
    if MEMORY_RESOURCE in limits:
        return "memory"
    if config.mode != "none":
        return "shared"
    return "mig" if config.strategy != "none" else ""


def _count_copies(live: Body, resource: str, config: SharingConfig, expected: Mapping[str, int]) -> int:
    """Return one more than there are GPUs, or instances, if the node offers so many."""
    copies = expected.get(resource, 0) // config.replicas + 1
    return copies if read_resource(live, resource)[1] >= copies > 1 else 1


def _make_body(body: Body, options: _PodOptions) -> dict[str, Any]:
    """Return the object under its own name, with the label of its run."""
    made: dict[str, Any] = copy.deepcopy(dict(body))
    metadata = made["metadata"]
    metadata |= {"name": options.name, "labels": {**metadata.get("labels", {}), RUN_LABEL: options.run}}
    return made


def _make_pod(body: Body, options: _PodOptions, resources: Mapping[str, str], purpose: Purpose) -> dict[str, Any]:
    """Return the pod for its node alone, with its ``resources`` in place of the recipe's."""
    made = _make_body(body, options)
    spec, container = made["spec"], made["spec"]["containers"][0]
    node = options.node["metadata"]
    spec["nodeSelector"] = {_HOST_NAME_LABEL: node.get("labels", {}).get(_HOST_NAME_LABEL, node["name"])}
    # A node may be tried before it is uncordoned.
    spec["tolerations"] = [*spec.get("tolerations", ()), CORDON_TOLERATION]
    # It is deleted once it was read; see deadline_job.
    spec |= {"activeDeadlineSeconds": options.timeout_s, "terminationGracePeriodSeconds": 1}
    spec["automountServiceAccountToken"] = False
    for claim in spec.get("resourceClaims", ()):
        claim["resourceClaimTemplateName"] = options.name
    container["imagePullPolicy"] = "IfNotPresent"
    container["image"] = options.image or container["image"]
    if limits := resource_limits(made):
        container["resources"]["limits"] = {resources.get(name, name): count for name, count in limits.items()}
    if purpose:
        container["command"] = ["sh", "-c", _SCRIPTS[purpose]]
    return made


def is_over(pod: Body) -> bool:
    """Return whether the pod has ended, in success or failure."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_unscheduled(pod: Body) -> bool:
    """Return whether the scheduler finds no node for the pod."""
    return any(
        one.get("type") == "PodScheduled" and one.get("status") == "False"
        for one in pod.get("status", {}).get("conditions", ())
    )


def find_users(pods: Sequence[Body], node: Body, resource: str) -> tuple[str, ...]:
    """Return the ``namespace/name`` of the pods that use up the node's resource; empty if some of it is free.

    Args:
        pods: those of the node.
        node: the Node.
        resource: which one.
    """
    allocated = {_pod_title(pod): _count_allocated(pod, resource) for pod in pods if not is_over(pod)}
    if sum(allocated.values()) < read_resource(node, resource)[1]:
        return ()
    own_pods = {_pod_title(pod) for pod in pods if RUN_LABEL in pod["metadata"].get("labels", {})}
    return tuple(name for name, many in allocated.items() if many and name not in own_pods)


def _pod_title(pod: Body) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


def _count_allocated(pod: Body, resource: str) -> int:
    counts = (one.get("resources", {}).get("limits", {}).get(resource, 0) for one in pod["spec"]["containers"])
    return sum(int(one) for one in counts if str(one).isdigit())
