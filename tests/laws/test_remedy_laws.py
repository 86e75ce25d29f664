"""The laws of remedies: a command that doctor prints means what gpunode intends, whoever wrote the evidence."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.core import TyperGroup

from gpunode.catalog import branches
from gpunode.cli.app import app
from gpunode.cli.inputs import RecipeOptions
from gpunode.diagnoses import commands, rules_by_cause
from gpunode.diagnoses.model import DISRUPTIONS, Diagnosis, Disruption, Fix
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.runtimes import RUNTIMES
from gpunode.steps.table import STEPS
from tests.fakes.examples import sample
from tests.laws.systems import SYSTEMS, VGPU
from tests.scenarios.reports import diagnosed_reports, diagnosis

Rows = tuple[tuple[str, str], ...]

MARK = "Pw9"
# Text appended to a word of the evidence: to the shell, each would make it several words or a different one.
HOSTILE = (
    *(f";{MARK}", f"$({MARK})", f"`{MARK}`", f"${{IFS}}{MARK}", f"|{MARK}", f"&&{MARK}", f">{MARK}", f"'{MARK}"),
    *(f'"{MARK}', f" {MARK}", f"\n{MARK}", f"*{MARK}", f"?{MARK}", f"/../../{MARK}", f"/..{MARK}", f"\\{MARK}"),
    *(f"\x1b[2J{MARK}", f"#{MARK}", f"{{a,{MARK}}}", f"\u202e{MARK}", f"~{MARK}", f"!{MARK}", f"%s{MARK}"),
)
QUOTED = re.compile(r"'[^']*'")
HARMLESS = re.compile(r"[\w./:=@+,~%\"-]*", re.ASCII)
# Folders below these may be removed with their content; in DKMS's tree only one version.
TREES = re.compile(r"/var/lib/dkms/nvidia[a-z0-9-]*/\d[\w.+~-]*")


def printed(found: Diagnosis) -> Iterator[str]:
    """Yield every command that the diagnosis tells a person to type."""
    for finding in found.findings:
        for fix in finding.remedy:
            yield from fix.commands
    for doubt in found.open_questions:
        yield from doubt.look_at


def of_rows(rows: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(printed(diagnosis({"source": source, "text": text} for source, text in rows)))


@cache
def fixes() -> tuple[Fix, ...]:
    """Return every fix over all scenarios, and of every cause on every kind of system."""
    found = {fix for one in diagnosed_reports() for finding in one.diagnosis.findings for fix in finding.remedy}
    return tuple(found | {fix for system in SYSTEMS for fix in fixes_on(system)})


@cache
def fixes_on(system: str) -> tuple[Fix, ...]:
    """Return every fix of every cause on a node of that system."""
    node = take_snapshot(pasted.collect_pieces(SYSTEMS[system]))
    return tuple(fix for rule in rules_by_cause().values() for fix in rule.remedy(node))


@cache
def all_printed() -> tuple[str, ...]:
    return tuple(sorted({command for fix in fixes() for command in fix.commands}))


@cache
def taken() -> tuple[tuple[Rows, str], ...]:
    """Return scenarios, each with a word that a command took from its evidence; one for each such command."""
    empty = take_snapshot({})
    fixes = (fix for rule in rules_by_cause().values() for fix in rule.remedy(empty))
    constant = {word for fix in fixes for c in fix.commands for word in _words(c)}
    found: dict[tuple[str, str], tuple[Rows, str]] = {}
    for one in diagnosed_reports():
        said = "\n".join(part for row in one.rows for part in row)
        for command in printed(one.diagnosis):
            for word in _words(command):
                if len(word) > 2 and word not in constant and word in said:
                    shape = " ".join(command.split()[:3])
                    found.setdefault((shape, re.sub(r"\d+", "0", word)), (one.rows, word))
    return tuple(found.values())


def some_taken(law: str) -> list[tuple[Rows, str]]:
    """Return a tenth of these, a different one for each ``law``; all of them in the long run of the tests."""
    return sample(taken(), law, str, len(taken()) // 10)


def _words(command: str) -> set[str]:
    """Return the words of a command, and their parts."""
    words = re.findall(r"[\w./:@+~-]+", command)
    parts = (part for word in words for part in (word, *re.split(r"[/=]", word), re.sub(r"^[a-z-]+-(?=\d)", "", word)))
    return set(parts)


def faults(command: str) -> Iterator[str]:
    """Yield the errors of a command that was printed for hostile evidence."""
    if not command.isprintable():
        yield "a character that no terminal shows"
    outside = QUOTED.sub("", command.replace("'\"'\"'", ""))
    for word in outside.split():
        if MARK in word and not HARMLESS.fullmatch(word.rstrip(";")):
            yield f"outside of quotes: {word}"
    yield from too_much(command)


def too_much(command: str) -> Iterator[str]:
    """Yield the parts of a command that remove more than they name."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    for number, word in enumerate(words):
        if word in {"rm", "unlink", "rmdir"}:
            operands = []
            for operand in words[number + 1 :]:
                if set(operand) <= set(";|&()"):
                    break
                operands.append(operand)
            yield from _removed_operands(operands)
        if word in {"remove", "purge", "-Rns", "erase", "autoremove"}:
            yield from (f"packages by a pattern: {one}" for one in words[number + 1 :] if set(one) & set("*?$`"))


