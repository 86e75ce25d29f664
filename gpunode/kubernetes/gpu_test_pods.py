"""Test pods that try a node's GPUs, and the checks of their output. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import combinations
from typing import Any, Final, Literal, TypeAlias

from gpunode.check import Check
from gpunode.command import Command, command
from gpunode.fast_dataclass import dataclass
from gpunode.kubernetes.live_checks import read_resource, setup_command
from gpunode.kubernetes.model import Body, ClusterNode, RenderedObject
from gpunode.kubernetes.pods import NO_REGISTRY_HINT, PodProblem, find_problem, find_untolerated_taint, tolerates
from gpunode.kubernetes.sharing import SharingConfig
from gpunode.wording import join_names

# What a pod tests besides a correct sum: a MIG instance, HAMi's memory limit, or a GPU shared with another pod.
TestPodPurpose: TypeAlias = Literal["", "mig", "memory", "shared"]

# The label by which the pods of a run are found.
RUN_LABEL: Final = "gpunode-test"
_VECTOR_ADD_PROGRAM: Final = "/cuda-samples/vectorAdd"
# The image of the CUDA samples has a shell and this program; NVIDIA's runtime adds nvidia-smi.
_SCRIPT_BY_PURPOSE: Final[Mapping[TestPodPurpose, str]] = {
    "mig": f"nvidia-smi -L; {_VECTOR_ADD_PROGRAM}",
    "memory": f"nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; {_VECTOR_ADD_PROGRAM}",
    # An addition takes less than a second; the sleep makes the pods hold their GPUs at the same time.
    "shared": f"nvidia-smi -L; {_VECTOR_ADD_PROGRAM} && sleep 10",
}
CORDON_TOLERATION: Final = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
_HOST_NAME_LABEL: Final = "kubernetes.io/hostname"
MEMORY_RESOURCE: Final = "nvidia.com/gpumem"
# Time to read the pods after their limit; after that the cluster deletes them.
_LOG_READING_TIME_S: Final = 30


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
    purpose: TestPodPurpose = ""

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

    @property
    def run(self) -> str:
        """The run that it belongs to."""
        return str(self.pod["metadata"]["labels"][RUN_LABEL])


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

    They are copies of the recipe's ``test_pod`` and the objects it needs, with unique names from ``new_name`` and the
    id of this ``run``, by which they are found. ``expected`` is None if the recipe does not determine the resource
    counts; an empty ``image`` means the recipe's. After ``timeout_s`` the kubelet ends them if nobody deletes them.
    """
    limits = resource_limits(test_pod[-1].body)
    own_resource = next((name for name in limits if name != MEMORY_RESOURCE), "")
    purpose: TestPodPurpose = "" if config.strategy == "none" else "mig"
    if MEMORY_RESOURCE in limits or config.mode != "none":
        purpose = "memory" if MEMORY_RESOURCE in limits else "shared"
    for resource in expected or (own_resource,):
        # One more than there are GPUs, or instances, if the node offers that many.
        copies = (expected or {}).get(resource, 0) // config.replicas + 1 if purpose == "shared" else 1
        for name in (new_name() for _ in range(copies if read_resource(live, resource)[1] >= copies else 1)):
            *others, pod = (_make_body(rendered.body, name, run) for rendered in test_pod)
            _adapt_pod_spec(pod, live, {own_resource: resource}, purpose, image, timeout_s)
            yield GpuTestPod(node.name, resource, (*others, pod), purpose)


