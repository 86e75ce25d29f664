"""``k8s plan``, ``apply`` and ``remove``, and the rollback of their runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpunode import __version__
from gpunode.cli.changing import SignalGuard, told_what_was_done
from gpunode.cli.compose import cluster_journal, recipe_at
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.rendering import nodes
from gpunode.cli.screen.cluster import (
    cluster_lines,
    done_lines,
    own_pod_lines,
    plan_lines,
    removal_lines,
    trouble_lines,
    verified_lines,
)
from gpunode.cli.screen.commands import (
    cluster_apply_command,
    cluster_render_command,
    cluster_verify_command,
    value_of,
)
from gpunode.cli.screen.text import BLANK, line
from gpunode.cli.screen.words import MARKS
from gpunode.command import command, gpunode
from gpunode.errors import ChangesPending, GpunodeError, Interrupted, Undetermined, UsageError
from gpunode.host.cluster import Cluster, Identity
from gpunode.host.cluster_programs import ProgramMissing
from gpunode.journal.history import run_label
from gpunode.kubernetes.labelled import labelled
from gpunode.kubernetes.render import rendered
from gpunode.workflow import cluster_apply
from gpunode.workflow.cluster_apply import RunHeader
from gpunode.workflow.cluster_plan import ClusterPlan, make_plan
from gpunode.workflow.cluster_undo import removal, undoing
from gpunode.workflow.cluster_workloads import wait_releases_ready, wait_unchanged_ready
from gpunode.workflow.log import told

if TYPE_CHECKING:
    from gpunode.check import Check
    from gpunode.cli.human import Screen
    from gpunode.journal.record import Verb
    from gpunode.journal.store import Store
    from gpunode.kubernetes.model import ClusterNode, OwnPod, Rendered
    from gpunode.recipe import Recipe

_DOES: Final = "changes the cluster"
# Commands in hints that are written for the current context.
_KUBECTL: Final = re.compile(
    r"\bkubectl(?= (?:api-resources|apply|auth|cluster-info|delete|describe|drain|get|label|logs|taint|uncordon)\b)"
)
# One that is written for the default recipe and this machine.
_RENDER: Final = re.compile(r"\bgpunode k8s render(?= --|$)", re.MULTILINE)
# One that names neither recipe nor cluster.
_OWN: Final = re.compile(r"\bgpunode k8s (?:plan|apply|verify|remove)(?=$|,| if\b)", re.MULTILINE)
_HELM: Final = re.compile(r"\bhelm(?= (?:get|history|list|rollback|status|uninstall|upgrade)\b)")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster that is meant: kubectl's context and configuration; empty for the user's own."""

    context: str = ""
    kubeconfig: str = ""

    def cluster(self) -> Cluster:
        """Return the cluster, through a kubectl that can be used."""
        cluster = Cluster(self.context, self.kubeconfig)
        cluster.check()
        return cluster

    def in_hint(self, hint: str) -> str:
        """Return the hint with its commands for this cluster, and for the recipe and the nodes that were named."""
        options = [word for name in ("context", "kubeconfig") if (word := self._option(f"--{name}", name))]
        of_helm = [word.replace("--context", "--kube-context", 1) for word in options]
        found = _KUBECTL.sub(lambda _: " ".join(("kubectl", *options)), hint)
        found = _HELM.sub(lambda _: " ".join(("helm", *of_helm)), found)
        found = _OWN.sub(lambda match: " ".join((match[0], *options)), found)
        return _RENDER.sub(lambda _: cluster_render_command(sys.argv[1:]), found)

    def _option(self, option: str, name: str) -> str:
        value = getattr(self, name)
        return str(command(option, value)) if value else ""

    @contextmanager
    def meant(self) -> Iterator[None]:
        """Give errors within hints for this cluster; where a program lacks, also the way that needs none."""
        try:
            yield
        except GpunodeError as error:
            error.hint = self.in_hint(error.hint)
            if isinstance(error, ProgramMissing) and sys.argv[2:3] in (["plan"], ["apply"]):
                files = cluster_render_command(sys.argv[1:], "--form", error.form, "--out", "gpu-node")
                error.hint += f"\nor write the files, and apply them elsewhere: {files}"
            raise


def plan(place: str, captures: Sequence[str], where: Where, how: OutputOptions, *, check: bool) -> None:
    """Shows what apply would do."""
    screen = how.screen()
    with where.meant(), screen:
        cluster = where.cluster()
        wanted = rendered(recipe_at(place), _nodes(captures, cluster))
        found = _planned(wanted, cluster, where)
        screen.put_after(*plan_lines(found, wanted, _others(found.identity), verbose=how.verbose))
        screen.put(*own_pod_lines(wanted.own_pods), *trouble_lines(found))
    pending = ChangesPending.exit_code if check and found.changes else 0
    how.answer(_envelope("k8s plan", found, exit_code=pending, changed=bool(found.changes), own_pods=wanted.own_pods))


