"""A cluster, through the user's own kubectl: its context, its credentials, and its ways to log in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from gpunode.command import Command, command
from gpunode.errors import Conflict, GpunodeError, Undetermined, UsageError
from gpunode.host.cluster_programs import ProgramMissing, caller_environment, find_program, where_to_install
from gpunode.host.helm import Helm
from gpunode.host.kubectl import (
    Forbidden,
    errors,
    failed_groups,
    failure,
    is_about_objects,
    refuse_old,
    skew,
    version_of,
)
from gpunode.host.process import Finished, Runner

Body: TypeAlias = Mapping[str, Any]

_READ_S: Final = 60.0
_REQUEST_TIMEOUT: Final = "--request-timeout=20s"
_LARGEST_ANSWER: Final = 64 << 20
_MOST: Final = 500
# Kubernetes distributions that bring a kubectl of their own, with its configuration: sources in docs/explanation.
_KUBECTLS: Final[tuple[tuple[str, ...], ...]] = (
    ("kubectl",),
    ("k3s", "kubectl"),
    ("microk8s", "kubectl"),
    ("k0s", "kubectl"),
    ("/var/lib/rancher/rke2/bin/kubectl", "--kubeconfig", "/etc/rancher/rke2/rke2.yaml"),
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The cluster that kubectl talks to, and as whom.

    Attributes:
        uid: of the namespace kube-system, by which clusters are told apart; the server where that cannot be read.
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
    def skew(self) -> str:
        """A warning where kubectl and the API server are too far apart; empty for none."""
        return skew(self.client, self.version)


@dataclass(frozen=True, slots=True)
class Tried:
    """What the API server would make of objects.

    Attributes:
        objects: as they would be; those that it takes.
        errors: what it says of the others, a line each.
    """

    objects: tuple[Body, ...]
    errors: tuple[str, ...] = ()


class Cluster:
    """The cluster of a context.

    Args:
        context: a context of the user's kubeconfig; empty for the current one.
        kubeconfig: a file in place of the user's own.

    Raises:
        Refused: no kubectl was found.
    """

    def __init__(self, context: str = "", kubeconfig: str = "") -> None:
        base = find_kubectl()
        options = (("--context", context) if context else ()) + (("--kubeconfig", kubeconfig) if kubeconfig else ())
        self.kubectl = (*base, *options)
        self._place = (context, kubeconfig)
        self._runner = Runner()

    @cached_property
    def helm(self) -> Helm:
        """Helm in the same cluster.

        Raises:
            Refused: there is none on this machine.
        """
        return Helm(*self._place)

    def command(self, *words: str) -> Command:
        """The kubectl command of these words, as the user types it."""
        shown = ("kubectl", *self.kubectl[1:]) if Path(self.kubectl[0]).name == "kubectl" else self.kubectl
        return command(*(Path(shown[0]).name, *shown[1:]), *words)

    def helm_command(self, *words: str) -> Command:
        """The command of Helm of these words, for the same cluster."""
        context, kubeconfig = self._place
        options = (
            *(("--kube-context", context) if context else ()),
            *(("--kubeconfig", kubeconfig) if kubeconfig else ()),
        )
        return command("helm", *options, *words)

    def identity(self) -> Identity:
        """Which cluster this is.

        Raises:
            UsageError: the context does not exist, or none is set; there is no such kubeconfig.
            Undetermined: the cluster does not answer.
            Refused: it does not accept the credentials, or kubectl is too old.
        """
        versions = self._versions
        config = self._json("config", "view", "--minify")
        (context,), (cluster,) = config.get("contexts") or [{}], config.get("clusters") or [{}]
        server = str(cluster.get("cluster", {}).get("server", ""))
        try:
            uid = str(self._json("get", "namespace", "kube-system", _REQUEST_TIMEOUT)["metadata"]["uid"])
        except Forbidden:
            uid = server
        user = str(context.get("context", {}).get("user", ""))
        client, version = (_git_version(versions, one) for one in ("clientVersion", "serverVersion"))
        return Identity(str(context.get("name", "")), server, user, version, uid, client)

    @cached_property
    def _versions(self) -> Mapping[str, Any]:
        """Of kubectl and of the API server; the first question, so that a kubectl that is too old is told as such.

        Raises:
            as ``identity``.
        """
        _refuse_missing_file(self._place[1])
        done = self._run(("version", "-o", "json", _REQUEST_TIMEOUT), b"", only_reads=True)
        # It tells its own version also where the server does not answer.
        found: Mapping[str, Any] = _parsed(done.stdout) if done.stdout.startswith(b"{") else {}
        refuse_old(_git_version(found, "clientVersion"), self.kubectl[0], _install_hint())
        if not done.ok:
            raise self._failure(done)
        return found

    def check(self) -> None:
        """Refuse to go on with a kubectl that is too old, without a kubeconfig, or while the server does not answer.

        Raises:
            as ``identity``.
        """
        _ = self._versions

    def whoami(self) -> str:
        """The user as the API server sees it; empty where it cannot say (before Kubernetes 1.28)."""
        try:
            return str(self._json("auth", "whoami")["status"]["userInfo"]["username"])
        except (GpunodeError, KeyError):
            return ""

    def get(self, objects: Sequence[Body]) -> tuple[Body, ...]:
        """Those of ``objects`` that are there, as they are, with what each field manager owns.

        Raises:
            as ``identity``; Forbidden.
        """
        wanted = [{"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": _place(one)} for one in objects]
        words = ("get", "-f", "-", "--ignore-not-found", "--show-managed-fields", _REQUEST_TIMEOUT)
        return tuple(one for few in _few(wanted) for one in _items(self._answer(*words, stdin=_list(few))))

    def list(self, kinds: str, *words: str) -> tuple[Body, ...]:
        """All objects of these kinds, with what each field manager owns.

        Raises:
            as ``get``.
        """
        return _items(self._answer("get", kinds, *words, "--show-managed-fields", _REQUEST_TIMEOUT))

    def kinds_of(self, group: str) -> tuple[str, ...]:
        """Return the kinds of objects of an API group, as ``list`` takes them; none where the cluster lacks the group.

        An API group that fails does not keep the kinds of another from being told.

        Raises:
            GpunodeError: the API server does not tell all of them.
        """
        return self._kinds(f"--api-group={group}", "--verbs=list", group=group)

    def nodes(self) -> tuple[Body, ...]:
        """All Nodes without most of their status: the images and addresses of thousands are too much to ask for.

        Raises:
            as ``get``.
        """
        return self._short(_SHORT_NODES, "nodes")

    def metadata(self, kind: str, *words: str) -> tuple[Body, ...]:
        """All objects of this kind without what they hold, which of Secrets nobody is to see.

        Raises:
            as ``get``.
        """
        return self._short(_METADATA, kind, *words)

    def _short(self, template: str, *words: str) -> tuple[Body, ...]:
        done = self._run(("get", *words, "-o", f"jsonpath={template}", _REQUEST_TIMEOUT), b"", only_reads=True)
        if not done.ok:
            raise self._failure(done)
        return _items(done.stdout)

    def namespaced_kinds(self) -> tuple[str, ...]:
        """All kinds of objects that namespaces of this cluster hold, as ``list`` takes them.

        Raises:
            GpunodeError: the API server does not tell all of them.
        """
        return self._kinds("--namespaced", "--verbs=list,delete")

    def _kinds(self, *options: str, group: str = "") -> tuple[str, ...]:
        """List the kinds; those of ``group`` are complete as long as only other groups fail."""
        done = self._run(("api-resources", *options, "-o", "name", _REQUEST_TIMEOUT), b"", only_reads=True)
        failed = failed_groups(done)
        if not done.ok and not (group and failed and group not in failed):
            raise self._failure(done)
        return tuple(done.stdout.decode().split())

    def try_out(self, objects: Sequence[Body], manager: str) -> Tried:
        """What the API server would make of ``objects``; nothing is changed.

        Raises:
            as ``identity``; a conflict or an object that is invalid is in the answer.
        """
        words = ("apply", *_APPLY, manager, "--dry-run=server", *_AS_JSON)
        tried = [self._tried(self._run(words, _list(few), only_reads=True)) for few in _few(objects)]
        return Tried(
            tuple(body for one in tried for body in one.objects), tuple(e for one in tried for e in one.errors)
        )

    def apply(self, body: Body, manager: str) -> Body:
        """The object as it is with our fields in it.

        Raises:
            Conflict: another field manager owns one of them; nothing was changed.
            ChangeFailed: the API server did not take it.
        """
        done = self._run(("apply", *_APPLY, manager, _FOR_REAL, *_AS_JSON), json.dumps(body).encode(), only_reads=False)
        if not done.ok:
            raise self._failure(done)
        return _object(done)

    def patch(self, place: Body, patch: Sequence[Mapping[str, Any]], manager: str) -> None:
        """Change an object by a JSON patch (RFC 6902), as ``manager``.

        Raises:
            Conflict: a test of the patch fails, since the object was changed meanwhile; nothing was changed.
            ChangeFailed: the API server refuses the result.
        """
        where = ("--namespace", place["metadata"]["namespace"]) if "namespace" in place["metadata"] else ()
        resource = f"{place['kind']}.{place['apiVersion'].rpartition('/')[0]}".removesuffix(".").lower()
        words = ("patch", resource, place["metadata"]["name"], *where, "--type=json", "-p", json.dumps(patch))
        done = self._run((*words, _FOR_REAL, "--field-manager", manager, _REQUEST_TIMEOUT), b"", only_reads=False)
        if b"rejected our request due to an error in our request" in done.stderr:
            raise Conflict(
                f"{place['kind']} {place['metadata']['name']} was changed meanwhile",
                why="somebody wrote it after gpunode had read it; gpunode changed nothing",
                hint="run the same command again",
            )
        if not done.ok:
            raise self._failure(done)

    def delete(self, *bodies: Body) -> None:
        """The objects are gone, and what they owned.

        Raises:
            ChangeFailed: they are not.
        """
        asked = ("--ignore-not-found", "--cascade=foreground", "--wait=true", "-f", "-")
        words = ("delete", _FOR_REAL, *self._unasked, *asked)
        places = [{"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": _place(one)} for one in bodies]
        done = self._run((*words, "--timeout=120s"), _list(places), only_reads=False, timeout_s=150.0)
        if not done.ok:
            raise self._failure(done)

    @property
    def _unasked(self) -> Sequence[str]:
        """By which kubectl deletes without a question, which a user's kuberc (1.33) may have made its default."""
        client = version_of(_git_version(self._versions, "clientVersion"))
        return ("--interactive=false",) if client is not None and client >= _KUBERC else ()

    def taint(self, node: str, taint: str) -> None:
        """The Node has the taint, or with ``-`` at its end no longer; taints of others stay.

        Raises:
            Conflict: it has the same key and effect with another value.
            ChangeFailed: the API server did not take it.
        """
        done = self._run(
            ("taint", "nodes", node, taint, _FOR_REAL, "--overwrite=false", _REQUEST_TIMEOUT), b"", only_reads=False
        )
        said = done.stderr.decode("utf-8", "replace")
        if done.ok or (taint.endswith("-") and "not found" in said and "taint" in said):
            return
        if "already has" in said:
            raise Conflict(
                f"Node {node} has another taint with the key and effect of {taint}",
                why="somebody else set it, and gpunode does not change it",
                hint=f"look at it, then choose: {self.command('describe', 'node', node)}",
            )
        raise self._failure(done)

    def create(self, bodies: Sequence[Body]) -> Tried:
        """The new objects, and what the API server says of those that it did not take.

        Raises:
            as ``identity``.
        """
        done = self._run(("create", "-f", "-", _FOR_REAL, *_AS_JSON), _list(bodies), only_reads=False)
        return self._tried(done)

    def _tried(self, done: Finished) -> Tried:
        said = () if done.ok else tuple(errors(done.stderr.decode("utf-8", "replace").strip()))
        if not done.ok and not (said and is_about_objects(done)):
            raise self._failure(done)
        return Tried(_items(done.stdout), said)

    def logs(self, namespace: str, pod: str) -> str:
        """The end of what a pod's containers printed.

        Raises:
            GpunodeError: it cannot be had.
        """
        words = ("logs", "--namespace", namespace, pod, "--all-containers", "--tail=50", _REQUEST_TIMEOUT)
        done = self._run(words, b"", only_reads=True)
        if not done.ok:
            raise self._failure(done)
        return done.stdout.decode("utf-8", "replace")

    def kubelet_settings(self, node: str) -> Mapping[str, Any]:
        """The configuration that the node's kubelet runs with (``kubelet.config.k8s.io/v1beta1``).

        Raises:
            GpunodeError: it cannot be had.
        """
        done = self._run(("get", "--raw", f"/api/v1/nodes/{node}/proxy/configz"), b"", only_reads=True)
        if not done.ok:
            raise self._failure(done)
        found: Mapping[str, Any] = _parsed(done.stdout).get("kubeletconfig") or {}
        return found

    def allowed(self, wishes: Sequence[tuple[str, str, str, str]]) -> tuple[bool, ...]:
        """Whether the credential may do each of ``wishes``: verb, API group, resource, namespace."""
        reviews = [
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"verb": verb, "group": group, "resource": what, "namespace": where}},
            }
            for verb, group, what, where in wishes
        ]
        if not reviews:
            return ()
        done = self._run(("create", "-f", "-", _FOR_REAL, *_AS_JSON), _list(reviews), only_reads=True)
        if not done.ok:
            raise self._failure(done)
        return tuple(bool(one.get("status", {}).get("allowed")) for one in _items(done.stdout))

    def _json(self, *words: str) -> Any:
        return _parsed(self._answer(*words))

    def _answer(self, *words: str, stdin: bytes = b"") -> bytes:
        done = self._run((*words, "-o", "json"), stdin, only_reads=True)
        if not done.ok:
            raise self._failure(done)
        return done.stdout

    def _failure(self, done: Finished) -> GpunodeError:
        return failure(done, self.command, where_to_install)

    def _run(self, words: Sequence[str], stdin: bytes, *, only_reads: bool, timeout_s: float = _READ_S) -> Finished:
        argv = (*self.kubectl, *words)
        return self._runner.run(
            argv,
            timeout_s=timeout_s,
            stdin=stdin,
            env=caller_environment(),
            limit_bytes=_LARGEST_ANSWER,
            only_reads=only_reads,
        )


