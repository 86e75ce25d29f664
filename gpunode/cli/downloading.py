"""``setup --download-only``: the packages of a later setup are on the node, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gpunode.change import Trigger
from gpunode.cli.changing import session
from gpunode.cli.compose import Wanted, check_steps, is_image, need_root
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.results import downloaded_lines
from gpunode.errors import UsageError
from gpunode.packages.simulation import is_install
from gpunode.workflow.converge import survey
from gpunode.workflow.download import packages_to_download

if TYPE_CHECKING:
    from gpunode.cli.setup import Options

# What excludes a download.
_WHY: Final[Mapping[str, str]] = {
    "--root": "an image has no later",
    "--gpu": "it is for an image, which has no later",
    "--reboot": "a download needs no reboot",
    "--apply-cluster": "a download changes nothing, in a cluster either",
    "--resume": "it continues a setup",
}


def _refuse_others(options: Options) -> None:
    """Nothing, unless an option was given that means something else than a download.

    Raises:
        UsageError: one was.
    """
    given = {
        "--root": is_image(options.root),
        "--reboot": options.reboot,
        "--gpu": options.gpu,
        "--apply-cluster": options.apply_cluster,
        "--resume": options.resumes,
    }
    for option in (one for one, value in given.items() if value):
        raise UsageError(f"--download-only cannot be used with {option}", why=_WHY[option], hint="leave one out")


def download(wanted: Wanted, how: OutputOptions, options: Options) -> None:
    """Refreshes the package index and downloads what setup would install, into the package manager's own cache."""
    _refuse_others(options)
    check_steps(options.only)
    need_root("setup --download-only", instead="gpunode plan shows which packages it would download, without root")
    recipe = wanted.read()
    with session("download", how, "/", options.lock_timeout_s) as node:
        node.host.trigger((Trigger("index-refresh"),))
        changes = packages_to_download(recipe, survey(node.host, recipe=recipe), node.host, options.only)
        node.host.packages.download(changes)
        packages = [str(change.id) for change in changes if is_install(change)]
        node.screen.conclude(downloaded_lines(packages))
    how.answer(Envelope("setup", result={"recipe": recipe.name, "downloaded": packages}))
