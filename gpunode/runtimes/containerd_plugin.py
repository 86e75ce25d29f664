"""The desired table of the CRI plugin: the handler's entry, the default runtime, the cgroup driver. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Final

from gpunode.runtimes.containerd_files import FIRST_WITH_NEW_NAMES, find_overriding_default, merge_tables
from gpunode.runtimes.documents import Document
from gpunode.runtimes.model import (
    NAMELESS_DEFAULT_NAME,
    RUNC_FAMILY,
    DesiredConfig,
    cgroup_handlers,
    is_under_systemd,
    keeps_builtin_handlers,
    needs_runc,
)

RUNC_RUNTIME_TYPE: Final = "io.containerd.runc.v2"
OLD_RUNC_RUNTIME_TYPE: Final = "io.containerd.runtime.v1.linux"
_RUNC_RUNTIME_TYPE_PREFIXES = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")
# What nvidia-ctk writes where there is no runtime to copy from.
_GENERIC_RUNC_ENTRY: Document = {
    "runtime_type": RUNC_RUNTIME_TYPE,
    "runtime_root": "",
    "runtime_engine": "",
    "privileged_without_host_devices": False,
}


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The context in which a CRI table is read.

    Attributes:
        inherited: the table whose default runtime the entry is copied from, and whose runtimes count beside its own.
        schema: of the file with the table.
        is_loaded: whether the CRI plugin is switched on, so that it needs a default runtime.
    """

    inherited: Document
    schema: int
    is_loaded: bool = True


def with_handler(plugin: Document, beside: PluginContext, desired: DesiredConfig) -> Document:
    """Return the table ``plugin`` with the requested handler; its shape has been checked."""
    result = dict(plugin)
    containerd = result["containerd"] = dict(plugin.get("containerd", {}))
    runtimes = containerd["runtimes"] = copy.deepcopy(containerd.get("runtimes", {}))
    former = beside.inherited.get("containerd", {})
    known = {**copy.deepcopy(former.get("runtimes", {})), **runtimes}
    whole = merge_tables(beside.inherited, plugin)
    nameless = {} if mimics_nvidia_ctk(desired) else find_overriding_default(whole, desired)
    model = _find_template(known, nameless, former.get("default_runtime_name", ""), desired)
    former_default = whole.get("containerd", {}).get("default_runtime_name") or "runc"
    is_default_under_systemd = is_under_systemd(
        NAMELESS_DEFAULT_NAME if nameless else former_default, find_systemd_cgroup_settings(whole, desired)
    )
    runtimes[desired.handler] = known[desired.handler] = _make_handler_entry(
        known.get(desired.handler), model, beside, desired
    )
    if desired.default:
        containerd["default_runtime_name"] = desired.handler
        if find_overriding_default(plugin, desired) and not mimics_nvidia_ctk(desired):
            del containerd["default_runtime"]  # nvidia-ctk leaves it, and what it writes is not the default
            # With this beside a default runtime of a later kind no CRI plugin loads (1.6.20 and 1.7.24, started).
            if result.get("systemd_cgroup") and runtimes[desired.handler]["runtime_type"] != OLD_RUNC_RUNTIME_TYPE:
                del result["systemd_cgroup"]
                desired = replace(desired, systemd_cgroup=True)
    elif desired.not_default and desired.handler in {one.get("default_runtime_name") for one in (containerd, former)}:
        containerd["default_runtime_name"] = "runc"
    default = containerd.get("default_runtime_name") or former.get("default_runtime_name") or "runc"
    # Also where another runtime becomes the default: a RuntimeClass may name runc.
    if beside.is_loaded and any(needs_runc(one, known, beside.schema, desired) for one in (former_default, default)):
        runtimes["runc"] = known["runc"] = _make_runc_entry(model)
    _enable_systemd_cgroup(runtimes, known, desired, is_default_under_systemd=is_default_under_systemd)
    if desired.cdi:
        # nvidia-ctk's place for schema 1 is one that containerd does not read.
        (containerd if beside.schema == 1 and mimics_nvidia_ctk(desired) else result)["enable_cdi"] = True
    return result


