"""A cluster, through the user's own kubectl: its context, its credentials and its login plugins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from gpunode.command import command
from gpunode.errors import Conflict, Undetermined, UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.host.helm import DEFAULT_WAIT_S, Helm
from gpunode.host.kubectl import (
    Forbidden,
    ProgramMissing,
    caller_environment,
    describe_install_location,
    explain_failure,
    find_failed_api_groups,
    find_program,
    is_object_rejection,
    parse_version,
    refuse_old_kubectl,
    split_errors,
    version_skew_warning,
)
from gpunode.host.process import FinishedCommand, Runner

Body: TypeAlias = Mapping[str, Any]

_READ_TIMEOUT_S: Final = 60.0
_REQUEST_TIMEOUT: Final = "--request-timeout=20s"
_MAX_OUTPUT_BYTES: Final = 64 << 20
_MAX_OBJECTS_PER_REQUEST: Final = 500
# Kubernetes distributions that ship their own kubectl, each with the kubeconfigs that go with it, and that Helm needs:
# the first that exists. A rootless k3s writes the one in the home. Sources: k3s pkg/kubectl and pkg/server
# (HomeKubeConfig), k0s cmd/kubectl, microk8s-kubectl.wrapper, RKE2's documentation ("Cluster Access").
_KUBECTL_COMMANDS_TO_TRY: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("kubectl",): (),
    ("k3s", "kubectl"): ("/etc/rancher/k3s/k3s.yaml", "~/.kube/k3s.yaml"),
    ("microk8s", "kubectl"): ("/var/snap/microk8s/current/credentials/client.config",),
    ("k0s", "kubectl"): ("/var/lib/k0s/pki/admin.conf",),
    ("/var/lib/rancher/rke2/bin/kubectl",): ("/etc/rancher/rke2/rke2.yaml",),
}


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The cluster that kubectl talks to, and the user it logs in as.

    Attributes:
        uid: the uid of the namespace kube-system, which identifies a cluster; the server if the user may not read it.
        version: of its API server (``v1.36.2``).
        client: the version of kubectl.
    """

    context: str
    server: str
    user: str
    version: str
    uid: str
    client: str = ""

    @property
    def is_certain(self) -> bool:
        """True if the uid is known."""
        return self.uid != self.server

    @property
    def skew(self) -> str:
        """A warning if kubectl and the API server are too many versions apart; otherwise empty."""
        return version_skew_warning(self.client, self.version)


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """The API server's answer to a set of objects.

    Attributes:
        objects: those that it accepts, as they would be stored.
        errors: one for each object that it rejects.
    """

    objects: tuple[Body, ...]
    errors: tuple[str, ...] = ()


