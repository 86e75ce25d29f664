from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.packages import version
from gpunode.packages.deb.version import version_order_key

# Older first; from deb-version(7), Debian Policy 5.6.12 and real package indexes.
ORDERED = [
    "1.0~~",
    "1.0~~a",
    "1.0~",
    "1.0",
    "1.0-1~bpo12+1",
    "1.0-1",
    "1.0a",
    "1.0+b1",
    "1.9",
    "1.10",
    "535.261.03-1~deb12u1",
    "580.95.05-1",
    "580.178.04-0ubuntu0.24.04.1",
    "580.178.04-0ubuntu1",
    "580.178.04-1",
    "580.178.04-1ubuntu1",
    "595.91.07-1",
    "1:0.1",
    "2:0",
]
KERNELS = ["5.15.0-119-generic", "6.1.0-9-amd64", "6.1.0-37-amd64", "6.12.9+bpo-amd64", "6.12.48+deb13-amd64"]


@pytest.mark.parametrize("ordered", [ORDERED, KERNELS])
def test_version_order(ordered: list[str]) -> None:
    shuffled = ordered.copy()
    random.Random(1).shuffle(shuffled)

    assert sorted(shuffled, key=version_order_key) == ordered


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "1.00"), ("0:1.0", "1.0"), ("1.0-0", "1.0"), ("1.", "1.0"), ("", "0")]
)
def test_versions_that_dpkg_takes_for_equal(one: str, other: str) -> None:
    assert version_order_key(one) == version_order_key(other)


@pytest.mark.parametrize(
    ("text", "epoch", "rest"), [("1:2.3-4", 1, "2.3-4"), ("2.3", 0, "2.3"), ("a:b", 0, "a:b"), (":1", 0, ":1")]
)
def test_epoch_is_split_from_the_version(text: str, epoch: int, rest: str) -> None:
    assert (version.version_epoch(text), version.without_epoch(text)) == (epoch, rest)


@given(st.text(max_size=12))
def test_any_text_is_a_version(text: str) -> None:
    assert not version_order_key(text) < version_order_key(text)
