"""This machine's apt simulates on an image's packages; no program that the image's configuration names runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.host import image_apt
from gpunode.host.image_apt import simulate_image
from gpunode.package_id import PackageId
from gpunode.packages.simulation import NOT_SIMULATED_PREFIX, Action

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")

PACKAGES = """\
Package: tool
Architecture: amd64
Version: {version}
Depends: library
Filename: ./tool.deb
Size: 1
MD5sum: d41d8cd98f00b204e9800998ecf8427e

Package: library
Architecture: amd64
Version: 7
Filename: ./library.deb
Size: 1
MD5sum: d41d8cd98f00b204e9800998ecf8427e

"""
STATUS = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\nDescription: x\nMaintainer: x\n\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    lists = root / "var/lib/apt/lists"
    for folder in (lists, root / "var/lib/dpkg", root / "etc/apt/preferences.d", root / "etc/apt/apt.conf.d"):
        folder.mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(STATUS.format("dpkg") + STATUS.format("old"))
    (root / "etc/apt/sources.list").write_text("deb [trusted=yes] http://archive.invalid/ ./\n")
    (lists / "archive.invalid_._Release").write_text("Origin: Lab\nLabel: Lab\nSuite: stable\n")
    (lists / "archive.invalid_._Packages").write_text(PACKAGES.format(version="2") + PACKAGES.format(version="3"))
    (root / "etc/apt/preferences.d/pin").write_text("Package: tool\nPin: version 2\nPin-Priority: 1001\n")
    hooks = "".join(
        f'{name} {{ "touch {tmp_path}/RAN"; }};\n' for name in ("APT::Update::Pre-Invoke", "DPkg::Pre-Invoke")
    )
    hooks += f'Dir::Bin::dpkg "{tmp_path}/program"; Dir::Bin::solvers {{ "{tmp_path}"; }};\n'
    (root / "etc/apt/apt.conf.d/hooks").write_text(hooks)
    (root / "etc/apt/apt.conf").write_text(hooks)
    (tmp_path / "program").write_text(f"#!/bin/sh\ntouch {tmp_path}/RAN\n")
    (tmp_path / "program").chmod(0o755)
    return root


def install(name: str) -> PackageChange:
    return PackageChange(PackageId.of(name), None, KnownAfter())


def test_image_simulation_uses_its_sources_pins_and_status(root: Path) -> None:
    removal = PackageChange(PackageId("old"), PackageState("1"), None)

    simulation = simulate_image(str(root), [install("tool"), removal])

    assert simulation.problem == ""
    assert {(action.verb, str(action.id), action.version) for action in simulation.actions} == {
        ("install", "tool", "2"),
        ("install", "library", "7"),
        ("purge", "old", ""),
    }
    assert not (root.parent / "RAN").exists()


def test_image_simulation_reads_nothing_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:$6$hash:1\n")
    (root / "etc/apt/sources.list.d").mkdir()
    (root / "etc/apt/sources.list.d/evil.list").symlink_to(tmp_path / "secret")
    shutil.move(root / "etc/apt/preferences.d", tmp_path / "preferences.d")
    (root / "etc/apt/preferences.d").symlink_to(tmp_path / "preferences.d")

    simulation = simulate_image(str(root), [install("tool")])

    assert Action("install", PackageId("tool"), "3") in simulation.actions
    assert "$6$" not in simulation.problem


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives its privileges up")
def test_image_simulation_runs_as_nobody_without_privileges(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for apt, in the first folder of gpunode's own PATH, prints its user."""
    from gpunode.host import process

    (tmp_path / "bin").mkdir()
    for folder in (tmp_path / "bin", tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    monkeypatch.setattr(process, "PATH", f"{tmp_path}/bin:{process.PATH}")
    program = tmp_path / "bin/apt-get"
    program.write_text('#!/bin/sh\ngrep -E "^(Uid|Groups|CapBnd|NoNewPrivs)" /proc/self/status >&2; exit 1\n')
    program.chmod(0o755)

    said = simulate_image(str(root), [install("tool")]).problem

    rows = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert (rows["Uid"], rows["NoNewPrivs"]) == ("65534\t65534\t65534\t65534", "1")
    assert int(rows["CapBnd"], 16) == 0


def test_image_of_unknown_architecture_is_not_simulated(root: Path) -> None:
    """Without dpkg, the packages determine the architecture, if they agree."""
    foreign = STATUS.format("old").replace("Architecture: amd64", "Architecture: i386")
    (root / "var/lib/dpkg/status").write_text(f"{STATUS.format('old')}\n{foreign}")

    assert simulate_image(str(root), [install("tool")]).problem.startswith(NOT_SIMULATED_PREFIX)


def test_oversized_image_state_is_not_copied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No single file is too large, but together they are."""
    monkeypatch.setattr(image_apt, "_MAX_COPIED_BYTES", 4 << 20)
    for number in range(5):
        with (root / f"var/lib/apt/lists/archive.invalid_{number}_Packages").open("wb") as file:
            file.truncate(1 << 20)

    problem = simulate_image(str(root), [install("tool")]).problem

    assert problem == f"{NOT_SIMULATED_PREFIX}the state of the image's apt cannot be copied: it is larger than 4 MiB"
