"""dpkg tells which files belong to no package."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.host.local import LocalHost
from gpunode.workflow.live_state import find_unowned
from tests.needs import lacking


@pytest.mark.skipif(bool(lacking("dpkg-query")), reason=lacking("dpkg-query"))
def test_files_of_no_package_are_found(tmp_path: Path) -> None:
    foreign = str(tmp_path / "nvidia-smi")
    assert find_unowned(LocalHost(), ["/usr/bin/dpkg", foreign, "/usr/bin/dpkg-query"]) == (foreign,)
    assert find_unowned(LocalHost(), ["/usr/bin/dpkg"]) == ()
    assert find_unowned(LocalHost(), [str(path) for path in Path("/usr/lib").glob("*-linux-gnu/libc.so.6")]) == ()
    assert find_unowned(LocalHost(), []) == ()
