"""The desired table of the CRI plugin: the handler's entry, the default runtime, the cgroup driver. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Final

from gpunode.runtimes.containerd_files import overruling
from gpunode.runtimes.model import RUNC_FAMILY, DesiredConfig, cgroup_handlers, keeps_built_in, needs_runc
from gpunode.runtimes.tomlread import Document

GENERIC_TYPE: Final = "io.containerd.runc.v2"
_OLD_TYPE: Final = "io.containerd.runtime.v1.linux"
_OF_RUNC = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")
# What nvidia-ctk writes where there is no runtime to copy from.
_GENERIC: Document = {
    "runtime_type": GENERIC_TYPE,
    "runtime_root": "",
    "runtime_engine": "",
    "privileged_without_host_devices": False,
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a CRI table is read beside.

    Attributes:
        inherited: the table whose default runtime the entry is copied from, and whose runtimes count beside its own.
        schema: of the file that the table stands in.
        is_loaded: whether the CRI plugin is switched on, so that it needs a default runtime.
        own: the table of a drop-in that is there already, whose entry keeps what else it says.
    """

    inherited: Document
    schema: int
    is_loaded: bool = True
    own: Document = field(default_factory=dict)


def with_handler(plugin: Document, beside: Surroundings, desired: DesiredConfig) -> Document:
    """The table ``plugin`` with the requested handler; its shape has been checked."""
    result = dict(plugin)
    containerd = result["containerd"] = dict(plugin.get("containerd", {}))
    runtimes = containerd["runtimes"] = copy.deepcopy(containerd.get("runtimes", {}))
    former = beside.inherited.get("containerd", {})
    known = {**copy.deepcopy(former.get("runtimes", {})), **runtimes}
    stood_in_for = _stood_in_for(known, former.get("default_runtime_name", ""), desired)
    runtimes[desired.handler] = known[desired.handler] = _entry(
        known.get(desired.handler), stood_in_for, beside, desired
    )
    if desired.default:
        containerd["default_runtime_name"] = desired.handler
        if overruling(plugin, desired) and not follows_blindly(desired):
            del containerd["default_runtime"]  # nvidia-ctk leaves it, and what it writes is not the default
            # With this beside a default runtime of a later kind no CRI plugin loads (1.6.20 and 1.7.24, started).
            if result.get("systemd_cgroup") and runtimes[desired.handler]["runtime_type"] != _OLD_TYPE:
                del result["systemd_cgroup"]
                desired = replace(desired, systemd_cgroup=True)
    elif desired.not_default and desired.handler in {one.get("default_runtime_name") for one in (containerd, former)}:
        containerd["default_runtime_name"] = "runc"
    default = containerd.get("default_runtime_name") or former.get("default_runtime_name") or "runc"
    if beside.is_loaded and needs_runc(default, known, beside.schema, desired):
        runtimes["runc"] = known["runc"] = _plain(stood_in_for)
    _set_cgroup(runtimes, known, default, desired)
    if desired.cdi:
        # nvidia-ctk's place for schema 1 is one that containerd does not read.
        (containerd if beside.schema == 1 and follows_blindly(desired) else result)["enable_cdi"] = True
    return result


def why_runc(schema: int, desired: DesiredConfig) -> str:
    """Why the file gets a table for runc, too; see ``needs_runc``."""
    if keeps_built_in(schema, desired):
        return "also lists runc: the built-in one uses cgroupfs"
    return "also lists runc: containerd drops its built-in entry once a file lists another runtime"


def follows_blindly(desired: DesiredConfig) -> bool:
    """Whether nvidia-ctk is followed also where containerd makes nothing of it: as asked, by who knows no daemon."""
    return desired.exact and desired.mode != "auto" and desired.version is None


def _stood_in_for(runtimes: Document, default: str, desired: DesiredConfig) -> Document:
    """The runtime that the handler stands in for: the default one, else runc, else crun, else what it is itself."""
    first = () if not default or default.startswith("nvidia") else (default,)
    candidates = (runtimes[name] for name in (*first, *RUNC_FAMILY, desired.handler) if name in runtimes)
    # What a VM's shim is told means nothing to runc's, which alone runs the NVIDIA runtime.
    found: Document = copy.deepcopy(next((entry for entry in candidates if is_of_runc(entry)), _GENERIC))
    return found


def _entry(existing: Document | None, source: Document, beside: Surroundings, desired: DesiredConfig) -> Document:
    """The handler's table: a copy of ``source`` that runs our binary, or what is there if that will do."""
    if existing and not desired.exact and _runs(existing, desired.binary):
        return existing
    kept: Document = beside.own.get("containerd", {}).get("runtimes", {}).get(desired.handler, {})
    entry = {**copy.deepcopy(kept), **copy.deepcopy(source)}
    entry["runtime_type"] = entry.get("runtime_type") or GENERIC_TYPE
    entry["options"] = {**kept.get("options", {}), **entry.get("options", {}), "BinaryName": desired.binary}
    if beside.schema == 1:
        entry["options"]["Runtime"] = desired.binary
    return entry


def _plain(source: Document) -> Document:
    """Runc with the options of ``source``, so that it and the handler stay alike."""
    options = {key: value for key, value in source.get("options", {}).items() if key not in {"BinaryName", "Runtime"}}
    rest = {key: value for key, value in source.items() if key != "options"}
    return {
        **rest,
        "runtime_type": source.get("runtime_type") or GENERIC_TYPE,
        **({"options": options} if options else {}),
    }


def is_of_runc(entry: Document) -> bool:
    """Whether runc's shim runs it, as it does an entry without a type, and what a variable of microk8s' stands for."""
    return str(entry.get("runtime_type") or GENERIC_TYPE).startswith((*_OF_RUNC, "${"))


def _runs(entry: Document, binary: str) -> bool:
    is_typed = bool(entry.get("runtime_type")) and is_of_runc(entry)
    return is_typed and entry.get("options", {}).get("BinaryName") == binary


def _set_cgroup(runtimes: Document, known: Document, default: str, desired: DesiredConfig) -> None:
    """Puts the handlers under systemd's driver where desired, else the desired one under that of the default runtime.

    Pods of one node have one cgroup driver: a handler under another one than kubelet's starts no pod.
    """
    if desired.systemd_cgroup:
        for name in cgroup_handlers(desired, known):
            former = runtimes[name] if name in runtimes else known[name]
            runtimes[name] = {**former, "options": {**former.get("options", {}), "SystemdCgroup": True}}
    elif default in RUNC_FAMILY and default in known:
        theirs = known[default].get("options", {}).get("SystemdCgroup", False)
        ours = runtimes[desired.handler]["options"]
        if ours.get("SystemdCgroup", False) != theirs:
            ours["SystemdCgroup"] = theirs
