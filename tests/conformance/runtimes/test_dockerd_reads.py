"""Our daemon.json, validated by the real dockerd."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpunode.errors import Refused
from gpunode.runtimes import DesiredConfig
from tests.needs import lacking, program
from tests.unit.runtimes.docker_file import configure

DOCKERD = program("dockerd")
INPUTS = sorted((Path(__file__).parent / "vectors").glob("*dkr*/input.json"))
WISHES = {"plain": DesiredConfig(), "default": DesiredConfig(default=True, enable_cdi=True)}


def _validates(config: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    candidate = folder / "daemon.json"
    candidate.write_bytes(config)
    # dockerd also looks up the proxy's path, which need not exist.
    command = [str(DOCKERD), "--validate", "--userland-proxy=false", "--config-file", str(candidate)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(DOCKERD is None, reason=lacking("dockerd"))
@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize("file", INPUTS, ids=lambda file: file.parent.name)
def test_configured_file_is_valid_for_dockerd_if_the_input_was(file: Path, name: str, tmp_path: Path) -> None:
    before = _validates(file.read_bytes(), tmp_path)
    if before.returncode:
        pytest.skip("this dockerd does not take the file as it was, or cannot validate")
    try:
        out = configure(file.read_bytes(), WISHES[name])
    except Refused:
        pytest.skip("refused")
    after = _validates(out, tmp_path)
    assert after.returncode == 0, after.stderr
