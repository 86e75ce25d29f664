"""Admission by the kubelet: why it refuses a pod with a GPU that the scheduler had placed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.cluster import restart_failed_pods
from gpunode.diagnoses.commands import Shell, command, is_unit, join_commands
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.plugin import UNHEALTHY
from gpunode.diagnoses.remedies import always, manual_step, restart, run_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import containerd, kubernetes_nodes
from gpunode.facts.model import Known
from gpunode.facts.sources import Kind

# The kubelet's words. Those that name another vendor's devices, or a GPU that is lost, are another matter.

_NOT_HEALTHY: Final = message_line(
    r"^(?![^\n]*\b(?!nvidia)[\w-]+\.com/)[^\n]*(?:no healthy devices present|cannot allocate unregistered device"
    r"|previously allocated devices are no longer healthy)"
)
_FEWER: Final = message_line(rf"requested number of devices unavailable for {kubernetes_nodes.RESOURCE}")
_REJECTED: Final = message_line(
    r"^(?![^\n]*(?:GPU is lost|GetPreferredAllocation rpc failed|rpc error|\b(?!nvidia)[\w-]+\.com/))"
    r"[^\n]*(?:UnexpectedAdmissionError|Allocate failed due to)"
)


_TABLES: Final[tuple[Kind, ...]] = ("kubernetes", "kubernetes-pod", "kubernetes-node", "text", "application")
_REFUSED: Final = any_of(_NOT_HEALTHY, _FEWER, _REJECTED)


# That the logs alone remember it, and no pod that is shown was refused.
_PAST: Final = unless(
    message_line(r"^\S[^\n]*\s\d+/\d+\s+(?:Running|Completed)\s", *_TABLES),
    message_line(r"AdmissionError|OutOf|Allocate failed", *_TABLES),
)
_BOOTED: Final = message_line(
    r"\brebooted\b|\brebooting\b|(?:after|since) (?:a |the |node )?reboot|system boot|^-- (?:Boot|Reboot) "
    r"|\bup\s+\d{1,2} min\b",
    flags=re.IGNORECASE,
)


_DELETE_REFUSED: Final = restart_failed_pods("delete the rejected pods; their controllers create new ones")

# Restarts of the kubelet: Kubernetes 118559 and its backports; 124345 (init containers) and 117955 (completed pods)
# are open after them.

_RESTART: Final = (
    r"systemctl restart (?:kubelet|k3s|rke2|snap\.microk8s)|service kubelet restart|restart(?:ed|ing)? (?:the )?kubelet"
    r"|kubelet (?:was |is )?restart(?:ed|s)?\b|pkill kubelet|Starting kubelet\."
)
# As what made it well again, a restart broke nothing here.
_WAS_RESTARTED: Final = any_of(
    unless(command_run(_RESTART), message_line(r"^pod/\S+ created")),
    message_line(
        r"^(?!.*(?:other node|work(?:s|ed)? again|help(?:s|ed)|fixe[sd]|solve[sd]|goes away|went away))"
        rf".*(?:{_RESTART}|Stopp(?:ed|ing) .{{0,40}}(?:kubelet|Node Agent)"
        r"|kubelet\.service: (?:Succeeded|Deactivated|Main process exited|Scheduled restart))",
        flags=re.IGNORECASE,
    ),
)


# A kubelet that admits anew what it had admitted.
# Init containers that ask for a GPU, too.
_INIT: Final = message_line(r"^Init Containers:(?!\s*<none>)", "kubernetes-pod")
_OLD: Final = message_line(
    r"\bv1\.(?:25\.(?:\d|1[0-3])|26\.[0-8]|27\.[0-5])(?:[+-]\S+)?\b", "kubernetes-node", "kubernetes", "kubernetes-pod"
)


# What the kubelet has on record, and what takes a pod away without it.

_STALE: Final = any_of(
    command_run(r"kubelet_internal_checkpoint|--force\b.*--grace-period|--grace-period.*--force"),
    any_line(r"PodDeviceEntries|kubelet_internal_checkpoint|delete pods? .*--(?:force|grace-period)"),
)


def _free_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield GPUs that the scheduler has not assigned."""
    for node in snapshot.view(kubernetes_nodes.kube_nodes):
        for name, amount in node.allocatable.items():
            used = node.allocated.get(name)
            yield from (amount.citation, used.citation) if used is not None and used.value < amount.value else ()