_SHORT_NODES: Final = (
    '{range .items[*]}{"{"}"apiVersion":"v1","kind":"Node","metadata":{.metadata},"spec":{.spec},'
    '"status":{"{"}"nodeInfo":{.status.nodeInfo}{"}}"}{end}'
)
_METADATA: Final = '{range .items[*]}{"{"}"metadata":{.metadata}{"}"}{end}'
# A user's kuberc can set defaults, and only a flag overrides them.
_KUBERC: Final = (1, 33)
_FOR_REAL: Final = "--dry-run=none"
_APPLY: Final = ("--server-side", "--force-conflicts=false", _REQUEST_TIMEOUT, "-f", "-", "--field-manager")
_AS_JSON: Final = ("--show-managed-fields", "-o", "json")


def find_kubectl() -> tuple[str, ...]:
    """Return the words that start the user's own kubectl, or one that a Kubernetes distribution brings.

    Raises:
        ProgramMissing: there is none.
    """
    for name, *words in _KUBECTLS:
        if program := find_program(name):
            return (program, *words)
    raise ProgramMissing(
        "kubectl was not found",
        why="gpunode reaches clusters through the user's own kubectl",
        hint=_install_hint(),
    )


def _install_hint() -> str:
    return (
        f"put a kubectl of your cluster's version into {where_to_install('kubectl')}: "
        "https://kubernetes.io/docs/tasks/tools\nnot that of Debian 12 (kubernetes-client), which is 1.20 and too old"
    )


