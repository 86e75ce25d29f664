"""Why apt refuses, from its own words."""

from __future__ import annotations

import pytest

from gpunode.package_id import PackageId
from gpunode.packages.deb.answers import hint, versions_not_found


def test_versions_that_no_archive_has_are_named() -> None:
    refusal = "E: Version '580.1-1' for 'nvidia-driver-cuda' was not found"
    assert versions_not_found(refusal) == ((PackageId("nvidia-driver-cuda"), "580.1-1"),)


@pytest.mark.parametrize("refusal", ["", "E: Unable to locate package x"])
def test_another_refusal_names_none(refusal: str) -> None:
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
def test_a_refusal_has_a_hint_that_fits(refusal: str, says: str) -> None:
    assert says in hint(refusal)
