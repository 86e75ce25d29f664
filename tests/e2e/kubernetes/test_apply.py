"""k8s plan, apply, remove and rollback against a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.control_plane import ADMIN, EXPIRED, STRANGER, ControlPlane
from tests.e2e.kubernetes.fake_node import FakeNode, add_node

pytestmark = pytest.mark.e2e

GPU = "nvidia.com/gpu"
CAPTURE = "debian12-gtx1080"
TAINT = 'extends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n'


@dataclass(frozen=True, slots=True)
class Answer:
    """The output and the exit code of one gpunode."""

    code: int
    screen: str
    envelope: Mapping[str, Any]

    @property
    def states(self) -> Mapping[str, str]:
        """The planned state of each object."""
        return {f"{one['kind']} {one['name']}": one["state"] for one in self.envelope["result"]["objects"]}


@dataclass(frozen=True, slots=True)
class User:
    """A person with a kubeconfig and a journal of their own."""

    plane: ControlPlane
    home: Path
    name: str = ADMIN

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which gpunode runs."""
        settings = {"KUBECONFIG": str(self.plane.kubeconfig(self.name)), "XDG_STATE_HOME": str(self.home)}
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), **settings}

    def __call__(self, *words: str, check: int | None = 0) -> Answer:
        """Return gpunode's JSON answer to these words."""
        argv = [sys.executable, "-m", "gpunode", *words, "--json"]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.startswith("{"), done.stderr
        assert check is None or done.returncode == check, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return Answer(done.returncode, done.stderr, json.loads(done.stdout))

    def apply(self, recipe: str = "k8s-containerd", *more: str, check: int | None = 0) -> Answer:
        """Return the answer of ``k8s apply`` for the node gpu-1."""
        return self("k8s", "apply", recipe, "--node", f"gpu-1={CAPTURE}", "--yes", *more, check=check)

    def plan(self, recipe: str = "k8s-containerd", *more: str, check: int | None = 0) -> Answer:
        """Return the answer of ``k8s plan`` for the node gpu-1."""
        return self("k8s", "plan", recipe, "--node", f"gpu-1={CAPTURE}", *more, check=check)


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[FakeNode]:
    with FakeNode(control_plane, "gpu-1", allocatable={GPU: "1"}) as node:
        yield node
    control_plane.kubectl("delete", "node", "gpu-1")


@pytest.fixture
def user(control_plane: ControlPlane, node: FakeNode, tmp_path: Path) -> Iterator[User]:
    """Yield a user of a cluster that has nothing of gpunode's before and after."""
    one = User(control_plane, tmp_path)
    yield one
    one("k8s", "remove", "--yes")
    control_plane.kubectl("delete", "namespace", "gpu-system", "--ignore-not-found", "--timeout=60s")


def everything(plane: ControlPlane) -> Mapping[str, Any]:
    """Return all objects of the cluster, without the server's counters and times."""
    kinds = "nodes,namespaces,runtimeclasses,daemonsets,configmaps"
    found = plane.get(kinds, "--all-namespaces")["items"]
    return {
        f"{one['kind']}/{one['metadata'].get('namespace', '')}/{one['metadata']['name']}": {
            "labels": one["metadata"].get("labels"),
            "annotations": {
                name: value
                for name, value in one["metadata"].get("annotations", {}).items()
                if name != "deprecated.daemonset.template.generation"
            },
            **{name: value for name, value in one.items() if name not in {"metadata", "status"}},
        }
        for one in found
    }


