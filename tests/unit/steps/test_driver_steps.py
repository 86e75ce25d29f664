"""Driver of a machine, the packages removed for it, and its completion: choice, pin, conflicts, driver, module."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpunode.catalog import branches
from gpunode.catalog.conflicts import driver_versioned_packages
from gpunode.catalog.driver import DriverChoice
from gpunode.change import CommandChange, KnownAfter, ModuleChange, PackageChange, PackageState, ServiceChange
from gpunode.facts.model import DkmsBuild, Facts, Kernels, Known, LoadedDriver, ModuleFile, Platform
from gpunode.facts.project import PLAN_PROBE_KEY, project_changes
from gpunode.outcome import Blocked
from gpunode.package_id import PackageId
from gpunode.packages.deb.preferences import PIN_FILE
from gpunode.recipe import Recipe
from gpunode.steps.daemons import PERSISTENCE_STEP
from gpunode.steps.driver import CONFLICTS_STEP, DRIVER_PIN_STEP, DRIVER_STEP
from gpunode.steps.installed_driver import remember_last
from gpunode.steps.kernel import HEADERS_STEP, MODULE_BUILD_STEP, MODULE_LOAD_STEP, NOUVEAU_BLACKLIST_FILE, NOUVEAU_STEP
from gpunode.steps.selection import choose_driver_for_node
from gpunode.workflow.converge import plan_stage
from tests.unit.steps.machines import (
    B200,
    GTX_1080,
    KERNEL,
    T4,
    UBUNTU,
    UNKNOWN,
    files,
    gpu,
    machine,
    names,
    planned,
    recipe,
    refusal,
    unit,
    with_driver,
)

PRODUCTION = branches.production().number
NEWER = "6.1.0-38-amd64"


def chosen_driver(wanted: Recipe, facts: Facts) -> DriverChoice:
    found = choose_driver_for_node(wanted, facts)
    assert isinstance(found, DriverChoice), found
    return found


# -- choice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "branch", "flavour"),
    [(GTX_1080, 580, "proprietary"), (T4, PRODUCTION, "open"), (B200, PRODUCTION, "open")],
)
def test_bare_machine_gets_the_driver_its_gpu_needs(device: str, branch: int, flavour: str) -> None:
    found = chosen_driver(recipe(), machine(gpus=(gpu(device),)))
    assert (found.branch, found.flavour) == (branch, flavour)


def test_unknown_gpu_gets_the_newest_open_driver_and_a_warning() -> None:
    found = chosen_driver(recipe(), machine(gpus=(gpu(UNKNOWN),)))
    assert found.flavour == "open"
    assert found.branch >= PRODUCTION
    assert found.warnings


def test_gpus_without_a_common_driver_are_refused() -> None:
    mixed = machine(gpus=(gpu(GTX_1080), gpu(B200, address="0000:02:00.0")))
    assert "all GPUs" in refusal(DRIVER_STEP.plan(recipe(), mixed)).what


def test_maintained_driver_is_kept_although_a_newer_branch_exists() -> None:
    found = chosen_driver(recipe(), with_driver("580.95.05"))
    assert (found.branch, found.exact) == (580, "")
    assert "kept" in found.reason
    assert planned(DRIVER_STEP.plan(recipe(), with_driver("580.95.05"))).changes == ()


def test_installed_lts_branch_is_kept_although_a_newer_one_is_out() -> None:
    assert chosen_driver(recipe(version="lts"), machine(gpus=(gpu(T4),))).branch == 620
    for wanted in (recipe(version="lts"), replace(recipe(version="lts"), upgrade=True)):
        found = chosen_driver(wanted, with_driver("580.95.05"))
        assert found.branch == 580
        assert "`--driver 620` moves to the newest lts branch" in found.reason


def test_named_branch_kind_replaces_an_installed_branch_of_another_kind() -> None:
    assert chosen_driver(recipe(version="lts"), with_driver("595.91.07")).branch == 620
    assert chosen_driver(recipe(version="production"), with_driver("580.95.05")).branch == PRODUCTION
    assert chosen_driver(recipe(version="production"), with_driver("595.91.07")).branch == 595


@pytest.mark.parametrize("version", ["auto", "lts", "production"])
def test_branch_newer_than_the_table_is_kept_and_not_called_ended(version: str) -> None:
    """The table is older than the branch, which may be any kind's newest; an older driver was not requested."""
    found = chosen_driver(recipe(version=version), with_driver("640.10.01"))
    assert found.branch == 640
    assert "newer than what gpunode knows" in found.reason
    assert "maintained" not in found.reason
    assert [note for note in found.warnings if "no longer gets fixes" in note] == []


