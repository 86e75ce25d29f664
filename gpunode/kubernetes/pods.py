"""Why a pod does not run: a sentence and a hint, from its status and events. Pure.

The messages are as seen from the kubelet and the scheduler 1.36, and containerd 1.6, 1.7 and 2.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpunode.command import command
from gpunode.fast_dataclass import dataclass
from gpunode.kubernetes.model import Body


@dataclass(frozen=True, slots=True)
class PodProblem:
    """A reason why a pod does not run."""

    why: str
    hint: str


_SETUP_HINT: Final = "on {node}: sudo gpunode setup k8s-containerd"
_DOCTOR_HINT: Final = "on {node}: sudo gpunode doctor"
# Message, meaning and hint; {node} is the pod's node, {0} and others are the message's groups.
_SANDBOX_MESSAGES: Final[tuple[tuple[str, str, str], ...]] = (
    (
        r'no runtime for "([^"]+)" is configured',
        'the container runtime of {node} has no runtime "{0}"',
        _SETUP_HINT,
    ),
    (
        r"fork/exec (\S+): no such file or directory",
        "{node} has no {0}, which its container runtime is configured to run",
        _SETUP_HINT,
    ),
    (
        r'expected cgroupsPath to be of format "slice:prefix:name"',
        "the kubelet of {node} uses the cgroup driver cgroupfs, its container runtime systemd",
        _DOCTOR_HINT,
    ),
    (
        r"(\S*nvidia-container-runtime\S*) did not terminate successfully: (exit status \d+)",
        "{0} ended with {1} on {node}",
        _DOCTOR_HINT,
    ),
    (
        r"cni plugin not initialized|NetworkPluginNotReady",
        "{node} has no pod network",
        "install a network plugin (CNI) in the cluster",
    ),
)
_IMAGE_PULL_FAILURE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_INSUFFICIENT_RESOURCE: Final = re.compile(r"Insufficient (\S+?)\.?(?:[ ,]|$)")
_HAMI_RESOURCES: Final = frozenset({"nvidia.com/gpumem", "nvidia.com/gpucores"})
NO_REGISTRY_HINT: Final = "name a registry that the node reaches in the recipe: registry in [kubernetes]"


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return whether the toleration covers the taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key", "") in {"", taint["key"]}
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def format_taint(taint: Mapping[str, Any]) -> str:
    """Return the taint in kubectl's notation."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def find_untolerated_taint(pod: Body, node: Body) -> PodProblem | None:
    """Return the first taint of the node that the pod does not tolerate, or None."""
    name, spec = str(node["metadata"]["name"]), node.get("spec", {})
    for taint in spec.get("taints") or ():
        if taint.get("effect") == "PreferNoSchedule":
            continue
        if not any(tolerates(one, taint) for one in pod.get("spec", {}).get("tolerations", ())):
            hint = f'if GPU nodes should have it, name it in [kubernetes.taint]: key = "{taint["key"]}"'
            return PodProblem(f"{name} has the taint {format_taint(taint)}, which the pod does not tolerate", hint)
    return None


def find_problem(pod: Body, events: Sequence[Body] = ()) -> PodProblem | None:
    """Return what keeps the pod from running; None if it runs, has run, or is too young to tell."""
    return next(_find_problems(pod, events), None)


def _find_problems(pod: Body, events: Sequence[Body]) -> Iterator[PodProblem]:
    node = str(pod.get("spec", {}).get("nodeName", "")) or "the node"
    name, namespace = pod["metadata"]["name"], pod["metadata"].get("namespace", "default")
    status = pod.get("status", {})
    yield from _scheduling_problems(status, name, namespace)
    yield from _admission_problems(status, node)
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    if status.get("reason") == "DeadlineExceeded":
        # The pod's status no longer says why no container started, but the events do.
        states = [container.get("state", {}) for container in containers]
        if not any(state.get("running") or (state.get("terminated") or {}).get("startedAt") for state in states):
            yield from _problems_from_events(pod, events, node)
        yield PodProblem(f"it did not finish in time on {node}", _DOCTOR_HINT.format(node=node))
    for container in containers:
        yield from _explain_container_status(container, name, namespace)
    yield from _problems_from_events(pod, events, node)


def find_refused_pods(owner: Body, events: Sequence[Body]) -> PodProblem | None:
    """Return why the cluster refuses the pods that a controller creates for ``owner``; None if no event says so."""
    metadata = owner["metadata"]
    for event in _warnings_about(owner, events):
        if event.get("reason") == "FailedCreate":
            reference = ("--namespace", metadata["namespace"], metadata["name"])
            show = command("kubectl", "describe", owner["kind"].lower(), *reference)
            message = str(event.get("message", "")).rpartition("Error creating: ")[2].partition("\n")[0]
            hint = f"have the policy or quota that is named there changed, then check that the pods start: {show}"
            if "RuntimeClass" in message:
                hint = "run: gpunode k8s plan"
            return PodProblem(f"the cluster refuses its pods: {message}", hint)
    return None


