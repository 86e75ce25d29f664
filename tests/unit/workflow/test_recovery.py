"""What is told of a run that was cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import Change, FileChange, FileState, PackageChange, PackageState
from gpunode.journal.history import CutShort
from gpunode.journal.record import Begin, Verb
from gpunode.package_id import PackageId
from gpunode.workflow.recovery import half_written, marks_missing, told
from tests.ids import by_id

BEGIN = Begin("000003-20270115T080000Z", 1_800_000_000.0, "setup", "0.1.0", "containerd", "", "", "ada", ())
FILE = FileChange("/etc/modprobe.d/x.conf", None, FileState(b""))
PACKAGES = tuple(PackageChange(PackageId.of(f"lab-{n}"), None, PackageState("1")) for n in range(5))


@pytest.mark.parametrize(
    ("made", "begun", "how_far"),
    [
        ((), (), "before its first change"),
        ((FILE,), (), "after 1 change, the last of them /etc/modprobe.d/x.conf"),
        ((), (FILE,), "in the middle of /etc/modprobe.d/x.conf"),
        (
            (FILE, FILE),
            PACKAGES,
            "after 2 changes, the last of them /etc/modprobe.d/x.conf, in the middle of lab-0, lab-1, lab-2 and 2 more",
        ),
    ],
)
def test_how_far_it_came_is_said(made: tuple[Change, ...], begun: tuple[Change, ...], how_far: str) -> None:
    assert told(CutShort(BEGIN, made, begun), "this run finishes it") == (
        "run 000003-20270115T080000Z (setup containerd, begun 2027-01-15 08:00 UTC by ada) was cut short "
        f"{how_far}; this run finishes it"
    )


def test_a_half_file_may_be_beside_what_was_written_and_beside_each_runtimes_file() -> None:
    paths = half_written(CutShort(BEGIN, (), (FILE, *PACKAGES)))
    assert paths == (
        "/etc/modprobe.d/x.conf",
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
        "/etc/docker/daemon.json",
        "/etc/crio/crio.conf",
        "/etc/crio/crio.conf.d/99-nvidia.toml",
    )


def test_the_marks_that_a_cut_setup_did_not_set_are_set_and_no_others() -> None:
    def bring(name: str, *, auto: bool) -> PackageChange:
        return PackageChange(PackageId.of(name), None, PackageState("1", auto=auto))

    begun = tuple(bring(name, auto=name != "asked") for name in ("needed", "asked", "gone", "newer"))
    cut = CutShort(BEGIN, (), (FILE, *begun))
    installed = {name: PackageState("1") for name in ("needed", "asked")} | {"newer": PackageState("2")}

    assert marks_missing(cut, by_id(installed)) == (
        PackageChange(PackageId("needed"), PackageState("1"), PackageState("1", auto=True)),
    )
    assert marks_missing(replace(cut, begin=replace(BEGIN, verb="rollback")), by_id(installed)) == ()


@pytest.mark.parametrize("verb", ["setup", "rollback", "remove"])
def test_packages_that_a_cut_run_did_not_remove_are_automatic_again(verb: Verb) -> None:
    """apt writes down that they are no more so before dpkg starts."""
    begun = tuple(
        PackageChange(PackageId(name), PackageState("1", auto=name != "asked"), None)
        for name in ("asked", "needed", "gone", "newer")
    )
    installed = {"asked": PackageState("1"), "needed": PackageState("1"), "newer": PackageState("2")}
    cut = CutShort(replace(BEGIN, verb=verb), (), begun[:1], begun[1:])
    assert marks_missing(cut, by_id(installed)) == (
        PackageChange(PackageId("needed"), PackageState("1"), PackageState("1", auto=True)),
    )
