"""Pods that try a node's GPUs. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from gpunode.kubernetes.model import MANAGED_BY, ClusterNode, RenderedObject
from gpunode.kubernetes.node_checks import offered
from gpunode.kubernetes.sharing import Config

Body: TypeAlias = Mapping[str, Any]
# What a pod is to show beside a right sum: that it got a MIG instance, HAMi's memory limit, or a GPU with another pod.
Shows: TypeAlias = Literal["", "mig", "memory", "shared"]

# By it the pods of one run are found.
RUN_LABEL: Final = "gpunode-test"
_ADDITION: Final = "/cuda-samples/vectorAdd"
# The image of the CUDA samples has a shell and this program; NVIDIA's runtime brings nvidia-smi.
_SCRIPTS: Final[Mapping[Shows, str]] = {
    "mig": f"nvidia-smi -L; {_ADDITION}",
    "memory": f"nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; {_ADDITION}",
    # An addition takes less than a second: the pods keep their GPUs a while, so that they have them at the same time.
    "shared": f"nvidia-smi -L; {_ADDITION} && sleep 10",
}
CORDONED: Final = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
_HOST_NAME: Final = "kubernetes.io/hostname"
MEMORY: Final = "nvidia.com/gpumem"
# So long after the limit of the pods, in which they are read, what is left of a check is deleted.
_READ_S: Final = 30
# A node's clock, by which this machine judges leftovers, may be that wrong.
_CLOCK_SKEW_S: Final = 60


@dataclass(frozen=True, slots=True)
class Trial:
    """A pod that tries a GPU of a node.

    Attributes:
        resource: what it asks for; empty for a claim.
        bodies: what is created for it, the pod last.
    """

    node: str
    resource: str
    bodies: tuple[Body, ...]
    shows: Shows = ""

    @property
    def pod(self) -> Body:
        """The pod as it is created."""
        return self.bodies[-1]

    @property
    def name(self) -> str:
        """The pod's."""
        return str(self.pod["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The pod's."""
        return str(self.pod["metadata"]["namespace"])


def trials(
    node: ClusterNode,
    live: Body,
    test_pod: Sequence[RenderedObject],
    config: Config,
    expected: Mapping[str, int] | None,
    *,
    run: str,
    new_name: Callable[[], str],
    image: str,
    timeout_s: int,
) -> Iterator[Trial]:
    """The pods that try the node: one for each resource that it offers; with sharing, one more than it has GPUs.

    Args:
        node: what is known of the machine.
        live: the Node.
        test_pod: the recipe's test pod for this node, and what it needs.
        config: how the node offers its GPUs.
        expected: how many of each resource the node is to offer; None where the recipe does not tell.
        run: by which the pods of this run are found.
        new_name: gives each pod a name that no other has.
        image: in place of the recipe's; empty for that.
        timeout_s: after so long the kubelet ends them, should nobody delete them.
    """
    asked = limits(test_pod[-1].body)
    own = next((name for name in asked if name != MEMORY), "")
    for resource in expected or (own,):
        shows = _shows(asked, config)
        copies = _copies(live, resource, config, expected or {}) if shows == "shared" else 1
        for name in (new_name() for _ in range(copies)):
            place = _Place(name, run, live, image, timeout_s)
            others = [_body(one.body, place) for one in test_pod[:-1]]
            pod = _pod(test_pod[-1].body, place, {own: resource}, shows)
            yield Trial(node.name, resource, (*others, pod), shows)


def deadline_job(trial: Trial, timeout_s: int) -> Body:
    """Return a Job without pods that owns what a check creates: should gpunode be killed, the cluster deletes both.

    A pod's own limit counts from its start, so one that is never scheduled has none. A Job's counts from its creation
    (Kubernetes documentation, "Jobs", activeDeadlineSeconds); then the cluster deletes it with all that it owns.
    """
    name, labels = trial.pod["metadata"]["name"], trial.pod["metadata"]["labels"]
    container = {"name": "none", "image": trial.pod["spec"]["containers"][0]["image"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": trial.namespace, "labels": labels},
        "spec": {
            "parallelism": 0,
            "activeDeadlineSeconds": timeout_s + _READ_S,
            "ttlSecondsAfterFinished": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def owned_by(job: Body, bodies: Sequence[Body]) -> list[Body]:
    """Return the objects as the ``job``'s, which is there."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"]}
    owner |= {name: job["metadata"][name] for name in ("name", "uid")}
    return [{**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}} for one in bodies]


def is_left_over(body: Body, now: float) -> bool:
    """Return whether a run that was killed left the pod or Job: it is one of a check, and past its limit.

    Args:
        body: the object as it is.
        now: the time, in seconds since 1970.
    """
    labels = body["metadata"].get("labels", {})
    limit = body.get("spec", {}).get("activeDeadlineSeconds")
    if RUN_LABEL not in labels or not labels.items() >= MANAGED_BY.items() or not isinstance(limit, int):
        return False
    created = datetime.fromisoformat(body["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp()
    return created + limit + _READ_S + _CLOCK_SKEW_S < now


@dataclass(frozen=True, slots=True)
class _Place:
    """Of a trial: its name, its run, and what the caller of ``trials`` says of it."""

    name: str
    run: str
    node: Body
    image: str
    timeout_s: int


def limits(pod: Body) -> Mapping[str, Any]:
    """What the pod's container asks for."""
    found: Mapping[str, Any] = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return found


def _shows(asked: Mapping[str, Any], config: Config) -> Shows:
    if MEMORY in asked:
        return "memory"
    if config.mode != "none":
        return "shared"
    return "mig" if config.strategy != "none" else ""


def _copies(live: Body, resource: str, config: Config, expected: Mapping[str, int]) -> int:
    """One more than there are GPUs, or instances, if the node offers so many."""
    wanted = expected.get(resource, 0) // config.replicas + 1
    return wanted if offered(live, resource)[1] >= wanted > 1 else 1


def _body(body: Body, place: _Place) -> dict[str, Any]:
    """The object under its own name, with the label of its run."""
    made: dict[str, Any] = copy.deepcopy(dict(body))
    metadata = made["metadata"]
    metadata |= {"name": place.name, "labels": {**metadata.get("labels", {}), RUN_LABEL: place.run}}
    return made


def _pod(body: Body, place: _Place, resources: Mapping[str, str], shows: Shows) -> dict[str, Any]:
    """The pod for its node alone, asking for other ``resources`` than the recipe's, by their names."""
    made = _body(body, place)
    spec, container = made["spec"], made["spec"]["containers"][0]
    node = place.node["metadata"]
    spec["nodeSelector"] = {_HOST_NAME: node.get("labels", {}).get(_HOST_NAME, node["name"])}
    # A node may be tried before it is uncordoned.
    spec["tolerations"] = [*spec.get("tolerations", ()), CORDONED]
    # It is deleted once it was read; see deadline_job.
    spec |= {"activeDeadlineSeconds": place.timeout_s, "terminationGracePeriodSeconds": 1}
    spec["automountServiceAccountToken"] = False
    for claim in spec.get("resourceClaims", ()):
        claim["resourceClaimTemplateName"] = place.name
    container["imagePullPolicy"] = "IfNotPresent"
    container["image"] = place.image or container["image"]
    if asked := limits(made):
        container["resources"]["limits"] = {resources.get(name, name): count for name, count in asked.items()}
    if shows:
        container["command"] = ["sh", "-c", _SCRIPTS[shows]]
    return made


def is_over(pod: Body) -> bool:
    """Whether the pod has ended, well or not."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_unscheduled(pod: Body) -> bool:
    """Whether the scheduler finds no node for it."""
    return any(
        one.get("type") == "PodScheduled" and one.get("status") == "False"
        for one in pod.get("status", {}).get("conditions", ())
    )


def users(pods: Sequence[Body], node: Body, resource: str) -> tuple[str, ...]:
    """The pods that have all of what the node offers of a resource, by ``namespace/name``; none where some is left.

    Args:
        pods: those of the node.
        node: the Node.
        resource: which one.
    """
    given = {_place(pod): _given(pod, resource) for pod in pods if not is_over(pod)}
    if sum(given.values()) < offered(node, resource)[1]:
        return ()
    ours = {_place(pod) for pod in pods if RUN_LABEL in pod["metadata"].get("labels", {})}
    return tuple(name for name, many in given.items() if many and name not in ours)


def _place(pod: Body) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


def _given(pod: Body, resource: str) -> int:
    asked = (one.get("resources", {}).get("limits", {}).get(resource, 0) for one in pod["spec"]["containers"])
    return sum(int(one) for one in asked if str(one).isdigit())
