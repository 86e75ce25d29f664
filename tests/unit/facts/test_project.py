from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import (
    Change,
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
from gpunode.facts.model import (
    Facts,
    Kernels,
    Known,
    LoadedDriver,
    ModuleFile,
    PromisedFile,
    Unit,
    Unknown,
    file_matches,
    require,
)
from gpunode.facts.project import PLAN_PROBE_KEY, project_changes
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Recipe
from gpunode.steps.packages import REPAIR_STEP
from tests.ids import by_id

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
        packages_interrupted=Known(True, "dpkg-updates"),
    )


def install(name: str, prefix: str = "") -> PackageChange:
    return PackageChange(PackageId.of(name), None, KnownAfter(prefix))


def test_written_file_is_known(facts: Facts) -> None:
    state = FileState(b"blacklist nouveau\n")
    after = project_changes(facts, [FileChange("/etc/modprobe.d/n.conf", None, state)])
    assert file_matches(after.file("/etc/modprobe.d/n.conf"), state)
    gone = project_changes(after, [FileChange("/etc/modprobe.d/n.conf", state, None)])
    assert file_matches(gone.file("/etc/modprobe.d/n.conf"), None)


def test_signing_key_is_promised_by_its_fingerprints(facts: Facts) -> None:
    fact = project_changes(facts, [FileChange("/usr/share/keyrings/k.gpg", None, KEY)]).file(
        "/usr/share/keyrings/k.gpg"
    )
    assert isinstance(fact, Unknown)
    assert file_matches(fact, KEY)
    assert not file_matches(fact, replace(KEY, fingerprints=frozenset({"0" * 40})))
    assert not file_matches(fact, FileState(b""))
    assert not file_matches(Known(FileState(b"key"), "x"), KEY)


def test_deferred_file_is_promised(facts: Facts) -> None:
    later = Deferred("config.toml with the nvidia runtime", "containerd is installed")
    fact = project_changes(facts, [FileChange("/etc/c", None, later)]).file("/etc/c")
    assert file_matches(fact, later)
    assert fact == PromisedFile(
        "config.toml with the nvidia runtime; known after containerd is installed", PLAN_PROBE_KEY, later
    )


def test_planned_file_has_no_change_time(facts: Facts) -> None:
    """A daemon counts as having read a file that a plan writes, since the change triggers its restart."""
    node = replace(facts, changed_at={"/etc/a": 1.0, "/etc/b": 2.0})
    for after in (FileState(b""), None, Deferred("what the package ships", "the transaction")):
        assert project_changes(node, [FileChange("/etc/a", None, after)]).changed_at == {"/etc/b": 2.0}


def test_projected_facts_name_the_plan_as_their_source(facts: Facts) -> None:
    state = FileState(b"")
    todo: list[Change] = [FileChange("/etc/a", None, state), install("vim", "9"), ModuleChange("nouveau", True, False)]
    after = project_changes(facts, [*todo, deb.REPAIR_COMMAND])
    assert after.file("/etc/a") == Known(state, PLAN_PROBE_KEY)
    assert after.packages == Known(by_id({"vim": PackageState("9")}), PLAN_PROBE_KEY)
    assert after.modules == Known(frozenset(), PLAN_PROBE_KEY)
    assert after.packages_interrupted == Known(value=False, probe=PLAN_PROBE_KEY)


def test_list_file_adds_its_sources(facts: Facts) -> None:
    change = FileChange(LIST, None, FileState(b"deb [signed-by=/k.gpg] https://r/x/ /\n"))
    after = project_changes(facts, [change])
    assert [(one.file, one.signed_by) for one in require(after.sources, "x")] == [(LIST, "/k.gpg")]
    assert require(project_changes(after, [change]).sources, "x") == require(after.sources, "x")
    assert require(project_changes(after, [FileChange(LIST, None, None)]).sources, "x") == ()


