"""What was rendered for a cluster, as a person reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.change import CommandChange
from gpunode.cli.screen.checks import check_lines, verdict
from gpunode.cli.screen.commands import cluster_verify_command
from gpunode.cli.screen.failures import next_lines
from gpunode.cli.screen.text import BLANK, Line, Span, Style, line, span
from gpunode.cli.screen.words import MARKS, count
from gpunode.command import command
from gpunode.kubernetes.forms import may_be_left
from gpunode.kubernetes.model import NodeEdit, OwnPod, Rendered
from gpunode.kubernetes.own_pod import own_pod_text
from gpunode.kubernetes.reconcile import Item, State
from gpunode.workflow.cluster_plan import ClusterPlan

if TYPE_CHECKING:
    from gpunode.host.cluster import Identity
    from gpunode.workflow.verify import Report

_DIFF_SHOWN: Final = 12
# From the pod's limits to the kernel module, on one page.
_CONCEPTS: Final = "docs/explanation/from-pod-to-gpu.md explains device plugin, runtime and RuntimeClass"
_PAGE: Final = "docs/how-to/your-own-pod.md"
_SIGNS: Final[Mapping[State, tuple[str, Style]]] = {
    "create": ("+", "add"),
    "change": ("~", "warn"),
    "delete": ("-", "remove"),
    "same": ("=", "dim"),
    "foreign": ("=", "dim"),
}


def plan_lines(found: ClusterPlan, wanted: Rendered, elsewhere: str, *, verbose: bool) -> Iterator[Line]:
    """Which cluster it is, what would be done there, and how to do it."""
    yield from cluster_lines(found.identity, elsewhere)
    for edit in wanted.nodes:
        offer = ", ".join(f"{many} × {name}" for name, many in (wanted.expected.get(edit.node) or {}).items())
        about = f"  {edit.why}" + (f"; will offer {offer}" if offer else "")
        yield line(span("node     ", "dim"), span(edit.node, "bold"), span(about), hang=9)
    yield from _own_pod_reasons(wanted)
    if found.items and all(item.state != "same" for item in found.items):  # the first time
        yield line(span(f"concepts {_CONCEPTS}", "dim"), hang=9)
    yield BLANK
    yield from _item_lines(found, verbose=verbose)
    for text in found.skipped:
        yield line(Span("! ", "warn"), span(f"skipped: {text}"), hang=2)
    for note in (*found.notes, *wanted.notes):
        yield line(Span("! ", "warn"), span(note), hang=2)
    if found.skipped or found.notes or wanted.notes:
        yield BLANK
    yield _total(found)


def trouble_lines(found: ClusterPlan) -> Iterator[Line]:
    """Yield what to do about the pods that do not run."""
    for item in found.items:
        if item.trouble is not None:
            yield from next_lines(item.trouble.hint)


def _own_pod_reasons(wanted: Rendered) -> Iterator[Line]:
    for own in wanted.own_pods:
        yield line(span("your pod ", "dim"), span(own.why), hang=9)


def own_pod_lines(every: Sequence[OwnPod]) -> Iterator[Line]:
    """Yield what the user's own pod has to say for a GPU, to be copied; nothing where nobody knows."""
    for own in every:
        head = f"in your own pod (see {_PAGE}):" if own is every[0] else "or:"
        yield line(span(head, "dim"), hang=2)
        yield from (line(span(f"  {text}"), hang=4) for text in own_pod_text(own).splitlines())


def removal_lines(found: ClusterPlan, *, verbose: bool) -> Iterator[Line]:
    """Which cluster it is, and what would be taken out of it."""
    yield from cluster_lines(found.identity, "")
    yield BLANK
    yield from _item_lines(found, verbose=verbose)
    for text in found.skipped:
        yield line(Span("! ", "warn"), span(f"skipped: {text}"), hang=2)
    yield _total(found)


def done_lines(verb: str, run: str, argv: Sequence[str], kept: Sequence[Item] = ()) -> Iterator[Line]:
    """Yield that it is done, what was kept, and what to do next; ``run`` as people type it, ``argv`` what was typed."""
    if verb == "k8s apply":
        yield line(MARKS["done"], span(f"applied (run {run})"), hang=2)
        following = cluster_verify_command(argv)
    else:
        yield line(MARKS["done"], span(f"done (run {run})"), hang=2)
        yield from (line(Span("! ", "warn"), span(f"{one.title} {one.note}"), hang=2) for one in kept)
        following = command("gpunode", "rollback", run)
    yield line(span("next: " if verb == "k8s apply" else "undo: ", "dim"), span(following, "command"), hang=6)


def verified_lines(report: Report) -> Iterator[Line]:
    """What verify found in a cluster."""
    yield from check_lines(report.checks)
    yield BLANK
    pods = [check for check in report.checks if check.id.startswith("pod/")]
    is_proven = bool(pods) and all(check.status == "passed" for check in pods)
    yield verdict(report, "pods get the GPUs: one computed on each node", is_proven=is_proven)