def _refuse_missing_file(kubeconfig: str) -> None:
    """Refuse a kubeconfig that is not there: kubectl ignores one of $KUBECONFIG, and then knows no cluster.

    Raises:
        UsageError: no file that was named is there.
    """
    named = [kubeconfig] if kubeconfig else [one for one in os.environ.get("KUBECONFIG", "").split(":") if one]
    if named and not any(map(os.path.lexists, named)):
        raise UsageError(
            f"there is no kubeconfig {' or '.join(named)}",
            why=f"{'--kubeconfig' if kubeconfig else '$KUBECONFIG'} names it",
            hint="name the file by which kubectl reaches your cluster: --kubeconfig FILE",
        )


def _git_version(versions: Mapping[str, Any], whose: str) -> str:
    return str((versions.get(whose) or {}).get("gitVersion", ""))


def _few(objects: Sequence[Body]) -> Iterator[Sequence[Body]]:
    """The objects in parts: kubectl asks for each by itself, 50 in a second, and has a minute for all."""
    return (objects[at : at + _MOST] for at in range(0, len(objects), _MOST))


def _place(body: Body) -> Mapping[str, str]:
    metadata = body["metadata"]
    return {key: metadata[key] for key in ("name", "namespace") if metadata.get(key)}


def _list(objects: Sequence[Body]) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()


def _parsed(data: bytes) -> Any:
    """The one object of kubectl's answer."""
    return next(_stream(data), {})


def _stream(data: bytes) -> Iterator[Any]:
    """The objects of kubectl's answer, which prints what it changes one after the other."""
    text, decoder = data.decode("utf-8", "replace").strip(), json.JSONDecoder()
    while text:
        try:
            found, end = decoder.raw_decode(text)
        except ValueError as error:
            hint = "check kubectl itself: kubectl version"
            why = f"it is not JSON: {error}"
            raise Undetermined("kubectl's answer cannot be read", why=why, hint=hint) from error
        yield found
        text = text[end:].lstrip()


def _object(done: Finished) -> Body:
    body: Body = _parsed(done.stdout)
    return body


def _items(data: bytes) -> tuple[Body, ...]:
    """The objects of kubectl's answer, be it one, several, a list, or nothing."""
    return tuple(
        one
        for found in _stream(data)
        for one in (found["items"] if str(found.get("kind", "")).endswith("List") else (found,))
    )
