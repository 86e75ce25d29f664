"""Trust in packages: keys are checked before they are written, signatures before anything is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chroot.scenario import DIRECTORIES, Lab, as_machine, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import run
from tests.e2e.lab.keys import Key
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e

KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
TOOLKIT_KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"


@pytest.fixture(params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def node(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    with chroots.node(bases[str(request.param)].runtime, [T4]) as made:
        as_machine(made)
        chroots.recipe(made, DIRECTORIES[made.base.codename], "bare-metal")
        yield made


def key_path(node: Chroot, lab: Lab) -> str:
    return lab.repositories.key_path(DIRECTORIES[node.base.codename])


def own_key(node: Chroot, lab: Lab) -> Key:
    return lab.repositories.keys.of(DIRECTORIES[node.base.codename])


def assert_untouched(node: Chroot, packages: dict[str, str]) -> None:
    """Assert that no NVIDIA package, key or source was added, and that apt trusts the same keys as before."""
    assert node.installed() == packages
    assert not node.path(KEYRING).exists()
    assert sorted(p.name for p in node.path("/etc/apt/sources.list.d").iterdir()) == ["lab.list"]
    assert list(node.path("/etc/apt/trusted.gpg.d").glob("*nvidia*")) == []
    node.run("apt-get", "update")


def test_wrong_key_is_refused_before_it_is_written(node: Chroot, chroots: Lab) -> None:
    packages = node.installed()
    stranger = chroots.repositories.keys.stranger
    node.server.replace(key_path(node, chroots), stranger.armored.encode())

    refused = setup(node)

    assert refused.exit_code == 3
    assert stranger.fingerprint in refused.error, "the one that was found"
    assert own_key(node, chroots).fingerprint in refused.error, "the one that was meant"
    assert_untouched(node, packages)


@pytest.mark.parametrize("shape", ["one block", "two blocks", "binary"])
def test_key_file_with_an_additional_key_is_refused(shape: str, node: Chroot, chroots: Lab, tmp_path: Path) -> None:
    packages, own, stranger = node.installed(), own_key(node, chroots), chroots.repositories.keys.stranger
    exported = ["gpg", "--homedir", str(own.home), "--batch", "--export", "--output"]
    binary, armored = tmp_path / "binary", tmp_path / "armored"
    run([*exported, str(binary), own.fingerprint, stranger.fingerprint])
    run([*exported, str(armored), "--armor", own.fingerprint, stranger.fingerprint])
    contents = {
        "one block": armored.read_bytes(),
        "two blocks": (own.armored + stranger.armored).encode(),
        "binary": binary.read_bytes(),
    }
    node.server.replace(key_path(node, chroots), contents[shape])

    refused = setup(node)

    assert refused.exit_code == 3
    assert_untouched(node, packages)


def test_download_that_is_no_key_is_refused(node: Chroot, chroots: Lab) -> None:
    packages = node.installed()
    node.server.replace(key_path(node, chroots), b"<html>Please accept our terms of use</html>")

    refused = setup(node)

    assert refused.exit_code == 3
    assert "<html>" in refused.error
    assert_untouched(node, packages)


def test_missing_key_stops_the_run_with_the_reason(node: Chroot, chroots: Lab) -> None:
    packages = node.installed()
    node.server.gone(key_path(node, chroots))

    failed = setup(node)

    assert failed.exit_code == 6
    assert "404" in failed.error
    assert key_path(node, chroots) in failed.error
    assert_untouched(node, packages)

    node.server.restore()
    setup_ok(node)


# Debian 13's apt checks signatures with another program.
@pytest.mark.parametrize("node", ["bookworm", pytest.param("trixie", marks=pytest.mark.long)], indirect=True)
def test_repository_signed_with_another_key_installs_nothing(node: Chroot, chroots: Lab, tmp_path: Path) -> None:
    directory = DIRECTORIES[node.base.codename]
    # Hard links to the packages require the lab's own file system.
    folder = chroots.folder / f"foreign-{node.base.codename}"
    chroots.repositories.variant(directory, folder, key=chroots.repositories.keys.stranger)
    node.server.mount(chroots.repositories.cuda_path(directory), folder)
    packages = node.installed()

    failed = setup(node)

    assert failed.exit_code == 6
    assert "signature" in failed.error
    assert node.installed() == packages
    assert not any(path.endswith(".deb") for path in node.server.requests)

    node.server.restore()
    setup_ok(node)
