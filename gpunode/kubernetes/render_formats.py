"""Rendered objects as files, in one of several forms. Pure, and deterministic to the byte.

Source of kustomize's fields: api/types/kustomization.go and helmchartargs.go of kubernetes-sigs/kustomize (2026-08-20).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpunode import yaml
from gpunode.catalog.charts import chart
from gpunode.command import command
from gpunode.kubernetes import gitops
from gpunode.kubernetes.model import (
    HEADER,
    KIND_CONFIG_FILE_NAME,
    LABELS_FIELD_MANAGER,
    ChartRelease,
    NodeEdit,
    RenderedCluster,
    RenderedObject,
)
from gpunode.kubernetes.objects import EXTRAS_WAVE, can_nfd_set_label
from gpunode.kubernetes.render import GITOPS_FORMS, RenderFormat
from gpunode.kubernetes.user_pod import format_user_pod

_TAINTS_TEMPLATE: Final = '{range .spec.taints[*]}{.key}={.value}:{.effect}{"\\n"}{end}'
# Folders below the output folder, which also contains files.
OUTPUT_FOLDERS: Final = ("manifests", "helm", "applications", gitops.RELEASES, gitops.RULES)
# The paths of rendered files below the output folder.
RENDERED_PATHS: Final = re.compile(
    r"(?:manifests|rules)/\d\d-[a-z0-9.-]+\.yaml|helm/[a-z-]+\.values\.yaml|(?:applications|releases)/[a-z-]+\.yaml"
    r"|(?:test-pod|kustomization|kind-config|plugin-config|argocd|flux)\.yaml|(?:apply|kind)\.sh|README\.md"
)


def make_files(rendered: RenderedCluster, form: RenderFormat) -> Mapping[str, str]:
    """Return the contents of the files by their paths below the output folder."""
    contents = dict(_object_files(rendered, form))
    match form:
        case "argocd":
            contents |= _argocd_files(rendered, tuple(contents))
        case "flux":
            contents |= _flux_files(rendered, tuple(contents))
        case _:
            for release in rendered.releases if form != "kustomize" else ():
                about = f"{HEADER}\n{release.why}\nChart {release.chart} {release.version} from {release.repository}"
                contents[f"helm/{release.name}.values.yaml"] = yaml.render_document(release.values, about)
    if rendered.test_pod:
        contents["test-pod.yaml"] = _join_objects(rendered.test_pod, "manifests")
    if form == "kustomize":
        contents |= _kustomization_files(rendered, sorted(contents))
    if kind := rendered.kind:
        contents[KIND_CONFIG_FILE_NAME] = yaml.render_document(
            kind.config, f"{HEADER}\nThe NVIDIA runtime reads these mounts as requests for GPUs."
        )
        contents["kind.sh"] = f"#!/bin/sh\n# {HEADER}\n{kind.script}"
    contents["apply.sh"] = _apply_script(rendered, form, tuple(contents))
    contents["README.md"] = f"# {HEADER}\n\n{render_readme(rendered, form)}"
    return contents


def has_header(text: str) -> bool:
    """Return whether ``make_files`` made the file with this content."""
    return f"# {HEADER}" in text.split("\n", 2)[:2]


def may_leave_objects(path: str, rendered: RenderedCluster) -> bool:
    """Return whether an old file, once applied, made objects that are no longer ``rendered``."""
    folder, _, name = path.rpartition("/")
    if folder in {gitops.BASE, gitops.RULES}:
        return re.sub(r"^\d\d-|\.yaml$", "", name) not in set(map(_file_stem, rendered.objects))
    if folder == "helm":
        return name.removesuffix(".values.yaml") not in {release.name for release in rendered.releases}
    return bool(folder) or path in {"argocd.yaml", "flux.yaml", "plugin-config.yaml"}


def _object_files(rendered: RenderedCluster, form: RenderFormat) -> Iterator[tuple[str, str]]:
    """Yield the plain objects, one file each; kustomize generates the ConfigMaps itself."""
    objects = (one for one in rendered.objects if form != "kustomize" or one.kind != "ConfigMap")
    for number, one in enumerate(objects, 1):
        folder = gitops.RULES if form == "flux" and one.wave > EXTRAS_WAVE else gitops.BASE
        yield f"{folder}/{number:02d}-{_file_stem(one)}.yaml", _join_objects([one], form)


def _file_stem(rendered_object: RenderedObject) -> str:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", rendered_object.kind).lower()
    return f"{kind}-{rendered_object.name}"


def _join_objects(objects: Sequence[RenderedObject], form: RenderFormat) -> str:
    bodies = (gitops.add_sync_wave(one) if form in {"argocd", "kustomize"} else one.body for one in objects)
    texts = [yaml.render_document(body, one.why) for one, body in zip(objects, bodies, strict=True)]
    return f"# {HEADER}\n" + "---\n".join(texts)


def _join_documents(bodies: Sequence[Mapping[str, Any]], about: str) -> str:
    first, *rest = bodies
    return "---\n".join((yaml.render_document(first, about), *map(yaml.render_document, rest)))


def _argocd_files(rendered: RenderedCluster, plain: Sequence[str]) -> Mapping[str, str]:
    """Return the Applications, and the kustomization that limits Argo CD to them."""
    options = rendered.argocd
    contents = {}
    for one in rendered.releases:
        is_oci = one.repository.startswith("oci://")
        note = "\nThe repository is an OCI registry: add it to Argo CD with enableOCI." if is_oci else ""
        about = f"{HEADER}\n{one.why}{note}"
        contents[f"applications/{one.name}.yaml"] = yaml.render_document(gitops.chart_application(one, options), about)
    if plain and gitops.is_remote_cluster(options):
        about = f"{HEADER}\nApplies the objects in manifests/ to the cluster that has the GPUs."
        contents[f"applications/{gitops.PLAIN_APPLICATION_NAME}.yaml"] = yaml.render_document(
            gitops.objects_application(options), about
        )
        plain = ()
    body = make_kustomization((*plain, *sorted(contents)))
    contents["kustomization.yaml"] = yaml.render_document(body, f"{HEADER}\nWhat Argo CD applies from this folder.")
    if options.repository:
        about = f"{HEADER}\nThe Application of this folder: apply it once, where Argo CD runs."
        contents["argocd.yaml"] = yaml.render_document(gitops.folder_application(options), about)
    return contents


def _flux_files(rendered: RenderedCluster, plain: Sequence[str]) -> Mapping[str, str]:
    """Return the releases, and the Kustomizations with which Flux applies the folders in order."""
    contents = {
        f"{gitops.RELEASES}/{one.name}.yaml": _join_documents(gitops.release_objects(one), f"{HEADER}\n{one.why}")
        for one in rendered.releases
    }
    present = {path.partition("/")[0] for path in (*plain, *contents)}
    folders = [folder for folder in (gitops.BASE, gitops.RELEASES, gitops.RULES) if folder in present]
    contents["flux.yaml"] = _join_documents(
        tuple(gitops.kustomizations(rendered.flux, folders, rendered.releases)), HEADER
    )
    # Excludes the test pod if Flux applies the entire parent folder.
    contents["kustomization.yaml"] = yaml.render_document(make_kustomization(["flux.yaml"]), HEADER)
    return contents


def _kustomization_files(rendered: RenderedCluster, paths: Sequence[str]) -> Mapping[str, str]:
    configs = [one for one in rendered.objects if one.kind == "ConfigMap"]
    resources = [path for path in paths if path.startswith("manifests/")]
    body = make_kustomization(resources, configs, rendered.releases)
    about = f"{HEADER}\nThe charts need helm: kubectl kustomize --enable-helm ." if rendered.releases else HEADER
    contents = {"kustomization.yaml": yaml.render_document(body, about)}
    for config in configs:
        (text,) = config.body["data"].values()
        contents[PLUGIN_CONFIG_FILE] = f"# {HEADER}\n# {config.why}\n{text}"
    return contents


def _apply_script(rendered: RenderedCluster, form: RenderFormat, paths: Sequence[str]) -> str:
    """Return a script of the exact commands in order."""
    kubectl = _kubectl_command(rendered)
    lines = ["#!/bin/sh", f"# {HEADER}", "# Applies everything, in order.", "set -eu", 'cd "$(dirname "$0")"', ""]
    lines += ["./kind.sh", ""] if rendered.kind else []
    # Labels come first, since the pods select their nodes by them.
    for edit in rendered.nodes:
        lines += [f"# {edit.why}", *_node_edit_commands(edit, kubectl)]
    lines += ["", *_apply_commands(rendered, form, paths)]
    if rendered.test_pod:
        lines += ["", "# A pod that computes on a GPU:", f"#   {command(*kubectl, 'apply', '-f', 'test-pod.yaml')}"]
    for own in rendered.user_pods:
        lines += ["", f"cat <<'END'\n\nYour own pod {own.why}:\n{format_user_pod(own)}END"]
    return "\n".join(lines) + "\n"


def _node_edit_commands(edit: NodeEdit, kubectl: Sequence[str]) -> Iterator[str]:
    """Yield the commands for a Node; they fail if somebody else set another value."""
    if edit.labels:
        metadata = {"name": edit.node, "labels": edit.labels}
        # Applying a Node that does not exist would create it.
        yield f"{command(*kubectl, 'get', 'node', edit.node)} > /dev/null"
        apply = command(*kubectl, "apply", "--server-side", "--field-manager", LABELS_FIELD_MANAGER, "-f", "-")
        yield f"{apply} <<'END'\n{yaml.render_document({'apiVersion': 'v1', 'kind': 'Node', 'metadata': metadata})}END"
    if edit.taint:
        # A Node's taints are one list: applying ours would remove all others.
        key_value, _, effect = edit.taint.rpartition(":")
        taint_text = f"{key_value}{'' if '=' in key_value else '='}:{effect}"
        read_taints = command(*kubectl, "get", "node", edit.node, "-o", f"jsonpath={_TAINTS_TEMPLATE}")
        yield f"{read_taints} | {command('grep', '-qxF', taint_text)} ||"
        yield f"    {command(*kubectl, 'taint', 'node', edit.node, edit.taint)}"


def _apply_commands(rendered: RenderedCluster, form: RenderFormat, paths: Sequence[str]) -> Iterator[str]:
    apply = (*_kubectl_command(rendered), "apply", "--server-side", "--field-manager", "gpunode")
    match form:
        case "kustomize" if rendered.releases:
            build = command(*_kubectl_command(rendered), "kustomize", "--enable-helm", ".")
            yield f"apply() {{ {build} | {command(*apply, '-f', '-')}; }}"
            yield "# The first time, objects may be applied before the chart that defines their kind."
            yield "apply || { sleep 10; apply; }"
        case "kustomize":
            yield command(*apply, "-k", ".")
        case "argocd" if gitops.is_remote_cluster(rendered.argocd):
            yield ': "${ARGOCD_CONTEXT:?set it to the context of the cluster in which Argo CD runs}"'
            for path in paths:
                if path.startswith("applications/"):
                    yield f'kubectl --context "$ARGOCD_CONTEXT" {command(*apply[1:], "-f", path)}'
        case "flux":
            yield command(*apply, "-f", "flux.yaml")
        case _:
            # Apply files individually: files that others put into the folder are not ours to apply.
            folders = ("manifests/", "applications/")
            yield from (command(*apply, "-f", path) for path in paths if path.startswith(folders))
    helm = ("helm", "--kube-context", rendered.kind.context) if rendered.kind else ("helm",)
    for release in rendered.releases if form in {"manifests", "helm"} else ():
        where = ("--namespace", release.namespace, "--version", release.version)
        install = (*helm, "upgrade", "--install", release.name, *release.chart_words, *where)
        yield from ("", f"# {release.why}", command(*install, "--values", f"helm/{release.name}.values.yaml", "--wait"))


def _kubectl_command(rendered: RenderedCluster) -> Sequence[str]:
    """Return kubectl; for a kind cluster with that cluster's context, whatever the current one is."""
    return ("kubectl", "--context", rendered.kind.context) if rendered.kind else ("kubectl",)


