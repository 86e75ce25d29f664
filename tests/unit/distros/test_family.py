from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpunode.catalog import branches, tables
from gpunode.catalog.driver import DriverChoice
from gpunode.catalog.releases import release
from gpunode.catalog.repositories import TOOLKIT_REPOSITORY, cuda_repository
from gpunode.distros import DISTROS, UBUNTU, Family, family, list_supported_distros
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Distro
from gpunode.packages.deb.preferences import render_driver_pin
from gpunode.packages.deb.repositories import source_list
from gpunode.recipe import DriverScope
from tests.ids import names

SCOPES: tuple[DriverScope, ...] = ("compute", "media", "full")


def distro(id_: str, version: str) -> Distro:
    return Distro(id_, version, "", "")


@pytest.mark.parametrize(
    ("id_", "version", "supported"),
    [
        ("debian", "12", True),
        ("debian", "13", True),
        ("debian", "11", False),
        ("debian", "", False),
        ("ubuntu", "22.04", True),
        ("ubuntu", "24.04", True),
        ("ubuntu", "26.04", True),
        ("ubuntu", "25.10", False),
    ],
)
def test_supported_releases(id_: str, version: str, supported: bool) -> None:
    assert (family(distro(id_, version)) is not None) is supported


def test_distribution_only_similar_to_debian_has_no_family() -> None:
    assert family(Distro("devuan", "5", "", "", like=("debian",))) is None


def test_derivative_has_the_family_and_repository_of_its_base() -> None:
    mint = Distro("linuxmint", "22.1", "", "", like=("ubuntu", "debian"))

    assert family(mint) is UBUNTU
    of_mint, of_ubuntu = (cuda_repository(one, "amd64") for one in (mint, distro("ubuntu", "24.04")))
    assert of_mint is not None
    assert of_ubuntu is not None
    assert (of_mint.uri, of_mint.key) == (of_ubuntu.uri, of_ubuntu.key)


@pytest.mark.parametrize(
    "row", [*tables.rows("releases.csv")], ids=lambda row: f"{row['distribution']}{row['version']}"
)
def test_release_row_is_complete(row: Mapping[str, str]) -> None:
    found = release(distro(row["distribution"], row["version"]))

    assert found is not None
    if found.repository:
        assert cuda_repository(distro(row["distribution"], row["version"]), "amd64") is not None
        assert family(distro(row["distribution"], row["version"])) is not None
    if row["derivative_of"]:
        assert not any(row[key] for key in ("repository", "ended", "apt_key"))
    else:
        assert row["apt_key"] in {"yes", "no"}


def test_every_repository_belongs_to_a_release() -> None:
    named = {row["repository"] for row in tables.rows("releases.csv")}

    assert {row["dir"] for row in tables.rows("cuda_repositories.csv")} <= named


def test_supported_releases_are_listed_readably() -> None:
    assert list_supported_distros() == "Debian 12 and 13 and Ubuntu 22.04, 24.04 and 26.04"


@pytest.mark.parametrize("known", DISTROS, ids=lambda known: known.id)
@pytest.mark.parametrize("scope", SCOPES)
def test_every_choice_includes_its_module_package(known: Family, scope: DriverScope) -> None:
    for branch in branches.all_branches():
        for flavour in branch.flavours:
            choice = DriverChoice(branch.number, "", flavour, "")
            packages = known.driver_packages(choice, scope)
            assert known.dkms_package(choice) in packages
            assert len(set(packages)) == len(packages)
            assert branch.number < branches.FIRST_OPEN_ONLY_BRANCH or "cuda-drivers" not in packages


def test_toolkit_has_four_packages() -> None:
    assert names(TOOLKIT_PACKAGES) == {
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    }


def test_list_file_equals_that_of_nvidia() -> None:
    repository = cuda_repository(distro("debian", "12"), "amd64")
    assert repository is not None

    assert source_list(repository.uri, repository.keyring) == (
        b"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] "
        b"https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n"
    )
    assert source_list(TOOLKIT_REPOSITORY.uri, TOOLKIT_REPOSITORY.keyring) == (
        b"deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg] "
        b"https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n"
    )


def test_pin_file_states_its_purpose_and_version() -> None:
    for known in DISTROS:
        branch = render_driver_pin(DriverChoice(580, "", "proprietary", ""), known.origins).decode()
        exact = render_driver_pin(DriverChoice(580, "580.178.04", "proprietary", ""), known.origins).decode()
        assert branch.startswith("# Written by gpunode")
        assert "Pin: version 580.*\nPin-Priority: 1001\n" in branch
        assert "Pin: version 580.178.04-*\nPin-Priority: 1001\n" in exact
        assert branch.endswith("\n")
        assert not any(len(line) > 120 for line in branch.splitlines())
