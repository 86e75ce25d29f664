"""``k8s plan``, ``apply``, ``verify`` and ``remove``, and the rollback of their runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import load_recipe, open_cluster_journal
from gpunode.cli.k8s_render import load_cluster_nodes, user_pod_lines, user_pod_reason_lines
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import hash_recipe
from gpunode.cli.screen.checks import check_lines, verdict_line
from gpunode.cli.screen.commands import (
    cluster_apply_command,
    cluster_plan_command,
    cluster_render_command,
    cluster_verify_command,
    option_value,
    own_gpunode,
    own_sudo,
)
from gpunode.cli.screen.failures import hint_lines
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, Style, line, next_command_line, span, warning_line
from gpunode.cli.session import SignalGuard, report_partial_run
from gpunode.command import command, sudo_gpunode
from gpunode.errors import ChangesPending, GpunodeError, Interrupted, Undetermined, UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.host.cluster import Cluster, ClusterIdentity, choose_kubectl
from gpunode.host.helm import DEFAULT_WAIT_S
from gpunode.host.kubectl import ProgramMissing
from gpunode.host.local import LocalHost
from gpunode.journal.history import run_label
from gpunode.kubernetes.cluster_nodes import nodes_from_labels
from gpunode.kubernetes.model import RenderedCluster, UserPodNeeds
from gpunode.kubernetes.reconcile import PlanItem, PlanItemState
from gpunode.kubernetes.render import render_cluster
from gpunode.wording import count_noun
from gpunode.workflow import cluster_apply
from gpunode.workflow.cluster_plan import ClusterPlan, make_plan, require_rights
from gpunode.workflow.cluster_undo import plan_removal, plan_rollback
from gpunode.workflow.cluster_workloads import ReadinessWait
from gpunode.workflow.converge import survey

if TYPE_CHECKING:
    from gpunode.check import Check
    from gpunode.cli.node_screen import Screen
    from gpunode.journal.record import Verb
    from gpunode.kubernetes.model import ClusterNode
    from gpunode.recipe import Recipe


# Commands in hints, which are written for the current context
_KUBECTL_COMMAND_IN_HINT: Final = re.compile(
    r"(?<![\w/.-])kubectl(?= (?:api-resources|apply|auth|cluster-info|config get-contexts|delete|describe|drain|edit"
    r"|get|label|logs|rollout|taint|uncordon)\b)"
)
# or for the default recipe and this machine.
_RENDER_COMMAND_IN_HINT: Final = re.compile(r"\bgpunode k8s render(?= --|$)", re.MULTILINE)
_GPUNODE_COMMAND_IN_HINT: Final = re.compile(r"\bgpunode(?= (?:(?:k8s (?!render)|log)\b|rollback k\d))")
_PLAN_COMMAND_IN_HINT: Final = re.compile(r"\bgpunode k8s plan$", re.MULTILINE)
_REMOVE_COMMAND_IN_HINT: Final = re.compile(r"\bgpunode k8s remove(?=$|,| if\b)", re.MULTILINE)
_HELM_COMMAND_IN_HINT: Final = re.compile(r"\bhelm(?= (?:get|history|list|rollback|status|uninstall|upgrade)\b)")
_ALLOWED_IMAGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """The cluster that a command names by kubectl's context and configuration; empty for the user's own."""

    context: str = ""
    kubeconfig: str = ""

    def connect(self, wait_s: float = DEFAULT_WAIT_S) -> Cluster:
        """Return the cluster, through a usable kubectl; Helm waits ``wait_s`` for the pods of a release."""
        cluster = Cluster(self.context, self.kubeconfig, wait_s)
        cluster.refuse_unusable()
        return cluster

    def adapt_hint(self, hint: str) -> str:
        """Return the hint with its commands adapted to this cluster and to the command line's recipe and nodes."""
        values = (("--context", self.context), ("--kubeconfig", self.kubeconfig))
        options = [str(command(option, value)) for option, value in values if value]
        of_helm = [word.replace("--context", "--kube-context", 1) for word in options]
        sudo = "".join(f"{command(word)} " for word in own_sudo())
        kubectl = choose_kubectl()
        at = kubectl.index("--kubeconfig") if "--kubeconfig" in kubectl else len(kubectl)
        own = () if self.kubeconfig else kubectl[at:]

        def put(pattern: re.Pattern[str], replacement: str, text: str) -> str:
            def add_sudo(match: re.Match[str]) -> str:
                return ("" if match.string.endswith((sudo, "sudo "), 0, match.start()) else sudo) + replacement

            return pattern.sub(add_sudo, text)

        adapted = put(_KUBECTL_COMMAND_IN_HINT, " ".join((command(*kubectl[:at], *own), *options)), hint)
        adapted = put(_HELM_COMMAND_IN_HINT, " ".join((command("helm", *own), *of_helm)), adapted)
        adapted = _REMOVE_COMMAND_IN_HINT.sub(lambda match: " ".join((match[0], *options)), adapted)
        adapted = put(_PLAN_COMMAND_IN_HINT, cluster_plan_command(sys.argv[1:]).removeprefix(sudo), adapted)
        adapted = put(_GPUNODE_COMMAND_IN_HINT, "gpunode", adapted)
        return _RENDER_COMMAND_IN_HINT.sub(lambda _: cluster_render_command(sys.argv[1:]), adapted)

    @contextmanager
    def adapt_error_hints(self) -> Iterator[None]:
        """Adapt the hints of errors to this cluster; if a program is missing, add a way to do without it."""
        try:
            yield
        except GpunodeError as error:
            error.hint = self.adapt_hint(error.hint)
            if isinstance(error, ProgramMissing) and sys.argv[2:3] in (["plan"], ["apply"]):
                files = cluster_render_command(sys.argv[1:], "--format", error.form, "--output", "gpu-node")
                error.hint += f"\nor write the files, and apply them elsewhere: {files}"
            raise


