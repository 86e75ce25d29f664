from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpunode.host.apt_plan import compare_versions

versions = st.from_regex(r"\A([0-9]:)?[0-9][0-9a-zA-Z.+~]{0,8}(-[0-9a-zA-Z.+~]{1,5})?\Z")


@pytest.mark.skipif(not shutil.which("dpkg"), reason="needs dpkg")
@settings(max_examples=150, deadline=None)
@given(versions, versions)
@example("1.0~rc1-1", "1.0-1")
@example("580.95.05-1", "580.105.08-1")
@example("1:1", "2")
@example("1.0+dfsg", "1.0a")
@example("1", "1-0")
@example("1.0-1~deb12u1", "1.0-1")
def test_versions_compare_as_dpkg_compares_them(left: str, right: str) -> None:
    ours = compare_versions(left, right)
    relation = "lt" if ours < 0 else "gt" if ours > 0 else "eq"
    assert subprocess.run(["dpkg", "--compare-versions", left, relation, right], check=False).returncode == 0
