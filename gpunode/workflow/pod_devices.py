"""Pods that hold GPUs, from the kubelet's device checkpoint: a pod that is merely allocated a GPU is no NVML client.

Source: kubernetes/kubernetes pkg/kubelet/cm/devicemanager/checkpoint. The entry of a pod that has ended may stay for a
while; its folder does not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

from gpunode.facts.evidence import Probe, decode_found
from gpunode.host.port import HostView

# kubeadm, k3s and RKE2; microk8s; k0s.
_KUBELET_ROOTS: Final = ("/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet")


def find_gpu_pods(host: HostView, gpus: Collection[str]) -> tuple[str, ...]:
    """Return a phrase for each pod that holds one of ``gpus`` or any MIG instance."""
    return tuple(dict.fromkeys(one for root in _KUBELET_ROOTS for one in _pods_of_kubelet(host, root, gpus)))


def _pods_of_kubelet(host: HostView, root: str, gpus: Collection[str]) -> Iterator[str]:
    path = f"{root}/device-plugins/kubelet_internal_checkpoint"
    checkpoint = host.look(Probe("pod-devices", path=path, content_kind="table"))
    if checkpoint.outcome == "absent":
        return
    if checkpoint.outcome != "ok":
        yield f"unknown pods, because {path} cannot be read ({checkpoint.error or checkpoint.outcome})"
        return
    folders = host.look(Probe("pod-folders", glob=f"{root}/pods/*", contents=False, content_kind="table"))
    running = {one.path.rpartition("/")[2] for one in decode_found(folders.data)} if folders.outcome == "ok" else None
    try:
        entries: Any = json.loads(checkpoint.data)["Data"]["PodDeviceEntries"] or ()
        for entry in entries:
            pod, resource = str(entry["PodUID"]), str(entry["ResourceName"])
            if running is None or pod in running:
                devices = [
                    one for one in _device_ids(entry["DeviceIDs"]) if one.startswith("MIG-") or _is_device_of(one, gpus)
                ]
                if devices:
                    yield f"pod {pod} ({resource})"
    except (ValueError, LookupError, TypeError, AttributeError):
        yield f"unknown pods, because {path} cannot be understood"


def _is_device_of(device: str, gpus: Collection[str]) -> bool:
    """Return whether the device is one of ``gpus``, or a share of one as HAMi numbers them (``GPU-…-3``)."""
    return device in gpus or device.rpartition("-")[0] in gpus


def _device_ids(ids: Any) -> Iterator[str]:
    """Yield the device ids, grouped by NUMA node since Kubernetes 1.20, without the number of a share."""
    groups = ids.values() if isinstance(ids, dict) else [ids]
    yield from (str(one).partition("::")[0] for group in groups for one in group)
