"""With a lock, every package of a step is requested in the locked version, or nothing is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpunode.change import FileState, PackageChange, PackageState
from gpunode.distros import DEBIAN
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Distro, Facts, Known
from gpunode.packages.deb.preferences import PIN_FILE, render_driver_pin
from gpunode.recipe import Recipe, VersionLock
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.driver import DRIVER_PIN_STEP, DRIVER_STEP
from gpunode.steps.runtime import RUNTIME_INSTALL_STEP
from gpunode.steps.selection import WantedDriver, wanted_driver
from gpunode.steps.toolkit import TOOLKIT_STEP
from tests.ids import by_id
from tests.unit.steps.machines import B200, UBUNTU, gpu, machine, planned, recipe, refusal, with_driver

LOCKED = "580.95.05"
PACKAGES = {
    **dict.fromkeys(
        ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced", "libcuda1"), f"{LOCKED}-1"
    ),
    **dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.19.1-1"),
    "libnvidia-egl-gbm1": "1.1.2-1",
    "containerd": "1.6.20~ds1-1+b1",
}


def lock(packages: Mapping[str, str] = PACKAGES, **more: str) -> VersionLock:
    told = {"file": "f.lock", "recipe": "r", "distribution": "debian", "release": "12", "architecture": "amd64"}
    return VersionLock(**{**told, **more}, packages=by_id(packages))


def locked_recipe(runtime: str = "containerd", packages: Mapping[str, str] = PACKAGES, **driver: Any) -> Recipe:
    return replace(recipe(runtime, **driver), lock=lock(packages))


def versions(changes: tuple[object, ...]) -> dict[str, object]:
    return {str(c.id): getattr(c.after, "version", c.after) for c in changes if isinstance(c, PackageChange)}


def test_bare_node_gets_exactly_the_locked_versions() -> None:
    facts = machine()
    assert versions(planned(DRIVER_STEP.plan(locked_recipe(), facts)).changes) == {
        name: PACKAGES[name] for name in ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")
    }
    assert versions(planned(TOOLKIT_STEP.plan(locked_recipe(), facts)).changes) == dict.fromkeys(
        map(str, TOOLKIT_PACKAGES), "1.19.1-1"
    )
    assert versions(planned(RUNTIME_INSTALL_STEP.plan(locked_recipe(), facts)).changes) == {
        "containerd": PACKAGES["containerd"]
    }


def test_lock_pins_the_driver_for_its_dependencies() -> None:
    (change,) = planned(DRIVER_PIN_STEP.plan(locked_recipe(), machine())).changes
    assert f"Pin: version {LOCKED}-*".encode() in getattr(change, "after").content  # noqa: B009 - a union


@pytest.mark.parametrize("version", ["580.82.07-1", "580.119.02-1", f"{LOCKED}-2"])
def test_other_versions_are_moved_to_the_locked_version(version: str) -> None:
    facts = with_driver(
        packages=dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.20.1-1") | {"nvidia-driver-cuda": version}
    )
    assert versions(planned(DRIVER_STEP.plan(locked_recipe(), facts)).changes) == {"nvidia-driver-cuda": f"{LOCKED}-1"}
    assert versions(planned(TOOLKIT_STEP.plan(locked_recipe(), facts)).changes) == dict.fromkeys(
        map(str, TOOLKIT_PACKAGES), "1.19.1-1"
    )


def test_dependency_is_moved_to_its_locked_version_and_stays_auto() -> None:
    facts = with_driver(packages={"libnvidia-egl-gbm1": PackageState("1.1.1-1", auto=True)})
    (change,) = planned(DRIVER_STEP.plan(locked_recipe(), facts)).changes
    assert isinstance(change, PackageChange)
    assert (str(change.id), change.after) == ("libnvidia-egl-gbm1", PackageState("1.1.2-1", auto=True))


def test_missing_locked_dependency_is_not_requested() -> None:
    assert planned(DRIVER_STEP.plan(locked_recipe(), with_driver())).changes == ()


def test_lock_overrides_the_installed_and_the_production_branch() -> None:
    other = {name: v.replace(LOCKED, "535.261.03") for name, v in PACKAGES.items()}
    found = wanted_driver(locked_recipe(packages=other), with_driver())
    assert isinstance(found, WantedDriver)
    assert found.chosen.exact == "535.261.03"


@pytest.mark.parametrize("flavour", ["nvidia-kernel-open-dkms", "nvidia-kernel-dkms"])
def test_module_flavour_follows_the_lock(flavour: str) -> None:
    packages = {name: v for name, v in PACKAGES.items() if "dkms" not in name} | {flavour: f"{LOCKED}-1"}
    found = wanted_driver(locked_recipe(packages=packages), machine())
    assert isinstance(found, WantedDriver)
    assert found.family.dkms_package(found.chosen) == flavour


@pytest.mark.parametrize(
    ("step", "wanted", "facts", "words"),
    [
        (DETECT_STEP, replace(recipe(), lock=lock(release="13")), machine(), ("debian 13 amd64", "debian 12 amd64")),
        (DETECT_STEP, replace(recipe(), lock=lock(architecture="arm64")), machine(), ("arm64",)),
        (DETECT_STEP, replace(recipe(), lock=lock()), machine(distro=UBUNTU), ("ubuntu 24.04",)),
        (DRIVER_STEP, locked_recipe(version="595"), machine(), (LOCKED, "595")),
        (DRIVER_STEP, locked_recipe(version="580.119.02"), machine(), (LOCKED, "580.119.02")),
        (DRIVER_STEP, locked_recipe(packages={"containerd": "1-1"}), machine(), ("no driver",)),
        (
            DRIVER_STEP,
            locked_recipe(packages=PACKAGES | {"libcuda1": "595.1.1-1"}),
            machine(),
            ("more than one version",),
        ),
        (
            DRIVER_STEP,
            locked_recipe(packages={n: v for n, v in PACKAGES.items() if "dkms" not in n}),
            machine(),
            ("dkms",),
        ),
        (DRIVER_STEP, locked_recipe(scope="media"), machine(), ("libnvidia-encode1",)),
        (TOOLKIT_STEP, locked_recipe(packages={}), machine(), ("nvidia-container-toolkit",)),
        (
            TOOLKIT_STEP,
            locked_recipe(packages=PACKAGES | {"libnvidia-container1": "1.20.1-1"}),
            machine(),
            ("1.19.1-1", "1.20.1-1"),
        ),
        (RUNTIME_INSTALL_STEP, locked_recipe("docker"), machine(), ("docker.io",)),
        (RUNTIME_INSTALL_STEP, locked_recipe("docker"), machine(packages={"docker.io": "20.10-1"}), ("docker.io",)),
        (
            RUNTIME_INSTALL_STEP,
            locked_recipe(),
            machine(packages={"containerd": PackageState("1.7-1", held=True)}),
            ("held", "f.lock"),
        ),
    ],
)
def test_lock_that_does_not_fit_is_refused(step: Any, wanted: Recipe, facts: Facts, words: tuple[str, ...]) -> None:
    refused = refusal(step.plan(wanted, facts))
    assert all(word in f"{refused.what} {refused.why}" for word in words), refused


def test_lock_for_a_driver_the_gpu_cannot_use_is_refused() -> None:
    old = {name: v.replace(LOCKED, "535.261.03") for name, v in PACKAGES.items()}
    refused = refusal(DRIVER_STEP.plan(locked_recipe(packages=old), machine(gpus=(gpu(B200),))))
    assert ("535" in refused.what, "f.lock has 535.261.03" in refused.why) == (True, True)
    # The lock overrules --driver.
    assert "gpunode plan --lock OTHER.lock" in refused.hint
    assert "--driver" not in refused.hint


def pinned_node(exact: str) -> Facts:
    found = wanted_driver(recipe(), with_driver())
    assert isinstance(found, WantedDriver)
    text = render_driver_pin(replace(found.chosen, exact=exact), DEBIAN.origins)
    facts = with_driver()
    return replace(facts, files={**facts.files, PIN_FILE: Known(FileState(text), "apt-preferences-d")})


def test_pinned_node_stays_pinned_without_a_lock() -> None:
    assert planned(DRIVER_PIN_STEP.plan(recipe(), pinned_node(LOCKED))).changes == ()


def test_pinned_version_is_installed_again() -> None:
    assert set(versions(planned(DRIVER_STEP.plan(recipe(), pinned_node("580.82.07"))).changes)) == {
        "nvidia-driver-cuda",
        "nvidia-kernel-open-dkms",
        "nvidia-persistenced",
    }


def test_upgrade_releases_the_pinned_version() -> None:
    (change,) = planned(DRIVER_PIN_STEP.plan(replace(recipe(), upgrade=True), pinned_node(LOCKED))).changes
    assert b"Pin: version 580.*" in getattr(change, "after").content  # noqa: B009 - a union


def test_edited_pin_file_pins_nothing() -> None:
    facts = pinned_node(LOCKED)
    state = facts.file(PIN_FILE)
    assert isinstance(state, Known)
    assert state.value is not None
    edited: Known[FileState | None] = Known(
        replace(state.value, content=state.value.content + b"# mine\n"), "apt-preferences-d"
    )
    assert (
        planned(DRIVER_PIN_STEP.plan(recipe(), replace(facts, files={**facts.files, PIN_FILE: edited}))).changes != ()
    )


def test_lock_holds_a_separate_client_too() -> None:
    """Debian 13 has docker's client in docker-cli; a lock from a node without that package leaves it out."""
    trixie = Known(Distro("debian", "13", "trixie", "Debian GNU/Linux 13 (trixie)"), "os-release")
    both = {"docker.io": "26.1.5-1", "docker-cli": "26.1.5-1"}
    wanted = locked_recipe("docker", PACKAGES | both)
    for installed in ({}, dict.fromkeys(both, "26.1.4-1")):
        facts = machine(distro=trixie, packages=installed)
        assert versions(planned(RUNTIME_INSTALL_STEP.plan(wanted, facts)).changes) == both
    alone = locked_recipe("docker", PACKAGES | {"docker.io": "26.1.5-1"})
    bare = machine(distro=trixie)
    assert versions(planned(RUNTIME_INSTALL_STEP.plan(alone, bare)).changes) == {"docker.io": "26.1.5-1"}