def plan(recipe_path: str, captures: Sequence[str], target: ClusterRef, output: OutputOptions, *, check: bool) -> None:
    """Show the changes that apply would make."""
    screen = output.open_screen()
    with target.adapt_error_hints(), screen:
        cluster_plan, user_pods = _show_plan(
            load_recipe(recipe_path), captures, target, target.connect(), screen, output
        )
        screen.put(*user_pod_lines(user_pods, _user_pod_example()))
        for item in cluster_plan.items:
            screen.put(*hint_lines(item.trouble.hint) if item.trouble else ())
        if cluster_plan.changes and not cluster_plan.missing_rights:
            screen.put(next_command_line(cluster_apply_command(sys.argv[1:])))
    pending = ChangesPending.exit_code if check and cluster_plan.changes else 0
    output.emit(
        _cluster_envelope(
            "k8s plan", cluster_plan, exit_code=pending, changed=bool(cluster_plan.changes), pods=user_pods
        )
    )


def apply(
    recipe_path: str, captures: Sequence[str], target: ClusterRef, output: OutputOptions, *, yes: bool, timeout_s: float
) -> None:
    """Apply the recipe to the cluster."""
    screen = output.open_screen()
    with target.adapt_error_hints(), screen:
        cluster, recipe = target.connect(timeout_s), load_recipe(recipe_path)
        cluster_plan, user_pods = _show_plan(recipe, captures, target, cluster, screen, output)
        require_rights(cluster_plan)
        if not cluster_plan.changes:
            with SignalGuard(screen.announce_stopping) as stop:
                wait = ReadinessWait(cluster, stop.raise_if_received, screen.update_progress, timeout_s)
                wait.wait_for_rest(cluster_plan.items, cluster_plan.releases)
            if any(item.trouble for item in cluster_plan.items):
                screen.put(line(STATE_MARK["done"], "its pods are ready now", hang=2))
            screen.put(*user_pod_lines(user_pods, _user_pod_example()))
            output.emit(_cluster_envelope("k8s apply", cluster_plan, pods=user_pods))
            return
        with _begin_changes("k8s apply", screen, target, output, yes=yes, recipe=recipe) as (begin, stop):
            wait = ReadinessWait(cluster, stop.raise_if_received, screen.update_progress, timeout_s)
            run = cluster_apply.apply_plan(cluster_plan, begin, wait=wait, on_event=screen.show_event)
        screen.put(*user_pod_lines(user_pods, _user_pod_example()))
        screen.put(*cluster_result_lines("k8s apply", run_label(run, "k8s apply"), screen.argv))
    output.emit(_cluster_envelope("k8s apply", cluster_plan, changed=True, run=run, pods=user_pods))


