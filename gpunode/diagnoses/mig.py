"""MIG: a mode that waits for a reset, a mode without instances, and who may see or change them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DEVICE_PLUGIN
from gpunode.diagnoses.chains import NO_CLUSTER_GPU
from gpunode.diagnoses.commands import Shell, at, command, of_gpu
from gpunode.diagnoses.model import Citation, Family, Fix, Rule
from gpunode.diagnoses.remedies import by_hand, drain, reboot, run
from gpunode.diagnoses.signs import all_of, any_of, asked, fact, line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
from gpunode.diagnoses.views import pci, smi_query
from gpunode.diagnoses.views.smi_rows import Row
from gpunode.diagnoses.views.topology import addresses
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

# The third line of a GPU in nvidia-smi's table; a star says that another mode is pending.
_TABLE: Final = Pattern(r"^\|[^|]*\|[^|]*\|\s+(?P<mode>Enabled|Disabled)(?P<pending>\*?)\s+\|\s*$")
_BUS: Final = Pattern(r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")
_SMI: Final[tuple[Kind, ...]] = ("nvidia-smi", "nvidia-smi-mig", "nvidia-smi-q", "container-run", "text")
_SAID: Final = any_of(
    line(
        r"MIG mode is in pending (?:enable|disable) state|(?:reboot the system|reset) .{0,40}to make MIG mode"
        r"|unable to apply MIG config with MIG mode disabled|Error applying MIG configuration.{0,60}error resetting"
        r"|Mode change pending: true"
    ),
    all_of(
        line(r"The following GPUs could not be reset"),
        any_of(asked(r"\bmig\b|mig-"), line(r"\bMIG\b|nvidia-mig-|mig-manager", flags=re.IGNORECASE)),
    ),
)
_NO_INSTANCES: Final = line(r"No (?:GPU|compute) instances found|No MIG devices found", *_SMI)
# The device plugin and GPU feature discovery, of a GPU whose mode is on.
_PLUGIN_FINDS_NONE: Final = line(
    r"device \d+ has (?:an invalid MIG configuration|no MIG devices configured)"
    r"|device with migEnabled=true was not configured correctly"
)
_INSTANCE: Final = line(
    # Among the profiles, which are offers, a row counts what is free of how many.
    r"^\|\s+\d+\s+MIG \d+g\.\d+gb(?![^\n]{0,40}\d/\d)|^[ \t]*MIG\s+\d+(?:c\.\d+)?g\.\d+gb\S*\s+Device\s+\d+"
    r"|UUID: MIG-|/MIG-GPU-"
    r"|^\|\s+\d+\s+\d+\s+\d+\s+\d+\s+\|",
    *_SMI, "application"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Mode:
    """The MIG mode of one GPU.

    Attributes:
        bus: its PCI address; empty where nothing tells it.
        index: nvidia-smi's number for it; empty where the piece does not tell.
        pending: the mode after the next reset; the current one where the piece does not tell.
    """

    bus: str
    index: str
    current: bool
    pending: bool
    citation: Citation

    @property
    def waits(self) -> bool:
        """Whether another mode is asked for than the one that is on."""
        return self.current != self.pending

    @property
    def where(self) -> str:
        """How a command names the GPU; empty where nothing does."""
        return self.bus or self.index


def _modes(snapshot: Snapshot) -> tuple[_Mode, ...]:
    return (*_by_query(snapshot), *_by_table(snapshot))


def _by_query(snapshot: Snapshot) -> Iterator[_Mode]:
    for gpu in snapshot.view(smi_query.gpus):
        current = _first(gpu, ("MIG Mode", "Current"), ("mig", "mode", "current"), ("mig_mode", "current_mig"))
        pending = _first(gpu, ("MIG Mode", "Pending"), ("mig", "mode", "pending"), ("mig_mode", "pending_mig"))
        if current is not None and _is_mode(current.value):
            after = pending.value if pending is not None and _is_mode(pending.value) else current.value
            index = gpu.value("index")
            bus = gpu.bus or snapshot.view(addresses).get(int(index) if re.fullmatch(r"\d{1,3}", index) else -1, "")
            yield _Mode(bus, index, _is_on(current.value), _is_on(after), (pending or current).citation)


def _first(gpu: smi_query.Gpu, *ways: tuple[str, ...]) -> Row | None:
    return next((row for way in ways if (row := gpu.find(*way)) is not None), None)


def _is_mode(value: str) -> bool:
    return value.strip().lower() in {"enabled", "disabled"}


def _is_on(value: str) -> bool:
    return value.strip().lower() == "enabled"


def _by_table(snapshot: Snapshot) -> Iterator[_Mode]:
    for item in snapshot.of("nvidia-smi", "nvidia-smi-q", "container-run", "text"):
        bus = ""
        for number, text in enumerate(item.lines, 1):
            if "|" in text and (found := _BUS.search(text)):
                bus = pci.address(found["bus"])
            elif match := _TABLE.match(text):
                on = match["mode"] == "Enabled"
                yield _Mode(bus, "", on, on != bool(match["pending"]), cite(item, number))


# --- a pending mode -----------------------------------------------------------------------------------------------

_WAITS: Final = fact(lambda snapshot: (mode.citation for mode in snapshot.view(_modes) if mode.waits))
_SETTLED: Final = fact(lambda snapshot: (mode.citation for mode in snapshot.view(_modes) if not mode.waits))


def _refused(snapshot: Snapshot) -> tuple[str, ...]:
    """The GPUs that nvidia-smi names as those whose mode waits, the first of them first."""
    found = (_BUS.search(one.line) for one in snapshot.view(_SAID) if "pending" in one.line)
    return tuple(dict.fromkeys(pci.address(match["bus"]) for match in found if match))


def _which_waits(snapshot: Snapshot) -> str:
    waiting = [mode for mode in snapshot.view(_modes) if mode.waits]
    said = " ".join(one.line for one in snapshot.view(_SAID))
    what = "disabled" if (waiting and not waiting[0].pending) or "pending disable" in said else "enabled"
    wheres = [mode.where for mode in waiting if mode.where] or _refused(snapshot)
    where = f" on GPU {', '.join(dict.fromkeys(wheres))}" if wheres else ""
    return f"MIG is to be {what}{where} and waits for a reset of the GPU, which something that uses it prevents"


def _reset(snapshot: Snapshot) -> Iterable[Fix]:
    yield drain("stop what holds the GPU: jobs, DCGM and its exporter, persistenced, a display")
    units = ("nvidia-persistenced.service", "nvidia-dcgm.service")
    running = [unit for unit in units if isinstance(snapshot.facts.unit(unit), Known)]
    stop = (command("sudo", "systemctl", "stop", *running),) if running else ()
    waiting = [mode for mode in snapshot.view(_modes) if mode.waits]
    refused = _refused(snapshot)
    # An index may be another GPU's after the next boot, an address is not.
    by_index = not any(mode.bus for mode in waiting) and len(refused) != len(waiting)
    wheres = tuple(dict.fromkeys(mode.where for mode in waiting if mode.bus or by_index)) or refused or ("",)
    resets = (of_gpu("sudo", "nvidia-smi", "--gpu-reset", *at(where)) for where in wheres)
    yield run("reset", "reset the GPU; the mode takes effect with it", *stop, *resets)
    yield reboot(when="the GPU cannot be reset, as in a virtual machine")


# --- a mode without instances -------------------------------------------------------------------------------------


def _caps(snapshot: Snapshot, *, are_there: bool) -> Iterator[Citation]:
    """What the driver's own files say of instances, on a node that gpunode looked at."""
    layout = snapshot.facts.layout
    if isinstance(layout, Known) and layout.value is not None and bool(layout.value.mig_caps) is are_there:
        yield stated("/proc/driver/nvidia/capabilities", "the compute instances that are there", layout.probe)