def make_deadline_job(first: GpuTestPod, timeout_s: int) -> Body:
    """Return a Job without pods that owns what a check creates: if gpunode is killed, the cluster deletes both.

    A pod's own limit counts from its start, so a pod that is never scheduled has none. A Job's limit counts from its
    creation (Kubernetes documentation, "Jobs", activeDeadlineSeconds); then the cluster deletes it with all it owns.
    """
    name, labels = first.pod["metadata"]["name"], first.pod["metadata"]["labels"]
    container = {"name": "none", "image": first.pod["spec"]["containers"][0]["image"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": first.namespace, "labels": labels},
        "spec": {
            "parallelism": 0,
            "activeDeadlineSeconds": timeout_s + _LOG_READING_TIME_S,
            "ttlSecondsAfterFinished": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def own_by_job(job: Body, bodies: Sequence[Body]) -> list[Body]:
    """Return the objects as owned by the live ``job``."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"]}
    owner |= {name: job["metadata"][name] for name in ("name", "uid")}
    return [{**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}} for body in bodies]


def resource_limits(pod: Body) -> Mapping[str, Any]:
    """Return the resource limits of the pod's container."""
    limits: Mapping[str, Any] = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return limits


def _make_body(body: Body, name: str, run: str) -> dict[str, Any]:
    """Return the object under its own name, with the label of its run."""
    made: dict[str, Any] = copy.deepcopy(dict(body))
    metadata = made["metadata"]
    metadata |= {"name": name, "labels": {**metadata.get("labels", {}), RUN_LABEL: run}}
    return made


def _adapt_pod_spec(
    pod: dict[str, Any],
    live: Body,
    resources: Mapping[str, str],
    purpose: TestPodPurpose,
    image: str,
    timeout_s: int,
) -> None:
    """Restrict the pod to its node, with its ``resources`` in place of the recipe's."""
    spec, container, node = pod["spec"], pod["spec"]["containers"][0], live["metadata"]
    spec["nodeSelector"] = {_HOST_NAME_LABEL: node.get("labels", {}).get(_HOST_NAME_LABEL, node["name"])}
    # A node may be tried before it is uncordoned.
    spec["tolerations"] = [*spec.get("tolerations", ()), CORDON_TOLERATION]
    # The pod is deleted once it has been read; see make_deadline_job.
    spec |= {"activeDeadlineSeconds": timeout_s, "terminationGracePeriodSeconds": 1}
    spec["automountServiceAccountToken"] = False
    for claim in spec.get("resourceClaims", ()):
        claim["resourceClaimTemplateName"] = pod["metadata"]["name"]
    container["imagePullPolicy"] = "IfNotPresent"
    container["image"] = image or container["image"]
    if limits := resource_limits(pod):
        container["resources"]["limits"] = {resources.get(name, name): count for name, count in limits.items()}
    if purpose:
        container["command"] = ["sh", "-c", _SCRIPT_BY_PURPOSE[purpose]]


def has_pod_ended(pod: Body) -> bool:
    """Return whether the pod has ended, in success or failure."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_unscheduled(pod: Body) -> bool:
    """Return whether the scheduler finds no node for the pod."""
    return any(
        one.get("type") == "PodScheduled" and one.get("status") == "False"
        for one in pod.get("status", {}).get("conditions", ())
    )


def find_resource_users(pods: Sequence[Body], node: Body, resource: str) -> tuple[str, ...]:
    """Return the ``namespace/name`` of the node's ``pods`` that use up its resource; empty if some of it is free."""

    def count_allocated(pod: Body) -> int:
        counts = (one.get("resources", {}).get("limits", {}).get(resource, 0) for one in pod["spec"]["containers"])
        return sum(int(count) for count in counts if str(count).isdigit())

    allocated = {_pod_title(pod): count_allocated(pod) for pod in pods if not has_pod_ended(pod)}
    if sum(allocated.values()) < read_resource(node, resource)[1]:
        return ()
    own_pods = {_pod_title(pod) for pod in pods if RUN_LABEL in pod["metadata"].get("labels", {})}
    return tuple(name for name, many in allocated.items() if many and name not in own_pods)


def _pod_title(pod: Body) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


PASSED_TEXT: Final = "Test PASSED"
_CREATION_FORBIDDEN: Final = re.compile(r'cannot create resource "(\w+)"|can only create mirror (pods)')
# CUDA's messages in a container without libcuda, and in one with it that sees no GPU.
_DRIVER_NOT_FOUND_IN_LOG: Final = re.compile(r"CUDA driver version is insufficient|no CUDA-capable device is detected")
_LISTED_UUID: Final = re.compile(r"\(UUID: ((?:GPU|MIG)-[0-9a-f-]+)\)")


@dataclass(frozen=True, slots=True)
class GpuTestPodResult:
    """The result of a test pod.

    Attributes:
        pod: its last state; empty if it was not created.
        seconds: from its creation to its end, or to the end of the wait.
        error: the API server's message if it was not created.
        log: what it printed; None if that cannot be read.
        diagnosis: doctor's finding for its log, as a sentence.
        users: the pods that use up the resource on its node, if the pod waits for it.
    """

    test_pod: GpuTestPod
    pod: Body
    seconds: float
    error: str = ""
    log: str | None = ""
    events: Sequence[Body] = ()
    diagnosis: str = ""
    users: Sequence[str] = ()


def check_test_pod(result: GpuTestPodResult, node: Body, apply: Command) -> Check:
    """Return the check of the Node from its test pod's result; ``apply`` is the command that applies the recipe."""
    trial = result.test_pod
    id = f"pod/{trial.node}/{trial.name}"  # noqa: A001
    title = f"pod {trial.name}"
    on = f"on {trial.node} with {_describe_needs(trial, node)}"
    if not result.pod:
        if match := _CREATION_FORBIDDEN.search(result.error):
            what = f"{match[1] or match[2]} in {trial.namespace}"
            return Check(id, title, "skipped", f"{on}: your credentials may not create {what}")
        why, hint = _explain_creation_error(result.error, apply)
        return Check(id, title, "failed", f"{on}: {why}", hint)
    if result.pod.get("status", {}).get("phase") == "Succeeded":
        return _check_succeeded_pod(result, id, title, on)
    untolerated = find_untolerated_taint(result.pod, node) if is_unscheduled(result.pod) else None
    if result.users and not untolerated:
        users = join_names(result.users, 3)
        return Check(id, title, "skipped", f"{on}: every {trial.resource} is in use, by {users}")
    problem = (
        untolerated
        or _missing_driver_problem(result, node)
        or find_problem(result.pod, result.events)
        or _timeout_problem(result)
    )
    why = f"{on}: {problem.why}"
    if result.diagnosis:
        why += f"; {result.diagnosis}"
    elif result.log and (last := _last_line(result.log)):
        why += f"; its last line: {last}"
    other_image = ", or an image that it has with --image" if problem.hint == NO_REGISTRY_HINT else ""
    return Check(id, title, "failed", why, f"{problem.hint}{other_image}")


def _describe_needs(test_pod: GpuTestPod, node: Body) -> str:
    """Return the lines that gave the pod its GPU, as the user's own pod needs them."""
    spec = test_pod.pod["spec"]
    taints = [one for one in node.get("spec", {}).get("taints") or () if one["effect"] != "PreferNoSchedule"]
    own = [one for one in spec["tolerations"] if one != CORDON_TOLERATION]
    tolerated = [str(taint["key"]) for taint in taints if any(tolerates(one, taint) for one in own)]
    words = [*resource_limits(test_pod.pod)] or ["a claim"]
    words += [f"runtimeClassName: {spec['runtimeClassName']}"] if "runtimeClassName" in spec else []
    words += [f"a toleration of {key}" for key in dict.fromkeys(tolerated)]
    return ", ".join(words) if len(words) > 1 else f"{words[0]} alone"


def _missing_driver_problem(result: GpuTestPodResult, live: Body) -> PodProblem | None:
    """Return the problem of a pod without RuntimeClass that found no driver in its container, or None."""
    if "runtimeClassName" in result.test_pod.pod["spec"] or not _DRIVER_NOT_FOUND_IN_LOG.search(result.log or ""):
        return None
    node = result.test_pod.node
    why = "neither CDI nor the default runtime gave its container the driver"
    hint = f"on {node}: {setup_command(live)}\nthen take a new capture of {node} and apply with it"
    return PodProblem(why, hint)


def _explain_creation_error(error: str, apply: Command) -> tuple[str, str]:
    message = " ".join(error.split())
    if "namespaces" in message and "not found" in message:
        return "its namespace does not exist", str(apply)
    if match := re.search(r'RuntimeClass "([^"]+)" not found', message):
        return f"there is no RuntimeClass {match[1]}", str(apply)
    if "violates PodSecurity" in message:
        return f"the namespace rejects it: {message}", str(apply)
    return f"it was not created: {message}", "see what limits the namespace: kubectl get resourcequota --all-namespaces"


def _timeout_problem(result: GpuTestPodResult) -> PodProblem:
    """Return a timeout as the problem, for a pod whose state shows no reason."""
    trial, phase = result.test_pod, result.pod.get("status", {}).get("phase", "Pending")
    delay = {"Pending": "it did not start", "Running": "it did not end"}.get(phase, f"its phase is {phase},")
    describe = command("kubectl", "describe", "pod", "--namespace", trial.namespace, trial.name)
    hint = f"try it with a longer --timeout, and look at it: {describe}"
    return PodProblem(f"{delay} within {result.seconds:.0f} s", hint)


def _check_succeeded_pod(result: GpuTestPodResult, id: str, title: str, on: str) -> Check:  # noqa: A002
    if result.log is None:
        return Check(id, title, "skipped", f"{on}: it succeeded, but its log cannot be read: {result.error}")
    if PASSED_TEXT not in result.log:
        last = _last_line(result.log)
        why = f"{on}: it succeeded, but its log does not contain {PASSED_TEXT}" + (
            f"; its last line: {last}" if last else ""
        )
        return Check(id, title, "failed", why, "with --image, name an image of NVIDIA's vectoradd sample")
    if result.test_pod.purpose in {"mig", "memory"}:
        is_right, why, hint = _check_mig_instance(result) if result.test_pod.purpose == "mig" else _check_memory(result)
        if not is_right:
            return Check(id, title, "failed", f"{on}: {why}", hint)
        return Check(id, title, "passed", f"{on}: {PASSED_TEXT}, {why}, {result.seconds:.1f} s; deleted")
    return Check(id, title, "passed", f"{on}: {PASSED_TEXT}, {result.seconds:.1f} s; deleted")


def _last_line(log: str) -> str:
    lines = [text for text in log.splitlines() if text.strip()]
    return lines[-1].strip() if lines else ""


def _check_mig_instance(result: GpuTestPodResult) -> tuple[bool, str, str]:
    """Return whether the pod saw the MIG instance that it requested, with reason and hint."""
    match = re.search(r"MIG (\d+g\.\d+gb\S*)", result.log or "")
    profile = result.test_pod.resource.partition("nvidia.com/mig-")[2].removesuffix(".shared")
    if match is None:
        return False, "it saw no MIG instance (nvidia-smi -L)", "look at the GPUs' MIG mode on the node: nvidia-smi -L"
    name = match[1].replace("+", ".")
    if profile and name != profile:
        return False, f"it asked for {profile} and saw {name}", "look at the device plugin's log"
    return True, f"it saw the MIG instance {name}", ""


def _check_memory(result: GpuTestPodResult) -> tuple[bool, str, str]:
    """Return whether the pod saw no more memory than it requested, with reason and hint."""
    requested = int(resource_limits(result.test_pod.pod)[MEMORY_RESOURCE])
    memory_mib = next((int(text) for text in (result.log or "").splitlines() if text.strip().isdigit()), None)
    if memory_mib is None:
        return False, "it could not read how much memory it has (nvidia-smi)", "look at HAMi's device plugin"
    if memory_mib > requested:
        hint = "HAMi's limit is not enforced: look at its webhook and scheduler, kubectl get pods -n kube-system"
        return False, f"it asked for {requested} MiB of memory and saw {memory_mib} MiB", hint
    return True, f"it saw {memory_mib} MiB of memory, asked for {requested}", ""


def confirm_handler_by_test_pod(handler: Check, nodes: Collection[str]) -> Check:
    """Return the check of a node's handler; passed if the handlers are not listed but a test pod ran through it.

    A running device plugin proves nothing: it does not notice what was removed since it started.
    """
    if handler.status != "skipped" or handler.id.partition("/")[2] not in nodes:
        return handler
    return replace(handler, status="passed", detail="the test pod ran through it")


def check_sharing(node: str, results: Sequence[GpuTestPodResult]) -> Check:
    """Check whether two pods had one GPU at the same time; it does not check their isolation."""
    id, title = f"sharing/{node}", f"two pods on one GPU of {node}"  # noqa: A001
    if len(results) < 2:
        return Check(id, title, "skipped", "the node offers too few to start more pods than it has GPUs")
    if any(result.pod.get("status", {}).get("phase") != "Succeeded" for result in results):
        return Check(id, title, "skipped", f"not all of the {len(results)} pods succeeded")
    runs = [run for result in results for run in _gpu_times(result)]
    overlaps = (
        # A lower bound: the times are whole seconds.
        (min(end, other_end) - max(begin, other_begin) - 1, uuid, first, second)
        for (uuid, begin, end, first), (other_uuid, other_begin, other_end, second) in combinations(runs, 2)
        if uuid == other_uuid
    )
    overlap, uuid, first, second = max(overlaps, default=(0.0, "", "", ""))
    if overlap <= 0:
        why = f"{len(results)} pods ran, but not two at the same time on one GPU, or nvidia-smi did not show which"
        return Check(id, title, "skipped", why)
    return Check(id, title, "passed", f"{first} and {second} had {uuid} for {overlap:.0f} s at the same time")


def _gpu_times(result: GpuTestPodResult) -> Iterator[tuple[str, float, float, str]]:
    """Yield the UUID of the GPU or MIG instance that the pod saw, the container's start and end, and the pod's name."""
    uuids = _LISTED_UUID.findall(result.log or "")
    for status in result.pod.get("status", {}).get("containerStatuses", ()):
        ended = status.get("state", {}).get("terminated") or {}
        if uuids and ended.get("startedAt") and ended.get("finishedAt"):
            times = (_parse_timestamp(ended[key]) for key in ("startedAt", "finishedAt"))
            yield uuids[-1], *times, result.test_pod.name
            return


def _parse_timestamp(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()
