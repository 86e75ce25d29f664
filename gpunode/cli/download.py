"""``setup --download-only``: download the packages of a later setup, change nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gpunode.change import Trigger
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import RecipeOptions, is_image, require_root, validate_steps
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.results import downloaded_lines
from gpunode.cli.session import exclusive_session
from gpunode.errors import UsageError
from gpunode.workflow.converge import survey
from gpunode.workflow.download import packages_to_download

if TYPE_CHECKING:
    from gpunode.cli.setup import SetupFlags

# Options that contradict --download-only, with the reason.
_CONFLICTS: Final[Mapping[str, str]] = {
    "--root": "packages are downloaded for a running system, not for an image",
    "--gpu": "--gpu is for an image, and packages are downloaded for a running system",
    "--reboot": "a download needs no reboot",
    "--apply-cluster": "a download changes nothing, neither here nor in a cluster",
    "--resume": "--resume continues a setup",
}


def _refuse_conflicting_options(options: SetupFlags) -> None:
    """Refuse options that contradict a download.

    Raises:
        UsageError: if one was given.
    """
    given = {
        "--root": is_image(options.root),
        "--reboot": options.reboot,
        "--gpu": options.gpu,
        "--apply-cluster": options.apply_cluster,
        "--resume": options.resumes,
    }
    for option in (one for one, value in given.items() if value):
        raise UsageError(f"--download-only cannot be used with {option}", why=_CONFLICTS[option], hint="leave one out")


def download(recipe_options: RecipeOptions, output: OutputOptions, options: SetupFlags) -> None:
    """Refresh the package index and download what setup would install into the package manager's cache."""
    _refuse_conflicting_options(options)
    validate_steps(options.only)
    require_root("setup --download-only", instead="gpunode plan shows which packages it would download, without root")
    recipe = recipe_options.load()
    with exclusive_session("download", output, "/", options.lock_timeout_s) as node:
        node.host.run_triggers((Trigger("index-refresh"),))
        changes = packages_to_download(recipe, survey(node.host, recipe=recipe), node.host, options.only)
        node.host.packages.download(changes)
        packages = [str(change.id) for change in changes if change.is_there_after]
        node.screen.conclude(downloaded_lines(packages))
    output.emit(Envelope("setup", result={"recipe": recipe.name, "downloaded": packages}))