_ENABLED: Final = fact(lambda node: (mode.citation for mode in node.view(_modes) if mode.current and mode.pending))
_TOLD_MODES: Final = fact(lambda snapshot: (mode.citation for mode in snapshot.view(_modes)))
_EMPTY: Final = all_of(_ENABLED, any_of(_NO_INSTANCES, fact(lambda node: _caps(node, are_there=False))))
_INSTANCES: Final = any_of(_INSTANCE, fact(lambda node: _caps(node, are_there=True)))


def _create(snapshot: Snapshot) -> Iterable[Fix]:
    ones = [at(where) for where in dict.fromkeys(m.where for m in snapshot.view(_modes) if m.current) or ("",)]
    offers = (of_gpu("sudo", "nvidia-smi", "mig", *one, "-lgip") for one in ones)
    largest = (of_gpu("sudo", "nvidia-smi", "mig", *one, "-cgi", "0", "-C") for one in ones)
    yield run("configure", "create instances, of which profile 0 is the whole GPU as one", *largest)
    yield run("inspect", "see which other profiles the GPU offers", *offers, when="it is to be divided")
    off = (of_gpu("sudo", "nvidia-smi", *one, "-mig", "0") for one in ones)
    yield run("configure", "or switch MIG off again", *off, when="the GPU is not to be shared")


# --- permissions --------------------------------------------------------------------------------------------------


def _is_off(snapshot: Snapshot) -> bool:
    modes = snapshot.view(_modes)
    return bool(modes) and not any(mode.current for mode in modes)


def _forbidden(snapshot: Snapshot) -> str:
    if _is_off(snapshot):
        return "MIG's instances are asked for on a GPU whose MIG mode is off; the driver calls that a lack of rights"
    return "the program may not see or change MIG instances: that takes root, or the files in /dev/nvidia-caps"


_DENIED: Final = line(
    r"^(?!.*Failed to initialize NVML).*(?:Insufficient Permissions|NVML_ERROR_NO_PERMISSION|NVMLError_NoPermission)"
)
_SHARED: Final = any_of(
    asked(r"\bmig\b"),
    line(r"\bMIG\b|compute instances|GPU instances|mig[ _]?[sS]trategy[\"']?\s*[:=]\s*[\"']?(?:single|mixed)"),
    _TOLD_MODES, _INSTANCE
)  # fmt: skip


