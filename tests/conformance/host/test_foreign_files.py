"""dpkg's own files tell which files belong to which package, on this machine and in an image."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpunode.change import FileState
from gpunode.host.local import LocalHost
from gpunode.workflow.live_state import find_owners, find_packaged_files, package_checksum
from tests.needs import lacking


@pytest.mark.skipif(bool(lacking("dpkg-query")), reason=lacking("dpkg-query"))
def test_files_of_no_package_are_found(tmp_path: Path) -> None:
    foreign = str(tmp_path / "nvidia-smi")
    dpkgs, libc = ["/usr/bin/dpkg", "/usr/bin/dpkg-query"], [*map(str, Path("/usr/lib").glob("*-linux-gnu/libc.so.6"))]
    assert find_owners(LocalHost(), [*dpkgs, foreign]) == dict.fromkeys(dpkgs, ("dpkg",))
    assert find_owners(LocalHost(), libc).keys() == {*libc}
    assert find_owners(LocalHost(), []) == {}


@pytest.mark.skipif(bool(lacking("dpkg-deb")), reason=lacking("dpkg-deb"))
def test_file_in_an_image_is_a_packages_as_long_as_it_is_as_shipped(tmp_path: Path) -> None:
    root, tree, path = tmp_path / "image", tmp_path / "tree", "/usr/share/keyrings/cuda.gpg"
    shipped, other = FileState(b"key"), FileState(b"another key")
    for name, text in (
        (
            "DEBIAN/control",
            "Package: cuda-keyring\nVersion: 1\nArchitecture: amd64\nMaintainer: m <m@x>\nDescription: d\n",
        ),
        ("DEBIAN/md5sums", f"{package_checksum(shipped.content)}  {path[1:]}\n"),
        (path[1:], "key"),
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (root / "var/lib/dpkg/updates").mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = ("dpkg", "--force-architecture,not-root,bad-path", f"--root={root}", "--log=/dev/null")
    subprocess.run(("dpkg-deb", "--root-owner-group", "--build", tree, tmp_path / "a.deb"), check=True)
    subprocess.run((*dpkg, "--install", tmp_path / "a.deb"), check=True)
    host = LocalHost(str(root))

    assert find_packaged_files(host, {path: shipped, "/etc/other": shipped}) == {path: "cuda-keyring"}
    assert find_packaged_files(host, {path: other}) == {}
    assert find_packaged_files(host, {path: shipped}, {"cuda-keyring"}) == {}
    assert find_owners(host, [path, "/etc/other"]) == {path: ("cuda-keyring",)}

    divert = ("dpkg-divert", f"--admindir={root}/var/lib/dpkg", f"--instdir={root}", "--local", "--no-rename", path)
    subprocess.run(divert, check=True)
    assert find_owners(host, [path, f"{path}.distrib"]) == {f"{path}.distrib": ("cuda-keyring",)}
    subprocess.run((*dpkg, "--purge", "cuda-keyring"), check=True)
    assert find_packaged_files(host, {f"{path}.distrib": shipped}) == {}