def cluster_lines(who: Identity, elsewhere: str) -> Iterator[Line]:
    """Which cluster is meant, and whether the last run was in another one."""
    about = [who.server, f"context {who.context}" if who.context else "", f"Kubernetes {who.version.lstrip('v')}"]
    yield line(span("cluster  ", "dim"), span(" · ".join(filter(None, about))), hang=9)
    if who.skew:
        yield line(Span("! ", "warn"), span(who.skew), hang=2)
    if elsewhere:
        yield line(Span("! ", "warn"), "this is another cluster than that of your last run", hang=2)


def _item_lines(found: ClusterPlan, *, verbose: bool) -> Iterator[Line]:
    for item in found.items:
        sign, style = _SIGNS[item.state]
        about = item.note or ("as it should be" if item.state == "same" else item.why)
        yield line(span(f"  {sign} ", style), span(item.title), span(f"  {about}", "dim"), hang=6)
        yield from (_diff_line(text) for text in _shown(item, verbose=verbose))
    yield BLANK


def _shown(item: Item, *, verbose: bool) -> Sequence[str]:
    if verbose or len(item.diff) <= _DIFF_SHOWN:
        return item.diff
    return (*item.diff[:_DIFF_SHOWN], f"… {count(len(item.diff) - _DIFF_SHOWN, 'line')} more: -v shows them")


def _diff_line(text: str) -> Line:
    style: Style = "add" if text.startswith("+") else "remove" if text.startswith("-") else "dim"
    return line(span(f"      {text}", style), hang=8)


def _total(found: ClusterPlan) -> Line:
    states = [item.state for item in found.items if item.change is not None]
    troubled = [item.title for item in found.items if item.trouble is not None]
    if troubled and not states:
        return line(Span("! ", "warn"), f"nothing to change, but {', '.join(troubled)} does not run", hang=2)
    if not states:
        return line(MARKS["done"], "nothing to change", hang=2)
    parts = [f"{states.count(state)} to {state}" for state in dict.fromkeys(states)]
    return line(span("plan: ", "bold"), "; ".join(filter(None, (", ".join(parts), _running_pods(found)))), hang=6)


def _running_pods(found: ClusterPlan) -> str:
    """What becomes of them; nothing where a chart decides."""
    if any(text.startswith("+taint ") and text.endswith(":NoExecute") for item in found.items for text in item.diff):
        return "pods that do not tolerate the taint are evicted"
    is_of_chart = any(isinstance(item.change, CommandChange) for item in found.items)
    return "" if is_of_chart else "running pods stay as they are"


def rendered_lines(found: Rendered, out: str, removed: Sequence[str], *, is_for_git: bool) -> Iterator[Line]:
    """Yield the nodes, the objects and releases with their reasons, what to know, and how to apply them."""
    for edit in found.nodes:
        yield line(span("  Node ", "dim"), span(edit.node, "bold"), span(f"  {edit.why}"), hang=4)
        yield line(span(f"    {_asked(found, edit)}", "dim"), hang=6)
    yield BLANK
    for one in found.objects:
        place = f"{one.namespace}/{one.name}" if one.namespace else one.name
        yield line(span("  + ", "add"), span(f"{one.kind} {place}"), span(f"  {one.why}", "dim"), hang=6)
    for release in found.releases:
        name = f"Helm release {release.namespace}/{release.name} {release.version}"
        yield line(span("  + ", "add"), span(name), span(f"  {release.why}", "dim"), hang=6)
    for path in removed:
        left = "; if it was applied, what it made is still in the cluster" if may_be_left(path, found) else ""
        yield line(span("  - ", "remove"), span(f"{path}  from a former render{left}"), hang=6)
    yield BLANK
    for note in found.notes:
        yield line(Span("! ", "warn"), span(note), hang=2)
    yield from _own_pod_reasons(found)
    yield from own_pod_lines(found.own_pods)
    yield line(Span("✓ ", "good"), span(f"written to {out}; nothing was sent to a cluster"), hang=2)
    if is_for_git:
        yield line(span(f"{out.rstrip('/')}/README.md says how to hand it over; or apply it yourself:"), hang=2)
    script = out if out.startswith("/") else f"./{out}"
    yield line(span("next: ", "dim"), span(command(f"{script.rstrip('/')}/apply.sh"), "command"), hang=6)


def _asked(found: Rendered, edit: NodeEdit) -> str:
    """The node's labels and taint, and what it will offer."""
    labels = ", ".join(f"{key}={value}" for key, value in edit.labels.items())
    offer = found.expected.get(edit.node) or {}
    parts = [f"labels {labels}"] if labels else []
    parts += [f"taint {edit.taint}"] if edit.taint else []
    parts += ["offers " + ", ".join(f"{count} × {name}" for name, count in offer.items())] if offer else []
    return "; ".join(parts) or "nothing is changed on the Node itself"
