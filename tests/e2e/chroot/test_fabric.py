"""On a machine with NVSwitches the fabric manager is installed in the driver's transaction and at its exact version."""

from __future__ import annotations

import signal
from typing import Final

import pytest

from tests.e2e.chroot.killing import DPKG_LOG, Victims, start_setup
from tests.e2e.chroot.scenario import Lab, as_machine, ask, called, setup, setup_ok
from tests.e2e.chroot.states import make_fabric
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.debs import Package
from tests.e2e.lab.pci import A100, A100_NVSWITCH, B200, GB200, H100, H200, NVSWITCH
from tests.e2e.lab.snapshot import snapshot

pytestmark = pytest.mark.e2e

_MANAGED: Final = ("nvidia-fabricmanager", "libnvidia-nscq")
_FREE: Final = {"nvlsm": "2025.10.11-1", "infiniband-diags": "44.0-2"}
# Devices, and the packages at the driver's exact version and at their own.
_GENERATIONS: Final = {
    "a100": ((A100, A100_NVSWITCH), _MANAGED, ()),
    "h100": ((H100, NVSWITCH), _MANAGED, ()),
    "h200": ((H200, NVSWITCH), _MANAGED, ()),
    "b200": ((B200,), ("nvidia-fabricmanager", "libnvsdm"), (*_FREE,)),
    "gb200": ((GB200,), ("nvidia-imex",), ()),
}
# In the form of dpkg's log.
_BOTH: Final = ("libcuda1", "nvidia-fabricmanager")
_SLOW: Final = "#!/bin/sh\nsleep 3\n"


@pytest.mark.long
@pytest.mark.parametrize("generation", _GENERATIONS)
def test_fabric_follows_the_driver(generation: str, bases: dict[str, Bases], chroots: Lab) -> None:
    devices, locked, free = _GENERATIONS[generation]
    versions = ("580.178.04-1", "595.91.06-1", "595.91.07-1", "595.91.08-1")
    added = [one for version in versions for one in make_fabric(version)]
    added += [Package(name, version) for name, version in _FREE.items()]
    folder = chroots.repositories.variant("debian12", chroots.folder / f"fabric-{generation}", added=added)
    every = {"nvidia-imex", *_MANAGED, "libnvsdm", *_FREE}
    with chroots.node(bases["bookworm"].plain, devices) as node:
        as_machine(node)
        node.server.mount(chroots.repositories.cuda_path("debian12"), folder)
        chroots.recipe(node, "debian12", "bare-metal")
        before = snapshot(node)

        setup_ok(node, "--driver", "580")
        expected = {**dict.fromkeys(locked, "580.178.04-1"), **{name: _FREE[name] for name in free}}
        assert {name: version for name, version in node.installed().items() if name in every} == expected
        assert setup_ok(node, "--driver", "580").envelope["changed"] is False

        # The archive has a fabric manager newer than any driver of the branch; apt alone would choose that one.
        called(node)
        assert setup(node, "--driver", "595").exit_code == 10
        assert called(node).count("apt-get", "install") == 1
        expected |= dict.fromkeys(locked, "595.91.07-1")
        assert {name: version for name, version in node.installed().items() if name in every} == expected

        assert ask(node, "remove", "--yes").exit_code == 10
        assert before.differences(snapshot(node)) == ""


@pytest.mark.long
@pytest.mark.parametrize(("state", "victims"), [("unpacked", "everything"), ("installed", "gpunode")])
def test_kill_between_driver_and_fabric_manager_is_finished(
    state: str, victims: Victims, bases: dict[str, Bases], chroots: Lab
) -> None:
    """A killed run leaves them at two versions, which causes CUDA error 802."""
    added = [*make_fabric("580.178.04-1"), *make_fabric("595.91.07-1", preinst=_SLOW, postinst=_SLOW)]
    folder = chroots.repositories.variant("debian12", chroots.folder / f"fabric-{state}", added=added)
    with chroots.node(bases["bookworm"].plain, [H100, NVSWITCH]) as node:
        as_machine(node)
        node.server.mount(chroots.repositories.cuda_path("debian12"), folder)
        chroots.recipe(node, "debian12", "bare-metal")
        setup_ok(node, "--driver", "580")

        def reached() -> set[str]:
            log = node.read(DPKG_LOG).splitlines()
            return {name for name in _BOTH if any(f" status {state} {name}:amd64 595." in line for line in log)}

        orphans = start_setup(node, "--driver", "595").kill_once(lambda: len(reached()) == 1, victims)
        try:
            assert len(reached()) == 1, "both were there already"
            again = setup(node, "--driver", "595") if victims == "everything" else None
        finally:
            orphans.send(signal.SIGCONT)
        again = again or setup(node, "--driver", "595")

        assert again.exit_code == 10, again.error
        assert {node.installed()[name] for name in _BOTH} == {"595.91.07-1"}
        assert node.run("/usr/bin/dpkg", "--audit").stdout == ""
        assert not [change for change in setup(node, "--driver", "595").changes if change["kind"] == "package"]
