"""Diagnose shared GPUs: compute modes, memory held by others, ineffective time-slicing, and MIG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.cluster import restart_plugin
from gpunode.diagnoses.commands import GPU_ADDRESS, Command, Shell, gpu_command, gpu_option
from gpunode.diagnoses.consequences import NO_CLUSTER_GPU
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule, Sign
from gpunode.diagnoses.remedies import drain_node, make_fixed_remedy, manual_step, reboot_node, reset_gpu, run_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, command_run, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_first, lines_with
from gpunode.diagnoses.views import kubernetes_nodes, pci, smi_query, system
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind
from gpunode.fast_dataclass import dataclass

# Compute mode.

_RESTRICTED_COMPUTE_MODES: Final = frozenset({"exclusive_process", "exclusive_thread", "prohibited"})
_COMPUTE_MODE_CELL: Final = Pattern(r"\|\s+(?:\d+%|N/A)\s+(?:E\. ?Process|E\. ?Thread|Prohibited)\s+\|")
_IN_DEFAULT_COMPUTE_MODE: Final = message_line(r"Compute Mode\s*:\s*Default|%\s+Default\s+\|")
_GPU_INDEX_CELL: Final = Pattern(r"^\|\s+(?P<index>\d{1,18})\s+\S")


def _gpus_not_in_default_mode(snapshot: Snapshot) -> tuple[tuple[str, Citation], ...]:
    """Return the GPUs outside the default compute mode: their index or address, and the line."""
    rows = ((gpu.name or gpu.value("index"), gpu.find_row("Compute Mode")) for gpu in snapshot.view(smi_query.smi_gpus))
    named = (
        (name, row.citation) for name, row in rows if row and row.value.strip().lower() in _RESTRICTED_COMPUTE_MODES
    )
    return (*named, *_compute_modes_in_table(snapshot))


def _compute_modes_in_table(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    for item in snapshot.items_of("nvidia-smi", "text"):
        index = ""
        for number, text in enumerate(item.lines, 1):
            if _COMPUTE_MODE_CELL.search(text):
                yield index, cite(item, number)
            elif first := _GPU_INDEX_CELL.match(text):
                index = first["index"]


def _restore_default_mode(snapshot: Snapshot) -> Iterable[Fix]:
    wheres = dict.fromkeys(where for where, _ in snapshot.view(_gpus_not_in_default_mode)) or ("",)
    commands = tuple(gpu_command("sudo", "nvidia-smi", *gpu_option(where), "-c", "DEFAULT") for where in wheres)
    yield run_step("configure", "allow several processes on the GPU", *commands)
    yield manual_step("application", "or stop the other process, or share the GPU through MPS", "the mode is intended")


# Time-slicing.

_REPLICAS: Final = Pattern(r"[\"']?\breplicas[\"']?\s*[:=]\s*(?P<count>\d{1,18})")
_PLUGIN_CONFIG_OUTPUT: Final = Pattern(r"Running with config|[\"']sharing[\"']\s*:")
_SHARING_WORDS: Final = Pattern(r"(?i)timeSlicing|time[-_ ]?slic|\bmps\b|sharing\.")
_SHARING_OPTIONS: Final = (
    r"devicePlugin\.config\.name|config\.default=|--set-file config\.map|config\.name=|time-slicing-config|time-sliced"
)
_SHARING_EMPTY: Final = any_line(r"[\"']timeSlicing[\"']\s*:\s*(?:\{\s*\}|null)")


def _sharing_configs(snapshot: Snapshot) -> Iterator[EvidenceItem]:
    """Yield configurations with replicas, except the plugin's own output."""
    for item in snapshot.items_with_words(_REPLICAS):
        if (
            item.was_answered
            and find_first(item, _REPLICAS)
            and find_first(item, _SHARING_WORDS)
            and not find_first(item, _PLUGIN_CONFIG_OUTPUT)
        ):
            yield item


