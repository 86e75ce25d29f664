"""The laws of malicious reports: no printed command removes, writes or trusts what the author chose."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import gpunode
from gpunode.cli.doctor import diagnosis_lines
from gpunode.diagnoses import diagnose
from gpunode.diagnoses.commands import Command
from gpunode.diagnoses.model import DISRUPTIONS, Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views.packages import is_driver_package
from gpunode.facts import pasted
from gpunode.page.markup import PageOrigin
from gpunode.page.report import node_page
from gpunode.workflow.doctor import diagnose_evidence
from tests.laws.test_remedy_laws import HOSTILE, MARK, Rows, all_printed, faults, of_rows, printed, some_taken

UBUNTU = ("/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\n')
ROCKY = ("/etc/os-release", "ID=rocky\nVERSION_ID=9\n")
ARCH = ("/etc/os-release", "ID=arch\n")


def diagnose_rows(rows: Iterable[tuple[str, str]]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(tuple(rows))))


# ---- what a command is made of


def test_shell_literals_are_constant_and_commands_made_in_one_file() -> None:
    """mypy lets no bare string be printed as a command; this is the rest of the proof."""
    package = Path(gpunode.__file__).parent
    wrong = []
    for file in (package / "diagnoses").rglob("*.py"):
        if file.name == "commands.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"Shell", "Command"}:
                literal = len(node.args) == 1 and all(map(_is_literal, node.args))
                if node.func.id == "Command" or not literal:
                    wrong.append(f"{file.relative_to(package)}:{node.lineno}")
    assert wrong == []


def _is_literal(node: ast.expr) -> bool:
    """True for a literal string, or one built only from constants of this program (``{_NAME}``)."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return all(isinstance(part, ast.Name) and part.id.isupper() for part in parts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_printed_command_is_a_command_object() -> None:
    assert [command for command in all_printed() if not isinstance(command, Command)] == []


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_look_at_commands_are_quoted(hostile: str) -> None:
    rows = (
        ("docker ps", "CONTAINER ID   IMAGE     COMMAND   CREATED   STATUS    PORTS     NAMES"),
        (f"/etc/docker/x{hostile}/daemon.json", '{ "runtimes": { "nvidia":\n'),
        ("systemctl is-active docker", "active"),
    )
    commands = [one for doubt in diagnose_rows(rows).open_questions for one in doubt.look_at]
    assert [fault for command in commands for fault in faults(command)] == []


def test_file_name_from_a_report_is_in_no_command() -> None:
    path = "/etc/docker/$(id)/daemon.json"
    log = f"dockerd[1]: unable to configure the Docker daemon with file {path}: unexpected EOF"
    (invalid,) = diagnose_rows(((path, '{ "runtimes": { "nvidia":\n'), ("journalctl -u docker", log))).findings
    assert not [command for fix in invalid.remedy for command in fix.commands if "$(id)" in command]


# ---- what is removed

REMOVES = re.compile(r"sudo (?:apt-get purge|dnf remove|yum remove|zypper remove|pacman -Rns) ")
OURS = frozenset({"bumblebee", "bbswitch-dkms", "--oldinstallonly"})
OTHERS = ("openssh-server", "sudo", "libc6", "systemd", "linux-firmware", "mesa-libGL", "glibc", "containerd.io")


def removed_packages(commands: Iterable[str]) -> Iterator[str]:
    for command in commands:
        if match := REMOVES.match(command):
            yield from shlex.split(command[match.end() :])


def test_only_driver_packages_are_removed() -> None:
    operands = set(removed_packages(all_printed()))
    assert {one for one in operands if not is_driver_package(one)} <= OURS
    assert len(operands) > 10


@pytest.mark.parametrize("other", OTHERS)
def test_no_report_can_have_another_package_removed(other: str) -> None:
    for rows, word in some_taken(f"instead, {other}"):
        if is_driver_package(word):
            changed = tuple((source.replace(word, other), text.replace(word, other)) for source, text in rows)
            assert {one for one in removed_packages(of_rows(changed)) if not is_driver_package(one)} <= OURS, (
                word,
                changed,
            )


