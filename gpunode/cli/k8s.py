"""The commands below ``gpunode k8s``: a cluster that offers the nodes' GPUs to pods.

As in ``cli/app.py`` only typer is imported here; every command imports what it needs.
"""

# No annotations from __future__ here: see cli/app.py.
# ruff: noqa: I002

from typing import Annotated, Any

import typer

from gpunode.cli.app import JsonOption, RecipeArgument

app = typer.Typer(rich_markup_mode=None)

NodesOption = Annotated[
    list[str],
    typer.Option(
        "--node",
        metavar="[NAME=]CAPTURE",
        help="a capture of a GPU node, or a folder of captures; give it again for more (default: this machine)",
    ),
]
OutOption = Annotated[str, typer.Option("--out", metavar="DIR", help="write the files into this folder")]
FormOption = Annotated[
    str,
    typer.Option(
        "--form", metavar="FORM", help="manifests, kustomize, argocd or helm (the charts where there are any)"
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
    out: OutOption = "",
    form: FormOption = "manifests",
    json: JsonOption = False,
) -> None:
    """Write the manifests and Helm values for these nodes.

    Nothing is sent to a cluster. Without --out the files are printed.
    """
    from gpunode.cli import rendering
    from gpunode.cli.how import How

    rendering.render(recipe, tuple(node), out, form, How(json=json))