def test_invalid_list_gives_unknown_sources(facts: Facts) -> None:
    after = project_changes(facts, [FileChange(LIST, None, FileState(b"deb nonsense\n"))])
    assert after.sources == Unknown(f"{LIST}:1: not an entry that apt reads", PLAN_PROBE_KEY)


def test_list_with_non_utf8_comments_is_parsed(facts: Facts) -> None:
    after = project_changes(facts, [FileChange(LIST, None, FileState(b"# f\xfcr\ndeb https://r/x/ /\n"))])
    assert [one.file for one in require(after.sources, "x")] == [LIST]


def test_headers_and_a_dkms_driver_give_every_kernel_a_module(facts: Facts) -> None:
    todo = [install("nvidia-dkms-580-open", "580."), install(f"linux-headers-{KERNEL}"), install("linux-headers-amd64")]
    after = project_changes(facts, todo)
    assert require(after.headers, "x") == {KERNEL}
    assert require(after.packages, "x")[PackageId("nvidia-dkms-580-open")].version == "580."
    built = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "580.", dkms=True)
    assert after.module_files == Known((built,), PLAN_PROBE_KEY)


def test_module_from_an_unpackaged_dkms_source_is_kept(facts: Facts) -> None:
    built = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "580.95.05", dkms=True)
    node = replace(facts, module_files=Known((built,), "modules-dkms"))
    assert project_changes(node, [install(f"linux-headers-{KERNEL}")]).module_files == Known((built,), PLAN_PROBE_KEY)


def test_purged_headers_remove_the_module_of_their_kernel(facts: Facts) -> None:
    node = project_changes(facts, [install("nvidia-kernel-dkms", "470"), install(f"linux-headers-{KERNEL}")])
    after = project_changes(node, [PackageChange(PackageId.of(f"linux-headers-{KERNEL}"), PackageState("1"), None)])
    assert after.headers == Known(frozenset(), PLAN_PROBE_KEY)
    assert after.module_files == Known((), PLAN_PROBE_KEY)


def test_modules_are_built_only_by_dkms_and_its_packages(facts: Facts) -> None:
    node = replace(
        facts,
        packages=Known(by_id({"dkms": PackageState("3"), "nvidia-kernel-dkms": PackageState("470-1")}), "dpkg-status"),
        headers=Known(frozenset({KERNEL}), "kernel-builds"),
    )

    def modules(*changes: Change) -> list[str]:
        return [one.version for one in require(project_changes(node, changes).module_files, "x")]

    assert modules(CommandChange(("dkms", "autoinstall"), "no module")) == ["470"]
    assert modules(install("linux-headers-6.1.0-26-amd64")) == ["470", "470"]
    assert modules(install("vim"), CommandChange(("update-initramfs", "-u"), "x"), FileChange("/a", None, None)) == []


def test_nothing_is_built_without_a_driver_or_known_headers(facts: Facts) -> None:
    removed = PackageState("470", config_files_only=True)
    for packages in ({}, {"vim": PackageState("9"), "nvidia-kernel-dkms": removed}):
        node = replace(facts, packages=Known(by_id(packages), "dpkg-status"))
        assert project_changes(node, [install(f"linux-headers-{KERNEL}")]).module_files == Known((), PLAN_PROBE_KEY)
    node = replace(facts, headers=Unknown("Permission denied", "kernel-builds"))
    assert project_changes(node, [install("nvidia-kernel-dkms")]).module_files == Known((), PLAN_PROBE_KEY)


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
def test_packages_that_build_the_driver(facts: Facts, name: str, builds: bool) -> None:
    with_headers = replace(facts, headers=Known(frozenset({KERNEL}), "kernel-builds"))
    assert bool(require(project_changes(with_headers, [install(name)]).module_files, "x")) is builds


