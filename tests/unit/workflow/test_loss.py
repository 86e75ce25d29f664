from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from gpunode.change import PackageChange, PackageState
from gpunode.errors import Refused
from gpunode.facts.evidence import Capture, Probe
from gpunode.host.rehearsal import RehearsalHost
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.steps.driver import CONFLICTS_STEP
from gpunode.workflow.converge import StagePlan, StepPlan
from gpunode.workflow.origins import describe_problem_archives
from gpunode.workflow.plan import find_unrestorable_purges, make_version_lookup, refuse_unrestorable_purges
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
    lost = find_unrestorable_purges(PLAN, NODE, make_version_lookup(WithIndex(INDEX), NODE))
    assert lost is not None
    assert [str(one.id) for one in lost] == ["nvidia-dkms-470"]
    with pytest.raises(Refused, match=r"nvidia-dkms-470 470\.256\.02-1") as caught:
        refuse_unrestorable_purges(lost)
    assert caught.value.exit_code == 3
    assert "--allow-loss" in caught.value.hint


def test_loss_is_unknown_without_an_index_and_not_asked_without_a_purge() -> None:
    assert find_unrestorable_purges(PLAN, NODE, make_version_lookup(WithIndex(""), NODE)) is None

    def asked(packages: Collection[PackageId]) -> Mapping[PackageId, Collection[str]]:
        raise AssertionError(packages)

    assert find_unrestorable_purges(purging(), NODE, asked) == ()
    refuse_unrestorable_purges(())


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
