"""The commands below ``gpunode k8s``: a cluster that offers the nodes' GPUs to pods.

As in ``cli/app.py`` only typer is imported here; every command imports what it needs.
"""

# No annotations from __future__ here: see cli/app.py.
# ruff: noqa: I002

from typing import Annotated, Any

import typer

from gpunode.cli.app import (
    ContextOption,
    JsonOption,
    KubeconfigOption,
    RecipeArgument,
    VerboseOption,
    YesOption,
    output_options,
)

app = typer.Typer(rich_markup_mode=None)

NodesOption = Annotated[
    list[str],
    typer.Option(
        "--node",
        metavar="[NAME=]CAPTURE",
        help="a capture of a GPU node, or a folder of captures; give it again for more (default: this machine)",
    ),
]
ClusterNodesOption = Annotated[
    list[str],
    typer.Option(
        "--node",
        metavar="[NAME=]CAPTURE",
        help="a capture of a GPU node, or a folder of captures; give it again for more (default: this machine; where "
        "it has no GPU, the nodes that GPU Feature Discovery labelled)",
    ),
]
OutputDirOption = Annotated[str, typer.Option("-o", "--output", metavar="DIR", help="write the files into this folder")]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMAT", help="manifests, kustomize, argocd, flux or helm (the charts where there are any)"
    ),
]


def commands() -> Any:
    """The commands by name."""
    group: Any = typer.main.get_command(app)
    return group.commands


@app.callback(invoke_without_command=False)
def main() -> None:
    """Offer the GPUs of provisioned nodes to pods."""


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
    verbose: VerboseOption = False,
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
    verbose: VerboseOption = False,
) -> None:
    """Apply the objects to the cluster and wait until they are ready.

    By server-side apply with the field manager gpunode; what others own is never taken from them.
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
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="the test pods' image: NVIDIA's vectoradd sample in a mirror, or on the nodes already",
        ),
    ] = "",
    timeout: Annotated[
        int, typer.Option("--timeout", metavar="SECONDS", min=1, help="how long to wait for the test pods")
    ] = 300,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Prove that pods get the nodes' GPUs: ask the cluster, then run a pod on each node.

    The pods are deleted afterwards, also after Ctrl-C.
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
    verbose: VerboseOption = False,
) -> None:
    """Take back what gpunode applied to the cluster, and nothing else."""
    from gpunode.cli import clusters

    where = clusters.ClusterRef(context, kubeconfig)
    clusters.remove(where, output_options(json, verbose), yes=yes)