def test_working_proprietary_modules_are_kept_where_open_is_default() -> None:
    """A T4 works with both; other modules, and the reboot that they need, were not requested."""
    node = with_driver("580.95.05", open_module=False)
    assert chosen_driver(recipe(), node).flavour == "proprietary"
    for step in (CONFLICTS_STEP, DRIVER_STEP, MODULE_BUILD_STEP, MODULE_LOAD_STEP, PERSISTENCE_STEP):
        assert planned(step.plan(recipe(), node)).changes == (), step.id


def test_modules_unsupported_by_the_gpu_are_replaced() -> None:
    node = with_driver("580.95.05", open_module=False, gpus=(gpu(B200),))
    assert chosen_driver(recipe(), node).flavour == "open"


def test_missing_driver_package_is_added_in_the_installed_version() -> None:
    node = with_driver("580.95.05")
    packages = dict(node.packages.value)  # type: ignore[union-attr]
    del packages[PackageId("nvidia-persistenced")]
    node = replace(node, packages=Known(packages, "dpkg-status"))
    assert chosen_driver(recipe(), node).branch == 580
    outcome = planned(DRIVER_STEP.plan(recipe(), node))
    assert outcome.changes == (
        PackageChange(PackageId("nvidia-persistenced"), None, KnownAfter("580.95.05-", "driver")),
    )
    assert planned(CONFLICTS_STEP.plan(recipe(), node)).changes == ()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("libcuda1", "580.65.06-1"),
        ("libcuda1", "580.178.04-1"),
        ("libcuda1", "595.91.07-1"),
        ("libnvidia-ml1", "570.158.01-1"),
        ("nvidia-driver-cuda", "580.65.06-1"),
        ("nvidia-persistenced", "580.65.06-1"),
        ("libnvidia-ptxjitcompiler1", "580.65.06-1"),
        ("libnvidia-ptxjitcompiler1:i386", "580.65.06-1"),
        ("nvidia-fabricmanager", "580.65.06-1"),
    ],
)
def test_driver_package_of_another_version_is_aligned(name: str, version: str) -> None:
    before = PackageState(version, auto=True)
    node = with_driver("580.95.05", packages={name: before})
    outcome = planned(DRIVER_STEP.plan(recipe(), node))
    # Packages that the recipe names count as requested, others that came with them as dependencies.
    auto = name not in {"nvidia-driver-cuda", "nvidia-persistenced"}
    assert outcome.changes == (PackageChange(PackageId.of(name), before, KnownAfter("580.95.05-", "driver", auto)),)
    assert f"{name} is {version[:-2]}" in outcome.reason
    assert "580.95.05" in outcome.reason
    assert planned(CONFLICTS_STEP.plan(recipe(), node)).changes == ()
    mended = project_changes(node, outcome.changes)
    assert planned(DRIVER_STEP.plan(recipe(), mended)).changes == ()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    "name", ["nvidia-settings", "nvidia-xconfig", "nvidia-modprobe", "nvidia-libopencl1", "nvidia-opencl-common"]
)
def test_driver_tools_with_their_own_versions_may_lag_behind(name: str, held: bool) -> None:
    """Debian packages them separately; they may not exist in the driver's version."""
    node = with_driver("580.95.05", packages={name: PackageState("580.65.06-1", held=held)})
    for wanted in (recipe(), recipe(version="580"), recipe(version="580.95.05")):
        for step in (CONFLICTS_STEP, DRIVER_STEP):
            assert planned(step.plan(wanted, node)).changes == (), (wanted, step.id)


def test_driver_tool_is_aligned_with_the_package_that_depends_on_it() -> None:
    """NVIDIA's nvidia-driver-cuda depends on nvidia-modprobe of its exact version, so both change together."""
    old = PackageState("580.65.06-1", config_files_only=True)
    node = with_driver(
        "580.95.05",
        packages={"libcuda1": "580.178.04-1", "nvidia-modprobe": "580.178.04-1", "nvidia-settings": old},
    )
    assert names(planned(DRIVER_STEP.plan(recipe(), node)).changes) == ["libcuda1", "nvidia-modprobe"]
    lagging = with_driver("580.95.05", packages={"libcuda1": "580.178.04-1", "nvidia-modprobe": "580.65.06-1"})
    assert names(planned(DRIVER_STEP.plan(recipe(), lagging)).changes) == ["libcuda1"]


@pytest.mark.parametrize(
    "stray",
    [
        {"libxnvctrl0": "580.65.06-1"},  # of its own
        {"nvidia-firmware-580-580.65.06": "580.65.06-0ubuntu1"},  # one for each version, side by side
        {"libcuda1": PackageState("580.65.06-1", config_files_only=True)},
        {"nvidia-kernel-common": "20220217"},  # Debian's, with its own version
        {"libnvidia-container1": "1.19.1-1"},
    ],
)
def test_unrelated_package_may_have_another_version(stray: dict[str, PackageState | str]) -> None:
    node = with_driver("580.95.05", packages=stray)
    assert planned(DRIVER_STEP.plan(recipe(), node)).changes == ()
    assert planned(CONFLICTS_STEP.plan(recipe(), node)).changes == ()


