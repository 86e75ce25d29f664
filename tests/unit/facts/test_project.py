from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import (
    CommandChange,
    Deferred,
    FileChange,
    FileState,
    KnownAfter,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
    SigningKey,
)
from gpunode.facts.derive import derive
from gpunode.facts.model import Facts, Kernels, Known, LoadedDriver, ModuleFile, Unknown, holds, need
from gpunode.facts.project import project
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Planned
from gpunode.steps.repair import REPAIR

KERNEL = "6.1.0-25-amd64"
KEY = SigningKey("https://r/3bf863cc.pub", frozenset({"EB693B3035CD5710E231E123A4B469963BF863CC"}))
LIST = "/etc/apt/sources.list.d/cuda.list"


@pytest.fixture(name="facts")
def bare_node() -> Facts:
    return replace(
        derive({}, image=False),
        packages=Known({}, "dpkg-status"),
        sources=Known((), "apt-sources"),
        headers=Known(frozenset(), "kernel-builds"),
        kernels=Known(Kernels(KERNEL, (KERNEL,)), "boot-images"),
        module_files=Known((), "modules-dkms"),
        modules=Known(frozenset({"nouveau"}), "modules"),
        loaded_driver=Known(None, "nvidia-version"),
        dpkg_interrupted=Known(True, "dpkg-updates"),
    )


def install(name: str, prefix: str = "") -> PackageChange:
    return PackageChange(name, None, KnownAfter(prefix))


def test_a_written_file_is_known(facts: Facts) -> None:
    state = FileState(b"blacklist nouveau\n")
    after = project(facts, [FileChange("/etc/modprobe.d/n.conf", None, state)])
    assert holds(after.file("/etc/modprobe.d/n.conf"), state)
    gone = project(after, [FileChange("/etc/modprobe.d/n.conf", state, None)])
    assert holds(gone.file("/etc/modprobe.d/n.conf"), None)


def test_a_key_is_promised_and_no_other_key_is_taken_for_it(facts: Facts) -> None:
    fact = project(facts, [FileChange("/usr/share/keyrings/k.gpg", None, KEY)]).file("/usr/share/keyrings/k.gpg")
    assert isinstance(fact, Unknown)
    assert holds(fact, KEY)
    assert not holds(fact, replace(KEY, fingerprints=frozenset({"0" * 40})))
    assert not holds(fact, FileState(b""))
    assert not holds(Known(FileState(b"key"), "x"), KEY)


def test_a_deferred_file_is_promised(facts: Facts) -> None:
    later = Deferred("config.toml with the nvidia runtime", "containerd is installed")
    assert holds(project(facts, [FileChange("/etc/c", None, later)]).file("/etc/c"), later)


def test_a_list_file_brings_its_sources(facts: Facts) -> None:
    change = FileChange(LIST, None, FileState(b"deb [signed-by=/k.gpg] https://r/x/ /\n"))
    after = project(facts, [change])
    assert [(one.file, one.signed_by) for one in need(after.sources, "x")] == [(LIST, "/k.gpg")]
    assert need(project(after, [change]).sources, "x") == need(after.sources, "x")
    assert need(project(after, [FileChange(LIST, None, None)]).sources, "x") == ()


def test_headers_and_a_dkms_driver_give_every_kernel_its_module(facts: Facts) -> None:
    todo = [install("nvidia-dkms-580-open", "580."), install(f"linux-headers-{KERNEL}"), install("linux-headers-amd64")]
    after = project(facts, todo)
    assert need(after.headers, "x") == {KERNEL}
    assert need(after.packages, "x")["nvidia-dkms-580-open"].version == "580."
    assert [(one.kernel, one.version, one.dkms) for one in need(after.module_files, "x")] == [(KERNEL, "580.", True)]


@pytest.mark.parametrize(
    ("name", "builds"),
    [
        ("nvidia-dkms-580", True),
        ("nvidia-dkms-open", True),
        ("nvidia-kernel-open-dkms", True),
        ("nvidia-kernel-dkms", True),
        ("nvidia-tesla-470-kernel-dkms", True),
        ("nvidia-fs-dkms", False),
        ("nvidia-utils-580", False),
        ("dkms", False),
    ],
)
def test_which_packages_build_the_driver(facts: Facts, name: str, builds: bool) -> None:
    with_headers = replace(facts, headers=Known(frozenset({KERNEL}), "kernel-builds"))
    assert bool(need(project(with_headers, [install(name)]).module_files, "x")) is builds


def test_a_purged_driver_takes_its_modules_along_and_a_prebuilt_one_stays(facts: Facts) -> None:
    prebuilt = ModuleFile(KERNEL, "/lib/modules/k/kernel/nvidia-580/nvidia.ko", "580")
    before = PackageState("470.256.02-1")
    node = replace(
        facts,
        packages=Known({"nvidia-kernel-dkms": before}, "dpkg-status"),
        module_files=Known((prebuilt, ModuleFile(KERNEL, "/x", "470.256.02", dkms=True)), "modules-dkms"),
    )
    after = project(node, [PackageChange("nvidia-kernel-dkms", before, None)])
    assert need(after.module_files, "x") == (prebuilt,)
    assert need(after.packages, "x") == {}


def test_loading_the_driver_tells_version_and_flavour(facts: Facts) -> None:
    installed = PackageChange("nvidia-kernel-open-dkms", None, PackageState("595.91.07-1"))
    after = project(facts, [installed, ModuleChange("nouveau", True, False), ModuleChange("nvidia-uvm", False, True)])
    after = project(after, [ModuleChange("nvidia", False, True)])
    assert need(after.modules, "x") == {"nvidia", "nvidia_uvm"}
    assert need(after.loaded_driver, "x") == LoadedDriver("595.91.07", True)
    assert need(project(after, [ModuleChange("nvidia", True, False)]).loaded_driver, "x") is None


def test_what_the_repair_step_plans_repairs(facts: Facts) -> None:
    broken = replace(facts, dpkg_interrupted=Known(value=True, probe="x"))
    outcome = REPAIR.plan(Recipe("test"), broken)
    assert isinstance(outcome, Planned)
    assert need(project(broken, outcome.changes).dpkg_interrupted, "x") is False


def test_services_and_repairs(facts: Facts) -> None:
    stopped, running = ServiceState(False, False), ServiceState(True, True)
    after = project(
        facts,
        [
            ServiceChange("nvidia-persistenced.service", stopped, running),
            CommandChange(("dpkg", "--configure", "-a"), "dpkg was interrupted"),
        ],
    )
    assert need(after.units["nvidia-persistenced.service"], "x").state == running
    assert need(after.dpkg_interrupted, "x") is False


def test_a_held_package_stays_held(facts: Facts) -> None:
    change = PackageChange("containerd", PackageState("1.6", held=True), KnownAfter())
    assert need(project(facts, [change]).packages, "x")["containerd"].held


def test_what_was_unknown_stays_unknown() -> None:
    nothing = derive({})
    after = project(nothing, [install("nvidia-dkms-580"), FileChange(LIST, None, FileState(b"deb https://r/ /\n"))])
    assert isinstance(after.packages, Unknown)
    assert isinstance(after.sources, Unknown)
    assert isinstance(after.module_files, Unknown)
