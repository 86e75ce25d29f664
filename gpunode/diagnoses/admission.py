"""Admission by the kubelet: why it refuses a pod with a GPU that the scheduler had placed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.cluster import restart_failed_pods
from gpunode.diagnoses.commands import Shell, command, is_unit, joined
from gpunode.diagnoses.model import Citation, Family, Fix, Rule
from gpunode.diagnoses.remedies import by_hand, restart, run
from gpunode.diagnoses.signs import all_of, any_of, fact, holds, line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import containerd, device_health, kube
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_KUBERNETES: Final = "https://github.com/kubernetes/kubernetes"

# The kubelet's words. Those that name another vendor's devices, or a GPU that is lost, are another matter.

_NOT_HEALTHY: Final = line(
    r"^(?![^\n]*\b(?!nvidia)[\w-]+\.com/)[^\n]*(?:no healthy devices present|cannot allocate unregistered device"
    r"|previously allocated devices are no longer healthy)"
)
_FEWER: Final = line(rf"requested number of devices unavailable for {kube.RESOURCE}")
_REJECTED: Final = line(
    r"^(?![^\n]*(?:GPU is lost|GetPreferredAllocation rpc failed|rpc error|\b(?!nvidia)[\w-]+\.com/))"
    r"[^\n]*(?:UnexpectedAdmissionError|Allocate failed due to)"
)


def _is_past(snapshot: Snapshot) -> bool:
    """Whether only the node's logs tell of refused pods, and none of the pods that are shown is one."""
    rows, refusals = snapshot.view(kube.rows), snapshot.view(any_of(_NOT_HEALTHY, _FEWER, _REJECTED))
    logs = {item.key for item in snapshot.of("unit-log", "journal")}
    is_shown = any("Admission" in row.status or "OutOf" in row.status for row in rows)
    return bool(rows) and not is_shown and all(place.key in logs for place in refusals)


_PAST: Final = holds(_is_past, "no pod that is shown was refused")
_UNHEALTHY: Final = holds(device_health.is_unhealthy, "the device plugin calls a GPU unhealthy")
_BOOTED: Final = line(
    r"\brebooted\b|\brebooting\b|(?:after|since) (?:a |the |node )?reboot|system boot|^-- (?:Boot|Reboot) "
    r"|\bup\s+\d{1,2} min\b",
    flags=re.IGNORECASE,
)


def _readmit(_: Snapshot) -> Iterable[Fix]:
    yield restart_failed_pods("delete the refused pods that have a controller, which makes them anew")
    text = "give the device plugin the priority class system-node-critical, so that it starts first"
    yield by_hand("configure", text)


# Restarts of the kubelet: Kubernetes 118559 and its backports; 124345 (init containers) and 117955 (completed pods)
# are open after them.

_RESTARTED: Final = Pattern(
    r"systemctl restart (?:kubelet|k3s|rke2|snap\.microk8s)|service kubelet restart|restart(?:ed|ing)? (?:the )?kubelet"
    r"|kubelet (?:was |is )?restart(?:ed|s)?\b|Stopp(?:ed|ing) .{0,40}(?:kubelet|Node Agent)|pkill kubelet"
    r"|kubelet\.service: (?:Succeeded|Deactivated|Main process exited|Scheduled restart)",
    re.IGNORECASE,
)
# Of another node, or as what made it well again, a restart broke nothing here.
_HELPED: Final = Pattern(
    r"\b(?:an)?other node\b|\b(?:ok|fine|well|work(?:s|ed|ing)?) again\b"
    r"|\b(?:helps|helped|fixe[sd]|solve[sd]|cure[sd])\b|\bgoes away\b|\bwent away\b",
    re.IGNORECASE,
)
_RUNS: Final = Pattern(r"\b[1-9]/[1-9]\s+Running\b|\b(?:is|are) running\b|^pod/\S+ created$", re.MULTILINE)
_KUBELET: Final = Pattern(r"\bv1\.(?P<minor>\d{2})\.(?P<patch>\d{1,9})")
_FIXED: Final = {25: 14, 26: 9, 27: 6}


def _is_cure(item: Item) -> bool:
    """Whether pods run after the restart: then it is no restart that broke them."""
    return bool(_RUNS.search(item.text)) and "Admission" not in item.text


