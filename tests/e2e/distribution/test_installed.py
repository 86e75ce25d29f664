"""A release on bare Debian systems: no pip, no network, nothing left after a purge."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpunode.workflow.setup import resume_unit
from tests.e2e.distribution.conftest import MakeSystem
from tests.e2e.distribution.roots import System

pytestmark = pytest.mark.e2e

SAMPLE = "debian12-gtx1080"
SUITES = ("bookworm", *(pytest.param(suite, marks=pytest.mark.long) for suite in ("trixie", "sid")))
# Typed in an interactive bash, whose bash-completion loads a package's file by command name.
_BASH = """
. /usr/share/bash-completion/bash_completion
_completion_loader gpunode 2>/dev/null || __load_completion gpunode
COMP_WORDS=(gpunode roll); COMP_CWORD=1; COMP_LINE='gpunode roll'; COMP_POINT=12
_gpunode_completion gpunode
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh reads keys only from a terminal; its own zpty provides one.
_ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; autoload -Uz compinit; compinit -u -D; echo ready-''now"
zpty -r -m shell out '*ready-now*'
zpty -w -n shell $'gpunode roll\\t'
zpty -r -m shell out '*gpunode rollback*'
print -r -- "$out"
zpty -d shell
"""


def deb(release: Path) -> Path:
    return next(release.glob("*.deb"))


def install_deb(system: System, release: Path) -> None:
    system.put(deb(release), "/tmp/gpunode.deb")
    system.run("dpkg", "-i", "/tmp/gpunode.deb")
    (system.root / "tmp/gpunode.deb").unlink()


def works(system: System, user: str = "root") -> None:
    plan = json.loads(system.run("gpunode", "plan", "--node", SAMPLE, "--json", user=user))
    assert plan["status"] == "ok"
    assert plan["changes"]
    assert "containerd" in system.run("gpunode", "recipe", "list", user=user)
    # The sources of this machine: its programs and gpunode's own children answer even without a driver.
    status = json.loads(system.run("gpunode", "status", "--json", user=user))
    assert status["command"] == "status"


def list_unverified(system: System, *argv: str) -> list[str]:
    """Return the differing files that a package manager reports; the lab's systems unpack no documentation."""
    lines = system.finish(*argv).stdout.splitlines()
    return [line for line in lines if not ("missing" in line and ("/share/doc/" in line or "/share/man/" in line))]


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
def test_zipapp_runs_on_a_bare_system(suite: str, release: Path, make_system: MakeSystem) -> None:
    with make_system(suite) as system:
        system.put(release / "gpunode.pyz", "/usr/local/bin/gpunode", 0o755)
        system.put(release / "SHA256SUMS", "/tmp/SHA256SUMS")
        version, origin = system.run("gpunode", "--version").splitlines()
        assert version.startswith("gpunode ")
        assert origin == "installed as a zipapp: /usr/local/bin/gpunode"
        assert not (system.root / "var/cache/gpunode").exists()
        works(system)
        works(system, "nobody")
        system.put(release / "gpunode.pyz", "/tmp/gpunode.pyz")
        checked = system.run("sh", "-c", "cd /tmp && sha256sum --check --ignore-missing SHA256SUMS")
        assert checked == "gpunode.pyz: OK\n"


def test_zipapp_runs_nothing_that_other_users_can_write(release: Path, make_system: MakeSystem) -> None:
    with make_system("bookworm") as system:
        system.put(release / "gpunode.pyz", "/usr/local/bin/gpunode", 0o755)
        system.run("gpunode", "--help")
        (unpacked,) = (system.root / "var/cache/gpunode").iterdir()
        (unpacked / "gpunode/__main__.py").write_text("raise SystemExit('obeyed')")
        (system.root / "var/cache/gpunode").chmod(0o777)
        assert "obeyed" not in system.finish("gpunode", "--help").stderr
        # Nor modules in a home folder that sudo kept.
        home = {"HOME": "/home/other", "XDG_CACHE_HOME": "/home/other/cache"}
        system.run("gpunode", "--help", env=home)
        assert not (system.root / "home/other").exists()