def _show_plan(
    recipe: Recipe, captures: Sequence[str], target: ClusterRef, cluster: Cluster, screen: Screen, output: OutputOptions
) -> tuple[ClusterPlan, Sequence[UserPodNeeds]]:
    """Make and show the plan, with hints and notes for this cluster; return it with what the user's own pods need."""
    rendered = render_cluster(recipe, _read_nodes(captures, cluster))
    cluster_plan = make_plan(rendered, cluster)
    items = tuple(
        replace(one, trouble=replace(one.trouble, hint=target.adapt_hint(one.trouble.hint))) if one.trouble else one
        for one in cluster_plan.items
    )
    cluster_plan = replace(cluster_plan, items=items, notes=tuple(map(target.adapt_hint, cluster_plan.notes)))
    other = _last_cluster_if_other(cluster_plan.identity)
    screen.print_after_progress(*plan_lines(cluster_plan, rendered, other, verbose=output.verbose))
    return cluster_plan, rendered.user_pods


def _user_pod_example() -> str:
    return f"test-pod.yaml of `{cluster_render_command(sys.argv[1:], '--output', 'gpu-node')}` is a complete example"


def _read_nodes(captures: Sequence[str], cluster: Cluster) -> Sequence[ClusterNode]:
    """Return the captured nodes; without captures this machine, or the cluster's labelled nodes if it has no GPU."""
    return (
        list(load_cluster_nodes(captures)) if captures else _local_gpu_node() or nodes_from_labels(cluster.list_nodes())
    )


def _local_gpu_node() -> Sequence[ClusterNode]:
    """Return this machine, if it has GPUs."""
    try:
        return [node for node in load_cluster_nodes(()) if node.gpus]
    except Undetermined:
        return ()


def verify(
    recipe_path: str, captures: Sequence[str], target: ClusterRef, output: OutputOptions, *, image: str, timeout_s: int
) -> None:
    """Show whether pods get the GPUs of the nodes."""
    from gpunode.workflow.cluster_verify import ClusterVerification

    if image and not _ALLOWED_IMAGE_NAME.fullmatch(image):
        hint = "write it as in a pod, such as registry.example.org/cuda-sample:vectoradd-cuda12.5.0"
        raise UsageError(
            f"--image {image!r} is not the name of an image",
            why="it contains characters that are not allowed there",
            hint=hint,
        )
    screen = output.open_screen()
    with target.adapt_error_hints(), screen, SignalGuard(screen.announce_stopping) as stop:
        cluster, recipe = target.connect(), load_recipe(recipe_path)
        here = () if captures else _local_gpu_node()
        nodes = tuple(here or _read_nodes(captures, cluster))
        identity = cluster.identify()
        screen.put(*cluster_lines(identity, _last_cluster_if_other(identity)), BLANK_LINE)
        apply = cluster_apply_command(sys.argv[1:])
        check_handler = partial(_check_local_handler, recipe) if here else (lambda: None)
        common = (stop.raise_if_received, screen.update_progress)
        verification = ClusterVerification(cluster, recipe, nodes, image, timeout_s, apply, check_handler, *common)
        try:
            report = verification.run()
        except Interrupted as error:
            why, hint = "the pods of the test are being deleted", f"start again: {cluster_verify_command(sys.argv[1:])}"
            raise type(error)("stopped by a signal", why=why, hint=hint) from error
        report = replace(report, checks=tuple(replace(one, hint=target.adapt_hint(one.hint)) for one in report.checks))
        pods = [check for check in report.checks if check.id.startswith("pod/")]
        is_proven = bool(pods) and all(check.status == "passed" for check in pods)
        good, unproven = "pods get the GPUs: one computed on each node", "it is not proven that pods get the GPUs"
        verdict = verdict_line(report, good, unproven, is_proven=is_proven)
        own = user_pod_lines(render_cluster(recipe, nodes).user_pods, _user_pod_example())
        notes = map(warning_line, report.notes)
        screen.show_result((*check_lines(report.checks), BLANK_LINE, *notes, verdict, *own))
    answer = Envelope("k8s verify", notes=report.notes, result={"cluster": identity, "checks": report.checks})
    output.emit(answer.with_failure(report.failure()))