def test_apply_is_idempotent_and_remove_leaves_nothing(control_plane: ControlPlane, user: User) -> None:
    before = everything(control_plane)
    pending = user.plan("k8s-time-slicing", "--check", check=4)
    assert pending.states == {
        "Node gpu-1": "edit",
        "Namespace gpu-system": "create",
        "RuntimeClass nvidia": "create",
        "ConfigMap nvidia-device-plugin-680dc74b": "create",
        "DaemonSet nvidia-device-plugin": "create",
    }
    assert everything(control_plane) == before

    user.apply("k8s-time-slicing")

    assert set(user.plan("k8s-time-slicing", "--check").states.values()) == {"unchanged"}
    assert user.apply("k8s-time-slicing").envelope["changed"] is False
    plugin = control_plane.get("daemonset", "nvidia-device-plugin", "--namespace=gpu-system")
    assert plugin["status"]["numberReady"] == plugin["status"]["desiredNumberScheduled"] == 1

    user("k8s", "remove", "--yes")
    assert everything(control_plane) == before
    assert user("k8s", "remove", "--yes").envelope["changed"] is False


def test_rollback_restores_the_previous_state_and_can_be_rolled_back(control_plane: ControlPlane, user: User) -> None:
    user.apply("k8s-containerd")
    first = everything(control_plane)
    user.apply("k8s-time-slicing")
    second = everything(control_plane)
    assert first != second

    user("rollback", "k2", "--yes")
    assert everything(control_plane) == first
    user("rollback", "k3", "--yes")
    assert everything(control_plane) == second

    verbs = [run["verb"] for run in user("log").envelope["result"]["runs"] if run["verb"].startswith("k8s")]
    assert verbs == ["k8s apply", "k8s apply", "k8s rollback", "k8s rollback"]


def test_drift_is_repaired_and_a_rollback_refuses_later_changes(control_plane: ControlPlane, user: User) -> None:
    user.apply()
    image = ("set", "image", "daemonset/nvidia-device-plugin", "plugin=other:1", "--namespace=gpu-system")
    control_plane.kubectl(*image)

    drifted = user.plan(check=5)
    assert "kubectl-set" in drifted.envelope["errors"][0]["what"]
    user("rollback", "k1", "--yes", check=5)

    control_plane.kubectl("label", "node", "gpu-1", f"{GPU}.present-")
    control_plane.kubectl("delete", "daemonset", "nvidia-device-plugin", "--namespace=gpu-system", "--timeout=60s")
    mended = user.apply()
    assert {name for name, state in mended.states.items() if state != "unchanged"} == {
        "Node gpu-1",
        "DaemonSet nvidia-device-plugin",
    }


def test_edits_that_a_removal_deleted_are_restored(control_plane: ControlPlane, user: User) -> None:
    user.apply()
    plugin = ("daemonset/nvidia-device-plugin", "--namespace=gpu-system")
    control_plane.kubectl("set", "image", *plugin, "plugin=other:1")
    control_plane.kubectl("set", "env", *plugin, "FOO=bar")
    edited = everything(control_plane)
    user("k8s", "remove", "--yes")
    user("rollback", "k2", "--yes")
    assert everything(control_plane) == edited
    assert "kubectl-set owns" in user.apply(check=5).envelope["errors"][0]["what"]


def test_field_of_another_manager_is_a_conflict_and_is_not_forced(control_plane: ControlPlane, user: User) -> None:
    control_plane.kubectl("label", "node", "gpu-1", f"{GPU}.present=false")
    refused = user.apply(check=5)

    assert "kubectl-label" in refused.envelope["errors"][0]["what"]
    assert "Node/gpu-1" not in str(refused.envelope["changes"])
    assert control_plane.get("node", "gpu-1")["metadata"]["labels"][f"{GPU}.present"] == "false"
    control_plane.kubectl("label", "node", "gpu-1", f"{GPU}.present-")