class Cluster:
    """The cluster of a context.

    Its methods raise the errors that ``explain_failure`` derives from kubectl's output: UsageError for a bad
    kubeconfig, Refused for credentials that are rejected, Forbidden for a request that they do not permit, Undetermined
    if the cluster does not answer, else ChangeFailed.

    Args:
        context: a context of the user's kubeconfig; empty for the current one.
        kubeconfig: a file in place of the user's own.
        wait_s: how long Helm waits for the pods of a release.

    Raises:
        Refused: if there is no kubectl.
    """

    def __init__(self, context: str = "", kubeconfig: str = "", wait_s: float = DEFAULT_WAIT_S) -> None:
        self.kubectl = (*find_kubectl(), *(("--kubeconfig", kubeconfig) if kubeconfig else ()))
        self._context, self._kubeconfig, self._wait_s = context, kubeconfig, wait_s
        self._runner = Runner()

    @cached_property
    def helm(self) -> Helm:
        """Helm in the same cluster.

        Raises:
            Refused: if Helm is not installed.
        """
        options = dict(zip(self.kubectl, self.kubectl[1:], strict=False))
        return Helm(self._context, options.get("--kubeconfig", ""), self._wait_s)

    def identify(self) -> ClusterIdentity:
        """Return the identity of this cluster."""
        versions = self._versions
        (context,), (cluster,) = self._config.get("contexts") or [{}], self._config.get("clusters") or [{}]
        server = str(cluster.get("cluster", {}).get("server", ""))
        try:
            namespace = self._read("get", "namespace", "kube-system", _REQUEST_TIMEOUT, "-o", "json")
            uid = str(_first_document(namespace)["metadata"]["uid"])
        except Forbidden:
            uid = server
        user = str(context.get("context", {}).get("user", ""))
        client, version = (_git_version(versions, one) for one in ("clientVersion", "serverVersion"))
        return ClusterIdentity(str(context.get("name", "")), server, user, version, uid, client)

    @cached_property
    def _config(self) -> Mapping[str, Any]:
        """The kubeconfig's part for the context, which every later call names."""
        done = self._try(("config", "view", "--minify", "-o", "json"), only_reads=True)
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if host and b"current-context must exist" in done.stderr:
            # kubectl works nevertheless: in a pod without a kubeconfig, it uses the pod's service account.
            server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
            return {"clusters": [{"cluster": {"server": server}}]}
        if not done.ok:
            raise explain_failure(done)
        found: Mapping[str, Any] = _first_document(done.stdout)
        (context,) = found.get("contexts") or [{}]
        self._context = str(context.get("name", "")) or self._context
        return found

    @cached_property
    def _versions(self) -> Mapping[str, Any]:
        """The versions of kubectl and the API server; the first request, so that an old kubectl is reported as such."""
        _refuse_missing_file(self._kubeconfig)
        done = self._try(("version", "-o", "json", _REQUEST_TIMEOUT), only_reads=True)
        # kubectl prints its own version even if the server does not answer.
        found: Mapping[str, Any] = _first_document(done.stdout) if done.stdout.startswith(b"{") else {}
        refuse_old_kubectl(_git_version(found, "clientVersion"), self.kubectl[0], _install_hint())
        if not done.ok:
            raise explain_failure(done)
        _ = self._config
        return found

    def refuse_unusable(self) -> None:
        """Refuse a kubectl that is too old, a missing kubeconfig, or a server that does not answer."""
        _ = self._versions

    def get(self, objects: Sequence[Body]) -> tuple[Body, ...]:
        """Return those of ``objects`` that exist, with their managed fields."""
        words = ("get", "-f", "-", "--ignore-not-found", _REQUEST_TIMEOUT, *_JSON_OUTPUT)
        return tuple(
            flatten_document
            for few in _batches(objects)
            for flatten_document in _flatten_documents(self._read(*words, stdin=_encode_objects(_without_content(few))))
        )

    def list(self, kinds: str, *words: str) -> tuple[Body, ...]:
        """Return all objects of these kinds, with their managed fields."""
        return _flatten_documents(self._read("get", kinds, *words, _REQUEST_TIMEOUT, *_JSON_OUTPUT))

    def list_nodes(self) -> tuple[Body, ...]:
        """Return all Nodes without most of their status, which is too large to request for thousands of them."""
        return self._get_by_template(_NODES_TEMPLATE, "nodes")

    def list_metadata(self, kind: str, *words: str) -> tuple[Body, ...]:
        """Return the metadata of all objects of a kind, without their content, which in Secrets is confidential."""
        return self._get_by_template(_METADATA_TEMPLATE, kind, *words)

    def list_users_of_class(self, kind: str, pod_spec: str, runtime_class: str) -> tuple[Body, ...]:
        """Return the objects of a kind whose pods name the RuntimeClass, each with its metadata and its state.

        ``pod_spec`` is the path of the pod's spec in such an object. The state has a pod's phase and all conditions.
        """
        template = _USERS_TEMPLATE % (pod_spec, runtime_class)
        return self._get_by_template(template, kind, "--all-namespaces")

    def _get_by_template(self, template: str, *words: str) -> tuple[Body, ...]:
        return _flatten_documents(self._read("get", *words, "-o", f"jsonpath={template}", _REQUEST_TIMEOUT))

    def list_kinds(self, *options: str, group: str = "") -> tuple[str, ...]:
        """Return kinds of objects of this cluster, as ``list`` takes them.

        With ``group``, return only that API group's kinds, and ignore failures of other groups.
        """
        options = (f"--api-group={group}", *options) if group else options
        done = self._try(("api-resources", *options, "-o", "name", _REQUEST_TIMEOUT), only_reads=True)
        failed = find_failed_api_groups(done)
        if not done.ok and not (group and failed and group not in failed):
            raise explain_failure(done)
        return tuple(done.stdout.decode().split())

    def dry_run(self, objects: Sequence[Body], manager: str) -> DryRunResult:
        """Apply ``objects`` in a server-side dry run and return the result, with conflicts and invalid objects."""
        words = ("apply", *_APPLY_OPTIONS, manager, "--dry-run=server", *_JSON_OUTPUT)
        results = [
            self._parse_result(self._try(words, _encode_objects(batch), only_reads=True)) for batch in _batches(objects)
        ]
        return DryRunResult(
            tuple(body for one in results for body in one.objects), tuple(e for one in results for e in one.errors)
        )

    def apply(self, body: Body, manager: str) -> Body:
        """Apply the object server-side and return it as stored.

        Raises:
            Conflict: if another field manager owns one of its fields; nothing is changed.
        """
        words = ("apply", *_APPLY_OPTIONS, manager, _NO_DRY_RUN, *_JSON_OUTPUT)
        stored: Body = _first_document(self._run(words, json.dumps(body).encode()).stdout)
        return stored

    def patch(self, target: Body, patch: Sequence[Mapping[str, Any]], manager: str) -> None:
        """Change an object by a JSON patch (RFC 6902), as ``manager``.

        Raises:
            Conflict: if a test of the patch fails, since the object was changed meanwhile; nothing is changed.
        """
        where = ("--namespace", target["metadata"]["namespace"]) if "namespace" in target["metadata"] else ()
        resource = f"{target['kind']}.{target['apiVersion'].rpartition('/')[0]}".removesuffix(".").lower()
        words = ("patch", resource, target["metadata"]["name"], *where, "--type=json", "-p", json.dumps(patch))
        done = self._try((*words, _NO_DRY_RUN, "--field-manager", manager, _REQUEST_TIMEOUT))
        if b"rejected our request due to an error in our request" in done.stderr:
            raise Conflict(
                f"{target['kind']} {target['metadata']['name']} was changed meanwhile",
                why="somebody changed it after gpunode had read it; gpunode changed nothing",
                hint="run the same command again",
            )
        if not done.ok:
            raise explain_failure(done)

    def delete(self, *bodies: Body) -> None:
        """Have the API server delete the objects and what they own; ``poll_deletions`` tells when they are gone."""
        options = ("--ignore-not-found", "--cascade=foreground", "--wait=false", _REQUEST_TIMEOUT, "-f", "-")
        words = ("delete", _NO_DRY_RUN, *self._no_prompt_options, *options)
        self._run(words, _encode_objects(_without_content(bodies)))

    @property
    def _no_prompt_options(self) -> Sequence[str]:
        """The options that keep kubectl from asking before it deletes: a user's kuberc (1.33) can make it ask."""
        client = parse_version(_git_version(self._versions, "clientVersion"))
        return ("--interactive=false",) if client is not None and client >= _FIRST_VERSION_WITH_KUBERC else ()

    def taint(self, node: str, taint: str) -> None:
        """Add a taint to the Node or, with ``-`` at its end, remove it; other taints stay.

        Raises:
            Conflict: if the Node has the same key and effect with another value.
        """
        done = self._try(("taint", "nodes", node, taint, _NO_DRY_RUN, "--overwrite=false", _REQUEST_TIMEOUT))
        output = done.stderr.decode("utf-8", "replace")
        if done.ok or (taint.endswith("-") and "not found" in output and "taint" in output):
            return
        if "already has" in output:
            raise Conflict(
                f"Node {node} has another taint with the key and effect of {taint}",
                why="somebody else set it, and gpunode does not change it",
                hint=f"look at it, then choose: {command('kubectl', 'describe', 'node', node)}",
            )
        raise explain_failure(done)

    def create(self, bodies: Sequence[Body]) -> DryRunResult:
        """Create the objects and return those created, with the errors of those that were rejected."""
        words = ("create", "-f", "-", _NO_DRY_RUN, *_JSON_OUTPUT)
        return self._parse_result(self._try(words, _encode_objects(bodies)))

    def _parse_result(self, finished: FinishedCommand) -> DryRunResult:
        messages = () if finished.ok else tuple(split_errors(finished.stderr.decode("utf-8", "replace").strip()))
        if not finished.ok and not (messages and is_object_rejection(finished)):
            raise explain_failure(finished)
        return DryRunResult(_flatten_documents(finished.stdout), messages)

    def read_logs(self, namespace: str, pod: str) -> str:
        """Return the last lines that a pod's containers printed."""
        words = ("logs", "--namespace", namespace, pod, "--all-containers", "--tail=50", _REQUEST_TIMEOUT)
        return self._read(*words).decode("utf-8", "replace")

    def read_kubelet_config(self, node: str) -> Mapping[str, Any]:
        """Return the configuration of the node's running kubelet (``kubelet.config.k8s.io/v1beta1``)."""
        data = self._read("get", "--raw", f"/api/v1/nodes/{node}/proxy/configz")
        found: Mapping[str, Any] = _first_document(data).get("kubeletconfig") or {}
        return found

    def check_access(self, requests: Sequence[tuple[str, str, str, str, str]]) -> tuple[bool, ...]:
        """Return for each request (verb, API group, resource, namespace, name) whether the credential permits it.

        Without a name the request is for every object.
        """
        keys = ("verb", "group", "resource", "namespace", "name")
        reviews = [
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": dict(zip(keys, request, strict=True))},
            }
            for request in requests
        ]
        if not reviews:
            return ()
        words = ("create", "-f", "-", _NO_DRY_RUN, *_JSON_OUTPUT)
        answers = _flatten_documents(self._read(*words, stdin=_encode_objects(reviews)))
        return tuple(bool(answer.get("status", {}).get("allowed")) for answer in answers)

    def _read(self, *words: str, stdin: bytes = b"") -> bytes:
        return self._run(words, stdin, only_reads=True).stdout

    def _run(self, words: Sequence[str], stdin: bytes = b"", *, only_reads: bool = False) -> FinishedCommand:
        """Run kubectl, which must succeed."""
        done = self._try(words, stdin, only_reads=only_reads)
        if not done.ok:
            raise explain_failure(done)
        return done

    def _try(self, words: Sequence[str], stdin: bytes = b"", *, only_reads: bool = False) -> FinishedCommand:
        # With --request-timeout, kubectl would not use the service account of the pod that it runs in.
        is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
        words = [word for word in words if not (is_in_pod and word == _REQUEST_TIMEOUT)]
        return self._runner.run(
            (*self.kubectl, *words, *(("--context", self._context) if self._context else ())),
            timeout_s=_READ_TIMEOUT_S,
            stdin=stdin,
            env=caller_environment(),
            limit_bytes=_MAX_OUTPUT_BYTES,
            only_reads=only_reads,
        )


