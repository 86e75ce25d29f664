"""Reasons why apt refuses, from its own words."""

from __future__ import annotations

import pytest

from gpunode.change import PackageState
from gpunode.facts.model import Kernels
from gpunode.package_id import PackageId
from gpunode.packages.deb.preferences import PIN_FILE
from gpunode.packages.deb.refusal_hints import hint_on_refusal
from gpunode.packages.deb.transactions import refusal
from tests.unit.steps.machines import machine


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("E: Unable to locate package linux-headers-6.1.0-9-amd64", "no source has linux-headers-6.1.0-9-amd64"),
        (
            "E: Version '6.9-1~bpo12+1' for 'linux-headers-amd64' was not found",
            "no source has linux-headers-amd64 6.9-1~bpo12+1:",
        ),
        ("E: Unmet dependencies. Try 'apt --fix-broken install' with no packages.", "apt-get --fix-broken install"),
        ("E: Unable to locate package nvidia-open", "(--only cuda-repository)"),
        ("E: Unable to locate package nvidia-container-toolkit", "(--only toolkit-repository)"),
        ("E: Unable to locate package cuda-toolkit-12-9", "no source has cuda-toolkit-12-9. With --only,"),
        ("E: Unable to locate package cuda-toolkit-12-9\nE: Unable to locate package nvidia-open", "(--only cuda-"),
        ("E: Unable to locate package libcublas-12-9", "apt-cache search --names-only '^cuda-toolkit-"),
        ("E: Unable to locate package nvidia-driver-580-server", "a source is missing"),
        ("E: Unable to locate package podman", "a source is missing"),
    ],
)
def test_refusal_has_a_fitting_hint(said: str, says: str) -> None:
    assert says in hint_on_refusal(said, machine(), {})


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        (("6.1.0-9-amd64", "6.1.0-10-amd64"), "6.1.0-10-amd64 is installed and boots next: reboot"),
        (("6.1.0-9-amd64",), "install a kernel that the sources have"),
    ],
)
def test_upgraded_node_that_still_runs_the_former_kernel_is_to_be_rebooted(
    installed: tuple[str, ...], says: str
) -> None:
    facts = machine(kernels=Kernels("6.1.0-9-amd64", installed))
    assert says in hint_on_refusal("E: Unable to locate package linux-headers-6.1.0-9-amd64", facts, {})


def test_hold_of_a_package_that_is_not_there_is_named_with_its_command() -> None:
    name = "linux-headers-6.1.0-9-amd64"
    stdout = f"The following held packages will be changed:\n  {name} two\nThe following NEW packages:\n  {name}\n"
    problem = refusal(stdout, "E: Held packages were changed and -y was used without --allow-change-held-packages.\n")
    assert f"sudo apt-mark unhold {name} two\n" in hint_on_refusal(problem, machine(), {})


def test_dependency_that_apt_will_not_take_is_named_with_what_may_hold_it() -> None:
    refusal = (
        "The following packages have unmet dependencies:\n nvidia-kernel-open-dkms : Depends: dkms (>= 3.0) but it is "
        "not going to be installed\nE: Unable to correct problems, you have held broken packages.\n"
    )
    hint = hint_on_refusal(refusal, machine(), {})
    assert "sudo apt-mark unhold dkms" in hint.splitlines()
    assert "apt-cache policy dkms" in hint.splitlines()


def test_preferences_about_refused_packages_are_named_by_line() -> None:
    site = "/etc/apt/preferences.d/00-site"
    facts = machine(
        files={
            site: b"Package: *\nPin: release o=x\nPin-Priority: 1\n\nPackage: nvidia-*\nPin: version 1\n",
            PIN_FILE: b"Package: nvidia-*\nPin: version 2\nPin-Priority: 1\n",
        }
    )
    assert f"{site}:5 decides" in hint_on_refusal("E: Package 'nvidia-smi' has no installation candidate", facts, {})
    assert "apt-mark showhold" in hint_on_refusal("E: Package 'cuda-nvcc' has no installation candidate", facts, {})


NEWER = {PackageId("nvidia-container-toolkit"): {"1.17.8-1", "1.18.1-1"}}


@pytest.mark.parametrize("held", [True, False])
def test_lost_version_is_named_with_the_hold_that_asks_for_it(held: bool) -> None:
    facts = machine(packages={"libnvidia-container1": PackageState("1.18.0-1", held=held)})
    said = hint_on_refusal("E: Version '1.18.0-1' for 'nvidia-container-toolkit' was not found", facts, NEWER)
    assert "nvidia-container-toolkit 1.18.0-1" in said
    assert ("sudo apt-mark unhold libnvidia-container1\n" in said) == held
    assert said.endswith("add --upgrade to the same command")


def test_hold_of_another_version_is_not_blamed_for_a_lost_one() -> None:
    facts = machine(
        packages={"libnvidia-container1": PackageState("1.17.8-1", held=True), "nvidia-container-runtime": "1.18.0-1"}
    )
    said = hint_on_refusal("E: Version '1.18.0-1' for 'nvidia-container-toolkit' was not found", facts, NEWER)
    assert "add --upgrade" in said
    assert "unhold" not in said


@pytest.mark.parametrize(
    ("version", "offered", "upgrade"),
    [
        ("580.95-*", {"580.82-1"}, False),
        ("580.95-*", {"580.105-1"}, True),
        ("580.95-*", set(), False),
        ("580.82-*", {"580.105-1"}, False),  # nothing of it is installed, so the recipe named it
    ],
)
def test_upgrade_is_advised_only_where_it_brings_something(version: str, offered: set[str], upgrade: bool) -> None:
    said = hint_on_refusal(
        f"E: Version '{version}' for 'nvidia-driver' was not found",
        machine(packages={"libcuda1": "580.95-1"}),
        {PackageId("nvidia-driver"): offered},
    )
    assert ("--upgrade" in said) == upgrade
    assert f"no source has nvidia-driver {version}" in said


def test_package_that_would_be_downgraded_is_named_with_its_version() -> None:
    facts = machine(packages={"libcuda1": "999-1"})
    stdout = "The following packages will be DOWNGRADED:\n  libcuda1\n0 upgraded\n"
    problem = refusal(stdout, "E: Packages were downgraded and -y was used without --allow-downgrades.\n")
    said = hint_on_refusal(problem, facts, {})
    assert "libcuda1 999-1: newer" in said
    assert "sudo apt-get purge libcuda1\n" in said
    assert "purge" not in hint_on_refusal(f"{stdout}E: Held packages were changed\n", facts, {}), (
        "a downgrade that is allowed is no fault"
    )