def _divided_nodes(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield nodes that offer at least as many GPUs as configured."""
    desired = [int(found["count"]) for item in _sharing_configs(snapshot) for found in _REPLICAS.finditer(item.text)]
    for node in snapshot.view(kubernetes_nodes.kube_nodes):
        amount = node.capacity.get("nvidia.com/gpu")
        if amount and amount.value and amount.value >= min(desired, default=2):
            yield amount.citation


_SHARING_CONFIGURED: Final = any_of(
    custom_sign(lambda node: (line for item in _sharing_configs(node) for line in lines_with(item, _REPLICAS))),
    command_run(_SHARING_OPTIONS),
    message_line(_SHARING_OPTIONS),
    message_line(r"nvidia\.com/device-plugin\.config\b", "kubernetes-node", "kubernetes", "text", "application"),
)
# An empty sharing section in an excerpt from the plugin's log, posted to ask why it is empty.
_EMPTY_IN_EXCERPT: Final = unless(_SHARING_EMPTY, message_line(r"Running with config"))
# GPU feature discovery labels a node so once its GPUs are shared.
_SHARED_LABEL: Final = any_line(r"nvidia\.com/gpu\.product\W+\S+-SHARED\b")
# A configuration alone may be a plan or a question, so its effect must be shown or described as well.
_SHARING_WITHOUT_EFFECT: Final = any_of(
    symptoms.POD_PENDING,
    message_line(
        r"(?i)\bno effect\b|\b(?:is|are|was|were)(?: not|n['’]t) (?:applied|shared|sliced|used)\b"
        r"|\b(?:still|only) (?:one|1)\b"
    ),
    message_line(r"nvidia\.com/gpu(?:\.\w+)?[\"']?(?:[:=]\s*|\s+)[\"']?\d"),
    predicate(
        lambda node: bool(node.items_of("kubernetes-node", "kubernetes-pod", "kubernetes-log", "kubernetes")),
        "the cluster was asked",
    ),
)
_PLUGIN_FROM_STATIC_MANIFEST: Final = command_run(
    r"deployments/static/|(?:apply|create) -f \S*nvidia-device-plugin[\w.-]*\.ya?ml"
)


def _configure_slicing(snapshot: Snapshot) -> Iterator[Fix]:
    if snapshot.view(_PLUGIN_FROM_STATIC_MANIFEST):
        delete = Shell("kubectl -n kube-system delete daemonset nvidia-device-plugin-daemonset")
        yield run_step(
            "remove", "remove the daemon set of the static manifest, so that the configured one takes over", delete
        )
        yield restart_plugin("restart the configured device plugin")
        return
    text = (
        "give the plugin the configuration as a file: with its chart's config.map, or with config.name and "
        "config.default"
    )
    yield manual_step("configure", text)
    yield restart_plugin("restart the device plugin: it does not watch the ConfigMap")


# Memory held by another process.

_MEMORY_SIZE: Final = r"(\d{1,9}(?:\.\d{1,4})? (?:bytes|[KMGT]iB))"
_TOTAL_MEMORY: Final = Pattern(rf"total capac?ity of {_MEMORY_SIZE}|{_MEMORY_SIZE} total capacity")
# vLLM, before it has allocated anything.
_MEMORY_AT_START: Final = Pattern(
    r"Free memory on device \S*\s?\((?P<free>\d+(?:\.\d+)?)/(?P<total>\d+(?:\.\d+)?) GiB\) on startup is less than"
)
_FREE_MEMORY: Final = Pattern(rf"{_MEMORY_SIZE} (?:is )?free")
_MEMORY_OF_PROCESS: Final = Pattern(
    rf"this process has {_MEMORY_SIZE}|{_MEMORY_SIZE} already allocated|{_MEMORY_SIZE} (?:reserved in total|cached)"
    rf"|{_MEMORY_SIZE} is allocated by"
)
_BYTES_BY_UNIT: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_GPU_OUT_OF_MEMORY: Final = message_line(
    r"CUDA out[ -]of[ -]memory|cudaMalloc failed: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|显存[^\n]{0,6}没有释放"
    rf"|{_MEMORY_AT_START.pattern}"
    r"|cuda_driver\.cc:\d+\] failed to allocate|cuMemoryAllocate failed res=2|Error in C alloc \([^\n]*out of memory"
)
_MEMORY_USAGE_CELL: Final = Pattern(r"(?P<used>\d{1,9})MiB / +(?P<total>\d{1,9})MiB")
_PROCESS_TABLE_ROW: Final = Pattern(r"(?m)^\|\s+\d{1,3}\s+(?:\S+\s+\S+\s+)?\d+\s+[CGM+]{1,3}\s")


def _largest_size(pattern: Pattern, text: str) -> float:
    """Return the largest size in the text, in bytes."""
    sizes = (next(filter(None, match.groups())).split() for match in pattern.finditer(text))
    return max((float(number) * _BYTES_BY_UNIT[unit] for number, unit in sizes), default=0.0)


def _out_of_memory_lines(snapshot: Snapshot, *, is_others: bool) -> Iterator[Citation]:
    """Yield PyTorch's errors in which other processes, or its own, hold most of the memory."""
    for line in snapshot.view(_GPU_OUT_OF_MEMORY):
        if at_start := _MEMORY_AT_START.search(line.line):
            if is_others and float(at_start["free"]) < float(at_start["total"]) / 2:
                yield line
            continue
        total, own = _largest_size(_TOTAL_MEMORY, line.line), _largest_size(_MEMORY_OF_PROCESS, line.line)
        others = total - own - _largest_size(_FREE_MEMORY, line.line)
        if total and (others > total / 2 if is_others else own > total / 2):
            yield line


def _gpus_with_full_memory(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield GPUs whose memory is mostly in use although nvidia-smi lists no process."""
    for item in snapshot.items_of("nvidia-smi", "text"):
        is_smi = item.kind == "nvidia-smi" and "Processes:" in item.text
        is_listed = is_smi or "No running processes found" in item.text
        if item.where == "host" and is_listed and not _PROCESS_TABLE_ROW.search(item.text):
            rows = ((_MEMORY_USAGE_CELL.search(line.line), line) for line in lines_with(item, _MEMORY_USAGE_CELL))
            yield from (one for used, one in rows if used and int(used["used"]) * 2 > int(used["total"]))


_GPU_PROCESSES_HIDDEN: Final = any_of(symptoms.IN_CONTAINER, predicate(system.is_wsl, "WSL lists no process"))


_PCI_ADDRESS: Final = Pattern(r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")
_SMI_KINDS: Final[tuple[SourceKind, ...]] = ("nvidia-smi", "nvidia-smi-mig", "nvidia-smi-q", "container-run", "text")
_MIG_MODE_CHANGE_ANNOUNCED: Final = any_of(
    message_line(
        r"MIG mode is in pending (?:enable|disable) state|(?:reboot the system|reset) .{0,40}to make MIG mode"
        r"|unable to apply MIG config with MIG mode disabled|Error applying MIG configuration.{0,60}error resetting"
        r"|Mode change pending: true"
    ),
    all_of(
        message_line(r"The following GPUs could not be reset"),
        any_of(command_run(r"\bmig\b|mig-"), message_line(r"(?i)\bMIG\b|nvidia-mig-|mig-manager")),
    ),
)
_NO_MIG_INSTANCES: Final = message_line(r"No (?:GPU|compute) instances found|No MIG devices found", *_SMI_KINDS)
# Messages of the device plugin, GPU feature discovery and slurmd about a GPU in MIG mode.
_PLUGIN_FINDS_NO_INSTANCES: Final = message_line(
    r"device \d+ has (?:an invalid MIG configuration|no MIG devices configured)"
    r"|device with migEnabled=true was not configured correctly: (?:error visiting [^\n]*)?[Nn]o MIG devices?"
    r"|MIG mode is enabled, but no MIG devices were found"
)
_MIG_LAYOUT_NOT_UNIFORM: Final = message_line(
    r"(?i)more than one MIG device type present|must be configured with the same migEnabled value"
)
# The plugin's words before any of its reasons.
_PLUGIN_REJECTS_MIG: Final = unless(
    message_line(r"device with migEnabled=true was not configured correctly"), _MIG_LAYOUT_NOT_UNIFORM
)
_MIG_INSTANCE_LISTED: Final = message_line(
    # Rows of the profile list are offers: they count free instances out of a total.
    r"^\|\s+\d+\s+MIG \d+g\.\d+gb(?![^\n]{0,40}\d/\d)|^[ \t]*MIG\s+\d+(?:c\.\d+)?g\.\d+gb\S*\s+Device\s+\d+"
    r"|UUID: MIG-|/MIG-GPU-"
    r"|^\|\s+\d+\s+\d+\s+\d+\s+\d+\s+\|",
    *_SMI_KINDS, "application"
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


_MIG_MODE_VALUES: Final = {"enabled": True, "disabled": False}


def _mig_modes(snapshot: Snapshot) -> Iterator[_MigMode]:
    for gpu in snapshot.view(smi_query.smi_gpus):
        row = gpu.find_row("MIG Mode", "Current")
        current = _MIG_MODE_VALUES.get(row.value.lower()) if row else None
        if row and current is not None:
            pending = gpu.find_row("MIG Mode", "Pending") or row
            yield _MigMode(gpu.name, current, _MIG_MODE_VALUES.get(pending.value.lower(), current), pending.citation)


def _mig_mode_sign(holds: Callable[[_MigMode], bool], in_table: str) -> Sign:
    """Return the sign of GPUs whose mode satisfies ``holds``; in the table the mode is a GPU's last cell."""
    by_query = custom_sign(lambda snapshot: (mode.citation for mode in _mig_modes(snapshot) if holds(mode)))
    return any_of(by_query, message_line(rf"^\|[^|]*\|[^|]*\|\s+{in_table}\s+\|\s*$", *_SMI_KINDS))


# A star means that the other mode is pending.
_MIG_MODE_PENDING: Final = _mig_mode_sign(lambda mode: mode.is_pending, r"(?:Enabled|Disabled)\*")
_MIG_MODE_SETTLED: Final = _mig_mode_sign(lambda mode: not mode.is_pending, r"(?:Enabled|Disabled)")
_MIG_MODE_KNOWN: Final = any_of(_MIG_MODE_PENDING, _MIG_MODE_SETTLED)
_MIG_ENABLED: Final = _mig_mode_sign(lambda mode: mode.current and mode.pending, "Enabled")
_MIG_CURRENTLY_ON: Final = _mig_mode_sign(lambda mode: mode.current, r"Enabled\*?")


def _find_pending_mig_modes(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield each GPU with a pending mode, from nvidia-smi's query, else from its warning."""
    waiting = {mode.gpu: mode.citation for mode in _mig_modes(snapshot) if mode.is_pending}
    for line in snapshot.view(_MIG_MODE_CHANGE_ANNOUNCED) if not waiting else ():
        if "pending" in line.line and (match := _PCI_ADDRESS.search(line.line)):
            waiting[pci.normalize_address(match["bus"])] = line
    return (Proof(_PENDING_MIG_MODE_SUMMARY, (place,), gpu=gpu) for gpu, place in waiting.items())


_PENDING_MIG_MODE_SUMMARY: Final = (
    "a change of the MIG mode waits for a GPU reset, which is blocked because it is in use"
)


def _mig_capability_files(snapshot: Snapshot, *, are_there: bool) -> Iterator[Citation]:
    """Yield the driver's own files as evidence of MIG instances, or of none, on an examined node."""
    layout = snapshot.facts.layout
    if isinstance(layout, Known) and layout.value is not None and bool(layout.value.mig_capabilities) is are_there:
        yield cite_fact("/proc/driver/nvidia/capabilities", "the present compute instances", layout.probe)


_MIG_WITHOUT_INSTANCES: Final = all_of(
    _MIG_ENABLED, any_of(_NO_MIG_INSTANCES, custom_sign(lambda node: _mig_capability_files(node, are_there=False)))
)
_MIG_INSTANCES_EXIST: Final = any_of(
    _MIG_INSTANCE_LISTED, custom_sign(lambda node: _mig_capability_files(node, are_there=True))
)


def _find_mig_without_instances(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield each GPU with MIG mode on and no instance."""
    summary = "MIG is enabled but no instance was created, so CUDA finds no usable device"
    for mode in _mig_modes(snapshot) if snapshot.view(_MIG_WITHOUT_INSTANCES) else ():
        if mode.current and mode.pending:
            yield Proof(summary, (mode.citation, *snapshot.view(_MIG_WITHOUT_INSTANCES)), gpu=mode.gpu)


def _smi_command(*words: str) -> Command:
    return gpu_command("sudo", "nvidia-smi", *words)


_CREATE_MIG_INSTANCES: Final = make_fixed_remedy(
    run_step(
        "configure",
        "create instances (profile 0 is the whole GPU)",
        _smi_command("mig", "-i", GPU_ADDRESS, "-cgi", "0", "-C"),
    ),
    run_step(
        "inspect",
        "list the available profiles",
        _smi_command("mig", "-i", GPU_ADDRESS, "-lgip"),
        when="the GPU is to be divided",
    ),
    run_step(
        "configure",
        "or turn MIG off again",
        _smi_command("-i", GPU_ADDRESS, "-mig", "0"),
        when="the GPU is not to be shared",
    ),
)


_NVML_ACCESS_DENIED: Final = message_line(
    r"^(?!.*Failed to initialize NVML).*(?:Insufficient Permissions|NVML_ERROR_NO_PERMISSION|NVMLError_NoPermission)"
)
_MIG_MENTIONED: Final = any_of(
    command_run(r"\bmig\b"),
    message_line(r"\bmigEnabled=true"),
    message_line(r"\bMIG\b|compute instances|GPU instances|mig[ _]?[sS]trategy[\"']?\s*[:=]\s*[\"']?(?:single|mixed)"),
    _MIG_MODE_KNOWN, _MIG_INSTANCE_LISTED
)  # fmt: skip


def _grant_mig_access(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_MIG_MODE_KNOWN) and not snapshot.view(_MIG_CURRENTLY_ON):
        yield run_step("configure", "turn MIG on, if it is intended", _smi_command("-i", GPU_ADDRESS, "-mig", "1"))
    elif any(item.where == "container" or item.kind.startswith("kubernetes") for item in snapshot.items):
        text = "give the container NVIDIA_MIG_MONITOR_DEVICES=all to see instances"
        yield manual_step("configure", f"{text}, NVIDIA_MIG_CONFIG_DEVICES=all to change them")
    else:
        yield run_step("inspect", "run it as root", Shell("sudo nvidia-smi mig -lgi"))


# The restrictions of an unlicensed vGPU look like interference by other users.
_VGPU_UNLICENSED: Final = any_line(r"License Status\s*: Unlicensed")
# Helm itself failed, so the plugin has no configuration at all.
_CHART_NOT_INSTALLED: Final = message_line(
    r"^Error: (?:parse error at \(|(?:INSTALLATION|UPGRADE) FAILED|execution error at \(|template: )"
)

_PLUGIN_WITHOUT_MPS: Final = message_line(r"using MPS requires --mps-root|error (?:waiting for|checking) MPS daemon")
_NO_MPS_SERVER: Final = message_line(
    r"MPS client failed to connect|the MPS server is not ready|CUDA_ERROR_MPS_(?:CONNECTION|SERVER)"
)
_SHOW_MPS_DAEMONS: Final = Shell("kubectl get pods -A | grep mps-control")
_SHOW_MPS_LABELS: Final = Shell("kubectl get nodes -L nvidia.com/mps.capable")
_rule = partial(Rule, layer="gpu")

RULES: Final = (
    Rule(
        cause="compute-mode-exclusive",
        layer="gpu",
        symptoms=(symptoms.CUDA_BUSY,),
        look_at=(Shell("nvidia-smi -q -d COMPUTE"),),
        decisive=custom_sign(lambda node: (place for _, place in node.view(_gpus_not_in_default_mode))),
        typical=unless(symptoms.CUDA_BUSY, symptoms.ANY_XID, _IN_DEFAULT_COMPUTE_MODE, _VGPU_UNLICENSED),
        may_be_normal=True,
        remedy=_restore_default_mode,
    ),
    Rule(
        cause="mps-control-daemon-missing",
        layer="kubernetes",
        disruption="restart-container",
        decisive=_PLUGIN_WITHOUT_MPS,
        symptoms=(_PLUGIN_WITHOUT_MPS, _NO_MPS_SERVER),
        # It retries, and registers once the daemon is up.
        against=(message_line(r"Registered device plugin (?:for|with) ", "kubernetes-log", "text"), _SHARED_LABEL),
        look_at=(_SHOW_MPS_DAEMONS, _SHOW_MPS_LABELS),
        remedy=make_fixed_remedy(
            run_step("inspect", "see whether the daemon's pods run", _SHOW_MPS_DAEMONS),
            manual_step(
                "configure",
                'deploy the plugin with its daemon: `gpunode k8s apply` of a recipe with mode = "mps" in '
                "[kubernetes.sharing], or NVIDIA's Helm chart; a daemon that you start on the node does not count",
                when="there are none",
            ),
            run_step(
                "inspect",
                "GPU feature discovery has to label the node nvidia.com/mps.capable=true: the daemon runs on no other",
                _SHOW_MPS_LABELS,
            ),
        ),
        explains=NO_CLUSTER_GPU | {"time-slicing-config-not-applied"},
    ),
    Rule(
        cause="time-slicing-config-not-applied",
        layer="kubernetes",
        disruption="restart-container",
        symptoms=(symptoms.POD_PENDING, _SHARING_EMPTY),
        look_at=(Shell("kubectl describe nodes | grep -E 'nvidia.com/(gpu|device-plugin)'"),),
        decisive=all_of(_SHARING_CONFIGURED, _SHARING_EMPTY),
        typical=any_of(
            unless(
                all_of(_SHARING_CONFIGURED, _SHARING_WITHOUT_EFFECT),
                custom_sign(_divided_nodes),
            ),
            _EMPTY_IN_EXCERPT,
        ),
        may_be_normal=True,
        against=(
            unless(any_of(custom_sign(_divided_nodes), _SHARED_LABEL), _SHARING_EMPTY, _EMPTY_IN_EXCERPT),
            _CHART_NOT_INSTALLED,
        ),
        remedy=_configure_slicing,
    ),
    Rule(
        cause="gpu-memory-taken",
        layer="programs",
        typical=any_of(
            custom_sign(lambda node: _out_of_memory_lines(node, is_others=True)),
            unless(all_of(_GPU_OUT_OF_MEMORY, custom_sign(_gpus_with_full_memory)), _GPU_PROCESSES_HIDDEN),
        ),
        symptoms=(_GPU_OUT_OF_MEMORY,),
        against=(custom_sign(lambda node: _out_of_memory_lines(node, is_others=False)),),
        context=unless(command_run(r"fuser|lsof|query-compute-apps"), symptoms.NOTHING_FAILS),
        look_at=(Shell("nvidia-smi"), Shell("sudo fuser -v /dev/nvidia*")),
        remedy=make_fixed_remedy(
            run_step(
                "inspect",
                "find the process that holds the memory",
                Shell("nvidia-smi --query-compute-apps=gpu_uuid,pid,name,used_memory --format=csv"),
                Shell("sudo fuser -v /dev/nvidia*"),
            ),
            manual_step("application", "end that process, or use another GPU", "nobody needs it"),
        ),
    ),
    _rule(
        cause="mig-mode-pending-reset",
        disruption="reset-gpu",
        check=_find_pending_mig_modes,
        decisive=any_of(_MIG_MODE_PENDING, unless(_MIG_MODE_CHANGE_ANNOUNCED, _MIG_MODE_SETTLED)),
        symptoms=(
            _MIG_MODE_PENDING,
            _MIG_MODE_CHANGE_ANNOUNCED,
            symptoms.CUDA_FINDS_NO_DEVICE,
            symptoms.CUDA_BUSY,
            symptoms.GPU_RESET_REFUSED,
        ),
        look_at=(Shell("nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv"),),
        context=command_run(r"nvidia-smi\b[^|;]* -mig\b|mig\.mode"),
        remedy=make_fixed_remedy(
            drain_node("stop what holds the GPU: jobs, DCGM and its exporter, persistenced, a display"),
            reset_gpu("reset the GPU; the new mode then takes effect"),
            reboot_node(when="the GPU cannot be reset, as in a virtual machine"),
        ),
        explains=frozenset({"mig-enabled-no-instances", "mig-capabilities-permission"}) | NO_CLUSTER_GPU,
    ),
    _rule(
        cause="mig-enabled-no-instances",
        check=_find_mig_without_instances,
        decisive=any_of(_PLUGIN_FINDS_NO_INSTANCES, _MIG_WITHOUT_INSTANCES),
        typical=any_of(unless(_NO_MIG_INSTANCES, _MIG_MODE_KNOWN), all_of(_MIG_ENABLED, symptoms.CUDA_FINDS_NO_DEVICE)),
        symptoms=(
            _MIG_WITHOUT_INSTANCES,
            _NO_MIG_INSTANCES,
            _PLUGIN_FINDS_NO_INSTANCES,
            _PLUGIN_REJECTS_MIG,
            symptoms.NO_DEVICES,
            symptoms.CUDA_FINDS_NO_DEVICE,
        ),
        against=(_MIG_INSTANCES_EXIST, _MIG_LAYOUT_NOT_UNIFORM),
        look_at=(Shell("nvidia-smi -L"), Shell("nvidia-smi mig -lgi")),
        context=_MIG_ENABLED,
        remedy=_CREATE_MIG_INSTANCES,
        explains=NO_CLUSTER_GPU,
    ),
    _rule(
        cause="mig-strategy-single-mixed-layout",
        layer="kubernetes",
        decisive=_MIG_LAYOUT_NOT_UNIFORM,
        typical=all_of(any_line(r"nvidia\.com/gpu\.product\S*-MIG-INVALID\b"), _MIG_INSTANCES_EXIST),
        symptoms=(_PLUGIN_REJECTS_MIG,),
        look_at=(Shell("nvidia-smi -L"), Shell("kubectl describe nodes | grep nvidia.com/mig")),
        remedy=make_fixed_remedy(
            run_step("inspect", "see which sizes the instances have", Shell("nvidia-smi -L")),
            manual_step(
                "configure",
                "divide all GPUs of the node alike: with the GPU Operator, set the node's label nvidia.com/mig.config "
                "to a layout of one size",
            ),
            manual_step(
                "configure",
                "or set the MIG strategy to mixed; pods then ask for nvidia.com/mig-1g.10gb, not for nvidia.com/gpu",
                "the sizes are intended",
            ),
        ),
        explains=NO_CLUSTER_GPU,
    ),
    _rule(
        cause="mig-capabilities-permission",
        layer="driver",
        symptoms=(
            symptoms.ACCESS_DENIED,
            symptoms.NVML_UNKNOWN,
            symptoms.CUDA_FINDS_NO_DEVICE,
            _PLUGIN_REJECTS_MIG,
        ),
        look_at=(Shell("ls -l /dev/nvidia-caps"),),
        decisive=all_of(_NVML_ACCESS_DENIED, _MIG_MENTIONED),
        typical=message_line(
            r"(?:memory info|visiting device|\bMIG\b|instances?)[^\n]{0,60}Insufficient Pe"
            r"|NVMLError_NoPermission|NVML_ERROR_NO_PERMISSION"
            r"|/nvidia-caps\S{0,20}: (?:No such file|Permission denied)"
        ),
        context=any_of(command_run(r"nvidia-caps|nvidia-smi mig\b|capabilities/mig"), _MIG_CURRENTLY_ON),
        remedy=_grant_mig_access,
        explains=NO_CLUSTER_GPU,
    ),
)