_NODES_TEMPLATE: Final = (
    '{range .items[*]}{"{"}"apiVersion":"v1","kind":"Node","metadata":{.metadata},"spec":{.spec},'
    '"status":{"{"}"nodeInfo":{.status.nodeInfo}{"}}"}{end}'
)
_USERS_TEMPLATE: Final = (
    '{range .items[?(@.%s.runtimeClassName=="%s")]}{"{"}"apiVersion":"{.apiVersion}","kind":"{.kind}",'
    '"metadata":{.metadata},"state":"{.status.phase} {.status.conditions[*].type}"{"}"}{end}'
)
_METADATA_TEMPLATE: Final = '{range .items[*]}{"{"}"metadata":{.metadata}{"}"}{end}'
# A user's kuberc can set defaults, and only a flag overrides them.
_FIRST_VERSION_WITH_KUBERC: Final = (1, 33)
_NO_DRY_RUN: Final = "--dry-run=none"
_APPLY_OPTIONS: Final = ("--server-side", "--force-conflicts=false", _REQUEST_TIMEOUT, "-f", "-", "--field-manager")
_JSON_OUTPUT: Final = ("--show-managed-fields", "-o", "json")


def choose_kubectl() -> tuple[str, ...]:
    """Return the command that starts kubectl as a user types it: the first whose program is here.

    A distribution's own kubeconfig is passed explicitly, so that other programs can reach the same cluster.
    """
    found = next((one for one in _KUBECTL_COMMANDS_TO_TRY if find_program(one[0])), ("kubectl",))
    path = Path(find_program(found[0]) or "/")
    # k3s installs itself as kubectl, and `snap alias` does that with microk8s.kubectl.
    name = path.readlink().name.partition(".")[0] if path.is_symlink() else ""
    places = map(os.path.expanduser, _KUBECTL_COMMANDS_TO_TRY.get((name, "kubectl"), _KUBECTL_COMMANDS_TO_TRY[found]))
    own = next((place for place in places if os.access(place, os.F_OK)), "")
    is_ignored = bool(os.environ.get("KUBECONFIG")) and "microk8s" not in (name, found[0])
    return (*found, "--kubeconfig", own) if own and not is_ignored else found