def test_rendered_script_overwrites_no_foreign_label_or_taint(
    control_plane: ControlPlane, user: User, tmp_path: Path
) -> None:
    (recipe := tmp_path / "tainted.toml").write_text(TAINT)
    user("k8s", "render", str(recipe), "--node", f"gpu-1={CAPTURE}", "--output", str(tmp_path / "out"))

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "out" / "apply.sh"], env=user.environment, capture_output=True, text=True, check=False
        )

    control_plane.kubectl("label", "node", "gpu-1", f"{GPU}.present=false")
    assert 'conflict with "kubectl-label"' in run().stderr
    assert control_plane.get("node", "gpu-1")["metadata"]["labels"][f"{GPU}.present"] == "false"
    control_plane.kubectl("label", "node", "gpu-1", f"{GPU}.present-")
    control_plane.kubectl("taint", "node", "gpu-1", f"{GPU}=theirs:NoSchedule")
    assert f"already has {GPU} taint(s)" in run().stderr
    control_plane.kubectl("taint", "node", "gpu-1", f"{GPU}-")
    for _ in range(2):
        done = run()
        assert done.returncode == 0, done.stderr
    assert set(user.plan(str(recipe)).states.values()) == {"unchanged"}
    control_plane.kubectl("taint", "node", "gpu-1", f"{GPU}-")


def test_foreign_taints_and_objects_stay(control_plane: ControlPlane, user: User, tmp_path: Path) -> None:
    recipe = tmp_path / "tainted.toml"
    recipe.write_text(TAINT)
    control_plane.kubectl("taint", "node", "gpu-1", "maintenance=soon:PreferNoSchedule")
    control_plane.kubectl("create", "namespace", "gpu-system")
    control_plane.kubectl("create", "configmap", "theirs", "--namespace=gpu-system")
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps({**runtime_class, "handler": "nvidia"}))
    before = everything(control_plane)

    applied = user.apply(str(recipe))
    assert applied.states["RuntimeClass nvidia"] == "foreign"
    assert applied.states["Namespace gpu-system"] == "edit"
    taints = control_plane.get("node", "gpu-1")["spec"]["taints"]
    assert {(one["key"], one.get("value")) for one in taints} == {("maintenance", "soon"), (GPU, "present")}
    assert set(user.plan(str(recipe)).states.values()) == {"unchanged", "foreign"}

    user("k8s", "remove", "--yes")
    assert everything(control_plane) == before
    control_plane.kubectl("taint", "node", "gpu-1", "maintenance-")
    control_plane.kubectl("delete", "runtimeclass", "nvidia")


def test_preexisting_taint_is_not_removed(control_plane: ControlPlane, user: User, tmp_path: Path) -> None:
    recipe = tmp_path / "tainted.toml"
    recipe.write_text(TAINT)
    control_plane.kubectl("taint", "node", "gpu-1", f"{GPU}=present:NoSchedule")
    before = control_plane.get("node", "gpu-1")["spec"]["taints"]
    user.apply(str(recipe))
    user("k8s", "remove", "--yes")

    assert control_plane.get("node", "gpu-1")["spec"]["taints"] == before
    control_plane.kubectl("taint", "node", "gpu-1", f"{GPU}-")


@pytest.mark.parametrize(
    "words",
    [("configmap", "theirs"), ("serviceaccount", "theirs"), ("role", "theirs", "--verb=get", "--resource=pods")],
)
def test_namespace_with_foreign_objects_stays(control_plane: ControlPlane, user: User, words: tuple[str, ...]) -> None:
    user.apply()
    control_plane.kubectl("create", *words, "--namespace=gpu-system")
    removed = user("k8s", "remove", "--yes")

    assert removed.states["Namespace gpu-system"] == "foreign"
    assert control_plane.get(*words[:2], "--namespace=gpu-system")


@pytest.mark.parametrize("options", [(), ("--server-side", "--field-manager=theirs")])
def test_object_applied_by_others_since_stays(
    control_plane: ControlPlane, user: User, options: tuple[str, ...]
) -> None:
    user.apply()
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    control_plane.kubectl("apply", *options, "-f", "-", stdin=json.dumps({**runtime_class, "handler": "nvidia"}))

    user("rollback", "k1", "--yes")
    assert control_plane.get("runtimeclass", "nvidia")["handler"] == "nvidia"
    user.apply()
    user("k8s", "remove", "--yes")
    assert control_plane.get("runtimeclass", "nvidia")["handler"] == "nvidia"
    control_plane.kubectl("delete", "runtimeclass", "nvidia")


