"""Kernel modules without an owner, which a kernel may load instead of the driver's own."""

from __future__ import annotations

import pytest

from gpunode.facts.evidence import GlobMatch
from gpunode.facts.kernels import find_module_files
from gpunode.facts.model import Facts, Kernels, ModuleFile
from gpunode.outcome import Refusal
from gpunode.steps.driver import CONFLICTS_STEP
from tests.unit.steps.machines import GTX_1080, KERNEL, gpu, machine, planned, recipe, refusal, with_driver
from tests.unit.steps.test_distro_driver import NOBLE_KERNEL, noble

OLD_KERNEL = "6.1.0-13-amd64"
DEPMOD = "/etc/depmod.d/local.conf"


def node(*places: str, kernel: str = KERNEL, order: str = "") -> Facts:
    """Return a node with modules at ``places`` below the folder of a kernel."""
    files = tuple(ModuleFile(kernel, f"/lib/modules/{kernel}/{place}") for place in places)
    built = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "580.95.05", dkms=True)
    return with_driver(module_files=(built, *files), files={DEPMOD: order.encode()} if order else {})


def is_refused(facts: Facts, **driver: str) -> bool:
    return isinstance(CONFLICTS_STEP.plan(recipe(**driver), facts), Refusal)


def test_module_that_comes_first_is_refused_with_its_commands() -> None:
    no = refusal(CONFLICTS_STEP.plan(recipe(), node("updates/nvidia.ko")))
    assert f"/lib/modules/{KERNEL}/updates/nvidia.ko" in no.what
    lines = no.hint.splitlines()
    assert f"sudo depmod {KERNEL}" in lines
    (move,) = [line for line in lines if "mv" in line]
    assert move == (
        f"sudo find /lib/modules/{KERNEL}/updates -maxdepth 1 -name 'nvidia*.ko*' "
        f"-exec mv -t /root/modules-{KERNEL}-updates '{{}}' +"
    )


@pytest.mark.parametrize("place", ["updates/old", "updates/old/470", "updates/dkms/470"])
def test_module_in_a_folder_below_comes_as_early(place: str) -> None:
    """Seen with depmod 30 and 34: of two modules below updates, the file system's order decides."""
    links = [GlobMatch("/var/lib/dkms/nvidia/kernel-k-x86_64", f"595.91.07/{KERNEL}/x86_64")]
    paths = [f"/lib/modules/{KERNEL}/{folder}/nvidia.ko" for folder in ("updates/dkms", place)]
    no = refusal(CONFLICTS_STEP.plan(recipe(), machine(module_files=find_module_files(map(GlobMatch, paths), links))))
    assert paths[1] in no.what
    assert paths[0] not in no.what
    assert f"sudo mkdir -p /root/modules-{KERNEL}-{place.replace('/', '-')}" in no.hint


def test_module_that_comes_later_is_noted() -> None:
    (note,) = planned(CONFLICTS_STEP.plan(recipe(), node("extra/nvidia.ko.xz"))).notes
    assert f"/lib/modules/{KERNEL}/extra/nvidia.ko.xz" in note
    assert "only if that one is missing" in note


def test_module_of_a_kernel_that_will_not_run_is_noted() -> None:
    (note,) = planned(CONFLICTS_STEP.plan(recipe(), node("updates/nvidia.ko", kernel=OLD_KERNEL))).notes
    assert f"`sudo depmod {OLD_KERNEL}`" in note


@pytest.mark.parametrize(
    ("order", "refused"),
    [
        ("search extra updates built-in", True),
        ("search updates built-in extra", False),
        ("# search extra updates built-in", False),
        ("search updates\\\n extra", False),
        ("search built-in updates", True),
        ("search updates extra\nsearch extra updates", False),
        ("override nvidia * extra", True),
        (f"override nvidia {KERNEL} extra", True),
        (f"override nvidia {OLD_KERNEL} extra", False),
        ("override nvidia_uvm * extra", False),
        # An override applies to exactly that folder, and its kernel is a regular expression: seen with depmod 30.
        ("search extra updates\noverride nvidia * updates", True),
        ("search extra updates\noverride nvidia * updates/dkms", False),
        ("override nvidia 6.1 extra", True),
        ("override nvidia 5.1 extra", False),
        ("override nvidia ^6 extra", True),
    ],
)
def test_order_of_depmod_decides(order: str, refused: bool) -> None:
    assert is_refused(node("extra/nvidia.ko", order=order)) == refused


def test_file_in_etc_hides_the_distributions_of_the_same_name() -> None:
    files = {"/lib/depmod.d/a.conf": b"search extra updates\n", "/etc/depmod.d/a.conf": b"search updates\n"}
    stray = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/extra/nvidia.ko")
    assert not is_refused(machine(module_files=(stray,), files=files))
    del files["/etc/depmod.d/a.conf"]
    assert is_refused(machine(module_files=(stray,), files=files))


@pytest.mark.parametrize(("name", "refused"), [("nvidia.ko", False), ("nvidia-current.ko", True)])
def test_module_of_another_name_shadows_nothing(name: str, refused: bool) -> None:
    stray = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/{name}")
    lists = {"/etc/apt/sources.list": b"deb http://archive.example/debian bookworm main contrib non-free\n"}
    facts = machine(gpus=(gpu(GTX_1080),), module_files=(stray,), files=lists)
    assert is_refused(facts, source="distro") == refused
    assert is_refused(facts) != refused


def test_signed_modules_of_ubuntu_come_no_sooner_than_strays_in_extra() -> None:
    stray = ModuleFile(NOBLE_KERNEL, f"/lib/modules/{NOBLE_KERNEL}/extra/nvidia.ko")
    assert is_refused(noble(module_files=(stray,)), source="distro")


def test_module_for_the_next_kernel_is_refused() -> None:
    facts = node("updates/nvidia.ko", kernel="6.1.0-38-amd64")
    kernels = Kernels(KERNEL, (KERNEL, "6.1.0-38-amd64"))
    assert is_refused(machine(module_files=facts.module_files, kernels=kernels))