def _check_local_handler(recipe: Recipe) -> Check | None:
    """Check this machine's container runtime; return None if gpunode may not read its configuration."""
    from gpunode.workflow.verify import runtime_checks

    host = LocalHost("/")
    try:
        check = next(iter(runtime_checks(recipe, survey(host), host.read_effective_config)), None)
        # The recipe is the cluster's: of the node's own setup, only the runtime is known.
        again = str(sudo_gpunode("setup", "--runtime", recipe.runtime.name))
        return check and replace(check, hint=again if check.hint == "sudo gpunode setup" else check.hint)
    except GpunodeError:
        return None


def remove(target: ClusterRef, output: OutputOptions, *, yes: bool) -> None:
    """Remove what gpunode applied to the cluster."""
    with target.adapt_error_hints():
        cluster = target.connect()
        _apply_removal("k8s remove", plan_removal(cluster), cluster, target, output, yes=yes)


def rollback(run: str, target: ClusterRef, output: OutputOptions, *, yes: bool) -> None:
    """Undo a run that changed a cluster, such as ``k3``; without a named cluster, in the context of that run."""
    if not run.startswith("k"):
        raise UsageError(
            "--context and --kubeconfig are for runs that changed a cluster",
            why=f"such runs are called k1, k2 …, not {run or 'the newest'}",
            hint=own_gpunode("log"),
        )
    store = open_cluster_journal()
    (record,) = first = store.find_runs(run)
    if target == ClusterRef():
        while first[0].begin.undoes and _cluster_of_run(first[0].begin.argv) == ClusterRef():
            first = store.find_runs(first[0].begin.undoes)
        target = _cluster_of_run(first[0].begin.argv)
    undone = record.begin.run
    with target.adapt_error_hints():
        cluster = target.connect()
        found_plan = plan_rollback(cluster, store, undone)
        _apply_removal("k8s rollback", found_plan, cluster, target, output, yes=yes, undoes=undone)


def _apply_removal(
    verb: Verb,
    plan: ClusterPlan,
    cluster: Cluster,
    target: ClusterRef,
    output: OutputOptions,
    *,
    yes: bool,
    undoes: str = "",
) -> None:
    screen = output.open_screen()
    with screen:
        other = _last_cluster_if_other(plan.identity)
        screen.print_after_progress(*plan_lines(plan, RenderedCluster(), other, verbose=output.verbose))
        if not plan.changes:
            output.emit(_cluster_envelope(verb, plan))
            return
        with _begin_changes(verb, screen, target, output, yes=yes, undoes=undoes) as (begin, stop):
            run = cluster_apply.apply_removal(
                plan,
                cluster,
                begin,
                on_event=screen.show_event,
                on_progress=screen.update_progress,
                check_interrupt=stop.raise_if_received,
            )
        kept = [item for item in plan.items if item.note]
        screen.put(*cluster_result_lines(verb, run_label(run, verb), screen.argv, kept))
    output.emit(_cluster_envelope(verb, plan, changed=True, run=run))


def _cluster_of_run(argv: Sequence[str]) -> ClusterRef:
    """Return the context and kubeconfig of a run's command line."""
    return ClusterRef(option_value(argv, "--context"), option_value(argv, "--kubeconfig"))


