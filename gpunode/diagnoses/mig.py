"""MIG: a mode that waits for a reset, a mode without instances, and who may see or change them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import ADDRESS, Command, Shell, gpu_command
from gpunode.diagnoses.consequences import NO_CLUSTER_GPU
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule, Sign
from gpunode.diagnoses.remedies import always, drain, manual_step, reboot, reset_gpu, run_step
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite_fact
from gpunode.diagnoses.views import pci, smi_query
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

_BUS: Final = Pattern(r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")
_SMI: Final[tuple[Kind, ...]] = ("nvidia-smi", "nvidia-smi-mig", "nvidia-smi-q", "container-run", "text")
_ANNOUNCED: Final = any_of(
    message_line(
        r"MIG mode is in pending (?:enable|disable) state|(?:reboot the system|reset) .{0,40}to make MIG mode"
        r"|unable to apply MIG config with MIG mode disabled|Error applying MIG configuration.{0,60}error resetting"
        r"|Mode change pending: true"
    ),
    all_of(
        message_line(r"The following GPUs could not be reset"),
        any_of(command_run(r"\bmig\b|mig-"), message_line(r"\bMIG\b|nvidia-mig-|mig-manager", flags=re.IGNORECASE)),
    ),
)
_NO_INSTANCES: Final = message_line(r"No (?:GPU|compute) instances found|No MIG devices found", *_SMI)
# The device plugin and GPU feature discovery, of a GPU whose mode is on.
_PLUGIN_FINDS_NONE: Final = message_line(
    r"device \d+ has (?:an invalid MIG configuration|no MIG devices configured)"
    r"|device with migEnabled=true was not configured correctly"
)
_INSTANCE: Final = message_line(
    # Among the profiles, which are offers, a row counts what is free of how many.
    r"^\|\s+\d+\s+MIG \d+g\.\d+gb(?![^\n]{0,40}\d/\d)|^[ \t]*MIG\s+\d+(?:c\.\d+)?g\.\d+gb\S*\s+Device\s+\d+"
    r"|UUID: MIG-|/MIG-GPU-"
    r"|^\|\s+\d+\s+\d+\s+\d+\s+\d+\s+\|",
    *_SMI, "application"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _MigMode:
    """The MIG mode of one GPU.

    Attributes:
        gpu: name for commands; empty if unknown.
        pending: the mode after the next reset; by default the current one.
    """

    gpu: str
    current: bool
    pending: bool
    citation: Citation

    @property
    def is_pending(self) -> bool:
        """True if the mode changes at the next reset."""
        return self.current != self.pending


_ON: Final = {"enabled": True, "disabled": False}


def _mig_modes(snapshot: Snapshot) -> Iterator[_MigMode]:
    for gpu in snapshot.view(smi_query.smi_gpus):
        row = gpu.find("MIG Mode", "Current")
        current = _ON.get(row.value.lower()) if row else None
        if row and current is not None:
            pending = gpu.find("MIG Mode", "Pending") or row
            yield _MigMode(gpu.name, current, _ON.get(pending.value.lower(), current), pending.citation)


def _mode_sign(holds: Callable[[_MigMode], bool], in_table: str) -> Sign:
    """Return the sign of GPUs whose mode satisfies ``holds``; in the table it is the last cell of a GPU."""
    by_query = custom_sign(lambda snapshot: (mode.citation for mode in _mig_modes(snapshot) if holds(mode)))
    return any_of(by_query, message_line(rf"^\|[^|]*\|[^|]*\|\s+{in_table}\s+\|\s*$", *_SMI))


# A star says that the other mode is pending.
_WAITS: Final = _mode_sign(lambda mode: mode.is_pending, r"(?:Enabled|Disabled)\*")
_SETTLED: Final = _mode_sign(lambda mode: not mode.is_pending, r"(?:Enabled|Disabled)")
_MODES: Final = any_of(_WAITS, _SETTLED)
_ENABLED: Final = _mode_sign(lambda mode: mode.current and mode.pending, "Enabled")
_CURRENTLY_ON: Final = _mode_sign(lambda mode: mode.current, r"Enabled\*?")


def _find_pending(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield each GPU with a pending mode, by nvidia-smi's answer, else by its warning."""
    waiting = {mode.gpu: mode.citation for mode in _mig_modes(snapshot) if mode.is_pending}
    for one in snapshot.view(_ANNOUNCED) if not waiting else ():
        if "pending" in one.line and (match := _BUS.search(one.line)):
            waiting[pci.normalize_address(match["bus"])] = one
    return (Proof(_WAITING, (place,), gpu=gpu) for gpu, place in waiting.items())


_WAITING: Final = "a change of the MIG mode waits for a GPU reset, which is blocked because it is in use"


def _capability_files(snapshot: Snapshot, *, are_there: bool) -> Iterator[Citation]:
    """Yield what the driver's own files show of instances on an examined node."""
    layout = snapshot.facts.layout
    if isinstance(layout, Known) and layout.value is not None and bool(layout.value.mig_caps) is are_there:
        yield cite_fact("/proc/driver/nvidia/capabilities", "the present compute instances", layout.probe)


_EMPTY: Final = all_of(
    _ENABLED, any_of(_NO_INSTANCES, custom_sign(lambda node: _capability_files(node, are_there=False)))
)
_INSTANCES: Final = any_of(_INSTANCE, custom_sign(lambda node: _capability_files(node, are_there=True)))