def test_damaged_zipapp_is_reported(release: Path, make_system: MakeSystem) -> None:
    with make_system("bookworm") as system:
        system.put(release / "gpunode.pyz", "/usr/local/bin/gpunode", 0o755)
        place = system.root / "usr/local/bin/gpunode"
        content = bytearray(place.read_bytes())
        content[len(content) // 2] ^= 1
        place.write_bytes(content)
        done = system.finish("gpunode", "--help")
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("/usr/local/bin/gpunode is damaged: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_too_old_python_is_reported_in_one_sentence(release: Path, make_system: MakeSystem) -> None:
    with make_system("bullseye") as system:
        system.put(release / "gpunode.pyz", "/usr/local/bin/gpunode", 0o755)
        done = system.finish("gpunode", "setup")
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("gpunode needs Python 3.10 or newer and this is 3.9: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_zipapp_runs_on_python_3_14(release: Path, make_system: MakeSystem) -> None:
    with make_system("sid") as system:
        system.put(release / "gpunode.pyz", "/usr/local/bin/gpunode", 0o755)
        plan = system.run("python3.14", "-I", "/usr/local/bin/gpunode", "plan", "--node", SAMPLE, "--json")
        assert json.loads(plan)["status"] == "ok"


@pytest.mark.parametrize("suite", SUITES)
def test_deb_installs_everything_and_its_purge_keeps_the_journal(
    suite: str, release: Path, make_system: MakeSystem
) -> None:
    with make_system(suite) as system:
        before = system.files()
        install_deb(system, release)
        assert "installed by the Debian package: " in system.run("gpunode", "--version")
        works(system)
        works(system, "nobody")
        assert list_unverified(system, "dpkg", "--verify", "gpunode") == []
        assert "rollback" in system.run("bash", "-c", _BASH).split()
        assert "rollback" in system.run("fish", "-c", "complete -C 'gpunode roll'")
        assert "gpunode rollback" in system.run("zsh", "-f", "-c", _ZSH, env={"TERM": "dumb"})
        assert "--allow-disruption" in system.run("man", "--pager=cat", "gpunode-setup")
        system.run("logrotate", "--debug", "/etc/logrotate.d/gpunode")
        journal = system.root / "var/lib/gpunode/runs/kept"
        journal.mkdir(parents=True)
        (system.root / "var/log/gpunode").mkdir()
        system.run("dpkg", "--purge", "gpunode")
        left = system.files() - before
        assert {path for path in left if "gpunode" in path} == {
            "/var/lib/gpunode",
            "/var/lib/gpunode/runs",
            "/var/lib/gpunode/runs/kept",
        }
        assert not before - system.files()


@pytest.mark.long
def test_removing_the_deb_removes_a_pending_resume_unit(release: Path, make_system: MakeSystem) -> None:
    with make_system("bookworm") as system:
        install_deb(system, release)
        units = system.root / "etc/systemd/system"
        (units / "multi-user.target.wants").mkdir(parents=True, exist_ok=True)
        unit = units / "gpunode-resume.service"
        (units / "multi-user.target.wants/gpunode-resume.service").symlink_to("../gpunode-resume.service")
        unit.write_bytes(resume_unit(("/usr/bin/python3", "-I", "/usr/local/bin/gpunode", "setup")))
        system.run("dpkg", "--remove", "gpunode")
        assert unit.exists()  # another gpunode's
        install_deb(system, release)
        unit.write_bytes(resume_unit(("/usr/bin/python3", "-I", "/usr/bin/gpunode", "setup")))
        install_deb(system, release)  # an upgrade leaves it
        assert unit.exists()
        system.run("dpkg", "--remove", "gpunode")
        assert not [path for path in units.rglob("gpunode*") if os.path.lexists(path)]


@pytest.mark.long
def test_rpm_installs_verifies_and_is_removed(release: Path, make_system: MakeSystem) -> None:
    """With Debian's rpm and without dependencies, since a Debian archive has no system of the Red Hat family."""
    with make_system("trixie") as system:
        before = system.files()
        system.put(next(release.glob("*.rpm")), "/tmp/gpunode.rpm")
        system.run("rpm", "--install", "--nodeps", "/tmp/gpunode.rpm")
        assert "installed by the RPM package: " in system.run("gpunode", "--version")
        works(system)
        assert list_unverified(system, "rpm", "--verify", "--nodeps", "gpunode") == []
        system.run("rpm", "--erase", "--nodeps", "gpunode")
        left = {path for path in system.files() - before if "gpunode" in path}
        assert left == {"/tmp/gpunode.rpm"}