def _permit(snapshot: Snapshot) -> Iterable[Fix]:
    if _is_off(snapshot):
        # Which of several is to be divided, only whoever asked for its instances knows.
        wheres = {mode.where for mode in snapshot.view(_modes)}
        on = of_gpu("sudo", "nvidia-smi", *at(wheres.pop() if len(wheres) == 1 else ""), "-mig", "1")
        yield run("configure", "switch MIG on, where it is wanted", on)
    elif any(item.where == "container" or item.kind.startswith("kubernetes") for item in snapshot.items):
        text = "give the container NVIDIA_MIG_MONITOR_DEVICES=all to see instances"
        yield by_hand("configure", f"{text}, NVIDIA_MIG_CONFIG_DEVICES=all to change them")
    else:
        yield run("inspect", "ask as root", Shell("sudo nvidia-smi mig -lgi"))


_GUIDE: Final = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"

FAMILY: Final = Family(
    "mig",
    "MIG",
    (
        Rule(
            cause="mig-mode-pending-reset",
            layer="config",
            in_stack="gpu",
            disruption="reset-gpu",
            title="a change of the MIG mode waits for a reset of the GPU",
            decisive=any_of(_WAITS, unless(_SAID, _SETTLED)),
            symptoms=(_WAITS, _SAID, symptoms.CUDA_NO_DEVICE, symptoms.CUDA_BUSY, symptoms.RESET_REFUSED),
            summary=_which_waits,
            look_at=(Shell("nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv"),),
            story=(
                "On Ampere the MIG mode changes with a reset of the GPU, and a GPU is not reset while any program has "
                "it open: DCGM, persistenced, a display, a device plugin. nvidia-smi then notes the mode as pending "
                "and says so in a warning. Instances cannot be created, and managers of MIG report that the mode is "
                "still the old one."
            ),
            sources=(_GUIDE, "https://github.com/NVIDIA/gpu-operator/issues/1845"),
            context=asked(r"nvidia-smi\b[^|;]* -mig\b|mig\.mode"),
            remedy=_reset,
            explains=frozenset({"mig-enabled-no-instances", "mig-capabilities-permission"}) | NO_CLUSTER_GPU,
        ),
        Rule(
            cause="mig-enabled-no-instances",
            layer="config",
            in_stack="gpu",
            disruption="none",
            title="MIG is enabled and no instances were created",
            decisive=any_of(_PLUGIN_FINDS_NONE, _EMPTY),
            typical=any_of(unless(_NO_INSTANCES, _TOLD_MODES), all_of(_ENABLED, symptoms.CUDA_NO_DEVICE)),
            symptoms=(_EMPTY, _NO_INSTANCES, _PLUGIN_FINDS_NONE, symptoms.NO_DEVICES, symptoms.CUDA_NO_DEVICE),
            against=(_INSTANCES,),
            summary="MIG is enabled and no instance was created, so CUDA finds no device to use",
            look_at=(Shell("nvidia-smi mig -lgi"), Shell("nvidia-smi -L")),
            story=(
                "With MIG enabled a GPU does no work as a whole: programs run on instances, and those have to be "
                "created, a GPU instance and in it a compute instance. They are also gone after every reboot. Without "
                "any, nvidia-smi lists the GPU as healthy, and every CUDA program says that there is no device."
            ),
            sources=(_GUIDE,),
            context=_ENABLED,
            remedy=_create,
            explains=NO_CLUSTER_GPU,
        ),
        Rule(
            cause="mig-capabilities-permission",
            layer="config",
            in_stack="driver",
            disruption="none",
            title="MIG's instances are out of this program's reach",
            symptoms=(symptoms.DENIED, symptoms.NVML_UNKNOWN, symptoms.CUDA_NO_DEVICE),
            look_at=(Shell("ls -l /dev/nvidia-caps"),),
            story=(
                "Instances are seen and changed through capabilities of their own, files below /dev/nvidia-caps that "
                "only root may open and that a container gets only when NVIDIA_MIG_CONFIG_DEVICES or "
                "NVIDIA_MIG_MONITOR_DEVICES asks for them. Without them NVML answers «Insufficient Permissions». It "
                "answers the same when MIG is off on the GPU at all."
            ),
            sources=("https://github.com/Project-HAMi/HAMi/issues/1044", f"{DEVICE_PLUGIN}/issues/399", _GUIDE),
            decisive=all_of(_DENIED, _SHARED),
            summary=_forbidden,
            typical=line(
                r"(?:memory info|visiting device|\bMIG\b|instances?)[^\n]{0,60}Insufficient Permissions"
                r"|NVMLError_NoPermission|NVML_ERROR_NO_PERMISSION"
            ),
            context=asked(r"nvidia-caps|nvidia-smi mig\b|capabilities/mig"),
            remedy=_permit,
            explains=NO_CLUSTER_GPU,
        ),
    ),
)
