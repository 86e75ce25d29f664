"""setup --download-only: fetch the packages of a setup before anything on the node changes."""

from __future__ import annotations

from collections.abc import Collection

from gpunode.change import PackageChange
from gpunode.errors import Refused
from gpunode.facts.model import Facts
from gpunode.host.port import HostView
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.workflow.converge import raise_refusal
from gpunode.workflow.plan import plan, resolve_stage


def packages_to_download(
    recipe: Recipe, facts: Facts, host: HostView, only: Collection[str] = ()
) -> list[PackageChange]:
    """Return the package changes that setup would make, with exact versions, dependencies included.

    Raises:
        Refused, Undetermined: setup would refuse, or the packages are not available yet.
    """
    plans = plan(recipe, facts, host, only)
    raise_refusal(plans)
    changes: list[PackageChange] = []
    for stage in plans:
        # Also if sources or pins still have to change: a lock names every version.
        exact = resolve_stage(stage, facts, host.simulate, recipe.lock)
        if exact.unresolved:
            raise Refused(
                f"{system(facts).manager} cannot get the packages yet; nothing was downloaded",
                why=exact.unresolved,
                hint="setup first adds NVIDIA's repositories, or moves the pin to another branch: on this node, "
                "run it without --download-only",
            )
        changes += exact.packages
    return changes