def test_removal_gives_up_a_co_owned_object_and_deletes_the_rest(control_plane: ControlPlane, user: User) -> None:
    user.apply("k8s-time-slicing")
    for value in ("/x", "/config/config.yaml"):
        variable = (f"CONFIG_FILE={value}", "--field-manager=alice")
        control_plane.kubectl("set", "env", "daemonset/nvidia-device-plugin", "--namespace=gpu-system", *variable)
    user.apply("k8s-time-slicing")
    before = control_plane.get("daemonset", "nvidia-device-plugin", "--namespace=gpu-system")["spec"]

    removed = user("k8s", "remove", "--yes")
    (note,) = (one["note"] for one in removed.envelope["result"]["objects"] if one["kind"] == "DaemonSet")
    assert note.startswith('stays: alice also set spec.template.spec.containers[name="plugin"].env[name="CONFIG_FILE"]')
    kept = control_plane.get("daemonset", "nvidia-device-plugin", "--namespace=gpu-system", "--show-managed-fields")
    assert kept["spec"] == before
    managers = {one["manager"] for one in kept["metadata"]["managedFields"] if "subresource" not in one}
    assert managers == {"alice"}
    left = everything(control_plane)
    assert not [name for name in left if name.startswith("ConfigMap/gpu-system/nvidia")]
    assert "RuntimeClass//nvidia" not in left
    assert user("k8s", "remove", "--yes").envelope["changed"] is False

    user("rollback", "k3", "--yes")
    assert control_plane.get("daemonset", "nvidia-device-plugin", "--namespace=gpu-system")["spec"] == before
    control_plane.kubectl("delete", "daemonset", "nvidia-device-plugin", "--namespace=gpu-system", "--timeout=60s")


def test_rollback_of_a_rollback_uses_the_cluster_of_the_first_run(control_plane: ControlPlane, user: User) -> None:
    elsewhere = User(control_plane, user.home, STRANGER)
    elsewhere.apply("k8s-containerd", "--kubeconfig", str(control_plane.kubeconfig()))
    elsewhere("rollback", "k1", "--yes")
    elsewhere("rollback", "k2", "--yes")
    assert control_plane.get("runtimeclass", "nvidia")["handler"] == "nvidia"


def test_rollback_of_a_removal_refuses_what_was_applied_since(control_plane: ControlPlane, user: User) -> None:
    user.apply("k8s-time-slicing")
    user("k8s", "remove", "--yes")
    user.apply("k8s-containerd")
    before = everything(control_plane)

    assert "was changed since that run" in user("rollback", "k2", "--yes", check=5).envelope["errors"][0]["what"]
    assert everything(control_plane) == before


def test_kubelet_credential_is_refused(control_plane: ControlPlane, user: User) -> None:
    kubelet = User(control_plane, user.home, "gpu-1")
    user.apply()
    before = everything(control_plane)
    for refused in (kubelet.apply(check=3), kubelet("k8s", "remove", "--yes", check=3)):
        assert refused.envelope["errors"][0]["what"] == "your credentials may not do this"
    assert (
        "may have been in another cluster" in kubelet("rollback", "k1", "--yes", check=3).envelope["errors"][0]["what"]
    )
    assert everything(control_plane) == before


def test_reader_gets_the_same_plan_as_an_administrator(control_plane: ControlPlane, user: User) -> None:
    reader = User(control_plane, user.home, STRANGER)
    control_plane.kubectl("create", "clusterrole", "reader", "--verb=get,list", "--resource=*.*")
    control_plane.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=reader", f"--user={STRANGER}")
    try:
        for applied in ("", "k8s-time-slicing", "k8s-containerd"):
            if applied:
                user.apply(applied)
            planned, read = (one.plan().envelope["result"] for one in (user, reader))
            assert read["objects"] == planned["objects"]
            is_all_applied = applied == "k8s-containerd"
            assert ("apply needs rights that your credentials lack: patch " in str(read["notes"])) != is_all_applied
            reader.apply(check=0 if is_all_applied else 3)
    finally:
        control_plane.kubectl("delete", "clusterrole/reader", "clusterrolebinding/reader")


