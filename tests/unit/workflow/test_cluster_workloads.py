"""Every plan and every apply reports a plugin that does not run, even if nothing is left to change."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import pytest

from gpunode.errors import Refused
from gpunode.facts.helm import HelmRelease
from gpunode.host.cluster import Cluster
from gpunode.host.helm import ReleaseFailed, move_values_to_stdin
from gpunode.host.kubectl import HelmMissing
from tests.fakes.api_server import ApiServer, Body
from tests.fakes.clusters import NAMESPACE, NODE, PLUGIN, User, everything, pod_of, run_daemon_sets

PULL = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}


@pytest.fixture
def unready(server: ApiServer, user: User) -> ApiServer:
    """Return a cluster in which the applied plugin's image cannot be pulled."""
    server.controllers.append(break_pods)
    assert "0 of 1 pods are ready" in user.apply("k8s-containerd", "--timeout", "1", check=7).error["what"]
    return server


def break_pods(server: ApiServer) -> None:
    """Make the image of each DaemonSet's pods unavailable."""
    for one in server.peek("DaemonSet"):
        one["status"]["numberReady"] = 0
        if not server.peek("Pod"):
            server.add(pod_of(one, "gpu-1", "Pending", {"waiting": PULL}))


def test_repeated_apply_fails_again_while_the_plugin_does_not_run(unready: ApiServer, user: User) -> None:
    error = user.apply("k8s-containerd", "--timeout", "1", check=7).error
    assert error["what"] == "DaemonSet gpu-system/nvidia-device-plugin: 0 of 1 pods are ready after 1 s"
    assert "cannot be pulled" in error["why"]


def test_plan_reports_a_plugin_that_does_not_run(unready: ApiServer, user: User) -> None:
    notes = {one["kind"]: one["note"] for one in user.plan().envelope["result"]["objects"]}
    assert "up to date, but 0 of 1 pods are ready: " in notes["DaemonSet"]
    assert "cannot be pulled" in notes["DaemonSet"]
    shown = user.screen("k8s", "plan", *NODE)
    assert "! nothing to change, but DaemonSet gpu-system/nvidia-device-plugin does not run" in shown
    assert "✓" not in shown


def test_plan_names_the_command_that_writes_a_whole_pod(unready: ApiServer, user: User) -> None:
    shown = " ".join(user.screen("k8s", "plan", *NODE).split())
    written = f"gpunode k8s render {' '.join(NODE)} --output gpu-node"
    assert f"in your own pod (test-pod.yaml of `{written}` is a complete example):" in shown


def test_apply_waits_for_a_plugin_that_starts_late(unready: ApiServer, user: User) -> None:
    def start(words: tuple[str, ...]) -> None:
        if "pods" in words:
            unready.controllers.remove(break_pods)
            run_daemon_sets(unready)
            user.kubectl.intercept = lambda _: None

    user.kubectl.intercept = start
    shown = user.screen("k8s", "apply", *NODE, "--yes")
    assert "✓ its pods are ready now" in shown


def test_plugin_that_no_node_runs_is_reported(server: ApiServer, user: User) -> None:
    server.controllers.clear()
    server.controllers.append(choose_no_node)
    for _ in range(2):
        error = user.apply("k8s-containerd", "--timeout", "1", check=7).error
        assert error["what"] == "DaemonSet gpu-system/nvidia-device-plugin: no node runs it"
    assert "but no node runs it" in user.screen("k8s", "plan", *NODE)


def choose_no_node(server: ApiServer) -> None:
    """Make each DaemonSet match no node."""
    for one in server.peek("DaemonSet"):
        one["status"] = {"observedGeneration": one["metadata"]["generation"], "desiredNumberScheduled": 0}


def test_unreadable_pods_do_not_hide_the_readiness_error(unready: ApiServer, user: User) -> None:
    unready.denied.add("list pods")
    assert (
        "its pods cannot be read: your credentials may not do this"
        in user.apply("k8s-containerd", "--timeout", "1", check=7).error["why"]
    )


REFUSED = (
    'pods "nvidia-device-plugin-x" is forbidden: exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0'
)