def test_purged_driver_removes_its_modules_but_not_prebuilt_ones(facts: Facts) -> None:
    prebuilt = ModuleFile(KERNEL, "/lib/modules/k/kernel/nvidia-580/nvidia.ko", "580")
    before = PackageState("470.256.02-1")
    node = replace(
        facts,
        packages=Known({PackageId("nvidia-kernel-dkms"): before}, "dpkg-status"),
        module_files=Known((prebuilt, ModuleFile(KERNEL, "/x", "470.256.02", dkms=True)), "modules-dkms"),
    )
    after = project_changes(node, [PackageChange(PackageId("nvidia-kernel-dkms"), before, None)])
    assert require(after.module_files, "x") == (prebuilt,)
    assert require(after.packages, "x") == {}


def test_loaded_driver_has_version_and_flavour(facts: Facts) -> None:
    installed = PackageChange(PackageId("nvidia-kernel-open-dkms"), None, PackageState("595.91.07-1"))
    after = project_changes(
        facts, [installed, ModuleChange("nouveau", True, False), ModuleChange("nvidia-uvm", False, True)]
    )
    after = project_changes(after, [ModuleChange("nvidia", False, True)])
    assert require(after.modules, "x") == {"nvidia", "nvidia_uvm"}
    assert after.loaded_driver == Known(LoadedDriver("595.91.07", True), PLAN_PROBE_KEY)
    assert project_changes(after, [ModuleChange("nvidia-uvm", True, False)]).loaded_driver == after.loaded_driver
    assert project_changes(after, [ModuleChange("nvidia", True, False)]).loaded_driver == Known(None, PLAN_PROBE_KEY)


def test_version_of_a_prebuilt_driver_is_known_once_loaded(facts: Facts) -> None:
    after = project_changes(facts, [ModuleChange("nvidia", False, True)])
    assert after.loaded_driver == Unknown("known after the module is loaded", PLAN_PROBE_KEY)


def test_repair_step_clears_the_interrupted_state(facts: Facts) -> None:
    broken = replace(facts, packages_interrupted=Known(value=True, probe="x"))
    outcome = REPAIR_STEP.plan(Recipe("test"), broken)
    assert isinstance(outcome, Planned)
    assert require(project_changes(broken, outcome.changes).packages_interrupted, "x") is False


def test_service_change_and_repair_are_projected(facts: Facts) -> None:
    stopped, running = ServiceState(False, False), ServiceState(True, True)
    after = project_changes(
        facts,
        [
            ServiceChange("nvidia-persistenced.service", stopped, running),
            deb.REPAIR_COMMAND,
        ],
    )
    assert require(after.units["nvidia-persistenced.service"], "x").state == running
    assert require(after.packages_interrupted, "x") is False


@pytest.mark.parametrize("argv", [("dpkg", "--audit"), ("tool", "--configure"), ("dkms", "autoinstall")])
def test_other_commands_do_not_clear_the_interrupted_state(facts: Facts, argv: tuple[str, ...]) -> None:
    assert project_changes(facts, [CommandChange(argv, "x")]).packages_interrupted == facts.packages_interrupted


def test_changed_unit_exists_and_keeps_its_other_facts(facts: Facts) -> None:
    stopped, running = ServiceState(False, False), ServiceState(True, True)
    unit = Known(Unit(stopped, exists=False, changed_at=7.0), "units")
    after = project_changes(replace(facts, units={"a.service": unit}), [ServiceChange("a.service", stopped, running)])
    assert after.units == {"a.service": Known(Unit(running, exists=True, changed_at=7.0), PLAN_PROBE_KEY)}


def test_held_package_stays_held(facts: Facts) -> None:
    change = PackageChange(PackageId("containerd"), PackageState("1.6", held=True), KnownAfter())
    assert require(project_changes(facts, [change]).packages, "x")[PackageId("containerd")].held


def test_unknown_facts_stay_unknown() -> None:
    nothing = derive({})
    after = project_changes(
        nothing, [install("nvidia-dkms-580"), FileChange(LIST, None, FileState(b"deb https://r/ /\n"))]
    )
    assert isinstance(after.packages, Unknown)
    assert isinstance(after.sources, Unknown)
    assert isinstance(after.module_files, Unknown)