def test_nodes_are_described_by_gpu_feature_discovery_labels(control_plane: ControlPlane, user: User) -> None:
    product, count = f"{GPU}.product", f"{GPU}.count"
    unknown = user("k8s", "plan", "--node", f"gpu-1={CAPTURE}")
    assert user("k8s", "plan", check=13).envelope["errors"][0]["what"].startswith("no Node of this cluster says")
    control_plane.kubectl("label", "node", "gpu-1", f"{product}=NVIDIA-GeForce-GTX-1080", f"{count}=1")
    assert user("k8s", "plan").states == unknown.states
    control_plane.kubectl("label", "node", "gpu-1", f"{product}-")
    assert "it lacks" in user("k8s", "plan", check=13).envelope["errors"][0]["why"]
    control_plane.kubectl("label", "node", "gpu-1", f"{count}-")


def test_kuberc_defaults_are_overridden(control_plane: ControlPlane, user: User) -> None:
    dry = {"name": "dry-run", "default": "client"}
    defaults = [
        {"command": "delete", "options": [dry, {"name": "interactive", "default": "true"}]},
        {"command": "apply", "options": [dry, {"name": "force-conflicts", "default": "true"}]},
    ]
    (user.home / ".kube").mkdir()
    preference = {"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference", "defaults": defaults}
    (user.home / ".kube/kuberc").write_text(json.dumps(preference))
    before = everything(control_plane)
    user.apply()
    control_plane.kubectl("label", "node", "gpu-1", f"{GPU}.present=false", "--overwrite")
    assert "kubectl-label" in user.apply(check=5).envelope["errors"][0]["what"]
    control_plane.kubectl("label", "node", "gpu-1", f"{GPU}.present-")
    user("k8s", "remove", "--yes")
    assert everything(control_plane) == before


def test_second_advertiser_is_refused(control_plane: ControlPlane, user: User) -> None:
    labels = {"app": "theirs"}
    pod = {"nodeSelector": {"no": "node"}, "containers": [{"name": "one", "image": "x/nvidia/k8s-device-plugin:v1"}]}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "theirs"}, "spec": spec}

    def counted(desired: int) -> None:
        status = {"observedGeneration": control_plane.get("ds", "theirs")["metadata"]["generation"]}
        status["desiredNumberScheduled"] = desired
        control_plane.wait_for(
            "it is counted", lambda: status.items() <= control_plane.get("ds", "theirs")["status"].items()
        )

    # A plugin that fits no node offers nothing; gpunode's own label would start another one.
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(body))
    counted(0)
    assert "DaemonSet default/theirs" in user.plan().envelope["result"]["notes"][0]
    for selector, desired in (({f"{GPU}.present": "true"}, 0), ({"kubernetes.io/hostname": "gpu-1"}, 1)):
        pod["nodeSelector"] = selector
        control_plane.kubectl("replace", "-f", "-", stdin=json.dumps(body))
        counted(desired)
        assert "default/theirs" in user.apply(check=3).envelope["errors"][0]["what"]
    control_plane.kubectl("delete", "daemonset", "theirs", "--timeout=60s")


def test_cluster_policy_is_refused_and_its_missing_kind_is_no_error(control_plane: ControlPlane, user: User) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"}
    spec = {"group": "nvidia.com", "scope": "Cluster", "names": names, "versions": [version]}
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    crd["metadata"] = {"name": "clusterpolicies.nvidia.com"}
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}

    assert user.plan().envelope["result"]["notes"] == []
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(crd))
    control_plane.kubectl("wait", "crd/clusterpolicies.nvidia.com", "--for=condition=Established", "--timeout=30s")
    assert user.plan().envelope["result"]["notes"] == []
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(policy))
    refused = user.plan(check=3).envelope["errors"][0]
    assert refused["what"].startswith("ClusterPolicy cluster-policy has the GPU Operator offer")
    control_plane.kubectl("delete", "crd", "clusterpolicies.nvidia.com", "--timeout=60s")


