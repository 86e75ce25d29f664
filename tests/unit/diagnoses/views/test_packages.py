"""Packages, their history and their archives, in the forms of apt, dpkg, dnf, zypper and pacman."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import repositories
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.views import cuda, packages
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture

UNATTENDED = """Start-Date: 2024-06-12  06:33:01
Commandline: /usr/bin/unattended-upgrade
Upgrade: libc6:amd64 (1, 2), nvidia-utils-535:amd64 (535.171.04-0ubuntu1, 535.183.01-0ubuntu1)
"""
BY_HAND = """Commandline: apt install nvidia-driver-550
Requested-By: bob (1000)
Install: nvidia-driver-550:amd64 (550.90.07-0ubuntu1), libxnvctrl0:amd64 (1, automatic)
"""
DNF = """Command Line   : /usr/bin/dnf-automatic --timer
    Upgrade  nvidia-driver-3:550.90.07-1.el9.x86_64 @cuda
"""


def snapshot_of(*pieces: tuple[str, str]) -> Snapshot:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report"))


@pytest.mark.parametrize(
    ("source", "line", "name", "version"),
    [
        ("dpkg -l", "ii  nvidia-dkms-550:amd64  550.90.07-0ubuntu1  amd64  x", "nvidia-dkms-550", "550.90.07"),
        ("apt list --installed", "nvidia-dkms-550/now 550.90.07-1 amd64 [installed]", "nvidia-dkms-550", "550.90.07"),
        ("rpm -qa", "nvidia-driver-cuda-550.54.15-1.el9.x86_64", "nvidia-driver-cuda", "550.54.15"),
        ("dnf list --installed", "nvidia-driver.x86_64  3:550.54.15-1.el9  @cuda", "nvidia-driver", "550.54.15"),
        ("pacman -Q", "nvidia-utils 555.58.02-1", "nvidia-utils", "555.58.02"),
        ("dpkg-query -W", "nvidia-utils-550\t550.90.07-0ubuntu1", "nvidia-utils-550", "550.90.07"),
    ],
)  # fmt: skip
def test_package_list_formats_are_parsed(source: str, line: str, name: str, version: str) -> None:
    found = snapshot_of((source, line)).view(packages.listed_packages)
    assert found[name].upstream == version
    assert found[name].is_installed


def test_packages_of_a_container_are_not_the_nodes() -> None:
    inside = snapshot_of(("docker exec app dpkg -l", "ii  nvidia-utils-535  535.104.05-0ubuntu1  amd64  x"))
    assert not inside.view(packages.listed_packages)
    assert [one.name for one in packages.container_packages(inside)] == ["nvidia-utils-535"]


def test_unfinished_package_is_read_from_dpkg_status() -> None:
    text = "Package: bash\nStatus: install ok installed\nVersion: 5\n\n"
    text += "Package: nvidia-dkms-550\nStatus: install ok half-configured\nVersion: 550.90.07-0ubuntu1\n"
    found = take_snapshot({"dpkg-status": Capture("/var/lib/dpkg/status", "ok", text.encode())}).view(
        packages.listed_packages
    )
    assert found["nvidia-dkms-550"].is_half_done
    assert "bash" not in found or not found["bash"].is_half_done


@pytest.mark.parametrize(
    ("source", "text", "name", "driver", "automatic"),
    [
        ("/var/log/apt/history.log", UNATTENDED,
         "nvidia-utils-535", "535.183.01", True),
        ("/var/log/apt/history.log", BY_HAND,
         "nvidia-driver-550", "550.90.07", False),
        ("/var/log/dpkg.log", "2024-06-12 06:33:01 upgrade libnvidia-compute-535:amd64 535.171.04-1 535.183.01-1",
         "libnvidia-compute-535", "535.183.01", False),
        ("/var/log/apt/term.log", "Unpacking nvidia-dkms-550 (550.107.02-0ubuntu1) over (550.90.07-0ubuntu1) ...",
         "nvidia-dkms-550", "550.107.02", False),
        ("dnf history info 4", DNF,
         "nvidia-driver", "550.90.07", True),
        ("/var/log/yum.log", "Dec 21 04:40:12 Updated: 1:nvidia-kmod-387.26-2.el7.x86_64",
         "nvidia-kmod", "387.26", False),
        ("/var/log/pacman.log", "[2024-06-12T10:00:00+0000] [ALPM] upgraded nvidia-utils (555.58-1 -> 555.58.02-1)",
         "nvidia-utils", "555.58.02", False),
        ("/var/log/zypp/history", "2024-06-12 10:00:00|install|nvidia-compute-G06|550.90.07-1|x86_64||repo|abc|",
         "nvidia-compute-G06", "550.90.07", False),
    ],
)  # fmt: skip
def test_package_log_formats_are_parsed(source: str, text: str, name: str, driver: str, automatic: bool) -> None:
    found = {one.name: one for one in packages.logged_driver_upgrades(snapshot_of((source, text)))}
    assert found[name].driver == driver
    assert found[name].is_automatic is automatic


def test_entries_of_one_archive_with_different_keys_conflict() -> None:
    url = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
    grepped = f"/etc/apt/sources.list.d/new.list:deb [signed-by=/usr/share/keyrings/k.gpg] {url} /\n"
    (found,) = repositories.conflicting_entries(
        snapshot_of(("grep -r nvidia /etc/apt", grepped + f"/etc/apt/sources.list.d/old.list:deb {url} /"))
    )
    assert [entry.source.file for entry in found] == [
        "/etc/apt/sources.list.d/new.list",
        "/etc/apt/sources.list.d/old.list",
    ]
    assert not repositories.conflicting_entries(snapshot_of(("grep -r nvidia /etc/apt", grepped * 2)))


@pytest.mark.parametrize(
    ("path", "sort"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "driver"),
        ("/usr/lib64/libnvidia-ml.so.1", "driver"),
        ("/usr/local/cuda-12.4/compat/libcuda.so.1", "compat"),
        ("/usr/local/cuda/lib64/stubs/libcuda.so", "stub"),
        ("/opt/conda/lib/libcuda.so.1", "other"),
    ],
)
def test_library_path_tells_its_origin(path: str, sort: str) -> None:
    assert cuda.library_sort(path) == sort


def test_first_entry_of_the_loader_cache_wins() -> None:
    cache = "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n"
    cache += "\tlibcuda.so.1 (libc6,x86-64) => /usr/local/cuda/compat/libcuda.so.1\n"
    (found,) = snapshot_of(("ldconfig -p", cache)).view(cuda.loaded_libraries)
    assert found.sort == "driver"
