"""The collection's site play on eight hosts: a bad canary, a check, a first run with accidents, the runs after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.e2e.chroot.killing import steps
from tests.e2e.chroot.scenario import by_kind
from tests.e2e.fleet.hosts import PLAYS, Fleet, Played, kill_all, start_sshd
from tests.e2e.fleet.scenario import AT_ONCE, DOCTOR, SITE, Fleets, during
from tests.e2e.lab.machine import Machine
from tests.e2e.machine.scenario import run_old_driver
from tests.faults import FAULTS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CANARY: Final = "node1"
BROKEN: Final = "node2"
KILLED: Final = "node3"
CUT_OFF: Final = "node4"
REBOOTED: Final = "node8"
UNHARMED: Final = ("node1", "node5", "node6", "node7", REBOOTED)
SETUP: Final = "gpunode.node.gpunode"
GATE: Final = "gpunode.node.gpunode_doctor"
# This shows only once the driver is installed.
FAULT: Final = next(fault for fault in FAULTS if fault.id == "secure-boot-key")


@dataclass(frozen=True, slots=True)
class Course:
    """The results of the plays, in order."""

    fleet: Fleet
    canary: Played
    check: Played
    first: Played
    second: Played
    third: Played
    diagnosed: Played
    boots: tuple[str, str]


@pytest.fixture(scope="module", params=["trixie", pytest.param("bookworm", marks=pytest.mark.long)])
def course(request: pytest.FixtureRequest, fleets: Fleets) -> Iterator[Course]:
    """Run the plays with the newest Ansible and, in long runs, with the oldest that the collection supports."""
    chroots = [f"node{number}" for number in range(1, 8)]
    with fleets.make(chroots, booted=[REBOOTED], controller=request.param) as fleet:
        yield _take_course(fleet)


def _take_course(fleet: Fleet) -> Course:
    rebooted = fleet.hosts[REBOOTED]
    assert isinstance(rebooted, Machine)
    run_old_driver(rebooted)
    fleet.hosts[BROKEN].run("sh", "-c", FAULT.shell)
    before = rebooted.boot_id()

    repositories = fleet.hosts[CANARY].server
    repositories.gone()
    canary = fleet.play(SITE)
    repositories.restore()
    check = fleet.play(SITE, "--check", *AT_ONCE)
    first = _first(fleet)
    start_sshd(fleet.hosts[KILLED])
    fleet.join(CUT_OFF)
    second = fleet.play(SITE, *AT_ONCE)
    third = fleet.play(SITE, "--limit", ",".join((KILLED, CUT_OFF)), *AT_ONCE)
    diagnosed = fleet.play(DOCTOR)
    return Course(fleet, canary, check, first, second, third, diagnosed, (before, rebooted.boot_id()))


def _first(fleet: Fleet) -> Played:
    """Roll out while one host loses power in the middle of dpkg's work, and another its link."""
    accidents = {KILLED: lambda: kill_all(fleet.hosts[KILLED]), CUT_OFF: lambda: fleet.cut(CUT_OFF)}
    # Of about 90 steps, unpacking comes first.
    begun = {host: steps(fleet.hosts[host]) + 30 for host in accidents}
    playing = fleet.start(SITE, *AT_ONCE)
    while accidents:
        during(playing, lambda: any(steps(fleet.hosts[host]) > begun[host] for host in accidents))
        for host in [host for host in accidents if steps(fleet.hosts[host]) > begun[host]]:
            accidents.pop(host)()
    return fleet.end(playing)


def _changes(played: Played, host: str) -> list[Mapping[str, Any]]:
    return [change for task in played.of(host, SETUP) for change in task.result.get("changes", ())]


def test_failing_canary_stops_the_rest(course: Course) -> None:
    assert course.canary.exit_code != 0
    assert course.canary.hosts("failures") == {CANARY}
    assert {task.host for task in course.canary.tasks} == {CANARY}
    (setup,) = course.canary.of(CANARY, SETUP)
    assert "could not fetch" in setup.result["msg"]


def test_check_mode_succeeds_on_every_host_and_changes_none(course: Course) -> None:
    assert course.check.exit_code == 0, course.check.output
    assert course.check.hosts("changed") == set(course.fleet.hosts)


@pytest.mark.parametrize("host", UNHARMED)
def test_first_run_makes_the_changes_that_check_mode_announced(course: Course, host: str) -> None:
    """Versions and dependencies are known once the index exists; names of packages are never guessed."""
    planned, done = _changes(course.check, host), _changes(course.first, host)
    for kind in ("file", "module", "command"):
        assert by_kind(planned, kind).keys() == by_kind(done, kind).keys()
    # With systemd, a package enables and starts its service before gpunode does.
    assert by_kind(planned, "service").keys() >= by_kind(done, "service").keys()
    # A package that is removed and added under the same name is an upgrade for apt.
    assert by_kind(planned, "package").keys() <= by_kind(done, "package").keys()


def test_failed_hosts_do_not_prevent_setup_of_the_others(course: Course) -> None:
    # ansible-core 2.16 counts a host whose connection breaks in a module as failed, newer versions as unreachable.
    lost = course.first.hosts("unreachable") | course.first.hosts("failures")
    assert lost == {BROKEN, KILLED, CUT_OFF}, course.first.output[-5000:]
    for host in UNHARMED:
        (verdict,) = course.first.of(host, GATE)
        assert verdict.result["healthy"] is True, verdict


def test_host_needing_a_reboot_is_rebooted_and_set_up_in_one_play(course: Course) -> None:
    before, after = (task.result for task in course.first.of(REBOOTED, SETUP))
    assert before["reboot_required"] is True
    assert after["exit_code"] == 0
    assert course.boots[0] != course.boots[1]
    assert [task.status for task in course.first.of(REBOOTED, "ansible.builtin.reboot")] == ["ok"]


def test_next_run_finishes_interrupted_hosts_and_changes_no_others(course: Course) -> None:
    assert course.second.hosts("changed") | {CUT_OFF} == {KILLED, CUT_OFF}
    assert course.second.hosts("failures") == {BROKEN}
    assert course.second.hosts("unreachable") == set()
    assert course.third.exit_code == 0
    assert course.third.hosts("changed") == set()
    drivers = {node.installed()["nvidia-kernel-dkms"] for node in course.fleet.hosts.values()}
    assert drivers == {"580.178.04-1"}
    assert {node.run("dpkg", "--audit").stdout for node in course.fleet.hosts.values()} == {""}


def test_doctor_names_the_cause_only_on_the_broken_host(course: Course) -> None:
    assert course.diagnosed.exit_code == 0, course.diagnosed.output
    report = json.loads(course.fleet.controller.read(f"{PLAYS}/fleet.json"))
    (cause,) = report["result"]["causes"]
    assert (cause["cause"], cause["reports"]) == (FAULT.cause, [f"{BROKEN}.tar.gz"]), report