def test_workload_that_no_node_runs_is_reported(control_plane: ControlPlane, user: User) -> None:
    add_node(control_plane, "far-1")
    control_plane.kubectl("taint", "node", "far-1", "far=away:NoSchedule")
    words = ("k8s", "apply", "--node", f"far-1={CAPTURE}", "--yes")
    for _ in range(2):
        assert "no node runs it" in user(*words, check=7).envelope["errors"][0]["what"]
    assert "but no node runs it" in str(user("k8s", "plan", *words[2:4]).envelope["result"]["objects"])

    control_plane.kubectl("delete", "node", "far-1")


def test_quota_that_refuses_the_plugins_pods_is_named(control_plane: ControlPlane, user: User) -> None:
    control_plane.kubectl("create", "namespace", "gpu-system")
    control_plane.kubectl("create", "quota", "few", "--hard=pods=0", "--namespace=gpu-system")
    control_plane.wait_for(
        "the quota counts", lambda: "hard" in control_plane.get("quota", "few", "--namespace=gpu-system")["status"]
    )
    why = user.apply("k8s-containerd", "--timeout", "5", check=7).envelope["errors"][0]["why"]
    assert why.startswith("the cluster refuses its pods: ")
    assert "exceeded quota: few" in why


@pytest.mark.parametrize(
    ("name", "code", "what"),
    [(STRANGER, 3, "your credentials may not do this"), (EXPIRED, 3, "the cluster does not accept your credentials")],
)
def test_insufficient_credentials_are_named(user: User, name: str, code: int, what: str) -> None:
    refused = User(user.plane, user.home, name).apply(check=code)
    assert refused.envelope["errors"][0]["what"] == what


@dataclass(frozen=True, slots=True)
class CiJob(User):
    """A user whose kubeconfig is found only by HOME and names a login program that reads the environment."""

    profile: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which gpunode runs."""
        settings = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home), "AWS_PROFILE": self.profile}
        return {"PATH": os.environ["PATH"], **settings}


@pytest.mark.parametrize(
    ("program", "profile", "code", "what"),
    [
        ("login", "gpu", 0, ""),
        ("login", "", 3, "login failed"),
        ("absent-login", "gpu", 3, "logs in by absent-login, which cannot be run"),
    ],
)
def test_login_programs_get_the_callers_environment(
    control_plane: ControlPlane, user: User, program: str, profile: str, code: int, what: str
) -> None:
    token = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": ADMIN}}
    (login := user.home / "login").write_text(
        f"#!/bin/sh\n[ \"$AWS_PROFILE\" = gpu ] || {{ echo no profile >&2; exit 3; }}\necho '{json.dumps(token)}'\n"
    )
    login.chmod(0o755)
    config = json.loads(control_plane.kubeconfig().read_text())
    command = str(login) if program == "login" else program
    plugin = {"apiVersion": token["apiVersion"], "command": command, "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": plugin}
    (user.home / ".kube").mkdir()
    (user.home / ".kube/config").write_text(json.dumps(config))
    answer = CiJob(user.plane, user.home, profile=profile).plan(check=code)
    assert not code or what in answer.envelope["errors"][0]["what"]


def test_unreachable_or_wrong_cluster_is_reported(user: User, tmp_path: Path) -> None:
    assert (
        user.plan("k8s-containerd", "--context", "nowhere", check=2)
        .envelope["errors"][0]["what"]
        .startswith("there is no context 'nowhere'")
    )
    config = json.loads(user.plane.kubeconfig().read_text())
    config["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:9"}
    closed = tmp_path / "closed.kubeconfig"
    closed.write_text(json.dumps(config))
    answer = user.plan("k8s-containerd", "--kubeconfig", str(closed), check=13)
    assert answer.envelope["errors"][0]["what"] == "the cluster does not answer"
    unnamed = user("k8s", "plan", "--node", f"gpu-9={CAPTURE}", check=3)
    assert "no Node gpu-9" in unnamed.envelope["errors"][0]["what"]