@pytest.mark.parametrize("is_made_after_all", [False, True])
def test_reason_why_the_cluster_refuses_the_pods_is_told(
    server: ApiServer, user: User, is_made_after_all: bool
) -> None:
    """A quota, a policy or a missing RuntimeClass stops the DaemonSet's pods, not the DaemonSet."""

    def refuse_pods(there: ApiServer) -> None:
        for one in there.peek("DaemonSet"):
            one["status"]["numberReady"] = 0
            if not there.peek("Event"):
                there.add(
                    event_about(one, "FailedCreate", f"(combined from similar events): Error creating: {REFUSED}")
                )
                if is_made_after_all:
                    there.add(pod_of(one, "gpu-1", "Pending", {"waiting": PULL}))

    server.controllers.append(refuse_pods)
    errors = [user.apply("k8s-containerd", "--timeout", "1", check=7).error for _ in range(2)]
    notes = {one["kind"]: one["note"] for one in user.plan().envelope["result"]["objects"]}
    found = {"DaemonSet": user.verify(check=7)["workload/gpu-system"][1]}
    for why in (errors[0]["why"], errors[1]["why"], notes["DaemonSet"], found["DaemonSet"]):
        assert (f"the cluster refuses its pods: {REFUSED}" in why) is not is_made_after_all
    if not is_made_after_all:
        assert "kubectl describe daemonset --namespace gpu-system nvidia-device-plugin" in errors[0]["hint"]


def event_about(body: Body, reason: str, message: str) -> Body:
    """Return a warning about the object."""
    place = {"namespace": body["metadata"]["namespace"], "name": body["metadata"]["name"]}
    about = {"kind": body["kind"], "uid": body["metadata"]["uid"], **place}
    shown = {"type": "Warning", "reason": reason, "message": message, "involvedObject": about}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {**place, "name": f"{place['name']}.1"}, **shown}


def test_label_that_the_plan_sets_is_not_reported_as_missing(unready: ApiServer, user: User) -> None:
    (node,) = unready.peek("Node")
    del node["metadata"]["labels"]["nvidia.com/gpu.present"]
    run_daemon_sets(unready)
    assert "no node runs it" not in user.screen("k8s", "plan", *NODE)


@dataclass
class Helm:
    """Helm for one release, whose chart creates objects with ``make``; ``--wait`` accepts one node without a pod."""

    make: Callable[[], object]
    there: tuple[HelmRelease, ...] = ()

    def list_releases(self, charts: Collection[str]) -> tuple[HelmRelease, ...]:
        return tuple(one for one in self.there if one.chart in charts)

    def require_chart(self, chart_words: Sequence[str], version: str) -> None:
        """Have every chart."""

    def run(self, argv: tuple[str, ...]) -> None:
        words, values = move_values_to_stdin(argv)
        namespace, version = (words[words.index(option) + 1] for option in ("--namespace", "--version"))
        self.there = (HelmRelease(namespace, words[2], words[2], version, 1, "deployed", json.loads(values)),)
        self.make()


