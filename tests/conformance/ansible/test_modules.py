"""The collection's modules, run as Ansible runs them, on envelopes that gpunode prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpunode.change import FileChange, FileState
from gpunode.cli.envelope import Envelope
from gpunode.errors import ChangeFailed, DrainRequired, GpunodeError, RebootRequired
from tests.conformance.ansible.conftest import Ansible, StandIn

REAL = str(Path(sys.executable).with_name("gpunode"))
EDIT = FileChange("/etc/containerd/config.toml", FileState(b"version = 2\n"), FileState(b"version = 3\n"))


def answer(command: str, error: GpunodeError | None = None, **more: Any) -> str:
    if error:
        more = {"status": error.status, "exit_code": error.exit_code, "errors": (error,), **more}
    return Envelope(command, **more).as_json()


DONE = answer("setup", changed=True, changes=(EDIT,), result={"run": "0003", "checks": []})
REBOOT = answer("setup", RebootRequired("a reboot is needed", why="nouveau drives the GPU"), result={"run": "0003"})
DRAIN = answer("setup", DrainRequired("continuing would stop 1 running docker container", why="running: web"))


def test_setup_passes_options_and_returns_changes(ansible: Ansible, program: StandIn) -> None:
    program.answers(setup=[DONE])
    returned = ansible.module(
        "gpunode",
        {
            "executable": str(program.path),
            "recipe": "containerd",
            "driver": "580",
            "only": ["driver", "runtime-config"],
            "allow_disruption": True,
        },
        diff=True,
    )
    assert (returned["changed"], returned["run"], returned["reboot_required"]) == (True, "0003", False)
    assert returned["diff"][0]["before"] == "version = 2\n"
    [call] = program.calls
    assert call[:2] == ["setup", "containerd"]
    assert {"--yes", "--json", "--driver=580", "--only=driver", "--only=runtime-config", "--allow-disruption"} < {*call}
    assert "--upgrade" not in call


def test_check_mode_plans_and_changes_nothing(ansible: Ansible, program: StandIn) -> None:
    program.answers(
        plan=[answer("plan", changed=True, changes=(EDIT,), result={"blocked": ["the kernel runs another"]})]
    )
    arguments = {
        "executable": str(program.path),
        "recipe": "containerd",
        "upgrade": True,
        "allow_disruption": True,
        "allow_loss": True,
    }
    returned = ansible.module("gpunode", arguments, check=True)
    assert (returned["changed"], returned["reboot_required"]) == (True, True)
    assert "diff" not in returned
    assert program.calls == [["plan", "containerd", "--upgrade", "--allow-loss", "--json"]]


@pytest.mark.parametrize(
    ("envelope", "failed", "reboot", "drain"),
    [(DONE, False, False, False), (REBOOT, False, True, False), (DRAIN, True, False, True)],
    ids=["done", "reboot", "drain"],
)
def test_required_reboot_succeeds_and_required_drain_fails(
    ansible: Ansible, program: StandIn, envelope: str, failed: bool, reboot: bool, drain: bool
) -> None:
    program.answers(setup=[envelope])
    returned = ansible.module("gpunode", {"executable": str(program.path)})
    assert returned.get("failed", False) is failed
    assert (returned["reboot_required"], returned["drain_required"]) == (reboot, drain)


def test_failure_message_has_what_why_and_next(ansible: Ansible, program: StandIn) -> None:
    error = ChangeFailed("the packages could not be installed", why="No space left on device", hint="make room")
    program.answers(setup=[answer("setup", error, changed=True, result={"run": "0004"})])
    returned = ansible.module("gpunode", {"executable": str(program.path)})
    assert returned["failed"]
    assert (returned["changed"], returned["run"]) == (True, "0004")
    assert returned["msg"] == "the packages could not be installed: No space left on device\nnext: make room"


def test_recipe_content_is_passed_as_a_private_file(ansible: Ansible, program: StandIn) -> None:
    arguments = {"executable": REAL, "recipe_content": "schema = 1\ndriver = 7\n", "lock_content": None}
    returned = ansible.module("gpunode", arguments, check=True)
    assert returned["exit_code"] == 2
    assert returned["msg"].startswith("recipe_content.toml:2"), returned["msg"]
    assert "/tmp" not in returned["msg"]
    program.answers(setup=[DONE])
    ansible.module("gpunode", {"executable": str(program.path), "recipe_content": "schema = 1\n"})
    assert not Path(program.calls[0][1]).exists(), "removed when the module has ended"


@pytest.mark.parametrize("module", ["gpunode", "gpunode_verify"])
def test_recipe_content_keeps_the_name_of_its_recipe(module: str, ansible: Ansible, program: StandIn) -> None:
    program.answers(setup=[DONE], verify=[answer("verify", result={"checks": [], "gpus": []})])
    arguments = {"executable": str(program.path), "recipe_content": "schema = 1\n", "recipe_name": "inference"}
    ansible.module(module, arguments)
    assert Path(program.calls[0][1]).name == "inference.toml"


def test_check_mode_writes_no_lock(ansible: Ansible, program: StandIn, tmp_path: Path) -> None:
    lock = tmp_path / "fleet.lock"
    returned = ansible.module("gpunode", {"executable": str(program.path), "lock": str(lock)}, check=True)
    assert str(lock) in returned["msg"]
    assert returned["failed"]
    assert program.calls == []


@pytest.mark.parametrize("printed", ["gpunode needs Python 3.10 or newer", "[]", "{}"])
def test_unexpected_output_is_quoted(ansible: Ansible, program: StandIn, printed: str) -> None:
    program.answers(setup=[printed if printed[0] == "g" else f" {printed}"])
    returned = ansible.module("gpunode", {"executable": str(program.path)})
    assert returned["failed"]
    assert printed in returned["msg"]


def test_missing_program_message_says_how_to_install_it(ansible: Ansible) -> None:
    missing = ansible.module("gpunode_facts", {"executable": "gpunode-that-nobody-has"})
    assert "gpunode_file" in missing["msg"]
    assert "/nowhere/gpunode" in ansible.module("gpunode_facts", {"executable": "/nowhere/gpunode"})["msg"]


def test_facts_doctor_and_verify_read_the_real_program(ansible: Ansible, tmp_path: Path) -> None:
    facts = ansible.module("gpunode_facts", {"executable": REAL})
    assert facts["ansible_facts"]["gpunode"]["version"]
    assert facts["changed"] is False
    capture = tmp_path / "node.tar.gz"
    doctor = ansible.module("gpunode_doctor", {"executable": REAL, "fail_on": "never", "capture": str(capture)})
    assert doctor["verdict"] in {"healthy", "problem", "unknown"}
    assert doctor["healthy"] is (doctor["exit_code"] == 0)
    assert capture.stat().st_size
    verify = ansible.module("gpunode_verify", {"executable": REAL})
    assert verify["checks"]
    assert verify.get("failed", False) is (verify["exit_code"] != 0)


@pytest.mark.parametrize(
    ("fail_on", "code", "failed"),
    [
        ("problem", 8, True),
        ("problem", 13, False),
        ("undetermined", 13, True),
        ("never", 8, False),
        ("problem", 0, False),
    ],
)
def test_doctor_fails_on_the_chosen_verdicts(
    ansible: Ansible, program: StandIn, fail_on: str, code: int, failed: bool
) -> None:
    finding = {"cause": "nouveau-bound", "title": "nouveau owns the GPU", "summary": "", "explained_by": []}
    findings = [finding] if code == 8 else []
    program.answers(doctor=[answer("doctor", exit_code=code, findings=findings)])
    returned = ansible.module("gpunode_doctor", {"executable": str(program.path), "fail_on": fail_on})
    assert returned.get("failed", False) is failed
    assert returned["cause"] == ("nouveau-bound" if findings else "")
    assert not findings or returned["msg"] == "nouveau-bound: nouveau owns the GPU"


def test_rollback_takes_the_run_and_is_skipped_in_check_mode(ansible: Ansible, program: StandIn) -> None:
    program.answers(rollback=[answer("rollback", changed=True)])
    arguments = {"executable": str(program.path), "run": "0003", "packages": True}
    assert ansible.module("gpunode_rollback", arguments)["changed"]
    assert program.calls == [["rollback", "0003", "--packages", "--lock-timeout=600", "--yes", "--json"]]
    assert ansible.module("gpunode_rollback", arguments, check=True)["skipped"]
    assert len(program.calls) == 1


@pytest.mark.parametrize(
    ("state", "check", "verb"),
    [
        ("present", False, "apply"),
        ("present", True, "plan"),
        ("verified", False, "verify"),
        ("verified", True, "verify"),
        ("absent", False, "remove"),
    ],
)
def test_cluster_state_selects_the_k8s_command(
    ansible: Ansible, program: StandIn, state: str, check: bool, verb: str
) -> None:
    row = {
        "kind": "RuntimeClass",
        "namespace": "",
        "name": "nvidia",
        "state": "create",
        "diff": "+ RuntimeClass nvidia",
    }
    code = 4 if verb == "plan" else 0
    envelope = answer(f"k8s {verb}", exit_code=code, changed=verb != "verify", result={"objects": [row]})
    program.answers(**{f"k8s_{verb}": [envelope]})
    arguments = {"executable": str(program.path), "state": state, "nodes": ["captures/"], "context": "prod"}
    returned = ansible.module("gpunode_k8s", arguments, check=check, diff=True)
    assert not returned.get("failed")
    assert returned["changed"] is (verb != "verify")
    assert returned["diff"] == [{"prepared": "+ RuntimeClass nvidia"}]
    [call] = program.calls
    assert call[:2] == ["k8s", verb]
    assert "--context=prod" in call
    assert ("--node=captures/" in call) is (verb != "remove")
    assert ("--yes" in call) is (verb in {"apply", "remove"})


def test_removal_from_a_cluster_is_skipped_in_check_mode(ansible: Ansible, program: StandIn) -> None:
    arguments = {"executable": str(program.path), "state": "absent"}
    assert ansible.module("gpunode_k8s", arguments, check=True)["skipped"]
    assert program.calls == []


def test_newer_envelope_format_is_refused(ansible: Ansible, program: StandIn) -> None:
    newer = {**json.loads(Envelope("setup").with_failure(ChangeFailed("x")).as_json()), "schema": 2}
    program.answers(setup=[json.dumps(newer)])
    returned = ansible.module("gpunode", {"executable": str(program.path)})
    assert returned["failed"]
    assert "format 2" in returned["msg"]
