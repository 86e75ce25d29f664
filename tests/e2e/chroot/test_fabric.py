"""On a machine with NVSwitches the fabric manager comes in the driver's transaction and at its very version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, ask, called, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.debs import Package
from tests.e2e.lab.pci import H100, NVSWITCH
from tests.e2e.lab.snapshot import snapshot

pytestmark = pytest.mark.e2e

_UNIT: Final = """\
[Unit]
Description=NVIDIA fabric manager service
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""


def make_fabric(version: str) -> Iterator[Package]:
    """The packages of a fabric, without relations to the driver, as NVIDIA's have none that names its version."""
    unit = {"/lib/systemd/system/nvidia-fabricmanager.service": _UNIT}
    yield Package("nvidia-fabricmanager", version, files=unit)
    yield Package("libnvidia-nscq", version)


@pytest.mark.long
def test_fabric_manager_follows_the_driver(bases: dict[str, Bases], chroots: Lab) -> None:
    versions = ("580.178.04-1", "595.91.07-1", "595.91.08-1")
    folder = chroots.repositories.variant(
        "debian12", chroots.folder / "fabric", added=[one for version in versions for one in make_fabric(version)]
    )
    with chroots.node(bases["bookworm"].plain, [H100, NVSWITCH]) as node:
        as_machine(node)
        node.server.mount(chroots.repositories.cuda_path("debian12"), folder)
        chroots.recipe(node, "debian12", "bare-metal")
        before = snapshot(node)

        setup_ok(node, "--driver", "580")
        assert node.installed()["nvidia-fabricmanager"] == "580.178.04-1"
        assert setup_ok(node, "--driver", "580").envelope["changed"] is False

        # The archive has a newer fabric manager than any driver of the branch; alone, apt would take that one.
        called(node)
        assert setup(node, "--driver", "595").exit_code == 10
        assert called(node).count("apt-get", "install") == 1
        assert {node.installed()[name] for name in ("nvidia-fabricmanager", "libnvidia-nscq")} == {"595.91.07-1"}

        assert ask(node, "remove", "--yes").exit_code == 10
        assert before.differences(snapshot(node)) == ""


def test_run_without_a_fitting_fabric_manager_touches_no_package(bases: dict[str, Bases], chroots: Lab) -> None:
    added = [*make_fabric("595.91.08-1")]
    folder = chroots.repositories.variant("debian12", chroots.folder / "fabric-newer", added=added)
    with chroots.node(bases["bookworm"].plain, [H100, NVSWITCH]) as node:
        as_machine(node)
        node.server.mount(chroots.repositories.cuda_path("debian12"), folder)
        chroots.recipe(node, "debian12", "bare-metal")
        packages = node.installed()

        refused = setup(node)

        assert refused.exit_code == 3
        assert "in version 595.91.07, that of the driver" in refused.error
        assert node.installed() == packages
