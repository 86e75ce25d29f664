"""A newer kernel without a module of NVIDIA's: a warning on a node that works."""

from __future__ import annotations

import pytest

from gpunode.facts.evidence import Capture, GlobMatch, encode_matches
from gpunode.facts.probes import MODULE_FILE_PROBE_KEYS
from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.scenarios.healthy.captures import evidence, listed
from tests.scenarios.healthy.nodes import HEALTHY


def live(node: str, kernel: str) -> Examination:
    """Return the named healthy node with one more kernel in /boot."""
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


@pytest.mark.parametrize("is_built", [True, False])
def test_reboot_is_pending_only_where_a_module_waits_for_it(*, is_built: bool) -> None:
    """An upgrade to a branch without proprietary modules removed their package, and DKMS their files."""
    built = [GlobMatch("/lib/modules/6.1.0-42-amd64/updates/dkms/nvidia.ko")] if is_built else []
    gone = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 620.70\n"
    packages = "".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 620.70.06-1\n\n"
        for name in ("libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", *(["nvidia-kernel-dkms"] if is_built else []))
    )
    history = "Commandline: apt-get upgrade\nUpgrade: libcuda1:amd64 (580.95.05-1, 620.70.06-1)\n\n"
    loaded = b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n"
    found = diagnose_evidence({
        **{key: Capture("x", "ok", encode_matches(iter(()))) for key in (*MODULE_FILE_PROBE_KEYS, "dkms-installed")},
        "modules-dkms": Capture("/lib/modules/*/updates/dkms/*", "ok", encode_matches(iter(built))),
        "nvidia-version": Capture("/proc/driver/nvidia/version", "ok", loaded),
        "nvidia-smi": Capture("nvidia-smi", "failed", gone.encode()),
        "dpkg-status": Capture("/var/lib/dpkg/status", "ok", packages.encode(), content_kind="table"),
        "file:/var/log/apt/history.log": Capture("/var/log/apt/history.log", "ok", history.encode()),
    }).diagnosis  # fmt: skip
    causes = {one.cause for one in found.findings}
    assert ("driver-library-mismatch-reboot-pending" in causes) is is_built, causes
