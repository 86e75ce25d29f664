"""Packages that are not whole: lost programs, and what dpkg did not finish, with the command that restores each."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from tests.scenarios.healthy.captures import evidence
from tests.scenarios.healthy.nodes import HEALTHY

NODE = "debian-13-containerd"
LOST_SMI = ("smi", "smi-query", "smi-nvlink", "smi-topology", "smi-mig")


@pytest.mark.parametrize(
    ("lost", "cause", "package"),
    [
        (("toolkit-program",), "toolkit-not-installed", "nvidia-container-toolkit-base"),
        (LOST_SMI, "driver-userspace-incomplete", "nvidia-smi"),
    ],
)
def test_lost_program_is_installed_again(lost: tuple[str, ...], cause: str, package: str) -> None:
    there = HEALTHY[NODE]()
    assert diagnose(take_snapshot(evidence(there))).findings == ()
    found = diagnose(take_snapshot(evidence({key: said for key, said in there.items() if key not in lost}))).roots[0]
    assert found.cause == cause
    assert "although" in found.summary
    (command,) = found.remedy[0].commands
    assert command.startswith("sudo apt-get install --reinstall ")
    assert package in command.split()


@pytest.mark.parametrize("is_whole", [True, False])
def test_incomplete_toolkit_is_installed_by_all_four_names(*, is_whole: bool) -> None:
    # apt does not install new dependencies of a reinstalled package, and the next step must be short.
    there = {key: said for key, said in HEALTHY[NODE]().items() if key != "toolkit-program"}
    if not is_whole:
        status = there["dpkg-status"]
        assert isinstance(status, str)
        there["dpkg-status"] = status.replace("Package: nvidia-container-toolkit-base\n", "Package: other\n")
    examined = diagnose(take_snapshot(evidence(there)))
    (command,) = examined.roots[0].remedy[0].commands
    assert len(command.removeprefix("sudo apt-get install --reinstall ").split()) == (2 if is_whole else 4)
    assert examined.next_step is not None
    assert examined.next_step.command == (command if is_whole else None)


@pytest.mark.parametrize(("state", "reads_log"), [("unpacked", False), ("half-configured", True)])
def test_package_that_dpkg_has_left_is_told_with_what_to_read(*, state: str, reads_log: bool) -> None:
    there = HEALTHY[NODE]()
    stanzas = str(there["dpkg-status"]).split("\n\n")
    of = next(number for number, one in enumerate(stanzas) if "Package: nvidia-kernel-open-dkms\n" in one)
    stanzas[of] = stanzas[of].replace(" ok installed", f" ok {state}")
    found = diagnose(take_snapshot(evidence({**there, "dpkg-status": "\n\n".join(stanzas)}))).findings[0]
    assert found.cause == "dpkg-unconfigured-packages"
    assert ("make.log" in str(found.remedy[0].commands)) == reads_log
    locked = {**there, "dpkg-status": "\n\n".join(stanzas), "locks": "dpkg 163 /var/lib/dpkg/lock\n"}
    causes = [one.cause for one in diagnose(take_snapshot(evidence(locked))).findings]
    assert causes == ["dpkg-lock-held"], "dpkg is about to finish it"
