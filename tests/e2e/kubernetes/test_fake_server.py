"""The in-memory API server of the unit tests answers like the real one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pytest

from gpunode import builtin
from gpunode.host.cluster import _USERS_TEMPLATE, _flatten_documents
from gpunode.host.process import FinishedCommand
from gpunode.kubernetes.render import render_cluster
from gpunode.workflow.cluster_workloads import _POD_SPECS
from tests.e2e.kubernetes.control_plane import ADMIN, API_PROGRAMS, EXPIRED, STRANGER, ControlPlane
from tests.e2e.kubernetes.fake_node import add_node
from tests.fakes.api_server import RESOURCES, ApiServer, Body
from tests.fakes.clusters import node
from tests.fakes.kubectl import Kubectl
from tests.needs import lacking_assets
from tests.unit.kubernetes.clusters import CLUSTERS

pytestmark = pytest.mark.e2e

# A call of kubectl: its arguments, and the object on its standard input.
Step: TypeAlias = tuple[str, tuple[str, ...], Body | None]

_OBJECTS: Final = {
    one.kind: dict(one.body) for one in render_cluster(builtin.read_recipe("k8s-time-slicing"), CLUSTERS["one"]).objects
}
NAMESPACE, CLASS, CONFIG, PLUGIN = (_OBJECTS[kind] for kind in ("Namespace", "RuntimeClass", "ConfigMap", "DaemonSet"))
IN_NAMESPACE: Final = ("--namespace", "gpu-system")
PLACE: Final = ("daemonset.apps", "nvidia-device-plugin", *IN_NAMESPACE)
LABELS: Final = {"nvidia.com/gpu.present": "true"}
AS_JSON: Final = ("--show-managed-fields", "-o", "json")


def list_of(*bodies: Body) -> Body:
    return {"apiVersion": "v1", "kind": "List", "items": list(bodies)}


def bare(body: Body, **metadata: str) -> Body:
    place = {name: body["metadata"][name] for name in ("name", "namespace") if name in body["metadata"]}
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": {**place, **metadata}}


def apply(*bodies: Body, manager: str = "gpunode", more: tuple[str, ...] = (), who: str = ADMIN) -> Step:
    words = ("apply", "--server-side", "-f", "-", "--field-manager", manager, *more, *AS_JSON)
    return who, words, bodies[0] if len(bodies) == 1 else list_of(*bodies)


def get(*bodies: Body, who: str = ADMIN) -> Step:
    return who, ("get", "-f", "-", "--ignore-not-found", *AS_JSON), list_of(*bodies)


def create(*bodies: Body, who: str = ADMIN) -> Step:
    return who, ("create", "-f", "-", *AS_JSON), list_of(*bodies)


def delete(*bodies: Body, who: str = ADMIN) -> Step:
    return who, ("delete", "--ignore-not-found", "-f", "-"), list_of(*map(bare, bodies))


def merge(body: Body, patch: Body, manager: str) -> Step:
    place = (body["kind"].lower(), body["metadata"]["name"])
    where = IN_NAMESPACE if "namespace" in body["metadata"] else ()
    return (
        ADMIN,
        ("patch", *place, *where, "--type=merge", "-p", json.dumps(patch), "--field-manager", manager, *AS_JSON),
        None,
    )


def say(*words: str, who: str = ADMIN) -> Step:
    return who, words, None


def plugin_with(**container: object) -> Body:
    former = PLUGIN["spec"]["template"]["spec"]["containers"][0]
    return {"spec": {"template": {"spec": {"containers": [{**former, **container}]}}}}


def pod(name: str, namespace: str = "gpu-system", **spec: object) -> Body:
    metadata = {"name": name, "namespace": namespace, "labels": {"gpunode-test": "x"}}
    whole = {"restartPolicy": "Never", "containers": [{"name": "one", "image": "lab"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def gpu_node(name: str = "gpu-1", **metadata: object) -> Body:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": LABELS, **metadata}}


def forgo(version: str) -> Step:
    """Remove gpunode's entry, the first one, from the plugin's managedFields."""
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "remove", "path": "/metadata/managedFields/0"},
        {"op": "remove", "path": "/metadata/labels/app.kubernetes.io~1managed-by"},
    ]
    return (
        ADMIN,
        ("patch", *PLACE, "--type=json", "-p", json.dumps(patch), "--field-manager", "gpunode", *AS_JSON),
        None,
    )


REVIEW: Final[Body] = {
    "apiVersion": "authorization.k8s.io/v1",
    "kind": "SelfSubjectAccessReview",
    "spec": {
        "resourceAttributes": {
            "verb": "patch",
            "group": "apps",
            "resource": "daemonsets",
            "namespace": "x",
            "name": "y",
        }
    },
}
ENV: Final = PLUGIN["spec"]["template"]["spec"]["containers"][0]["env"]
DRY: Final = ("--dry-run=server",)
APPLIED: Final = (apply(NAMESPACE), apply(CLASS), apply(CONFIG), apply(PLUGIN))
CO_OWNED: Final = (
    *APPLIED,
    merge(PLUGIN, plugin_with(env=[{**ENV[0], "value": "/x"}]), "alice"),
    merge(PLUGIN, plugin_with(), "alice"),
    apply(PLUGIN),
)
SCENARIOS: Final[Mapping[str, Sequence[Step]]] = {
    "the namespace is not there": [apply(CONFIG, PLUGIN, more=DRY), apply(NAMESPACE, CLASS, more=DRY)],
    "apply twice": [*APPLIED, apply(PLUGIN, CONFIG, more=DRY), get(*map(bare, _OBJECTS.values())), get(bare(CLASS))],
    "absent objects": [get(bare(CLASS, name="none")), say("get", "namespace", "none", "-o", "json"), delete(CLASS)],
    "a conflict": [*APPLIED, merge(PLUGIN, plugin_with(image="other:1"), "alice"), apply(CONFIG, PLUGIN, more=DRY)],
    "conflicts in two objects": [
        *APPLIED,
        merge(PLUGIN, plugin_with(image="other:1", env=[{**ENV[0], "value": "/x"}]), "alice"),
        merge(PLUGIN, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "bob"}}}, "bob"),
        merge(CONFIG, {"data": {"config.yaml": "x"}}, "bob"),
        apply(PLUGIN, CONFIG, CLASS, more=DRY),
        apply(PLUGIN, more=("--force-conflicts",)),
    ],
    "a co-owned object without ours": [
        *CO_OWNED,
        apply(bare(PLUGIN)),
        forgo("1"),
        forgo("@"),
        get(bare(PLUGIN)),
        apply(PLUGIN),
    ],
    "a co-owned ConfigMap without ours": [*APPLIED, merge(CONFIG, {"data": {"more": "x"}}, "bob"), apply(bare(CONFIG))],
    "a handler stays": [*APPLIED, apply({**CLASS, "handler": "other"}), apply(bare(CLASS))],
    "labels of a Node": [
        apply(gpu_node(), manager="gpunode-labels"),
        merge(gpu_node(), {"metadata": {"labels": {"nvidia.com/gpu.present": "false"}}}, "kubectl-label"),
        apply(gpu_node(), manager="gpunode-labels", more=DRY),
        apply(gpu_node(uid="0000"), manager="gpunode-labels"),
        apply(gpu_node("gpu-9", uid="0000"), manager="gpunode-labels"),
    ],
    "a taint": [
        *(
            say("taint", "nodes", "gpu-1", f"nvidia.com/gpu={one}")
            for one in ("present:NoSchedule", "present:NoSchedule")
        ),
        say("taint", "nodes", "gpu-1", "nvidia.com/gpu=other:NoSchedule"),
        get(gpu_node()),
        *(say("taint", "nodes", "gpu-1", "nvidia.com/gpu=present:NoSchedule-") for _ in range(2)),
        say("taint", "nodes", "gpu-9", "nvidia.com/gpu=present:NoSchedule"),
    ],
    "pods": [
        apply(NAMESPACE),
        create(pod("one"), pod("two", runtimeClassName="none"), pod("three", "none")),
        create(pod("one")),
        say("get", "pods", *IN_NAMESPACE, "--selector", "gpunode-test=x", *AS_JSON),
        say("get", "pods", "--all-namespaces", "--field-selector", "spec.nodeName=gpu-1", *AS_JSON),
        delete(pod("one"), pod("none")),
    ],
    "lists": [
        *APPLIED,
        say(
            "get",
            "daemonsets.apps,configmaps",
            "--all-namespaces",
            "--selector",
            "app.kubernetes.io/managed-by=gpunode",
            *AS_JSON,
        ),
        say("get", "things.example.org", "-o", "json"),
        say(
            "get",
            "secrets",
            "--all-namespaces",
            "-o",
            'jsonpath={range .items[*]}{"{"}"metadata":{.metadata}{"}"}{end}',
        ),
        *(
            say("get", kind, "--all-namespaces", "-o", f"jsonpath={_USERS_TEMPLATE % (path, 'nvidia')}")
            for kind, path in _POD_SPECS.items()
        ),
        say("api-resources", "--namespaced", "--verbs=list,delete", "-o", "name"),
    ],
    "somebody without rights": [
        get(bare(NAMESPACE), bare(CLASS), who=STRANGER),
        say("get", "nodes", "-o", "json", who=STRANGER),
        apply(PLUGIN, who=STRANGER),
        create(pod("one"), pod("two"), who=STRANGER),
        delete(PLUGIN, CLASS, who=STRANGER),
        say("taint", "nodes", "gpu-1", "a=b:NoSchedule", who=STRANGER),
        create(REVIEW, REVIEW, who=STRANGER),
        create(REVIEW, REVIEW),
    ],
    "somebody unknown": [say("get", "nodes", "-o", "json", who=EXPIRED), apply(PLUGIN, who=EXPIRED)],
    "another context": [
        say("version", "-o", "json", "--context", "no"),
        say("config", "view", "--minify", "-o", "json", "--context", "no"),
    ],
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield an API server without controllers, which would act between two steps."""
    if reason := lacking_assets(*API_PROGRAMS):
        pytest.skip(reason)
    with ControlPlane(tmp_path_factory.mktemp("kubernetes") / "plane", scheduling=False) as plane:
        yield plane


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_memory_server_answers_like_the_real_one(plane: ControlPlane, name: str) -> None:
    fake = Kubectl(ApiServer(), context="admin@lab")
    fake.server.add(node())
    # A separate namespace: without controllers none is ever removed.
    namespace = f"gpu-system-{list(SCENARIOS).index(name)}"
    add_node(plane, "gpu-1")
    try:
        for step in SCENARIOS[name]:
            real, made = of_real(plane, step, namespace), of_fake(fake, step)
            assert made.exit_status == real.exit_status, (step[1], real, made)
            assert made.stderr == real.stderr, step[1]
            assert_contained(made.stdout, real.stdout)
    finally:
        plane.kubectl("delete", "node/gpu-1", "runtimeclass/nvidia", "--ignore-not-found")


