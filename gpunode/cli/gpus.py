"""gpus: each GPU with its driver branches, its CUDA releases, and their end of support."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from gpunode.catalog.driver import DriverChoice
from gpunode.catalog.gpu_support import GpuSupport, describe_support
from gpunode.catalog.gpus import LIST_GPUS, GpuModel, find_all_by_name, find_model, non_gpu_kind_and_name, search_models
from gpunode.catalog.tables import rows
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import PCI_ID, list_unknown_facts, view_node
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.node import label_rows, short_model_name
from gpunode.cli.screen.text import STATE_MARK, Line, line, span
from gpunode.command import gpunode_command
from gpunode.errors import Refused, UsageError
from gpunode.facts.model import Facts, require
from gpunode.fast_dataclass import dataclass
from gpunode.steps.gpus import NVIDIA_VENDOR_ID, find_own_gpus
from gpunode.wording import join_names, join_with_and

# More matches would be a list to scroll through: the words were too general.
_MAX_MATCHES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Models with the same support from NVIDIA: the support, their names and PCI ids, and their addresses on a node."""

    support: GpuSupport
    names: tuple[str, ...]
    device_ids: tuple[str, ...]
    addresses: tuple[str, ...] = ()


def gpus(output: OutputOptions, node: str, names: str) -> None:
    """Show the GPUs of a node, or those that ``names`` lists by PCI id or by name."""
    if names and node:
        why = "--gpu asks about a GPU that no node needs to have"
        raise UsageError("--node cannot be used with --gpu", why=why, hint="leave one out")
    if names:
        reports, unknown = _group_models((model, "") for model in _parse_models(names)), []
    else:
        facts = view_node(node, "/", "").facts
        reports, unknown = _report_node(facts), list_unknown_facts(facts)
    output.open_screen().put(*gpu_lines(reports))
    output.emit(Envelope("gpus", unknown=unknown, result={"gpus": [_report_row(report) for report in reports]}))


def _report_node(facts: Facts) -> tuple[GpuReport, ...]:
    devices = find_own_gpus(require(facts.devices, "which PCI devices there are"))
    if not devices:
        raise Refused(
            "no NVIDIA GPU found on this node",
            why="none of its PCI devices is of vendor 10de with class 0300 or 0302",
            hint=f"ask about a GPU of another machine by its id or its name:\n"
            f"{gpunode_command('gpus', '--gpu', 'Tesla T4')}",
        )
    return _group_models((find_model(device.device), device.address) for device in devices)


def _group_models(models: Iterable[tuple[GpuModel, str]]) -> tuple[GpuReport, ...]:
    """Return a report for each group of models that differ only in name and id; ``models`` pairs model and address."""
    groups: dict[GpuModel, list[tuple[GpuModel, str]]] = {}
    for model, address in models:
        # What is assumed about an unlisted GPU depends on its id.
        key = replace(model, device_id="", name="") if model.listed else model
        groups.setdefault(key, []).append((model, address))
    return tuple(
        GpuReport(
            describe_support(members[0][0]),
            tuple(dict.fromkeys(model.name for model, _ in members)),
            tuple(dict.fromkeys(model.device_id for model, _ in members)),
            tuple(address for _, address in members if address),
        )
        for members in groups.values()
    )


def _parse_models(names: str) -> Iterator[GpuModel]:
    """Yield the models that ``names`` lists, separated by commas: PCI ids (``10de:1b80``) or names.

    Raises:
        UsageError: a part is not an NVIDIA GPU, is an unknown name, or matches too many models.
    """
    parts = tuple(filter(None, map(str.strip, names.split(","))))
    if not parts:
        raise UsageError(f"--gpu {names} names no GPU", why="it lists nothing", hint=f"name one:\n{LIST_GPUS}")
    for part in parts:
        match = PCI_ID.fullmatch(part)
        if match is None:
            yield from _find_by_name(part)
        elif match[1].lower() != NVIDIA_VENDOR_ID:
            raise UsageError(f"--gpu {part}: not a device of NVIDIA's", hint=f"its ids begin with 10de:\n{LIST_GPUS}")
        elif other := non_gpu_kind_and_name(match[2]):
            raise UsageError(
                f"--gpu {part} names no GPU",
                why=f"it is the {other[1]}",
                hint=f"this lists only GPUs:\n{LIST_GPUS}",
            )
        else:
            yield find_model(match[2].lower())


def _find_by_name(name: str) -> tuple[GpuModel, ...]:
    models = search_models(name)
    names = list(dict.fromkeys(model.name for model in models))
    exact = tuple(find_all_by_name(name))
    if exact and len(names) > _MAX_MATCHES_SHOWN:
        return exact
    if not models:
        every = {row["name"].removeprefix("NVIDIA ").lower(): row["name"] for row in rows("gpus.csv")}
        near = [every[close_match] for close_match in get_close_matches(name.lower(), every, n=3)]
        raise UsageError(
            f"--gpu {name}: no GPU of that name is known",
            why=f"similar: {', '.join(near)}" if near else "",
            hint=f"name it as nvidia-smi does, or by its PCI id, as this lists it:\n{LIST_GPUS}",
        )
    if len(names) > _MAX_MATCHES_SHOWN:
        listed = ", ".join(names[:_MAX_MATCHES_SHOWN])
        raise UsageError(
            f"--gpu {name}: {len(names)} GPUs have such a name",
            why=f"{listed}, …",
            hint=f"give the full name of one:\n{gpunode_command('gpus', '--gpu', names[0])}",
        )
    return models