def test_driver_package_held_at_another_version_is_named() -> None:
    node = with_driver("580.95.05", packages={"libcuda1": PackageState("580.65.06-1", held=True)})
    assert "apt-mark unhold libcuda1" in refusal(DRIVER_STEP.plan(recipe(), node)).hint


def test_upgrade_includes_packages_of_another_version() -> None:
    node = with_driver("580.95.05", packages={"libnvidia-ptxjitcompiler1": "580.65.06-1"})
    changes = planned(DRIVER_STEP.plan(replace(recipe(), upgrade=True), node)).changes
    assert "libnvidia-ptxjitcompiler1" in names(changes)
    afters = {change.after for change in changes if isinstance(change, PackageChange)}
    assert afters == {KnownAfter("580.", "driver")}


def test_modules_of_the_other_flavour_are_purged_whatever_their_version() -> None:
    node = with_driver("580.95.05", packages={"nvidia-kernel-dkms": "580.65.06-1"})
    (gone,) = planned(DRIVER_STEP.plan(recipe(), node)).changes
    assert gone == PackageChange(PackageId("nvidia-kernel-dkms"), PackageState("580.65.06-1"), None)
    assert planned(CONFLICTS_STEP.plan(recipe(), node)).changes == ()


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *driver_versioned_packages(580),
                "libcuda1:i386",
                "libnvidia-container1",
                "nvidia-firmware-580-580.65.06",
            ]
        ),
        st.sampled_from(
            ["580.95.05-1", "580.65.06-1", "1:580.178.04-0ubuntu1", "595.91.07-1", "470.256.02-1", "20220217"]
        ),
        max_size=8,
    ),
    st.booleans(),
)
@example(packages={"libcuda1:i386": "595.91.07-1", "nvidia-opencl-common": "595.91.07-1"}, upgrade=False)
def test_mixed_driver_versions_converge_in_one_run(packages: dict[str, str], upgrade: bool) -> None:
    wanted = replace(recipe(version="580", kernel_module_type="open"), upgrade=upgrade)
    node = with_driver("580.95.05", packages=packages)
    changes = [change for step in (CONFLICTS_STEP, DRIVER_STEP) for change in planned(step.plan(wanted, node)).changes]
    assert len(names(tuple(changes))) == len(set(names(tuple(changes))))
    after = project_changes(node, changes)
    for step in (CONFLICTS_STEP, DRIVER_STEP):
        assert planned(step.plan(replace(wanted, upgrade=False), after)).changes == (), step.id


def test_packages_built_for_ubuntu_leave_with_their_modules() -> None:
    """The other flavour's modules come from Debian's folder, so the rest does, too, in the same run."""
    names = ("nvidia-kernel-dkms", "nvidia-driver-cuda", "libcuda1", "libcuda1:i386")
    node = machine(gpus=(gpu(B200),), packages=dict.fromkeys(names, "580.95.05-1ubuntu1"))
    wanted = recipe(version="580")
    first = plan_stage(wanted, node, "packages")
    planned = {str(change.id): change.after for change in first.packages}
    assert planned["nvidia-driver-cuda"] == PackageState("580.95.05-1")
    assert planned["libcuda1"] is planned["libcuda1:i386"] is None
    after = project_changes(node, first.ordered_changes)
    assert plan_stage(wanted, after, "packages").packages == ()


def test_library_built_for_ubuntu_leaves_for_an_exact_version() -> None:
    node = machine(packages={"libnvidia-ml1": "580.95.05-1ubuntu1", "nvidia-persistenced": "580.95.05-1ubuntu1"})
    wanted = recipe(version="580.95.05")
    first = plan_stage(wanted, node, "packages")
    after = {str(one.id): one.after for one in first.packages}
    assert after["libnvidia-ml1"] is None
    assert after["nvidia-persistenced"] == PackageState("580.95.05-1")
    assert plan_stage(wanted, project_changes(node, first.ordered_changes), "packages").packages == ()


def test_libraries_of_ubuntu_stay_for_its_modules_of_the_other_flavour() -> None:
    packages = dict.fromkeys(("nvidia-dkms", "libnvidia-compute", "nvidia-persistenced"), "595.71.05-1ubuntu1")
    node = machine(distro=UBUNTU, gpus=(gpu(B200),), packages=packages)
    first = plan_stage(recipe(), node, "packages")
    assert "nvidia-dkms-open" in names(first.packages)
    assert plan_stage(recipe(), project_changes(node, first.ordered_changes), "packages").packages == ()


