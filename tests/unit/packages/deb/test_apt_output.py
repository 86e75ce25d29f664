"""Answers of apt about what it has."""

from __future__ import annotations

import pytest

from gpunode.package_id import PackageId
from gpunode.packages.deb.apt_output import versions_not_found


def test_versions_missing_from_the_archive_are_parsed() -> None:
    said = "E: Version '580.1-1' for 'nvidia-driver-cuda' was not found"
    assert versions_not_found(said) == ((PackageId("nvidia-driver-cuda"), "580.1-1"),)


@pytest.mark.parametrize("said", ["", "E: Unable to locate package x"])
def test_other_refusals_name_no_missing_version(said: str) -> None:
    assert versions_not_found(said) == ()
