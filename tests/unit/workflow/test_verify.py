"""verify: what passes, what fails, and what is never called passed because it could not be checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpunode
from gpunode.check import Check
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import ChangeFailed, GpunodeError, Refused, Undetermined
from gpunode.facts import nvml
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.layout import GpuLayout
from gpunode.facts.model import Facts, Known, LoadedDriver, Unknown
from gpunode.host import container
from gpunode.host.process import Runner
from gpunode.host.rehearsal import RehearsalHost
from gpunode.recipe import Driver, Expect, Recipe, RuntimeSettings
from gpunode.runtimes import ObservedConfig, find_runtime
from gpunode.workflow.extra_checks import make_container_check, package_file_checks
from gpunode.workflow.verify import ExtraChecks, VerifyReport, verify
from tests.unit.steps.machines import machine, recipe, unit, with_driver

GPU: dict[str, Any] = {
    "index": 0,
    "name": "Tesla T4",
    "uuid": "GPU-0",
    "pci": "0000:01:00.0",
    "memory_mib": 15360,
    "persistence": True,
    "ecc": True,
    "ecc_pending": True,
    "compute_capability": "7.5",
    "mig": {"error": "NotSupported", "code": 3},
    "mig_pending": {"error": "NotSupported", "code": 3},
}
ANSWER: dict[str, Any] = {
    "schema": 1,
    "driver": "580.95.05",
    "cuda": "13.0",
    "nvml": "13.580.95.05",
    "library": "libnvidia-ml.so.1",
    "gpus": [GPU],
}
NODES = frozenset({"/dev/nvidiactl", "/dev/nvidia0"})


class Answering(RehearsalHost):
    """A node whose NVML gives one answer."""

    def __init__(self, answer: object) -> None:
        super().__init__({}, {})
        self.answer = answer

    def run_probe(self, probe: Probe, /) -> Capture:
        if isinstance(self.answer, Capture):
            return self.answer
        return Capture(probe.source, "ok", json.dumps(self.answer).encode())


def report(
    wanted: Recipe | None = None,
    node: Facts | None = None,
    answer: object = ANSWER,
    configured: ObservedConfig | None = None,
) -> VerifyReport:
    facts = node or with_driver("580.95.05", device_nodes=NODES)
    return verify(wanted or recipe(), facts, Answering(answer), lambda _name: configured)


def check(found: VerifyReport, name: str) -> Check:
    return next(check for check in found.checks if check.id == name)


def expecting(**more: Any) -> Recipe:
    return Recipe("test", expect=Expect(**more))


def gpus(*changed: Mapping[str, Any]) -> dict[str, Any]:
    rows = [{**GPU, "index": n, **row} for n, row in enumerate(changed)]
    return {**ANSWER, "gpus": rows}


def test_answering_gpu_passes() -> None:
    found = report()
    assert check(found, "nvml").status == "passed"
    assert check(found, "gpu-0").detail == "Tesla T4, 15360 MiB, GPU-0, persistence on, ECC on"
    assert check(found, "versions").status == "passed"
    assert check(found, "device-nodes").status == "passed"


def test_missing_libcuda_fails_although_nvml_answers() -> None:
    error = "libcuda.so.1: cannot open shared object file: No such file or directory"
    found = report(answer={**ANSWER, "libcuda_error": error})
    assert check(found, "nvml").status == "passed"
    assert (check(found, "libcuda").status, check(found, "libcuda").detail) == ("failed", error)
    assert "apt-get install --reinstall libcuda1=580.95.05-1" in check(found, "libcuda").hint
    without = {"schema": 1, "error": {"code": 12, "name": "LibraryNotFound", "text": "x"}, "libcuda_error": error}
    assert check(report(answer=without), "libcuda").status == "failed"
    assert "gpunode setup" in check(report(answer=without), "nvml").hint, "libnvidia-ml1 is not installed"
    there = with_driver("580.95.05", packages={"libnvidia-ml1": "580.95.05-1"})
    assert (
        "apt-get install --reinstall libnvidia-ml1=580.95.05-1"
        in check(report(node=there, answer=without), "nvml").hint
    )
    bare = report(node=machine(), answer={**ANSWER, "libcuda_error": error})
    assert "gpunode setup" in check(bare, "libcuda").hint
    unmanaged = report(Recipe("test", driver=Driver(version="none")), machine(), without)
    assert "the loaded driver" not in check(unmanaged, "libcuda").hint, "none is loaded"
    assert "gpunode setup" not in check(unmanaged, "nvml").hint, "it would install no driver"


@pytest.mark.parametrize(
    "module",
    ["facts/cuda", "facts/nvml", *(f"workflow/{name}" for name in ("driver_checks", "extra_checks", "verify"))],
)
def test_no_failed_check_sends_back_to_verify(module: str) -> None:
    text = (Path(gpunode.__file__).parent / f"{module}.py").read_text()
    assert not re.findall(r'gpunode\("verify"|`(?:sudo )?gpunode verify(?! (?:--cuda )?--json`)', text)


def test_driver_is_not_missed_without_a_gpu_and_unwanted() -> None:
    """A build machine, or one prepared for a GPU, is complete without a driver."""
    without = {"schema": 1, "error": {"code": 12, "name": "LibraryNotFound", "text": "x"}, "libcuda_error": "y"}
    none = Recipe("test", driver=Driver(version="none"))
    bare = machine(devices=Known((), "pci-modalias"))
    found = report(none, bare, without)
    assert not found.failed
    assert (check(found, "nvml").status, check(found, "nvml").detail) == ("skipped", "no NVIDIA GPU found")
    with_gpu = report(none, machine(), without)
    assert [one.id for one in with_gpu.failed] == ["nvml", "libcuda"]
    loaded = replace(bare, loaded_driver=Known(LoadedDriver("580.95.05", open_module=False), "nvidia-version"))
    assert check(report(none, loaded, without), "nvml").status == "failed"


VERIFIED = """\
??5??????   /usr/bin/nvidia-container-runtime
?M5?????? c /etc/nvidia-container-runtime/config.toml
missing     /usr/share/doc/nvidia-container-toolkit-base/copyright
missing     /usr/lib/x86_64-linux-gnu/libcuda.so.1
"""


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Capture("dpkg", "ok", VERIFIED.encode()), "failed"),
        (Capture("dpkg", "ok", VERIFIED.splitlines()[1].encode()), "passed"),
        (Capture("dpkg", "ok"), "passed"),
        (Capture("dpkg", "timeout"), "skipped"),
    ],
)
def test_packaged_files_are_compared_with_their_checksums(answer: Capture, status: str) -> None:
    toolkit = dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.19.1-1")
    node = machine(packages={**toolkit, "libcuda1": "580.2-1"})
    found = tuple(package_file_checks(recipe("containerd"), node, Answering(answer)))
    assert [one.status for one in found] == [status]
    if status == "failed":
        assert "/usr/bin/nvidia-container-runtime" in found[0].detail
        assert "config.toml" not in found[0].detail
        assert "copyright" not in found[0].detail
        assert "nvidia-container-toolkit-base=1.19.1-1" in found[0].hint
    assert not tuple(package_file_checks(recipe("containerd"), machine(), Answering(answer)))


@pytest.mark.parametrize(
    "answer",
    [
        Capture("nvml", "timeout"),
        Capture("nvml", "failed", b"Traceback", "it fell over", 1),
        Capture("nvml", "ok", b"{"),
        {
            "schema": 1,
            "error": {"code": 18, "name": "LibRmVersionMismatch", "text": "mismatch"},
            "nvml": "",
            "library": "",
        },
        {"schema": 1, "error": {"code": 9, "name": "DriverNotLoaded", "text": "x"}, "nvml": "", "library": ""},
        {**ANSWER, "gpus": []},
    ],
    ids=["hangs", "falls over", "speaks nonsense", "another library", "no driver", "no GPU"],
)
def test_unresponsive_driver_fails_and_no_expectation_passes(answer: object) -> None:
    found = report(expecting(gpus=1, model="T4", min_memory_mib=1, ecc=True), answer=answer)
    assert check(found, "nvml").status == "failed"
    assert found.failed
    assert not [one for one in found.checks if one.id.startswith("expect-") and one.status == "passed"]


def test_one_lost_gpu_of_two_fails_and_is_named() -> None:
    lost = {"index": 1, "error": "GpuIsLost", "code": 15}
    found = report(answer={**ANSWER, "gpus": [GPU, lost]})
    assert (check(found, "gpu-0").status, check(found, "gpu-1").status) == ("passed", "failed")


@pytest.mark.parametrize(
    ("expected", "passes"),
    [
        ({"gpus": 2}, True),
        ({"gpus": 8}, False),
        ({"model": "T4"}, True),
        ({"model": "H100"}, False),
        ({"driver": "580"}, True),
        ({"driver": "580.95"}, True),
        ({"driver": "580.95.05"}, True),
        ({"driver": "580.95.0"}, False),
        ({"driver": "58"}, False),
        ({"driver": "595"}, False),
        ({"min_memory_mib": 15360}, True),
        ({"min_memory_mib": 15361}, False),
        ({"ecc": True}, False),
        ({"ecc": False}, False),
    ],
)
def test_expectations_hold_for_every_gpu(expected: dict[str, Any], passes: bool) -> None:
    (name,) = expected
    found = report(
        expecting(**expected), answer=gpus({}, {"ecc": {"error": "NotSupported", "code": 3}, "memory_mib": 16384})
    )
    assert check(found, f"expect-{name}").status == ("passed" if passes else "failed")


def test_memory_that_nvml_does_not_tell_is_unknown_and_not_enough() -> None:
    unknown = {"memory_mib": {"error": "Unknown", "code": 999}}
    found = check(report(expecting(min_memory_mib=1), answer=gpus({}, unknown)), "expect-min_memory_mib")
    assert (found.status, found.detail) == ("failed", "expected at least 1, found 15360, unknown")


def test_hint_of_an_expectation_fits_its_key() -> None:
    found = report(expecting(gpus=8, ecc=True, model="H100"), answer=gpus({}))
    hints = [check(found, f"expect-{name}").hint for name in ("gpus", "ecc", "model")]
    assert [word in hint for word, hint in zip(("reseat", "--ecc-config", "which GPUs"), hints, strict=True)] == [
        True
    ] * 3


def test_loaded_module_of_another_version_fails() -> None:
    node = with_driver("580.95.05", loaded_driver=LoadedDriver("580.82.07", open_module=True), device_nodes=NODES)
    assert check(report(node=node), "versions").status == "failed"


def test_package_of_another_version_fails_although_nvml_answers() -> None:
    node = with_driver("580.95.05", packages={"libcuda1": "580.65.06-1"}, device_nodes=NODES)
    found = check(report(node=node), "versions")
    assert found.status == "failed"
    assert "libcuda1 is 580.65.06-1, the installed package 580.95.05-1" in found.detail
    assert "driver" in check(report(node=node), "configuration").detail


def test_upgrade_passes_when_all_driver_versions_agree() -> None:
    node = with_driver("580.95.05", packages={"libcuda1": "580.95.05-1"}, device_nodes=NODES)
    assert check(report(replace(recipe(), upgrade=True), node=node), "versions").status == "passed"


def test_residue_of_a_removed_driver_is_no_installed_version() -> None:
    from gpunode.change import PackageState

    residue = {"nvidia-driver-cuda": PackageState("470.256.02-1", config_files_only=True)}
    node = machine(packages=residue, loaded_driver=LoadedDriver("580.95.05", open_module=True), device_nodes=NODES)
    assert check(report(recipe(version="580"), node), "versions").status == "passed"


def test_versions_are_not_compared_where_only_the_module_has_one() -> None:
    """A node between a removal and its reboot is in this state."""
    silent = {"error": "LibraryNotFound", "code": 12, "loaded": False}
    node = machine(loaded_driver=LoadedDriver("580.95.05", open_module=True), device_nodes=NODES)
    assert check(report(node=node, answer=silent), "versions").status == "skipped"


def test_runtime_whose_program_its_package_has_lost_fails() -> None:
    """containerd still reads its configuration, but no container starts."""
    toolkit = {"nvidia-container-toolkit": "1.20.1-1", "containerd": "1.7.24"}
    lost = Known(value=False, probe="toolkit-program")
    node = replace(with_driver("580.95.05", packages=toolkit, device_nodes=NODES), toolkit_program=lost)
    configured = ObservedConfig({"nvidia": "/usr/bin/nvidia-container-runtime"})
    found = check(report(recipe("containerd"), node, configured=configured), "runtime")
    assert (found.status, "which is not installed" in found.detail) == ("failed", True)
    assert found.hint == "sudo gpunode setup --runtime=containerd --only=toolkit-repository --only=toolkit"


def test_handler_that_crio_leaves_out_is_explained_by_its_program() -> None:
    """A restart, which would otherwise be the hint, does not help."""
    config = b'[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    files = {"/etc/crio/crio.conf": config}
    node = with_driver("580.95.05", packages={"cri-o": "1.37.0"}, device_nodes=NODES, files=files)
    lost = replace(node, toolkit_program=Known(value=False, probe="toolkit-program"))
    for facts, hint in ((lost, "sudo gpunode setup --runtime=crio"), (node, "sudo systemctl restart crio.service")):
        found = check(report(recipe("crio"), facts, configured=ObservedConfig({"runc": "/usr/bin/runc"})), "runtime")
        assert found.hint.startswith(hint)


def test_hints_name_the_setup_of_this_recipe() -> None:
    """``sudo gpunode setup`` alone uses another recipe, and so other archives than the site's mirror."""
    again = "sudo gpunode setup /root/site.toml"
    wanted = expecting(driver="535")
    facts = machine(device_nodes=NODES)
    found = verify(wanted, facts, Answering(ANSWER), lambda _name: None, setup_command=again).checks
    hints = [one.hint for one in found if "gpunode setup" in one.hint]
    assert hints
    assert all(hint.count("gpunode setup") == hint.count(again) for hint in hints)


