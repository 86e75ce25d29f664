"""Which pods have been given GPUs, by the kubelet's own account: a pod that only holds a GPU is no client of NVML.

Source: kubernetes/kubernetes pkg/kubelet/cm/devicemanager/checkpoint; the entry of a pod that has ended may stay for a
while, its folder does not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

from gpunode.facts.evidence import Probe, decode_found
from gpunode.host.port import HostView

# Of kubelets on their own, k3s and RKE2; of microk8s; of k0s.
_ROOTS: Final = ("/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet")


def holders(host: HostView, gpus: Collection[str]) -> tuple[str, ...]:
    """The pods that hold one of ``gpus``, or a MIG instance of any, a phrase each."""
    return tuple(dict.fromkeys(one for root in _ROOTS for one in _of(host, root, gpus)))


def _of(host: HostView, root: str, gpus: Collection[str]) -> Iterator[str]:
    path = f"{root}/device-plugins/kubelet_internal_checkpoint"
    checkpoint = host.look(Probe("pod-devices", path=path, holds="table"))
    if checkpoint.outcome == "absent":
        return
    if checkpoint.outcome != "ok":
        yield f"pods that cannot be told, since {path} cannot be read ({checkpoint.error or checkpoint.outcome})"
        return
    listed = host.look(Probe("pod-folders", glob=f"{root}/pods/*", contents=False, holds="table"))
    there = {one.path.rpartition("/")[2] for one in decode_found(listed.data)} if listed.outcome == "ok" else None
    try:
        entries: Any = json.loads(checkpoint.data)["Data"]["PodDeviceEntries"] or ()
        for entry in entries:
            pod, resource = str(entry["PodUID"]), str(entry["ResourceName"])
            if there is None or pod in there:
                held = [one for one in _devices(entry["DeviceIDs"]) if one.startswith("MIG-") or _is_of(one, gpus)]
                if held:
                    yield f"pod {pod} ({resource})"
    except (ValueError, LookupError, TypeError, AttributeError):
        yield f"pods that cannot be told, since {path} cannot be understood"


def _is_of(device: str, gpus: Collection[str]) -> bool:
    """Whether it is one of ``gpus``, or a share of one as HAMi numbers them (``GPU-…-3``)."""
    return device in gpus or device.rpartition("-")[0] in gpus


def _devices(ids: Any) -> Iterator[str]:
    """The devices, by NUMA node since Kubernetes 1.20; a shared one has the number of its share at its end."""
    groups = ids.values() if isinstance(ids, dict) else [ids]
    yield from (str(one).partition("::")[0] for group in groups for one in group)
