"""What the end of a trial tells of its node → checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpunode.check import Check
from gpunode.command import Command, command, sudo_gpunode
from gpunode.kubernetes.pods import NO_REGISTRY_HINT, Trouble, kept_out, tolerates, trouble
from gpunode.kubernetes.trials import CORDONED, MEMORY, Body, Trial, is_unscheduled, limits

PASSED: Final = "Test PASSED"
_NO_RIGHT: Final = re.compile(r'cannot create resource "(\w+)"|can only create mirror (pods)')
# CUDA's words in a container without libcuda, and with one that sees no GPU.
_NO_DRIVER: Final = re.compile(r"CUDA driver version is insufficient|no CUDA-capable device is detected")
_UUID: Final = re.compile(r"\(UUID: ((?:GPU|MIG)-[0-9a-f-]+)\)")


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a trial.

    Attributes:
        pod: as it was last seen; None where it was not created.
        seconds: from its creation to its end, or for how long it was waited for.
        error: why it was not created, in the API server's words.
        log: what it said; None where that cannot be read.
        reading: what doctor makes of its log, in a sentence.
        users: the pods that have all of the resource on its node, where it waits for some.
    """

    trial: Trial
    pod: Body | None
    seconds: float
    error: str = ""
    log: str | None = ""
    events: Sequence[Body] = ()
    reading: str = ""
    users: Sequence[str] = ()


def trial_check(ran: Ran, node: Body, apply: Command) -> Check:
    """What a trial shows of its node.

    Args:
        ran: the trial after its end.
        node: the Node that it was for.
        apply: the command that applies the recipe.
    """
    trial = ran.trial
    id = f"pod/{trial.node}/{trial.name}"  # noqa: A001
    title = f"pod {trial.name}"
    on = f"on {trial.node} with {_what_it_said(trial, node)}"
    if ran.pod is None:
        if match := _NO_RIGHT.search(ran.error):
            what = f"{match[1] or match[2]} in {trial.namespace}"
            return Check(id, title, "not run", f"{on}: your credentials may not create {what}")
        why, hint = _not_created(ran.error, apply)
        return Check(id, title, "failed", f"{on}: {why}", hint)
    if ran.pod.get("status", {}).get("phase") == "Succeeded":
        return _succeeded(ran, id, title, on)
    shut_out = kept_out(ran.pod, node) if is_unscheduled(ran.pod) else None
    if ran.users and not shut_out:
        used = f"{', '.join(ran.users[:3])}{f' and {len(ran.users) - 3} more' if len(ran.users) > 3 else ''}"
        return Check(id, title, "not run", f"{on}: every {trial.resource} is in use, by {used}")
    found = shut_out or _without_driver(ran) or trouble(ran.pod, ran.events) or _late(ran, ran.pod)
    why = f"{on}: {found.why}"
    if ran.reading:
        why += f"; {ran.reading}"
    elif ran.log and (last := _last(ran.log)):
        why += f"; it said: {last}"
    other_image = ", or an image that it has with --image" if found.hint == NO_REGISTRY_HINT else ""
    return Check(id, title, "failed", why, f"{found.hint}{other_image}")


def _what_it_said(trial: Trial, node: Body) -> str:
    """Return all that the pod has for its GPU, as the user's own needs it there."""
    spec = trial.pod["spec"]
    taints = [one for one in node.get("spec", {}).get("taints") or () if one["effect"] != "PreferNoSchedule"]
    own = [one for one in spec["tolerations"] if one != CORDONED]
    tolerated = [str(taint["key"]) for taint in taints if any(tolerates(one, taint) for one in own)]
    words = [*limits(trial.pod)] or ["a claim"]
    words += [f"runtimeClassName: {spec['runtimeClassName']}"] if "runtimeClassName" in spec else []
    words += [f"a toleration of {key}" for key in dict.fromkeys(tolerated)]
    return ", ".join(words) if len(words) > 1 else f"{words[0]} alone"


def _without_driver(ran: Ran) -> Trouble | None:
    """Return that a pod without a RuntimeClass ran and found no driver in its container; None for any other."""
    if "runtimeClassName" in ran.trial.pod["spec"] or not _NO_DRIVER.search(ran.log or ""):
        return None
    node = ran.trial.node
    why = "neither CDI nor the default runtime gave its container the driver"
    hint = f"on {node}: {sudo_gpunode('setup', 'k8s-containerd')}\nthen take a new capture of {node} and apply with it"
    return Trouble("", why, hint)


def _not_created(error: str, apply: Command) -> tuple[str, str]:
    said = " ".join(error.split())
    if "namespaces" in said and "not found" in said:
        return "its namespace is not there", str(apply)
    if match := re.search(r'RuntimeClass "([^"]+)" not found', said):
        return f"there is no RuntimeClass {match[1]}", str(apply)
    if "violates PodSecurity" in said:
        return f"the namespace does not take it: {said}", str(apply)
    return f"it was not created: {said}", "see what limits the namespace: kubectl get resourcequota --all-namespaces"


def _late(ran: Ran, pod: Body) -> Trouble:
    """That the pod was not in time, where nothing says why."""
    trial, phase = ran.trial, pod.get("status", {}).get("phase", "Pending")
    waited = {"Pending": "it did not start", "Running": "it did not end"}.get(phase, f"its phase is {phase},")
    describe = command("kubectl", "describe", "pod", "--namespace", trial.namespace, trial.name)
    hint = f"try it with a longer --timeout, and look at it: {describe}"
    return Trouble("", f"{waited} within {ran.seconds:.0f} s", hint)


