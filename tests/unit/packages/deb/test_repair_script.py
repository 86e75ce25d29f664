"""The script that repairs half-installed packages, run by sh with stand-ins for dpkg and apt."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpunode.packages import deb

pytestmark = pytest.mark.usefixtures("allow_subprocess")
_DPKG_QUERY = """\
case "$*" in
  *Version*) echo "reinstreq half-installed p=1" ;;
  *) echo "reinstreq half-installed p" ;;
esac
"""


@pytest.mark.parametrize(
    ("archive", "tried"),
    [("exit 0", ["install p=1"]), ('case "$*" in *" p="*) exit 100 ;; esac', ["install p=1", "install p"])],
)
def test_half_installed_package_is_reinstalled_in_its_version_else_in_any(
    tmp_path: Path, archive: str, tried: list[str]
) -> None:
    scripts = {"dpkg": "exit 0", "dpkg-query": _DPKG_QUERY, "apt-get": archive, "apt-mark": 'echo "held"'}
    for name, script in scripts.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/log\n{script}\n')
        program.chmod(0o755)
    argv = deb.REPAIR_COMMAND.argv
    done = subprocess.run(argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text().splitlines()
    assert [line.partition("--reinstall ")[2] for line in log if "--reinstall" in line] == tried
    assert log[-1] == "apt-mark -qq hold held"
