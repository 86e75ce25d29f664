"""The family of distributions that a driver is installed on, and whether one is."""

from __future__ import annotations

from gpunode.distros import family, supported
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, need
from gpunode.outcome import Refusal
from gpunode.recipe import Recipe

MACHINE = "whether this is bare metal, a virtual machine or a container, in which no driver is installed"


def wants_driver(recipe: Recipe, facts: Facts) -> bool:
    """Whether the driver is gpunode's to install here: the recipe asks for it, and the kernel is this machine's own."""
    return recipe.driver.version != "none" and need(facts.platform, MACHINE).owns_kernel


def family_of(facts: Facts) -> Family | Refusal:
    """The distribution's family, or why gpunode does not work on it."""
    distro = need(facts.distro, "which distribution this is")
    found = family(distro)
    if found is None:
        return Refusal(
            what=f"{distro.name} is not supported",
            why=f"NVIDIA's repositories and package names are known for {supported()}; "
            f"/etc/os-release says ID={distro.id} VERSION_ID={distro.version_id}",
            hint='use one of these, or install the driver by hand and run gpunode with driver.version = "none"',
        )
    return found