PLUGIN_CONFIG_FILE: Final = "plugin-config.yaml"


def make_kustomization(
    resources: Iterable[str], configs: Sequence[RenderedObject] = (), releases: Sequence[ChartRelease] = ()
) -> Mapping[str, Any]:
    """Return the kustomization of these files and charts; ``configs`` come from ``plugin-config.yaml``."""
    body = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(resources)}
    # kustomize adds a hash to the names of generated objects, and renames references to them.
    generators = [
        {
            "name": config.name,
            "namespace": config.namespace,
            "files": [f"{key}={PLUGIN_CONFIG_FILE}" for key in config.body["data"]],
            "options": {key: gitops.add_sync_wave(config)["metadata"][key] for key in ("labels", "annotations")},
        }
        for config in configs
    ]
    charts = [
        {
            "name": release.chart,
            "repo": release.repository,
            "version": release.version,
            "releaseName": release.name,
            "namespace": release.namespace,
            "includeCRDs": True,
            # kustomize applies a hook like any other object; most charts' hooks are for cleaning up.
            "skipHooks": not chart(release.chart).needs_hooks,
            "valuesInline": release.values,
        }
        for release in releases
    ]
    return body | {key: held for key, held in (("configMapGenerator", generators), ("helmCharts", charts)) if held}


