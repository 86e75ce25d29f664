from __future__ import annotations

import pytest

from gpunode.catalog import cuda


def test_releases_are_sorted_by_version_and_driver() -> None:
    found = cuda.releases()
    assert [one.version for one in found] == sorted(one.version for one in found)
    drivers = [cuda.parse_version(one.driver) for one in found]
    assert drivers == sorted(drivers)
    assert all(one.min_branch <= cuda.parse_version(one.driver)[0] for one in found)


@pytest.mark.parametrize(
    ("driver", "version"),
    [
        ("470.256.02", (11, 4)),
        ("525.60.13", (12, 0)),
        ("535.183.01", (12, 2)),
        ("550.144.03", (12, 4)),
        ("570.133.20", (12, 8)),
        ("580.95.05", (13, 0)),
        ("304.137", None),
    ],
)
def test_supported_cuda_version_of_a_driver(driver: str, version: cuda.Version | None) -> None:
    assert cuda.newest_supported_by_driver(driver) == version


def test_release_is_found_by_its_first_two_numbers() -> None:
    assert cuda.find((12, 4, 1)) == cuda.find((12, 4))
    assert cuda.find((99, 0)) is None
