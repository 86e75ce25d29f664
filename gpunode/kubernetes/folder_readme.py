"""The README.md of a rendered folder: what to do with it, in a few lines. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpunode.command import command
from gpunode.kubernetes.model import Rendered
from gpunode.kubernetes.node_rule import can_label
from gpunode.kubernetes.own_pod import own_pod_text
from gpunode.kubernetes.render import GITOPS_FORMS, Form


def readme(rendered: Rendered, form: Form) -> str:
    """Return the text below the first line."""
    paragraphs = [_filled(one) for one in _usage(rendered, form)]
    if form in GITOPS_FORMS:
        paragraphs += _node_labels(rendered)
    if rendered.test_pod:
        text = (
            "`test-pod.yaml` is not applied with the rest: `kubectl apply -f test-pod.yaml` runs a pod that adds two "
            "vectors on a GPU, and whose log ends with `Test PASSED`."
        )
        paragraphs.append(_filled(text))
    for own in rendered.own_pods:
        paragraphs += [_filled(f"Your own pod {own.why}:"), f"```yaml\n{own_pod_text(own)}```"]
    return "\n\n".join(paragraphs) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _usage(rendered: Rendered, form: Form) -> Iterator[str]:
    uses_helm = rendered.releases and form not in {"argocd", "flux"}
    yield f"`./apply.sh` applies everything in order. It needs kubectl{' and helm' if uses_helm else ''}."
    match form:
        case "kustomize":
            yield from _kustomize_usage(rendered)
        case "argocd":
            yield _argocd_usage(rendered)
        case "flux":
            yield _flux_usage(rendered)
        case "manifests" | "helm":
            yield "`manifests/` holds plain objects." + (
                " `helm/` holds the values of the charts; `apply.sh` names the charts with their versions."
                if rendered.releases
                else ""
            )


def _kustomize_usage(rendered: Rendered) -> Iterator[str]:
    if not rendered.releases:
        yield "kustomize: `kubectl apply --server-side -k .`. Argo CD and Flux take this folder as it is."
        return
    yield (
        "kustomize: `kubectl kustomize --enable-helm .` prints everything. It needs helm, and keeps the charts in "
        "`charts/`: do not commit that folder. A chart defines the kinds of some objects, so the first apply may have "
        "to be repeated."
    )
    yield (
        "Argo CD: set `kustomize.buildOptions: --enable-helm` in its ConfigMap `argocd-cm`. Flux builds no charts with "
        "kustomize: render `--form flux` for it."
    )


def _argocd_usage(rendered: Rendered) -> str:
    place = rendered.argocd
    if place.repository:
        return (
            f"Argo CD: commit this folder to `{place.repository}` as `{place.path}`, then apply `argocd.yaml` once, in "
            "the cluster in which Argo CD runs. It brings the other objects, in the order of their sync waves."
        )
    return (
        "Argo CD: commit this folder and make an Application of it. Its `kustomization.yaml` names what Argo CD takes. "
        "With `repository` in `[kubernetes.argocd]` of the recipe gpunode renders that Application, too."
    )


def _flux_usage(rendered: Rendered) -> str:
    place = rendered.flux
    return (
        f"Flux: commit this folder as `{place.path}` to the repository of the GitRepository `{place.source}` in the "
        f"namespace `{place.namespace}`. Then apply `flux.yaml` once, or have Flux apply it: it brings the other "
        "folders, one after the other."
    )


def _node_labels(rendered: Rendered) -> Iterator[str]:
    """Yield how the nodes get their labels and taints where nobody runs apply.sh."""
    rules = [rule for one in rendered.objects if one.kind == "NodeFeatureRule" for rule in one.body["spec"]["rules"]]
    if rules:
        yield _filled("Node Feature Discovery labels the nodes, by the NodeFeatureRule in this folder.")
    edits: dict[tuple[str, ...], list[str]] = {}
    for edit in rendered.nodes:
        if labels := [f"{key}={value}" for key, value in edit.labels.items() if not (rules and can_label(key))]:
            edits.setdefault(("label", *labels), []).append(edit.node)
        if edit.taint and not any("taints" in rule for rule in rules):
            edits.setdefault(("taint", edit.taint), []).append(edit.node)
    if edits:
        verbs = {verb for verb, *_ in edits}
        what = "labels" if "label" in verbs else "taints"
        text = "" if rules else "The pods run only on labelled nodes. "
        yield _filled(
            f"{text}`apply.sh` sets the nodes' {what}. So does the kubelet when its node joins, if `gpunode setup` ran "
            "there before, with `register` in `[kubernetes]` of the recipe. For nodes without either, once:"
        )
        lines = [command("kubectl", verb, "node", *nodes, *words) for (verb, *words), nodes in edits.items()]
        yield "\n".join(("```sh", *lines, "```"))