def _removed_operands(operands: list[str]) -> Iterator[str]:
    whole = any(operand.startswith("-") and "r" in operand.lower() for operand in operands)
    for operand in operands:
        if operand.startswith("-") or operand == "$f":
            continue
        if set(operand) & set("*?[]{}$`") or ".." in operand.split("/") or not operand.startswith("/"):
            yield f"rm of {operand}"
        elif whole and not TREES.fullmatch(operand):
            yield f"rm -r of {operand}"


@pytest.mark.usefixtures("allow_subprocess")
def test_every_command_parses_in_bash() -> None:
    script = "".join(f"{command}\n" for command in all_printed())
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_no_command_removes_more_than_it_names() -> None:
    assert [(command, fault) for command in all_printed() for fault in too_much(command)] == []


def test_commands_take_words_from_the_evidence() -> None:
    assert len(taken()) > 30


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_evidence_words_are_quoted_for_the_shell(hostile: str) -> None:
    wrong = []
    for rows, word in some_taken(f"after {hostile}"):
        changed = tuple(
            (source.replace(word, word + hostile), text.replace(word, word + hostile)) for source, text in rows
        )
        wrong += [(word, command, fault) for command in of_rows(changed) for fault in faults(command)]
    assert wrong == []


@pytest.mark.parametrize("hostile", ["-", "--", "../", "/", "$(Pw9)", "=", "~/"])
def test_evidence_words_become_no_option_or_path(hostile: str) -> None:
    wrong = []
    for rows, word in some_taken(f"before {hostile}"):
        changed = tuple(
            (source.replace(word, hostile + word), text.replace(word, hostile + word)) for source, text in rows
        )
        wrong += [(word, command, fault) for command in of_rows(changed) for fault in faults(command)]
    assert wrong == []


MODULE = (
    ("lsmod", "Module Size Used by\next4 1 0\n"),
    (
        "modinfo nvidia",
        "filename: /lib/modules/6.1.0-18-amd64/updates/dkms/nvidia.ko\nversion: 580.65.06\nlicense: NVIDIA\n",
    ),
    ("lspci -nnk", "01:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20f1]"),
    ("uname -r", "6.1.0-18-amd64"),
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_file_name_is_one_word(hostile: str) -> None:
    for place, text in (
        (f"/etc/modprobe.d/x{hostile}.conf", "blacklist nvidia\n"),
        (f"/etc/ld.so.conf.d/x{hostile}", "/usr/local/cuda/lib64/stubs\n"),
        ("/etc/ld.so.conf.d/x.conf", f"/usr/local/cuda/stubs{hostile}\n"),
    ):
        stub = ("ldconfig -p", "libcuda.so.1 (libc6,x86-64) => /usr/local/cuda/lib64/stubs/libcuda.so.1")
        for rows in (((place, text), *MODULE), ((place, text), stub, *MODULE)):
            assert [fault for command in of_rows(rows) for fault in faults(command)] == []


@pytest.mark.parametrize("version", ["..", ".", "...", "", "*", "../../.."])
def test_invalid_version_deletes_nothing_from_the_dkms_tree(version: str) -> None:
    file = f"/var/lib/dkms/nvidia/{version}/source/dkms.conf"
    said = f"Error! Could not locate dkms.conf file.\nFile: {file} does not exist."
    assert not [one for one in of_rows((("dkms status", said), ("uname -r", "6.1.0-18-amd64"))) if " rm " in one]


def test_ld_so_conf_files_are_not_deleted() -> None:
    for place in ("/etc/ld.so.conf.d/*.conf", "/etc/ld.so.conf.d/libc.conf"):
        node = take_snapshot(pasted.collect_pieces([(place, "/usr/local/lib\n/usr/local/cuda/lib64/stubs\n")]))
        found = [one for fix in rules_by_cause()["library-path-shadows-libcuda"].remedy(node) for one in fix.commands]
        assert not [one for one in found if " rm " in one or "*" in QUOTED.sub("", one)]


@pytest.mark.usefixtures("allow_subprocess")
@settings(max_examples=50)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("\n\x85'\\é$"))))
def test_command_has_exactly_its_words(words: list[str]) -> None:
    typed = commands.command("printf", "%s\\0", *words)
    said = subprocess.run(["bash", "-c", typed], capture_output=True, check=True).stdout
    assert said.decode() == "\0".join([*words, ""] if words else ["", ""])
    assert len(typed.splitlines()) == 1