def _restarts(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if _RESTARTED.search(item.written) and not _is_cure(item):
            yield stated(item.written, "that was run", item.key)
    yield from (one for one in snapshot.said(_RESTARTED) if not _HELPED.search(one.line))


def _old(snapshot: Snapshot) -> Iterator[Citation]:
    """A kubelet that admits anew what it had admitted."""
    for item in snapshot.items:
        if item.kind.startswith("kubernetes") or "kubelet" in item.written:
            for one in lines_with(item, _KUBELET):
                match = _KUBELET.search(one.line)
                if match and int(match["patch"]) < _FIXED.get(int(match["minor"]), 0):
                    yield one


_WAS_RESTARTED: Final = fact(_restarts)
_OLD: Final = fact(_old)
_REFUSED: Final = any_of(_NOT_HEALTHY, _FEWER, _REJECTED)


def _update_kubelet(_: Snapshot) -> Iterable[Fix]:
    yield restart_failed_pods("delete the refused pods that have a controller, which makes them anew")
    yield by_hand("install", "bring the kubelet to 1.25.14, 1.26.9, 1.27.6, 1.28 or newer")


# What the kubelet has on record.


def _stale(snapshot: Snapshot) -> Iterator[Citation]:
    """Entries of pods that are gone, where the node's pods were shown by their identifiers, or none has a GPU."""
    held = [one for one in snapshot.view(kube.allocations) if one.resource.startswith("nvidia.com/")]
    shown = {pod.uid for pod in snapshot.view(kube.pods) if pod.uid}
    shown |= {uid for item in snapshot.items if _lists_pods(item) for uid in _UID.findall(item.text)}
    used = [one.value for node in snapshot.view(kube.nodes) for one in node.allocated.values()]
    is_idle = bool(used) and not any(used)
    sought = [one for one in held if _was_sought_in_vain(snapshot, one.pod_uid)]
    gone = sought or [one for one in held if (one.pod_uid not in shown if shown else is_idle)]
    yield from (one.citation for one in gone)


_UID: Final = Pattern(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def _was_sought_in_vain(snapshot: Snapshot, uid: str) -> bool:
    """Whether somebody looked for the pod by its identifier, in the cluster or in the runtime, and found none."""
    asked = (item for item in snapshot.items if uid.partition("-")[0] in item.written and not item.source.is_mixed)
    return any(item.text.strip() in {"", "0", "No resources found"} for item in asked if item.kind in _ASKS_FOR_PODS)


_ASKS_FOR_PODS: Final = frozenset({"kubernetes-pod", "kubernetes", "crictl", "container-inspect"})


def _lists_pods(item: Item) -> bool:
    """Whether it names the node's pods by their identifiers, as kubectl does when asked, and the kubelet's folder."""
    names = "uid" in item.written.lower() or "/var/lib/kubelet/pods" in item.written
    return names and "kubelet_internal_checkpoint" not in item.written and "PodDeviceEntries" not in item.text


def _free(snapshot: Snapshot) -> Iterator[Citation]:
    """GPUs of the node that the scheduler has not given away."""
    for node in snapshot.view(kube.nodes):
        for name, amount in node.allocatable.items():
            used = node.allocated.get(name)
            yield from (amount.citation, used.citation) if used is not None and used.value < amount.value else ()


_STALE: Final = any_of(
    fact(_stale),
    fact(lambda node: (cite(item) for item in node.items if _RESTARTED.search(item.written) and _is_cure(item))),
)
_CHECKPOINT: Final = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_UNITS: Final = {"k3s": "k3s", "rke2": "rke2-agent", "k0s": "k0sworker", "microk8s": "snap.microk8s.daemon-kubelite"}


def _kubelet_unit(snapshot: Snapshot) -> str:
    """The unit that runs the kubelet: where the node was not looked at, the product's usual one."""
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None and kubelet.value.unit:
        unit = kubelet.value.unit.removesuffix(".service")
        return unit if is_unit(unit) else "kubelet"
    return _UNITS.get(snapshot.view(containerd.product), "kubelet")


def _forget(snapshot: Snapshot) -> Iterable[Fix]:
    unit = _kubelet_unit(snapshot)
    yield restart(unit, "restart the kubelet, which reads anew what its pods hold")
    yield restart_failed_pods("delete the refused pods")
    stop, start = command("sudo", "systemctl", "stop", unit), command("sudo", "systemctl", "start", unit)
    move = command("sudo", "mv", _CHECKPOINT, f"{_CHECKPOINT}.bak")
    yield run(
        "remove",
        "move the kubelet's record away while it is stopped; it makes a new one of the pods that run",
        joined(stop, Shell("&&"), move, Shell("&&"), start),
        when="the devices are still held after the restart, and no pod with a GPU runs on the node",
    )


FAMILY: Final = Family(
    "admission",
    "the kubelet's admission of pods",
    (
        Rule(
            cause="device-plugin-not-ready-after-reboot",
            layer="kubernetes",
            storey="kubernetes",
            disruption="restart-container",
            title="pods were admitted after a reboot before the device plugin was registered",
            story=(
                "When a node comes up the kubelet starts the pods that are bound to it in no certain order. A pod with "
                "a GPU that comes before the device plugin has registered finds no healthy device, and is refused for "
                "good with UnexpectedAdmissionError. A controller makes a new pod; a bare pod stays failed. A minute "
                "later the plugin is there and the node looks healthy."
            ),
            sources=(
                f"{_KUBERNETES}/issues/125579",
                f"{_KUBERNETES}/issues/128043",
            ),
            decisive=all_of(_REFUSED, _BOOTED),
            typical=unless(_NOT_HEALTHY, _WAS_RESTARTED, _OLD, _STALE),
            symptoms=(symptoms.POD_REFUSED,),
            against=(_PAST, unless(_UNHEALTHY, _BOOTED)),
            look_at=(Shell("kubectl get pods -A | grep Unexpected"), Shell("uptime")),
            share=2,
            summary="after its start the kubelet took up pods with a GPU before the device plugin had told it of any",
            remedy=_readmit,
        ),
        Rule(
            cause="kubelet-restart-admission-bug",
            layer="kubernetes",
            storey="kubernetes",
            disruption="restart-container",
            title="the restarted kubelet refuses pods that it had already admitted",
            story=(
                "A kubelet that restarts admits its pods anew. Some releases asked for the devices of running pods "
                "again at once, while the device plugin had not yet registered with the new process, and failed pods "
                "that had been running well (fixed in 1.25.14, 1.26.9, 1.27.6 and 1.28). Completed pods, and pods "
                "whose init containers ask for a GPU too, are refused the same way in later releases. The node was "
                "not rebooted, and its GPUs are fine."
            ),
            sources=(f"{_KUBERNETES}/issues/118559", f"{_KUBERNETES}/issues/117955", f"{_KUBERNETES}/issues/124345"),
            decisive=unless(all_of(_REFUSED, _WAS_RESTARTED, _OLD), _STALE),
            typical=unless(all_of(_REFUSED, any_of(_WAS_RESTARTED, _OLD)), _STALE),
            symptoms=(symptoms.POD_REFUSED,),
            against=(_PAST, _BOOTED),
            look_at=(Shell("kubectl get pods -A | grep Unexpected"), Shell("kubectl version")),
            share=2,
            summary="the kubelet was restarted and admitted its pods anew before the device plugin was registered",
            remedy=_update_kubelet,
        ),
        Rule(
            cause="kubelet-stale-device-allocation",
            layer="kubernetes",
            storey="kubernetes",
            disruption="restart-service",
            title="the kubelet counts GPUs as given to pods that are gone",
            story=(
                "The kubelet keeps its own record of which device went to which pod, in memory and in "
                "kubelet_internal_checkpoint; the scheduler counts from the pods that exist. After pods were deleted "
                "by force, or failed while they were admitted, devices can stay on the kubelet's record. The scheduler "
                "then places a pod on a GPU that the kubelet does not have: requested number of devices unavailable. "
                "Every further pod fails the same way until the kubelet is restarted."
            ),
            sources=(
                f"{_KUBERNETES}/issues/130145",
                f"{_KUBERNETES}/issues/137317",
            ),
            decisive=all_of(_REFUSED, any_of(_STALE, all_of(_FEWER, fact(_free)))),
            typical=unless(_FEWER, _WAS_RESTARTED, _OLD),
            symptoms=(symptoms.POD_REFUSED, symptoms.POD_PENDING),
            context=fact(_stale),
            against=(_PAST, _BOOTED),
            look_at=(Shell("sudo cat /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),),
            share=2,
            summary="the kubelet still counts GPUs as given to pods that no longer exist",
            remedy=_forget,
        ),
    ),
)
