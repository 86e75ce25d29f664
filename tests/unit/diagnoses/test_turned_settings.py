"""Settings and versions that fit another kind of engine, package or scheduler than the report's."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import driver
from gpunode.facts import pasted

CONFIG = "/etc/nvidia-container-runtime/config.toml"
UNKNOWN = ("sudo docker run --rm --gpus all ubuntu nvidia-smi", "Failed to initialize NVML: Unknown Error")


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        ("no-cgroups = true", "docker-rootless-config"),
        ("[nvidia-container-cli]\n  no-cgroups=true", "docker-rootless-config"),
        ("#no-cgroups = true", "cgroup-daemon-reload-loses-gpu"),
        ("no-cgroups = false", "cgroup-daemon-reload-loses-gpu"),
    ],
)
def test_cgroups_turned_off_for_a_docker_of_root(setting: str, cause: str) -> None:
    found = diagnose_pieces(UNKNOWN, (f"cat {CONFIG}", setting))
    assert [root.cause for root in found.roots] == [cause]
    first = found.roots[0].remedy[0].commands
    assert ("no-cgroups=false" in str(first)) == (cause == "docker-rootless-config")


def test_rootless_docker_keeps_its_cgroups_off() -> None:
    shown = UNKNOWN, (f"cat {CONFIG}", "no-cgroups = true"), ("docker info", " Context:    rootless\n rootless")
    commands = [typed for root in diagnose_pieces(*shown).roots for fix in root.remedy for typed in fix.commands]
    assert not any("no-cgroups=false" in typed for typed in commands)


def test_setting_is_read_at_a_fish_prompt_after_an_error() -> None:
    text = (
        "user@host ~> sudo docker run --rm --gpus all ubuntu nvidia-smi\nFailed to initialize NVML: Unknown Error\n"
        f"user@host ~ [255]> grep no-cgroups {CONFIG}\nno-cgroups = true\n"
    )
    (root,) = diagnose(take_snapshot(pasted.parse_text_report(text))).roots
    assert root.cause == "docker-rootless-config"


@pytest.mark.parametrize(
    ("package", "needed", "is_old"),
    [
        ("nvidia-docker2", "docker-ce (= 5:18.09.0~3-0~ubuntu-xenial)", True),
        ("nvidia-settings", "libxnvctrl0 (= 550.54.15-0ubuntu1)", False),
    ],
)
def test_old_docker_package_is_not_taken_for_a_driver(package: str, needed: str, is_old: bool) -> None:
    text = (
        f"The following packages have unmet dependencies:\n {package} : Depends: {needed} but 5:18.09.1 is to be "
        "installed\nE: Unable to correct problems, you have held broken packages."
    )
    (root,) = diagnose_pieces((f"apt-get install {package}", text)).roots
    assert ("no longer maintains, needs another version of docker-ce" in root.summary) == is_old
    assert ("nvidia-container-toolkit" in root.remedy[0].text) == is_old


@pytest.mark.parametrize(("used", "causes"), [("2            2", ["gpus-all-allocated"]), ("0            0", [])])
def test_hami_without_room_beside_an_assigned_gpu(used: str, causes: list[str]) -> None:
    found = diagnose_pieces(
        ("kubectl describe pod x", "  Warning  FailedScheduling  hami-scheduler  0/1 nodes: 1 CardInsufficientMemory."),
        (
            "kubectl describe node x",
            (
                "Capacity:\n  nvidia.com/gpu: 100\nAllocatable:\n  nvidia.com/gpu: 100\nAllocated resources:\n"
                f"  nvidia.com/gpu     {used}"
            ),
        ),
    )
    assert [one.cause for one in found.roots] == causes
    assert all("gpumem" in one.remedy[0].text for one in found.roots)


TABLE = "| NVIDIA-SMI 367.57                 Driver Version: 367.57                    |"
TOO_OLD = "cuda runtime error (35) : CUDA driver version is insufficient for CUDA runtime version"


@pytest.mark.parametrize(
    ("shown", "works"),
    [
        (f"{TABLE}\n\nafter a run:\nTHCudaCheck FAIL\n{TOO_OLD}", True),
        (f"Error: {TOO_OLD}\n{TABLE}", False),
        ("nvidia-operator-validator-x   1/1   Running\nnvidia-device-plugin-y  0/1  CrashLoopBackOff", False),
    ],
)
def test_table_above_a_failing_program_shows_a_working_driver(shown: str, works: bool) -> None:
    node = take_snapshot(pasted.collect_pieces([("nvidia-docker run --rm nvidia/cuda nvidia-smi", shown)]))
    assert bool(node.view(driver.container_successes)) == works