def _report_row(report: GpuReport) -> Mapping[str, object]:
    support, model = report.support, report.support.model
    choice = support.choice
    return {
        "names": report.names,
        "device_ids": [f"{NVIDIA_VENDOR_ID}:{one}" for one in report.device_ids],
        "addresses": report.addresses,
        "architecture": model.architecture,
        "compute_capability": model.compute_capability or None,
        "listed": model.listed,
        "assumption": support.assumption or None,
        "driver": {"branch": choice.branch, "kernel_module_type": choice.flavour, "reason": support.reason}
        if isinstance(choice, DriverChoice)
        else None,
        "refusal": None if isinstance(choice, DriverChoice) else {"what": choice.what, "why": choice.why},
        "branches": [
            {"number": one.number, "kind": one.kind, "maintained": one.is_maintained, "end_of_life": one.eol or None}
            for one in support.branches
        ],
        "kernel_module_types": support.flavours,
        "cuda": ".".join(map(str, support.cuda)) if support.cuda else None,
        "end_of_life": support.end_of_life or None,
        "packages": support.packages,
    }


_BRANCH_KIND_WORDS = {
    "lts": "long-term support",
    "production": "production",
    "new-feature": "new feature",
    "legacy": "legacy",
}
_MAX_ENDED_BRANCHES_SHOWN = 3
_MAX_NAMES_SHOWN = 4


def gpu_lines(reports: Sequence[GpuReport]) -> Iterator[Line]:
    """Yield each model's name, driver, branches, modules, CUDA and packages."""
    for number, report in enumerate(reports):
        if number:
            yield Line()
        yield _title_line(report)
        yield from _support_lines(report.support)


def _title_line(report: GpuReport) -> Line:
    model = report.support.model
    names = join_names((short_model_name(name) for name in report.names), _MAX_NAMES_SHOWN)
    count = f"{len(report.addresses)} × " if len(report.addresses) > 1 else ""
    about = f"  {model.architecture}" if model.listed else ""
    about += f", compute capability {model.compute_capability}" if model.compute_capability else ""
    ids = join_names((f"10de:{one}" for one in report.device_ids), _MAX_NAMES_SHOWN)
    where = f" at {join_names(report.addresses)}" if report.addresses else ""
    return line(span(f"{count}{names}", "bold"), about, span(f"  {ids}{where}", "dim"), hang=2)


def _support_lines(support: GpuSupport) -> Iterator[Line]:
    model = support.model
    if support.assumption:
        yield from label_rows("assumed", (line(STATE_MARK["waits"], span(support.assumption, "warn"), hang=2),))
    if isinstance(support.choice, DriverChoice):
        yield from label_rows("driver", (line(support.reason, hang=2),))
    else:
        ended = f", and its fixes ended in {support.end_of_life}" if support.end_of_life else ""
        why = f"none in NVIDIA's current repositories: {model.last_branch} is the last branch that supports it{ended}"
        yield from label_rows("driver", (line(STATE_MARK["refused"], why, hang=2),))
    yield from label_rows("branches", _branch_lines(support))
    only = " only" if len(support.flavours) == 1 else ""
    yield from label_rows("modules", (line(f"{join_with_and(support.flavours)} kernel modules{only}"),))
    if support.cuda:
        limit = f"; {support.cuda_limit}" if support.cuda_limit else ""
        yield from label_rows("CUDA", (line(f"up to {'.'.join(map(str, support.cuda))}{limit}", hang=2),))
    yield from label_rows("also", (line(text, hang=2) for text in support.packages))


def _branch_lines(support: GpuSupport) -> Iterator[Line]:
    """Yield the maintained branches with their end dates, then the newest of the ended ones."""
    maintained = [branch for branch in support.branches if branch.is_maintained]
    ended = [branch for branch in support.branches if not branch.is_maintained]
    for branch in maintained:
        end = f", until {branch.eol}" if branch.eol else ""
        yield line(f"{branch.number}  {_BRANCH_KIND_WORDS[branch.kind]}{end}")
    if ended:
        names = join_names((str(branch.number) for branch in ended), _MAX_ENDED_BRANCHES_SHOWN)
        yield line(span(f"{names}: no longer maintained", "dim"))
    if support.model.last_branch is not None and support.branches:
        end = f"; fixes end {support.end_of_life}" if support.end_of_life else ""
        yield line(span(f"no later branch supports it{end}", "warn"))
