"""Early ends of a plan, an apply or a removal, with messages of kubectl and the API server."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gpunode.host.cluster import Cluster
from gpunode.host.process import FinishedCommand
from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import GPU, NAMESPACE, NODE, PLUGIN, User, everything, node, run_daemon_sets
from tests.fakes.runners import ended

KUBELET = "system:node:gpu-1"
# Actions that RBAC's role system:node does not permit.
NO_KUBELET = {"list daemonsets", "list configmaps", "get daemonsets", "get configmaps", "get runtimeclasses"}


def intercept_once(
    word: str, act: Callable[[], object], *, dry_run: bool = False
) -> Callable[[tuple[str, ...]], FinishedCommand | None]:
    """Return an interception that acts once, before the first command of that verb."""
    done: list[bool] = []

    def intercept(words: tuple[str, ...]) -> FinishedCommand | None:
        if word in words[:2] and not done and dry_run == ("--dry-run=server" in words):
            done.append(True)
            found = act()
            return found if isinstance(found, FinishedCommand) else None
        return None

    return intercept


def test_kubelet_credential_is_refused_and_changes_nothing(server: ApiServer, user: User) -> None:
    before = everything(server)
    server.user, server.denied = KUBELET, NO_KUBELET
    for refused in (user.apply(check=3), user("k8s", "remove", "--yes", check=3)):
        assert refused.error["what"] == "your credentials may not do this"
    assert everything(server) == before


def test_cluster_is_identified_by_server_when_its_uid_is_unreadable(server: ApiServer, user: User) -> None:
    server.denied.add("get namespaces kube-system")
    assert user.plan().envelope["result"]["cluster"]["uid"] == "https://127.0.0.1:6443"
    assert user.apply().envelope["changed"]


@pytest.mark.parametrize(
    ("denied", "said"),
    [
        ("patch daemonsets", "your credentials may not do all of this"),
        ("delete configmaps", "your credentials may not do all of this"),
        ("list daemonsets", "your credentials may not do this"),
    ],
)
def test_missing_rights_are_named_before_anything_changes(
    server: ApiServer, user: User, denied: str, said: str
) -> None:
    user.apply("k8s-time-slicing")
    before = everything(server)
    server.denied.add(denied)
    error = user.apply("k8s-containerd", check=3).error
    assert error["what"] == said
    assert denied.partition(" ")[2] in error["why"]
    assert everything(server) == before


@pytest.mark.parametrize(
    ("former", "verb", "needed"),
    [
        ("", "patch", "{0} nodes, {0} namespaces, {0} runtimeclasses, {0} configmaps in {1}, {0} daemonsets in {1}"),
        ("", "create", "{0} namespaces, {0} runtimeclasses, {0} configmaps in {1}, {0} daemonsets in {1}"),
        ("k8s-containerd", "patch", "{0} configmaps in {1}, {0} daemonsets in {1}"),
        ("k8s-containerd", "delete", "{0} configmaps in {1}"),
        ("k8s-time-slicing", "patch", ""),
    ],
)
def test_reader_gets_the_same_plan_and_the_rights_that_apply_needs(
    server: ApiServer, user: User, former: str, verb: str, needed: str
) -> None:
    """A user without write permissions asks what an administrator would change."""
    needed = needed.format(verb, NAMESPACE)
    if former:
        user.apply(former)
    before, planned = everything(server), user.plan("k8s-time-slicing")
    server.denied = {f"{verb} {what}" for what in ("nodes", "namespaces", "runtimeclasses", "configmaps", "daemonsets")}
    read = user.plan("k8s-time-slicing").envelope["result"]
    assert read["objects"] == planned.envelope["result"]["objects"]
    notes = [f"apply needs rights that your credentials lack: {needed}"] if needed else []
    assert [one for one in read["notes"] if not one.startswith("The dry run covers only what")] == notes
    assert len(read["notes"]) == len(notes) + (verb != "delete" and bool(needed))
    assert not needed or user.apply("k8s-time-slicing", check=3).error["why"] == f"missing: {needed}"
    assert everything(server) == before


def test_rejection_by_an_admission_plugin_is_no_missing_right(user: User) -> None:
    forbidden = b'Error from server (Forbidden): configmaps "x" is forbidden: exceeded quota: few, used: count/x=1\n'
    user.kubectl.intercept = intercept_once("apply", lambda: ended(status=1, err=forbidden), dry_run=True)
    error = user.plan(check=3).error
    assert error["what"] == "the API server rejects what the recipe asks for"
    assert "exceeded quota" in error["why"]
    assert error["hint"].startswith("ask its administrator for an exception")


def test_webhook_that_does_not_answer_is_not_blamed_on_the_recipe(user: User) -> None:
    failed = (
        b"Error from server (InternalError): Internal error occurred: failed calling webhook "
        b'"mutate.kyverno.svc-fail": failed to call webhook: Post "https://kyverno-svc.kyverno.svc:443/mutate": '
        b"dial tcp 10.0.0.9:443: connect: connection refused\n"
    )
    user.kubectl.intercept = intercept_once("apply", lambda: ended(status=1, err=failed), dry_run=True)
    error = user.plan(check=3).error
    assert error["what"] == "the admission webhook mutate.kyverno.svc-fail of this cluster does not answer"
    assert "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations" in error["hint"]


def test_rejected_credentials_end_the_plan(user: User) -> None:
    user.kubectl.intercept = intercept_once(
        "create", lambda: ended(status=1, err=b"error: You must be logged in to the server\n")
    )
    assert user.plan(check=3).error["what"] == "the cluster does not accept your credentials"


DELETED = "2026-11-28T06:00:00Z"


def test_namespace_being_deleted_ends_the_plan(server: ApiServer, user: User) -> None:
    said = "Some content in the namespace has finalizers remaining: example.org/keep in 1 resource instances"
    conditions = [
        {"type": "NamespaceFinalizersRemaining", "status": "True", "message": said},
        {"type": "NamespaceDeletionContentFailure", "status": "False", "message": "All content successfully deleted"},
    ]
    metadata = {"name": NAMESPACE, "deletionTimestamp": DELETED}
    server.add({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "status": {"conditions": conditions}})
    error = user.plan(check=3).error
    assert (error["what"], error["why"]) == (f"Namespace {NAMESPACE} is being deleted", said)
    assert f"kubectl get namespace {NAMESPACE} -o yaml" in error["hint"]


def test_object_being_deleted_is_not_called_as_it_should_be(server: ApiServer, user: User) -> None:
    """It would be gone a moment after the command succeeded."""
    user.apply()
    user("k8s", "remove", "--yes")
    user.apply()
    (plugin,) = server.peek("DaemonSet")
    plugin["metadata"] |= {"deletionTimestamp": DELETED, "finalizers": ["foregroundDeletion", "example.org/keep"]}
    why = "the objects that it owns, such as pods, must be deleted first; the finalizer example.org/keep is on it"
    for words in (("k8s", "plan", "k8s-containerd", *NODE), ("rollback", "k2", "--yes")):
        error = user(*words, check=3).error
        assert (error["what"], error["why"]) == (f"DaemonSet {NAMESPACE}/{PLUGIN[2]} is being deleted", why)


def test_node_being_deleted_does_not_stop_the_rest(server: ApiServer, user: User) -> None:
    """Karpenter's finalizer keeps a Node until its pods have ended, which a PodDisruptionBudget can delay for days."""
    (drained := node("gpu-2"))["metadata"] |= {"deletionTimestamp": DELETED, "finalizers": ["karpenter.sh/termination"]}
    server.add(drained)
    words = ("k8s", "apply", "k8s-containerd", *NODE, "--node", "gpu-2=debian12-gtx1080", "--yes")
    assert user(*words).states["DaemonSet nvidia-device-plugin"] == "create"
    assert server.get(*PLUGIN)