@contextmanager
def _begin_changes(
    verb: Verb,
    screen: Screen,
    target: ClusterRef,
    output: OutputOptions,
    *,
    yes: bool,
    recipe: Recipe | None = None,
    undoes: str = "",
) -> Iterator[tuple[cluster_apply.BeginRun, SignalGuard]]:
    """Ask for consent, and lock clusters against this user's other gpunode runs; yield a function that begins the run.

    A signal takes effect between two changes.
    """
    screen.ask_for_consent(verb, yes=yes, does="changes the cluster")
    store = open_cluster_journal()
    name, digest = (recipe.name, hash_recipe(recipe)) if recipe else ("", "")
    argv = tuple(_with_absolute_kubeconfig(sys.argv[1:]))
    with (
        store.lock(0.0, screen.update_progress),
        SignalGuard(screen.announce_stopping) as stop,
        report_partial_run(verb, output, store, target.adapt_hint),
    ):
        begin = partial(store.begin, verb, recipe=name, recipe_sha256=digest, argv=argv)
        yield partial(begin, undoes=undoes, with_packages=bool(undoes)), stop


def _last_cluster_if_other(identity: ClusterIdentity) -> str:
    """Return the uid of the cluster of this user's last run if it differs; else empty."""
    if not identity.is_certain:
        return ""
    store = open_cluster_journal()
    for run in reversed(store.ids()):
        for entry in store.entries(run):
            cluster = getattr(getattr(entry, "change", None), "cluster", "")
            if cluster:
                # A server URL, recorded by a credential without access to the uid, does not tell clusters apart.
                return cluster if cluster != identity.uid and "://" not in cluster else ""
    return ""


def _with_absolute_kubeconfig(argv: Sequence[str]) -> Iterator[str]:
    """Yield the words with --kubeconfig as an absolute path: a rollback may start in another folder."""
    for last, word in zip(("", *argv), argv, strict=False):
        option, equals, value = word.partition("=")
        if option == "--kubeconfig" and equals:
            yield f"{option}={Path(value).absolute()}"
        else:
            yield str(Path(word).absolute()) if last == "--kubeconfig" else word


def _cluster_envelope(
    command: str,
    plan: ClusterPlan,
    *,
    exit_code: int = 0,
    changed: bool = False,
    run: str = "",
    pods: Sequence[UserPodNeeds] = (),
) -> Envelope:
    rows = [
        {
            "kind": item.kind,
            "namespace": item.namespace,
            "name": item.name,
            "state": item.state,
            "purpose": item.why,
            "note": item.note,
            "diff": item.diff,
        }
        for item in plan.items
    ]
    return Envelope(
        command,
        status=ChangesPending.status if exit_code else "ok",
        exit_code=exit_code,
        changed=changed,
        changes=[change.change for change in plan.changes if change.change],
        result={
            "cluster": plan.identity,
            "objects": rows,
            "skipped": plan.skipped_nodes,
            "notes": plan.notes,
            "run": run,
            "example_pods": pods,
        },
    )


_MAX_DIFF_LINES: Final = 12
# Covers everything from the pod's limits to the kernel module on one page.
_CONCEPTS_HINT: Final = (
    "docs/explanation/from-pod-to-gpu.md in gpunode's sources explains device plugin, runtime and RuntimeClass"
)
_STYLE_BY_DIFF_SIGN: Final[Mapping[str, Style]] = {"+": "add", "-": "remove"}
_SIGN_BY_PLAN_STATE: Final[Mapping[PlanItemState, tuple[str, Style]]] = {
    "create": ("+", "add"),
    "edit": ("~", "warn"),
    "delete": ("-", "remove"),
    "unchanged": ("=", "dim"),
    "foreign": ("=", "dim"),
}


