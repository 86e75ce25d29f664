from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.catalog import branches, tables
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.catalog.gpu_support import describe_support
from gpunode.catalog.gpus import find_model, search_models
from gpunode.outcome import Refusal
from gpunode.recipe import Driver


@pytest.mark.parametrize(
    ("device_id", "flavours", "newest_cuda", "end_of_life"),
    [
        ("1b80", ("proprietary",), (12, 9), "2028-06"),  # GTX 1080
        ("1db4", ("proprietary",), (12, 9), "2028-06"),  # V100: CUDA 13 compiles for Turing and newer
        ("1eb8", ("open", "proprietary"), (13, 2), ""),  # T4: capped by its driver, 595
        ("2901", ("open",), (13, 2), ""),  # B200
        ("102d", ("proprietary",), None, "2024-07"),  # K80: no driver in the repositories
        ("3fff", ("open",), None, ""),  # on no list
    ],
)
def test_support_of_each_generation(
    device_id: str, flavours: tuple[str, ...], newest_cuda: tuple[int, ...] | None, end_of_life: str
) -> None:
    support = describe_support(find_model(device_id))
    assert (support.flavours, support.cuda, support.end_of_life) == (flavours, newest_cuda, end_of_life)


def test_listed_branches_are_those_that_a_driver_can_be_chosen_from() -> None:
    """For each kind of GPU and branch: listed if and only if ``--driver BRANCH`` is accepted, whatever its modules."""
    models = (find_model(row["device_id"]) for row in tables.rows("gpus.csv"))
    kinds = {replace(model, device_id="", name=""): model for model in models}
    assert len(kinds) > 20
    for model in kinds.values():
        support = describe_support(model)
        offered = {branch.number for branch in support.branches}
        accepted = {
            branch.number
            for branch in branches.all_branches()
            if isinstance(found := choose_driver([model], Driver(version=str(branch.number))), DriverChoice)
            or "kernel modules" in found.what
        }
        assert offered == accepted, model.name
        assert isinstance(support.choice, Refusal) or support.choice.branch in offered


def test_boards_with_switches_name_the_packages_that_they_need() -> None:
    (hopper,) = describe_support(find_model("2330")).packages
    assert "nvidia-fabricmanager of the driver's exact version on a board with NVSwitches" in hopper
    (blackwell,) = describe_support(find_model("2901")).packages
    assert "nvlsm" in blackwell
    (rack,) = describe_support(find_model("2941")).packages
    assert rack.startswith("nvidia-imex")
    assert describe_support(find_model("2331")).packages == ()  # H100 PCIe has no switch


def test_a_guess_names_its_reason() -> None:
    assert "ids from 1e00 on are Turing or newer" in describe_support(find_model("3fff")).assumption
    assert "ids below 1340 are Kepler or older" in describe_support(find_model("0102")).assumption
    assert "pci.ids does" in describe_support(find_model("1b01")).assumption
    assert describe_support(find_model("1b80")).assumption == ""


def test_a_search_takes_whole_words_in_any_case() -> None:
    assert {model.device_id for model in search_models("tesla t4")} == {"1eb8"}
    assert {model.name for model in search_models("h100")} >= {"NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3"}
    assert search_models("H10") == search_models("  ") == ()
