"""CUDA's metapackages, which are removed with their driver, and the toolkit, which stays."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpunode.change import PackageChange, PackageState
from gpunode.facts.model import Facts
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.status import DpkgEntry
from gpunode.steps.driver import CONFLICTS_STEP
from tests.unit.steps.machines import GTX_1080, gpu, machine, names, planned, recipe, refusal

CUDA = PackageState("12.6.3-1")
CAME_ALONG = PackageState("12.6.3-1", auto=True)
DRIVER = PackageState("620.70.06-1", auto=True)
DEPENDS = {
    "cuda-12-6": "cuda-toolkit-12-6 (>= 12.6.3), cuda-runtime-12-6 (>= 12.6.3)",
    "cuda-runtime-12-6": "cuda-drivers (>= 560.35.05), cuda-libraries-12-6",
    "lab-tool": "cuda-toolkit-12-6",
}
INSTALLED = {
    "cuda-12-6": CUDA,
    **dict.fromkeys(("cuda-toolkit-12-6", "cuda-runtime-12-6", "cuda-libraries-12-6"), CAME_ALONG),
    "cuda-drivers": DRIVER,
    "lab-tool": PackageState("1"),
}


def node(
    packages: Mapping[str, PackageState] = INSTALLED, depends: Mapping[str, str] = DEPENDS, device: str = GTX_1080
) -> Facts:
    rows = (
        DpkgEntry(name, "install", False, "installed", "amd64", state.version, depends=depends.get(name, ""))
        for name, state in packages.items()
    )
    return machine(gpus=(gpu(device),), packages=packages, dependencies=InstalledRelations(tuple(rows)))


def plan_conflicts(facts: Facts, **driver: str) -> tuple[Planned, list[str], list[str]]:
    """Return the plan, the packages that it purges, and those that it marks as manual."""
    plan = planned(CONFLICTS_STEP.plan(recipe(**driver), facts))
    changes = PackageChange.of_kind(plan.changes)
    purged = names(tuple(one for one in changes if one.after is None))
    marked = [
        one.subject
        for one in changes
        if one.is_mark and one.known_final_state is not None and not one.known_final_state.auto
    ]
    return plan, purged, marked


def test_metapackage_leaves_with_the_driver_that_it_needs() -> None:
    plan, purged, marked = plan_conflicts(node())
    assert purged == ["cuda-drivers", "cuda-12-6", "cuda-runtime-12-6"]
    assert marked == ["cuda-libraries-12-6", "cuda-toolkit-12-6"]
    assert "cuda-12-6, cuda-runtime-12-6 depend on removed packages" in plan.reason
    assert "1 package of driver 620.70.06 conflicts" in plan.reason


def test_metapackage_stays_beside_a_driver_that_stays() -> None:
    assert plan_conflicts(node({**INSTALLED, "cuda-drivers": PackageState("580.178.04-1")}))[1:] == ([], [])


@pytest.mark.parametrize("needs", ["cuda-drivers | nvidia-open", "cuda-toolkit-12-6", "gone"])
def test_metapackage_that_needs_no_leaving_driver_stays(needs: str) -> None:
    there = {**INSTALLED, "nvidia-open": PackageState("580.178.04-1")}
    assert plan_conflicts(node(there, {**DEPENDS, "cuda-runtime-12-6": needs}))[1:] == (["cuda-drivers"], [])


def test_metapackage_leaves_with_modules_of_the_other_flavour() -> None:
    there = {
        **INSTALLED,
        **dict.fromkeys(("cuda-drivers", "nvidia-kernel-dkms", "nvidia-driver-cuda"), PackageState("580.178.04-1")),
    }
    modules = "nvidia-kernel-dkms (= 580.178.04-1)"
    # nvidia-driver-cuda, which the recipe requests, also works with the open modules.
    others = {"cuda-drivers": modules, "nvidia-driver-cuda": f"{modules} | nvidia-kernel-open-dkms (= 580.178.04-1)"}
    facts = node(there, {**DEPENDS, **others}, "1eb8")
    _, purged, marked = plan_conflicts(facts, version="580", kernel_module_type="open")
    assert purged == ["cuda-12-6", "cuda-drivers", "cuda-runtime-12-6"]
    assert marked == ["cuda-libraries-12-6", "cuda-toolkit-12-6"]


def test_held_metapackage_is_named_with_its_command() -> None:
    no = refusal(CONFLICTS_STEP.plan(recipe(), node({**INSTALLED, "cuda-12-6": PackageState("12.6.3-1", held=True)})))
    assert "apt-mark unhold cuda-12-6" in no.hint


def test_toolkit_of_a_metapackage_by_hand_needs_no_mark() -> None:
    by_hand = {**INSTALLED, "cuda-toolkit-12-6": CUDA, "cuda-libraries-12-6": CUDA}
    assert plan_conflicts(node(by_hand))[2] == []


def test_purge_of_a_metapackage_is_by_relation() -> None:
    from gpunode.cli.screen.changes import explain_purge

    assert explain_purge(PackageChange(PackageId("cuda-12-6"), CUDA, None)) == "relation"
    assert explain_purge(PackageChange(PackageId("cuda-toolkit-12-6"), CUDA, None)) == ""