def plan_lines(plan: ClusterPlan, rendered: RenderedCluster, other_cluster: str, *, verbose: bool) -> Iterator[Line]:
    """Yield the cluster, the planned changes and their total; ``rendered`` is empty for a removal."""
    yield from cluster_lines(plan.identity, other_cluster)
    for edit in rendered.nodes:
        offer = ", ".join(f"{many} × {name}" for name, many in (rendered.expected.get(edit.node) or {}).items())
        about = f"  {edit.why}" + (f"; will offer {offer}" if offer else "")
        yield line(span("node     ", "dim"), span(edit.node, "bold"), span(about), hang=9)
    yield from user_pod_reason_lines(rendered)
    if plan.items and rendered.nodes and all(item.state != "unchanged" for item in plan.items):  # the first time
        yield line(span(f"concepts {_CONCEPTS_HINT}", "dim"), hang=9)
    yield BLANK_LINE
    yield from _item_lines(plan, verbose=verbose)
    yield from (warning_line(f"skipped: {text}") for text in plan.skipped_nodes)
    yield from map(warning_line, (*plan.notes, *rendered.notes))
    if plan.skipped_nodes or plan.notes or rendered.notes:
        yield BLANK_LINE
    yield _summary_line(plan)


def cluster_result_lines(verb: str, run: str, argv: Sequence[str], kept: Sequence[PlanItem] = ()) -> Iterator[Line]:
    """Yield the success, what was kept, and the next command; ``run`` is the label users type, ``argv`` the command."""
    if verb == "k8s apply":
        yield line(STATE_MARK["done"], span(f"applied (run {run})"), hang=2)
        following = cluster_verify_command(argv)
    else:
        yield line(STATE_MARK["done"], span(f"done (run {run})"), hang=2)
        yield from (warning_line(f"{item.title} {item.note}") for item in kept)
        following = own_gpunode("rollback", run)
    yield line(span("next: " if verb == "k8s apply" else "undo: ", "dim"), span(following, "command"), hang=6)


def cluster_lines(identity: ClusterIdentity, other_cluster: str) -> Iterator[Line]:
    """Yield the cluster, and a warning if the last run was in another one."""
    about = [
        identity.server,
        f"context {identity.context}" if identity.context else "",
        f"Kubernetes {identity.version.lstrip('v')}",
    ]
    yield line(span("cluster  ", "dim"), span(" · ".join(filter(None, about))), hang=9)
    if identity.skew:
        yield warning_line(identity.skew)
    if other_cluster:
        yield warning_line("this is not the cluster of your last run")


def _item_lines(plan: ClusterPlan, *, verbose: bool) -> Iterator[Line]:
    for item in plan.items:
        sign, style = _SIGN_BY_PLAN_STATE[item.state]
        about = item.note or ("up to date" if item.state == "unchanged" else item.why)
        yield line(span(f"  {sign} ", style), span(item.title), span(f"  {about}", "dim"), hang=6)
        diff = item.diff
        if not verbose and len(diff) > _MAX_DIFF_LINES:
            diff = (*diff[:_MAX_DIFF_LINES], f"… {count_noun(len(diff) - _MAX_DIFF_LINES, 'line')} more: -v shows them")
        for text in diff:
            yield line(span(f"      {text}", _STYLE_BY_DIFF_SIGN.get(text[:1], "dim")), hang=8)
    yield BLANK_LINE


def _summary_line(plan: ClusterPlan) -> Line:
    states = [item.state for item in plan.items if item.change is not None]
    troubled = [item.title for item in plan.items if item.trouble is not None]
    if troubled and not states:
        return warning_line(f"nothing to change, but {', '.join(troubled)} does not run")
    if not states:
        return line(STATE_MARK["done"], "nothing to change", hang=2)
    counts = ", ".join(f"{states.count(state)} to {state}" for state in dict.fromkeys(states))
    pods = "; running pods stay as they are"
    if any(text.startswith("+taint ") and text.endswith(":NoExecute") for item in plan.items for text in item.diff):
        pods = "; pods that do not tolerate the taint are evicted"
    elif any(item.change is not None and item.change.runs_command("helm") for item in plan.items):
        pods = ""  # the chart decides
    elif {item.state for item in plan.items if item.kind == "DaemonSet" and item.change is not None} == {"delete"}:
        pods = "; running pods keep their GPUs, new ones get none"
    return line(span("plan: ", "bold"), f"{counts}{pods}", hang=6)