def test_hint_with_steps_of_its_own_stays_as_it_is() -> None:
    """The recipe may skip these steps, and then its own setup does not help."""
    missing = replace(machine(), toolkit_program=Known(value=False, probe="toolkit-program"))
    skipped = ("toolkit-repository", "toolkit")
    wanted = Recipe("site", runtime=RuntimeSettings("docker", set_as_default=True), skip=skipped)
    again = "sudo gpunode setup site.toml"
    found = verify(wanted, missing, Answering(ANSWER), lambda _name: None, setup_command=again)
    hint = check(found, "configuration").hint
    assert hint.endswith("\nsudo gpunode setup --runtime=docker --only=toolkit-repository --only=toolkit")


def test_unreadable_pci_bus_does_not_hide_the_driver_checks() -> None:
    blind = with_driver("580.95.05", devices=Unknown("lspci did not answer in time", "lspci"), device_nodes=NODES)
    found = report(node=blind)
    assert check(found, "configuration").status == "skipped"
    assert [error.exit_code for error in found.undetermined] == [13]
    assert check(found, "nvml").status == "passed"
    assert check(found, "versions").status == "passed"


def test_missing_device_nodes_are_named_and_unreadable_ones_skipped() -> None:
    node = with_driver("580.95.05", device_nodes=frozenset({"/dev/nvidiactl"}))
    assert "/dev/nvidia0" in check(report(node=node), "device-nodes").detail
    third = replace(node, layout=Known(GpuLayout(minors=frozenset({3})), "nvidia-gpus"))
    missing = check(report(node=third), "device-nodes")
    assert (missing.detail, missing.hint) == ("missing: /dev/nvidia3", "nvidia-modprobe --create-nvidia-device-file=3")
    in_container = replace(node, device_nodes=Known(frozenset({"/dev/nvidiactl", "/dev/nvidia3"}), "dev-nvidia"))
    assert check(report(node=in_container), "device-nodes").status == "passed"
    blind = with_driver("580.95.05", device_nodes=Unknown("denied", "dev-nvidia"))
    assert not [one for one in report(node=blind).checks if one.id == "device-nodes"]


