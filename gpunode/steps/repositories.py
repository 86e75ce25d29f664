"""NVIDIA's two package repositories, each with its key: CUDA for the driver, and the container toolkit's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gpunode.catalog.repositories import cuda_repository, is_old_toolkit_source, toolkit_repository
from gpunode.change import SigningKey
from gpunode.command import command
from gpunode.facts.model import Facts, need
from gpunode.facts.probes import KEYRINGS
from gpunode.outcome import Outcome, Planned, Refusal, Step
from gpunode.packages import Repository, system
from gpunode.recipe import Recipe
from gpunode.steps.families import family_of, wants_driver
from gpunode.steps.installed_driver import preexisting_driver

_ENTERED_BY_OTHERS: Final = 0o001


def plan_cuda(recipe: Recipe, facts: Facts) -> Outcome:
    """The CUDA repository of this distribution is enabled, signed by the key with the pinned fingerprint."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode")
    # With it, the next upgrade would bring NVIDIA's packages over those of another maker.
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason)
    found = family_of(facts)
    if isinstance(found, Refusal):
        return found
    distro = need(facts.distro, "which distribution this is")
    architecture = need(facts.architecture, "the architecture of this system")
    row = cuda_repository(distro, architecture, recipe.repositories.cuda, recipe.repositories.cuda_key)
    if row is None:
        return Refusal(
            what=f"NVIDIA has no driver repository for {distro.name} on {architecture}",
            why="the table of repositories (gpunode/catalog/cuda_repositories.csv) has no row for them",
            hint='use a release that has one, or set driver.version = "none" and install the driver by hand',
        )
    key = SigningKey(row.key_url, frozenset({row.fingerprint}))
    repository = Repository(row.base_url, row.list_file, row.keyring, key, _has_no_former, architecture)
    outcome = system(facts).plan_repository(repository, facts)
    if not isinstance(outcome, Planned):
        return outcome
    return replace(outcome, notes=(*outcome.notes, *system(facts).relaxed(facts), *_closed_folder(facts)))


def plan_toolkit(recipe: Recipe, facts: Facts) -> Outcome:
    """The container toolkit's repository is enabled, signed by the key with the pinned fingerprint."""
    if not wants_toolkit(recipe):
        return Planned((), "the recipe has no container runtime")
    architecture = need(facts.architecture, "the architecture of this system")
    row = toolkit_repository(recipe.repositories.toolkit, recipe.repositories.toolkit_key)
    key = SigningKey(row.key_url, frozenset({row.fingerprint}))
    repository = Repository(row.url, row.list_file, row.keyring, key, is_old_toolkit_source, architecture)
    outcome = system(facts).plan_repository(repository, facts)
    if not isinstance(outcome, Planned):
        return outcome
    return replace(outcome, notes=(*outcome.notes, *_closed_folder(facts)))


def _closed_folder(facts: Facts) -> Iterator[str]:
    """Yield that the package manager's own user cannot enter the folder of the keyrings."""
    mode = facts.folder_modes.get(KEYRINGS)
    if mode is not None and not mode & _ENTERED_BY_OTHERS:
        opened = command("sudo", "chmod", "755", KEYRINGS)
        yield (
            f"{KEYRINGS} has the mode {mode:04o}, so the user that fetches package indexes can read no keyring in it: "
            f"`{opened}` opens it"
        )


def _has_no_former(uri: str) -> bool:
    del uri
    return False


def wants_toolkit(recipe: Recipe) -> bool:
    """Whether the container toolkit is gpunode's to install."""
    return recipe.runtime.name != "none" and recipe.toolkit.version != "none"


CUDA_REPOSITORY = Step("cuda-repository", "driver repository", "sources", plan_cuda)
TOOLKIT_REPOSITORY = Step("toolkit-repository", "toolkit repository", "sources", plan_toolkit)
