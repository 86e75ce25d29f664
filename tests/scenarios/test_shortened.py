"""Every report with one piece of its evidence taken away: doctor may say less then, and nothing wrong for certain."""

from __future__ import annotations

import pytest

from tests.fakes.examples import sample
from tests.scenarios.reports import Report, diagnosis, reports

# What may be called likely once the piece that decides is gone, as (true cause, what is said) and why that is right by
# what is left. Nothing wrong may be called certain, ever.
_STILL_TRUE = "what is said is true of the node; that another thing brought it about is what the missing piece shows"
_NOT_SHOWN = "what is left is the picture of the usual cause, and nothing of the rarer one is in it"
EQUALLY_RIGHT = {
    ("crio-dropin-dead", "containerd-nvidia-runtime-missing"): _STILL_TRUE,
    ("daemon-json-invalid", "nvidia-runtime-not-registered"): _STILL_TRUE,
    ("device-plugin-library-not-found", "nvidia-runtime-not-default-no-runtimeclass"): _NOT_SHOWN,
    ("docker-not-restarted", "nvidia-runtime-not-registered"): _NOT_SHOWN,
    ("docker-rootless-config", "docker-not-restarted"): _NOT_SHOWN,
    ("dpkg-unconfigured-packages", "dkms-build-no-space"): _STILL_TRUE,
    ("driver-not-installed", "nvidia-runtime-not-default-no-runtimeclass"): _NOT_SHOWN,
    ("driver-library-mismatch-unattended-upgrade", "driver-library-mismatch-reboot-pending"): _STILL_TRUE,
    ("initramfs-stale-module", "driver-library-mismatch-reboot-pending"): _NOT_SHOWN,
    ("k3s-runtime-config-overwritten", "containerd-nvidia-runtime-missing"): _STILL_TRUE,
    ("k3s-runtime-config-overwritten", "device-plugin-library-not-found"): _STILL_TRUE,
    ("k3s-runtime-config-overwritten", "nvidia-runtime-not-default-no-runtimeclass"): _STILL_TRUE,
    ("kernel-headers-missing", "module-built-for-other-kernel"): _STILL_TRUE,
    ("nouveau-in-initramfs", "nouveau-bound"): _STILL_TRUE,
    ("vgpu-license-server-failure", "vgpu-unlicensed"): _STILL_TRUE,
    ("vm-passthrough-mmio-config", "bar-above-4g-disabled"): "what is left does not say that it is a virtual machine",
    ("wsl-gpu-tcc-mode", "wsl-gpu-access-blocked"): _STILL_TRUE,
    ("xid-31-driver-regression", "xid-31-mmu-fault"): _NOT_SHOWN,
    ("xid-54-aux-power", "power-brake-slowdown"): _STILL_TRUE,
    ("xid-74-nvlink-error", "nvlink-link-inactive"): _STILL_TRUE,
}
SHORTENED: list[tuple[Report, int]] = [
    (report, left) for report in reports() if len(report.evidence) > 1 for left in range(len(report.evidence))
]


def _name(row: tuple[Report, int]) -> str:
    report, left = row
    return f"{report.name}-{left}"


SAMPLED = sample(SHORTENED, "shortened", _name)


@pytest.mark.parametrize("row", SAMPLED, ids=_name)
def test_without_one_piece_nothing_wrong_is_said(row: tuple[Report, int]) -> None:
    report, left = row
    found = diagnosis(piece for number, piece in enumerate(report.evidence) if number != left)
    other = [one for one in found.roots if one.severity != "info" and one.cause != report.cause]
    assert [(one.cause, one.summary) for one in other if one.confidence == "certain"] == []
    unfounded = [one for one in other if (report.cause, one.cause) not in EQUALLY_RIGHT]
    assert [(one.cause, one.summary) for one in unfounded] == []


def test_what_is_allowed_is_needed_and_rare() -> None:
    """An allowance that no report makes use of any more is taken off the list; few reports make use of one."""
    used = []
    for report in reports():
        said = {cause for allowed, cause in EQUALLY_RIGHT if allowed == report.cause}
        for left in range(len(report.evidence)) if said and len(report.evidence) > 1 else ():
            found = diagnosis(piece for number, piece in enumerate(report.evidence) if number != left)
            used += [(report.cause, one.cause) for one in found.roots if one.cause in said]
    assert set(used) == set(EQUALLY_RIGHT)
    assert len(used) <= 0.03 * len(SHORTENED)