CONFLICT = (
    "Error: Transaction test error:\n  file /usr/lib64/libnvidia-ml.so.1 from install of "
    "nvidia-driver-libs-3:550.54.15-1.x86_64 conflicts with file from package {}\n"
)
OWNED = (
    "error: failed to commit transaction (conflicting files)\n"
    "nvidia-utils: /usr/lib/libnvidia-ml.so exists in filesystem (owned by {})\n"
)
OVERWRITE = (
    "dpkg: error processing archive /var/cache/apt/archives/libnvidia-compute-550_550.54.15-0ubuntu1_amd64.deb "
    "(--unpack):\n trying to overwrite '/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1', which is also in package {} 1.0\n"
)
OVERWRITES = {
    "dnf": (ROCKY, ("dnf install cuda-drivers", CONFLICT)),
    "pacman": (ARCH, ("pacman -S nvidia-utils", OWNED)),
    "apt": (UBUNTU, ("apt-get install nvidia-driver-550", OVERWRITE)),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("manager", OVERWRITES)
def test_package_that_owns_the_file_stays_unless_a_driver(manager: str, other: str) -> None:
    system, (source, text) = OVERWRITES[manager]
    said = diagnose_rows((system, (source, text.format(other))))
    assert said.findings
    assert list(removed_packages(printed(said))) == []


@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_driver_that_owns_the_file_is_removed_and_the_cost_told(manager: str) -> None:
    system, (source, text) = OVERWRITES[manager]
    said = diagnose_rows((system, (source, text.format("libnvidia-compute-535"))))
    assert "libnvidia-compute-535" in set(removed_packages(printed(said)))
    assert DISRUPTIONS.index(said.findings[0].disruption) >= DISRUPTIONS.index("restart-service")


# ---- what is written, moved and trusted

WRITES = re.compile(r"sudo (?:mv|mkdir|tee|cp|install|sed -i\S*|mokutil|nvidia-ctk|rm)\b|--config-file|--output")
ELSEWHERE = ("/tmp/.x", "/home/bob", "/etc/cron.d", "/etc/passwd", "/srv")


@pytest.mark.parametrize("place", ELSEWHERE)
def test_no_command_writes_to_a_path_from_a_report(place: str) -> None:
    wrong = []
    for rows, word in (*some_taken(place), *_of_places()):
        if word.startswith("/"):
            to = f"{place}/{Path(word).name}"
            changed = tuple((source.replace(word, to), text.replace(word, to)) for source, text in rows)
            wrong += [one for one in of_rows(changed) if place in one and WRITES.search(one)]
    assert wrong == []


def _of_places() -> Iterator[tuple[Rows, str]]:
    said = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    refused = ("dmesg", f"Loading of module with unavailable key is rejected\n{said}")
    framework = ("cat /etc/dkms/framework.conf", 'mok_certificate="/var/lib/dkms/mok.pub"')
    signed = ("modinfo nvidia", "filename: /lib/modules/6.1.0-18-amd64/updates/dkms/nvidia.ko\nsigner: DKMS key\n")
    yield (UBUNTU, refused, framework, signed), "/var/lib/dkms/mok.pub"
    yield (("/etc/docker/daemon.json", '{ "runtimes": { "nvidia":\n'),), "/etc/docker/daemon.json"


def test_key_is_inspected_before_it_is_enrolled() -> None:
    (rows, certificate), _ = _of_places()
    commands = of_rows(rows)
    imports = commands.index(f"sudo mokutil --import {certificate}")
    assert f"sudo mokutil --test-key {certificate}" in commands[:imports]
    assert any("-fingerprint" in command for command in commands[:imports])


# ---- what looks like a command


def test_backticks_in_a_report_are_no_command() -> None:
    wrong = []
    for rows, word in some_taken("backticks"):
        hostile = f"{word}`{MARK}|sh`"
        changed = tuple((source.replace(word, hostile), text.replace(word, hostile)) for source, text in rows)
        examined = diagnose_evidence(pasted.collect_pieces(changed))
        typed = set(printed(examined.diagnosis))
        spans = (span for line in diagnosis_lines(examined, verbose=True) for span in line.spans)
        wrong += [
            span.text for span in spans if span.style == "command" and MARK in span.text and span.text not in typed
        ]
        codes = re.findall(rf"<p\b[^>]*>[^<]*<code>[^<]*{MARK}", node_page(examined, PageOrigin("x", "x", "x", "1")))
        wrong += codes
    assert wrong == []