@given(st.text() | st.sampled_from(HOSTILE).map("/etc/x".__add__))
def test_plain_word_needs_no_quotes(word: str) -> None:
    for is_sound in (
        commands.is_package_name,
        commands.is_unit_name,
        commands.is_release_name,
        commands.is_plain_name,
        commands.is_gpu_id,
    ):
        if is_sound(word):
            assert shlex.quote(word).strip("'") == word
            assert not word.startswith(("-", "/", ".", "~"))
            # apt reads "name+" and "name-" as install and remove; g++ is the only exception.
            assert is_sound is not commands.is_package_name or not re.search(r"[^+]\+$|-$", word)
    if commands.is_path_below(word, "/etc"):
        assert word.isprintable()
        assert not set(word.split("/")) & {".", ".."}
        assert word == "/etc" or word.startswith("/etc/")


# Beginnings of read-only commands, and continuations that change something with their results.
LOOKS = re.compile(
    r"(?:sudo )?(?:grep|egrep|find|ls|cat|head|tail|awk|sed -n|df|du|stat|which|test|lsof|fuser|lspci|lsmod|modinfo"
    r"|dmesg|journalctl|uname|lsinitr|dkms status|rpm -q|dpkg -[lSs]|dpkg-query|apt-cache|apt-mark show|pacman -Q"
    r"|zypper (?:repos|search|info|locks)|dnf (?:repolist|list|info|versionlock list|module list)|mokutil --(?:sb|list)"
    r"|systemctl (?:status|cat|show|is-|list)|kubectl (?:-n \S+ )?(?:get|describe|logs)"
    r"|docker (?:info|ps|version|inspect)|virsh (?:list|dump)"
    r"|nvidia-smi(?: -[Lq]| -i \S+ -q| topo| nvlink| mig.* -lgip?|$)|nvidia-bug-report|dcgmi)\b"
)
ACTS_ON = re.compile(
    r"xargs .*sudo|while read .*(?:delete|restart|patch|set)|(?:\|\||&&|;|\|) sudo (?:rm|tee|sed|dkms)"
)


def only_looks(command: str) -> bool:
    return bool(LOOKS.match(command)) and not ACTS_ON.search(command)


def test_fix_that_only_inspects_is_of_that_kind() -> None:
    looking = [(fix.kind, fix.text, fix.commands[0]) for fix in fixes() if fix.commands and only_looks(fix.commands[0])]
    # A person decides about a drain; its command shows the running workloads.
    assert {one for one in looking if one[0] not in {"inspect", "drain"}} == set()
    assert len(looking) > 20


# ---- effects of gpunode's own commands and the system's


GPUNODE = re.compile(r"(?:^|[;|&] *|sudo )gpunode (?P<words>[^|;&]*)")


def own_commands() -> tuple[str, ...]:
    return tuple(sorted({match["words"] for one in all_printed() for match in GPUNODE.finditer(one)}))


def test_own_commands_parse_and_fit_their_recipe() -> None:
    for words in own_commands():
        _assert_fits_its_recipe(words)


