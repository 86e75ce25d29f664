"""Verify a cluster's GPU nodes: by the API server's view, then with a test pod on each."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from gpunode.check import Check
from gpunode.command import Command, command, gpunode_command
from gpunode.errors import ChangeFailed, GpunodeError, Interrupted, Undetermined
from gpunode.fast_dataclass import dataclass
from gpunode.host.cluster import Cluster, DryRunResult
from gpunode.host.port import OnProgress, Progress
from gpunode.kubernetes import live_checks
from gpunode.kubernetes.gpu_test_pods import (
    RUN_LABEL,
    GpuTestPod,
    GpuTestPodResult,
    check_sharing,
    check_test_pod,
    confirm_handler_by_test_pod,
    find_resource_users,
    has_pod_ended,
    is_unscheduled,
    make_deadline_job,
    make_test_pods,
    own_by_job,
)
from gpunode.kubernetes.live_checks import find_first_pod_problem
from gpunode.kubernetes.model import Body, ClusterNode, RenderedCluster
from gpunode.kubernetes.objects import TEST_POD_NAME
from gpunode.kubernetes.owned import explain_deletion, object_title
from gpunode.kubernetes.reconcile import note_untolerated_taints
from gpunode.kubernetes.render import render_cluster, select_member_nodes
from gpunode.kubernetes.sharing import SharingConfig, choose_configs
from gpunode.kubernetes.user_pod import with_common_cdi_choice
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kubernetes
from gpunode.workflow.cluster_plan import refuse_other_cluster
from gpunode.workflow.cluster_workloads import poll_deletions
from gpunode.workflow.verify import VerifyReport

_POLL_INTERVAL_S: Final = 1.0
# A controller or a finished pod may still free a GPU; after that the scheduler's verdict is final.
_UNSCHEDULED_POD_TIMEOUT_S: Final = 20.0
# The kubelet retries a failed sandbox every 12 to 15 seconds; one that still fails will not work.
_FAILING_POD_TIMEOUT_S: Final = 40.0
_POD_SUFFIX_CHARACTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class ClusterVerification:
    """A verification of a cluster's GPU nodes.

    Attributes:
        image: the image of the test pods; empty for the recipe's.
        timeout_s: the pods' time limit.
        apply_command: the command that applies the recipe, for hints.
        check_local_handler: returns the check of this machine's container runtime if this machine is the only node.
        check_interrupt: called while waiting; raises Interrupted after a signal.
    """

    cluster: Cluster
    recipe: Recipe
    nodes: tuple[ClusterNode, ...]
    image: str
    timeout_s: int
    apply_command: Command
    check_local_handler: live_checks.LocalCheck
    check_interrupt: Callable[[], None]
    on_progress: OnProgress

    def run(self) -> VerifyReport:
        """Check the cluster and run the test pods, which are deleted afterwards.

        Raises:
            Refused: the recipe has nothing for Kubernetes, or needs what a node cannot do.
            UsageError, Undetermined: the cluster cannot be reached.
            ChangeFailed: a test pod could not be deleted.
            Interrupted: on a signal; the pods are being deleted.
        """
        rendered = render_cluster(self.recipe, self.nodes)
        if rendered.kind:
            refuse_other_cluster(rendered.kind, self.cluster.identify())
            # The cluster's workers are containers of this machine with their own container runtimes.
            workers = select_member_nodes(self._desired, self.nodes)
            return replace(self, nodes=workers, check_local_handler=lambda: None).check_nodes(rendered)
        return self.check_nodes(rendered)

    @property
    def _desired(self) -> Kubernetes:
        assert self.recipe.kubernetes is not None  # rendered
        return self.recipe.kubernetes

    def check_nodes(self, rendered: RenderedCluster) -> VerifyReport:
        """Check the nodes for which the cluster was rendered; see ``run``."""
        nodes = {node.name: node for node in self.nodes if node.gpus}
        refs = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": edit.node}} for edit in rendered.nodes]
        live = {str(body["metadata"]["name"]): body for body in self.cluster.get(refs)}
        ready = {name: body for name, body in live.items() if not live_checks.explain_node_not_ready(body)}
        checks = [live_checks.check_node(edit, live.get(edit.node), self.apply_command) for edit in rendered.nodes]
        checks += [
            Check(f"gpus/{node.name}", f"GPUs of {node.name}", "skipped", "no NVIDIA GPU is in its capture")
            for node in self.nodes
            if not node.gpus
        ]
        if self._desired.stack != "dra" and (name := self._desired.runtime_class):
            checks += _collect_or_skip(self._check_handlers(name, ready), "runtime-class", f"RuntimeClass {name}")
        checks += _collect_or_skip(self._check_workloads(rendered), "workloads", "DaemonSets")
        if self._desired.stack == "dra":
            slices = self._check_resource_slices([nodes[name] for name in ready])
            checks += _collect_or_skip(slices, "resource-slices", "ResourceSlices")
        else:
            for name, body in ready.items():
                expected = rendered.expected.get(name)
                checks += live_checks.check_resources(nodes[name], body, expected, self.apply_command)
        for name, body in ready.items():
            self.check_interrupt()
            checks.append(self._check_kubelet_settings(name, body))
        test_pods, skipped = self._make_test_pods(rendered, nodes, ready)
        results = self._run_test_pods(test_pods, ready) if test_pods else ()
        pod_checks = [check_test_pod(ran, ready[ran.test_pod.node], self.apply_command) for ran in results]
        # A pod with a log was started through the handler, whether or not it found a GPU.
        through = {ran.test_pod.node for ran in results if ran.log and "runtimeClassName" in ran.test_pod.pod["spec"]}
        checks = [
            confirm_handler_by_test_pod(check, through) if check.id.startswith("handler/") else check
            for check in checks
        ]
        shared = [ran for ran in results if ran.test_pod.purpose == "shared"]
        pod_checks += [
            check_sharing(name, [ran for ran in shared if ran.test_pod.node == name])
            for name in dict.fromkeys(ran.test_pod.node for ran in shared)
        ]
        notes = tuple(note_untolerated_taints(rendered, tuple(ready.values())))
        return VerifyReport((*checks, *pod_checks, *skipped), notes=notes)

    def _check_handlers(self, name: str, nodes: Mapping[str, Body]) -> Iterator[Check]:
        reference = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
        runtime_class = next(iter(self.cluster.get([reference])), None)
        yield from live_checks.check_handlers(name, runtime_class, nodes, self.check_local_handler, self.apply_command)

    def _check_workloads(self, rendered: RenderedCluster) -> Iterator[Check]:
        daemon_sets = self.cluster.list("daemonsets.apps", "--all-namespaces")
        for daemon_set in live_checks.find_required_daemon_sets(rendered, daemon_sets):
            check = live_checks.check_daemon_set(daemon_set, self.apply_command)
            if check.status == "failed" and daemon_set.live is not None and daemon_set.selector:
                namespace_words = ("--namespace", daemon_set.namespace)
                pods = self.cluster.list("pods", *namespace_words, "--selector", daemon_set.selector)
                events = self.cluster.list("events", *namespace_words)
                pod = live_checks.find_crashing_pod(pods)
                log = self._read_log(daemon_set.namespace, str(pod["metadata"]["name"])) if pod else ""
                diagnosis = _diagnose_log(pod, log or "") if pod else ""
                check = live_checks.check_daemon_set(daemon_set, self.apply_command, pods, events, diagnosis)
            yield check

    def _check_resource_slices(self, nodes: Sequence[ClusterNode]) -> Iterator[Check]:
        slices = self.cluster.list("resourceslices.resource.k8s.io")
        yield from (live_checks.check_published_slices(node, slices) for node in nodes)

    def _check_kubelet_settings(self, node: str, live: Body) -> Check:
        try:
            settings = self.cluster.read_kubelet_config(node)
        except GpunodeError as error:
            reason = (error.why or error.what).strip().splitlines()[-1]
            return Check(f"kubelet/{node}", f"kubelet of {node}", "skipped", f"its settings cannot be read: {reason}")
        passes = any(node.static_cpus for node in self.nodes)
        taints = live.get("spec", {}).get("taints") or ()
        return live_checks.check_kubelet(node, settings, self._desired, taints, passes_devices=passes)

    def _make_test_pods(
        self, rendered: RenderedCluster, nodes: Mapping[str, ClusterNode], ready: Mapping[str, Body]
    ) -> tuple[list[GpuTestPod], list[Check]]:
        """Return the test pods to run, and a check with the reason for each node that gets none."""
        run = _random_name()
        recipe = with_common_cdi_choice(self.recipe, tuple(nodes.values()))
        by_node = {} if self._desired.stack == "hami" else choose_configs(self._desired, tuple(nodes.values()))
        test_pods: list[GpuTestPod] = []
        skipped: list[Check] = []
        for name, node in nodes.items():
            why = ""
            if name not in ready:
                why = "the Node does not exist, or is not ready"
            elif not (pod := render_cluster(recipe, (node,)).test_pod):
                why = "the recipe does not say which MIG resource a pod can request"
            else:
                candidates = make_test_pods(
                    node,
                    ready[name],
                    pod,
                    by_node.get(name, SharingConfig("whole")),
                    rendered.expected.get(name),
                    run=run,
                    new_name=lambda: f"{TEST_POD_NAME}-{_random_name()}",
                    image=self.image,
                    timeout_s=self.timeout_s,
                )
                for candidate in candidates:
                    if candidate.resource and not live_checks.read_resource(ready[name], candidate.resource)[1]:
                        why = f"the Node offers no {candidate.resource}"
                    else:
                        test_pods.append(candidate)
            if why:
                skipped.append(Check(f"pod/{name}", f"pod on {name}", "skipped", why))
        return test_pods, skipped

    def _run_test_pods(
        self, test_pods: Sequence[GpuTestPod], nodes: Mapping[str, Body]
    ) -> tuple[GpuTestPodResult, ...]:
        """Run ``test_pods`` until they end, delete them, and return the results."""
        self.check_interrupt()
        with self._create_test_pods(test_pods) as created:
            names = {str(body["metadata"]["name"]) for body in created.objects if body["kind"] == "Pod"}
            waiting = [test_pod for test_pod in test_pods if test_pod.name in names]
            results = self._wait_for_pods(waiting) if waiting else {}
            explained_results = {
                test_pod.name: self._add_explanation(results[test_pod.name], nodes[test_pod.node])
                for test_pod in waiting
            }

        def describe_rejected(test_pod: GpuTestPod) -> GpuTestPodResult:
            errors = [text for text in created.errors if test_pod.name in text]
            why = next(iter(errors or created.errors), "the API server reported no status")
            return GpuTestPodResult(test_pod, {}, 0.0, error=why)

        return tuple(explained_results.get(test_pod.name) or describe_rejected(test_pod) for test_pod in test_pods)

    @contextmanager
    def _create_test_pods(self, test_pods: Sequence[GpuTestPod]) -> Iterator[DryRunResult]:
        """Create the objects of ``test_pods`` that the API server accepts; delete them on exit.

        After an error or a signal nobody waits until they are gone.
        """
        is_over = False
        job = make_deadline_job(test_pods[0], self.timeout_s)
        bodies: Sequence[Body] = [job, *(body for test_pod in test_pods for body in test_pod.bodies)]
        try:
            owner = self.cluster.create([job])
            owned = own_by_job(owner.objects[0], bodies[1:]) if owner.objects else ()
            created = self.cluster.create(owned) if owned else DryRunResult(())
            result = DryRunResult((*created.objects, *owner.objects), (*owner.errors, *created.errors))
            bodies = result.objects
            yield result
            is_over = True
        finally:
            if bodies:
                first = test_pods[0]
                words = ("--namespace", first.namespace, "--selector", f"{RUN_LABEL}={first.run}")
                hint = f"delete them: {command('kubectl', 'delete', 'pods,jobs', *words)}"
                self._delete_objects(bodies, hint, is_awaited=is_over)

    def _delete_objects(self, bodies: Sequence[Body], hint: str, *, is_awaited: bool) -> None:
        left: Sequence[Body] = ()
        try:
            self.cluster.delete(*bodies)
            if is_awaited:
                for remaining in poll_deletions(bodies, self.cluster, self.on_progress):
                    self.check_interrupt()
                    left = remaining
        except Interrupted:
            raise
        except GpunodeError as error:
            why = error.what_and_why
            raise ChangeFailed("the pods of the test were not deleted", why=why, hint=hint) from error
        for live in left:
            why, look = explain_deletion(live) or ("", "")
            raise ChangeFailed(f"{object_title(live)} is still being deleted", why=why, hint=look)

    def _wait_for_pods(self, test_pods: Sequence[GpuTestPod]) -> Mapping[str, GpuTestPodResult]:
        """Wait until each pod ends or times out, and return the results by pod name."""
        began = time.monotonic()
        namespace, selector = test_pods[0].namespace, f"{RUN_LABEL}={test_pods[0].run}"
        results: dict[str, GpuTestPodResult] = {}
        while True:
            listed = self.cluster.list("pods", "--namespace", namespace, "--selector", selector)
            pods = {str(pod["metadata"]["name"]): pod for pod in listed}
            seconds = time.monotonic() - began
            for test_pod in test_pods:
                if test_pod.name not in results or not has_pod_ended(results[test_pod.name].pod):
                    results[test_pod.name] = GpuTestPodResult(test_pod, pods.get(test_pod.name, test_pod.pod), seconds)
            running = [ran for ran in results.values() if not has_pod_ended(ran.pod)]
            if (
                not running
                or seconds > self.timeout_s
                or (seconds > _UNSCHEDULED_POD_TIMEOUT_S and all(is_unscheduled(ran.pod) for ran in running))
                or (seconds > _FAILING_POD_TIMEOUT_S and self._have_all_start_problems(running))
            ):
                return results
            done = 100.0 * (len(results) - len(running)) / len(results)
            problem = find_first_pod_problem([running[0].pod], ())
            more = f", and {len(running) - 1} more" if len(running) > 1 else ""
            first = f"pod {running[0].test_pod.name} on {running[0].test_pod.node}"
            waits_for = f"{first}{f' ({problem.why})' if problem else ''}{more}"
            self.on_progress(Progress("wait", done, f"up to {self.timeout_s} s: {waits_for}"))
            self.check_interrupt()
            time.sleep(_POLL_INTERVAL_S)

    def _have_all_start_problems(self, running: Sequence[GpuTestPodResult]) -> bool:
        """Return whether the kubelet reports for every pod why it does not start."""
        events = self.cluster.list("events", "--namespace", running[0].test_pod.namespace)
        return all(find_first_pod_problem([ran.pod], events) is not None for ran in running)

    def _add_explanation(self, result: GpuTestPodResult, node: Body) -> GpuTestPodResult:
        """Return the result with the pod's log and, if the pod did not succeed, what else explains that."""
        test_pod, pod = result.test_pod, result.pod
        phase = pod.get("status", {}).get("phase")
        has_log = phase in {"Succeeded", "Failed", "Running"}
        log = self._read_log(test_pod.namespace, test_pod.name) if has_log else ""
        if phase == "Succeeded":
            return replace(result, log=log, error="" if log is not None else "kubectl logs failed")
        in_use: Sequence[str] = ()
        if is_unscheduled(pod) and test_pod.resource:
            of_node = ("--field-selector", f"spec.nodeName={test_pod.node}")
            on_node = self.cluster.list("pods", "--all-namespaces", *of_node)
            in_use = find_resource_users(on_node, node, test_pod.resource)
        events = self.cluster.list("events", "--namespace", test_pod.namespace)
        diagnosis = _diagnose_log(pod, log or "")
        return replace(result, log=log, events=events, diagnosis=diagnosis, users=in_use)

    def _read_log(self, namespace: str, pod: str) -> str | None:
        try:
            return self.cluster.read_logs(namespace, pod)
        except GpunodeError:
            return None