def helm_daemon_set(name: str = PLUGIN[2], **selector: str) -> Body:
    """Return a DaemonSet of the release nvidia-device-plugin."""
    notes = {"meta.helm.sh/release-name": PLUGIN[2], "meta.helm.sh/release-namespace": NAMESPACE}
    pod = {"nodeSelector": selector, "containers": [{"name": "one", "image": "nvcr.io/nvidia/k8s-device-plugin:v1"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": notes}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}


@pytest.fixture
def helm(server: ApiServer, user: User, monkeypatch: pytest.MonkeyPatch) -> Helm:
    """Return Helm in that cluster; the chart creates the plugin, and an MPS daemon that no node needs."""

    def make() -> None:
        server.add(helm_daemon_set(), "helm")
        server.add(helm_daemon_set("nvidia-device-plugin-mps-control-daemon", mps="capable"), "helm")

    helm = Helm(make)
    monkeypatch.setattr(Cluster, "helm", property(lambda _: helm))
    return helm


def test_release_whose_pods_do_not_run_is_reported_each_time(server: ApiServer, user: User, helm: Helm) -> None:
    server.controllers.append(break_pods)
    for _ in range(2):
        error = user.apply("k8s-mps", "--timeout", "1", check=7).error
        assert error["what"] == "DaemonSet nvidia-device-plugin: 0 of 1 pods are ready after 1 s"
        assert "cannot be pulled" in error["why"]
    shown = user.screen("k8s", "plan", "k8s-mps", *NODE)
    assert "! nothing to change, but Helm release gpu-system/nvidia-device-plugin does not run" in shown
    assert "up to date, but DaemonSet nvidia-device-plugin: 0 of 1 pods are ready: " in " ".join(shown.split())


def test_pods_for_which_helm_waited_in_vain_say_why(server: ApiServer, user: User, helm: Helm) -> None:
    make = helm.make

    def wait_in_vain() -> None:
        make()
        raise ReleaseFailed("helm upgrade failed", why="context deadline exceeded", hint="see it: helm history x")

    helm.make = wait_in_vain
    server.controllers.append(break_pods)
    error = user.apply("k8s-mps", check=6).error
    assert error["why"].startswith("context deadline exceeded\nDaemonSet nvidia-device-plugin: 0 of 1 pods are ready: ")
    assert "cannot be pulled" in error["why"]
    assert error["hint"].startswith("name a registry that the node reaches")


def test_chart_that_helm_cannot_load_leaves_the_present_plugin(
    server: ApiServer, user: User, helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.apply()
    before = everything(server)

    def refuse(_: Helm, chart_words: Sequence[str], version: str) -> None:
        raise Refused("Helm cannot load the chart", why="no such host", hint="let Helm reach it")

    monkeypatch.setattr(Helm, "require_chart", refuse)
    user.apply("k8s-mps", check=3)
    assert everything(server) == before


def test_helm_waits_as_long_as_apply(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def refuse(context: str, kubeconfig: str, wait_s: float) -> None:
        asked.append(wait_s)
        raise HelmMissing("far enough")

    monkeypatch.setattr("gpunode.host.cluster.Helm", refuse)
    user.apply("k8s-mps", "--timeout", "1200", check=3)
    assert asked == [1200]


def test_running_release_needs_no_change(server: ApiServer, user: User, helm: Helm) -> None:
    user.apply("k8s-mps")
    assert "✓ nothing to change" in user.screen("k8s", "plan", "k8s-mps", *NODE)
    assert not user.apply("k8s-mps").envelope["changed"]


def test_renamed_release_is_reported_under_its_own_name(server: ApiServer, user: User, helm: Helm) -> None:
    user.apply("k8s-mps")
    (first,) = helm.there
    place = {"namespace": "mine", "name": "nvdp"}
    helm.there = (replace(first, namespace="mine", name="nvdp"),)
    for one in server.peek("DaemonSet"):
        one["metadata"]["annotations"] = {f"meta.helm.sh/release-{key}": to for key, to in place.items()}
    server.controllers.append(break_pods)
    break_pods(server)
    assert "! nothing to change, but Helm release mine/nvdp does" in user.screen("k8s", "plan", "k8s-mps", *NODE)


def test_objects_that_a_release_makes_late_are_waited_for(server: ApiServer, user: User, helm: Helm) -> None:
    make, looks = helm.make, 0
    helm.make = lambda: None

    def make_late(words: tuple[str, ...]) -> None:
        nonlocal looks
        looks += bool(helm.there) and "daemonsets.apps" in words
        if looks == 20:
            user.kubectl.intercept = lambda _: None
            make()

    error = user.apply("k8s-mps", "--timeout", "1", check=7).error
    assert error["what"] == "Helm release gpu-system/nvidia-device-plugin: it offers no GPUs"
    assert "helm status --namespace gpu-system nvidia-device-plugin" in error["hint"]
    user.kubectl.intercept = make_late
    assert "✓ its pods are ready now" in user.screen("k8s", "apply", "k8s-mps", *NODE, "--yes")


def test_release_label_that_the_plan_sets_is_not_reported_as_missing(server: ApiServer, user: User, helm: Helm) -> None:
    user.apply("k8s-mps")
    (node,) = server.peek("Node")
    del node["metadata"]["labels"]["nvidia.com/gpu.present"]
    for one in server.peek("DaemonSet"):
        one["spec"]["template"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.present": "true"}
    run_daemon_sets(server)
    assert "no node runs it" not in user.screen("k8s", "plan", "k8s-mps", *NODE)
    user.apply("k8s-mps")