def _assert_fits_its_recipe(words: str) -> None:
    args = shlex.split(words)
    at: Any = typer.main.get_command(app)
    context = at.make_context("gpunode", args)
    while isinstance(at, TyperGroup) and (left := [*context._protected_args, *context.args]):
        name, found, rest = at.resolve_command(context, left)
        assert found is not None
        at, context = found, found.make_context(name, rest, parent=context)
    assert at.name in {"setup", "configure", "config"}
    if at.name == "setup":
        given = context.params
        assert set(given["only"]) <= {step.id for step in STEPS}
        recipe = RecipeOptions(given["recipe"], given["runtime"], given["driver"], upgrade=given["upgrade"]).load()
        of_runtimes = {"toolkit-repository", "toolkit", "runtime-install", "runtime-config", "cdi"}
        assert recipe.runtime.name != "none" or not of_runtimes & set(given["only"])
        # With the driver step alone, its repository and headers would be missing, and an installed driver would stay.
        assert "driver" not in given["only"]
        if given["driver"]:
            branch = branches.find(int(given["driver"]))
            assert branch is not None
            assert branch.is_maintained
    elif at.name == "configure":
        assert {context.params["runtime"]} <= {row.id for row in RUNTIMES}


def test_remedies_contain_own_commands() -> None:
    assert len(own_commands()) > 10


MANAGERS = {
    "apt": re.compile(r"\b(?:apt|apt-get|apt-mark|apt-key|apt-cache|dpkg|update-grub|update-initramfs)\b"),
    "dnf": re.compile(r"\b(?:dnf|yum|grubby|akmods)\b"),
    "zypper": re.compile(r"\b(?:zypper)\b"),
    "pacman": re.compile(r"\b(?:pacman|mkinitcpio)\b"),
}
OF = {
    "ubuntu": "apt",
    "debian": "apt",
    "bullseye": "apt",
    "rocky": "dnf",
    "fedora": "dnf",
    "amzn": "dnf",
    "sles": "zypper",
    "arch": "pacman",
}
# Causes that occur with one package manager only.
BOUND = {
    "dpkg-unconfigured-packages": {"apt"},
    "apt-signed-by-conflict": {"apt"},
    "apt-nvidia-key-sha1": {"apt"},
    "apt-nvidia-key-rotated": {"apt", "dnf", "zypper"},
    "apt-toolkit-key-missing": {"apt", "dnf", "zypper"},
}


@pytest.mark.parametrize("system", OF)
def test_commands_use_the_package_manager_of_the_system(system: str) -> None:
    node = take_snapshot(pasted.collect_pieces(SYSTEMS[system]))
    wrong = []
    there = [rule for cause, rule in rules_by_cause().items() if OF[system] in BOUND.get(cause, {OF[system]})]
    for rule in there:
        for command in (command for fix in rule.remedy(node) for command in fix.commands):
            foreign = [one for name, one in MANAGERS.items() if name != OF[system] and one.search(command)]
            if foreign or ("gpunode setup" in command and system not in {"ubuntu", "debian"}):
                wrong.append((rule.cause, command))
    assert wrong == []


def test_power_cycle_is_not_replaced_by_a_reboot() -> None:
    wrong = [fix for fix in fixes() if re.search(r"\bpower(?:-cycle| .{0,20}off)", fix.text) and fix.commands]
    assert wrong == []


def test_drain_comes_before_reset_or_reboot() -> None:
    for system in SYSTEMS:
        node = take_snapshot(pasted.collect_pieces(SYSTEMS[system]))
        for cause, rule in rules_by_cause().items():
            kinds = [fix.kind for fix in rule.remedy(node)]
            if "drain" in kinds:
                first = [kinds.index(kind) for kind in ("reset", "reboot") if kind in kinds]
                assert not first or kinds.index("drain") < min(first), cause


# The least disruption of each command.
DISTURBS: tuple[tuple[re.Pattern[str], Disruption], ...] = (
    (re.compile(r"systemctl reboot"), "reboot"),
    (re.compile(r"--gpu-reset"), "reset-gpu"),
    (re.compile(r"sudo systemctl (?:restart|stop|try-restart)|snap remove|--restart\b"), "restart-service"),
    (re.compile(r"sudo (?:apt-get purge|dnf remove [^-]|zypper remove|pacman -Rns)"), "restart-service"),
    (re.compile(r"modprobe -r|rmmod|kubectl (?:drain|.* delete)|minikube delete"), "restart-container"),
)


@pytest.mark.parametrize("system", SYSTEMS)
def test_declared_disruption_covers_the_commands(system: str) -> None:
    node = take_snapshot(pasted.collect_pieces(SYSTEMS[system]))
    wrong = []
    for cause, rule in rules_by_cause().items():
        always = [command for fix in rule.remedy(node) if not fix.when for command in fix.commands]
        least = [DISRUPTIONS.index(need) for one in always for pattern, need in DISTURBS if pattern.search(one)]
        if least and DISRUPTIONS.index(rule.disruption) < max(least):
            wrong.append((cause, rule.disruption, DISRUPTIONS[max(least)]))
    assert wrong == []