def _collect_or_skip(checks: Iterable[Check], id: str, title: str) -> Sequence[Check]:  # noqa: A002
    """Return the checks, or a single skipped check if the credential may not read what they need."""
    try:
        return tuple(checks)
    except Undetermined:
        raise
    except GpunodeError as error:
        return [Check(id, title, "skipped", error.what_and_why)]


def _random_name() -> str:
    """Return five random letters and digits; without vowels they spell no word."""
    return "".join(secrets.choice(_POD_SUFFIX_CHARACTERS) for _ in range(5))


def _diagnose_log(pod: Body, log: str) -> str:
    """Return doctor's finding for a pod and its log, as a sentence; empty if there is none."""
    from gpunode.diagnoses import diagnose
    from gpunode.diagnoses.snapshot import take_snapshot
    from gpunode.facts import pasted

    if not log.strip():
        return ""
    words = ("--namespace", str(pod["metadata"].get("namespace", "default")), str(pod["metadata"]["name"]))
    # Doctor would mistake the node selector's labels for those of the node.
    shown = {**pod, "spec": {name: value for name, value in pod.get("spec", {}).items() if name != "nodeSelector"}}
    pieces = [
        (str(command("kubectl", "logs", *words)), log),
        (str(command("kubectl", "get", "pod", *words, "-o", "json")), json.dumps(shown)),
    ]
    diagnosis = diagnose(take_snapshot(pasted.collect_pieces(pieces)))
    if diagnosis.roots:
        root = diagnosis.roots[0]
        return f"{root.summary} (see {gpunode_command('doctor', root.cause)})"
    causes = [suspect.cause for suspect in diagnosis.suspects if suspect.citations]
    return f"one of these causes: {', '.join(causes)}" if causes else ""