def of_real(plane: ControlPlane, step: Step, namespace: str) -> FinishedCommand:
    """Return the real kubectl's answer; the step's namespace has another name there."""
    who, words, body = step
    if "@" in " ".join(words):
        version = plane.kubectl(
            "get", *PLACE[:2], "--namespace", namespace, "-o", "jsonpath={.metadata.resourceVersion}"
        )
        words = tuple(word.replace('"@"', f'"{version}"') for word in words)
    words = tuple(word.replace("gpu-system", namespace) for word in words)
    # kubectl's client-side validation by OpenAPI is not compared.
    lax = ("--validate=false",) if words[0] in {"apply", "create"} else ()
    done = plane.finish(*words, *lax, user=who, stdin=json.dumps(body).replace("gpu-system", namespace) if body else "")
    out, err = (text.replace(namespace, "gpu-system").encode() for text in (done.stdout, done.stderr))
    return FinishedCommand(words, done.returncode, out, err, 0.0, False)


def of_fake(fake: Kubectl, step: Step) -> FinishedCommand:
    """Return the stand-in's answer."""
    who, words, body = step
    server = fake.server
    server.user = "" if who == EXPIRED else who
    verbs = ("get", "list", "patch", "create", "delete")
    server.denied = {f"{verb} {one.name}" for one in RESOURCES.values() for verb in verbs if who == STRANGER}
    for one in server.peek("DaemonSet"):
        version = one["metadata"]["resourceVersion"]
        words = tuple(word.replace('"@"', f'"{version}"') for word in words)
    return fake.run(("kubectl", *words), stdin=json.dumps(body).encode() if body else b"", timeout_s=60)


