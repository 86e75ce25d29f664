"""kubectl for an API server in memory: the commands that gpunode uses, with kubectl's own answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpunode.host.process import FinishedCommand, Runner
from tests.fakes.api_server import RESOURCES, ApiError, ApiServer, Body

_WITH_VALUE: Final = frozenset(
    {"-o", "-f", "-p", "--field-manager", "--namespace", "--selector", "--field-selector", "--context", "--kubeconfig"}
)
_FILTER: Final = re.compile(r'\{range \.items\[(?:\*|\?\(@\.([\w.]+)=="([^"]*)"\))\]')
_ADVICE: Final = """
Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
* You may co-own fields by updating your manifest to match the existing
  value; in this case, you'll become the manager if the other manager(s)
  stop managing the field (remove it from their configuration).
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts"""


class Kubectl(Runner):
    """Answers kubectl's command lines from ``server``.

    Attributes:
        context: the kubeconfig's current context, which selects ``server``.
        others: the servers of its other contexts.
        calls: the arguments of each call.
        intercept: called with each of them; its result, if any, is the answer.
        raw: the server's content at a path.
        pod_log: the log of every pod's containers.
    """

    def __init__(self, server: ApiServer, context: str = "lab") -> None:
        super().__init__()
        self.server = server
        self.context = context
        self.others: dict[str, ApiServer] = {}
        self.calls: list[tuple[str, ...]] = []
        self.intercept: Callable[[tuple[str, ...]], FinishedCommand | None] = lambda _: None
        self.raw: dict[str, str] = {}
        self.pod_log = ""

    def switch(self, context: str, server: ApiServer) -> None:
        """Make another context the current one, as ``kubectl config use-context`` does."""
        self.others = {**self.others, self.context: self.server}
        self.context, self.server = context, server

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", **_: Any) -> FinishedCommand:
        """Run as ``Runner.run`` does."""
        words = tuple(argv)[1:]
        self.calls.append(words)
        if answer := self.intercept(words):
            return answer
        command = _Command(self, words, stdin)
        try:
            command.run()
        except ApiError as error:
            command.errors.append(error)
        said = "".join(f"{command.describe(error)}\n" for error in command.errors)
        return FinishedCommand(tuple(argv), 1 if said else 0, command.out.encode(), said.encode(), 0.1, False)


class _Command:
    """A command line.

    Attributes:
        out: standard output.
        errors: the errors of the server or of kubectl itself.
    """

    def __init__(self, kubectl: Kubectl, words: Sequence[str], stdin: bytes) -> None:
        self.kubectl, self.server = kubectl, kubectl.server
        self.options, (self.verb, *self.words) = _parsed(words)
        self.stdin = stdin
        self.out = ""
        self.errors: list[ApiError] = []

    def run(self) -> None:
        """Run the command."""
        context = self.options.get("--context", self.kubectl.context)
        self.server = {**self.kubectl.others, self.kubectl.context: self.server}.get(context, self.server)
        if context not in {self.kubectl.context, *self.kubectl.others}:
            missing = (
                f"cannot locate context {context}" if self.verb == "config" else f'context "{context}" does not exist'
            )
            raise ApiError("", missing)
        getattr(self, f"_{self.verb.replace('-', '_')}")()

    def describe(self, error: ApiError) -> str:
        """Return kubectl's message for an error."""
        if error.reason == "Unauthorized":
            return "error: You must be logged in to the server (Unauthorized)"
        if error.reason == "Invalid":
            return str(error)
        if self.verb == "apply" and error.reason == "Conflict":
            return ("error: " if len(self.errors) == 1 else "") + f"{error}{_ADVICE}"
        doing = {"create": 'error when creating "STDIN": ', "delete": 'error when deleting "STDIN": '}.get(
            self.verb, ""
        )
        return f"Error from server ({error.reason}): {doing}{error}" if error.reason else f"error: {error}"

    def _config(self) -> None:
        user = self.server.user
        name = self.options.get("--context", self.kubectl.context)
        context = {"name": name, "context": {"cluster": "lab", "user": user}}
        cluster = {"name": "lab", "cluster": {"server": "https://127.0.0.1:6443"}}
        self._print({"kind": "Config", "contexts": [context], "clusters": [cluster]})

    def _version(self) -> None:
        self._print({"clientVersion": {"gitVersion": "v1.36.2"}, "serverVersion": {"gitVersion": "v1.36.2"}})

    def _api_resources(self) -> None:
        if "--api-group=nvidia.com" in self.options:
            # A custom resource kind exists here if the cluster has an object of it.
            named = [one for kind, one in RESOURCES.items() if one.group == "nvidia.com" and self.server.peek(kind)]
        else:
            named = [one for one in RESOURCES.values() if one.namespaced]
        self.out = "".join(f"{one.full_name}\n" for one in named)

    def _logs(self) -> None:
        (pod,) = self.words
        self.server.get("Pod", self.options["--namespace"], pod)
        self.out = self.kubectl.pod_log

    def _get(self) -> None:
        if "--raw" in self.options:
            path = self.words[0]
            if path not in self.kubectl.raw:
                raise ApiError("NotFound", "the server could not find the requested resource")
            self.out = self.kubectl.raw[path]
        elif "-f" in self.options:
            found = list(self._each(lambda body: self.server.get(*_place(body))))
            if found:
                self._print(_list(found))
        elif len(self.words) > 1:
            self._print(self.server.get(_kind(self.words[0]), self.options.get("--namespace", ""), self.words[1]))
        else:
            self._print_listed(list(self._listed()))

    def _listed(self) -> Iterator[Body]:
        namespace = "" if "--all-namespaces" in self.options else self.options.get("--namespace", "default")
        for kind in map(_kind, self.words[0].split(",")):
            where = namespace if RESOURCES[kind].namespaced else ""
            for body in self.server.list(kind, where):
                if _is_selected(body, self.options.get("--selector", ""), self.options.get("--field-selector", "")):
                    yield body

    def _print_listed(self, found: Sequence[Body]) -> None:
        form, _, template = self.options["-o"].partition("=")
        if form == "json":
            self._print(_list(found))
            return
        items, _, each = template.removesuffix("{end}").partition("}")
        for path, value in _FILTER.findall(items):
            self.out = "".join(_filled(each, one) for one in found if not path or _at(one, path) == value)

    def _apply(self) -> None:
        manager = self.options["--field-manager"]
        choices = {"force": "--force-conflicts" in self.options, "dry_run": "--dry-run=server" in self.options}
        applied = list(self._each(lambda body: self.server.apply(body, manager, **choices)))
        for one in applied if not self.errors else ():
            self._print(one)

    def _create(self) -> None:
        for one in self._each(self._created):
            self._print(one)

    def _created(self, body: Body) -> Body:
        if body["kind"] == "SelfSubjectAccessReview":
            asked = body["spec"]["resourceAttributes"]
            return {**body, "status": {"allowed": self.server.may(asked["verb"], asked["resource"], asked["name"])}}
        return self.server.create(body, "kubectl-create")

    def _patch(self) -> None:
        kind, name = self.words
        former = self.server.get(_kind(kind), self.options.get("--namespace", ""), name)
        patch = json.loads(self.options["-p"])
        body = _json_patched(former, patch) if "--type=json" in self.options else _merged(former, patch)
        self._print(self.server.update(former, body, self.options.get("--field-manager", "kubectl-patch")))

    def _delete(self) -> None:
        for body in _bodies(self.stdin):
            try:
                self.server.delete(*_place(body))
            except ApiError as error:
                if error.reason != "NotFound":
                    self.errors.append(error)

    def _taint(self) -> None:
        _, name, taint = self.words
        former = self.server.get("Node", "", name)
        there = former.get("spec", {}).get("taints", [])
        key, _, effect = taint.removesuffix("-").rpartition(":")
        key, _, value = key.partition("=")
        new = {"key": key, "effect": effect} | ({"value": value} if value else {})
        same = [one for one in there if (one["key"], one["effect"]) == (key, effect)]
        if taint.endswith("-") and not same:
            raise ApiError("", f'taint "{key}:{effect}" not found')
        if not taint.endswith("-") and same:
            there_is = f"node {name} already has {key} taint(s) with same effect(s)"
            raise ApiError("", f"{there_is} and --overwrite is false")
        taints = [one for one in there if one not in same] + ([] if taint.endswith("-") else [new])
        self.server.update(former, {**former, "spec": {**former.get("spec", {}), "taints": taints}}, "kubectl-taint")

    def _each(self, request: Callable[[Body], Body]) -> Iterator[Body]:
        """Yield the answer for each object on standard input; each refusal is a separate error."""
        for body in _bodies(self.stdin):
            try:
                yield request(body)
            except ApiError as error:
                if not (error.reason == "NotFound" and "--ignore-not-found" in self.options):
                    self.errors.append(error)

    def _print(self, body: Mapping[str, Any]) -> None:
        self.out += json.dumps(body, indent=4) + "\n"


