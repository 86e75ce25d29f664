"""The support that NVIDIA gives each GPU, a paragraph each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.catalog.branches import Branch
from gpunode.catalog.driver import Choice
from gpunode.catalog.gpu_support import GpuSupport
from gpunode.cli.screen.node import label_rows, short_model_name
from gpunode.cli.screen.text import Line, line, span
from gpunode.cli.screen.words import MARKS, join_names, join_with_and

if TYPE_CHECKING:
    from gpunode.cli.gpus import GpuReport

_KINDS = {"lts": "long-term support", "production": "production", "new-feature": "new feature", "legacy": "legacy"}
_ENDED_SHOWN = 3
_NAMES_SHOWN = 4


def gpu_lines(reports: Sequence[GpuReport]) -> Iterator[Line]:
    """Yield for each model its name, driver, branches, modules, CUDA and packages."""
    for number, report in enumerate(reports):
        if number:
            yield Line()
        yield _title_line(report)
        yield from _support_lines(report.support)


def _title_line(report: GpuReport) -> Line:
    model = report.support.model
    names = join_names((short_model_name(name) for name in report.names), _NAMES_SHOWN)
    count = f"{len(report.addresses)} × " if len(report.addresses) > 1 else ""
    about = f"  {model.architecture}" if model.listed else ""
    about += f", compute capability {model.compute_capability}" if model.compute_capability else ""
    ids = join_names((f"10de:{one}" for one in report.device_ids), _NAMES_SHOWN)
    where = f" at {join_names(report.addresses)}" if report.addresses else ""
    return line(span(f"{count}{names}", "bold"), about, span(f"  {ids}{where}", "dim"), hang=2)


def _support_lines(support: GpuSupport) -> Iterator[Line]:
    model = support.model
    if support.assumption:
        yield from label_rows("assumed", (line(MARKS["waits"], span(support.assumption, "warn"), hang=2),))
    if isinstance(support.choice, Choice):
        yield from label_rows("driver", (line(support.reason, hang=2),))
    else:
        ended = f", and its fixes ended in {support.end_of_life}" if support.end_of_life else ""
        why = f"none in NVIDIA's current repositories: {model.last_branch} is the last branch that supports it{ended}"
        yield from label_rows("driver", (line(MARKS["refused"], why, hang=2),))
    yield from label_rows("branches", tuple(_branch_lines(support)))
    yield from label_rows("modules", (line(f"{join_with_and(support.flavours)}{_only(support)}"),))
    if support.cuda:
        limit = f"; {support.cuda_limit}" if support.cuda_limit else ""
        yield from label_rows("CUDA", (line(f"up to {'.'.join(map(str, support.cuda))}{limit}", hang=2),))
    yield from label_rows("also", tuple(line(text, hang=2) for text in support.packages))


def _only(support: GpuSupport) -> str:
    return " kernel modules" + (" only" if len(support.flavours) == 1 else "")


def _branch_lines(support: GpuSupport) -> Iterator[Line]:
    """Yield the maintained branches with their ends, then the newest of those that ended."""
    maintained = [branch for branch in support.branches if branch.active]
    ended = [branch for branch in support.branches if not branch.active]
    for branch in maintained:
        yield line(_branch_text(branch))
    if ended:
        names = join_names((str(branch.number) for branch in ended), _ENDED_SHOWN)
        yield line(span(f"{names}: not maintained any more", "dim"))
    if support.model.last_branch is not None and support.branches:
        end = f"; fixes end {support.end_of_life}" if support.end_of_life else ""
        yield line(span(f"no later branch drives it{end}", "warn"))


def _branch_text(branch: Branch) -> str:
    end = f", until {branch.eol}" if branch.eol else ""
    return f"{branch.number}  {_KINDS[branch.kind]}{end}"