def _succeeded(ran: Ran, id: str, title: str, on: str) -> Check:  # noqa: A002
    if ran.log is None:
        return Check(id, title, "not run", f"{on}: it ended well, but its log cannot be read: {ran.error}")
    if PASSED not in ran.log:
        last = _last(ran.log)
        why = f"{on}: it ended well, but its log does not say {PASSED}" + (f"; it said: {last}" if last else "")
        return Check(id, title, "failed", why, "with --image, name an image of NVIDIA's vectoradd sample")
    if ran.trial.shows in {"mig", "memory"}:
        seen, why, hint = _instance(ran) if ran.trial.shows == "mig" else _memory(ran)
        if not seen:
            return Check(id, title, "failed", f"{on}: {why}", hint)
        return Check(id, title, "passed", f"{on}: {PASSED}, {why}, {ran.seconds:.1f} s; deleted")
    return Check(id, title, "passed", f"{on}: {PASSED}, {ran.seconds:.1f} s; deleted")


def _last(log: str) -> str:
    lines = [text for text in log.splitlines() if text.strip()]
    return lines[-1].strip() if lines else ""


def _instance(ran: Ran) -> tuple[bool, str, str]:
    """Whether the pod saw the MIG instance that it asked for."""
    found = re.search(r"MIG (\d+g\.\d+gb\S*)", ran.log or "")
    profile = ran.trial.resource.partition("nvidia.com/mig-")[2].removesuffix(".shared")
    if found is None:
        return False, "it saw no MIG instance (nvidia-smi -L)", "look at the GPUs' MIG mode on the node: nvidia-smi -L"
    name = found[1].replace("+", ".")
    if profile and name != profile:
        return False, f"it asked for {profile} and saw {name}", "look at the device plugin's log"
    return True, f"it saw the MIG instance {name}", ""


def _memory(ran: Ran) -> tuple[bool, str, str]:
    """Whether the pod saw no more memory than it asked for."""
    wanted = int(limits(ran.trial.pod)[MEMORY])
    seen = next((int(text) for text in (ran.log or "").splitlines() if text.strip().isdigit()), None)
    if seen is None:
        return False, "it could not tell how much memory it has (nvidia-smi)", "look at HAMi's device plugin"
    if seen > wanted:
        hint = "HAMi's limit is not in force: look at its webhook and scheduler, kubectl get pods -n kube-system"
        return False, f"it asked for {wanted} MiB of memory and saw {seen} MiB", hint
    return True, f"it saw {seen} MiB of memory, asked for {wanted}", ""


def judge_handler(handler: Check, ran_through: Collection[str]) -> Check:
    """Return the check of a node's handler; passed where nobody lists the handlers, but a test pod ran through it.

    A running device plugin proves nothing of it: it was started once, and does not notice what is gone since.

    Args:
        handler: the check so far.
        ran_through: the nodes on which a pod of the test had the RuntimeClass, and ran.
    """
    if handler.status != "not run" or handler.id.partition("/")[2] not in ran_through:
        return handler
    return replace(handler, status="passed", detail="the test pod ran through it")


def sharing_check(node: str, ran: Sequence[Ran]) -> Check:
    """Whether two pods had one GPU at the same time; it says nothing of what isolates them."""
    id, title = f"sharing/{node}", f"two pods on one GPU of {node}"  # noqa: A001
    if len(ran) < 2:
        return Check(id, title, "not run", "the node offers too few to start more pods than it has GPUs")
    if any((one.pod or {}).get("status", {}).get("phase") != "Succeeded" for one in ran):
        return Check(id, title, "not run", f"not all of the {len(ran)} pods ended well")
    best: tuple[float, str, str, str] | None = None
    for number, one in enumerate(ran):
        for other in ran[:number]:
            if (uuid := _uuid(one)) and uuid == _uuid(other) and (together := _together(one, other)) > 0:
                best = max(best or (0.0, "", "", ""), (together, uuid, other.trial.name, one.trial.name))
    if best is None:
        why = f"{len(ran)} pods ran, but not two at the same time on one GPU, or nvidia-smi did not tell which"
        return Check(id, title, "not run", why)
    together, uuid, first, second = best
    return Check(id, title, "passed", f"{first} and {second} had {uuid} for {together:.0f} s at the same time")


def _uuid(ran: Ran) -> str:
    """Of the GPU, or the MIG instance, that the pod saw."""
    return next(iter(reversed(_UUID.findall(ran.log or ""))), "")


def _together(one: Ran, other: Ran) -> float:
    """For how many seconds both ran, at least: their times are whole seconds."""
    spans = [_span(ran.pod or {}) for ran in (one, other)]
    if None in spans:
        return 0.0
    (begin, end), (other_begin, other_end) = (span for span in spans if span)
    return min(end, other_end) - max(begin, other_begin) - 1


def _span(pod: Body) -> tuple[float, float] | None:
    """When the pod's container began and ended."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        ended = status.get("state", {}).get("terminated") or {}
        if ended.get("startedAt") and ended.get("finishedAt"):
            return _seconds(ended["startedAt"]), _seconds(ended["finishedAt"])
    return None


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()