def _parsed(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word in _WITH_VALUE:
            options[word] = left.pop(0)
        elif word.startswith("-"):
            options[word] = ""
        else:
            rest.append(word)
    return options, rest


def _bodies(stdin: bytes) -> list[Body]:
    body = json.loads(stdin)
    return body["items"] if body["kind"] == "List" else [body]


def _list(found: Sequence[Body]) -> Body:
    return {"apiVersion": "v1", "items": list(found), "kind": "List", "metadata": {"resourceVersion": ""}}


def _place(body: Body) -> tuple[str, str, str]:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _kind(resource: str) -> str:
    name, _, group = resource.partition(".")
    for kind, one in RESOURCES.items():
        if name in {one.name, kind.lower()} and group in {"", one.group}:
            return kind
    raise ApiError("", f'the server doesn\'t have a resource type "{name}"')


def _is_selected(body: Body, labels: str, fields: str) -> bool:
    there = body["metadata"].get("labels", {})
    for wanted in filter(None, labels.split(",")):
        name, equals, value = wanted.partition("=")
        if name not in there or (equals and there[name] != value):
            return False
    name, _, value = fields.partition("=")
    return not name or body.get("spec", {}).get(name.removeprefix("spec.")) == value


def _filled(template: str, body: Body) -> str:
    """Return the template of a jsonpath with the values of ``body``."""

    def value(found: re.Match[str]) -> str:
        if found[2]:
            return found[2]
        there = _at(body, found[1])
        return there if isinstance(there, str) else json.dumps(there)

    return re.sub(r'\{\.([\w.\[*\]]+)\}|\{"([{}]+)"\}', value, template)


def _at(body: Any, path: str) -> Any:
    """Return the value at a path of jsonpath; empty if there is none, and several joined."""
    name, _, rest = path.partition(".")
    if not name:
        return body
    if name.endswith("[*]"):
        return " ".join(_at(one, rest) for one in body.get(name.removesuffix("[*]"), ()))
    return _at(body[name], rest) if name in body else ""


def _merged(there: Any, patch: Any) -> Any:
    """Return ``there`` after a merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    kept = dict(there) if isinstance(there, Mapping) else {}
    changed = {name: _merged(kept.get(name), value) for name, value in patch.items()}
    return {name: value for name, value in {**kept, **changed}.items() if value is not None}


def _json_patched(body: Body, patch: Sequence[Mapping[str, Any]]) -> Body:
    """Return ``body`` after a JSON patch (RFC 6902) of tests, removals and replacements."""
    made: Body = json.loads(json.dumps(body))
    for one in patch:
        *path, last = (step.replace("~1", "/").replace("~0", "~") for step in one["path"].split("/")[1:])
        at: Any = made
        for step in path:
            at = at[int(step) if isinstance(at, list) else step]
        if one["op"] == "test" and at[last] != one["value"]:
            raise ApiError(
                "Invalid", "The request is invalid: the server rejected our request due to an error in our request"
            )
        if one["op"] == "remove":
            del at[int(last) if isinstance(at, list) else last]
        if one["op"] == "replace":
            at[last] = one["value"]
    return made
