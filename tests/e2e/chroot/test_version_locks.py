"""Nodes made from one lock have the same packages, even if the repositories got newer ones in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chroot.scenario import DIRECTORIES, RECIPE, Lab, as_machine, ask, called, setup, setup_ok
from tests.e2e.lab import driver
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.debs import Package
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e

LOCK = "/root/fleet.lock"
DRIVER, NEWER = "595.91.07-1", "595.99.03-1"
TOOLKIT = "1.19.1-1"
DIRECTORY = DIRECTORIES["bookworm"]


@pytest.fixture(scope="module")
def newer(chroots: Lab) -> Path:
    """Return the CUDA repository after a release with a newer driver of the branch."""
    folder = chroots.folder / "newer"
    made = driver.make_driver(NEWER.partition("-")[0], chroots.folder / "newer-native")
    return chroots.repositories.variant(DIRECTORY, folder, added=driver.debian_packages(made))


@pytest.fixture(scope="module")
def lock(bases: dict[str, Bases], chroots: Lab) -> Iterator[tuple[str, dict[str, str], Chroot]]:
    """Yield a lock, the packages of the node that it was written on, and that node."""
    with node_like(bases, chroots) as first:
        as_machine(first)
        chroots.recipe(first, DIRECTORY, more=f'[toolkit]\nversion = "{TOOLKIT}"\n')
        unknown = ask(first, "plan", RECIPE, "--lock", LOCK)
        assert unknown.exit_code == 13
        assert not first.path(LOCK).exists()
        setup_ok(first)
        written = ask(first, "plan", RECIPE, "--lock", LOCK)
        assert (written.exit_code, written.changes) == (0, [])
        yield first.read(LOCK), first.installed(), first


def node_like(bases: dict[str, Bases], chroots: Lab) -> Chroot:
    return chroots.node(bases["bookworm"].runtime, [T4])


def release(node: Chroot, chroots: Lab, newer: Path) -> None:
    """Publish the newer driver in the repository that ``node`` sees."""
    node.server.mount(chroots.repositories.cuda_path(DIRECTORY), newer)


def prepare(node: Chroot, chroots: Lab, lock: str) -> None:
    as_machine(node)
    chroots.recipe(node, DIRECTORY)
    node.write(LOCK, lock)


def test_second_node_gets_the_same_packages_despite_newer_ones(
    bases: dict[str, Bases], chroots: Lab, lock: tuple[str, dict[str, str], Chroot], newer: Path
) -> None:
    text, first, _ = lock
    with node_like(bases, chroots) as second:
        prepare(second, chroots, text)
        release(second, chroots, newer)

        done = setup_ok(second, "--lock", LOCK)

        assert second.installed() == first
        assert first["nvidia-driver-cuda"] == DRIVER
        assert first["nvidia-container-toolkit"] == TOOLKIT
        assert NEWER in second.run("apt-cache", "madison", "nvidia-driver-cuda").stdout
        assert {check["status"] for check in done.result["checks"]} == {"passed"}
        assert ask(second, "plan", RECIPE, "--check", "--lock", LOCK).exit_code == 0
        called(second)
        assert setup_ok(second, "--lock", LOCK).changes == []
        assert called(second).lines == (), "a locked node that is as it should be starts no apt either"
        assert ask(second, "plan", RECIPE, "--check").exit_code == 0, "nor does a run without the lock undo it"
        assert second.read(LOCK) == text


@pytest.mark.long
def test_newer_and_older_nodes_are_moved_to_the_locked_versions(
    bases: dict[str, Bases], chroots: Lab, lock: tuple[str, dict[str, str], Chroot], newer: Path
) -> None:
    text, first, _ = lock
    with node_like(bases, chroots) as node:
        prepare(node, chroots, text)
        release(node, chroots, newer)
        assert setup(node).exit_code == 0
        assert node.installed()["libcuda1"] == NEWER
        marks = node.run("apt-mark", "showauto").stdout

        drifted = ask(node, "plan", RECIPE, "--check", "--lock", LOCK)
        assert drifted.exit_code == 4
        assert {"nvidia-driver-cuda", "nvidia-container-toolkit"} <= {change["subject"] for change in drifted.changes}
        back = setup(node, "--lock", LOCK)
        assert back.exit_code == 10, "the newer module is still the loaded one"
        assert node.installed() == first
        assert set(node.run("apt-mark", "showauto").stdout.split()) == set(marks.split())

        node.run("modprobe", "-r", "nvidia")
        upgraded = setup(node, "--upgrade")
        assert node.installed()["libcuda1"] == NEWER, upgraded.error
        renewed = ask(node, "plan", RECIPE, "--upgrade", "--lock", LOCK)
        assert renewed.exit_code == 0
        changed = {row["name"]: row["after"] for row in renewed.result["lock"]["changed"]}
        assert changed["libcuda1"] == NEWER
        assert NEWER in node.read(LOCK)


def test_locked_version_gone_from_the_archive_is_refused_untouched(
    bases: dict[str, Bases], chroots: Lab, lock: tuple[str, dict[str, str], Chroot]
) -> None:
    with node_like(bases, chroots) as node:
        prepare(node, chroots, lock[0].replace(DRIVER, "595.55.01-1"))
        packages, kernel = node.installed(), node.fingerprint("/etc/modprobe.d", "/etc/containerd", "/boot")

        refused = setup(node, "--lock", LOCK)

        assert refused.exit_code == 3
        assert "nvidia-driver-cuda 595.55.01-1" in refused.error
        assert LOCK in refused.error
        assert node.installed() == packages
        assert node.fingerprint("/etc/modprobe.d", "/etc/containerd", "/boot") == kernel


@pytest.mark.parametrize(
    ("change", "options", "exit_code", "word"),
    [
        (('release = "12"', 'release = "13"'), (), 3, "debian 13"),
        (('architecture = "amd64"', 'architecture = "arm64"'), (), 3, "arm64"),
        (("schema = 1", "schema = 7"), (), 2, f"{LOCK}:4"),
        (("", ""), ("--upgrade",), 2, "contradict"),
    ],
)
def test_invalid_lock_changes_nothing(
    lock: tuple[str, dict[str, str], Chroot],
    change: tuple[str, str],
    options: tuple[str, ...],
    exit_code: int,
    word: str,
) -> None:
    text, _, node = lock
    node.write("/root/other.lock", text.replace(*change))
    before = node.fingerprint("/etc", "/var/lib/dpkg", "/var/lib/gpunode")
    refused = setup(node, "--lock", "/root/other.lock", *options)
    assert refused.exit_code == exit_code
    assert word.replace(LOCK, "/root/other.lock") in refused.error
    assert node.fingerprint("/etc", "/var/lib/dpkg", "/var/lib/gpunode") == before


@pytest.mark.long
def test_dependencies_are_installed_in_their_locked_version(bases: dict[str, Bases], chroots: Lab) -> None:
    """The open-source parts of a driver with a display have their own versions."""
    old, new = (Package("libnvidia-egl-gbm1", version) for version in ("1.1.2-1", "1.1.3-1"))
    needs = Package("nvidia-modprobe", "595.91.07-1", depends=("libnvidia-egl-gbm1 (>= 1.1)",))
    variant = chroots.repositories.variant(
        DIRECTORY, chroots.folder / "own-versions", added=[old, new, needs], without="nvidia-modprobe_595*"
    )
    with node_like(bases, chroots) as node:
        prepare(node, chroots, "")
        node.server.mount(chroots.repositories.cuda_path(DIRECTORY), variant)
        recipe = chroots.recipe(node, DIRECTORY, "bare-metal")
        setup_ok(node, recipe=recipe)
        assert node.installed()["libnvidia-egl-gbm1"] == "1.1.3-1"
        node.path(LOCK).unlink()
        ask(node, "plan", RECIPE, "--lock", LOCK)
        text = node.read(LOCK)
        assert 'libnvidia-egl-gbm1 = "1.1.3-1"' in text
    with node_like(bases, chroots) as node:
        prepare(node, chroots, text.replace("1.1.3-1", "1.1.2-1"))
        node.server.mount(chroots.repositories.cuda_path(DIRECTORY), variant)
        recipe = chroots.recipe(node, DIRECTORY, "bare-metal")
        setup_ok(node, "--lock", LOCK, recipe=recipe)
        assert node.installed()["libnvidia-egl-gbm1"] == "1.1.2-1"
        assert "libnvidia-egl-gbm1" in node.run("apt-mark", "showauto").stdout.split()
        assert setup_ok(node, "--lock", LOCK, recipe=recipe).changes == []


@pytest.mark.long
def test_packages_downloaded_ahead_are_installed_offline(
    bases: dict[str, Bases], chroots: Lab, lock: tuple[str, dict[str, str], Chroot], newer: Path
) -> None:
    text, _, _ = lock
    with node_like(bases, chroots) as node:
        prepare(node, chroots, text)
        early = ask(node, "setup", RECIPE, "--lock", LOCK, "--download-only")
        assert early.exit_code == 3, "no repository has the driver yet"
        setup_ok(node, "--lock", LOCK)
        release(node, chroots, newer)
        node.write(LOCK, text.replace(DRIVER, NEWER))
        before = node.fingerprint("/etc", "/var/lib/dpkg/status", "/var/lib/gpunode")

        ahead = ask(node, "setup", RECIPE, "--lock", LOCK, "--download-only")

        assert ahead.exit_code == 0, ahead.error
        assert "nvidia-driver-cuda" in ahead.result["downloaded"]
        assert not ahead.changes
        assert node.fingerprint("/etc", "/var/lib/dpkg/status", "/var/lib/gpunode") == before
        node.server.mount(chroots.repositories.cuda_path(DIRECTORY), chroots.folder)
        assert setup(node, "--lock", LOCK).exit_code == 10, "the older module is still the loaded one"
        assert node.installed()["libcuda1"] == NEWER
