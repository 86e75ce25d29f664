"""The commands below ``gpunode k8s``: a cluster that offers the nodes' GPUs to pods.

As in ``cli/app.py``, only typer is imported here; every command imports what it needs.
"""

# No annotations from __future__ here: see cli/app.py.
# ruff: noqa: I002

from typing import Annotated

import typer

from gpunode.cli.app import (
    ContextOption,
    DetailOption,
    JsonOption,
    KubeconfigOption,
    RecipeArgument,
    YesOption,
    output_options,
    text_option,
)

app = typer.Typer(rich_markup_mode=None)

_NODE_HELP = "a capture of a GPU node, or a folder of captures; may be repeated (default: this machine"
NodesOption = Annotated[list[str], text_option("--node", "[NAME=]CAPTURE", f"{_NODE_HELP})")]
_LABELLED_HELP = f"{_NODE_HELP} or, if it has no GPU, the nodes that GPU Feature Discovery labelled)"
ClusterNodesOption = Annotated[list[str], text_option("--node", "[NAME=]CAPTURE", _LABELLED_HELP)]
OutputDirOption = Annotated[str, typer.Option("-o", "--output", metavar="DIR", help="write the files into this folder")]
FormatOption = Annotated[
    str, text_option("--format", "FORMAT", "manifests, kustomize, argocd, flux or helm (charts where available)")
]


@app.command()
def render(
    recipe: RecipeArgument = "k8s-containerd",
    node: NodesOption = [],  # noqa: B006 - typer's own idiom for a repeated option
    output: OutputDirOption = "",
    output_format: FormatOption = "manifests",
    json: JsonOption = False,
) -> None:
    """Write the manifests and Helm values for these nodes.

    Nothing is sent to a cluster. Without --output the files are printed.
    """
    from gpunode.cli import k8s_render

    k8s_render.render_recipe(recipe, tuple(node), output, output_format, output_options(json))


TimeoutOption = Annotated[
    int, typer.Option("--timeout", metavar="SECONDS", min=1, help="how long to wait for each workload")
]


@app.command()
def plan(
    recipe: RecipeArgument = "k8s-containerd",
    node: ClusterNodesOption = [],  # noqa: B006
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
    check: Annotated[bool, typer.Option("--check", help="exit with 4 if apply would change anything")] = False,
    json: JsonOption = False,
    verbose: DetailOption = False,
) -> None:
    """Show what apply would change in the cluster; change nothing."""
    from gpunode.cli import clusters

    where = clusters.ClusterRef(context, kubeconfig)
    clusters.plan(recipe, tuple(node), where, output_options(json, verbose), check=check)


@app.command()
def apply(
    recipe: RecipeArgument = "k8s-containerd",
    node: ClusterNodesOption = [],  # noqa: B006
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
    yes: YesOption = False,
    timeout: TimeoutOption = 300,
    json: JsonOption = False,
    verbose: DetailOption = False,
) -> None:
    """Apply the objects to the cluster and wait until they are ready.

    Uses server-side apply with the field manager gpunode. Fields that others own are left alone.
    """
    from gpunode.cli import clusters

    where = clusters.ClusterRef(context, kubeconfig)
    clusters.apply(recipe, tuple(node), where, output_options(json, verbose), yes=yes, timeout_s=timeout)


@app.command()
def verify(
    recipe: RecipeArgument = "k8s-containerd",
    node: ClusterNodesOption = [],  # noqa: B006
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
    image: Annotated[
        str,
        text_option(
            "--image", "IMAGE", "image of the test pods: NVIDIA's vectoradd sample, in a mirror or already on the nodes"
        ),
    ] = "",
    timeout: Annotated[
        int, typer.Option("--timeout", metavar="SECONDS", min=1, help="how long to wait for the test pods")
    ] = 300,
    json: JsonOption = False,
    verbose: DetailOption = False,
) -> None:
    """Check that pods get the GPUs: inspect the cluster, then run a test pod on each node.

    The test pods are deleted afterwards, even after Ctrl-C.
    """
    from gpunode.cli import clusters

    where = clusters.ClusterRef(context, kubeconfig)
    clusters.verify(recipe, tuple(node), where, output_options(json, verbose), image=image, timeout_s=timeout)


@app.command()
def remove(
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
    yes: YesOption = False,
    json: JsonOption = False,
    verbose: DetailOption = False,
) -> None:
    """Remove what gpunode applied to the cluster, and nothing else."""
    from gpunode.cli import clusters

    clusters.remove(clusters.ClusterRef(context, kubeconfig), output_options(json, verbose), yes=yes)