def apply(
    place: str, captures: Sequence[str], where: Where, how: OutputOptions, *, yes: bool, timeout_s: float
) -> None:
    """Applies the recipe to the cluster."""
    screen = how.screen()
    with where.meant(), screen:
        cluster, recipe = where.cluster(), recipe_at(place)
        wanted = rendered(recipe, _nodes(captures, cluster))
        found = _planned(wanted, cluster, where)
        screen.put_after(*plan_lines(found, wanted, _others(found.identity), verbose=how.verbose))
        if not found.changes:
            with SignalGuard(screen.stopping) as stop:
                wait_unchanged_ready(found.items, cluster, stop.pause, screen.progress, timeout_s)
                wait_releases_ready(found.releases, cluster, stop.pause, screen.progress, timeout_s)
            if any(item.trouble for item in found.items):
                screen.put(line(MARKS["done"], "its pods are ready now", hang=2))
            screen.put(*own_pod_lines(wanted.own_pods))
            how.answer(_envelope("k8s apply", found, own_pods=wanted.own_pods))
            return
        screen.confirm_shown("k8s apply", yes=yes, does=_DOES)
        request = _request("k8s apply", recipe)
        with _changing("k8s apply", screen, how) as (store, stop):
            run = cluster_apply.apply_plan(
                found,
                cluster,
                store,
                request,
                on_event=screen.tell,
                pause=stop.pause,
                progress=screen.progress,
                timeout_s=timeout_s,
            )
        screen.put(*own_pod_lines(wanted.own_pods), *done_lines("k8s apply", run_label(run, "k8s apply"), screen.argv))
    how.answer(_envelope("k8s apply", found, changed=True, run=run, own_pods=wanted.own_pods))


def _planned(wanted: Rendered, cluster: Cluster, where: Where) -> ClusterPlan:
    """Return the plan, with hints for this cluster."""
    found = make_plan(wanted, cluster)
    items = tuple(
        replace(one, trouble=replace(one.trouble, hint=where.in_hint(one.trouble.hint))) if one.trouble else one
        for one in found.items
    )
    return replace(found, items=items)


def _nodes(captures: Sequence[str], cluster: Cluster) -> Sequence[ClusterNode]:
    """The nodes of the captures; of none this machine, or where it has no GPU those that the cluster's labels tell."""
    return list(nodes(captures)) if captures else _here() or labelled(cluster.list_nodes())


def _here() -> Sequence[ClusterNode]:
    """This machine, if it has GPUs."""
    try:
        return [node for node in nodes(()) if node.gpus]
    except Undetermined:
        return ()


def verify(
    place: str, captures: Sequence[str], where: Where, how: OutputOptions, *, image: str, timeout_s: int
) -> None:
    """Shows whether pods get the GPUs of the nodes."""
    from gpunode.workflow.cluster_verify import Asked
    from gpunode.workflow.cluster_verify import verify as look

    if image and not _IMAGE.fullmatch(image):
        hint = "name it as a pod would, such as registry.example.org/cuda-sample:vectoradd-cuda12.5.0"
        raise UsageError(f"--image {image!r} is not the name of an image", why="it has other characters", hint=hint)
    screen = how.screen()
    with where.meant(), screen, SignalGuard(screen.stopping) as stop:
        cluster, recipe = where.cluster(), recipe_at(place)
        here = () if captures else _here()
        found = tuple(here or _nodes(captures, cluster))
        who = cluster.identify()
        screen.put(*cluster_lines(who, _others(who)), BLANK)
        apply = cluster_apply_command(sys.argv[1:])
        asked = Asked(recipe, found, image, timeout_s, apply, _handler_here(recipe) if here else (lambda _: None))
        try:
            report = look(asked, cluster, pause=stop.pause, progress=screen.progress)
        except Interrupted as error:
            why, hint = "the pods of the test are deleted", f"start again: {cluster_verify_command(sys.argv[1:])}"
            raise type(error)("stopped by a signal", why=why, hint=hint) from error
        report = replace(report, checks=tuple(replace(one, hint=where.in_hint(one.hint)) for one in report.checks))
        screen.conclude((*verified_lines(report), *own_pod_lines(rendered(recipe, found).own_pods)))
    answer = Envelope("k8s verify", result={"cluster": who, "checks": report.checks})
    how.answer(answer.ending_in(report.shortcoming()))


def _handler_here(recipe: Recipe) -> Callable[[str], Check | None]:
    """What this machine's container runtime has itself read; None where gpunode may not ask it."""

    def ask(_: str) -> Check | None:
        from gpunode.host.local import LocalHost
        from gpunode.workflow.converge import survey
        from gpunode.workflow.verify import runtime_checks

        host = LocalHost("/")
        try:
            return next(iter(runtime_checks(recipe, survey(host), host.effective)), None)
        except GpunodeError:
            return None

    return ask