def _find_empty(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield each GPU with MIG mode on and no instance."""
    summary = "MIG is enabled but no instance was created, so CUDA finds no usable device"
    for mode in _mig_modes(snapshot) if snapshot.view(_EMPTY) else ():
        if mode.current and mode.pending:
            yield Proof(summary, (mode.citation, *snapshot.view(_EMPTY)), gpu=mode.gpu)


def _smi_command(*words: str) -> Command:
    return gpu_command("sudo", "nvidia-smi", *words)


_CREATE: Final = always(
    run_step(
        "configure",
        "create instances (profile 0 is the whole GPU)",
        _smi_command("mig", "-i", ADDRESS, "-cgi", "0", "-C"),
    ),
    run_step(
        "inspect",
        "list the available profiles",
        _smi_command("mig", "-i", ADDRESS, "-lgip"),
        when="the GPU is to be divided",
    ),
    run_step(
        "configure",
        "or turn MIG off again",
        _smi_command("-i", ADDRESS, "-mig", "0"),
        when="the GPU is not to be shared",
    ),
)


_DENIED: Final = message_line(
    r"^(?!.*Failed to initialize NVML).*(?:Insufficient Permissions|NVML_ERROR_NO_PERMISSION|NVMLError_NoPermission)"
)
_SHARED: Final = any_of(
    command_run(r"\bmig\b"),
    message_line(r"\bMIG\b|compute instances|GPU instances|mig[ _]?[sS]trategy[\"']?\s*[:=]\s*[\"']?(?:single|mixed)"),
    _MODES, _INSTANCE
)  # fmt: skip


def _grant_access(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_MODES) and not snapshot.view(_CURRENTLY_ON):
        yield run_step("configure", "turn MIG on, if it is intended", _smi_command("-i", ADDRESS, "-mig", "1"))
    elif any(item.where == "container" or item.kind.startswith("kubernetes") for item in snapshot.items):
        text = "give the container NVIDIA_MIG_MONITOR_DEVICES=all to see instances"
        yield manual_step("configure", f"{text}, NVIDIA_MIG_CONFIG_DEVICES=all to change them")
    else:
        yield run_step("inspect", "run it as root", Shell("sudo nvidia-smi mig -lgi"))


_rule = partial(Rule, layer="config")

RULES: Final = (
    _rule(
        cause="mig-mode-pending-reset",
        shows_in="gpu",
        disruption="reset-gpu",
        check=_find_pending,
        share=1,
        decisive=any_of(_WAITS, unless(_ANNOUNCED, _SETTLED)),
        summary=_WAITING,
        symptoms=(_WAITS, _ANNOUNCED, symptoms.CUDA_NO_DEVICE, symptoms.CUDA_BUSY, symptoms.RESET_REFUSED),
        look_at=(Shell("nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv"),),
        context=command_run(r"nvidia-smi\b[^|;]* -mig\b|mig\.mode"),
        remedy=always(
            drain("stop what holds the GPU: jobs, DCGM and its exporter, persistenced, a display"),
            reset_gpu("reset the GPU; the new mode then takes effect"),
            reboot(when="the GPU cannot be reset, as in a virtual machine"),
        ),
        explains=frozenset({"mig-enabled-no-instances", "mig-capabilities-permission"}) | NO_CLUSTER_GPU,
    ),
    _rule(
        cause="mig-enabled-no-instances",
        shows_in="gpu",
        disruption="none",
        check=_find_empty,
        share=0.7,
        decisive=any_of(_PLUGIN_FINDS_NONE, _EMPTY),
        typical=any_of(unless(_NO_INSTANCES, _MODES), all_of(_ENABLED, symptoms.CUDA_NO_DEVICE)),
        symptoms=(_EMPTY, _NO_INSTANCES, _PLUGIN_FINDS_NONE, symptoms.NO_DEVICES, symptoms.CUDA_NO_DEVICE),
        against=(_INSTANCES,),
        summary="MIG is enabled but no instance was created, so CUDA finds no usable device",
        look_at=(Shell("nvidia-smi mig -lgi"), Shell("nvidia-smi -L")),
        context=_ENABLED,
        remedy=_CREATE,
        explains=NO_CLUSTER_GPU,
    ),
    _rule(
        cause="mig-capabilities-permission",
        shows_in="driver",
        disruption="none",
        share=1,
        symptoms=(symptoms.DENIED, symptoms.NVML_UNKNOWN, symptoms.CUDA_NO_DEVICE),
        look_at=(Shell("ls -l /dev/nvidia-caps"),),
        decisive=all_of(_DENIED, _SHARED),
        summary="the program may not view or change MIG instances, or MIG is off on the GPU",
        typical=message_line(
            r"(?:memory info|visiting device|\bMIG\b|instances?)[^\n]{0,60}Insufficient Permissions"
            r"|NVMLError_NoPermission|NVML_ERROR_NO_PERMISSION"
            r"|/nvidia-caps\S{0,20}: (?:No such file|Permission denied)"
        ),
        context=any_of(command_run(r"nvidia-caps|nvidia-smi mig\b|capabilities/mig"), _MODES),
        remedy=_grant_access,
        explains=NO_CLUSTER_GPU,
    ),
)
