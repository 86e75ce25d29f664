"""Survey of a node before planning."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Probe, encode_matches
from gpunode.facts.model import Known
from gpunode.facts.probes import list_probes
from gpunode.host.capture import CaptureHost
from gpunode.workflow.converge import probe_with_runtimes

PLACE = "/sys/bus/pci/devices/0000:01:00.0/modalias"
ALIAS = b"pci:v000010DEd00001B80sv00001043sd000085AAbc03sc00i00\n"
NO_DRIVERS = Capture("/sys/bus/pci/devices/*/driver", "ok", encode_matches(iter(())))
LSPCI = "Slot:\t0000:01:00.0\nClass:\tVGA [0300]\nVendor:\tNVIDIA [10de]\nDevice:\tGTX 1080 [1b80]\n"


def survey(seen: Mapping[str, Capture]) -> Evidence:
    class Host(CaptureHost):
        def run_probe(self, probe: Probe, /) -> Capture:
            return {"pci-driver": NO_DRIVERS, **seen}.get(probe.key) or super().run_probe(probe)

    return probe_with_runtimes(Host({}), list_probes())


def modaliases(*found: GlobMatch) -> Capture:
    return Capture(PLACE, "ok", encode_matches(iter(found)))


def test_lspci_is_not_run_where_sysfs_lists_the_devices() -> None:
    evidence = survey({"pci-modalias": modaliases(GlobMatch(PLACE, data=ALIAS))})
    assert "lspci" not in evidence
    assert isinstance(derive(evidence).devices, Known)


@pytest.mark.parametrize(
    "sysfs",
    [Capture(PLACE, "absent"), modaliases(), modaliases(GlobMatch(PLACE)), modaliases(GlobMatch(PLACE, data=b"?"))],
)
def test_lspci_is_run_where_sysfs_lists_no_devices(sysfs: Capture) -> None:
    said = Capture("lspci -Dvmmnnk", "ok", LSPCI.encode())
    devices = derive(survey({"pci-modalias": sysfs, "lspci": said})).devices
    assert isinstance(devices, Known)
    assert [one.address for one in devices.value] == ["0000:01:00.0"]
