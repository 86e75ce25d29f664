"""Contents of a release, and the verdicts of the distributions' own checkers."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.distribution.conftest import ROOT

pytestmark = pytest.mark.e2e


def tool(name: str) -> str:
    if (found := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed; apt-get install {name}")
    return found


def test_lintian_passes(release: Path) -> None:
    argv = (tool("lintian"), "--fail-on", "error,warning,info", "--allow-root", next(release.glob("*.deb")))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_rpmlint_passes(release: Path) -> None:
    argv = (tool("rpmlint"), "--config", ROOT / "packaging/rpmlint.toml", next(release.glob("*.rpm")))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "0 errors, 0 warnings" in done.stdout, done.stdout


def test_every_file_is_in_the_checksums(release: Path) -> None:
    lines = (line.split("  ") for line in (release / "SHA256SUMS").read_text().splitlines())
    listed = {name: digest for digest, name in lines}
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in release.iterdir()}
    del found["SHA256SUMS"]
    assert listed == found


def test_bill_of_materials_lists_the_dependencies_of_the_zipapp(release: Path) -> None:
    bill = json.loads((release / "gpunode.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "gpunode"
    pinned = {
        line.split()[0] for line in (ROOT / "packaging/requirements.txt").read_text().splitlines() if "==" in line
    }
    assert {f"{one['name'].lower()}=={one['version']}" for one in bill["components"]} == pinned


def test_component_of_the_bill_has_the_hash_of_its_pinned_wheel(release: Path) -> None:
    bill = json.loads((release / "gpunode.cdx.json").read_text())
    pinned = set(re.findall(r"sha256:([0-9a-f]{64})", (ROOT / "packaging/requirements.txt").read_text()))
    hashes = [one["hashes"] for one in bill["components"]]
    assert {entry["alg"] for found in hashes for entry in found} == {"SHA-256"}
    assert {entry["content"] for found in hashes for entry in found} <= pinned
    assert len({entry["content"] for found in hashes for entry in found}) == len(hashes)


def test_wheel_is_built_by_the_pinned_program(release: Path) -> None:
    pin = re.search(r"^hatchling==(\S+)", (ROOT / "packaging/build.txt").read_text(), re.MULTILINE)
    with zipfile.ZipFile(next(release.glob("*.whl"))) as wheel:
        about = next(name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
        assert pin
        assert f"Generator: hatchling {pin[1]}\n" in wheel.read(about).decode()


@pytest.mark.long
def test_release_is_reproducible(release: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "packaging/dist.py", tmp_path / "again"], check=True)
    assert (tmp_path / "again/SHA256SUMS").read_text() == (release / "SHA256SUMS").read_text()
