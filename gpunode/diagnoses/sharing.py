"""How a GPU is shared: a compute mode that lets one process in, and time-slicing that the device plugin does not do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DEVICE_PLUGIN
from gpunode.diagnoses.cluster import restart_plugin
from gpunode.diagnoses.commands import Shell, at, of_gpu
from gpunode.diagnoses.model import Citation, Confidence, Family, Fix, Proof, Rule
from gpunode.diagnoses.remedies import by_hand, run
from gpunode.diagnoses.signs import any_of, asked, fact, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import kube, smi_query
from gpunode.facts.items import Item
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern

# Compute mode.

_MODE_IN_TABLE: Final = Pattern(r"\|\s+(?:\d+%|N/A)\s+(?P<mode>E\. ?Process|E\. ?Thread|Prohibited)\s+\|")
_INDEX: Final = Pattern(r"^\|\s+(?P<index>\d{1,18})\s+\S")


def _exclusive(snapshot: Snapshot) -> tuple[tuple[str, str, Citation], ...]:
    """The GPUs that are not in default compute mode: their index or address, the mode, the line."""
    return (*_by_query(snapshot), *_by_table(snapshot))


def _by_query(snapshot: Snapshot) -> Iterator[tuple[str, str, Citation]]:
    for gpu in snapshot.view(smi_query.gpus):
        if (row := gpu.find("Compute Mode")) and row.value.strip().lower() not in {"default", "n/a", ""}:
            yield gpu.name or gpu.value("index"), row.value.strip(), row.citation


def _by_table(snapshot: Snapshot) -> Iterator[tuple[str, str, Citation]]:
    for item in snapshot.of("nvidia-smi", "text"):
        index = ""
        for number, text in enumerate(item.lines, 1):
            if match := _MODE_IN_TABLE.search(text):
                yield index, match["mode"], cite(item, number)
            elif first := _INDEX.match(text):
                index = first["index"]


def _mode_lines(snapshot: Snapshot) -> Iterator[Citation]:
    return (citation for _, _, citation in snapshot.view(_exclusive))


def _compute_mode(snapshot: Snapshot) -> str:
    where, mode, _ = snapshot.view(_exclusive)[0]
    also = [f"GPU {other}" for other, _, _ in snapshot.view(_exclusive) if other not in {"", where}]
    named = f"GPU {where}" if where else "the GPU"
    more = f"; {', '.join(dict.fromkeys(also))} as well" if also else ""
    if "rohib" in mode:
        return f"{named} is in compute mode {mode}, which lets no program use it for CUDA{more}"
    return f"{named} is in compute mode {mode}, and one process has it, so that a second gets none{more}"


def _default_mode(snapshot: Snapshot) -> Iterable[Fix]:
    wheres = dict.fromkeys(where for where, _, _ in snapshot.view(_exclusive)) or ("",)
    commands = tuple(of_gpu("sudo", "nvidia-smi", *at(where), "-c", "DEFAULT") for where in wheres)
    yield run("configure", "let several processes use the GPU", *commands)
    yield by_hand("application", "or stop the other process, or share the GPU through MPS", "the mode is meant")


# Time-slicing.

_REPLICAS: Final = Pattern(r"[\"']?\breplicas[\"']?\s*[:=]\s*(?P<count>\d{1,18})")
_SHARING: Final = Pattern(r"timeSlicing|time[-_ ]?slic|\bmps\b|sharing\.", re.IGNORECASE)
_EMPTY: Final = Pattern(r"[\"']timeSlicing[\"']\s*:\s*(?:\{\s*\}|null)")
_PRINTED: Final = Pattern(r"Running with config|[\"']sharing[\"']\s*:\s*\{")
_STATIC: Final = Pattern(r"deployments/static/|(?:apply|create) -f \S*nvidia-device-plugin[\w.-]*\.ya?ml")
_LABEL_CONFIG: Final = "nvidia.com/device-plugin.config"
_BY_ENVIRONMENT: Final = Pattern(r"envFrom\s*:|configMapRef\s*:")
_WISH: Final = Pattern(
    r"devicePlugin\.config\.name|config\.default=|--set-file config\.map|config\.name=|time-slicing-config|time-sliced",
)


def _time_slicing(snapshot: Snapshot) -> Iterator[Proof]:
    wished, printed = tuple(_wished(snapshot)), tuple(_printed_empty(snapshot))
    undone = tuple(_undivided(snapshot))
    if wished and (printed or undone):
        confidence: Confidence = "certain" if printed else "likely"
        fixes = tuple(_slicing(snapshot))
        yield Proof(_why_undivided(snapshot), (*wished, *printed, *undone), confidence, remedy=fixes)


def _wished(snapshot: Snapshot) -> Iterator[Citation]:
    for node in snapshot.view(kube.nodes):
        if place := node.labels.get(_LABEL_CONFIG):
            yield place
    for item in snapshot.items:
        if _is_config(item):
            yield from lines_with(item, _REPLICAS)
        elif _WISH.search(item.written):
            yield stated(item.written, "that was run", item.key)
    yield from snapshot.said(_WISH)[:2]
    for item in snapshot.of("text", "kubernetes", "application"):
        if _LABEL_CONFIG in item.text and "label" in item.text:
            yield from lines_with(item, Pattern(re.escape(_LABEL_CONFIG)))


def _is_config(item: Item) -> bool:
    """Whether it is a configuration with replicas, not what the plugin printed of its own."""
    text = item.text
    if "replicas" not in text or not item.is_seen:
        return False
    return bool(_SHARING.search(text) and _REPLICAS.search(text)) and not (_PRINTED.search(text) and '"' in text)


def _printed_empty(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.is_seen and "timeSlicing" in item.text:
            yield from lines_with(item, _EMPTY)


def _only_empty(snapshot: Snapshot) -> Iterator[Citation]:
    """An empty section about sharing that somebody cut out of the plugin's log, to ask why it is empty."""
    for printed in _printed_empty(snapshot):
        text = snapshot.text_of(printed)
        if text.count("\n") < _CUT_OUT and "Running with config" not in text:
            yield printed