def test_driver_of_an_ended_branch_is_replaced() -> None:
    assert chosen_driver(recipe(), with_driver("535.261.03", open_module=False)).branch == PRODUCTION


def test_explicitly_requested_driver_overrides_the_installed_one() -> None:
    node = with_driver("580.95.05")
    assert chosen_driver(recipe(version="production"), node).branch == PRODUCTION
    assert chosen_driver(recipe(kernel_module_type="proprietary"), node).flavour == "proprietary"
    assert chosen_driver(recipe(version="580.178.04"), node).exact == "580.178.04"


def test_upgrade_installs_the_newest_version_of_the_same_branch() -> None:
    upgrade = replace(recipe(), upgrade=True)
    node = with_driver("580.95.05", open_module=False)
    assert (chosen_driver(upgrade, node).branch, chosen_driver(upgrade, node).flavour) == (580, "proprietary")
    afters = {
        change.after for change in planned(DRIVER_STEP.plan(upgrade, node)).changes if isinstance(change, PackageChange)
    }
    assert afters == {KnownAfter("580.", "driver")}
    assert chosen_driver(upgrade, with_driver("535.261.03", open_module=False)).branch == PRODUCTION


def test_upgrade_leaves_an_ended_branch_for_a_newer_one() -> None:
    upgrade = replace(recipe(), upgrade=True)
    ended = with_driver("610.57.04")
    assert chosen_driver(recipe(), ended).branch == PRODUCTION
    assert chosen_driver(upgrade, ended).branch == 620
    only_a_library = machine(packages={"libnvidia-nvvm4": "610.57.04-1"})
    assert chosen_driver(upgrade, only_a_library).branch == PRODUCTION


def test_upgrade_moves_to_an_older_branch_where_the_gpu_needs_it() -> None:
    upgrade = replace(recipe(), upgrade=True)
    assert chosen_driver(upgrade, with_driver("595.91.07", gpus=(gpu(GTX_1080),))).branch == 580


def test_single_library_of_another_branch_does_not_choose_the_driver() -> None:
    node = machine(gpus=(gpu(GTX_1080),), packages={"libnvidia-ml1": "595.91.07-1"})
    assert chosen_driver(recipe(), node).branch == 580
    beside = with_driver("580.95.05", packages={"libnvidia-nvvm4": "615.71.09-1"})
    assert chosen_driver(recipe(), beside).branch == 580


# -- pin ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pinned", "exact"), [("580", ""), ("580.95.05", "580.95.05")])
def test_nvidia_pinning_package_is_respected(pinned: str, exact: str) -> None:
    node = machine(packages={f"nvidia-driver-pinning-{pinned}": "1"})
    found = chosen_driver(recipe(), node)
    assert (found.branch, found.exact) == (580, exact)
    written = files(planned(DRIVER_PIN_STEP.plan(recipe(), node)).changes)[PIN_FILE].after
    assert f"Pin: version {exact or '580'}" in getattr(written, "content", b"").decode()


def test_pinning_package_unsupported_by_the_gpu_is_named() -> None:
    node = machine(gpus=(gpu(GTX_1080),), packages={"nvidia-driver-pinning-595": "1"})
    no = refusal(DRIVER_PIN_STEP.plan(recipe(), node))
    assert "nvidia-driver-pinning-595" in no.what
    assert "apt-get purge nvidia-driver-pinning-595" in no.hint


@pytest.mark.parametrize(
    ("pinned", "wanted", "agree"),
    [
        ("580", "580.178.04", True),
        ("580.95.05", "580", True),
        ("580.95.05", "580.178.04", False),
        ("58", "580", False),
        ("595", "580", False),
    ],
)
def test_pinning_package_that_contradicts_the_recipe_is_refused(pinned: str, wanted: str, agree: bool) -> None:
    node = machine(packages={f"nvidia-driver-pinning-{pinned}": "1"})
    outcome = DRIVER_PIN_STEP.plan(recipe(version=wanted), node)
    assert refusal(outcome).what if not agree else planned(outcome).reason


def test_residue_of_a_pinning_package_is_ignored() -> None:
    node = machine(packages={"nvidia-driver-pinning-580": PackageState("1", config_files_only=True)})
    assert chosen_driver(recipe(), node).branch == PRODUCTION


def test_edited_pin_file_is_rewritten() -> None:
    first = files(planned(DRIVER_PIN_STEP.plan(recipe(), machine())).changes)[PIN_FILE]
    edited = machine(files={PIN_FILE: b"# mine\n"})
    assert files(planned(DRIVER_PIN_STEP.plan(recipe(), edited)).changes)[PIN_FILE].after == first.after


# -- conflicts ---------------------------------------------------------------------------------------------------------

