"""Build a release into a folder: wheel, zipapp, packages, bill of materials and their checksums.

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
_EARLIEST_ZIP_TIME = 315532800
_PACKAGE_BY_TOOL = {"dpkg-deb": "dpkg", "rpmbuild": "rpm"}


def main(target: Path) -> int:
    """Build the release in ``target``, without files of an earlier one, and return the exit code."""
    if missing := [package for tool, package in _PACKAGE_BY_TOOL.items() if shutil.which(tool) is None]:
        sys.stderr.write(f"make dist needs more programs; on Debian: apt-get install {' '.join(missing)}\n")
        return 1
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="gpunode-dist-") as folder:
        new_release = Path(folder, "release")
        new_release.mkdir()
        build(Path(folder), new_release)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(new_release, target)
    return 0


def build(folder: Path, target: Path) -> None:
    """Build the release in ``target``, using the empty ``folder``."""
    version, moment = _read_version(), _release_time()
    wheel = _build_wheel(make_environment("build.txt", folder / "build"), target, moment)
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


def _build_wheel(python: Path, target: Path, moment: int) -> Path:
    """Build the wheel with what ``python``'s environment has, and return its path in ``target``."""
    pip = (python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment)}
    subprocess.run([*pip, "--wheel-dir", target, ROOT], check=True, env=environment)
    return next(target.glob("*.whl"))


def _read_version() -> str:
    match = re.search(r'^__version__ = "(.+)"$', (ROOT / "gpunode/__init__.py").read_text("utf-8"), re.MULTILINE)
    assert match
    return match[1]


def _release_time() -> int:
    """Return SOURCE_DATE_EPOCH, else the time of the commit; without git the earliest date that a zip can have."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return max(int(epoch), _EARLIEST_ZIP_TIME)
    argv = ("git", "-C", ROOT, "log", "-1", "--format=%ct")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return _EARLIEST_ZIP_TIME
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
