"""Rendered objects → files, in the form in which they are delivered. Pure, and the same bytes for the same input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpunode.command import command
from gpunode.kubernetes import yaml
from gpunode.kubernetes.model import KIND_CONFIG, LABELS_MANAGER, NodeEdit, Object, Release, Rendered
from gpunode.kubernetes.render import Form

# The first line of every file: by it gpunode knows its own files when it renders again.
HEADER: Final = "Rendered by gpunode; render it again instead of editing it."
_ARGO: Final = "argocd.argoproj.io"
# Argo CD applies wave 0 by default; ours come before what a team adds without a wave.
_FIRST_WAVE: Final = -3
_TAINTS: Final = '{range .spec.taints[*]}{.key}={.value}:{.effect}{"\\n"}{end}'
# Where rendered files stand.
_PLACES: Final = re.compile(
    r"manifests/\d\d-[a-z0-9.-]+\.yaml|helm/[a-z-]+\.values\.yaml|applications/[a-z-]+\.yaml"
    r"|test-pod\.yaml|kustomization\.yaml|kind-config\.yaml|(?:apply|kind)\.sh"
)


def files(rendered: Rendered, form: Form) -> Mapping[str, str]:
    """The files by their paths below the output folder."""
    made: dict[str, str] = {}
    for number, one in enumerate(rendered.objects, 1):
        made[f"manifests/{number:02d}-{_slug(one)}.yaml"] = _file([one], form)
    made |= {f"helm/{one.name}.values.yaml": _values(one) for one in rendered.releases if form != "argocd"}
    made |= {f"applications/{one.name}.yaml": _application(one) for one in rendered.releases if form == "argocd"}
    if rendered.test_pod:
        made["test-pod.yaml"] = _file(rendered.test_pod, "manifests")
    if form == "kustomize":
        made["kustomization.yaml"] = _kustomization(sorted(made))
    if kind := rendered.kind:
        made[KIND_CONFIG] = yaml.document(kind.config, f"{HEADER}\nThe NVIDIA runtime takes the mounts for requests.")
        made["kind.sh"] = f"#!/bin/sh\n# {HEADER}\n{kind.script}"
    made["apply.sh"] = _commands(rendered, form, tuple(made))
    return made


def is_ours(path: str, text: str) -> bool:
    """Whether a file at ``path`` below the output folder is one that ``files`` made before."""
    return _PLACES.fullmatch(path) is not None and f"# {HEADER}" in text.split("\n", 2)[:2]


def _slug(one: Object) -> str:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", one.kind).lower()
    return f"{kind}-{one.name}"


def _file(every: Sequence[Object], form: Form) -> str:
    texts = [yaml.document(_body(one, form), one.why) for one in every]
    return f"# {HEADER}\n" + "---\n".join(texts)


def _body(one: Object, form: Form) -> Mapping[str, Any]:
    if form != "argocd":
        return one.body
    # For each object, not for all by kustomize: that would put the wave into pod templates and restart the pods.
    metadata = {**one.body["metadata"], "annotations": {f"{_ARGO}/sync-wave": str(_FIRST_WAVE + one.wave)}}
    return {**one.body, "metadata": metadata}


def _values(release: Release) -> str:
    about = f"{HEADER}\n{release.why}\nChart {release.chart} {release.version} from {release.repository}"
    return yaml.document(release.values, about)


def _application(release: Release) -> str:
    """An Application of Argo CD that holds the release with its values."""
    is_oci = release.repository.startswith("oci://")
    source = {
        # Argo CD wants an OCI registry without its scheme.
        "repoURL": release.repository.removeprefix("oci://"),
        "chart": release.chart,
        "targetRevision": release.version,
        "helm": {"releaseName": release.name, "valuesObject": release.values},
    }
    options = ["CreateNamespace=true", "ServerSideApply=true", "SkipDryRunOnMissingResource=true"]
    spec: dict[str, Any] = {
        "project": "default",
        "destination": {"server": "https://kubernetes.default.svc", "namespace": release.namespace},
        "source": source,
        "syncPolicy": {"automated": {"prune": True, "selfHeal": True}, "syncOptions": options},
    }
    if release.chart == "gpu-operator":
        # The API server fills in defaults of the ClusterPolicy that the chart leaves out (gpu-operator issue 2795).
        policy = {"group": "nvidia.com", "kind": "ClusterPolicy", "jsonPointers": ["/spec/cdi/default", "/status"]}
        spec["ignoreDifferences"] = [policy]
    body = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {
            "name": release.name,
            "namespace": "argocd",
            "annotations": {f"{_ARGO}/sync-wave": str(_FIRST_WAVE + release.wave)},
        },
        "spec": spec,
    }
    note = "\nThe repository is an OCI registry: add it to Argo CD with enableOCI." if is_oci else ""
    return yaml.document(body, f"{HEADER}\n{release.why}{note}")


def _kustomization(paths: Sequence[str]) -> str:
    resources = [path for path in paths if path.startswith("manifests/")]
    body = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}
    return yaml.document(body, f"{HEADER}\nkubectl apply --server-side -k . applies the plain objects, not the charts.")


def _commands(rendered: Rendered, form: Form, paths: Sequence[str]) -> str:
    """A script of the exact commands, in their order."""
    kubectl = _kubectl(rendered)
    lines = ["#!/bin/sh", f"# {HEADER}", "# Applies everything, in order.", "set -eu", 'cd "$(dirname "$0")"', ""]
    lines += ["./kind.sh", ""] if rendered.kind else []
    # Labels first: by them the pods find their nodes.
    for edit in rendered.nodes:
        lines += [f"# {edit.why}", *_edit(edit, kubectl)]
    lines += ["", *_apply(rendered, form, paths)]
    if rendered.test_pod:
        lines += ["", "# A pod that computes on a GPU:", f"#   {command(*kubectl, 'apply', '-f', 'test-pod.yaml')}"]
    return "\n".join(lines) + "\n"


def _edit(edit: NodeEdit, kubectl: Sequence[str]) -> Iterator[str]:
    """The commands for a Node, which fail where somebody else set another value."""
    if edit.labels:
        metadata = {"name": edit.node, "labels": edit.labels}
        # To apply a Node that does not exist would make one.
        yield f"{command(*kubectl, 'get', 'node', edit.node)} > /dev/null"
        apply = command(*kubectl, "apply", "--server-side", "--field-manager", LABELS_MANAGER, "-f", "-")
        yield f"{apply} <<'END'\n{yaml.document({'apiVersion': 'v1', 'kind': 'Node', 'metadata': metadata})}END"
    if edit.taint:
        # A Node's taints are one list: applying ours would remove everybody else's.
        named, _, effect = edit.taint.rpartition(":")
        written = f"{named}{'' if '=' in named else '='}:{effect}"
        there = command(*kubectl, "get", "node", edit.node, "-o", f"jsonpath={_TAINTS}")
        yield f"{there} | {command('grep', '-qxF', written)} ||"
        yield f"    {command(*kubectl, 'taint', 'node', edit.node, edit.taint)}"


def _apply(rendered: Rendered, form: Form, paths: Sequence[str]) -> Iterator[str]:
    apply = (*_kubectl(rendered), "apply", "--server-side", "--field-manager", "gpunode")
    if form == "kustomize" and rendered.objects:
        yield command(*apply, "-k", ".")
    else:
        # One by one: what others put into the folder is not ours to apply.
        yield from (command(*apply, "-f", path) for path in paths if path.startswith(("manifests/", "applications/")))
    for release in rendered.releases if form != "argocd" else ():
        yield from ("", f"# {release.why}", helm_command(release, rendered.kind.context if rendered.kind else ""))


def _kubectl(rendered: Rendered) -> Sequence[str]:
    """kubectl; for a cluster of kind with the context that it makes, whatever the current one is."""
    return ("kubectl", "--context", rendered.kind.context) if rendered.kind else ("kubectl",)


def helm_command(release: Release, context: str = "") -> str:
    """The command that installs the release, or brings it to these values."""
    where = ("--namespace", release.namespace, "--create-namespace")
    version = ("--version", release.version, "--values", f"helm/{release.name}.values.yaml", "--wait")
    is_oci = release.repository.startswith("oci://")
    chart = [f"{release.repository}/{release.chart}"] if is_oci else [release.chart, "--repo", release.repository]
    cluster = ("--kube-context", context) if context else ()
    return command("helm", *cluster, "upgrade", "--install", release.name, *chart, *where, *version)