OLD: dict[str, PackageState | str] = {
    "nvidia-tesla-470-driver": "470.256.02-1",
    "libcuda1:i386": "470.256.02-1",
    "nvidia-kernel-support": PackageState("470.256.02-1", config_files_only=True),
}
NEVER = {
    "nvidia-container-toolkit": "1.19.1-1",
    "libnvidia-container1": "1.19.1-1",
    "nvidia-cuda-toolkit": "11.8.89~11.8.0-5",
    "firmware-nvidia-graphics": "20230625-2",
    "xserver-xorg-video-nouveau": "1:1.0.17-2",
    "nvidia-support": "20220217+3",
    "datacenter-gpu-manager": "1:3.3.9",
    "dkms": "3.0.10-8",
}


def test_only_old_driver_packages_are_purged() -> None:
    outcome = planned(CONFLICTS_STEP.plan(recipe(), machine(packages={**OLD, **NEVER})))
    assert names(outcome.changes) == sorted(OLD)
    assert all(change.after is None for change in outcome.changes if isinstance(change, PackageChange))


def test_shared_library_without_a_conflict_is_not_purged() -> None:
    """Debian's libhwloc-plugins, and so OpenMPI, and Chromium depend on libxnvctrl0: purging it removes them."""
    assert planned(CONFLICTS_STEP.plan(recipe(), machine(packages={"libxnvctrl0": "535.171.04-1"}))).changes == ()


def test_modules_of_the_other_flavour_are_replaced() -> None:
    node = with_driver("580.95.05", open_module=False)
    asked = recipe(kernel_module_type="open", version="580")
    assert planned(CONFLICTS_STEP.plan(asked, node)).changes == ()
    first, *brought = planned(DRIVER_STEP.plan(asked, node)).changes
    assert first == PackageChange(PackageId("nvidia-kernel-dkms"), PackageState("580.95.05-1"), None)
    assert {c.after for c in brought if isinstance(c, PackageChange)} == {KnownAfter("580.95.05-", "driver")}
    assert names(tuple(brought)) == ["nvidia-kernel-open-dkms"]


def test_package_hold_is_never_broken() -> None:
    held = PackageState("470.256.02-1", held=True)
    no = refusal(CONFLICTS_STEP.plan(recipe(), machine(packages={"nvidia-tesla-470-driver": held})))
    assert "apt-mark unhold nvidia-tesla-470-driver" in no.hint
    same_name = machine(packages={"nvidia-driver-cuda": replace(held, version="560.35.03-1")})
    assert "apt-mark unhold nvidia-driver-cuda" in refusal(DRIVER_STEP.plan(recipe(), same_name)).hint


def test_all_blocking_holds_are_named_in_one_command() -> None:
    """NVIDIA's 595 is held, the recipe wants 580, and the toolkit is held at two versions."""
    packages = {
        **dict.fromkeys(("nvidia-driver-cuda", "libcuda1", "libnvidia-ml1"), PackageState("595.71.05-1", held=True)),
        "nvidia-kernel-open-dkms": PackageState("595.71.05-1"),
        "nvidia-container-toolkit": PackageState("1.19.1-1", held=True),
        "libnvidia-container1": PackageState("1.18.0-1", held=True),
    }
    no = plan_stage(recipe("containerd", version="580"), machine(packages=packages), "packages").refusal
    assert no is not None
    held = {"libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-container-toolkit", "libnvidia-container1"}
    (command,) = [line.partition(",")[0] for line in no.hint.splitlines() if "apt-mark" in line]
    assert set(command.split()[3:]) == held
    assert all(name in no.what for name in held)


def test_hold_at_the_right_version_does_not_block() -> None:
    node = with_driver("580.95.05", packages={"nvidia-driver-cuda": PackageState("580.95.05-1", held=True)})
    assert planned(DRIVER_STEP.plan(recipe(), node)).changes == ()


def test_ubuntu_packages_named_by_branch_are_replaced() -> None:
    node = machine(distro=UBUNTU, packages={"nvidia-driver-535": "535.261.03-0ubuntu1", "nvidia-prime": "0.8.17.1"})
    assert names(planned(CONFLICTS_STEP.plan(recipe(), node)).changes) == ["nvidia-driver-535"]
    assert "libnvidia-compute" in names(planned(DRIVER_STEP.plan(recipe(), node)).changes)
    pascal = machine(distro=UBUNTU, gpus=(gpu(GTX_1080),))
    assert {"libnvidia-compute-580", "nvidia-dkms-580"} <= set(
        names(planned(DRIVER_STEP.plan(recipe(), pascal)).changes)
    )


@pytest.mark.parametrize("driver", ["nouveau", "nvidia"])
def test_display_on_the_gpu_is_noted_unless_scope_is_full(driver: str) -> None:
    desktop = machine(gpus=(gpu(class_code="0300", driver=driver),), packages={"gdm3": "43.0-3"})
    (note,) = planned(DRIVER_STEP.plan(recipe(), desktop)).change_notes
    assert "0000:01:00.0" in note
    assert 'scope = "full"' in note
    assert planned(DRIVER_STEP.plan(recipe(scope="full"), desktop)).change_notes == ()


