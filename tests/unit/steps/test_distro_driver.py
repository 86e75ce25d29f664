"""The distribution's own driver: never mixed with NVIDIA's packages, and refused if its branch does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpunode.catalog import branches, tables
from gpunode.catalog.releases import release
from gpunode.change import FileState, KnownAfter, PackageChange, PackageState
from gpunode.facts.model import Distro, Facts, Kernels, Known, LoadedDriver, ModuleFile, value_or
from gpunode.facts.project import project_changes
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.packages.deb.preferences import PIN_FILE
from gpunode.recipe import CudaToolkit, GpuDirect, MigSettings, Recipe, VersionLock
from gpunode.steps.daemons import PERSISTENCE_STEP
from gpunode.steps.driver import CONFLICTS_STEP, DRIVER_PIN_STEP, DRIVER_STEP
from gpunode.steps.fabric import FABRIC_STEP
from gpunode.steps.kernel import HEADERS_STEP, MODULE_BUILD_STEP, NOUVEAU_STEP
from gpunode.steps.packages import CUDA_REPOSITORY_STEP
from gpunode.steps.secure_boot import SECURE_BOOT_STEP
from gpunode.steps.table import STAGES
from gpunode.workflow.converge import plan_stage, project_stage
from gpunode.workflow.locking import create_lock
from tests.fakes.firmware import Firmware
from tests.unit.steps.machines import (
    B200,
    GTX_1080,
    H100,
    KERNEL,
    UBUNTU,
    files,
    gpu,
    machine,
    names,
    planned,
    recipe,
    refusal,
)
from tests.unit.steps.test_secure_boot_steps import node as with_firmware

TRIXIE = Distro("debian", "13", "trixie", "Debian GNU/Linux 13 (trixie)")
NOBLE_KERNEL = "6.8.0-88-generic"
OWN = "535.309.01-0+deb12u1"
NO_OPTION = recipe(source="distro")


def noble(**more: object) -> Facts:
    """Return a machine with Ubuntu 24.04."""
    packages = {"linux-image-generic": "6.8.0-88.89", **more.pop("packages", {})}  # type: ignore[dict-item]
    kernels = Kernels(NOBLE_KERNEL, (NOBLE_KERNEL,))
    return machine(distro=UBUNTU, kernels=kernels, packages=packages, **more)  # type: ignore[arg-type]


def pin_text(facts: Facts, wanted: Recipe = NO_OPTION) -> str:
    after = files(planned(DRIVER_PIN_STEP.plan(wanted, facts)).changes)[PIN_FILE].after
    assert isinstance(after, FileState)
    return after.content.decode()


def with_own_driver(**more: str) -> Facts:
    """Return Debian 12 with its own driver, whose tools and helpers have their own versions."""
    of_driver = ("libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-kernel-dkms", "nvidia-alternative")
    packages: dict[str, PackageState | str] = {
        **dict.fromkeys(of_driver, OWN),
        "nvidia-persistenced": "535.171.04-1~deb12u1",
        "nvidia-modprobe": "535.161.07-1~deb12u1",
        "nvidia-kernel-common": "20220217+3~deb12u1",
        **more,
    }
    module = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia-current.ko", "535.309.01", dkms=True)
    return machine(gpus=(gpu(GTX_1080),), packages=packages, module_files=(module,))


def packages_of(facts: Facts) -> Mapping[PackageId, PackageState]:
    return value_or(facts.packages, {})


def test_every_row_of_the_table_names_what_other_tables_have() -> None:
    for row in tables.rows("distro_drivers.csv"):
        branch = branches.find(int(row["branch"]))
        assert branch is not None
        assert set(row["flavours"].split()) <= branch.flavours
        assert release(Distro(row["distribution"], row["version"], "", "")) is not None
        assert row["newest_seen"].startswith(f"{row['branch']}.") or not row["newest_seen"]


def test_debian_gets_its_compute_set_and_no_repository_of_nvidias() -> None:
    facts = machine(gpus=(gpu(GTX_1080),))
    found = planned(DRIVER_STEP.plan(NO_OPTION, facts))
    assert names(found.changes) == ["libcuda1", "nvidia-smi", "nvidia-kernel-dkms", "nvidia-persistenced"]
    repository = planned(CUDA_REPOSITORY_STEP.plan(NO_OPTION, facts))
    assert not repository.changes
    assert "nothing else needs NVIDIA's repository" in repository.reason


def test_trixie_has_550_with_both_kernel_modules() -> None:
    facts = machine(distro=TRIXIE)
    assert "550.*" in pin_text(facts)
    opened = recipe(source="distro", kernel_module_type="open")
    assert "nvidia-open-kernel-dkms" in names(planned(DRIVER_STEP.plan(opened, facts)).changes)


def test_pin_keeps_nvidias_packages_out_and_leaves_own_versions_alone() -> None:
    text = pin_text(machine())
    records = text.split("\n\n")[1:]
    assert [record.partition("Pin: ")[2] for record in records] == [
        "release l=NVIDIA CUDA\nPin-Priority: -1",
        "version 535.*\nPin-Priority: 1001\n",
    ]


@pytest.mark.parametrize(("asked", "why"), [(B200, "first branch known"), ("0fc6", "470 is the last")])
def test_gpu_that_the_branch_does_not_drive_is_refused_with_the_reason(asked: str, why: str) -> None:
    refused = refusal(DRIVER_STEP.plan(NO_OPTION, machine(gpus=(gpu(asked),))))
    assert why in refused.why


def test_refusal_of_a_branch_names_nvidias_packages_as_the_way_out() -> None:
    refused = refusal(DRIVER_STEP.plan(recipe(source="distro", version="580"), machine()))
    assert refused.what == "Debian GNU/Linux 12 has no driver 580 of its own"
    assert "--driver-source nvidia" in refused.hint


def test_modules_that_debian_has_only_in_another_version_are_refused() -> None:
    refused = refusal(DRIVER_STEP.plan(recipe(source="distro", kernel_module_type="open"), machine()))
    assert "no open kernel modules of its own" in refused.what


SOURCES = "/etc/apt/sources.list.d/debian.sources"
STANZA = "Types: deb\nURIs: http://mirror.example/debian\nSuites: {}\nComponents: {}\n\n"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (STANZA.format("bookworm bookworm-updates", "main"), "contrib and non-free and non-free-firmware"),
        (STANZA.format("bookworm", "main contrib non-free"), "non-free-firmware"),
        (STANZA.format("bookworm", "main contrib non-free non-free-firmware"), ""),
        # An entry for source packages provides no driver.
        (
            STANZA.format("bookworm", "main")
            + STANZA.format("bookworm", "main contrib non-free non-free-firmware").replace("deb", "deb-src", 1),
            "contrib and non-free and non-free-firmware",
        ),
        (STANZA.format("bookworm-backports", "main"), ""),
        ("deb http://127.0.0.1/flat/ /\n", ""),
    ],
)
def test_source_without_the_drivers_components_is_refused_with_its_line(text: str, missing: str) -> None:
    path = SOURCES if text.startswith("Types") else "/etc/apt/sources.list"
    outcome = CUDA_REPOSITORY_STEP.plan(NO_OPTION, machine(files={path: text.encode()}))
    if not missing:
        assert isinstance(outcome, Planned)
        return
    refused = refusal(outcome)
    assert missing in refused.what
    assert f"{SOURCES}:1" in refused.why
    assert "Components: main contrib non-free non-free-firmware" in refused.hint


OTHERS = "deb https://apt.example/debian/12/prod bookworm main\ndeb https://apt.example bookworm-tool main\n"


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        (OTHERS, False),
        (OTHERS + "deb http://mirror.example/debian bookworm main contrib non-free non-free-firmware\n", False),
        (OTHERS + "deb http://mirror.example/debian/ bookworm main\n", True),
        (OTHERS + "deb mirror+file:/etc/apt/mirrors/debian.list bookworm main\n", True),
        (OTHERS + "deb http://security.example/debian-security bookworm-security main\n", True),
    ],
)
def test_source_of_somebody_else_is_no_part_of_the_releases_archive(text: str, *, is_refused: bool) -> None:
    outcome = CUDA_REPOSITORY_STEP.plan(NO_OPTION, machine(files={"/etc/apt/sources.list": text.encode()}))
    if is_refused:
        refused = refusal(outcome)
        assert "/etc/apt/sources.list:3 has main alone" in refused.why
        assert "likewise" not in refused.hint
    else:
        assert isinstance(outcome, Planned)


def test_own_driver_as_debian_has_it_needs_nothing() -> None:
    facts = with_own_driver()
    for step in (DRIVER_STEP, CONFLICTS_STEP, MODULE_BUILD_STEP):
        assert not planned(step.plan(NO_OPTION, facts)).changes, step.id


def test_trixies_newer_modprobe_is_no_part_of_another_driver() -> None:
    packages = {"nvidia-modprobe": "570.133.07-1", "nvidia-kernel-dkms": "550.163.01-2", "libcuda1": "550.163.01-2"}
    facts = machine(distro=TRIXIE, packages=packages)
    assert not planned(CONFLICTS_STEP.plan(NO_OPTION, facts)).changes


def test_nvidias_driver_leaves_for_the_distributions() -> None:
    packages = dict.fromkeys(
        ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "nvidia-modprobe", "nvidia-persistenced"),
        "580.95.05-1",
    )
    facts = machine(packages=packages, loaded_driver=LoadedDriver("580.95.05", open_module=True))
    gone = set(names(planned(CONFLICTS_STEP.plan(NO_OPTION, facts)).changes))
    # Packages that Debian has under the same name get its version; the pin permits the downgrade.
    assert gone == {"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-modprobe"}
    brought = {"libcuda1", "nvidia-kernel-dkms", "nvidia-persistenced"}
    assert brought <= set(names(planned(DRIVER_STEP.plan(NO_OPTION, facts)).changes))


@pytest.mark.parametrize(
    ("source", "packages", "named"),
    [
        ("nvidia", dict.fromkeys(("libcuda1", "nvidia-kernel-dkms", "nvidia-smi"), OWN), f"nvidia-kernel-dkms {OWN}"),
        ("distro", {"nvidia-kernel-dkms": OWN, "nvidia-smi": "535.309.01-1"}, "nvidia-smi 535.309.01-1 of NVIDIA's"),
        (
            "distro",
            dict.fromkeys(("nvidia-driver-cuda", "nvidia-kernel-dkms", "libcuda1"), "535.288.01-1"),
            "libcuda1 535.288.01-1 of NVIDIA's",
        ),
    ],
)
def test_packagers_of_one_branch_are_not_mixed(source: str, packages: dict[str, str], named: str) -> None:
    facts = machine(gpus=(gpu(GTX_1080),), packages=packages)
    for step in (DRIVER_STEP, CONFLICTS_STEP, MODULE_BUILD_STEP):
        refused = refusal(step.plan(recipe(source=source, version="535"), facts))
        assert named in refused.what
        # If packages of both are installed already, the other source would be refused as well.
        assert ("take another branch" in refused.hint) is (source == "nvidia"), "Debian has one"
        is_mixed = len({version == OWN for version in packages.values()}) > 1
        assert (f"--driver-source {'distro' if source == 'nvidia' else 'nvidia'}" in refused.hint) is not is_mixed
        assert "nvidia-kernel-dkms" in refused.hint
    assert planned(CONFLICTS_STEP.plan(recipe(version="580"), facts)).changes, "another branch leaves"


def test_planned_driver_is_no_mixture() -> None:
    """A plan knows only the branch of its packages."""
    facts = machine(gpus=(gpu(GTX_1080),), packages=dict.fromkeys(("nvidia-kernel-dkms", "libcuda1"), "580."))
    for source, version in (("nvidia", "580"), ("distro", "535")):
        planned(MODULE_BUILD_STEP.plan(recipe(source=source, version=version), facts))


def test_cuda_toolkit_comes_from_nvidia_beside_the_own_driver() -> None:
    wanted = replace(NO_OPTION, cuda=CudaToolkit(version="auto"))
    outcome = planned(CUDA_REPOSITORY_STEP.plan(wanted, machine()))
    assert outcome.changes
    assert "CUDA toolkit from NVIDIA's, whose driver packages are pinned out" in outcome.reason


def test_switches_are_refused_where_the_archive_has_no_fabric_manager() -> None:
    switch = gpu("22a3", class_code="0680", address="0000:02:00.0")
    facts = machine(gpus=(gpu(H100), switch))
    assert "no fabric manager" in refusal(FABRIC_STEP.plan(NO_OPTION, facts)).what
    own = noble(gpus=(gpu(H100), switch))
    assert names(planned(FABRIC_STEP.plan(NO_OPTION, own)).changes) == [
        "nvidia-fabricmanager-580",
        "libnvidia-nscq-580",
    ]


SIGNED = [
    "nvidia-headless-no-dkms-580-server-open",
    "nvidia-utils-580-server",
    f"linux-modules-nvidia-580-server-open-{NOBLE_KERNEL}",
    "linux-modules-nvidia-580-server-open-generic",
]


def test_ubuntu_gets_signed_modules_without_dkms_and_without_a_key() -> None:
    facts = with_firmware(Firmware(), noble())
    assert names(planned(DRIVER_STEP.plan(NO_OPTION, facts)).changes) == SIGNED
    key = planned(SECURE_BOOT_STEP.plan(NO_OPTION, facts))
    assert not key.changes
    assert "no key of this machine is needed" in key.reason
    assert not planned(HEADERS_STEP.plan(NO_OPTION, facts)).changes
    assert planned(NOUVEAU_STEP.plan(NO_OPTION, facts)).changes


def test_kernels_of_the_virtual_metapackage_get_the_generic_modules() -> None:
    """Cloud images have linux-image-virtual: the kernels of linux-image-generic, the only name with modules."""
    facts = noble()
    packages = {one: state for one, state in packages_of(facts).items() if one.name != "linux-image-generic"}
    virtual = {**packages, PackageId("linux-image-virtual"): PackageState("6.8.0-88.89")}
    facts = replace(facts, packages=Known(virtual, "dpkg-status"))
    assert names(planned(DRIVER_STEP.plan(NO_OPTION, facts)).changes) == SIGNED


def test_plan_promises_no_persistence_mode_of_ubuntus_daemon() -> None:
    assert "--no-persistence-mode" in planned(PERSISTENCE_STEP.plan(NO_OPTION, noble())).reason
    assert "keeps the GPU initialised" in planned(PERSISTENCE_STEP.plan(recipe(), noble())).reason


def test_module_of_a_package_counts_once_it_is_planned() -> None:
    facts = noble()
    after = project_changes(facts, planned(DRIVER_STEP.plan(NO_OPTION, facts)).changes)
    assert planned(MODULE_BUILD_STEP.plan(NO_OPTION, after)).is_deferred


def test_module_that_the_plan_loads_answers_the_steps_after_it() -> None:
    wanted = replace(NO_OPTION, mig=MigSettings("all-balanced"), gpudirect=GpuDirect(rdma="peermem"))
    facts = noble(gpus=(gpu(H100),), packages={"mlnx-ofed-kernel-dkms": "24.10"})
    for stage in STAGES:
        found = plan_stage(wanted, facts, stage)
        assert found.refusal is None
        facts = project_stage(facts, found)
        assert not plan_stage(wanted, facts, stage).ordered_changes


def test_missing_prebuilt_module_is_refused_after_its_package() -> None:
    facts = noble(packages=dict.fromkeys(SIGNED, "580.173.02-0ubuntu0.24.04.1"))
    refused = refusal(MODULE_BUILD_STEP.plan(NO_OPTION, facts))
    assert "no prebuilt NVIDIA module of branch 580" in refused.what
    assert f"linux-modules-nvidia-580-server-open-{NOBLE_KERNEL}=" in refused.hint


def test_resolute_prefers_the_production_branch_of_its_maintained_part() -> None:
    facts = replace(noble(), distro=Known(replace(UBUNTU, version_id="26.04", codename="resolute"), "os-release"))
    assert names(planned(DRIVER_STEP.plan(NO_OPTION, facts)).changes)[0] == "nvidia-headless-no-dkms-595-server-open"


def test_nvidias_packages_of_the_same_branch_leave_ubuntu() -> None:
    packages = dict.fromkeys(
        ("nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-persistenced"), "580.95.05-0ubuntu1"
    )
    gone = names(planned(CONFLICTS_STEP.plan(NO_OPTION, noble(packages=packages))).changes)
    assert sorted(gone) == ["libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-persistenced"]


def test_kernels_version_is_none_of_the_driver_that_leaves() -> None:
    old = {"nvidia-headless-no-dkms-535-server": "535.274.02-0ubuntu0.24.04.1"}
    modules = {f"linux-modules-nvidia-535-server-{NOBLE_KERNEL}": "6.8.0-88.89"}
    outcome = planned(CONFLICTS_STEP.plan(NO_OPTION, noble(packages={**old, **modules})))
    assert outcome.reason.startswith("2 packages of driver 535.274.02 conflict")


def test_modules_that_dkms_built_leave_for_signed_ones() -> None:
    packages = dict.fromkeys(("nvidia-dkms-580-server-open", *SIGNED), "580.173.02-0ubuntu0.24.04.1")
    gone = names(planned(CONFLICTS_STEP.plan(NO_OPTION, noble(packages=packages))).changes)
    assert gone == ["nvidia-dkms-580-server-open"]


def test_lock_leaves_signed_modules_to_the_kernel_of_each_node() -> None:
    version = "580.173.02-0ubuntu0.24.04.1"
    modules = {name: "6.8.0-88.89" for name in SIGNED if name.startswith("linux-")}
    objects = {f"linux-objects-nvidia-580-server-open-{NOBLE_KERNEL}": PackageState("6.8.0-88.89", auto=True)}
    file = ModuleFile(NOBLE_KERNEL, f"/lib/modules/{NOBLE_KERNEL}/kernel/nvidia-580srv-open/nvidia.ko", "580")
    node = noble(packages={**dict.fromkeys(SIGNED, version), **modules, **objects}, module_files=(file,))
    lock = create_lock(NO_OPTION, node, (), "x.lock")
    assert {str(package) for package in lock.packages} == {*SIGNED[:2]}
    newer = noble(packages={SIGNED[-1]: "6.8.0-90.91"})
    changes = PackageChange.of_kind(planned(DRIVER_STEP.plan(replace(NO_OPTION, lock=lock), newer)).changes)
    assert [one.subject for one in changes] == SIGNED[:-1], "the metapackage keeps following newer kernels"


def test_image_without_a_kernel_gets_no_signed_modules() -> None:
    facts = replace(noble(), kernels=Known(Kernels(None, ()), "boot-images"))
    assert refusal(HEADERS_STEP.plan(NO_OPTION, facts)).what == "no kernel is installed in this image"


def test_modules_of_the_other_flavour_leave_ubuntu() -> None:
    packages = {f"linux-modules-nvidia-580-server-{NOBLE_KERNEL}": "6.8.0-88.89", **dict.fromkeys(SIGNED, "580.1.1-1")}
    gone = names(planned(CONFLICTS_STEP.plan(NO_OPTION, noble(packages=packages))).changes)
    assert gone == [f"linux-modules-nvidia-580-server-{NOBLE_KERNEL}"]


def test_exact_version_does_not_bind_tools_of_other_versions() -> None:
    exact = recipe(source="distro", version="535.309.01")
    assert not planned(DRIVER_STEP.plan(exact, with_own_driver())).changes
    missing = with_own_driver()
    packages = {one: state for one, state in packages_of(missing).items() if one.name != "nvidia-persistenced"}
    (change,) = planned(DRIVER_STEP.plan(exact, replace(missing, packages=Known(packages, "dpkg-status")))).changes
    assert isinstance(change, PackageChange)
    assert isinstance(change.after, KnownAfter)
    assert (change.id, change.after.prefix) == (PackageId("nvidia-persistenced"), "535.")


def test_installed_own_driver_is_kept_and_nvidias_default_replaces_it() -> None:
    facts = with_own_driver()
    assert "535 with proprietary modules is installed" in planned(DRIVER_STEP.plan(NO_OPTION, facts)).reason
    assert "nvidia-driver-cuda" in names(planned(DRIVER_STEP.plan(recipe(), facts)).changes)


def test_lock_of_the_own_driver_may_name_tools_of_other_versions() -> None:
    facts = with_own_driver()
    lock = VersionLock(
        "f.lock", "r", "debian", "12", "amd64", {one: state.version for one, state in packages_of(facts).items()}
    )
    outcome = planned(DRIVER_STEP.plan(replace(NO_OPTION, lock=lock), facts))
    assert not outcome.changes
    assert "535.309.01" in outcome.reason
