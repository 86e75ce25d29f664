from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.errors import Undetermined
from gpunode.facts.model import Distro, Fact, Known, PciDevice, Platform, PlatformKind, Unknown
from gpunode.outcome import Refusal, Stage
from gpunode.recipe import Expect, Recipe
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.table import STAGES
from gpunode.workflow.converge import plan_stage
from tests.unit.steps.machines import H100, T4, gpu, machine, planned, recipe, refusal, unit

AMD = PciDevice("0000:03:00.0", "1002", "740f", "0380", name="Aldebaran [Instinct MI210]")
INTEL = PciDevice("0000:00:02.0", "8086", "a780", "0300", name="Raptor Lake-S GT1 [UHD Graphics 770]")
NO_DRIVER = recipe(version="none")


@pytest.mark.parametrize(("kind", "detail"), [("container", "lxc"), ("wsl2", "/dev/dxg"), ("jetson", "tegra234")])
def test_container_guest_gets_no_driver_but_a_runtime_config(kind: PlatformKind, detail: str) -> None:
    guest = machine(gpus=(), platform=Platform(kind, detail))
    no = refusal(DETECT_STEP.plan(recipe("containerd"), guest))
    assert detail in no.what
    assert "--driver none" in no.hint
    stages: tuple[Stage, ...] = ("sources", "packages", "kernel")
    plans = [plan for stage in stages for plan in plan_stage(recipe("containerd", version="none"), guest, stage).steps]
    assert not any(isinstance(plan.outcome, Refusal) for plan in plans)
    assert {plan.step.id for plan in plans if plan.changes} == {"toolkit-repository", "toolkit", "runtime-install"}


def test_no_gpu_refusal_lists_other_gpus() -> None:
    no = refusal(DETECT_STEP.plan(recipe(), machine(gpus=(AMD, INTEL))))
    assert "lspci lists 2 PCI devices" in no.why
    assert "AMD Aldebaran [Instinct MI210] at 0000:03:00.0" in no.why
    assert "Intel Raptor Lake-S" in no.why
    assert "--gpu" in no.hint


@pytest.mark.parametrize("platform", [Platform("bare-metal"), Unknown("systemd-detect-virt is not installed", "virt")])
def test_gpu_and_virtualization_do_not_matter_without_a_driver(platform: Fact[Platform]) -> None:
    node = replace(machine(gpus=()), platform=platform)
    whole = [step for stage in STAGES for step in plan_stage(recipe("containerd", version="none"), node, stage).steps]
    assert not any(isinstance(step.outcome, Refusal) for step in whole)
    alone = plan_stage(recipe("containerd"), node, "runtime", ("runtime-config",))
    assert planned(alone.steps[0].outcome).changes
    assert plan_stage(recipe("containerd"), node, "sources", ("runtime-config",)).refusal is None


def test_driver_is_not_installed_if_virtualization_is_unknown() -> None:
    unknown = Unknown("systemd-detect-virt is not installed", "virt", install="apt-get install systemd")
    node = replace(machine(), platform=unknown)
    with pytest.raises(Undetermined, match="container") as caught:
        DETECT_STEP.plan(recipe("containerd"), node)
    assert caught.value.why == "systemd-detect-virt is not installed"
    assert "sudo apt-get install systemd" in caught.value.hint


def test_no_gpu_refusal_names_sysfs_as_its_source() -> None:
    no = refusal(DETECT_STEP.plan(recipe(), machine(devices=Known((INTEL,), "pci-modalias"))))
    assert "/sys/bus/pci/devices lists 1 PCI device" in no.why


def test_unreadable_pci_bus_is_undetermined_and_not_no_gpu() -> None:
    blind = machine(devices=Unknown("lspci is not there; /sys/bus/pci/devices lists nothing", "lspci"))
    with pytest.raises(Undetermined, match="which PCI devices"):
        DETECT_STEP.plan(recipe(), blind)


def test_gpu_of_another_vendor_is_named_without_a_warning() -> None:
    outcome = planned(DETECT_STEP.plan(recipe(), machine(gpus=(gpu(), INTEL))))
    assert "T4" in outcome.reason
    assert "not NVIDIA's: Intel" in outcome.reason
    assert outcome.notes == ()


def test_gpu_passed_through_to_a_vm_is_left_alone() -> None:
    passed = gpu(H100, address="0000:41:00.0", driver="vfio-pci")
    outcome = planned(DETECT_STEP.plan(recipe(), machine(gpus=(gpu(), passed))))
    assert "H100" not in outcome.reason
    assert "0000:41:00.0" in outcome.notes[0]
    no = refusal(DETECT_STEP.plan(recipe(), machine(gpus=(passed,))))
    assert "vfio-pci" in no.why
    assert "no NVIDIA GPU found" not in no.what