def test_other_loaded_driver_is_noted_as_active_until_the_reboot() -> None:
    old = LoadedDriver("470.256.02", open_module=False)
    (note,) = planned(DRIVER_STEP.plan(recipe(), machine(loaded_driver=old))).change_notes
    assert "470.256.02 stays loaded until the reboot" in note
    assert planned(DRIVER_STEP.plan(recipe(), machine())).change_notes == ()


def test_removed_or_separate_display_is_not_noted() -> None:
    gone = machine(
        gpus=(gpu(class_code="0300", driver="nvidia"),), packages={"gdm3": PackageState("43", config_files_only=True)}
    )
    assert planned(DRIVER_STEP.plan(recipe(), gone)).change_notes == ()
    elsewhere = machine(gpus=(gpu(class_code="0302", driver="nvidia"),), packages={"gdm3": "43.0-3"})
    assert planned(DRIVER_STEP.plan(recipe(), elsewhere)).change_notes == ()


# -- headers -----------------------------------------------------------------------------------------------------------


def test_headers_are_installed_for_the_running_and_the_next_kernel() -> None:
    node = machine(kernels=Kernels(KERNEL, ("6.1.0-30-amd64", KERNEL, NEWER)))
    wanted = names(planned(HEADERS_STEP.plan(recipe(), node)).changes)
    assert wanted == [f"linux-headers-{KERNEL}", f"linux-headers-{NEWER}", "linux-headers-amd64"]


def test_headers_of_one_kernel_are_automatic_beside_the_metapackage() -> None:
    """autoremove removes them with their kernel; apt keeps those of the running and the newest kernel."""
    changes = PackageChange.of_kind(planned(HEADERS_STEP.plan(recipe(), machine())).changes)
    marks = {str(one.id): isinstance(one.after, KnownAfter) and one.after.auto for one in changes}
    assert marks == {f"linux-headers-{KERNEL}": True, "linux-headers-amd64": False}
    custom = "6.9.0-own"
    (alone,) = PackageChange.of_kind(
        planned(HEADERS_STEP.plan(recipe(), machine(kernels=Kernels(custom, (custom,))))).changes
    )
    assert isinstance(alone.after, KnownAfter)
    assert not alone.after.auto


def test_headers_follow_the_running_kernel_and_the_newest() -> None:
    """A kernel of another flavour, once installed as a test, sorts after it."""
    node = machine(kernels=Kernels(KERNEL, (KERNEL, "6.1.0-37-cloud-amd64")))
    assert "linux-headers-amd64" in names(planned(HEADERS_STEP.plan(recipe(), node)).changes)
    both = machine(
        kernels=Kernels(KERNEL, (KERNEL, "6.1.0-37-cloud-amd64")), packages={"linux-image-cloud-amd64": "6.1.140-1"}
    )
    outcome = planned(HEADERS_STEP.plan(recipe(), both))
    assert names(outcome.changes)[2:] == ["linux-headers-amd64", "linux-headers-cloud-amd64"]
    assert outcome.reason.endswith("linux-headers-amd64 and linux-headers-cloud-amd64 keep later kernels covered")
    assert planned(HEADERS_STEP.plan(recipe(), project_changes(both, outcome.changes))).changes == ()


@pytest.mark.parametrize("present", ["", "6.1.153-1"])
def test_headers_metapackage_follows_a_kernel_from_backports(present: str) -> None:
    """Without a version, apt chooses the release's own, which follows other kernels: seen with apt 2.6."""
    kernel, version = "6.12.12+bpo-amd64", "6.12.12-1~bpo12+1"
    packages = {"linux-image-amd64": version} | ({"linux-headers-amd64": present} if present else {})
    node = machine(kernels=Kernels(kernel, (KERNEL, kernel)), packages=packages)
    changes = PackageChange.of_kind(planned(HEADERS_STEP.plan(recipe(), node)).changes)
    assert {str(one.id): one.after for one in changes} == {
        f"linux-headers-{kernel}": KnownAfter(why="headers", auto=True),
        "linux-headers-amd64": PackageState(version),
    }
    assert planned(HEADERS_STEP.plan(recipe(), project_changes(node, changes))).changes == ()
    held: dict[str, PackageState | str] = {**packages, "linux-headers-amd64": PackageState("6.1.153-1", held=True)}
    kept = planned(HEADERS_STEP.plan(recipe(), machine(kernels=Kernels(kernel, (kernel,)), packages=held)))
    assert names(kept.changes) == [f"linux-headers-{kernel}"]
    assert "later kernels come without headers" in kept.notes[0]


