"""Why a pod does not run: its status and events → a sentence and what to do about it. Pure.

Messages of the kubelet and the scheduler 1.36, of containerd 1.6, 1.7 and 2.1, as they were seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gpunode.command import command

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run.

    Attributes:
        cause: as doctor calls it; empty for none that it knows.
    """

    cause: str
    why: str
    hint: str


_SETUP: Final = "on {node}: sudo gpunode setup k8s-containerd"
_DOCTOR: Final = "on {node}: sudo gpunode doctor"
# What is said, what it means, and what to do; {node} is the pod's, and groups are the message's.
_SANDBOX: Final[tuple[tuple[re.Pattern[str], str, str, str], ...]] = (
    (
        re.compile(r'no runtime for "([^"]+)" is configured'),
        "containerd-nvidia-runtime-missing",
        'the container runtime of {node} has no runtime "{0}"',
        _SETUP,
    ),
    (
        re.compile(r"fork/exec (\S+): no such file or directory"),
        "toolkit-not-installed",
        "{node} has no {0}, which its container runtime is told to run",
        _SETUP,
    ),
    (
        re.compile(r'expected cgroupsPath to be of format "slice:prefix:name"'),
        "cgroup-driver-mismatch",
        "the kubelet of {node} uses the cgroup driver cgroupfs, its container runtime systemd",
        _DOCTOR,
    ),
    (
        re.compile(r"(\S*nvidia-container-runtime\S*) did not terminate successfully: (exit status \d+)"),
        "",
        "{0} ended with {1} on {node}",
        _DOCTOR,
    ),
    (
        re.compile(r"cni plugin not initialized|NetworkPluginNotReady"),
        "",
        "{node} has no pod network",
        "install a network plugin (CNI) in the cluster",
    ),
)
_NO_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_RESOURCE: Final = re.compile(r"Insufficient (\S+?)\.?(?:[ ,]|$)")
_OF_HAMI: Final = frozenset({"nvidia.com/gpumem", "nvidia.com/gpucores"})
NO_REGISTRY_HINT: Final = "name a registry that the node reaches in the recipe: registry in [kubernetes]"


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a pod with the toleration may run where the taint is."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key", "") in {"", taint["key"]}
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def kept_out(pod: Body, node: Body) -> Trouble | None:
    """Why the scheduler may not give the pod to this node: it has a taint that the pod does not tolerate."""
    name, spec = str(node["metadata"]["name"]), node.get("spec", {})
    for taint in spec.get("taints") or ():
        if taint.get("effect") == "PreferNoSchedule":
            continue
        if not any(tolerates(one, taint) for one in pod.get("spec", {}).get("tolerations", ())):
            written = f"{taint['key']}={taint.get('value', '')}:{taint['effect']}".replace("=:", ":")
            hint = f'if GPU nodes are to have it, name it in [kubernetes.taint]: key = "{taint["key"]}"'
            return Trouble("", f"{name} has the taint {written}, which the pod does not tolerate", hint)
    return None


def trouble(pod: Body, events: Sequence[Body] = ()) -> Trouble | None:
    """What keeps the pod from running; None for one that runs, has run, or is too young to tell."""
    return next(_found(pod, events), None)


def _found(pod: Body, events: Sequence[Body]) -> Iterator[Trouble]:
    node = str(pod.get("spec", {}).get("nodeName", "")) or "the node"
    name, where = pod["metadata"]["name"], pod["metadata"].get("namespace", "default")
    status = pod.get("status", {})
    yield from _unscheduled(status, name, where)
    yield from _rejected(status, node)
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        yield from _container(container, name, where)
    uid = pod["metadata"].get("uid", "")
    for event in reversed(events):
        about = event.get("involvedObject", {})
        if about.get("name") == name and (not uid or about.get("uid", uid) == uid):
            yield from _event(event, node)


def _rejected(status: Mapping[str, Any], node: str) -> Iterator[Trouble]:
    """What the kubelet has against a pod that was given to its node."""
    said = str(status.get("message", ""))
    match status.get("reason"):
        case "UnexpectedAdmissionError":
            cause = "device-plugin-marked-unhealthy" if "no healthy devices" in said else ""
            yield Trouble(cause, f"{node} did not admit the pod: {said}", _DOCTOR.format(node=node))
        case "TopologyAffinityError":
            why = f"the topology manager of {node} did not admit the pod: {said}"
            yield Trouble("", why, "ask for GPUs of one NUMA node, or set topologyManagerPolicy to best-effort")
        case "DeadlineExceeded":
            yield Trouble("", f"it did not end in time on {node}", _DOCTOR.format(node=node))
        case _:
            pass