def find_kubectl() -> tuple[str, ...]:
    """Return the command that starts the user's own kubectl, or one that a Kubernetes distribution ships.

    Raises:
        ProgramMissing: if there is none.
    """
    name, *words = choose_kubectl()
    if program := find_program(name):
        return (program, *words)
    raise ProgramMissing(
        "kubectl was not found", why="gpunode reaches clusters through the user's own kubectl", hint=_install_hint()
    )


def _install_hint() -> str:
    return (
        f"put a kubectl of your cluster's version into {describe_install_location('kubectl')}: "
        "https://kubernetes.io/docs/tasks/tools\nthe one of Debian 12 (kubernetes-client) is 1.20 and too old"
    )


def _refuse_missing_file(kubeconfig: str) -> None:
    """Refuse a kubeconfig that does not exist: kubectl ignores missing files in $KUBECONFIG, and then has no cluster.

    Raises:
        UsageError: if none of the named files exists.
    """
    named = [kubeconfig] if kubeconfig else [one for one in os.environ.get("KUBECONFIG", "").split(":") if one]
    if named and not any(map(os.path.lexists, named)):
        raise UsageError(
            f"there is no kubeconfig {' or '.join(named)}",
            why=f"{'--kubeconfig' if kubeconfig else '$KUBECONFIG'} names it",
            hint="name the file by which kubectl reaches your cluster: --kubeconfig FILE",
        )


