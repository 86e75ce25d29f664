"""Admission by the kubelet: why it refuses a pod with a GPU that the scheduler had placed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.cluster import restart_failed_pods
from gpunode.diagnoses.commands import Shell, command, is_unit, joined
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, restart, run
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import containerd, device_health, kube
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_KUBERNETES: Final = "https://github.com/kubernetes/kubernetes"

_HEALTH_LOST: Final = Pattern(r"previously allocated devices are no longer healthy")
_LESS: Final = Pattern(
    rf"requested number of devices unavailable for (?P<resource>{kube.RESOURCE})\.? "
    r"Requested: ?(?P<wanted>\d{1,18}), Available: ?(?P<left>\d{1,18})"
)
_REGISTERED: Final = Pattern(r"Registration Request received for device plugin|Got registration request")
_ADMISSION: Final = Pattern(r"UnexpectedAdmissionError|Allocate failed due to|Pod was rejected: Allocate failed")
_DEVICE: Final = Pattern(r"\b(?:devices?|unavailable for) (?P<name>[\w.-]+\.[a-z]{2,}/[\w.-]+)")
_LOST_GPU: Final = Pattern(r"GPU is lost|GetPreferredAllocation rpc failed|rpc error")
_KUBELET_RESTARTED: Final = Pattern(
    r"systemctl restart (?:kubelet|k3s|rke2|snap\.microk8s)|service kubelet restart|restart(?:ed|ing)? (?:the )?kubelet"
    r"|kubelet (?:was |is )?restart(?:ed|s)?\b|Stopp(?:ed|ing) .{0,40}(?:kubelet|Node Agent)|pkill kubelet"
    r"|kubelet\.service: (?:Succeeded|Deactivated|Main process exited|Scheduled restart)",
    re.IGNORECASE,
)
_BOOTED: Final = Pattern(
    r"\brebooted\b|\brebooting\b|(?:after|since) (?:a |the |node )?reboot|system boot|^-- (?:Boot|Reboot) ",
    re.IGNORECASE | re.MULTILINE,
)
_FORCED: Final = Pattern(r"delete pods? .{0,80}--force|--grace-period[= ]0|force[- ]delet", re.IGNORECASE)
# Kubernetes 118559 and its backports; 124345 (init containers) and 117955 (completed pods) are open after them.
_FIXED: Final = {25: 14, 26: 9, 27: 6}
_KUBELET: Final = Pattern(r"\bv1\.(?P<minor>\d{2})\.(?P<patch>\d{1,18})")


def _admission(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which of three it is that the kubelet refuses a pod that the scheduler had placed."""
    refused = tuple(
        one
        for one in kube.said(snapshot, _ADMISSION, "Admission", "Allocate failed", logs=True)
        if not _LOST_GPU.search(one.line)
    )
    unready = kube.said(snapshot, device_health.NONE_HEALTHY, "healthy devices", "unregistered", logs=True)
    fewer = kube.said(snapshot, _LESS, "devices unavailable", logs=True)
    stale = tuple(_stale(snapshot))
    if not (refused or unready or fewer) or _is_past(snapshot, (*refused, *unready, *fewer)):
        return
    lost = kube.said(snapshot, _HEALTH_LOST, "no longer healthy", logs=True)
    cited = tuple(dict.fromkeys((*unready, *fewer, *lost, *refused)))
    if not _is_about_gpus(cited):
        return
    booted = _boots(snapshot)
    restarted = () if booted else _restarts(snapshot)
    if fewer and not booted:
        stale = (*stale, *(cite(item) for item in _cures(snapshot)))
    if fewer and not (stale or restarted or booted) and (given := _gives_gpus_first(snapshot)):
        question = "the kubelet has no GPU left for a pod whose init containers have one: was it restarted meanwhile?"
        look_at = (
            Shell("systemctl show kubelet -p ActiveEnterTimestamp"),
            Shell("journalctl -u kubelet  # around that time"),
        )
        yield "kubelet-stale-device-allocation", Doubt(question, look_at, (*cited, *given), _OF_ADMISSION)
    elif stale or (fewer and not restarted and not booted):
        yield "kubelet-stale-device-allocation", _stale_proof(snapshot, cited, stale)
    elif restarted:
        yield "kubelet-restart-admission-bug", _restart_proof(snapshot, cited, restarted)
    elif (unready and not device_health.is_unhealthy(snapshot)) or (booted and (refused or fewer or lost)):
        yield "device-plugin-not-ready-after-reboot", _reboot_proof(cited, booted, snapshot)
    elif (refused or lost) and not device_health.is_unhealthy(snapshot):
        question = "the kubelet refused a pod that the scheduler had given a GPU; why is not shown"
        look_at = (Shell("kubectl describe pod | grep Message:"), Shell("journalctl -u kubelet  # around that time"))
        yield "device-plugin-not-ready-after-reboot", Doubt(question, look_at, cited, _OF_ADMISSION)