def test_headers_metapackage_newer_than_a_held_backports_kernel_stays() -> None:
    """An upgrade included it; the archive of backports has no older version."""
    kernel, held = "6.12.38+deb12-amd64", PackageState("6.12.38-1~bpo12+1", held=True)
    packages: dict[str, PackageState | str] = {"linux-image-amd64": held, "linux-headers-amd64": "6.12.43-1~bpo12+1"}
    node = machine(kernels=Kernels(kernel, (kernel,)), packages=packages, headers=frozenset({kernel}))
    assert planned(HEADERS_STEP.plan(recipe(), node)).changes == ()


def test_installed_headers_are_not_requested_again() -> None:
    packages = {"linux-headers-amd64": "6.1.140-1"}
    assert planned(HEADERS_STEP.plan(recipe(), machine(packages=packages, headers=frozenset({KERNEL})))).changes == ()
    residue = {"linux-headers-amd64": PackageState("6.1.1-1", config_files_only=True)}
    assert names(planned(HEADERS_STEP.plan(recipe(), machine(packages=residue, headers=frozenset({KERNEL})))).changes)


def test_custom_kernel_with_a_build_tree_needs_no_headers_package() -> None:
    custom = "6.12.9-mine"
    node = machine(kernels=Kernels(custom, (custom,)), headers=frozenset({custom}))
    assert planned(HEADERS_STEP.plan(recipe(), node)).changes == ()


def test_image_without_a_kernel_is_refused() -> None:
    image = machine(platform=Platform("image"), kernels=Kernels(None, ()))
    assert "no kernel" in refusal(HEADERS_STEP.plan(recipe(), image)).what


# -- module ------------------------------------------------------------------------------------------------------------


def test_module_is_also_built_for_the_next_kernel() -> None:
    node = with_driver("580.95.05", kernels=Kernels(KERNEL, (KERNEL, NEWER)))
    (change,) = planned(MODULE_BUILD_STEP.plan(recipe(), node)).changes
    assert isinstance(change, CommandChange)
    assert change.argv == ("dkms", "autoinstall", "-k", NEWER)


@pytest.mark.parametrize(("version", "verb"), [("580.95.05", "install"), ("580.65.06", "autoinstall")])
def test_module_recorded_by_dkms_but_missing_is_installed_by_force(version: str, verb: str) -> None:
    """``dkms autoinstall`` would skip it and exit 0: seen with dkms 3.0.10."""
    node = with_driver("580.95.05", module_files=(), dkms={KERNEL: DkmsBuild("nvidia", version)})
    (change,) = planned(MODULE_BUILD_STEP.plan(recipe(), node)).changes
    assert isinstance(change, CommandChange)
    assert change.argv[1] == verb
    assert ("--force" in change.argv) is (verb == "install")
    assert planned(MODULE_BUILD_STEP.plan(recipe(), project_changes(node, [change]))).changes == ()


@pytest.mark.parametrize(
    "file",
    [
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "470.256.02", dkms=True),
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "580.65.06", dkms=True),
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/kernel/drivers/video/nvidia.ko"),
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/kernel/nvidia-570-open/nvidia.ko", "570"),
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/kernel/nvidia-58/nvidia.ko", "58"),
        ModuleFile(NEWER, f"/lib/modules/{NEWER}/updates/dkms/nvidia.ko", "580.95.05", dkms=True),
    ],
)
def test_module_of_another_driver_kernel_or_origin_does_not_count(file: ModuleFile) -> None:
    assert planned(MODULE_BUILD_STEP.plan(recipe(), with_driver("580.95.05", module_files=(file,)))).changes


@pytest.mark.parametrize(
    "file",
    [
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "580.95.05", dkms=True),
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst", "", dkms=True),
        ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/kernel/nvidia-580-open/nvidia.ko", "580"),
    ],
)
def test_module_of_the_wanted_branch_needs_no_build(file: ModuleFile) -> None:
    assert planned(MODULE_BUILD_STEP.plan(recipe(), with_driver("580.95.05", module_files=(file,)))).changes == ()


def test_source_taken_by_an_interrupted_undo_comes_back_by_its_repair() -> None:
    """dpkg had removed the files but not yet the package; apt installs nothing before the repair."""
    lost = with_driver("580.95.05", module_files=(), leftovers=frozenset())
    assert "nothing to build it from" in refusal(MODULE_BUILD_STEP.plan(recipe(), lost)).what
    interrupted = replace(lost, packages_interrupted=Known(value=True, probe="dpkg-updates"))
    repaired = replace(lost, packages_interrupted=Known(value=False, probe=PLAN_PROBE_KEY))
    for facts in (interrupted, repaired):
        assert planned(MODULE_BUILD_STEP.plan(recipe(), facts)).changes


