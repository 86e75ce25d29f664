"""The role and the playbooks, run by the real ansible-playbook; each host is a folder of this machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from gpunode.cli.envelope import Envelope
from gpunode.errors import ProblemFound, Refused, VerifyFailed
from gpunode.workflow.fleet import FleetRow
from tests.conformance.ansible.conftest import COLLECTION, Ansible, StandIn, stand_in
from tests.conformance.ansible.test_modules import DONE, DRAIN, REBOOT, answer

SAME = answer("setup", result={"run": "", "checks": []})
BROKEN = answer("setup", VerifyFailed("applied, but the driver does not answer"), changed=True, result={"run": "0003"})
HEALTHY = answer("doctor")
ILL = answer(
    "doctor",
    exit_code=ProblemFound.exit_code,
    findings=[{"cause": "nouveau-bound", "title": "nouveau owns the GPU", "summary": "", "explained_by": []}],
)
UNDONE = answer("rollback", changed=True)
FETCHED = answer("setup", result={"downloaded": ["libcuda1"]})
GOOD: dict[str, Sequence[str]] = {"setup": [DONE, SAME], "doctor": [HEALTHY], "rollback": [UNDONE]}
# In such a play no node waits for another, or for one that fails.
AT_ONCE: dict[str, object] = {"gpunode_serial": "100%", "gpunode_max_fail_percentage": 100}
DRAINS = """\
- name: Note it
  ansible.builtin.shell: echo "WORD {{ inventory_hostname }}" >> "{{ play_log }}"