_CUT_OUT: Final = 6


def _undivided(snapshot: Snapshot) -> Iterator[Citation]:
    """A node that still offers as many as it has GPUs, or fewer than the configuration asks for."""
    wanted = [int(m["count"]) for item in snapshot.items if _is_config(item) for m in _REPLICAS.finditer(item.text)]
    for node in snapshot.view(kube.nodes):
        count = node.values.get("nvidia.com/gpu.count", "")
        for name, amount in node.capacity.items():
            physical = whole(count) or 0
            is_whole = amount.value == physical or (wanted and 0 < amount.value < min(wanted))
            if name == "nvidia.com/gpu" and (is_whole or (not wanted and not physical and amount.value == 1)):
                yield amount.citation
        if node.values.get("nvidia.com/gpu.replicas") in {"0", "1"} and "nvidia.com/gpu.replicas" in node.labels:
            yield node.labels["nvidia.com/gpu.replicas"]


def _divided(snapshot: Snapshot) -> Iterator[Citation]:
    """A node that offers at least as many as the configuration asks for."""
    wanted = [int(m["count"]) for item in snapshot.items if _is_config(item) for m in _REPLICAS.finditer(item.text)]
    for node in snapshot.view(kube.nodes):
        amount = node.capacity.get("nvidia.com/gpu")
        if amount and wanted and amount.value >= min(wanted):
            yield amount.citation


def _is_static(snapshot: Snapshot) -> bool:
    typed = any(_STATIC.search(item.written) for item in snapshot.items)
    return typed or bool(snapshot.said(_STATIC))


def _why_undivided(snapshot: Snapshot) -> str:
    why = "it was started without that configuration, or has not been restarted since"
    if _is_static(snapshot):
        why = "it comes from the static manifest, which mounts no configuration"
    elif any("device-plugin" in item.text and _BY_ENVIRONMENT.search(item.text) for item in snapshot.items):
        why = "its pod takes the ConfigMap as environment variables, where it reads a file"
    return f"sharing of GPUs is configured and the running device plugin does not do it: {why}"


def _slicing(snapshot: Snapshot) -> Iterator[Fix]:
    if _is_static(snapshot):
        delete = Shell("kubectl -n kube-system delete daemonset nvidia-device-plugin-daemonset")
        yield run("remove", "remove the daemon set of the static manifest, so that the configured one serves", delete)
        yield restart_plugin("restart the configured device plugin")
        return
    text = (
        "give the plugin the configuration as a file: by its chart's config.map, or by config.name and config.default"
    )
    yield by_hand("configure", text)
    yield restart_plugin("restart the device plugin: it does not watch the ConfigMap's content")


FAMILY: Final = Family(
    "sharing",
    "the sharing of GPUs",
    (
        Rule(
            cause="compute-mode-exclusive",
            layer="config",
            storey="gpu",
            disruption="none",
            title="the GPU's compute mode lets one process in, or none",
            symptoms=(symptoms.CUDA_BUSY,),
            look_at=(Shell("nvidia-smi -q -d COMPUTE"),),
            story=(
                "Compute mode Exclusive_Process gives a GPU to the first process that asks, and Prohibited to none. It "
                "is often left behind by a batch system or an MPS set-up. A second process then hears that all "
                "CUDA-capable devices are busy or unavailable, on a GPU that nvidia-smi shows as healthy."
            ),
            sources=("https://github.com/NVIDIA/DIGITS/issues/2005", "https://docs.nvidia.com/deploy/mps/"),
            decisive=fact(_mode_lines),
            may_be_normal=True,
            context=asked(r"-d COMPUTE|compute_mode"),
            summary=_compute_mode,
            remedy=_default_mode,
        ),
        Rule(
            cause="time-slicing-config-not-applied",
            layer="kubernetes",
            storey="kubernetes",
            disruption="restart-container",
            title="the running device plugin has not got the sharing configuration",
            symptoms=(symptoms.POD_PENDING,),
            look_at=(
                Shell(
                    "kubectl get nodes -o custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\\\\.com/gpu"
                ),
            ),
            story=(
                "Sharing of GPUs is a configuration file of the device plugin. The plugin that serves the node prints "
                "an empty sharing section and offers each GPU once: it comes from the static manifest, which mounts no "
                "file, or the ConfigMap is passed in a way it does not read, no default is named, or the file was "
                "changed after the plugin had started. Keys in the wrong place are dropped without a word."
            ),
            sources=(f"{DEVICE_PLUGIN}/issues/990", f"{DEVICE_PLUGIN}/issues/615", f"{DEVICE_PLUGIN}/issues/1433"),
            check=_time_slicing,
            typical=any_of(unless(fact(_wished), fact(_divided)), fact(_only_empty)),
            may_be_normal=True,
            context=fact(_printed_empty),
            summary=_why_undivided,
            remedy=_slicing,
        ),
    ),
)
