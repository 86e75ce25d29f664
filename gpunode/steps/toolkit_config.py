"""What a recipe asks of the toolkit's own configuration, which every container start reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpunode.change import Deferred, FileChange, FileState, without_foreign_writers
from gpunode.facts.model import Facts, Known, Unknown, holds, need
from gpunode.facts.project import PLAN
from gpunode.recipe import Recipe
from gpunode.steps.toolkit import CONFIG, CONFIG_FROM, VOLUME_MOUNTS

if TYPE_CHECKING:
    from gpunode.runtimes.toolkit import Machine


def configured(recipe: Recipe, facts: Facts) -> tuple[FileChange, ...]:
    """The change that makes the toolkit's file say what the recipe does; none where it says so, or nobody asks.

    Raises:
        Refused: the file cannot be read or edited.
        Undetermined: only root may read it.
    """
    asked = recipe.toolkit.volume_mounts
    if asked is None:
        return ()
    fact = facts.file(CONFIG)
    if isinstance(fact, Unknown) and fact.probe == PLAN:
        return _later(facts, asked=asked)
    state = need(fact, f"what {CONFIG} holds")
    from gpunode.runtimes import toolkit  # loaded on use: most recipes do not ask for it

    desired = toolkit.settings([f"{VOLUME_MOUNTS}={str(asked).lower()}"])
    content = toolkit.configure(state.content if state else None, desired, _machine(facts), CONFIG)
    if state and state.content == content:
        return ()
    return (FileChange(CONFIG, state, replace(without_foreign_writers(state or FileState(b"")), content=content)),)


def _later(facts: Facts, *, asked: bool) -> tuple[FileChange, ...]:
    """The toolkit's package is about to bring the file."""
    promise = Deferred(
        f"the package's file, with {VOLUME_MOUNTS} = {str(asked).lower()}", f"{CONFIG_FROM} is installed"
    )
    return () if holds(facts.file(CONFIG), promise) else (FileChange(CONFIG, None, promise),)


def _machine(facts: Facts) -> Machine:
    """What a file that is made anew hangs on: Ubuntu wraps ldconfig."""
    from gpunode.runtimes.toolkit import Machine

    distro = facts.distro
    is_ubuntu = isinstance(distro, Known) and "ubuntu" in {distro.value.id, *distro.value.like}
    return Machine(real_ldconfig=is_ubuntu)