def test_pending_changes_fail_and_a_pending_reboot_is_not_run() -> None:
    assert check(report(), "configuration").status == "failed"
    assert "still to do" in check(report(), "configuration").detail
    waits = with_driver("580.95.05", loaded_driver=LoadedDriver("470.256.02", open_module=False))
    only = Recipe("test", skip=("cuda-repository", "driver-pin", "nouveau", "headers", "persistence"))
    assert check(report(only, waits), "configuration").status == "skipped"


@pytest.mark.parametrize(
    ("configured", "default", "status"),
    [
        (None, False, "skipped"),
        (ObservedConfig({"runc": ""}), False, "failed"),
        (ObservedConfig({"nvidia": "/usr/bin/nvidia-container-runtime"}), False, "passed"),
        (ObservedConfig({"nvidia": "/usr/bin/nvidia-container-runtime"}, cri_disabled=True), False, "failed"),
        (ObservedConfig({"nvidia": "/usr/bin/nvidia-container-runtime"}, default="runc"), True, "failed"),
        (ObservedConfig({"nvidia": "/usr/bin/nvidia-container-runtime"}, default="nvidia"), True, "passed"),
    ],
)
def test_runtime_check_follows_what_the_runtime_reports(
    configured: ObservedConfig | None, default: bool, status: str
) -> None:
    wanted = Recipe("test", runtime=RuntimeSettings("docker", set_as_default=default))
    assert check(report(wanted, configured=configured), "runtime").status == status