def render_readme(rendered: RenderedCluster, form: RenderFormat) -> str:
    """Return the text below the first line."""
    paragraphs = [_wrap_text(one) for one in _usage_lines(rendered, form)]
    if form in GITOPS_FORMS:
        paragraphs += _explain_node_labels(rendered)
    if rendered.test_pod:
        text = (
            "`test-pod.yaml` is not applied with the rest: `kubectl apply -f test-pod.yaml` runs a pod that adds two "
            "vectors on a GPU, and whose log ends with `Test PASSED`."
        )
        paragraphs.append(_wrap_text(text))
    for own in rendered.user_pods:
        paragraphs += [_wrap_text(f"Your own pod {own.why}:"), f"```yaml\n{format_user_pod(own)}```"]
    return "\n\n".join(paragraphs) + "\n"


def _wrap_text(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _usage_lines(rendered: RenderedCluster, form: RenderFormat) -> Iterator[str]:
    argocd, flux = rendered.argocd, rendered.flux
    uses_helm = rendered.releases and form not in {"argocd", "flux"}
    yield f"`./apply.sh` applies everything in order. It needs kubectl{' and helm' if uses_helm else ''}."
    match form:
        case "kustomize":
            if not rendered.releases:
                yield "kustomize: `kubectl apply --server-side -k .`. Argo CD and Flux take this folder as it is."
                return
            yield (
                "kustomize: `kubectl kustomize --enable-helm .` prints everything. It needs helm, and keeps the charts "
                "in `charts/`: do not commit that folder. A chart defines the kinds of some objects, so the first "
                "apply may have to be repeated."
            )
            yield (
                "Argo CD: set `kustomize.buildOptions: --enable-helm` in its ConfigMap `argocd-cm`. Flux builds no "
                "charts with kustomize: render `--format flux` for it."
            )
        case "argocd" if argocd.repository:
            yield (
                f"Argo CD: commit this folder to `{argocd.repository}` as `{argocd.path}`, then apply `argocd.yaml` "
                "once, in the cluster in which Argo CD runs. It applies the other objects, in the order of their sync "
                "waves."
            )
        case "argocd":
            yield (
                "Argo CD: commit this folder and make an Application of it. Its `kustomization.yaml` names what Argo "
                "CD takes. With `repository` in `[kubernetes.argocd]` of the recipe gpunode renders that "
                "Application, too."
            )
        case "flux":
            yield (
                f"Flux: commit this folder as `{flux.path}` to the repository of the GitRepository `{flux.source}` in "
                f"the namespace `{flux.namespace}`. Then apply `flux.yaml` once, or have Flux apply it: it applies the "
                "other folders, one after the other."
            )
        case "manifests" | "helm":
            yield "`manifests/` holds plain objects." + (
                " `helm/` holds the values of the charts; `apply.sh` names the charts with their versions."
                if rendered.releases
                else ""
            )


def _explain_node_labels(rendered: RenderedCluster) -> Iterator[str]:
    """Yield how the nodes get their labels and taints if nobody runs apply.sh."""
    rules = [rule for one in rendered.objects if one.kind == "NodeFeatureRule" for rule in one.body["spec"]["rules"]]
    if rules:
        yield _wrap_text("Node Feature Discovery labels the nodes, by the NodeFeatureRule in this folder.")
    edits: dict[tuple[str, ...], list[str]] = {}
    for edit in rendered.nodes:
        if labels := [f"{key}={value}" for key, value in edit.labels.items() if not (rules and can_nfd_set_label(key))]:
            edits.setdefault(("label", *labels), []).append(edit.node)
        if edit.taint and not any("taints" in rule for rule in rules):
            edits.setdefault(("taint", edit.taint), []).append(edit.node)
    if edits:
        verbs = {verb for verb, *_ in edits}
        what = "labels" if "label" in verbs else "taints"
        text = "" if rules else "The pods run only on labelled nodes. "
        yield _wrap_text(
            f"{text}`apply.sh` sets the nodes' {what}. So does the kubelet when its node joins, if `gpunode setup` ran "
            "there before, with `node_registration` in `[kubernetes]` of the recipe. For nodes without either, once:"
        )
        lines = [command("kubectl", verb, "node", *nodes, *words) for (verb, *words), nodes in edits.items()]
        yield "\n".join(("```sh", *lines, "```"))
