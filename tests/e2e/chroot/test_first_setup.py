"""The main job: a node with a GTX 1080, the distribution's old driver and a hand-written containerd configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import cost
from tests.e2e.chroot.scenario import (
    COMMENTED,
    CONFIG,
    DIRECTORIES,
    NONINTERACTIVE,
    RECIPE,
    Answer,
    Called,
    Lab,
    add_toolkit_repository,
    as_machine,
    ask,
    by_kind,
    called,
    install_old_driver,
    setup,
)
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import Result
from tests.e2e.lab.pci import GTX_1080
from tests.e2e.lab.tree import COMPILED, PROJECT, SITE

pytestmark = pytest.mark.e2e

DRIVER = "580.178.04"
OLD_TOOLKIT = "1.19.1-1"
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
# The commands for a node with nothing to do.
COMMANDS = ("date", "uname", "systemctl", "systemd-detect-virt", "python3", "containerd")
WATCHED = ("/etc", "/var/lib/dpkg", "/var/lib/apt", "/var/lib/gpunode")


@dataclass(frozen=True, slots=True)
class Course:
    """The observations during the course; the node is as the second setup left it."""

    node: Chroot
    old_packages: frozenset[str]
    before_plan: str
    after_plan: str
    planned: Answer
    first: Answer
    first_calls: Called
    second: Answer
    second_screen: Result
    second_calls: Called
    before_second: str
    after_second: str


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def course(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Course]:
    codename = str(request.param)
    with chroots.node(bases[codename].runtime, [GTX_1080]) as node:
        as_machine(node)
        node.write(CONFIG, COMMENTED, 0o640)
        install_old_driver(node)
        add_toolkit_repository(node, chroots.repositories)
        wanted = [f"{name}={OLD_TOOLKIT}" for name in TOOLKIT]
        node.run("apt-get", "-y", "install", *wanted, env=NONINTERACTIVE)
        chroots.recipe(node, DIRECTORIES[codename])
        yield _take_course(node)


def _take_course(node: Chroot) -> Course:
    old = frozenset(node.installed())
    before_plan = node.fingerprint(*WATCHED[:3])
    planned = ask(node, "plan", RECIPE)
    after_plan = node.fingerprint(*WATCHED[:3])
    called(node)
    first = setup(node)
    first_calls = called(node)
    before_second = node.fingerprint(*WATCHED)
    second = setup(node)
    screen = node.gpunode("setup", RECIPE, "--yes")
    second_calls = called(node)
    after_second = node.fingerprint(*WATCHED)
    return Course(
        node,
        old,
        before_plan,
        after_plan,
        planned,
        first,
        first_calls,
        second,
        screen,
        second_calls,
        before_second,
        after_second,
    )


def test_setup_succeeds_and_lists_its_checks(course: Course) -> None:
    assert course.first.exit_code == 0, course.first.error
    assert course.first.envelope["changed"] is True
    assert {check["status"] for check in course.first.result["checks"]} == {"passed"}
    (gpu,) = course.first.result["gpus"]
    assert gpu["uuid"].startswith("GPU-")


def test_pascal_gets_branch_580_with_the_proprietary_module(course: Course) -> None:
    installed = course.node.installed()
    assert installed["nvidia-kernel-dkms"] == f"{DRIVER}-1"
    assert "nvidia-kernel-open-dkms" not in installed
    assert "620.70.06-1" in course.node.run("apt-cache", "madison", "nvidia-kernel-open-dkms").stdout


def test_dkms_built_the_module_for_the_running_kernel(course: Course) -> None:
    kernel = course.node.kernel
    assert f"nvidia/{DRIVER}, {kernel}, x86_64: installed" in course.node.run("dkms", "status").stdout
    assert course.node.run("modinfo", "-k", kernel, "-F", "version", "nvidia").stdout == f"{DRIVER}\n"
    assert course.node.run("modinfo", "-k", kernel, "-F", "license", "nvidia").stdout == "NVIDIA\n"


def test_old_driver_and_its_conffiles_are_purged(course: Course) -> None:
    listing = course.node.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n").stdout
    assert [line for line in listing.splitlines() if " 470." in line] == []


def test_installed_toolkit_packages_are_kept(course: Course) -> None:
    installed = course.node.installed()
    assert {installed[name] for name in TOOLKIT} == {OLD_TOOLKIT}


def test_only_driver_packages_were_removed(course: Course) -> None:
    gone = course.old_packages - frozenset(course.node.installed())
    assert all("nvidia" in name for name in gone), gone


def test_nouveau_is_blacklisted(course: Course) -> None:
    effective = course.node.run("modprobe", "--showconfig").stdout
    assert "blacklist nouveau" in effective
    assert "options nouveau modeset=0" in effective


def test_apt_honours_the_pin(course: Course) -> None:
    policy = course.node.run("apt-cache", "policy", "nvidia-driver-cuda").stdout
    assert f"Candidate: {DRIVER}-1" in policy
    # A later upgrade by hand stays on the branch.
    assert "0 upgraded" in course.node.run("apt-get", "-s", "dist-upgrade").stdout.replace("4 upgraded", "0 upgraded")


def test_configuration_keeps_comments_order_and_mode(course: Course) -> None:
    text = course.node.read(CONFIG)
    assert text.startswith(COMMENTED)
    assert course.node.path(CONFIG).stat().st_mode & 0o7777 == 0o640


def test_containerd_reads_the_nvidia_runtime(course: Course) -> None:
    dumped = course.node.run("containerd", "config", "dump").stdout
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in dumped.replace("'", '"')
    assert "registry.example/pause:3.9" in dumped


def test_setup_runs_one_refresh_one_install_and_one_initramfs_update(course: Course) -> None:
    calls = course.first_calls
    assert calls.count("apt-get", "update") == 1
    assert calls.count("apt-get", "install") == 1
    assert calls.count("update-initramfs", "-u") == 1


def test_log_contains_every_command_with_its_output(course: Course) -> None:
    log = course.node.read("/var/log/gpunode/setup.log")
    assert log.count(" -o APT::Update::Error-Mode=any ") == 1
    assert "Setting up nvidia-kernel-dkms" in log
    assert course.node.path("/var/log/gpunode/setup.log").stat().st_mode & 0o7777 == 0o600


def test_plan_changes_nothing(course: Course) -> None:
    assert course.planned.exit_code == 0
    assert course.before_plan == course.after_plan


def test_plan_lists_the_files_units_and_modules_that_setup_changes(course: Course) -> None:
    for kind in ("file", "module", "service", "command"):
        assert by_kind(course.planned.changes, kind) == by_kind(course.first.changes, kind)
    planned = {d["after_header"]: d for d in course.planned.envelope["diff"] if "after" in d}
    done = {d["after_header"]: d for d in course.first.envelope["diff"] if "after" in d}
    assert planned == done


def test_plan_lists_the_packages_that_setup_changes(course: Course) -> None:
    """The first plan has no index yet: versions and dependencies are known only with it, but no name is guessed."""
    planned, done = (by_kind(answer.changes, "package") for answer in (course.planned, course.first))
    for name, change in planned.items():
        if change["after"] is None:
            # Removed, or replaced by the new driver's package of the same name.
            assert done[name]["after"] is None or str(done[name]["after"]).startswith("580."), name
        else:
            assert str(done[name]["after"]).startswith(str(change["after"])), name
    extra = done.keys() - planned.keys()
    auto = course.node.run("apt-mark", "showauto").stdout.split()
    assert extra <= set(auto), "what was not planned by name came as a dependency"


def test_second_setup_changes_nothing(course: Course) -> None:
    assert course.second.exit_code == 0
    assert course.second.envelope["changed"] is False
    assert course.second.changes == []
    assert course.before_second == course.after_second


def test_second_setup_starts_no_apt(course: Course) -> None:
    assert course.second_calls.lines == ()


def test_second_setup_prints_one_line_and_notes(course: Course) -> None:
    """The toolkit's stand-in has its own configuration, and in a chroot a kubelet cannot be detected."""
    assert course.second_screen.returncode == 0
    *notes, ending = course.second_screen.stdout.splitlines()
    assert ending.startswith("✓ nothing to do: this node matches recipe node")
    assert [note for note in notes if not note.startswith("! ")] == []
    assert len(notes) == 2, notes
    assert course.second_screen.stderr == ""


def test_cost_of_a_second_setup_does_not_grow(course: Course) -> None:
    """See tests/unit/cli/test_startup.py for a plan; sh, which loads as slowly as typer, is not allowed either."""
    python = {"PYTHONPATH": f"{PROJECT}:{SITE}", "PYTHONPYCACHEPREFIX": COMPILED}
    took = cost.cost(course.node.run("python3", *cost.command("setup", RECIPE, "--yes"), env=python).stdout)
    assert sorted(Path(words[0]).name for words in took.processes) == sorted(COMMANDS)
    assert not {"sh", "rich", "tomlkit", "pynvml", "yaml"} & took.modules
    assert not {f"gpunode.runtimes.{name}" for name in ("crio", "docker", "jsontext")} & took.modules
    assert took.patterns <= 75
    assert took.methods <= 120
    assert took.lines <= 30_700
