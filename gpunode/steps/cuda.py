"""The CUDA toolkit on the host. Most recipes ask for none, so what chooses its release is loaded on use."""

from __future__ import annotations

from typing import Final

from gpunode.facts.model import Facts
from gpunode.outcome import Outcome, Planned, Step, StepPackages
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe
from gpunode.steps.packages import wants_cuda_toolkit

PROFILE: Final = "/etc/profile.d/gpunode-cuda.sh"


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Plan the toolkit that the recipe asks for; see ``cuda_release``."""
    if not wants_cuda_toolkit(recipe):
        return Planned((), "the recipe asks for no CUDA toolkit", asked=False)
    from gpunode.steps.cuda_release import plan_toolkit

    return plan_toolkit(recipe, facts)


def _wanted_packages(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    if not wants_cuda_toolkit(recipe):
        return ()
    from gpunode.steps.cuda_release import find_packages

    return find_packages(recipe, facts)


def _owns_package(package: PackageId) -> bool:
    from gpunode.catalog.cuda import release_of_component

    return release_of_component(package.name) is not None


CUDA_TOOLKIT = Step(
    "cuda-toolkit",
    "CUDA toolkit",
    "packages",
    plan,
    needs=("cuda-repository",),
    files=(PROFILE,),
    packages=StepPackages(_wanted_packages, _owns_package),
)