def find_systemd_cgroup_settings(plugin: Document, desired: DesiredConfig) -> dict[str, bool]:
    """Return SystemdCgroup of each runtime of the CRI plugin's table that mentions it.

    containerd 1 has two older places: the options of the nameless default runtime, and a key of the plugin that holds
    for a default runtime of the oldest type (pkg/cri/config: ValidatePluginConfig, 1.6.20 and 1.7.24).
    """
    containerd = plugin.get("containerd", {})
    nameless = find_overriding_default(plugin, desired)
    entries = {**containerd.get("runtimes", {}), **({NAMELESS_DEFAULT_NAME: nameless} if nameless else {})}
    options = {name: entry.get("options", {}) for name, entry in entries.items()}
    found = {name: each["SystemdCgroup"] for name, each in options.items() if "SystemdCgroup" in each}
    if plugin.get("systemd_cgroup") is True and not desired.reaches(FIRST_WITH_NEW_NAMES):
        found[NAMELESS_DEFAULT_NAME if nameless else containerd.get("default_runtime_name") or "runc"] = True
    return found


def explain_runc_entry(schema: int, desired: DesiredConfig) -> str:
    """Why the file gets a table for runc, too; see ``needs_runc``."""
    if keeps_builtin_handlers(schema, desired):
        return "also lists runc: the built-in one uses cgroupfs"
    return "also lists runc: containerd drops its built-in entry once a file lists another runtime"


def mimics_nvidia_ctk(desired: DesiredConfig) -> bool:
    """Return whether to follow nvidia-ctk where containerd makes nothing of it: no daemon is known."""
    return desired.exact and desired.mode != "auto" and desired.version is None


def _find_template(runtimes: Document, nameless: Document, default: str, desired: DesiredConfig) -> Document:
    """Return what a new entry is copied from: the default runtime, else runc, else crun, else the present entry."""
    first = () if not default or default.startswith("nvidia") else (default,)
    named = [runtimes[name] for name in (*first, *RUNC_FAMILY, desired.handler) if name in runtimes]
    # The oldest type's keys mean nothing to runc's shim.
    candidates = [nameless, *named] if nameless and nameless["runtime_type"] != OLD_RUNC_RUNTIME_TYPE else named
    # Options of a VM's shim mean nothing to runc's shim, the only one that runs the NVIDIA runtime.
    found: Document = copy.deepcopy(next((entry for entry in candidates if is_runc_shim(entry)), _GENERIC_RUNC_ENTRY))
    return found


def _make_handler_entry(
    existing: Document | None, template: Document, beside: PluginContext, desired: DesiredConfig
) -> Document:
    """Return the handler's table: the existing one, made to run our binary, or else a copy of ``template``.

    An existing one keeps every key. Where it ran another binary, the keys that it lacks are those of ``template``.
    """
    if existing and _runs_binary(existing, desired.binary):
        return existing
    kept = existing if existing and is_runc_shim(existing) else {}
    entry = {**copy.deepcopy(template), **copy.deepcopy(kept)}
    entry["runtime_type"] = entry.get("runtime_type") or RUNC_RUNTIME_TYPE
    entry["options"] = {**template.get("options", {}), **kept.get("options", {}), "BinaryName": desired.binary}
    if beside.schema == 1:
        entry["options"]["Runtime"] = desired.binary
    return entry


def _make_runc_entry(source: Document) -> Document:
    """Runc with the options of ``source``, so that it and the handler stay alike."""
    options = {key: value for key, value in source.get("options", {}).items() if key not in {"BinaryName", "Runtime"}}
    rest = {key: value for key, value in source.items() if key != "options"}
    return {
        **rest,
        "runtime_type": source.get("runtime_type") or RUNC_RUNTIME_TYPE,
        **({"options": options} if options else {}),
    }


def is_runc_shim(entry: Document) -> bool:
    """Return whether runc's shim runs it: also an entry without a type, and a variable of microk8s'."""
    return str(entry.get("runtime_type") or RUNC_RUNTIME_TYPE).startswith((*_RUNC_RUNTIME_TYPE_PREFIXES, "${"))


def _runs_binary(entry: Document, binary: str) -> bool:
    is_typed = bool(entry.get("runtime_type")) and is_runc_shim(entry)
    return is_typed and entry.get("options", {}).get("BinaryName") == binary


def _enable_systemd_cgroup(
    runtimes: Document, known: Document, desired: DesiredConfig, *, is_default_under_systemd: bool
) -> None:
    """Put the handlers under systemd's driver where desired, or the desired one if the default runtime is under it.

    Pods of one node have one cgroup driver: a handler under another one than kubelet's starts no pod. One that is under
    systemd's stays there: runc's table may be left over, or say nothing because another runtime is the default.
    """
    if desired.systemd_cgroup:
        for name in cgroup_handlers(desired, known):
            former = runtimes[name] if name in runtimes else known[name]
            runtimes[name] = {**former, "options": {**former.get("options", {}), "SystemdCgroup": True}}
    elif is_default_under_systemd:
        runtimes[desired.handler].setdefault("options", {})["SystemdCgroup"] = True