_OF_ADMISSION: Final = (
    "device-plugin-not-ready-after-reboot",
    "kubelet-restart-admission-bug",
    "kubelet-stale-device-allocation",
)


# Its containers begin where the line is not indented as deep.
_GIVEN_FIRST: Final = Pattern(r"^[ \t]*Init Containers:", re.MULTILINE)
_CONTAINERS: Final = Pattern(r"^[ \t]*Containers:", re.MULTILINE)


def _gives_gpus_first(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where a pod is shown whose init containers ask for a GPU: a restarted kubelet counts theirs twice."""
    found = list[Citation]()
    for item in snapshot.of("kubernetes-pod", "kubernetes"):
        for match in _GIVEN_FIRST.finditer(item.text):
            end = _CONTAINERS.search(item.text, match.end())
            if "nvidia.com/" in item.text[match.end() : end.start() if end else None]:
                found.append(cite(item, item.number_at(match.start())))
    return tuple(found)


def _is_past(snapshot: Snapshot, refusals: tuple[Citation, ...]) -> bool:
    """Whether only the node's logs tell of refused pods, and none of the pods that are shown is one."""
    rows = snapshot.view(kube.rows)
    logs = {item.key for item in snapshot.of("unit-log", "journal")}
    is_shown = any("Admission" in row.status or "OutOf" in row.status for row in rows)
    return bool(rows) and not is_shown and all(place.key in logs for place in refusals)


def _is_about_gpus(cited: tuple[Citation, ...]) -> bool:
    """Whether no other sort of device is named: most messages name one."""
    named = [match["name"] for one in cited for match in _DEVICE.finditer(one.line)]
    return not named or any(name.startswith("nvidia.com/") for name in named)


_UP: Final = Pattern(
    r"\bup\s+(?:(?P<days>\d{1,18}) days?|(?P<minutes>\d{1,18}) min|(?P<hours>\d{1,18}):\d\d|\d+ weeks?|\d+ hours?)"
)
_SINCE: Final = Pattern(
    r"^[ \t]*Active: active \(running\) since .{0,60}; (?:\d+h )?(?:\d+min ?)?(?:\d+s)? ?ago", re.MULTILINE
)


def _boots(snapshot: Snapshot) -> tuple[Citation, ...]:
    """That the node itself came up a short while before."""
    up = (
        cite(item, 1)
        for item in snapshot.items
        if "uptime" in item.written and (match := _UP.search(item.text)) and match["minutes"]
    )
    return (*snapshot.said(_BOOTED), *up)


def _restarts(snapshot: Snapshot) -> tuple[Citation, ...]:
    """That the kubelet was restarted while the node stayed up, by the journal or by a command that was typed."""
    typed = tuple(
        stated(item.written, "that was run", item.key)
        for item in snapshot.items
        if _KUBELET_RESTARTED.search(item.written) and item not in _cures(snapshot)
    )
    is_up_long = any(
        "uptime" in item.written and (match := _UP.search(item.text)) and not match["minutes"]
        for item in snapshot.items
    )
    younger = (
        citation
        for item in snapshot.of("unit-status")
        if is_up_long and item.subject in _KUBELETS
        for citation in lines_with(item, _SINCE)
    )
    old = (citation for citation in _versions(snapshot) if _has_bug(citation.line))
    said = (line for line in snapshot.said(_KUBELET_RESTARTED) if not _HELPED.search(line.line))
    return (*typed, *said, *younger, *old)


# Of another node, or as what made it well again, a restart broke nothing here.
_HELPED: Final = Pattern(
    r"\b(?:an)?other node\b|\b(?:ok|fine|well|work(?:s|ed|ing)?) again\b"
    r"|\b(?:helps|helped|fixe[sd]|solve[sd]|cure[sd])\b|\bgoes away\b|\bwent away\b",
    re.IGNORECASE,
)


def _cures(snapshot: Snapshot) -> tuple[Item, ...]:
    """Where the kubelet was restarted and pods run after that: then it is no restart that broke them."""
    typed = (item for item in snapshot.items if _KUBELET_RESTARTED.search(item.written))
    return tuple(item for item in typed if _RUNS.search(item.text) and not _ADMISSION.search(item.text))


_RUNS: Final = Pattern(r"\b[1-9]/[1-9]\s+Running\b|\b(?:is|are) running\b|^pod/\S+ created$", re.MULTILINE)
_KUBELETS: Final = frozenset({"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-agent.service"})


def _versions(snapshot: Snapshot) -> Iterator[Citation]:
    """Where the kubelet's version stands."""
    for item in snapshot.items:
        if item.kind.startswith("kubernetes") or "kubelet" in item.written:
            yield from tuple(lines_with(item, _KUBELET))[:1]


def _restart_proof(snapshot: Snapshot, cited: tuple[Citation, ...], restarted: tuple[Citation, ...]) -> Proof:
    old = next((match for place in _versions(snapshot) if (match := _KUBELET.search(place.line))), None)
    of = f" {old[0]}" if old else ""
    summary = (
        f"the kubelet{of} was restarted and admitted anew the pods that it had already admitted, before the device "
        "plugin was registered again"
    )
    ruled_out = ("device-plugin-not-ready-after-reboot: nothing shows that the node itself was rebooted",)
    is_sure = bool(old and _has_bug(old[0])) and any(_KUBELET_RESTARTED.search(place.words) for place in restarted)
    return Proof(summary, (*cited, *restarted), "certain" if is_sure else "likely", ruled_out)


def _has_bug(version: str) -> bool:
    match = _KUBELET.search(version)
    if match is None:
        return False
    minor, patch = int(match["minor"]), int(match["patch"])
    return minor in _FIXED and patch < _FIXED[minor]


def _reboot_proof(cited: tuple[Citation, ...], booted: tuple[Citation, ...], snapshot: Snapshot) -> Proof:
    registered = kube.said(snapshot, _REGISTERED, "egistration", logs=True)
    summary = (
        "after its start the kubelet took up the pods that have a GPU before the device plugin had told it of any: no "
        "device was healthy yet"
    )
    certain = bool(booted and cited)
    return Proof(summary, (*cited, *booted[:3], *registered[:2]), "certain" if certain else "likely")


def _stale(snapshot: Snapshot) -> Iterator[Citation]:
    """Entries of the kubelet's record whose pods are gone, where the pods of the node were shown with their UIDs."""
    alive = {pod.uid for pod in snapshot.view(kube.pods) if pod.uid}
    alive |= {uid for item in snapshot.items if _lists_pods(item) for uid in _uids(item)}
    held = [one for one in snapshot.view(kube.allocations) if one.resource.startswith("nvidia.com/")]
    if gone := [one for one in held if _was_sought_in_vain(snapshot, one.pod_uid)]:
        yield from (one.citation for one in gone)
        return
    if alive:
        yield from (one.citation for one in held if one.pod_uid not in alive)
        return
    used = [one.value for node in snapshot.view(kube.nodes) for one in node.allocated.values()]
    if held and used and not any(used):
        yield from (one.citation for one in held)


def _was_sought_in_vain(snapshot: Snapshot, uid: str) -> bool:
    """Whether somebody looked for the pod by its identifier, in the cluster or in the runtime, and found none."""
    begin = uid.partition("-")[0]
    asked = (item for item in snapshot.items if begin in item.written and item.kind in _ASKS_FOR_PODS)
    return any(item.text.strip() in {"", "0", "No resources found"} for item in asked if not item.source.is_mixed)


_ASKS_FOR_PODS: Final = frozenset({"kubernetes-pod", "kubernetes", "crictl", "container-inspect"})


def _lists_pods(item: Item) -> bool:
    """Whether it names the node's pods by their identifiers, as kubectl does when asked, and the kubelet's folder.

    Its record does, too, and of pods that are gone.
    """
    names = "uid" in item.written.lower() or "/var/lib/kubelet/pods" in item.written
    return names and "kubelet_internal_checkpoint" not in item.written


def _uids(item: Item) -> Iterator[str]:
    if "PodDeviceEntries" not in item.text:
        yield from re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", item.text)


def _stale_proof(snapshot: Snapshot, cited: tuple[Citation, ...], stale: tuple[Citation, ...]) -> Proof:
    free = [
        node
        for node in snapshot.view(kube.nodes)
        for name, amount in node.allocatable.items()
        if (used := node.allocated.get(name)) is not None and used.value < amount.value
    ]
    match = next((match for place in cited if (match := _LESS.search(place.line))), None)
    left = f": it has {match['left']} left where {match['wanted']} are asked for" if match else ""
    if stale:
        summary = f"the kubelet still counts GPUs as given to pods that no longer exist{left}"
    else:
        summary = f"the scheduler has GPUs free on this node that the kubelet counts as taken{left}"
    forced = kube.said(snapshot, _FORCED, "force", "--grace")
    return Proof(summary, (*cited, *stale, *forced), "certain" if stale or free else "likely")


def _readmit(_: Snapshot) -> Iterable[Fix]:
    yield restart_failed_pods("delete the refused pods that have a controller, which makes them anew")
    yield by_hand(
        "configure", "give the device plugin the priority class system-node-critical, so that it starts first"
    )


def _update_kubelet(_: Snapshot) -> Iterable[Fix]:
    yield restart_failed_pods("delete the refused pods that have a controller, which makes them anew")
    yield by_hand("install", "bring the kubelet to 1.25.14, 1.26.9, 1.27.6, 1.28 or newer")


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
    yield run(
        "remove",
        "move the kubelet's record away while it is stopped; it makes a new one of the pods that run",
        joined(
            command("sudo", "systemctl", "stop", unit),
            Shell("&&"),
            command("sudo", "mv", _CHECKPOINT, f"{_CHECKPOINT}.bak"),
            Shell("&&"),
            command("sudo", "systemctl", "start", unit),
        ),
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
            severity="error",
            disruption="restart-container",
            title="pods were admitted after a reboot before the device plugin was registered",
            symptoms=(symptoms.POD_REFUSED,),
            look_at=(
                Shell("kubectl get pods -A | grep Unexpected"),
                Shell("uptime"),
            ),
            story=(
                "When a node comes up the kubelet starts the pods that are bound to it in no certain order. A pod with "
                "a GPU that comes before the device plugin has registered finds no healthy device, and is refused for "
                "good with UnexpectedAdmissionError. A controller makes a new pod; a bare pod stays failed. A minute "
                "later the plugin is there and the node looks healthy."
            ),
            sources=(f"{_KUBERNETES}/issues/125579", f"{_KUBERNETES}/issues/128043"),
            check=only("device-plugin-not-ready-after-reboot", _admission),
            remedy=_readmit,
        ),
        Rule(
            cause="kubelet-restart-admission-bug",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the restarted kubelet refuses pods that it had already admitted",
            symptoms=(symptoms.POD_REFUSED,),
            look_at=(
                Shell("kubectl get pods -A | grep Unexpected"),
                Shell("kubectl version"),
            ),
            story=(
                "A kubelet that restarts admits its pods anew. Some releases asked for the devices of running pods "
                "again at once, while the device plugin had not yet registered with the new process, and failed pods "
                "that had been running well (fixed in 1.25.14, 1.26.9, 1.27.6 and 1.28). Completed pods, and pods "
                "whose init containers ask for a GPU too, are refused the same way in later releases. The node was "
                "not rebooted, and its GPUs are fine."
            ),
            sources=(
                f"{_KUBERNETES}/issues/118559",
                f"{_KUBERNETES}/issues/117955",
                f"{_KUBERNETES}/issues/124345",
            ),
            check=only("kubelet-restart-admission-bug", _admission),
            remedy=_update_kubelet,
        ),
        Rule(
            cause="kubelet-stale-device-allocation",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-service",
            title="the kubelet counts GPUs as given to pods that are gone",
            symptoms=(
                symptoms.POD_REFUSED,
                symptoms.POD_PENDING,
            ),
            look_at=(Shell("sudo cat /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),),
            story=(
                "The kubelet keeps its own record of which device went to which pod, in memory and in "
                "kubelet_internal_checkpoint; the scheduler counts from the pods that exist. After pods were deleted "
                "by force, or failed while they were admitted, devices can stay on the kubelet's record. The scheduler "
                "then places a pod on a GPU that the kubelet does not have: requested number of devices unavailable. "
                "Every further pod fails the same way until the kubelet is restarted."
            ),
            sources=(f"{_KUBERNETES}/issues/130145", f"{_KUBERNETES}/issues/137317"),
            check=only("kubelet-stale-device-allocation", _admission),
            remedy=_forget,
        ),
    ),
)