def _git_version(versions: Mapping[str, Any], component: str) -> str:
    return str((versions.get(component) or {}).get("gitVersion", ""))


def _batches(objects: Sequence[Body]) -> Iterator[Sequence[Body]]:
    """Yield the objects in batches: kubectl requests each separately, 50 a second, and has one minute in total."""
    return (objects[at : at + _MAX_OBJECTS_PER_REQUEST] for at in range(0, len(objects), _MAX_OBJECTS_PER_REQUEST))


def _without_content(objects: Sequence[Body]) -> Sequence[Body]:
    """Return the objects with only their kind, namespace and name."""
    metadata = (
        {key: one["metadata"][key] for key in ("name", "namespace") if one["metadata"].get(key)} for one in objects
    )
    return [
        {"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": place}
        for one, place in zip(objects, metadata, strict=True)
    ]


def _encode_objects(objects: Sequence[Body]) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()


def _first_document(data: bytes) -> Any:
    """Return the first JSON document of kubectl's output."""
    return next(_iter_documents(data), {})


def _iter_documents(data: bytes) -> Iterator[Any]:
    """Yield the JSON documents of kubectl's output, which prints one for each object that it changes."""
    text, decoder, end = data.decode("utf-8", "replace").strip(), json.JSONDecoder(), 0
    while end < len(text):
        try:
            found, end = decoder.raw_decode(text, end)
        except ValueError as error:
            hint = "check kubectl itself: kubectl version"
            why = f"it is not JSON: {error}"
            raise Undetermined("kubectl's answer cannot be read", why=why, hint=hint) from error
        yield found
        while text[end : end + 1].isspace():
            end += 1


def _flatten_documents(data: bytes) -> tuple[Body, ...]:
    """Return the objects of kubectl's output: one, several, a List, or none."""
    return tuple(
        one
        for found in _iter_documents(data)
        for one in (found["items"] if str(found.get("kind", "")).endswith("List") else (found,))
    )
