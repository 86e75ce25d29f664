from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpunode.catalog import tables
from gpunode.catalog.conflicts import (
    driver_packages,
    driver_versioned_packages,
    is_deb_driver_package,
    purge_reason,
)
from tests.ids import ids, names


def list_judged() -> Iterator[tuple[str, str]]:
    for line in (Path(__file__).parent / "package_names.txt").read_text().splitlines():
        if not line.startswith("#"):
            verdict, name = line.split()
            yield verdict, name


NAMES = {name: verdict for verdict, name in list_judged()}


def test_package_names_are_classified_as_reviewed() -> None:
    assert len(NAMES) > 300
    assert names(driver_packages(ids(*NAMES))) == {name for name, verdict in NAMES.items() if verdict == "purge"}


@pytest.mark.parametrize("row", list(tables.rows("driver_packages.csv")), ids=lambda row: row["pattern"])
def test_every_pattern_matches_its_action(row: Mapping[str, str]) -> None:
    name = row["pattern"].replace("*", "")

    assert is_deb_driver_package(name) == (row["action"] == "purge")


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container1",
        "libnvidia-container-tools",
        "cuda-toolkit-13-0",
        "cuda-compat-13-1",
        "cuda-keyring",
        "nvidia-cuda-toolkit",
        "firmware-nvidia-graphics",
        "linux-firmware",
        "xserver-xorg-video-nouveau",
        "datacenter-gpu-manager-4-cuda13",
        "nvidia-driver-pinning-580",
        "nvidia-openjdk-8-jre",
        "dkms",
        "linux-image-nvidia",
        "linux-headers-amd64",
        "my-nvidia-driver-tool",
    ],
)
def test_protected_packages_are_never_purged(name: str) -> None:
    assert not is_deb_driver_package(name)


def test_foreign_architectures_are_classified_by_name() -> None:
    found = ids("libcuda1:i386", "libnvidia-compute-580:i386", "libgl1:i386", "nvidia-container-toolkit:arm64")

    assert driver_packages(found) == ids("libcuda1:i386", "libnvidia-compute-580:i386")


def test_only_given_names_are_returned() -> None:
    assert driver_packages([]) == frozenset()
    assert driver_packages(iter(ids("nvidia-smi", "bash"))) == ids("nvidia-smi")


def test_only_driver_packages_are_pinned() -> None:
    pinned = {name for branch in (470, 535, 570, 580, 595) for name in driver_versioned_packages(branch)}

    assert {name for name, verdict in NAMES.items() if verdict == "keep"} & pinned == set()


@pytest.mark.parametrize("name", ["libcuda1", "nvidia-kernel-dkms", "libnvidia-compute", "nvidia-open", "cuda-drivers"])
def test_names_of_nvidia_package_sets_are_pinned(name: str) -> None:
    assert name in driver_versioned_packages(595)


def test_branch_is_inserted_into_pinned_names() -> None:
    assert {"libnvidia-compute-580", "nvidia-dkms-580-open", "cuda-drivers-580"} <= set(driver_versioned_packages(580))
    assert not any("{" in name or "*" in name for name in driver_versioned_packages(580))


def test_every_pinned_name_is_a_driver_package() -> None:
    assert all(map(is_deb_driver_package, driver_versioned_packages(580)))


def test_every_pattern_is_a_name_or_a_prefix() -> None:
    patterns = [row["pattern"] for row in tables.rows("driver_packages.csv")]
    assert not [pattern for pattern in patterns if set(pattern.removesuffix("*")) & set("*?[")]


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("nvidia-dkms-470", "470.256.02-0ubuntu1", "same-module"),
        ("nvidia-kernel-open-dkms", "595.71.05-1", "same-module"),
        ("nvidia-tesla-470-kernel-dkms", "470.256.02-1", "same-module"),
        ("linux-modules-nvidia-535-generic", "535.183.01-0ubuntu1", "same-module"),
        ("nvidia-kernel-support", "470.256.02-1", "version-locked"),
        ("libcuda1", "470.256.02-1", "version-locked"),
        ("nvidia-fabricmanager-535", "535.183.01-1", "version-locked"),
        ("libnvidia-nscq-535", "535.183.01-1", "version-locked"),
        ("nvidia-imex-570", "570.86.15-1", "version-locked"),
        ("glx-alternative-nvidia", "1.2.2", "relation"),
        ("libxnvctrl0", "525.85.05-3", "relation"),
        ("nvidia-persistenced", "1.0", "relation"),
        ("cuda-compat-13-1", "590.44.01-1", None),
        ("datacenter-gpu-manager", "1:3.3.7", None),
    ],
)
def test_package_of_another_driver_has_a_purge_reason(name: str, version: str, reason: str | None) -> None:
    assert purge_reason(name, version) == reason


def test_exactly_purged_patterns_have_a_reason() -> None:
    rows = list(tables.rows("driver_packages.csv"))
    assert {row["reason"] for row in rows if row["action"] == "purge"} == {"same-module", "version-locked", "relation"}
    assert {row["reason"] for row in rows if row["action"] == "keep"} == {""}
