"""The host's own apt settings do not change what gpunode asks of apt; the real apt answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.host.apt import SIMULATE_COMMAND

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")

_PACKAGE = """\
Package: {name}
Architecture: amd64
Version: {version}
Description: x
Maintainer: x
Filename: ./{name}.deb
Size: 1
MD5sum: d41d8cd98f00b204e9800998ecf8427e
{more}
"""
_INSTALLED = ("there", "old", "leaves", "held")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lists = tmp_path / "var/lib/apt/lists"
    for folder in (lists, tmp_path / "var/lib/dpkg", tmp_path / "var/cache/apt/archives", tmp_path / "etc/apt"):
        folder.mkdir(parents=True)
    rows = (
        _PACKAGE.format(name=name, version=1, more=f"Status: {'hold' if name == 'held' else 'install'} ok installed\n")
        for name in _INSTALLED
    )
    (tmp_path / "var/lib/dpkg/status").write_text("".join(rows))
    (tmp_path / "etc/apt/sources.list").write_text("deb [trusted=yes] http://archive.invalid/ ./\n")
    offered = (("new", "Suggests: extra\n"), ("extra", ""), ("old", ""))
    packages = (_PACKAGE.format(name=name, version=2, more=more) for name, more in (*offered, ("held", "")))
    (lists / "archive.invalid_._Release").write_text("Origin: Lab\n")
    (lists / "archive.invalid_._Packages").write_text("".join(packages))
    return tmp_path


def run_apt(root: Path, settings: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run apt as gpunode does, with the host's ``settings``."""
    text = f'Dir "{root}"; Dir::State::status "{root}/var/lib/dpkg/status"; APT::Architecture "amd64";\n{settings}'
    (root / "apt.conf").write_text(text)
    env = {**os.environ, "APT_CONFIG": str(root / "apt.conf"), "LC_ALL": "C"}
    return subprocess.run([*SIMULATE_COMMAND, *words], env=env, capture_output=True, text=True, check=False)


def simulate(root: Path, settings: str, *words: str) -> tuple[int, list[str]]:
    """Return the exit status and the actions of apt."""
    done = run_apt(root, settings, *words)
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith(("Inst", "Remv", "Purg"))]


@pytest.mark.parametrize(
    "setting",
    [
        'APT::Get::Only-Upgrade "true";',
        'APT::Get::Upgrade "false";',
        'APT::Get::Remove "false";',
        'APT::Get::Purge "true";',
        'APT::Get::ReInstall "true";',
        'APT::Install-Suggests "true";',
        'APT::Install-Recommends "true";',
        'APT::Get::AutomaticRemove "true";',
    ],
)
def test_settings_of_the_host_change_no_transaction(setting: str, root: Path) -> None:
    asked = ("new", "old", "there", "leaves-")
    status, actions = simulate(root, "", *asked)
    assert (status, [line.split()[:2] for line in actions]) == (
        0,
        [["Remv", "leaves"], ["Inst", "new"], ["Inst", "old"]],
    )
    assert simulate(root, setting, *asked) == (status, actions)


@pytest.mark.parametrize("setting", ["APT::Get::allow-change-held-packages", "APT::Get::Force-Yes", "APT::Ignore-Hold"])
def test_settings_of_the_host_break_no_hold(setting: str, root: Path) -> None:
    assert simulate(root, f'{setting} "true";', "held")[0] != 0


def test_held_package_is_listed_by_its_name_alone(root: Path) -> None:
    """Expect the bare name, because gpunode builds a command from apt's list."""
    done = run_apt(root, 'APT::Get::Show-Versions "true";', "held")
    assert "The following held packages will be changed:\n  held\n" in done.stdout