_CHECKPOINT: Final = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_UNITS: Final = {"k3s": "k3s", "rke2": "rke2-agent", "k0s": "k0sworker", "microk8s": "snap.microk8s.daemon-kubelite"}


def _kubelet_unit(snapshot: Snapshot) -> str:
    """Return the unit that runs the kubelet; by default the product's usual one."""
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None and kubelet.value.unit:
        unit = kubelet.value.unit.removesuffix(".service")
        return unit if is_unit(unit) else "kubelet"
    return _UNITS.get(snapshot.view(containerd.kubernetes_product), "kubelet")


def _reset_checkpoint(snapshot: Snapshot) -> Iterable[Fix]:
    unit = _kubelet_unit(snapshot)
    yield restart(unit, "restart the kubelet: it reads again which devices its pods hold")
    yield _DELETE_REFUSED
    stop, start = command("sudo", "systemctl", "stop", unit), command("sudo", "systemctl", "start", unit)
    move = command("sudo", "mv", _CHECKPOINT, f"{_CHECKPOINT}.bak")
    yield run_step(
        "remove",
        "move the kubelet's record away while it is stopped; it creates a new one from the running pods",
        join_commands(stop, Shell("&&"), move, Shell("&&"), start),
        when="the devices are still held after the restart, and no pod with a GPU runs on the node",
    )


RULES: Final = (
    Rule(
        cause="device-plugin-not-ready-after-reboot",
        layer="kubernetes",
        disruption="restart-container",
        decisive=all_of(_REFUSED, _BOOTED),
        typical=unless(_NOT_HEALTHY, _WAS_RESTARTED, _OLD, _STALE),
        symptoms=(symptoms.POD_REFUSED,),
        context=any_of(_BOOTED, message_line(r"Registration Request received")),
        against=(_PAST, unless(UNHEALTHY, _BOOTED)),
        look_at=(Shell("kubectl get pods -A | grep Unexpected"), Shell("uptime")),
        share=2,
        summary="after its start the kubelet admitted GPU pods before the device plugin had reported any GPU",
        remedy=always(
            _DELETE_REFUSED,
            manual_step("configure", "start the device plugin first: give it the priority class system-node-critical"),
        ),
    ),
    Rule(
        cause="kubelet-restart-admission-bug",
        layer="kubernetes",
        disruption="restart-container",
        decisive=unless(all_of(_REFUSED, _WAS_RESTARTED, _OLD), _STALE),
        typical=any_of(
            unless(all_of(_REFUSED, any_of(_WAS_RESTARTED, _OLD, _INIT)), _STALE), all_of(_WAS_RESTARTED, _OLD)
        ),
        symptoms=(symptoms.POD_REFUSED,),
        against=(_PAST, _BOOTED),
        look_at=(Shell("kubectl get pods -A | grep Unexpected"), Shell("kubectl version")),
        share=2,
        summary="the kubelet was restarted and admitted its pods again before the device plugin was registered",
        remedy=always(
            _DELETE_REFUSED, manual_step("install", "upgrade the kubelet to 1.25.14, 1.26.9, 1.27.6, 1.28 or newer")
        ),
    ),
    Rule(
        cause="kubelet-stale-device-allocation",
        layer="kubernetes",
        disruption="restart-service",
        decisive=all_of(_REFUSED, any_of(_STALE, all_of(_FEWER, custom_sign(_free_gpus)))),
        typical=any_of(unless(_FEWER, _WAS_RESTARTED, _OLD, _INIT), all_of(_STALE, custom_sign(_free_gpus))),
        symptoms=(symptoms.POD_REFUSED, symptoms.POD_PENDING),
        context=_STALE,
        against=(_PAST, _BOOTED),
        look_at=(Shell("sudo cat /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),),
        share=2,
        summary="the kubelet still assigns GPUs to pods that no longer exist",
        remedy=_reset_checkpoint,
    ),
)