def test_objects_kept_by_finalizers_are_named_after_one_wait(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    kept = [*server.peek("ConfigMap"), *server.peek("DaemonSet"), *server.peek("RuntimeClass")]
    for one in kept:
        one["metadata"]["finalizers"] = ["example.org/keep"]

    screen = user.screen("k8s", "remove", "--yes", check=6)
    assert user.skipped_s < 130
    waiting = "waiting up to 120 s: DaemonSet gpu-system/nvidia-device-plugin (the finalizer example.org/keep is on it)"
    assert f"{waiting}, and 3 more" in " ".join(screen.split())
    assert f"✗ cluster: DaemonSet {NAMESPACE}/nvidia-device-plugin after 2 min" in " ".join(screen.split())
    config = f"ConfigMap {NAMESPACE}/{kept[0]['metadata']['name']}"
    assert f"{config} is still being deleted: the finalizer example.org/keep is on it" in " ".join(screen.split())
    assert f"kubectl get daemonset --namespace {NAMESPACE} nvidia-device-plugin -o yaml" in screen
    assert f"{GPU}.present" not in server.get("Node", "", "gpu-1")["metadata"]["labels"]
    results = [one["result"] for one in user("log", "k2").envelope["result"]["run"]["changes"]]
    assert results.count("failed") == len(kept) + 1, "the namespace, too"


def test_object_that_is_made_anew_and_deleted_again_is_not_waited_for(server: ApiServer, user: User) -> None:
    user.apply()
    (plugin,) = server.peek("DaemonSet")
    server.peek("RuntimeClass")[0]["metadata"]["finalizers"] = ["example.org/keep"]
    again = {**plugin, "metadata": {**plugin["metadata"], "uid": "other", "deletionTimestamp": DELETED}}
    polls: list[object] = []

    def make_anew(words: tuple[str, ...]) -> None:
        polls.extend([words] if words[0] == "get" and user.skipped_s else [])
        if len(polls) == 2:
            server.add(again, "argocd")

    user.kubectl.intercept = make_anew
    assert "RuntimeClass nvidia could not be removed" in user("k8s", "remove", "--yes", check=6).error["what"]


def test_hanging_namespace_counts_where_its_contents_may_no_longer_be_read(server: ApiServer, user: User) -> None:
    """The cluster deletes a namespace's RoleBindings early, and so the right to read the rest."""
    user.apply()
    (namespace,) = (one for one in server.peek("Namespace") if one["metadata"]["name"] == NAMESPACE)
    namespace["metadata"]["finalizers"] = ["example.org/keep"]
    server.controllers.append(
        lambda there: there.denied.update(["get daemonsets"] if "deletionTimestamp" in namespace["metadata"] else [])
    )
    assert f"Namespace {NAMESPACE} could not be removed" in user("k8s", "remove", "--yes", check=6).error["what"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("is_lost", [False, True])
def test_end_of_the_wait_tells_that_the_cluster_deletes_on(server: ApiServer, user: User, is_lost: bool) -> None:
    user.apply()
    server.peek("DaemonSet")[0]["metadata"]["finalizers"] = ["foregroundDeletion"]
    lost = ended(status=1, err=UNREACHABLE)
    stop = intercept_once("get", lambda: lost if is_lost else signal.raise_signal(signal.SIGINT))
    user.kubectl.intercept = lambda words: stop(words) if user.skipped_s else None
    error = user("k8s", "remove", "--yes", check=13 if is_lost else 130).error
    assert error["why"].endswith(
        f"; the cluster still deletes DaemonSet {NAMESPACE}/{PLUGIN[2]}, Namespace {NAMESPACE}"
    )
    results = {one["result"] for one in user("log", "k2").envelope["result"]["run"]["changes"]}
    assert results == {"done", "unknown"}


def test_object_refused_by_the_server_is_reported_in_its_words(user: User) -> None:
    refused = b'The ConfigMap "x" is invalid: data: Too long: may not be more than 1048576 bytes\n'
    user.kubectl.intercept = intercept_once("apply", lambda: ended(status=1, err=refused), dry_run=True)
    error = user.plan(check=3).error
    assert error["what"] == "the API server rejects what the recipe asks for"
    assert "data: Too long" in error["why"]


KYVERNO = """\
Error from server: error when creating "STDIN": admission webhook "validate.kyverno.svc-fail" denied the request:

resource DaemonSet/default/nvidia-device-plugin was blocked due to the following policies

disallow-default-namespace:
  validate-namespace: 'validation error: the DaemonSet is invalid. Using "default" namespace is not allowed.'
"""


@pytest.mark.parametrize(
    "said",
    [
        KYVERNO,
        "The daemonsets \"x\" is invalid: : ValidatingAdmissionPolicy 'no-default' denied request: not in default",
        'Error from server (Forbidden): daemonsets.apps "x" is forbidden: User "me" cannot patch in "default"',
        'The DaemonSet "x" is invalid: spec.selector: Invalid value: {}: field is immutable',
        'error: Apply failed with 1 conflict: conflict with "helm": .spec.template.spec',
    ],
)
def test_dry_run_refusal_in_namespace_default_is_only_a_note(server: ApiServer, user: User, said: str) -> None:
    """Objects of a namespace that does not exist yet can only be dry-run in an existing one."""
    dry_runs = 0

    def refuse_moved(words: tuple[str, ...]) -> FinishedCommand | None:
        nonlocal dry_runs
        dry_runs += "--dry-run=server" in words
        return ended(status=1, err=said.encode()) if "--dry-run=server" in words and dry_runs == 2 else None

    user.kubectl.intercept = refuse_moved
    (note,) = user.apply().envelope["result"]["notes"]
    assert note.startswith(
        "not in the dry run, since namespace gpu-system does not exist yet, and default refuses it: "
    )
    assert " ".join(said.split())[-20:] in note
    assert server.get(*PLUGIN)


def test_unknown_field_is_refused_before_the_namespace_is_made(server: ApiServer, user: User) -> None:
    unknown = b"Error from server (BadRequest): strict decoding error: unknown field spec.x\n"
    refused = [None, ended(status=1, err=unknown)]
    user.kubectl.intercept = lambda words: refused.pop(0) if refused and "--dry-run=server" in words else None
    assert "unknown field" in user.apply(check=3).error["why"]
    assert not [one for one in server.peek("Namespace") if one["metadata"]["name"] == NAMESPACE]


def test_missing_right_hides_no_refusal_of_what_can_be_tried(server: ApiServer, user: User) -> None:
    server.denied.add("patch runtimeclasses")
    assert user.plan().envelope["result"]["notes"][0].startswith("The dry run covers only what")
    unknown = b"Error from server (BadRequest): strict decoding error: unknown field spec.x\n"
    refused = [None, ended(status=1, err=unknown)]
    user.kubectl.intercept = lambda words: refused.pop(0) if refused and "--dry-run=server" in words else None
    assert "unknown field" in user.plan(check=3).error["why"]
    former = server.get("Node", "", "gpu-1")
    labels = {**former["metadata"]["labels"], f"{GPU}.present": "false"}
    server.update(former, {**former, "metadata": {**former["metadata"], "labels": labels}}, "kubectl-label")
    assert "kubectl-label owns fields" in user.plan(check=5).error["what"]


UNREACHABLE = b"Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout\n"


# By then kubectl has retried as often as the server requested.
BUSY = b"Error from server (TooManyRequests): the server has received too many requests and has asked us to try again"


@pytest.mark.parametrize("said", [UNREACHABLE, BUSY])
@pytest.mark.parametrize("verb", ["version", "api-resources", "apply"])
def test_unreachable_server_ends_the_plan(user: User, verb: str, said: bytes) -> None:
    user.kubectl.intercept = lambda words: ended(status=1, err=said) if words[0] == verb else None
    assert user.plan(check=13).error["what"] == "the cluster does not answer"


def test_recipe_for_kind_needs_the_context_of_that_cluster(user: User) -> None:
    error = user.plan("kind", check=3).error
    assert "is for the kind cluster kind, and this is the context lab" in error["what"]
    assert f"gpunode k8s render kind {' '.join(NODE)} --output gpu-stack" in error["hint"]
    assert "is for the kind cluster" in user("k8s", "verify", "kind", *NODE, check=3).error["what"]


def test_invalid_node_name_is_refused(user: User) -> None:
    refused = user("k8s", "plan", "k8s-containerd", "--node", "gpu_1=debian12-gtx1080", check=3).error
    assert refused["what"] == "'gpu_1' cannot be the name of a Kubernetes node"


def test_no_access_review_is_sent_without_permissions_to_check(user: User) -> None:
    assert Cluster().check_access(()) == ()
    assert user.kubectl.calls == []


def test_charts_need_helm(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert user.plan("gpu-operator", check=3).error["what"] == "helm was not found"


def test_kubectl_answer_that_is_not_json_is_reported(user: User) -> None:
    user.kubectl.intercept = intercept_once("config", lambda: ended(out=b"{oops"))
    assert user.plan(check=13).error["what"] == "kubectl's answer cannot be read"


def test_nodes_that_the_changed_plugin_serves_are_named(server: ApiServer, user: User) -> None:
    """A single DaemonSet serves all labelled Nodes, whichever of them the command names."""
    server.add(node("gpu-2"))
    user("k8s", "apply", "k8s-containerd", *NODE, "--node", "gpu-2=debian12-gtx1080", "--yes")
    assert user.plan().envelope["result"]["notes"] == []
    (note,) = user.plan("k8s-time-slicing").envelope["result"]["notes"]
    assert note.startswith("These changes also affect gpu-2, which has the label")
    assert "--node gpu-2=CAPTURE" in note


def test_forbidden_node_list_ends_a_removal(server: ApiServer, user: User) -> None:
    server.denied.add("list nodes")
    assert user("k8s", "remove", "--yes", check=3).error["what"] == "your credentials may not do this"


def test_many_nodes_are_listed_in_one_call(server: ApiServer, user: User, tmp_path: Any) -> None:
    names = [f"gpu-{number:02}" for number in range(21)]
    for name in names:
        server.add(node(name))
    words = [word for name in names for word in ("--node", f"{name}=debian12-gtx1080")]
    planned = user("k8s", "plan", "k8s-containerd", *words)
    assert sum(one.startswith("Node") for one in planned.states) == 21
    assert not any(f'"{names[0]}"' in word for words in user.kubectl.calls for word in words)


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}


def test_namespace_note_lists_the_first_few_foreign_objects(server: ApiServer, user: User) -> None:
    user.apply()
    for name in ("a", "b", "c", "d"):
        server.add(config_map(name), "bob")
    notes = {one["kind"]: one["note"] for one in user("k8s", "remove", "--yes").envelope["result"]["objects"]}
    assert notes["Namespace"] == "stays: it also holds ConfigMap a, ConfigMap b, ConfigMap c, 1 more"


def test_namespace_filled_after_the_plan_is_not_deleted(server: ApiServer, user: User) -> None:
    """Another user's objects would be deleted with it."""
    user.apply()
    theirs = config_map("theirs")
    user.kubectl.intercept = intercept_once("delete", lambda: server.add(theirs, "bob"))
    error = user("k8s", "remove", "--yes", check=5).error
    assert error["what"] == "Namespace gpu-system could not be removed; everything else is done"
    assert "namespace gpu-system stays: it also holds ConfigMap theirs" in error["why"]
    assert [one["metadata"]["name"] for one in server.peek("ConfigMap")] == ["theirs"]
    assert not server.peek("RuntimeClass")


def test_namespace_whose_contents_cannot_be_listed_is_not_deleted(server: ApiServer, user: User) -> None:
    user.apply()
    failed = ended(status=1, err=b"error: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1\n")
    user.kubectl.intercept = lambda words: failed if words[0] == "api-resources" else None
    notes = {one["kind"]: one["note"] for one in user("k8s", "remove", "--yes").envelope["result"]["objects"]}
    assert notes["Namespace"].startswith("stays: it also holds what cannot be seen (")
    unreachable = ended(status=1, err=UNREACHABLE)
    user.kubectl.intercept = lambda words: unreachable if words[0] == "api-resources" else None
    assert user("k8s", "remove", "--yes", check=13).error["what"] == "the cluster does not answer"


def test_node_deleted_after_the_plan_ends_an_apply(server: ApiServer, user: User) -> None:
    def forget_node() -> None:
        server.delete("Node", "", "gpu-1")

    user.kubectl.intercept = intercept_once("create", forget_node)  # the last question of the plan
    assert user.apply(check=6).error["what"] == "Node gpu-1 is gone"


def test_node_deleted_during_a_removal_is_no_error(server: ApiServer, user: User) -> None:
    user.apply()
    user.kubectl.intercept = intercept_once("delete", lambda: server.delete("Node", "", "gpu-1"))
    user("k8s", "remove", "--yes")
    assert not server.peek("Node")


def test_taint_of_a_deleted_node_is_an_error(server: ApiServer, user: User, tmp_path: Any) -> None:
    (recipe := tmp_path / "tainted.toml").write_text(
        'extends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\n'
    )
    user.kubectl.intercept = intercept_once("taint", lambda: server.delete("Node", "", "gpu-1"))
    assert 'nodes "gpu-1" not found' in user.apply(str(recipe), check=6).error["why"]


def test_patch_refused_by_a_webhook_is_reported_and_the_rest_goes_on(server: ApiServer, user: User) -> None:
    user.apply()
    server.apply({**server.get(*PLUGIN), "metadata": {"name": PLUGIN[2], "namespace": NAMESPACE}}, "argocd")
    server.apply(
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": PLUGIN[2], "namespace": NAMESPACE},
         "spec": {"template": {"spec": {"priorityClassName": "system-node-critical"}}}}, "argocd",
    )  # fmt: skip
    refused = b"Error from server: admission webhook x denied the request: no\n"
    user.kubectl.intercept = intercept_once("patch", lambda: ended(status=1, err=refused))
    error = user("k8s", "remove", "--yes", check=6).error
    assert "denied the request: no" in error["why"]
    assert not server.peek("RuntimeClass")


@pytest.mark.usefixtures("interruptible")
def test_sigint_stops_an_apply_between_two_changes(server: ApiServer, user: User) -> None:
    user.kubectl.intercept = intercept_once("apply", lambda: signal.raise_signal(signal.SIGINT))
    user.apply(check=130)
    assert not server.peek("DaemonSet")
    # Not the first of all runs, which is the node's if this machine has any.
    assert user("log", "k1").envelope["result"]["run"]["result"] == "interrupted"


def test_second_plugin_from_helm_is_named_with_its_uninstall_command(server: ApiServer, user: User) -> None:
    user.apply()
    theirs = server.get(*PLUGIN)
    notes = {"meta.helm.sh/release-name": "nvdp", "meta.helm.sh/release-namespace": "nvdp"}
    theirs["metadata"] = {"name": "nvdp", "namespace": "default", "annotations": notes, "labels": {}}
    server.add(theirs, "helm")
    run_daemon_sets(server)
    hint = user.plan(check=3).error["hint"]
    assert "helm uninstall nvdp --namespace nvdp" in hint
    # The files of `k8s render` would install a second release.
    assert hint.startswith("keep it, and use a recipe with gfd = true in [kubernetes.extras]")


def test_configuration_also_applied_by_kubectl_stays(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    (former,) = server.peek("ConfigMap")
    former["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    applied = user.apply("k8s-containerd")
    (note,) = (one["note"] for one in applied.envelope["result"]["objects"] if one["note"])
    assert note == "stays: somebody applied it, too"
    assert len(server.peek("ConfigMap")) == 2
    removed = user("k8s", "remove", "--yes")
    notes = [one["note"] for one in removed.envelope["result"]["objects"] if one["kind"] == "ConfigMap"]
    assert sorted(notes) == ["", "stays: somebody applied it with kubectl, too"]


def test_secret_with_a_cluster_scoped_owner_keeps_the_namespace(server: ApiServer, user: User) -> None:
    user.apply()
    owner = {"apiVersion": "example.org/v1", "kind": "XPostgres", "name": "prod", "uid": "of-another-scope"}
    metadata = {"name": "db-connection", "namespace": NAMESPACE, "ownerReferences": [owner]}
    server.add({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    states = user("k8s", "remove", "--yes").states
    assert states[f"Namespace {NAMESPACE}"] == "foreign"
    assert server.get("Secret", NAMESPACE, "db-connection")


def test_object_co_owned_during_the_prompt_is_not_deleted(server: ApiServer, user: User) -> None:
    user.apply()
    live = server.get(*PLUGIN)
    theirs = {**{key: live[key] for key in ("apiVersion", "kind", "spec")}, "metadata": {"name": PLUGIN[2]}}
    theirs["metadata"]["namespace"] = NAMESPACE
    seen: list[bool] = []

    def intercept(words: tuple[str, ...]) -> FinishedCommand | None:
        if words[:3] == ("get", "-f", "-") and not seen:
            seen.append(True)
            server.apply(theirs, "argocd")
        return None

    user.kubectl.intercept = intercept
    assert "changed since the plan was made" in user("k8s", "remove", "--yes", check=5).error["what"]
    assert server.get(*PLUGIN)


def test_conflict_over_a_deleted_object_is_reported(user: User) -> None:
    said = b'error: Apply failed with 1 conflict: conflict with "helm" using v1: .metadata.labels.x\n'
    user.kubectl.intercept = intercept_once("apply", lambda: ended(status=1, err=said))
    assert "conflict" in json.dumps(user.apply(check=5).envelope["errors"])
