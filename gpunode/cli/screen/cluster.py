"""Screens of the commands for clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.cli.screen.checks import check_lines, verdict_line
from gpunode.cli.screen.commands import cluster_verify_command
from gpunode.cli.screen.failures import next_lines
from gpunode.cli.screen.text import BLANK, Line, Span, Style, line, span
from gpunode.cli.screen.words import MARKS, count
from gpunode.command import command
from gpunode.kubernetes.forms import may_leave_objects
from gpunode.kubernetes.model import NodeEdit, OwnPod, Rendered
from gpunode.kubernetes.own_pod import format_own_pod
from gpunode.kubernetes.reconcile import PlanItem, State
from gpunode.workflow.cluster_plan import ClusterPlan

if TYPE_CHECKING:
    from gpunode.host.cluster import Identity
    from gpunode.workflow.verify import VerifyReport

_MAX_DIFF_LINES: Final = 12
# From the pod's limits to the kernel module, on one page.
_CONCEPTS_HINT: Final = "docs/explanation/from-pod-to-gpu.md explains device plugin, runtime and RuntimeClass"
_OWN_POD_PAGE: Final = "docs/how-to/your-own-pod.md"
_STATE_SIGNS: Final[Mapping[State, tuple[str, Style]]] = {
    "create": ("+", "add"),
    "edit": ("~", "warn"),
    "delete": ("-", "remove"),
    "unchanged": ("=", "dim"),
    "foreign": ("=", "dim"),
}


def plan_lines(plan: ClusterPlan, desired: Rendered, other_cluster: str, *, verbose: bool) -> Iterator[Line]:
    """Yield the cluster, the changes that would be made in it, and their total."""
    yield from cluster_lines(plan.identity, other_cluster)
    for edit in desired.nodes:
        offer = ", ".join(f"{many} × {name}" for name, many in (desired.expected.get(edit.node) or {}).items())
        about = f"  {edit.why}" + (f"; will offer {offer}" if offer else "")
        yield line(span("node     ", "dim"), span(edit.node, "bold"), span(about), hang=9)
    yield from _own_pod_reasons(desired)
    if plan.items and all(item.state != "unchanged" for item in plan.items):  # the first time
        yield line(span(f"concepts {_CONCEPTS_HINT}", "dim"), hang=9)
    yield BLANK
    yield from _item_lines(plan, verbose=verbose)
    for text in plan.skipped:
        yield line(Span("! ", "warn"), span(f"skipped: {text}"), hang=2)
    for note in (*plan.notes, *desired.notes):
        yield line(Span("! ", "warn"), span(note), hang=2)
    if plan.skipped or plan.notes or desired.notes:
        yield BLANK
    yield _summary_line(plan)


def pod_problem_lines(plan: ClusterPlan) -> Iterator[Line]:
    """Yield what to do about the pods that do not run."""
    for item in plan.items:
        if item.trouble is not None:
            yield from next_lines(item.trouble.hint)


def _own_pod_reasons(desired: Rendered) -> Iterator[Line]:
    for own in desired.own_pods:
        yield line(span("your pod ", "dim"), span(own.why), hang=9)


def own_pod_lines(pods: Sequence[OwnPod]) -> Iterator[Line]:
    """Yield the lines that the user's own pod needs for a GPU, to be copied; none if that is unknown."""
    for own in pods:
        head = f"in your own pod (see {_OWN_POD_PAGE}):" if own is pods[0] else "or:"
        yield line(span(head, "dim"), hang=2)
        yield from (line(span(f"  {text}"), hang=4) for text in format_own_pod(own).splitlines())


def removal_lines(plan: ClusterPlan, *, verbose: bool) -> Iterator[Line]:
    """Yield the cluster, and what would be removed from it."""
    yield from cluster_lines(plan.identity, "")
    yield BLANK
    yield from _item_lines(plan, verbose=verbose)
    for text in plan.skipped:
        yield line(Span("! ", "warn"), span(f"skipped: {text}"), hang=2)
    yield _summary_line(plan)


def done_lines(verb: str, run: str, argv: Sequence[str], kept: Sequence[PlanItem] = ()) -> Iterator[Line]:
    """Yield that it is done, what was kept, and the next command; ``run`` as a user types it, ``argv`` as typed."""
    if verb == "k8s apply":
        yield line(MARKS["done"], span(f"applied (run {run})"), hang=2)
        following = cluster_verify_command(argv)
    else:
        yield line(MARKS["done"], span(f"done (run {run})"), hang=2)
        yield from (line(Span("! ", "warn"), span(f"{one.title} {one.note}"), hang=2) for one in kept)
        following = command("gpunode", "rollback", run)
    yield line(span("next: " if verb == "k8s apply" else "undo: ", "dim"), span(following, "command"), hang=6)


def verified_lines(report: VerifyReport) -> Iterator[Line]:
    """Yield the checks of a cluster and their verdict."""
    yield from check_lines(report.checks)
    yield BLANK
    pods = [check for check in report.checks if check.id.startswith("pod/")]
    is_proven = bool(pods) and all(check.status == "passed" for check in pods)
    yield verdict_line(report, "pods get the GPUs: one computed on each node", is_proven=is_proven)


