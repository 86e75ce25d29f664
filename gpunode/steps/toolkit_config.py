"""The toolkit's own configuration, which every container start reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpunode.change import Deferred, FileChange, FileState, restrict_writes_to_root
from gpunode.facts.model import Facts, Known, Unknown, file_matches, require
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.recipe import Recipe
from gpunode.steps.toolkit import CONFIG_PACKAGE, TOOLKIT_CONFIG_FILE, VOLUME_MOUNTS_KEY

if TYPE_CHECKING:
    from gpunode.runtimes.toolkit import ToolkitHost


def plan_toolkit_config(recipe: Recipe, facts: Facts) -> tuple[FileChange, ...]:
    """Return the change of the toolkit's file that the recipe needs, if any.

    Raises:
        Refused: if the file cannot be read or edited.
        Undetermined: if only root may read it.
    """
    enabled = recipe.toolkit.volume_mounts
    if enabled is None:
        return ()
    fact = facts.file(TOOLKIT_CONFIG_FILE)
    if isinstance(fact, Unknown) and fact.probe == PLAN_PROBE_KEY:
        return _plan_deferred(facts, enabled=enabled)
    state = require(fact, f"what {TOOLKIT_CONFIG_FILE} holds")
    from gpunode.runtimes import toolkit  # loaded on use: most recipes do not ask for it

    desired = toolkit.parse_set_options([f"{VOLUME_MOUNTS_KEY}={str(enabled).lower()}"])
    content = toolkit.configure(
        state.content if state else None, desired, _find_toolkit_host(facts), TOOLKIT_CONFIG_FILE
    )
    if state and state.content == content:
        return ()
    after = replace(restrict_writes_to_root(state or FileState(b"")), content=content)
    return (FileChange(TOOLKIT_CONFIG_FILE, state, after),)


def _plan_deferred(facts: Facts, *, enabled: bool) -> tuple[FileChange, ...]:
    """Return the change of a file that the toolkit's package will install."""
    promise = Deferred(
        f"the package's file, with {VOLUME_MOUNTS_KEY} = {str(enabled).lower()}", f"{CONFIG_PACKAGE} is installed"
    )
    return (
        ()
        if file_matches(facts.file(TOOLKIT_CONFIG_FILE), promise)
        else (FileChange(TOOLKIT_CONFIG_FILE, None, promise),)
    )


def _find_toolkit_host(facts: Facts) -> ToolkitHost:
    """Return the machine's traits for a new file: Ubuntu wraps ldconfig."""
    from gpunode.runtimes.toolkit import ToolkitHost

    distro = facts.distro
    is_ubuntu = isinstance(distro, Known) and "ubuntu" in {distro.value.id, *distro.value.like}
    return ToolkitHost(real_ldconfig=is_ubuntu)
