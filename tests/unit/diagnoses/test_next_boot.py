"""A newer kernel without a module of NVIDIA's: a warning on a node that works."""

from __future__ import annotations

import pytest

from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.scenarios.healthy.captures import evidence, listed
from tests.scenarios.healthy.nodes import HEALTHY


def live(node: str, kernel: str) -> Examination:
    """Return that healthy node with one more kernel in /boot."""
    healthy = {**HEALTHY[node]()}
    images = healthy["boot-images"]
    assert isinstance(images, tuple)
    healthy["boot-images"] = (*images, *listed(f"/boot/vmlinuz-{kernel}"))
    return diagnose_evidence(evidence(healthy))


def test_newer_kernel_without_a_module_is_a_warning_with_a_build() -> None:
    examined = live("debian-12-docker", "6.1.0-42-amd64")
    (found,) = examined.diagnosis.findings
    assert (found.cause, found.severity, found.confidence) == ("module-built-for-other-kernel", "warning", "likely")
    assert "6.1.0-42-amd64" in found.summary
    assert found.remedy[0].commands[0].endswith("setup --only headers --only module-build")
    assert examined.driver_works


@pytest.mark.parametrize(
    ("node", "kernel"),
    [
        ("debian-12-docker", "6.1.0-42-rt-amd64"),
        ("debian-12-docker", "6.1.0-1-amd64"),
        ("ubuntu-24-containerd", "6.8.0-90-lowlatency"),
    ],
)
def test_older_or_other_kernel_flavour_is_not_the_next(node: str, kernel: str) -> None:
    assert not live(node, kernel).diagnosis.findings