def test_module_is_loaded_where_nothing_prevents_it() -> None:
    node = with_driver("580.95.05", loaded_driver=Known(None, "nvidia-version"))
    assert planned(MODULE_LOAD_STEP.plan(recipe(), node)).changes == (ModuleChange("nvidia", before=False, after=True),)


@pytest.mark.parametrize(
    "loaded",
    [
        LoadedDriver("470.256.02", open_module=False),
        LoadedDriver("580.95.05", open_module=False),
        LoadedDriver("580.65.06", open_module=True),
    ],
    ids=["another branch", "the same version in the other flavour", "another version of the branch"],
)
def test_loaded_driver_of_another_version_waits_for_a_reboot(loaded: LoadedDriver) -> None:
    node = with_driver("580.95.05", loaded_driver=loaded)
    outcome = MODULE_LOAD_STEP.plan(recipe(), node)
    assert isinstance(outcome, Blocked)
    assert loaded.version in outcome.reason


def test_upgrade_within_the_branch_waits_for_a_reboot() -> None:
    """Plan before the index shows the next version, and again once it is installed."""
    wanted = replace(recipe(), upgrade=True)
    node = with_driver("580.95.05")
    assert planned(MODULE_LOAD_STEP.plan(wanted, node)).changes == ()
    upgraded = with_driver("580.199.01", loaded_driver=LoadedDriver("580.95.05", open_module=True))
    assert isinstance(MODULE_LOAD_STEP.plan(wanted, upgraded), Blocked)


def test_nouveau_waits_for_a_reboot_and_an_image_loads_nothing() -> None:
    node = with_driver("580.95.05", loaded_driver=Known(None, "nvidia-version"), modules=frozenset({"nouveau"}))
    assert isinstance(MODULE_LOAD_STEP.plan(recipe(), node), Blocked)
    image = replace(node, platform=Known(Platform("image"), "image"))
    assert planned(MODULE_LOAD_STEP.plan(recipe(), image)).changes == ()


# -- persistence, blacklist --------------------------------------------------------------------------------------------


def test_persistence_daemon_waits_for_the_matching_driver() -> None:
    """It would fail, and the node needs its reboot, not an error."""
    node = with_driver(
        "580.95.05",
        loaded_driver=LoadedDriver("470.256.02", open_module=False),
        units={"nvidia-persistenced.service": unit(active=False, enabled=False)},
    )
    (change,) = planned(PERSISTENCE_STEP.plan(recipe(), node)).changes
    assert isinstance(change, ServiceChange)
    assert (change.after.enabled, change.after.active) == (True, False)


def test_persistence_daemon_is_started_with_a_matching_driver() -> None:
    node = with_driver("580.95.05", units={"nvidia-persistenced.service": unit(active=False)})
    (change,) = planned(PERSISTENCE_STEP.plan(recipe(), node)).changes
    assert isinstance(change, ServiceChange)
    assert change.after.active


def test_masked_persistence_daemon_is_left_alone_and_noted() -> None:
    node = with_driver(
        "580.95.05", units={"nvidia-persistenced.service": unit(active=False, enabled=False, masked=True)}
    )
    outcome = planned(PERSISTENCE_STEP.plan(recipe(), node))
    assert outcome.changes == ()
    assert "masked" in outcome.notes[0]
    assert planned(PERSISTENCE_STEP.plan(recipe(persistence=False), node)).notes == ()


def test_nouveau_and_nova_are_blacklisted_in_the_initramfs_too() -> None:
    change = files(planned(NOUVEAU_STEP.plan(recipe(), machine())).changes)[NOUVEAU_BLACKLIST_FILE]
    text = getattr(change.after, "content", b"").decode()
    assert all(f"blacklist {name}\n" in text for name in ("nouveau", "nova_core", "nova_drm"))
    assert {trigger.kind for trigger in change.triggers} == {"initramfs"}
    edited = machine(files={NOUVEAU_BLACKLIST_FILE: b"# blacklist nouveau\n"})
    assert files(planned(NOUVEAU_STEP.plan(recipe(), edited)).changes)[NOUVEAU_BLACKLIST_FILE].after == change.after
    assert planned(NOUVEAU_STEP.plan(recipe(version="none"), machine())).changes == ()


def test_answer_is_remembered_only_for_the_same_recipe_and_facts() -> None:
    asked: list[tuple[Recipe, Facts]] = []

    @remember_last
    def count(recipe: Recipe, facts: Facts) -> int:
        asked.append((recipe, facts))
        return len(asked)

    wish, facts, others = recipe(), machine(), machine(gpus=(gpu(GTX_1080),))
    assert [count(wish, facts), count(wish, facts), count(wish, others), count(recipe(), others)] == [1, 1, 2, 3]
    assert count(wish, facts) == 4