def test_daemon_without_its_client_is_not_called_missing() -> None:
    """Debian 13 has docker's client in docker-cli, which docker.io only recommends."""
    node = machine(units={"docker.service": unit()})
    found = verify(recipe("docker"), node, Answering(ANSWER), lambda _name: None)
    assert check(found, "runtime").status == "skipped"
    assert "docker-cli" in check(found, "runtime").detail


def test_runtime_that_cannot_read_its_config_fails() -> None:
    def broken(_name: str) -> ObservedConfig | None:
        raise Refused("daemon.json is broken", why="line 3")

    found = verify(recipe("docker"), machine(), Answering(ANSWER), broken)
    assert "line 3" in check(found, "runtime").detail
    assert check(found, "runtime").status == "failed"


def test_container_is_not_started_without_a_working_driver() -> None:
    def never(*_: object) -> Check:
        pytest.fail("started a container")

    node = with_driver("580.95.05")
    for wanted in (recipe("docker"), recipe("none")):
        found = verify(
            wanted, node, Answering(Capture("nvml", "timeout")), lambda _name: None, ExtraChecks(container=never)
        )
        assert check(found, "container").status == "skipped"


def test_runtime_that_only_answers_root_is_not_run() -> None:
    def closed(_name: str) -> ObservedConfig | None:
        raise Undetermined("cannot tell how containerd is configured", why="permission denied", hint="as root")

    node = with_driver("580.95.05", device_nodes=NODES)
    found = verify(Recipe("test", runtime=RuntimeSettings(name="containerd")), node, Answering(ANSWER), closed)
    assert check(found, "runtime").status == "skipped"
    assert [error.what for error in found.undetermined] == ["cannot tell how containerd is configured"]


