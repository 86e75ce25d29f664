"""The laws of systems with their own way of administration: no printed command is missing there."""

from __future__ import annotations

import re

import pytest

from gpunode.diagnoses import diagnose, rules_by_cause, special_systems
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.facts import pasted

# The os-release of each.
OTHERS = {
    "talos": 'NAME="Talos"\nID=talos\nVERSION_ID=v1.9.1\n',
    "bottlerocket": "NAME=Bottlerocket\nID=bottlerocket\nVARIANT_ID=aws-k8s-1.31-nvidia\nVERSION_ID=1.26.1\n",
    "cos": 'NAME="Container-Optimized OS"\nID=cos\nVERSION_ID=113\n',
    "flatcar": "ID=flatcar\nID_LIKE=coreos\nVERSION_ID=3975.2.1\n",
    "rhcos": 'ID="rhcos"\nID_LIKE="rhel fedora"\nVERSION_ID="4.17"\nVARIANT_ID=coreos\n',
    "nixos": 'ID=nixos\nVERSION_ID="24.11"\n',
    "gentoo": "ID=gentoo\n",
    "alpine": "ID=alpine\nVERSION_ID=3.20.3\n",
    "azurelinux": 'ID=azurelinux\nVERSION_ID="3.0"\n',
    "sl-micro": 'ID="sl-micro"\nID_LIKE="suse"\nVERSION_ID="6.0"\n',
    "silverblue": "ID=fedora\nVERSION_ID=42\nOSTREE_VERSION=42.20250501.0\nVARIANT_ID=silverblue\n",
    "void": 'ID="void"\nPRETTY_NAME="Void Linux"\n',
}
OF_DISTRIBUTIONS = re.compile(
    r"\b(?:apt|apt-get|apt-mark|apt-key|dpkg|ubuntu-drivers|update-grub|update-initramfs|dnf|yum(?!\.repos)|grubby|akmods|zypper|pacman"
    r"|mkinitcpio|gpunode setup)\b"
)
WRITES = re.compile(r"\bsudo tee\b|\bsed -i|\bgpunode\b")
OF_CLUSTER = re.compile(r"\b(?:kubectl|oc|helm|talosctl)\b")
BEFORE_DNF = {
    "amzn2": 'ID="amzn"\nID_LIKE="centos rhel fedora"\nVERSION_ID="2"\n',
    "centos7": 'ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"\n',
}


def node(release: str) -> Snapshot:
    return take_snapshot(pasted.collect_pieces([("/etc/os-release", release)]))


def fixes(release: str) -> list[tuple[str, Fix]]:
    """Return the remedies of every cause on such a node."""
    found = node(release)
    return [
        (cause, fix)
        for cause, rule in rules_by_cause().items()
        for fix in special_systems.fit_fixes(found, rule.remedy(found))
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_command_of_another_system_is_not_printed(name: str) -> None:
    printed = [(cause, one) for cause, fix in fixes(OTHERS[name]) for one in fix.commands]
    assert [row for row in printed if OF_DISTRIBUTIONS.search(row[1])] == []


@pytest.mark.parametrize("name", ["nixos", "rhcos"])
def test_file_owned_by_the_system_is_not_written(name: str) -> None:
    assert [(cause, one) for cause, fix in fixes(OTHERS[name]) for one in fix.commands if WRITES.search(one)] == []


@pytest.mark.parametrize("name", ["talos", "bottlerocket"])
def test_system_without_logins_gets_only_cluster_commands(name: str) -> None:
    printed = [one for _, fix in fixes(OTHERS[name]) for one in fix.commands]
    assert [one for one in printed if not OF_CLUSTER.search(one) or "sudo" in one] == []


@pytest.mark.parametrize("name", OTHERS)
def test_every_cause_has_a_remedy_text(name: str) -> None:
    told = {cause for cause, fix in fixes(OTHERS[name]) if fix.text}
    assert told == {cause for cause, rule in rules_by_cause().items() if tuple(rule.remedy(node(OTHERS[name])))}


@pytest.mark.parametrize("name", BEFORE_DNF)
def test_old_systems_get_yum_commands(name: str) -> None:
    printed = [one for _, fix in fixes(BEFORE_DNF[name]) for one in fix.commands]
    assert [one for one in printed if re.search(r"(?<![\w/-])dnf\b|--allowerasing|kernel-core", one)] == []


@pytest.mark.parametrize(("name", "way"), [
    ("talos", "nvidia-open-gpu-kernel-modules"), ("flatcar", "sysext"), ("nixos", "hardware.nvidia.open"),
    ("rhcos", "GPU Operator"), ("bottlerocket", "-nvidia"), ("cos", "cos-extensions"), ("gentoo", "emerge"),
])  # fmt: skip
def test_driver_is_installed_the_way_of_the_system(name: str, way: str) -> None:
    bus = "3b:00.0 3D controller [0302]: NVIDIA Corporation TU104GL [Tesla T4] [10de:1eb8] (rev a1)"
    found = diagnose(take_snapshot(pasted.collect_pieces([
        ("cat /etc/os-release", OTHERS[name]), ("lspci -nn | grep -i nvidia", bus), ("lsmod | grep nvidia", ""),
        ("nvidia-smi", "bash: nvidia-smi: command not found"),
    ])))  # fmt: skip
    assert [one.cause for one in found.roots] == ["driver-not-installed"]
    first = found.findings[0].remedy[0]
    assert way in first.text
    assert first.commands == ()


def test_look_at_commands_fit_the_system() -> None:
    look = (Shell("dpkg -l nvidia-container-toolkit"), Shell("which docker"))
    assert special_systems.keep_available_commands(node(OTHERS["flatcar"]), look) == look[1:]
    assert special_systems.keep_available_commands(node("ID=ubuntu\n"), look) == look


def test_renamed_distribution_is_recognized_by_its_package_manager() -> None:
    rows = [("/etc/os-release", "ID=openEuler\n"), ("dnf list installed", "")]
    assert special_systems.special_system(take_snapshot(pasted.collect_pieces(rows))) is None
