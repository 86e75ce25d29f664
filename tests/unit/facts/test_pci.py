from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts import machine
from gpunode.facts.evidence import GlobMatch
from gpunode.facts.model import PciDevice

H100 = (
    "Slot:\t0000:17:00.0\nClass:\t3D controller [0302]\nVendor:\tNVIDIA Corporation [10de]\n"
    "Device:\tGH100 [H100 SXM5 80GB] [2330]\nSVendor:\tNVIDIA Corporation [10de]\nSDevice:\tDevice [16c1]\n"
    "PhySlot:\t4\nRev:\ta1\nProgIf:\t00\nDriver:\tnvidia\nModule:\tnouveau\nModule:\tnvidia\nNUMANode:\t0\n"
)


def test_brackets_in_a_device_name_are_not_its_id() -> None:
    (gpu,) = machine.parse_lspci(H100)
    assert gpu == PciDevice(
        "0000:17:00.0", "10de", "2330", "0302", ("10de", "16c1"), "nvidia", "GH100 [H100 SXM5 80GB]"
    )


def test_unlisted_device_has_no_name() -> None:
    (gpu,) = machine.parse_lspci(
        "Slot:\t10000:e1:00.0\nClass:\tVGA controller [0300]\nVendor:\tNVIDIA [10de]\nDevice:\tDevice [3fff]\n"
    )
    assert (gpu.address, gpu.name, gpu.driver, gpu.subsystem) == ("10000:e1:00.0", "", None, None)


def test_empty_lspci_output_is_no_error() -> None:
    assert machine.parse_lspci("") == ()


@pytest.mark.parametrize(
    "text",
    ["Slot:\t17:00\n", "lspci: cannot open\n", "Slot:\t0000:17:00.0\nClass:\tfoo\n", H100.replace("[10de]", "[]")],
)
def test_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|number"):
        machine.parse_lspci(text)


@given(st.text(alphabet="Slot:\t\n [0]dDevice"))
def test_hostile_output_raises_only_value_error(text: str) -> None:
    try:
        machine.parse_lspci(text)
    except ValueError:
        return


def modalias(address: str, alias: str) -> GlobMatch:
    return GlobMatch(f"/sys/bus/pci/devices/{address}/modalias", data=alias.encode())


def test_sysfs_devices_equal_those_of_lspci() -> None:
    alias = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"
    driver = GlobMatch("/sys/bus/pci/devices/0000:17:00.0/driver", link="../../../bus/pci/drivers/vfio-pci")
    (gpu,) = machine.read_sysfs_devices([modalias("0000:17:00.0", alias)], [driver])
    assert gpu == PciDevice("0000:17:00.0", "10de", "2330", "0302", ("10de", "16c1"), "vfio-pci")


def test_device_without_a_subsystem_id_has_none() -> None:
    alias = "pci:v00008086d000029C0sv00000000sd00000000bc06sc00i00\n"
    assert machine.read_sysfs_devices([modalias("0000:00:00.0", alias)], [])[0].subsystem is None


@pytest.mark.parametrize("found", [modalias("0000:00:00.0", "usb:v1"), GlobMatch("/sys/bus/pci/devices/x/modalias")])
def test_unreadable_modalias_is_refused(found: GlobMatch) -> None:
    with pytest.raises(ValueError, match="modalias"):
        machine.read_sysfs_devices([found], [])
