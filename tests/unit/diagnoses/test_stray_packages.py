"""Libraries of another version than the driver, although nvidia-smi works: the packages show it before CUDA fails."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

PARTIAL = "driver-library-mismatch-partial-upgrade"
WHOLE = {
    "nvidia-driver-cuda": "580.178.04-1",
    "nvidia-kernel-open-dkms": "580.178.04-1",
    "libnvidia-ml1": "580.178.04-1",
    "libcuda1": "580.178.04-1",
    "nvidia-persistenced": "580.178.04-1",
}
SMI = (
    "NVIDIA-SMI 580.178.04    Driver Version: 580.178.04     CUDA Version: 13.0\n"
    "|   0  Tesla T4                       Off |   00000000:01:00.0 Off |                    0 |"
)
SAYS_803 = "code=803(cudaErrorSystemDriverMismatch): system has unsupported display driver / cuda driver combination"


def dpkg_list(packages: dict[str, str], state: str = "ii") -> str:
    return "\n".join(f"{state}  {name}  {version}  amd64  NVIDIA" for name, version in packages.items())


def diagnose_packages(packages: dict[str, str], *more: tuple[str, str], smi: str = SMI) -> Diagnosis:
    return diagnose(
        take_snapshot(pasted.collect_pieces([("dpkg -l", dpkg_list(packages)), ("nvidia-smi", smi), *more]))
    )


@pytest.mark.parametrize("version", ["580.65.06-1", "580.191.01-1", "595.91.07-1"])
def test_libcuda_of_another_version_is_found_before_cuda_fails(version: str) -> None:
    (finding,) = diagnose_packages({**WHOLE, "libcuda1": version}).findings
    assert (finding.cause, finding.confidence) == (PARTIAL, "likely")
    assert f"libcuda1 is {version[:-2]}" in finding.summary
    assert [fix.commands for fix in finding.remedy] == [("sudo gpunode setup",)]


def test_error_803_of_a_partial_upgrade_is_no_compat_package() -> None:
    (finding,) = diagnose_packages({**WHOLE, "libcuda1": "580.65.06-1"}, ("./vectorAdd", SAYS_803)).findings
    assert (finding.cause, finding.confidence) == (PARTIAL, "certain")
    assert any("803" in citation.line for citation in finding.citations)


def test_unmet_dependency_of_a_partial_upgrade_is_no_second_repository() -> None:
    said = (
        "The following packages have unmet dependencies:\n nvidia-driver-cuda : Depends: libcuda1 (= 580.178.04-1) but "
    )
    apt = ("apt-get check", f"{said}580.65.06-1 is installed\nE: Unmet dependencies. Try 'apt --fix-broken install'.")
    (finding,) = diagnose_packages({**WHOLE, "libcuda1": "580.65.06-1"}, apt).findings
    assert finding.cause == PARTIAL


def test_package_hold_explains_a_partial_upgrade() -> None:
    apt = ("apt-get check", "E: Unmet dependencies. nvidia-driver-cuda : Depends: libcuda1 (= 580.178.04-1)")
    hold = ("apt-mark showhold", "libcuda1")
    found = diagnose_packages({**WHOLE, "libcuda1": "580.65.06-1"}, apt, hold)
    assert [finding.cause for finding in found.roots] == ["held-or-broken-packages"]


def test_error_803_without_a_package_list_suggests_a_compat_package() -> None:
    found = diagnose(take_snapshot(pasted.collect_pieces([("nvidia-smi", SMI), ("./vectorAdd", SAYS_803)])))
    assert [finding.cause for finding in found.findings] == ["cuda-compat-lib-mismatch"]


@pytest.mark.parametrize(
    "packages",
    [
        WHOLE,
        {**WHOLE, "nvidia-persistenced": "580.65.06-1"},  # it does not check the library's version
        {**WHOLE, "libxnvctrl0": "535.171.04-1"},
        {**WHOLE, "libnvidia-egl-wayland1": "1:1.1.13-1"},
        {**WHOLE, "libnvidia-compute-535": "535.171.04-0ubuntu1"},
        dict.fromkeys(WHOLE, "595.91.07-1"),  # listed at another time
    ],
)
def test_consistent_or_unrelated_packages_are_no_fault(packages: dict[str, str]) -> None:
    assert PARTIAL not in [finding.cause for finding in diagnose_packages(packages).findings]


def test_residue_of_a_removed_package_is_no_library() -> None:
    rest = ("dpkg -l 'lib*'", dpkg_list({"libnvidia-ptxjitcompiler1": "580.65.06-1"}, "rc"))
    assert diagnose_packages(WHOLE, rest).findings == ()