def test_failing_container_check_does_not_hide_the_others() -> None:
    node = with_driver("580.95.05", device_nodes=NODES)
    wanted = Recipe("test", runtime=RuntimeSettings(name="containerd"))
    for error, status, told in (
        (ChangeFailed("containerd does not say", why="it crashed", hint="systemctl status containerd"), "failed", 0),
        (Undetermined("cannot tell", why="permission denied", hint="as root"), "skipped", 1),
    ):

        def broken(_inventory: object, _row: object, error: GpunodeError = error) -> Check:
            raise error

        found = verify(wanted, node, Answering(ANSWER), lambda _name: None, ExtraChecks(container=broken))
        assert check(found, "container").status == status
        assert len(found.undetermined) == told
        assert check(found, "nvml").status == "passed"


def test_container_that_could_not_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = nvml.read_nvml_answer(Capture("nvml", "ok", json.dumps(ANSWER).encode()))
    assert isinstance(inventory, nvml.NvmlInventory)
    left = ("docker image rm --force localhost/gpunode-check:t: image is in use",)
    found = container.ContainerCheck(frozenset(inventory.uuids), frozenset(inventory.uuids), leftovers=left)
    monkeypatch.setattr(container, "check_container", lambda *_: found)
    told = make_container_check(Runner(), lambda _name: None)(inventory, find_runtime("docker"))
    assert told.status == "passed"
    assert told.detail.endswith(f"through docker; left behind: {left[0]}")


def test_unknown_virtualization_does_not_hide_the_driver_checks() -> None:
    node = with_driver("580.95.05", platform=Unknown("did not answer in time", "virt"), device_nodes=NODES)
    assert check(report(node=node), "nvml").status == "passed"


def test_only_the_selected_steps_are_checked() -> None:
    """``setup --only runtime-config`` on a node without a driver: none was requested, so its absence is no fault."""
    wanted = Recipe("test", runtime=RuntimeSettings(name="containerd"), expect=Expect(gpus=8))
    broken = Capture("nvml", "absent")
    reads = ObservedConfig({"nvidia": "/usr/bin/nvidia-container-runtime"}, "runc")
    found = verify(wanted, machine(), Answering(broken), lambda _name: reads, only=("runtime-config",))
    assert {check.id for check in found.checks} == {"configuration", "runtime"}
    whole = verify(wanted, machine(), Answering(broken), lambda _name: reads)
    assert {"nvml", "expect-gpus"} <= {check.id for check in whole.checks}
    (driver,) = (c for c in verify(wanted, machine(), Answering(broken), lambda _name: reads, only=("headers",)).checks)
    assert driver.id == "configuration"


def test_check_of_selected_steps_names_them() -> None:
    found = verify(recipe(), machine(), Answering(ANSWER), lambda _name: None, only=("repair",))
    (check,) = found.checks
    assert check.status == "passed"
    assert check.detail == "repair: nothing left to do"
