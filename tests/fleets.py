"""Fleets of any size: captures of healthy nodes of three models, some with injected faults that gpunode must find."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from gpunode.facts.evidence import Evidence
from gpunode.host.capture import save_capture
from tests.scenarios.healthy import captures, nodes

Edit: TypeAlias = Callable[[Evidence], Evidence]
# The number of nodes of each model among twenty.
_MODELS: Final = ((13, nodes.hgx_with_fabric_manager), (5, nodes.ubuntu_24_containerd), (2, nodes.debian_12_docker))
_TWENTY: Final = 20


def _replaced(key: str, old: str, new: str) -> Edit:
    def edit(evidence: Evidence) -> Evidence:
        before = evidence[key]
        assert old.encode() in before.data, (key, old)
        return {**evidence, key: replace(before, data=before.data.replace(old.encode(), new.encode()))}

    return edit


def _all(*edits: Edit) -> Edit:
    def edit(evidence: Evidence) -> Evidence:
        for one in edits:
            evidence = one(evidence)
        return evidence

    return edit


def _said(key: str, text: str) -> Edit:
    """Return an edit that makes the command fail with the message ``text``."""

    def edit(evidence: Evidence) -> Evidence:
        return {**evidence, key: replace(evidence[key], outcome="failed", data=text.encode(), exit_status=1)}

    return edit


def _logged(line: str) -> Edit:
    """Return an edit that ends the kernel's log with ``line``, about the first GPU."""

    def edit(evidence: Evidence) -> Evidence:
        log = evidence["kernel-journal"]
        gpu = evidence["lspci"].data.decode().partition("NVIDIA")[0].rpartition("Slot:\t")[2][:12]
        last = captures.journal([line.format(gpu=gpu, bus=gpu[:-2])], start="2026-11-16T09:10").encode()
        return {**evidence, "kernel-journal": replace(log, data=log.data + last)}

    return edit


def _nvml(code: int, name: str, text: str) -> Edit:
    error = {"schema": 1, "error": {"code": code, "name": name, "text": text}}

    def edit(evidence: Evidence) -> Evidence:
        return {**evidence, "nvml": replace(evidence["nvml"], data=json.dumps(error).encode())}

    return edit


def _older_module(evidence: Evidence) -> Evidence:
    """Return the node with a loaded module of the previous release."""
    version = evidence["file:/sys/module/nvidia/version"].data.decode().strip()
    older = f"{version[:-1]}0"
    edits = [_replaced(key, version, older) for key in ("file:/sys/module/nvidia/version", "nvidia-version")]
    return _all(*edits)(evidence)


_MISMATCH: Final = "Failed to initialize NVML: Driver/library version mismatch\n"
_LOST: Final = (
    "Unable to determine the device handle for GPU0: {gpu}: GPU is lost.  Reboot the system to recover this GPU\n"
)
_SMI: Final = ("smi", "smi-query", "smi-nvlink", "smi-topology", "smi-mig")


def _silent(text: str, nvml: Edit) -> Edit:
    return _all(nvml, *(_said(key, text) for key in _SMI))


# Edits by the cause that doctor must name.
FAULTS: Final[Mapping[str, Edit]] = {
    "gpu-fallen-off-bus": _all(
        _logged("NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        _silent(_LOST, _nvml(15, "GpuIsLost", "GPU is lost")),
    ),
    "gsp-rpc-timeout": _all(
        _logged(
            "NVRM: Xid (PCI:{bus}): 119, pid=1423, name=python, Timeout after 45s of waiting for RPC response from "
            "GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a70 0x4)."
        ),
        _silent("No devices were found\n", _nvml(10, "Timeout", "Timeout")),
    ),
    "driver-library-mismatch-reboot-pending": _all(
        _older_module,
        _silent(_MISMATCH, _nvml(18, "LibRmVersionMismatch", "RM has detected an NVML/RM version mismatch.")),
    ),
}
# Edits by the name of the difference that must be reported.
ODD: Final[Mapping[str, Edit]] = {
    "VBIOS of the GPUs": _replaced("smi-query", "95.02.66.00.02", "95.02.3c.00.01"),
    "BIOS version": _replaced("file:/sys/class/dmi/id/bios_version", "2.4a", "2.1"),
    "iommu": _replaced("file:/proc/cmdline", " ro ", " ro iommu=pt "),
    "nvidia_drm.modeset": _replaced(
        "nvidia-parameters",
        '"/sys/module/nvidia_drm/parameters/modeset", "text": "Y',
        '"/sys/module/nvidia_drm/parameters/modeset", "text": "N',
    ),
}


@dataclass(slots=True)
class Injected:
    """A fault that was put into a fleet, by the report's name."""

    faults: dict[str, str] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)


def make(folder: Path, size: int, every: int = 100) -> Injected:
    """Write ``size`` captures to ``folder``: one in ``every`` faulty, one odd, one in five times that unreadable.

    Healthy nodes of one model are links to one file, because only their number matters.
    """
    injected = Injected()
    first: dict[int, Path] = {}
    for number in range(size):
        file = folder / f"rack{number // 40:03}-n{number % 40:02}.tar.gz"
        evidence = _bases()[number * 7 % _TWENTY]
        place, turn = number % every, number // every
        if place == 7:
            cause = injected.faults[file.name] = list(FAULTS)[turn % len(FAULTS)]
            save_capture(FAULTS[cause](evidence), file)
        elif place == 13:
            name = injected.odd[file.name] = list(ODD)[turn % len(ODD)]
            save_capture(ODD[name](evidence), file)
        elif place == 17 and turn % 5 == 0:
            injected.unread.add(file.name)
            file.write_bytes(b"\x1f\x8b broken")
        elif id(evidence) in first:
            os.link(first[id(evidence)], file)
        else:
            first[id(evidence)] = file
            save_capture(evidence, file)
    return injected


@cache
def _bases() -> tuple[Evidence, ...]:
    """Return a node of each model, repeated as often as the model occurs among twenty nodes."""
    return tuple(one for share, node in _MODELS for one in (captures.evidence(node()),) * share)
