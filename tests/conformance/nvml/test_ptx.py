"""The kernel's PTX text, assembled by NVIDIA's real ptxas for every architecture that it knows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.host.cuda import VECTOR_ADD_PTX


def _assemblers() -> list[str]:
    """Return those in ``GPUNODE_PTXAS`` (``pip download nvidia-cuda-nvcc`` has one), or else the one on PATH."""
    named = [path for path in os.environ.get("GPUNODE_PTXAS", "").split(":") if path]
    return named or [
        path for path in (shutil.which("ptxas"), "/usr/local/cuda/bin/ptxas") if path and Path(path).exists()
    ]


def test_every_architecture_assembles_the_ptx(tmp_path: Path) -> None:
    assemblers = _assemblers()
    if not assemblers:
        pytest.skip("no ptxas here; GPUNODE_PTXAS=… names one")
    source = tmp_path / "add.ptx"
    source.write_bytes(VECTOR_ADD_PTX.rstrip(b"\0"))
    for ptxas in assemblers:
        known = subprocess.run([ptxas, "--help"], check=True, capture_output=True, text=True).stdout
        chips = sorted(set(re.findall(r"'(sm_\d+)'", known)))
        assert chips, "ptxas names no architecture"
        for chip in chips:
            done = subprocess.run(
                [ptxas, f"-arch={chip}", "-o", str(tmp_path / "out"), str(source)], check=False, capture_output=True
            )
            assert done.returncode == 0, (ptxas, chip, done.stderr)
