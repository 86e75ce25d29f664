"""Builds a release into a folder: wheel, zipapp, packages, bill of materials and their checksums.

``python packaging/dist.py dist``. The same commit gives the same bytes: every date is the commit's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The modules beside this script, and the gpunode that is packaged.
sys.path[:0] = [str(ROOT / "packaging"), str(ROOT)]

import deb  # noqa: E402
import payload  # noqa: E402
import rpm  # noqa: E402
import sbom  # noqa: E402
from tree import Release, make_environment  # noqa: E402

# zip has no earlier year.
_EARLIEST = 315532800
_TOOLS = {"dpkg-deb": "dpkg", "rpmbuild": "rpm"}


def main(target: Path) -> int:
    """``target`` holds the release and nothing of an earlier one; returns the exit code."""
    if missing := [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]:
        sys.stderr.write(f"make dist needs more programs; on Debian: apt-get install {' '.join(missing)}\n")
        return 1
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="gpunode-dist-") as folder:
        made = Path(folder, "made")
        made.mkdir()
        build(Path(folder), made)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    return 0


def build(folder: Path, target: Path) -> None:
    """The release in ``target``, made in the empty ``folder``."""
    version, moment = _version(), _moment()
    wheel = _wheel(make_environment("build.txt", folder / "build"), target, moment)
    hashes = payload.install(wheel, folder / "payload", folder / "installed.json")
    zipapp = target / "gpunode.pyz"
    payload.write(folder / "payload", version, moment, zipapp)
    release = Release(version, moment, zipapp)
    deb.build(release, folder / "deb", target)
    rpm.build(release, folder / "rpm", target)
    (folder / "sbom").mkdir()
    sbom.write(release, folder / "payload", hashes, folder / "sbom", target)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(target.iterdir())]
    (target / "SHA256SUMS").write_text("".join(sums))


def _wheel(python: Path, target: Path, moment: int) -> Path:
    """Build the wheel with what ``python``'s environment has, and return its path in ``target``."""
    pip = (python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment)}
    subprocess.run([*pip, "--wheel-dir", target, ROOT], check=True, env=environment)
    return next(target.glob("*.whl"))


def _version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "gpunode/__init__.py").read_text("utf-8"), re.MULTILINE)
    assert found
    return found[1]


def _moment() -> int:
    """SOURCE_DATE_EPOCH, or when the commit was made; without git the earliest date there is."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return max(int(said), _EARLIEST)
    argv = ("git", "-C", ROOT, "log", "-1", "--format=%ct")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return _EARLIEST
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
