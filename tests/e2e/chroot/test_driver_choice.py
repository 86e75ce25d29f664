"""Driver choice per GPU, installed by the real solver from an index that has 580, 595 and 620."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.e2e.chroot.scenario import RECIPE, Lab, as_machine, ask, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.pci import B200, GTX_1080, T4, Device

pytestmark = pytest.mark.e2e

MAXWELL = Device("0000:02:00.0", 0x13C0, subsystem=(0x10DE, 0x1116))
# A number that no table knows.
UNKNOWN = Device("0000:01:00.0", 0x7FFE, device_class=0x030200)


@dataclass(frozen=True, slots=True)
class Case:
    device: Device
    version: str


# An HGX B200, which needs more packages, is in test_fabric.py.
CASES = {"t4": Case(T4, "595.91.07"), "unknown": Case(UNKNOWN, "620.70.06")}


@pytest.mark.parametrize("name", ["t4", pytest.param("unknown", marks=pytest.mark.long)])
def test_gpu_gets_the_branch_of_its_generation_with_open_modules(
    name: str, bases: dict[str, Bases], chroots: Lab
) -> None:
    case = CASES[name]
    with chroots.node(bases["bookworm"].runtime, [case.device]) as node:
        as_machine(node)
        chroots.recipe(node, "debian12", "bare-metal")
        planned = ask(node, "plan", RECIPE)
        done = setup_ok(node)

        assert node.installed()["nvidia-kernel-open-dkms"] == f"{case.version}-1"
        assert "nvidia-kernel-dkms" not in node.installed()
        assert done.result["gpus"]
        assert node.run("modinfo", "-F", "license", "nvidia").stdout == "Dual MIT/GPL\n"
        warned = [note for note in planned.envelope["notes"] if "7ffe" in note]
        assert bool(warned) is (name == "unknown"), planned.envelope["notes"]


def test_gpus_without_a_common_driver_are_refused_untouched(bases: dict[str, Bases], chroots: Lab) -> None:
    with chroots.node(bases["bookworm"].runtime, [B200, MAXWELL]) as node:
        as_machine(node)
        chroots.recipe(node, "debian12")
        before = node.fingerprint("/etc", "/var/lib", "/usr/share/keyrings")

        refused = setup(node)

        assert refused.exit_code == 3
        assert "GTX 980" in refused.error
        assert "B200" in refused.error
        assert node.fingerprint("/etc", "/var/lib", "/usr/share/keyrings") == before
        assert node.server.requests == []


def test_machine_without_a_gpu_is_refused_with_what_was_read(bases: dict[str, Bases], chroots: Lab) -> None:
    with chroots.node(bases["bookworm"].plain) as node:
        as_machine(node)
        refused = setup(node, recipe="containerd")

        assert refused.exit_code == 3
        assert "/sys/bus/pci/devices lists 1 " in refused.error


def test_installed_driver_is_upgraded_only_on_request(bases: dict[str, Bases], chroots: Lab) -> None:
    """Branch 580 is kept on a T4, which 595 would serve as well; a recipe that names 595 moves it."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        recipe = chroots.recipe(node, "debian12", "bare-metal")
        setup_ok(node, "--driver", "580")
        kept = setup_ok(node)
        assert kept.changes == []

        moved = setup(node, "--driver", "595", recipe=recipe)

        assert moved.exit_code == 10, "the loaded module is still the old one"
        assert node.installed()["nvidia-kernel-open-dkms"] == "595.91.07-1"
        assert GTX_1080.device != T4.device