def _warnings_about(body: Body, events: Sequence[Body]) -> Iterator[Body]:
    """Yield the warnings about the object, the newest first."""
    name, uid = body["metadata"]["name"], body["metadata"].get("uid", "")
    for event in reversed(events):
        about = event.get("involvedObject", {})
        is_about = about.get("name") == name and (not uid or about.get("uid", uid) == uid)
        if is_about and event.get("type") == "Warning":
            yield event


def _problems_from_events(pod: Body, events: Sequence[Body], node: str) -> Iterator[PodProblem]:
    for event in _warnings_about(pod, events):
        yield from _event_problems(event, node)


def _admission_problems(status: Mapping[str, Any], node: str) -> Iterator[PodProblem]:
    """Yield why the kubelet did not admit a pod that was scheduled to its node."""
    message = str(status.get("message", ""))
    match status.get("reason"):
        case "UnexpectedAdmissionError":
            yield PodProblem(f"{node} did not admit the pod: {message}", _DOCTOR_HINT.format(node=node))
        case "TopologyAffinityError":
            why = f"the topology manager of {node} did not admit the pod: {message}"
            yield PodProblem(why, "ask for GPUs of one NUMA node, or set topologyManagerPolicy to best-effort")
        case _:
            pass


def _scheduling_problems(status: Mapping[str, Any], name: str, namespace: str) -> Iterator[PodProblem]:
    for condition in status.get("conditions", ()):
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        message = str(condition.get("message", ""))
        match = _INSUFFICIENT_RESOURCE.search(message)
        if match and match[1] in _HAMI_RESOURCES:
            why = "HAMi's webhook has not given the pod to HAMi's scheduler, the only one that knows " + match[1]
            yield PodProblem(
                why,
                "see whether HAMi's pods run: kubectl get pods --all-namespaces --selector app.kubernetes.io/name=hami",
            )
        elif match:
            column = ".status.allocatable." + match[1].replace(".", "\\.")
            nodes = command("kubectl", "get", "nodes", "-o", f"custom-columns=NODE:.metadata.name,GPUS:{column}")
            why = f"no node has enough {match[1]} left"
            yield PodProblem(why, f"see what the nodes offer: {nodes}")
        elif "cannot allocate all claims" in message:
            yield PodProblem(
                "no node has a free GPU for its claim", "see what the nodes publish: kubectl get resourceslices"
            )
        elif "were unschedulable" in message:
            why = "the nodes are cordoned, so that no new pod starts there"
            yield PodProblem(why, "when the maintenance is over: kubectl uncordon NODE")
        elif "untolerated taint" in message:
            why = "the nodes have taints that the pod does not tolerate"
            yield PodProblem(why, "name the taint in [kubernetes.taint]; see it: kubectl describe nodes | grep Taints")
        elif "node affinity/selector" in message:
            yield PodProblem("no node has the labels that the pod asks for", "run: gpunode k8s plan")
        else:
            show = command("kubectl", "describe", "pod", "--namespace", namespace, name)
            yield PodProblem(message.partition("\n")[0] or "no node was found for it", f"see more: {show}")


def _explain_container_status(status: Mapping[str, Any], name: str, namespace: str) -> Iterator[PodProblem]:
    waiting = status.get("state", {}).get("waiting") or {}
    # How the container last ended, if it failed.
    ends = [state.get("terminated") or {} for state in (status.get("state", {}), status.get("lastState", {}))]
    failure: Mapping[str, Any] = next((ended for ended in ends if ended.get("exitCode")), {})
    image, reason = str(status.get("image", "")), str(waiting.get("reason", ""))
    message = str(waiting.get("message", "")).partition("\n")[0] or reason
    describe = f"see more: {command('kubectl', 'describe', 'pod', '--namespace', namespace, name)}"
    if reason in _IMAGE_PULL_FAILURE_REASONS:
        yield PodProblem(f"the image {image} cannot be pulled: {message}", NO_REGISTRY_HINT)
    elif reason in {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}:
        yield PodProblem(f"its container cannot start: {message}", describe)
    elif failure.get("reason") in {"StartError", "ContainerCannotRun"}:
        message = str(failure.get("message", "")).partition("\n")[0]
        yield PodProblem(f"its container cannot start: {message}", describe)
    elif failure.get("reason") == "OOMKilled":
        yield PodProblem("its program was killed: it needed more memory than the pod may have", "raise the limit")
    elif reason == "CrashLoopBackOff" or failure:
        code = f"with exit status {failure['exitCode']}" if failure else "again and again"
        logs = command("kubectl", "logs", "--namespace", namespace, name)
        yield PodProblem(f"its program ended {code}", f"read its log: {logs}")


def _event_problems(event: Body, node: str) -> Iterator[PodProblem]:
    message = str(event.get("message", ""))
    for pattern, why, hint in _SANDBOX_MESSAGES:
        if match := re.search(pattern, message):
            yield PodProblem(why.format(*match.groups(), node=node), hint.format(node=node))
            return
    if event.get("reason") == "FailedCreatePodSandBox":
        yield PodProblem(message.partition("\n")[0], _DOCTOR_HINT.format(node=node))