def assert_contained(made: bytes, real: bytes) -> None:
    """Assert that the real server printed all that the stand-in did; extras are defaults and other objects."""
    if not made.startswith(b"{"):
        assert set(made.split()) <= set(real.split())
        return
    objects = {place_of(one): dict(one) for one in _flatten_documents(real)}
    found = {place_of(one): dict(one) for one in _flatten_documents(made)}
    assert found.keys() == {place for place in objects if place[1] in {"", "gpu-system"}}
    for place, body in found.items():
        assert missing_parts(body, objects[place]) == {}, place


def place_of(body: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = body.get("metadata", {})
    return body.get("kind", ""), metadata.get("namespace", ""), metadata.get("name", "")


def missing_parts(made: Any, real: Any) -> Any:
    """Return the parts of ``made`` that are not in ``real``; empty for none."""
    if isinstance(made, dict) and isinstance(real, dict):
        left = {name: missing_parts(value, real.get(name)) for name, value in made.items() if name not in CHANGING}
        left["managedFields"] = missing_parts(owners(made), owners(real)) if "managedFields" in made else {}
        return {name: value for name, value in left.items() if value not in ({}, [], None)}
    if isinstance(made, list) and isinstance(real, list) and len(made) == len(real):
        return [one for one in map(missing_parts, made, real) if one]
    return {} if made == real else {"made": made, "real": real}


# Counters of each server, and the owners, which are compared separately.
CHANGING: Final = {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "status", "server"}


def owners(metadata: Body) -> Mapping[str, Any]:
    """Return the managers of an object, with the fields that they applied; an update also owns defaults."""
    return {
        f"{one['manager']} {one['operation']}": one["fieldsV1"] if one["operation"] == "Apply" else True
        for one in metadata["managedFields"]
        if not one.get("subresource")
    }
