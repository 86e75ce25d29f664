"""NVIDIA's two package repositories, each with its key: CUDA for the driver, and the container toolkit's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpunode.catalog.repositories import (
    CUDA_KEYRING,
    TOOLKIT_KEYRING,
    cuda_repository,
    former_toolkit_repository,
    other_cuda_folder,
    toolkit_repository,
)
from gpunode.change import SigningKey
from gpunode.facts.model import Facts, need
from gpunode.outcome import Outcome, Planned, Refusal, Step
from gpunode.packages import Repository, system
from gpunode.recipe import Recipe
from gpunode.steps.families import family_of, wants_driver
from gpunode.steps.installed_driver import preexisting_driver


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
    alias = partial(other_cuda_folder, row)
    repository = Repository(row.base_url, row.list_file, row.keyring, key, alias, architecture)
    outcome = system(facts).plan_repository(repository, facts)
    return (
        replace(outcome, notes=(*outcome.notes, *system(facts).relaxed(facts)))
        if isinstance(outcome, Planned)
        else outcome
    )


def plan_toolkit(recipe: Recipe, facts: Facts) -> Outcome:
    """The container toolkit's repository is enabled, signed by the key with the pinned fingerprint."""
    if not wants_toolkit(recipe):
        return Planned((), "the recipe has no container runtime")
    architecture = need(facts.architecture, "the architecture of this system")
    row = toolkit_repository(recipe.repositories.toolkit, recipe.repositories.toolkit_key)
    key = SigningKey(row.key_url, frozenset({row.fingerprint}))
    repository = Repository(row.url, row.list_file, row.keyring, key, former_toolkit_repository, architecture)
    return system(facts).plan_repository(repository, facts)


def wants_toolkit(recipe: Recipe) -> bool:
    """Whether the container toolkit is gpunode's to install."""
    return recipe.runtime.name != "none" and recipe.toolkit.version != "none"


CUDA_REPOSITORY = Step(
    "cuda-repository", "driver repository", "sources", plan_cuda, for_driver=True, files=(CUDA_KEYRING,)
)
TOOLKIT_REPOSITORY = Step("toolkit-repository", "toolkit repository", "sources", plan_toolkit, files=(TOOLKIT_KEYRING,))
