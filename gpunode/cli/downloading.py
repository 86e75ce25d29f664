"""``setup --download-only``: the packages of a later setup are on the node, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpunode.change import Trigger
from gpunode.cli.changing import alone
from gpunode.cli.commands import OutputOptions, check_steps
from gpunode.cli.compose import SignalGuard, Wanted, announcer, is_image, need_root
from gpunode.cli.envelope import Envelope
from gpunode.errors import UsageError
from gpunode.host.command_log import CommandLog
from gpunode.host.local import LocalHost
from gpunode.journal.store import Store
from gpunode.packages.simulation import is_install
from gpunode.workflow.converge import survey
from gpunode.workflow.download import packages_ahead

# What excludes a download.
_WHY: Final[Mapping[str, str]] = {
    "--root": "an image has no later",
    "--gpu": "it is for an image, which has no later",
    "--reboot": "a download needs no reboot",
    "--apply-cluster": "a download changes nothing, in a cluster either",
    "--resume": "it continues a setup",
}


def refuse_others(root: str, given: Mapping[str, object]) -> None:
    """Nothing, unless an option was given that means something else than a download.

    Raises:
        UsageError: one was.
    """
    for option in (one for one, value in {"--root": is_image(root), **given}.items() if value):
        raise UsageError(f"--download-only cannot be used with {option}", why=_WHY[option], hint="leave one out")


def download(wanted: Wanted, how: OutputOptions, only: Sequence[str], lock_timeout_s: float) -> None:
    """Refreshes the package index and downloads what setup would install, into the package manager's own cache."""
    check_steps(only)
    need_root("setup --download-only", instead="gpunode plan shows which packages it would download, without root")
    screen, store, recipe = how.screen(), Store("/", announce=announcer("/")), wanted.read()
    stop = SignalGuard(screen.stopping)
    log = CommandLog("download", root="/")
    host = LocalHost("/", stop.heeded(screen.progress), log, lock_timeout_s=lock_timeout_s)
    with screen, alone(store, host, screen, lock_timeout_s), stop:
        host.trigger((Trigger("index-refresh"),))
        changes = packages_ahead(recipe, survey(host, recipe=recipe), host, only)
        host.packages.download(changes)
        packages = [str(change.id) for change in changes if is_install(change)]
        screen.downloaded(packages)
    how.answer(Envelope("setup", result={"recipe": recipe.name, "downloaded": packages}))
