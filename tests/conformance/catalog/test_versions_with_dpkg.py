"""The order of versions, compared with the real dpkg."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.packages.deb.version import version_order_key
from tests.fakes.examples import examples

pytestmark = pytest.mark.skipif(not shutil.which("dpkg"), reason="needs dpkg: not a Debian or Ubuntu")

_upstream = st.from_regex(r"[0-9][0-9a-zA-C.+~]{0,8}", fullmatch=True)
_revision = st.from_regex(r"[0-9a-c.+~]{1,5}", fullmatch=True)
_epoch = st.sampled_from(["", "0:", "1:"])
versions = st.builds(lambda e, u, r: e + u + (f"-{r}" if r else ""), _epoch, _upstream, st.none() | _revision)

REAL = [
    "580.178.04-1",
    "580.178.04-0ubuntu1",
    "580.178.04-0ubuntu0.24.04.1",
    "580.178.04-1ubuntu1",
    "580.95.05-1",
    "595.91.07-1ubuntu1",
    "550.163.01-2",
    "535.261.03-1~deb12u1",
    "1:3.2.1-1ubuntu2",
    "1.20.0~rc.1-1",
    "1.20.0-1",
    "6.1.0-37-amd64",
    "6.1.0-9-amd64",
    "6.12.48+deb13-amd64",
    "6.12.9+bpo-amd64",
]


def dpkg_says(left: str, operator: str, right: str) -> bool:
    return (
        subprocess.run(["dpkg", "--compare-versions", left, operator, right], stderr=subprocess.DEVNULL).returncode == 0
    )


@settings(max_examples=examples(150), deadline=None)
@given(versions, versions)
def test_any_two_versions_are_ordered_like_dpkg(left: str, right: str) -> None:
    assert (version_order_key(left) < version_order_key(right)) == dpkg_says(left, "lt", right)
    assert (version_order_key(left) == version_order_key(right)) == dpkg_says(left, "eq", right)


def test_real_versions_are_ordered_like_dpkg() -> None:
    ordered = sorted(REAL, key=version_order_key)

    assert all(dpkg_says(left, "lt", right) for left, right in itertools.pairwise(ordered))