def _unscheduled(status: Mapping[str, Any], name: str, where: str) -> Iterator[Trouble]:
    for condition in status.get("conditions", ()):
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        said = str(condition.get("message", ""))
        found = _RESOURCE.search(said)
        if found and found[1] in _OF_HAMI:
            pods = command("kubectl", "get", "pods", "--all-namespaces", "--selector", "app.kubernetes.io/name=hami")
            why = "HAMi's webhook has not given the pod to HAMi's scheduler, the only one that knows " + found[1]
            yield Trouble("", why, f"see whether HAMi's pods run: {pods}")
        elif found:
            nodes = command(
                "kubectl", "get", "nodes", "-o", f"custom-columns=NODE:.metadata.name,GPUS:{_column(found[1])}"
            )
            why = f"no node has enough {found[1]} left"
            yield Trouble("", why, f"see what the nodes offer: {nodes}")
        elif "cannot allocate all claims" in said:
            slices = command("kubectl", "get", "resourceslices")
            yield Trouble("", "no node has a free GPU for its claim", f"see what the nodes publish: {slices}")
        elif "were unschedulable" in said:
            why = "the nodes are cordoned, so that no new pod starts there"
            yield Trouble("", why, "when the maintenance is over: kubectl uncordon NODE")
        elif "untolerated taint" in said:
            why = "the nodes have taints that the pod does not tolerate"
            yield Trouble("", why, "name the taint in [kubernetes.taint]; see it: kubectl describe nodes | grep Taints")
        elif "node affinity/selector" in said:
            yield Trouble("", "no node has the labels that the pod asks for", "run: gpunode k8s plan")
        else:
            show = command("kubectl", "describe", "pod", "--namespace", where, name)
            yield Trouble("", said.partition("\n")[0] or "no node was found for it", f"see more: {show}")


def _column(resource: str) -> str:
    escaped = resource.replace(".", "\\.")
    return f".status.allocatable.{escaped}"


def _container(status: Mapping[str, Any], name: str, where: str) -> Iterator[Trouble]:
    waiting, ended = status.get("state", {}).get("waiting") or {}, _ended(status)
    image, reason = str(status.get("image", "")), str(waiting.get("reason", ""))
    if reason in _NO_IMAGE:
        said = str(waiting.get("message", "")).partition("\n")[0]
        yield Trouble("", f"the image {image} cannot be pulled: {said or reason}", NO_REGISTRY_HINT)
    elif reason in {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}:
        said = str(waiting.get("message", "")).partition("\n")[0]
        yield Trouble("", f"its container cannot start: {said or reason}", f"see more: {_describe(name, where)}")
    elif ended.get("reason") in {"StartError", "ContainerCannotRun"}:
        said = str(ended.get("message", "")).partition("\n")[0]
        yield Trouble("", f"its container cannot start: {said}", f"see more: {_describe(name, where)}")
    elif ended.get("reason") == "OOMKilled":
        yield Trouble("", "its program was killed: it needed more memory than the pod may have", "raise the limit")
    elif reason == "CrashLoopBackOff" or ended:
        code = f"with exit status {ended['exitCode']}" if ended else "again and again"
        logs = command("kubectl", "logs", "--namespace", where, name)
        yield Trouble("", f"its program ended {code}", f"see what it said: {logs}")


def _ended(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container ended the last time, if not well."""
    for state in (status.get("state", {}), status.get("lastState", {})):
        ended = state.get("terminated") or {}
        if ended.get("exitCode"):
            return dict(ended)
    return {}


def _describe(name: str, where: str) -> str:
    return command("kubectl", "describe", "pod", "--namespace", where, name)


def _event(event: Body, node: str) -> Iterator[Trouble]:
    said = str(event.get("message", ""))
    if event.get("type") != "Warning":
        return
    for pattern, cause, why, hint in _SANDBOX:
        if match := pattern.search(said):
            told = (why.format(*match.groups(), node=node), hint.format(node=node))
            yield Trouble(cause, *told)
            return
    if event.get("reason") == "FailedCreatePodSandBox":
        yield Trouble("", said.partition("\n")[0], _DOCTOR.format(node=node))
