from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.errors import Refused
from gpunode.facts.evidence import Capture, Probe
from gpunode.host.rehearsal import RehearsalHost
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.steps.driver import CONFLICTS_STEP
from gpunode.workflow.converge import StagePlan, StepPlan
from gpunode.workflow.origins import describe_problem_archives
from gpunode.workflow.plan import Losses, find_losses, make_version_lookup
from tests.unit.steps.machines import machine

NODE = machine(packages={"nvidia-dkms-470": "470.256.02-1", "libcuda1": "470.256.02-1", "residue": PackageState("1")})
INDEX = """\
  libcuda1 | 470.999-1 | http://archive.example/debian bookworm/non-free amd64 Packages
      dpkg | 1.21.22 | http://archive.example/debian bookworm/main amd64 Packages
"""


def purging(*changes: PackageChange) -> list[StagePlan]:
    return [StagePlan("packages", (StepPlan(CONFLICTS_STEP, Planned(changes, "old"), changes),))]


def purge(name: str, *, residue: bool = False) -> PackageChange:
    return PackageChange(PackageId(name), PackageState("470.256.02-1", config_files_only=residue), None)


class WithIndex(RehearsalHost):
    def __init__(self, table: str) -> None:
        super().__init__({}, {})
        self.table = table

    def run_probe(self, probe: Probe, /) -> Capture:
        assert probe.argv[:2] == ("apt-cache", "madison")
        return Capture(probe.source, "ok", self.table.encode())


PLAN = purging(purge("nvidia-dkms-470"), purge("libcuda1"), purge("residue", residue=True))


def test_purge_of_packages_in_no_archive_needs_allow_loss() -> None:
    losses = find_losses(PLAN, NODE, make_version_lookup(WithIndex(INDEX)))
    assert losses is not None
    with pytest.raises(Refused, match=r"no archive has nvidia-dkms-470 470\.256\.02-1, so") as caught:
        losses.refuse_purges()
    assert caught.value.exit_code == 3
    assert "--allow-loss" in caught.value.hint


def test_versions_in_no_archive_are_told_in_one_note_and_stop_nothing() -> None:
    newer, same = KnownAfter("580.", "driver"), PackageState("470.256.02-1")
    plans = purging(
        purge("libcuda1"),
        *(PackageChange(PackageId(name), same, PackageState("580.1-1")) for name in ("nvidia-settings", "libnvidia")),
        PackageChange(PackageId("in-the-archive"), same, PackageState("580.1-1")),
        PackageChange(PackageId("marked"), same, replace(same, auto=True)),
        PackageChange(PackageId("perhaps"), same, newer),
        PackageChange(PackageId("new"), None, PackageState("580.1-1")),
    )
    archive = "http://archive.example/debian bookworm/main amd64 Packages\n"
    offered = (("nvidia-settings", "580.1-1"), ("in-the-archive", "580.1-1"), ("in-the-archive", "470.256.02-1"))
    index = INDEX + "".join(f" {name} | {version} | {archive}" for name, version in offered)
    losses = find_losses(plans, NODE, make_version_lookup(WithIndex(index)))
    assert losses is not None
    losses.refuse_purges()
    assert losses.note == (
        "no archive has libcuda1 470.256.02-1, nvidia-settings 470.256.02-1, libnvidia 470.256.02-1, so "
        "`rollback --packages` could not restore them"
    )
    many = Losses(replaced=tuple(purge(f"package{number}") for number in range(40)))
    assert "package4 470.256.02-1 and 35 more, so" in many.note


def test_loss_is_unknown_without_an_index_and_not_asked_without_a_purge() -> None:
    assert find_losses(PLAN, NODE, make_version_lookup(WithIndex(""))) is None

    def asked(packages: Collection[PackageId]) -> Mapping[PackageId, Collection[str]]:
        raise AssertionError(packages)

    assert find_losses(purging(), NODE, asked) == Losses()
    Losses().refuse_purges()


def test_refused_packages_are_named_with_their_archives_and_lists() -> None:
    lists = {
        "/etc/apt/sources.list.d/cuda.list": b"deb https://nvidia.example/debian12/x86_64 /\n",
        "/etc/apt/sources.list.d/other.list": b"deb https://mirror.example/x86_64 /\n",
    }
    table = (
        " nvidia-persistenced | 580.2-1ubuntu1 | https://mirror.example/x86_64  Packages\n"
        " nvidia-persistenced | 580.2-1 | https://nvidia.example/debian12/x86_64  Packages\n"
    )
    refused = "nvidia-driver-cuda : Depends: nvidia-persistenced (= 580.2-1) but 580.2-1ubuntu1 is to be installed"
    assert describe_problem_archives(refused, machine(files=lists), WithIndex(table)).splitlines() == [
        "https://mirror.example/x86_64 (/etc/apt/sources.list.d/other.list:1) has nvidia-persistenced 580.2-1ubuntu1",
        "https://nvidia.example/debian12/x86_64 (/etc/apt/sources.list.d/cuda.list:1) has nvidia-persistenced 580.2-1",
    ]
    assert describe_problem_archives(refused, machine(files=lists), WithIndex(table.splitlines()[0])) == ""
    assert describe_problem_archives("E: nothing of a driver's", machine(), WithIndex(table)) == ""
