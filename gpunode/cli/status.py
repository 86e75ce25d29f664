"""status: this node's GPUs, driver, kernels, toolkit and runtimes on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpunode.catalog.fabric import IMEX_UNIT
from gpunode.change import short_unit_name
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import list_unknown_facts, load_backlog, view_node
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.node import label_rows, node_line
from gpunode.cli.screen.text import (
    DOT,
    STATE_MARK,
    Line,
    Span,
    Style,
    line,
    mark_commands,
    pad_right,
    span,
    warning_line,
)
from gpunode.container_runtimes import CONTAINER_RUNTIMES, takes_only_cdi
from gpunode.facts.model import Facts, Known, value_or
from gpunode.wording import join_names

if TYPE_CHECKING:
    from gpunode.facts.nvml import Gpu, NvmlAnswer
    from gpunode.workflow.status import CudaStatus, NodeStatus, RuntimeStatus, SecureBootStatus


def status(output: OutputOptions, node: str) -> None:
    """Show the node on one screen."""
    from gpunode.cli.screen.plans import note_line
    from gpunode.workflow.status import status as find_status

    view = view_node(node, "/", "")
    backlog = load_backlog(node, "/", view.facts)
    state = find_status(view.facts, view.host, backlog)
    output.open_screen().put(*status_lines(view.facts, state), *map(note_line, backlog.notes))
    notes = (*state.notes, *backlog.notes)
    unknown = list_unknown_facts(view.facts, backlog)
    output.emit(Envelope("status", notes=notes, unknown=unknown, result={"status": state}))


def status_lines(facts: Facts, state: NodeStatus) -> Iterator[Line]:
    """Yield the layers of the node, aligned: GPUs, driver, kernels, held packages, toolkit, runtimes."""
    yield node_line(facts)
    yield Line()
    yield from label_rows("GPU", _gpu_rows(state))
    is_removed = isinstance(facts.packages, Known) and not value_or(facts.run_installer, default=False)
    yield from label_rows("driver", _driver_lines(state, may_be_removed=is_removed))
    yield from label_rows("kernels", _kernel_lines(state))
    if state.held_packages:
        yield from label_rows("held", (line(f"{join_names(state.held_packages)} (not upgraded while held)"),))
    if state.fabric:
        unit = state.fabric.unit
        harm = "the trays share no memory" if unit == IMEX_UNIT else "CUDA does not start on these GPUs"
        running = {True: "running", False: f"not running: {harm}", None: "unknown whether it runs"}[state.fabric.active]
        shown = span(f"{short_unit_name(unit)} {running}", "" if state.fabric.active else "warn")
        yield from label_rows("fabric", (line(state.fabric.seen, DOT, shown, hang=2),))
    yield from label_rows("boot", (_secure_boot_line(state.secure_boot),) if state.secure_boot else ())
    yield from label_rows("CUDA", _cuda_lines(state.cuda))
    yield from label_rows("toolkit", (line(span(state.toolkit or "not installed", "" if state.toolkit else "dim")),))
    rows = tuple(_runtime_line(row) for row in state.runtimes)
    yield from label_rows("runtimes", rows or (line(span("none installed", "dim")),))
    if state.pending:
        # After a failed undo, the user does not want a setup, least of all with another recipe.
        verbs = {"rollback": "rollback", "remove": "remove"}
        verbs |= {verb: f"ctk runtime {verb}" for verb in ("configure", "unconfigure")}
        repeat = f"the same gpunode {verbs.get(state.pending_verb, 'setup')} again"
        # The words matter: without its number, a rollback offers to undo another run.
        finisher = f"`{state.pending_undo}`" if state.pending_undo else repeat
        left = f"an earlier run left undone: {join_names(state.pending)}; {finisher} finishes it"
        yield from label_rows("pending", (line(STATE_MARK["waits"], left, hang=2),))
    yield from label_rows("notes", (warning_line(text, "warn") for text in state.notes))


def _gpu_rows(state: NodeStatus) -> Iterator[Line]:
    from gpunode.facts.nvml import NvmlInventory

    answering = {str(gpu.pci): gpu for gpu in state.nvml.gpus} if isinstance(state.nvml, NvmlInventory) else {}
    width = max((len(gpu.name) for gpu in state.gpus), default=0)
    for listed in state.gpus:
        gpu = answering.pop(listed.address, None)
        yield line(f"{listed.address}  {pad_right(listed.name, width)}", *(_gpu_details(gpu) if gpu else ()), hang=2)
        if gpu and gpu.faults:
            reading, fault = gpu.faults[0]
            yield line(STATE_MARK["failed"], f"{reading}: {fault.meaning}", hang=2)
    for gpu in answering.values():
        address = gpu.pci if isinstance(gpu.pci, str) else f"NVML {gpu.index}"
        yield line(f"{address}  {gpu.name if isinstance(gpu.name, str) else '?'}", *_gpu_details(gpu), hang=2)
    if not state.gpus and not answering:
        yield line(span("no NVIDIA GPU on the PCI bus", "warn"))


def _gpu_details(gpu: Gpu) -> Iterator[Span]:
    if isinstance(gpu.memory_mib, int):
        yield Span(f"  {gpu.memory_mib} MiB")
    if isinstance(gpu.uuid, str):
        yield span(f"  {gpu.uuid}", "dim")


def _driver_lines(state: NodeStatus, *, may_be_removed: bool) -> Iterator[Line]:
    from gpunode.facts.nvml import NvmlInventory

    installed = f"{state.driver} installed" if state.driver else "no driver package"
    loaded = f"{state.loaded_driver} loaded" if state.loaded_driver else "none loaded"
    mixed = state.driver and state.loaded_driver and state.driver != state.loaded_driver
    yield line(span(installed), DOT, span(loaded, "warn" if mixed or not state.loaded_driver else ""))
    flavour = f" with its {state.pending_flavour} modules" if state.pending_flavour else ""
    kernels, lacking = state.kernels, state.kernels_without_module
    if (mixed or flavour) and not (kernels and kernels.installed[-1:] and kernels.installed[-1] in lacking):
        yield line(STATE_MARK["waits"], f"a reboot loads {state.driver}{flavour}", hang=2)
    if isinstance(state.nvml, NvmlInventory) or state.driver:
        yield from nvml_lines(state.nvml)
    elif state.loaded_driver and may_be_removed:
        yield line(STATE_MARK["waits"], "no driver is installed: this module is gone after the next boot", hang=2)
    elif state.loaded_driver:
        yield from nvml_lines(state.nvml)


def nvml_lines(answer: NvmlAnswer) -> Iterator[Line]:
    """Yield the answer of NVML, or why there is none and what to do."""
    from gpunode.facts.nvml import NoAnswer, NvmlInventory

    if isinstance(answer, NvmlInventory):
        yield line(STATE_MARK["passed"], f"NVML answers: driver {answer.driver}, CUDA up to {answer.cuda}", hang=2)
    elif isinstance(answer, NoAnswer):
        mark = STATE_MARK["skipped"] if answer.kind == "not-queried" else STATE_MARK["failed"]
        yield line(mark, f"NVML: {answer.reason}", hang=2)
    else:
        yield line(STATE_MARK["failed"], f"NVML: {answer.meaning} ({answer.name})", hang=2)
        yield line("  next: ", *mark_commands(answer.remedy), hang=8)


def _kernel_lines(state: NodeStatus) -> Iterator[Line]:
    if state.kernels is None:
        yield line(span("not readable", "dim"))
        return
    for kernel in state.kernels.wanted:
        is_next = kernel in state.kernels.installed[-1:]
        roles = [*(["runs"] if kernel == state.kernels.running else []), *(["boots next"] if is_next else [])]
        text = f"{kernel} {' and '.join(roles)}"
        if kernel in state.kernels_without_module:
            harm = "the next boot would have no driver" if is_next else "the driver cannot be loaded"
            yield line(STATE_MARK["waits"], span(f"{text}, without a driver module: {harm}", "warn"), hang=2)
        else:
            yield line(text, span("; the driver's module is built for it" if state.driver else "", "dim"), hang=2)


def _secure_boot_line(secure_boot: SecureBootStatus) -> Line:
    if not secure_boot.on:
        return line(span("Secure Boot is off", "dim"))
    if not secure_boot.state:
        return line("Secure Boot is on")
    state = {
        "missing": "no complete key for the modules that DKMS builds",
        "enrolled": "the firmware has the key",
        "queued": "the next boot asks at the console to enrol the key",
        "not enrolled": "the firmware does not have the key",
    }[secure_boot.state]
    style: Style = "warn" if secure_boot.state in {"queued", "not enrolled"} else ""
    return line("Secure Boot is on", DOT, span(f"{state} ({secure_boot.certificate})", style), hang=2)


def _cuda_lines(cuda_status: CudaStatus) -> Iterator[Line]:
    """Yield what the driver runs and an image may demand, then the toolkits on the host."""
    if cuda_status.driver:
        newer = f", programs of up to {cuda_status.compatible} with limits" if cuda_status.compatible else ""
        yield line(
            f"the driver runs up to {cuda_status.driver}{newer}; an image may demand cuda>={cuda_status.driver}", hang=2
        )
    folders = join_names(f"{release} in /usr/local/cuda-{release}" for release in cuda_status.installed)
    if cuda_status.driver or folders:
        yield line(folders) if folders else line(span("no CUDA toolkit on the host; containers bring their own", "dim"))


def _runtime_line(row: RuntimeStatus) -> Line:
    if takes_only_cdi(row.id):
        return line(span(f"{row.id} {row.version}", "bold"), DOT, "takes GPUs as CDI devices", hang=2)
    unknown = f"unknown whether it runs: {row.unknown_reason}" if row.unknown_reason else "no unit"
    state = {True: "running", False: "not running", None: unknown}[row.active]
    parts: list[str | Span] = [span(f"{row.id} {row.version}", "bold"), DOT, span(state, "" if row.active else "warn")]
    if row.configured is None:
        return line(*parts, DOT, span("configuration not readable", "warn"), hang=2)
    handler = row.configured.handlers.get("nvidia")
    nvidia = (
        span("no nvidia runtime", "dim") if handler is None else span(f"nvidia → {handler or 'its default'}", "good")
    )
    is_crio = CONTAINER_RUNTIMES[row.id].live_config_source == "crio status"
    built_in = "built-in" if is_crio else "runc"  # CRI-O's is runc, and crun from 1.31
    return line(*parts, DOT, f"default {row.configured.default or built_in}", DOT, nvidia, hang=2)
