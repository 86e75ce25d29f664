"""Lines by which a module will not be as the driver needs it; look-alikes that are meant so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.facts.model import Facts, Kernels, Known, LoadedDriver
from gpunode.outcome import Planned
from gpunode.steps.kernel import NOUVEAU_BLACKLIST_FILE, NOUVEAU_STEP, driver_hazard_notes
from tests.unit.steps.machines import KERNEL, machine, planned, recipe, with_driver
from tests.unit.steps.test_preexisting_driver import BY_CANONICAL, of_branch_580

SITE = "/etc/modprobe.d/site.conf"
ARGUMENTS, GRUB = "/proc/cmdline", "/etc/default/grub"
GRUB_D, LIB = "/etc/default/grub.d/50-cloudimg.cfg", "/lib/modprobe.d/blacklist-nvidia.conf"
IMAGE = f"/boot/initrd.img-{KERNEL}"


def with_file(path: str, text: str) -> Facts:
    """Return a machine with one file."""
    return machine(files={path: text.encode()})


@pytest.mark.parametrize(
    ("path", "text", "note"),
    [
        (ARGUMENTS, "quiet nouveau.modeset=1\n", "nouveau.modeset=1, which makes nouveau take the display"),
        (ARGUMENTS, "modprobe.blacklist=nvidia,foo ro", "keeps nvidia from being loaded"),
        (ARGUMENTS, "module_blacklist=nvidia-drm", "keeps nvidia_drm from being loaded"),
        (GRUB, "# x\nGRUB_CMDLINE_LINUX_DEFAULT='quiet nouveau.modeset=2'\n", f"{GRUB}:2 has nouveau.modeset=2"),
        (GRUB_D, "GRUB_CMDLINE_LINUX='nouveau.modeset=1'", f"{GRUB_D}:1 has nouveau.modeset=1"),
        # As written by Ubuntu's prime-select.
        (LIB, "blacklist nvidia\n", f"{LIB}:1 keeps nvidia from being loaded"),
        ("/run/modprobe.d/x.conf", "alias nvidia off", "/run/modprobe.d/x.conf:1 disables nvidia"),
    ],
)
def test_hazardous_module_line_is_noted(path: str, text: str, note: str) -> None:
    (found,) = driver_hazard_notes(with_file(path, text))
    assert note in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (ARGUMENTS, "nouveau.modeset=0 modprobe.blacklist=nouveau nvidia-drm.modeset=1"),
        (GRUB, "#GRUB_CMDLINE_LINUX=nouveau.modeset=1\nGRUB_DEFAULT=nouveau.modeset=1"),
    ],
)
def test_harmless_module_line_is_not_noted(path: str, text: str) -> None:
    assert driver_hazard_notes(with_file(path, text)) == ()


def test_hazard_in_several_files_is_noted_once_by_the_edited_file() -> None:
    files = {ARGUMENTS: b"nouveau.modeset=1", GRUB: b"GRUB_CMDLINE_LINUX=nouveau.modeset=1"}
    (note,) = driver_hazard_notes(machine(files=files))
    assert note.startswith(GRUB)


def test_file_of_the_same_name_in_etc_hides_the_one_of_a_package() -> None:
    mask = "/etc/modprobe.d/blacklist-nvidia.conf"
    assert driver_hazard_notes(machine(files={LIB: b"blacklist nvidia", mask: b""})) == ()


def test_stale_kernel_argument_waits_for_the_reboot() -> None:
    (note,) = driver_hazard_notes(
        machine(files={ARGUMENTS: b"modprobe.blacklist=nvidia", GRUB: b"GRUB_CMDLINE_LINUX=quiet"})
    )
    assert note.endswith("run update-grub, and reboot")


@pytest.mark.parametrize(("made", "noted"), [(1.0, True), (2.0, False), (3.0, False)])
def test_initramfs_older_than_the_blacklist_must_be_rebuilt(made: float, noted: bool) -> None:
    facts = replace(machine(), modified_at={NOUVEAU_BLACKLIST_FILE: 2.0, IMAGE: made})
    notes = driver_hazard_notes(facts)
    assert [f"update-initramfs -u -k {KERNEL}" in note for note in notes] == ([True] if noted else [])


def test_initramfs_of_a_kernel_that_is_not_booted_is_ignored() -> None:
    facts = replace(machine(), kernels=Known(Kernels("6.1.0-38-amd64", ("6.1.0-38-amd64",)), "boot-images"))
    assert driver_hazard_notes(replace(facts, modified_at={NOUVEAU_BLACKLIST_FILE: 2.0, IMAGE: 1.0})) == ()


@pytest.mark.parametrize("name", BY_CANONICAL)
def test_kept_driver_has_hazards_noted_too(name: str) -> None:
    node = of_branch_580(name)
    blacklisted = replace(node, files={**node.files, **with_file(SITE, "blacklist nvidia").files})
    assert planned(NOUVEAU_STEP.plan(recipe(), blacklisted)) == Planned(
        (), planned(NOUVEAU_STEP.plan(recipe(), node)).reason, driver_hazard_notes(blacklisted)
    )
    assert "keeps nvidia from being loaded" in driver_hazard_notes(blacklisted)[0]


def test_kernel_argument_is_noted_with_a_loaded_driver_too() -> None:
    node = with_driver(files={ARGUMENTS: b"nouveau.modeset=1"}, loaded_driver=LoadedDriver("580.95.05", True))
    assert planned(NOUVEAU_STEP.plan(recipe(), node)).notes
