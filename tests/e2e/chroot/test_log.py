"""Log records of a real run: the user, each file's hashes, and each package's archive and key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from gpunode.catalog.openpgp import list_key_fingerprints
from tests.e2e.chroot.scenario import CONFIG, RECIPE, Lab, as_machine, ask, called, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e

CUDA_KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"


@pytest.fixture(
    scope="module",
    params=[("bookworm", "debian12"), pytest.param(("trixie", "debian13"), marks=pytest.mark.long)],
    ids=["bookworm", "trixie"],
)
def node(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    codename, directory = request.param
    with chroots.node(bases[codename].runtime, [T4]) as made:
        as_machine(made)
        chroots.recipe(made, directory)
        setup_ok(made)
        yield made


def read_log(node: Chroot) -> dict[str, Any]:
    """Return all log records of the first run."""
    run: dict[str, Any] = ask(node, "log", "1").result["run"]
    return run


def test_every_package_is_recorded_with_its_archive_and_key(node: Chroot, chroots: Lab) -> None:
    (cuda,) = list_key_fingerprints(node.path(CUDA_KEYRING).read_bytes())
    installed = node.installed()
    packages = {row["subject"]: row for row in read_log(node)["changes"] if row["kind"] == "package"}

    assert {name: row["after"]["version"] for name, row in packages.items()} == {
        name: installed[name] for name in packages
    }
    origins = {name: row["after"]["origin"] for name, row in packages.items()}
    assert [name for name, origin in origins.items() if ", signed by " not in origin] == [], origins
    driver = origins["nvidia-kernel-open-dkms"]
    assert driver.startswith("http://127.0.0.1")
    assert driver.endswith(f", signed by {cuda}")
    toolkit = origins["nvidia-container-toolkit"]
    assert "libnvidia-container" in toolkit
    assert cuda not in toolkit


def test_every_file_is_recorded_with_its_hash_and_the_recipe(node: Chroot) -> None:
    run = read_log(node)
    files = {row["subject"]: row for row in run["changes"] if row["kind"] == "file"}

    assert files[CONFIG]["after"]["sha256"] == hashlib.sha256(node.path(CONFIG).read_bytes()).hexdigest()
    assert files[CUDA_KEYRING]["before"] is None
    assert (run["result"], run["user"], run["uid"], run["argv"][:2]) == ("done", "root", 0, ["setup", RECIPE])
    assert len(run["recipe_sha256"]) == 64
    assert all(row["completed_at"] for row in run["triggers"])


def test_converged_setup_does_not_query_package_origins(node: Chroot) -> None:
    called(node)
    setup_ok(node)
    assert called(node).count("apt-cache") == 0


def test_log_needs_no_backups(node: Chroot) -> None:
    node.run("mv", "/var/lib/gpunode/objects", "/root/objects")
    table = node.gpunode("log")
    page = node.gpunode("log", "1")
    node.run("mv", "/root/objects", "/var/lib/gpunode/objects")
    assert table.returncode == page.returncode == 0
    assert "setup" in table.stdout
    assert "signed by" in page.stdout