"""


@dataclass(frozen=True, slots=True)
class Site:
    """Four hosts, each with a program of its own."""

    folder: Path
    ansible: Ansible
    hosts: Mapping[str, StandIn]

    def play(self, *argv: str, **variables: object) -> subprocess.CompletedProcess[str]:
        """Run a playbook, and return how it ended."""
        given = {"ansible_become": False, **variables}
        return self.ansible.run(
            "ansible-playbook", "-i", "hosts.yml", "-e", json.dumps(given), *argv, cwd=self.folder,
            env={"ANSIBLE_CALLBACKS_ENABLED": "gpunode.node.fleet", "GPUNODE_FLEET_FILE": f"{self.folder}/seen.json"},
        )  # fmt: skip

    def hooks(self) -> dict[str, str]:
        """Return the variables of a drain and an uncordon that write down that they ran."""
        for word in ("drain", "uncordon"):
            (self.folder / f"{word}.yml").write_text(DRAINS.replace("WORD", word))
        return {
            "play_log": str(self.folder / "log"),
            "gpunode_drain_tasks": str(self.folder / "drain.yml"),
            "gpunode_uncordon_tasks": str(self.folder / "uncordon.yml"),
        }

    @property
    def log(self) -> list[str]:
        """The hooks that ran."""
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def site(newest: Ansible, tmp_path: Path) -> Site:
    hosts = {f"n{number}": stand_in(tmp_path / f"n{number}") for number in range(1, 5)}
    for one in hosts.values():
        one.answers(**GOOD)
    local = {"ansible_connection": "local", "ansible_python_interpreter": str(newest.bin / "python")}
    inventory = {name: {**local, "gpunode_path": str(one.path)} for name, one in hosts.items()}
    (tmp_path / "hosts.yml").write_text(json.dumps({"gpu": {"hosts": inventory}}))
    return Site(tmp_path, newest, hosts)


@pytest.mark.long
def test_site_sets_up_batches_and_is_idempotent(site: Site) -> None:
    first = site.play("gpunode.node.site")
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.count("changed=1") == 4
    second = site.play("gpunode.node.site")
    assert second.returncode == 0, second.stdout
    assert second.stdout.count("changed=0") == 4
    assert [one.verbs for one in site.hosts.values()] == [["setup", "doctor"] * 2] * 4
    seen = json.loads((site.folder / "seen.json").read_text())
    assert {row["report"]: row["status"] for row in seen["result"]["reports"]} == dict.fromkeys(site.hosts, "healthy")
    assert seen.keys() == json.loads(Envelope("doctor").as_json()).keys()


def test_unhealthy_canary_stops_the_rest(site: Site) -> None:
    site.hosts["n1"].answers(**{**GOOD, "doctor": [ILL]})
    done = site.play("gpunode.node.site")
    assert done.returncode != 0
    assert "nouveau-bound: nouveau owns the GPU" in done.stdout + done.stderr
    assert [one.calls for one in site.hosts.values()][1:] == [[], [], []]
    seen = json.loads((site.folder / "seen.json").read_text())["result"]
    assert [row["status"] for row in seen["reports"]] == ["problem"]
    assert {*seen["reports"][0]} - {"setup"} <= {one.name for one in fields(FleetRow)}, "as doctor's own rows"
    assert seen["causes"] == [{"cause": "nouveau-bound", "title": "nouveau owns the GPU", "reports": ["n1"]}]


def test_preview_shows_every_node_although_the_first_fails(site: Site) -> None:
    site.hosts["n1"].answers(plan=[answer("plan", Refused("no NVIDIA GPU found"))])
    done = site.play("gpunode.node.site", "--check", "--diff")
    assert done.returncode != 0
    assert [one.verbs for one in site.hosts.values()] == [["plan"]] * 4, done.stdout + done.stderr


def test_node_is_drained_if_needed_and_uncordoned_if_healthy(site: Site) -> None:
    site.hosts["n1"].answers(**{**GOOD, "setup": [DRAIN, DONE]})
    site.hosts["n3"].answers(**{**GOOD, "setup": [DRAIN, BROKEN]})
    done = site.play("gpunode.node.site", "--limit", "n1,n2,n3", **AT_ONCE, **site.hooks())
    assert site.hosts["n1"].verbs == ["setup", "setup", "doctor"], done.stdout + done.stderr
    assert sorted(site.log) == ["drain n1", "drain n3", "uncordon n1"], "n2 needed none, and n3 does not work"


def failed(done: subprocess.CompletedProcess[str], message: str) -> list[str]:
    """Return the hosts that failed with the message."""
    return sorted(re.findall(rf"^fatal: \[(n\d)\]: FAILED! .*{re.escape(message)}", done.stdout, re.MULTILINE))


EVERY_NODE = "-lkubernetes.io/os=linux"
LYING_PYTHON = """\
#!{python}
import json, subprocess, sys
done = subprocess.run([{python!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
start = done.stdout.find(b"{{")
answer = json.loads(done.stdout[start:]) if start >= 0 else {{}}
sys.stdout.write(json.dumps({{**answer, "ansible_facts": {facts!r}}}) if answer else done.stdout.decode())
sys.exit(done.returncode)
"""


def test_node_facts_cannot_override_the_kubectl_variables(site: Site) -> None:
    """An attacker who controls a node could otherwise drain all others, or run a program on the controller."""
    lies: dict[str, dict[str, object]] = {
        "n1": {"nodename": EVERY_NODE},
        "n2": {"gpunode_kubectl_node": EVERY_NODE},
        "n3": {"gpunode_kubectl": ["touch", "/nowhere"]},
    }
    kubectl = site.folder / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$*" >>{site.folder}/log\n')
    kubectl.chmod(0o755)
    inventory = json.loads((site.folder / "hosts.yml").read_text())
    for name, facts in lies.items():
        site.hosts[name].answers(**{**GOOD, "setup": [DRAIN, DONE]})
        host, python = inventory["gpu"]["hosts"][name], site.folder / f"python-{name}"
        python.write_text(LYING_PYTHON.format(python=host["ansible_python_interpreter"], facts=facts))
        python.chmod(0o755)
        host.update(ansible_python_interpreter=str(python), gpunode_kubectl=[str(kubectl)])
    (site.folder / "hosts.yml").write_text(json.dumps(inventory))
    hooks = {"gpunode_drain_tasks": "kubectl_drain.yml", "gpunode_uncordon_tasks": "kubectl_uncordon.yml"}
    done = site.play("gpunode.node.site", "--limit", "n1,n2,n3", **AT_ONCE, **hooks)
    said = done.stdout + done.stderr
    assert site.log == [
        "drain --ignore-daemonsets --delete-emptydir-data --timeout=600s -- n1",
        "uncordon -- n1",
    ], said
    assert failed(done, "which would override the inventory") == ["n2", "n3"]


def test_invalid_node_name_stops_the_drain(site: Site) -> None:
    names = {"n1": EVERY_NODE, "n2": "n2\n"}
    inventory = json.loads((site.folder / "hosts.yml").read_text())
    for host, name in names.items():
        site.hosts[host].answers(**{**GOOD, "setup": [DRAIN, DONE]})
        inventory["gpu"]["hosts"][host]["gpunode_kubectl_node"] = name
    (site.folder / "hosts.yml").write_text(json.dumps(inventory))
    hooks = {"gpunode_drain_tasks": "kubectl_drain.yml", "gpunode_kubectl": ["false"]}
    done = site.play("gpunode.node.site", "--limit", "n1,n2", **AT_ONCE, **hooks)
    assert failed(done, "is no name of a Node") == [*names], done.stdout + done.stderr
    assert [site.hosts[host].verbs for host in names] == [["setup"]] * len(names)


def test_drain_and_reboot_need_consent(site: Site) -> None:
    site.hosts["n1"].answers(**{**GOOD, "setup": [DRAIN]})
    site.hosts["n2"].answers(**{**GOOD, "setup": [REBOOT]})
    done = site.play("gpunode.node.site", "--limit", "n1,n2", **AT_ONCE)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert [word in said for word in ("drain required", "reboot required")] == [True, True], said
    assert [word in said for word in ("gpunode_drain_tasks", "gpunode_reboot")] == [True, True], said
    assert [site.hosts[host].verbs for host in ("n1", "n2")] == [["setup"]] * 2


@pytest.mark.long
def test_check_mode_previews_with_the_copied_program_and_removes_it(site: Site) -> None:
    node, copied = site.hosts["n1"], site.folder / "bin" / "gpunode"
    copied.parent.mkdir()
    real = site.folder / "real"
    real.write_text(f'#!/bin/sh\nexec {node.path} "$@"\n')
    real.chmod(0o755)
    node.answers(plan=[answer("plan", changed=True, result={"blocked": []})])
    done = site.play("gpunode.node.site", "--check", "--limit", "n1", gpunode_file=str(real), gpunode_path=str(copied))
    assert done.returncode == 0, done.stdout + done.stderr
    assert node.verbs == ["plan"]
    assert list(copied.parent.iterdir()) == []


@pytest.mark.long
def test_recipe_file_of_the_controller_keeps_its_name(site: Site) -> None:
    node, recipe = site.hosts["n1"], site.folder / "inference.toml"
    recipe.write_text("schema = 1\n")
    node.answers(plan=[answer("plan", result={"blocked": []})])
    done = site.play("gpunode.node.site", "--check", "--limit", "n1", gpunode_recipe_file=str(recipe))
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(node.calls[0][1]).name == "inference.toml"


@pytest.mark.long
def test_upgrade_downloads_everywhere_before_it_runs_in_batches(site: Site) -> None:
    for one in site.hosts.values():
        one.answers(**{**GOOD, "setup": [FETCHED, DONE]})
    done = site.play("gpunode.node.upgrade")
    assert done.returncode == 0, done.stdout + done.stderr
    for one in site.hosts.values():
        assert one.verbs == ["setup", "setup", "doctor"]
        assert ["--download-only" in call for call in one.calls] == [True, False, False]
        assert all("--upgrade" in call for call in one.calls[:2])


def test_batch_over_the_error_budget_is_rolled_back(site: Site) -> None:
    lock = site.folder / "fleet.lock"
    lock.write_text("schema = 1\n")
    for name, one in site.hosts.items():
        one.answers(**{**GOOD, "setup": [FETCHED, BROKEN if name == "n3" else DONE]})
    done = site.play("gpunode.node.upgrade", gpunode_serial=[1, 2, 1], gpunode_lock_file=str(lock), **site.hooks())
    assert done.returncode != 0
    assert "the driver does not answer" in done.stdout + done.stderr
    assert [one.verbs[2:] for one in site.hosts.values()] == [
        ["doctor"],
        ["doctor", "rollback", "doctor"],
        ["rollback", "doctor"],
        [],
    ]
    assert site.hosts["n3"].calls[2][:3] == ["rollback", "0003", "--packages"]
    assert not any("--upgrade" in call for call in site.hosts["n1"].calls), "a lock says which versions"
    assert sorted(site.log) == ["drain n2", "drain n3", "uncordon n2", "uncordon n3"], "drained for the rollback"


@pytest.mark.long
def test_node_lost_before_its_diagnosis_stays_drained(site: Site) -> None:
    node = site.hosts["n1"]
    node.answers(**{**GOOD, "setup": [FETCHED, DRAIN, DONE]})
    calls = f"lookup('ansible.builtin.pipe', 'cat {node.path.with_name('calls')} || true')"
    connection = f"{{{{ 'ssh' if {calls} | regex_findall('.setup.,') | length > 2 else 'local' }}}}"
    lost = {"ansible_connection": connection, "ansible_host": "127.0.0.1", "ansible_port": 1}
    done = site.play("gpunode.node.upgrade", "--limit", "n1", **site.hooks(), **lost)
    assert done.returncode != 0, done.stdout
    assert node.verbs == ["setup"] * 3
    assert site.log == ["drain n1"]


@pytest.mark.long
def test_run_and_drain_of_an_earlier_play_are_not_reused(site: Site) -> None:
    node = site.hosts["n1"]
    last = answer("setup", VerifyFailed("it does not work"), changed=True, result={"run": "0009"})
    node.answers(**{**GOOD, "setup": [DRAIN, DONE, FETCHED, last]})
    done = site.play("gpunode.node.site", "gpunode.node.upgrade", "--limit", "n1", **site.hooks())
    assert done.returncode != 0
    assert [call[1] for call in node.calls if call[0] == "rollback"] == ["0009"]
    assert site.log == ["drain n1", "uncordon n1"] * 2


@pytest.mark.long
def test_failed_node_within_the_error_budget_is_rolled_back_alone(site: Site) -> None:
    site.hosts["n2"].answers(**{**GOOD, "setup": [FETCHED, BROKEN]})
    done = site.play("gpunode.node.upgrade", gpunode_serial=4, gpunode_max_fail_percentage=25)
    assert done.returncode != 0, "a node failed"
    assert [("rollback" in one.verbs) for one in site.hosts.values()] == [False, True, False, False]


@pytest.mark.long
def test_doctor_fetches_all_captures_and_diagnoses_them_together(site: Site) -> None:
    for one in site.hosts.values():
        one.answers(doctor=[HEALTHY], capture=[answer("capture")])
    controller = stand_in(site.folder / "controller")
    fleet = {"reports": [], "causes": [{"cause": "nouveau-bound", "title": "nouveau owns the GPU", "reports": ["n1"]}]}
    controller.answers(doctor=[answer("doctor", exit_code=8, result=fleet)])
    done = site.play(
        "gpunode.node.doctor", gpunode_controller=str(controller.path), gpunode_page=str(site.folder / "p")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    captures = site.folder / "captures"
    assert sorted(file.name for file in captures.iterdir()) == [f"n{number}.tar.gz" for number in range(1, 5)]
    assert controller.calls == [["doctor", str(captures), "--json", f"--html={site.folder / 'p'}"]]
    assert json.loads((site.folder / "fleet.json").read_text())["result"] == fleet
    assert "1 x nouveau-bound: nouveau owns the GPU: n1" in done.stdout
    assert done.stdout.count("changed=0") == 5


def test_ansible_doc_shows_every_plugin_and_the_role(ansible: Ansible, tmp_path: Path) -> None:
    modules = [f"gpunode.node.{file.stem}" for file in sorted((COLLECTION / "plugins" / "modules").glob("*.py"))]
    for kind, names in (("module", modules), ("callback", ["gpunode.node.fleet"]), ("role", ["gpunode.node.node"])):
        shown = ansible.run("ansible-doc", "--json", "-t", kind, *names, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert set(json.loads(shown.stdout)) == set(names)


@pytest.mark.long
def test_ansible_lint_passes(newest: Ansible) -> None:
    place = newest.collections / "ansible_collections" / "gpunode" / "node"
    linted = newest.run("ansible-lint", cwd=place)
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_collection_has_the_version_and_license_of_gpunode() -> None:
    from gpunode import __version__

    assert f"\nversion: {__version__}\n" in (COLLECTION / "galaxy.yml").read_text()
    assert (COLLECTION / "LICENSE").read_text() == (COLLECTION.parents[1] / "LICENSE").read_text()