def remove(where: Where, how: OutputOptions, *, yes: bool) -> None:
    """Takes back what gpunode applied to the cluster."""
    with where.meant():
        cluster = where.cluster()
        _take_back(removal(cluster), cluster, _request("k8s remove"), how, yes=yes)


def rollback(run: str, where: Where, how: OutputOptions, *, yes: bool) -> None:
    """Undo a run that changed a cluster, ``k3``; where ``where`` names no cluster, by the context of that run."""
    if not run.startswith("k"):
        raise UsageError(
            "--context and --kubeconfig are for runs that changed a cluster",
            why=f"such a run is called k1, k2 …, and not {run or 'the newest'}",
            hint=gpunode("rollback", "--list"),
        )
    store = cluster_journal()
    (found,) = first = told(store, run[1:])
    if where == Where():
        while first[0].begin.of and _where_of(first[0].begin.argv) == Where():
            first = told(store, first[0].begin.of)
        where = _where_of(first[0].begin.argv)
    request = _request("k8s rollback", of=found.begin.run)
    with where.meant():
        cluster = where.cluster()
        _take_back(undoing(cluster, store, found.begin.run), cluster, request, how, yes=yes)


def _take_back(found: ClusterPlan, cluster: Cluster, request: RunHeader, how: OutputOptions, *, yes: bool) -> None:
    screen = how.screen()
    with screen:
        screen.put_after(*removal_lines(found, verbose=how.verbose))
        if not found.changes:
            how.answer(_envelope(request.verb, found))
            return
        screen.confirm_shown(request.verb, yes=yes, does=_DOES)
        with _changing(request.verb, screen, how) as (store, stop):
            run = cluster_apply.apply_removal(found, cluster, store, request, on_event=screen.tell, pause=stop.pause)
        kept = [one for one in found.items if one.note]
        screen.put(*done_lines(request.verb, run_label(run, request.verb), screen.argv, kept))
    how.answer(_envelope(request.verb, found, changed=True, run=run))


def _where_of(argv: Sequence[str]) -> Where:
    """The context and configuration that a run was given."""
    return Where(value_of(argv, "--context"), value_of(argv, "--kubeconfig"))


@contextmanager
def _changing(verb: Verb, screen: Screen, how: OutputOptions) -> Iterator[tuple[Store, SignalGuard]]:
    """No other gpunode of this user changes a cluster meanwhile; a signal is heeded between two changes."""
    store = cluster_journal()
    with store.lock(0.0, screen.progress), SignalGuard(screen.stopping) as stop, told_what_was_done(verb, how, store):
        yield store, stop


def _others(who: Identity) -> str:
    """The uid of another cluster, if the last run of this user was there."""
    if who.uid == who.server:
        return ""  # This credential may not read the uid.
    store = cluster_journal()
    for run in reversed(store.ids()):
        for entry in store.entries(run):
            cluster = getattr(getattr(entry, "change", None), "cluster", "")
            if cluster:
                return cluster if cluster != who.uid else ""
    return ""


def _request(verb: Verb, recipe: Recipe | None = None, of: str = "") -> RunHeader:
    from gpunode.cli.resume import digest

    named = (recipe.name, digest(recipe)) if recipe else ("", "")
    return RunHeader(verb, __version__, tuple(_from_anywhere(sys.argv[1:])), *named, of=of)


def _from_anywhere(argv: Sequence[str]) -> Iterator[str]:
    """The words with --kubeconfig as an absolute path: a rollback may be started in another folder."""
    for last, word in zip(("", *argv), argv, strict=False):
        option, equals, value = word.partition("=")
        if option == "--kubeconfig" and equals:
            yield f"{option}={Path(value).absolute()}"
        else:
            yield str(Path(word).absolute()) if last == "--kubeconfig" else word


def _envelope(
    command: str,
    plan: ClusterPlan,
    *,
    exit_code: int = 0,
    changed: bool = False,
    run: str = "",
    own_pods: Sequence[OwnPod] = (),
) -> Envelope:
    rows = [
        {
            "kind": one.kind,
            "namespace": one.namespace,
            "name": one.name,
            "state": one.state,
            "why": one.why,
            "note": one.note,
            "diff": one.diff,
        }
        for one in plan.items
    ]
    return Envelope(
        command,
        status=ChangesPending.status if exit_code else "ok",
        exit_code=exit_code,
        changed=changed,
        changes=[one.change for one in plan.changes if one.change],
        result={
            "cluster": plan.identity,
            "objects": rows,
            "skipped": plan.skipped,
            "notes": plan.notes,
            "run": run,
            "own_pods": own_pods,
        },
    )