def test_vgpu_guest_gets_no_data_center_driver() -> None:
    vgpu = gpu("13bd", subsystem=("10de", "11cc"))
    no = refusal(DETECT_STEP.plan(recipe(), machine(gpus=(vgpu,))))
    assert "GRID M10-0B at 0000:01:00.0" in no.what
    assert "--driver none" in no.hint
    planned(DETECT_STEP.plan(NO_DRIVER, machine(gpus=(vgpu,))))


def test_nvswitches_need_the_fabric_manager() -> None:
    switch = PciDevice("0000:07:00.0", "10de", "22a3", "0680")
    outcome = planned(DETECT_STEP.plan(recipe(version="none"), machine(gpus=(gpu(H100), switch))))
    assert "nvidia-fabricmanager" in outcome.notes[0]


def test_unknown_nvidia_device_of_a_gpu_class_is_a_gpu() -> None:
    outcome = planned(DETECT_STEP.plan(recipe(), machine(gpus=(gpu("3fff", name="Device 3fff"),))))
    assert "[10de:3fff]" in outcome.reason


def test_identical_gpus_are_counted() -> None:
    eight = tuple(gpu(T4, address=f"0000:{n:02x}:00.0") for n in range(8))
    assert "8 × " in planned(DETECT_STEP.plan(recipe(), machine(gpus=eight))).reason


def test_image_without_gpus_can_be_configured() -> None:
    image = machine(platform=Platform("image"), devices=Unknown("an image has no PCI bus", "image"))
    planned(DETECT_STEP.plan(NO_DRIVER, image))
    with pytest.raises(Undetermined) as stopped:
        DETECT_STEP.plan(recipe(), image)
    assert "--gpu 10de:1b80" in stopped.value.hint


@pytest.mark.parametrize("wanted", [recipe(), NO_DRIVER])
def test_distribution_without_apt_is_refused_before_dpkg_is_read(wanted: Recipe) -> None:
    nothing = Unknown("/var/lib/dpkg/status is not there", "dpkg-status")
    distro = Known(Distro("rocky", "9.6", "", "Rocky Linux 9.6", ("rhel", "fedora")), "os-release")
    rocky = replace(machine(), distro=distro, packages=nothing, packages_interrupted=nothing)
    stage = plan_stage(wanted, rocky, "sources")
    assert stage.refusal is not None
    assert "Rocky Linux" in stage.refusal.what


def test_debian_derivative_can_be_configured_but_gets_no_driver() -> None:
    devuan = machine(distro=Distro("devuan", "5", "daedalus", "Devuan GNU/Linux 5", ("debian",)))
    planned(DETECT_STEP.plan(NO_DRIVER, devuan))
    assert "Devuan" in refusal(DETECT_STEP.plan(recipe(), devuan)).what


def test_detect_step_cannot_be_skipped() -> None:
    left_out = replace(recipe(), skip=(DETECT_STEP.id,))
    assert plan_stage(left_out, machine(gpus=()), "sources").refusal is not None


def test_unmet_gpu_expectation_is_noted_in_the_plan() -> None:
    expecting = replace(recipe(), expect=Expect(gpus=8, model="H100"))
    notes = planned(DETECT_STEP.plan(expecting, machine(gpus=(gpu(T4),)))).notes
    assert "gpus = 8, but this node has 1 GPU" in notes[0]
    assert 'model = "H100", but this node has Tesla T4' in notes[1]
    met = replace(recipe(), expect=Expect(gpus=1, model="T4"))
    assert planned(DETECT_STEP.plan(met, machine(gpus=(gpu(T4),)))).notes == ()


def test_detect_claims_nothing_of_a_service_that_nobody_can_see() -> None:
    switched = machine(gpus=(gpu(H100), PciDevice("0000:05:00.0", "10de", "22a3", "0680")))
    manager = "nvidia-fabricmanager.service"
    on_disk = replace(switched, units={manager: Known(unit(active=False), "unit-wants")})
    for unseen in (switched, on_disk):
        (note,) = planned(DETECT_STEP.plan(NO_DRIVER, unseen)).notes
        assert note.endswith("whether it runs is unknown")
    stopped = replace(switched, units={manager: Known(unit(active=False), "units")})
    (note,) = planned(DETECT_STEP.plan(NO_DRIVER, stopped)).notes
    assert "does not run" in note


def test_a_rack_without_imex_is_not_said_to_lack_cuda() -> None:
    absent = {"nvidia-imex.service": unit(active=False, enabled=False, exists=False)}
    assert planned(DETECT_STEP.plan(NO_DRIVER, machine(gpus=(gpu("2941"),), units=absent))).notes == ()