def cluster_lines(identity: Identity, other_cluster: str) -> Iterator[Line]:
    """Yield which cluster it is, and whether the last run was in another one."""
    about = [
        identity.server,
        f"context {identity.context}" if identity.context else "",
        f"Kubernetes {identity.version.lstrip('v')}",
    ]
    yield line(span("cluster  ", "dim"), span(" · ".join(filter(None, about))), hang=9)
    if identity.skew:
        yield line(Span("! ", "warn"), span(identity.skew), hang=2)
    if other_cluster:
        yield line(Span("! ", "warn"), "this is not the cluster of your last run", hang=2)


def _item_lines(plan: ClusterPlan, *, verbose: bool) -> Iterator[Line]:
    for item in plan.items:
        sign, style = _STATE_SIGNS[item.state]
        about = item.note or ("as it should be" if item.state == "unchanged" else item.why)
        yield line(span(f"  {sign} ", style), span(item.title), span(f"  {about}", "dim"), hang=6)
        yield from (_diff_line(text) for text in _shortened_diff(item, verbose=verbose))
    yield BLANK


def _shortened_diff(item: PlanItem, *, verbose: bool) -> Sequence[str]:
    if verbose or len(item.diff) <= _MAX_DIFF_LINES:
        return item.diff
    return (*item.diff[:_MAX_DIFF_LINES], f"… {count(len(item.diff) - _MAX_DIFF_LINES, 'line')} more: -v shows them")


def _diff_line(text: str) -> Line:
    style: Style = "add" if text.startswith("+") else "remove" if text.startswith("-") else "dim"
    return line(span(f"      {text}", style), hang=8)


def _summary_line(plan: ClusterPlan) -> Line:
    states = [item.state for item in plan.items if item.change is not None]
    troubled = [item.title for item in plan.items if item.trouble is not None]
    if troubled and not states:
        return line(Span("! ", "warn"), f"nothing to change, but {', '.join(troubled)} does not run", hang=2)
    if not states:
        return line(MARKS["done"], "nothing to change", hang=2)
    parts = [f"{states.count(state)} to {state}" for state in dict.fromkeys(states)]
    return line(
        span("plan: ", "bold"), "; ".join(filter(None, (", ".join(parts), _describe_running_pods(plan)))), hang=6
    )


def _describe_running_pods(plan: ClusterPlan) -> str:
    """Return what happens to running pods; empty if a chart decides."""
    if any(text.startswith("+taint ") and text.endswith(":NoExecute") for item in plan.items for text in item.diff):
        return "pods that do not tolerate the taint are evicted"
    is_of_chart = any(item.change is not None and item.change.runs("helm") for item in plan.items)
    return "" if is_of_chart else "running pods stay as they are"


def rendered_lines(rendered: Rendered, out: str, removed: Sequence[str], *, is_for_git: bool) -> Iterator[Line]:
    """Yield the nodes, the objects and releases with their reasons, the notes, and how to apply them."""
    for edit in rendered.nodes:
        yield line(span("  Node ", "dim"), span(edit.node, "bold"), span(f"  {edit.why}"), hang=4)
        yield line(span(f"    {_describe_node_edit(rendered, edit)}", "dim"), hang=6)
    yield BLANK
    for one in rendered.objects:
        place = f"{one.namespace}/{one.name}" if one.namespace else one.name
        yield line(span("  + ", "add"), span(f"{one.kind} {place}"), span(f"  {one.why}", "dim"), hang=6)
    for release in rendered.releases:
        name = f"Helm release {release.namespace}/{release.name} {release.version}"
        yield line(span("  + ", "add"), span(name), span(f"  {release.why}", "dim"), hang=6)
    for path in removed:
        left = "; if it was applied, its objects are still in the cluster" if may_leave_objects(path, rendered) else ""
        yield line(span("  - ", "remove"), span(f"{path}  from an earlier render{left}"), hang=6)
    yield BLANK
    for note in rendered.notes:
        yield line(Span("! ", "warn"), span(note), hang=2)
    yield from _own_pod_reasons(rendered)
    yield from own_pod_lines(rendered.own_pods)
    yield line(Span("✓ ", "good"), span(f"written to {out}; nothing was sent to a cluster"), hang=2)
    if is_for_git:
        yield line(span(f"{out.rstrip('/')}/README.md says how to hand it over; or apply it yourself:"), hang=2)
    script = out if out.startswith("/") else f"./{out}"
    yield line(span("next: ", "dim"), span(command(f"{script.rstrip('/')}/apply.sh"), "command"), hang=6)


def _describe_node_edit(rendered: Rendered, edit: NodeEdit) -> str:
    """Return the node's labels and taint, and the resources that it will offer."""
    labels = ", ".join(f"{key}={value}" for key, value in edit.labels.items())
    offer = rendered.expected.get(edit.node) or {}
    parts = [f"labels {labels}"] if labels else []
    parts += [f"taint {edit.taint}"] if edit.taint else []
    parts += ["offers " + ", ".join(f"{count} × {name}" for name, count in offer.items())] if offer else []
    return "; ".join(parts) or "the Node itself is not changed"
