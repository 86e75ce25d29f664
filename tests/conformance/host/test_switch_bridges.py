"""Bridges to NVSwitches, found by the machine's own grep in vital product data like that of real cards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.facts.bridges import BRIDGES_KEY, bridge_probe, derive_switch_bridges
from gpunode.facts.evidence import Capture
from gpunode.facts.model import Known, PciDevice, Unknown
from gpunode.host.local import LocalHost
from tests.fakes.vpd import make_vpd

DEVICES = "/sys/bus/pci/devices"
B200 = PciDevice("0000:17:00.0", "10de", "2901", "0302")
CARDS = tuple(PciDevice(f"0000:0{number}:00.0", "15b3", "1021", "0207") for number in range(3))


def look(bus: Path) -> Capture:
    """Return the probe's answer with ``bus`` in place of /sys/bus/pci/devices and no InfiniBand in /sys/class."""
    probe = bridge_probe([B200, *CARDS])
    assert probe is not None
    seen = LocalHost().run_probe(replace(probe, argv=tuple(word.replace(DEVICES, str(bus)) for word in probe.argv)))
    return replace(seen, data=seen.data.replace(str(bus).encode(), DEVICES.encode()))


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    for card in CARDS:
        (tmp_path / card.address).mkdir()
        (tmp_path / card.address / "vpd").write_bytes(make_vpd(is_bridge=False))
    return tmp_path


def test_bridges_are_told_from_network_cards_of_the_same_id(bus: Path) -> None:
    (bus / CARDS[1].address / "vpd").write_bytes(make_vpd(is_bridge=True))
    seen = look(bus)
    assert derive_switch_bridges({BRIDGES_KEY: seen}) == Known((CARDS[1].address,), BRIDGES_KEY)
    assert b"MT2309" not in seen.data, "no serial number is kept"


def test_machine_with_ordinary_cards_has_no_bridge(bus: Path) -> None:
    assert derive_switch_bridges({BRIDGES_KEY: look(bus)}) == Known((), BRIDGES_KEY)


def test_virtual_function_without_vital_product_data_is_no_bridge(bus: Path) -> None:
    (bus / CARDS[0].address / "vpd").unlink()
    assert derive_switch_bridges({BRIDGES_KEY: look(bus)}) == Known((), BRIDGES_KEY)


def test_unreadable_data_is_no_answer(bus: Path) -> None:
    (bus / CARDS[0].address / "vpd").unlink()
    (bus / CARDS[0].address / "vpd").mkdir()
    assert isinstance(derive_switch_bridges({BRIDGES_KEY: look(bus)}), Unknown)


def test_program_that_failed_without_a_word_is_no_answer() -> None:
    assert isinstance(derive_switch_bridges({BRIDGES_KEY: Capture("grep", "failed", exit_status=2)}), Unknown)
