"""Reasons why apt refuses, from its own words."""

from __future__ import annotations

import pytest

from gpunode.package_id import PackageId
from gpunode.packages.deb.answers import hint, versions_not_found


def test_versions_missing_from_the_archive_are_parsed() -> None:
    refusal = "E: Version '580.1-1' for 'nvidia-driver-cuda' was not found"
    assert versions_not_found(refusal) == ((PackageId("nvidia-driver-cuda"), "580.1-1"),)


@pytest.mark.parametrize("refusal", ["", "E: Unable to locate package x"])
def test_other_refusals_name_no_missing_version(refusal: str) -> None:
    assert versions_not_found(refusal) == ()


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        ("E: Unable to locate package linux-headers-6.1.0-9-amd64", "no source has linux-headers-6.1.0-9-amd64"),
        ("E: Version '580.1-*' for 'nvidia-driver' was not found", "gpunode setup --upgrade"),
        ("E: Unmet dependencies. Try 'apt --fix-broken install' with no packages.", "apt-get --fix-broken install"),
        ("E: Unable to locate package nvidia-open", "a source is missing"),
    ],
)
def test_refusal_has_a_fitting_hint(refusal: str, says: str) -> None:
    assert says in hint(refusal)
