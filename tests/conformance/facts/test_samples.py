"""The parsers on output of the real tools; each sample's name contains the tool's version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpunode.change import ServiceState
from gpunode.facts import machine, systemd
from gpunode.package_id import PackageId
from gpunode.packages.deb import status as dpkg

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def test_dpkg_status_agrees_with_dpkg_query() -> None:
    entries = dpkg.parse_status(sample("dpkg-status-1.21.23.txt"))
    rows = [line.split("\t") for line in sample("dpkg-query-1.21.23.txt").splitlines()]
    said = {(name.split(":")[0], *state.split(), version, arch) for name, state, version, arch in rows}
    assert {(one.name, one.want, one.status, one.version, one.architecture) for one in entries} == said


def test_auto_marks_agree_with_apt_mark() -> None:
    entries = dpkg.parse_status(sample("dpkg-status-1.21.23.txt"))
    found = dpkg.packages(entries, sample("apt-extended-states-2.6.2.txt"))
    said = set(sample("apt-mark-showauto-2.6.2.txt").split())
    assert {str(package) for package, state in found.items() if state.auto} == said
    assert found[PackageId("gpn-foreign", "i386")].held
    assert found[PackageId("gpn-conf")].config_files_only
    assert not dpkg.was_interrupted(entries, [])


@pytest.mark.parametrize("version", ["252", "257"])
def test_systemctl_show_is_parsed(version: str) -> None:
    found = systemd.parse_units(sample(f"systemctl-show-{version}.txt"))
    assert found["containerd.service"].state == ServiceState(True, True)
    assert found["containerd.service"].started_at == pytest.approx(1795248280, abs=30)
    assert not found["docker.service"].exists
    assert found["nvidia-fabricmanager.service"].masked
    assert found["dbus.service"].state.enabled


@pytest.mark.parametrize("name", ["lspci-3.9.0-h100.txt", "lspci-3.9.0-virtio.txt"])
def test_lspci_parser_loses_no_device(name: str) -> None:
    text = sample(name)
    assert [one.address for one in machine.parse_lspci(text)] == re.findall(r"(?m)^Slot:\t(.*)", text)


def test_lspci_of_an_h100_is_parsed() -> None:
    bridge, gpu = machine.parse_lspci(sample("lspci-3.9.0-h100.txt"))
    assert (gpu.vendor, gpu.device, gpu.class_code, gpu.subsystem) == ("10de", "2330", "0302", ("10de", "16c1"))
    assert "H100" in gpu.name
    assert bridge.subsystem is None