# One line for every file that a remedy edits.
EDITED = """\
GRUB_CMDLINE_LINUX="crashkernel=1G vfio-pci.ids=10de:1b80,10de:10f0"
GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=on pcie_aspm=force nvidia.NVreg_EnableGpuFirmware=0 modprobe.blacklist=nvidia"
options vfio-pci ids=10de:1b80,8086:1234
options nvidia NVreg_DeviceFileMode=666 NVreg_EnableGpuFirmware=0
blacklist nvidia
blacklist nouveau
[base]
[cuda-rhel9-x86_64]
deb https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/ /
deb https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/amd64 /
/usr/local/cuda/lib64/stubs
/usr/local/cuda/compat
kernel-open
"""
SED = re.compile(r"sudo sed -i\.bak (?:-E )?(?P<expression>'[^']*'|\S+)")


@pytest.mark.usefixtures("allow_subprocess")
def test_sed_edits_are_idempotent() -> None:
    expressions = {shlex.split(match["expression"])[0] for one in all_printed() for match in SED.finditer(one)}
    for expression in expressions:
        once = _apply_sed(EDITED, expression)
        assert _apply_sed(once, expression) == once, expression
    assert len(expressions) > 8


def _apply_sed(text: str, expression: str) -> str:
    done = subprocess.run(["sed", "-E", expression], input=text, text=True, capture_output=True, check=True)
    return done.stdout


def test_missing_program_removes_nothing() -> None:
    removing = [one for one in all_printed() if re.search(r"\|\| sudo rm\b", one)]
    asked = {
        (one, match["program"]) for one in removing for match in re.finditer(r"\|\| (?P<program>dpkg|rpm|pacman) ", one)
    }
    assert [one for one, program in asked if f"! command -v {program} ||" not in one] == []
    assert asked


DATA_CENTER_DRIVER = re.compile(
    r"gpunode setup|\b(?:nvidia-(?:driver|open|dkms|utils|kernel|headless)|libnvidia-compute|cuda-drivers|akmod-nvidia)"
    r"\S*|ubuntu-drivers|nvidia-installer"
)


@pytest.mark.parametrize("system", SYSTEMS)
def test_vgpu_guest_gets_no_data_center_driver(system: str) -> None:
    node = take_snapshot(pasted.collect_pieces((*SYSTEMS[system], *VGPU)))
    commands_of = (
        (rule.cause, one) for rule in rules_by_cause().values() for fix in rule.remedy(node) for one in fix.commands
    )
    assert [(cause, one) for cause, one in commands_of if DATA_CENTER_DRIVER.search(one)] == []


# Each removes something, or stops something that may be in use. An unknown GPU is called ADDRESS, which is refused;
# the kernel refuses to unload a module that is in use; gpunode names what it removes, and asks.
TAKES_AWAY = re.compile(
    r"\b(?:disable|mask|purge|autoremove|nvidia-uninstall|poweroff|apt-key del|snap remove|setenforce|virsh|swapoff"
    r"|(?:apt-get|dnf|zypper|module) (?:-y )?(?:remove|reset)|pacman -R|rpm -e|minikube delete|kubectl (?:delete|drain)"
    r"|--gpu-reset|-mig 0|-dci|-dgi)\b|(?<!-)\brm\b"
)
GUARDED = re.compile(r"--id=ADDRESS|-i ADDRESS|\[ ! -x |command -v|xargs -r")
CHECKS = re.compile(r"\b(?:make sure|first check|save)\b")


@pytest.mark.parametrize("system", [*SYSTEMS, ""])
def test_fix_that_takes_away_comes_behind_its_check(system: str) -> None:
    node = take_snapshot(pasted.collect_pieces(SYSTEMS[system]) if system else {})
    bare = []
    for rule in rules_by_cause().values():
        is_checked = False
        for fix in rule.remedy(node):
            takes = any(TAKES_AWAY.search(one) and not GUARDED.search(one) for one in fix.commands)
            if (takes or "power the node off" in fix.text) and fix.kind != "inspect" and not (is_checked or fix.when):
                bare.append((rule.cause, fix.text, fix.commands))
            is_checked = is_checked or fix.kind in {"inspect", "drain", "reboot"} or bool(CHECKS.search(fix.text))
    assert bare == []
