"""Typed words are not output of programs; a program's own line is proof, wherever it was pasted."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.sources import identify_source

SMI = (
    "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0 |\n"
    "|   0  NVIDIA L40S     On  |   00000000:07:00.0 Off |                    0 |\n"
)
XID = "[  100.000000] NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus."


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("comment", XID),
        ("ticket", "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system"),
        ("ticket", "nvmlDeviceGetHandleByIndex: GPU is lost"),
        ("user", "I see this:\n" + XID),
        ("nvidia-smi", "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost."),
        ("device plugin", "E1120 10:00:00.000000 1 health.go:1] GPU is lost: marking device as unhealthy"),
    ],
)
def test_message_of_a_program_counts_wherever_it_was_pasted(source: str, text: str) -> None:
    assert [one.cause for one in diagnose_pieces((source, text)).roots] == ["gpu-fallen-off-bus"]


@pytest.mark.parametrize(
    "sentence",
    [
        "lsmod does not show nvidia",
        "nvidia-smi hangs on this node",
        "dmesg shows this",
        "docker run fails on my machine",
        "lspci lists the card but nvidia-smi fails",
        "dkms status says installed",
        "kubectl get nodes shows no GPU",
    ],
)
def test_sentence_that_begins_with_a_program_is_no_command(sentence: str) -> None:
    found = diagnose(take_snapshot(pasted.parse_text_report(f"{sentence}\n{XID}\n")))
    assert [one.cause for one in found.roots] == ["gpu-fallen-off-bus"]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("dkms status", "dkms-status"),
        ("nvidia-smi topo -m", "nvidia-smi-topo"),
        ("lspci -nnk", "lspci"),
        ("systemctl show docker", "unit-show"),
        ("kubectl get nodes -o wide", "kubernetes-node"),
        ("docker info", "docker-info"),
    ],
)
def test_command_alone_on_the_first_line_names_what_follows(command: str, kind: str) -> None:
    (step,) = pasted.split_session("pasted text", f"{command}\nsomething\n")
    assert step.source == command
    assert identify_source(step.source).kind == kind


def test_denied_suspension_does_not_convict() -> None:
    error = "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment"
    lsmod = ("lsmod", "Module Size Used by\nnvidia_uvm 1519616 0\nnvidia 56487936 1 nvidia_uvm")
    (denied,) = diagnose_pieces(("text", f"{error}\nNot after a suspend."), lsmod).findings
    (told,) = diagnose_pieces(("text", f"{error}\nAlways after a suspend."), lsmod).findings
    assert (told.confidence, denied.confidence) == ("certain", "likely")


def test_message_of_last_month_does_not_convict() -> None:
    text = "Last month it said: unable to decode configuration /etc/crio/crio.conf.d/old. That is solved."
    assert not diagnose_pieces(("text", text)).findings


@pytest.mark.parametrize("text", ["The GPU never throttles.", "It doesn't throttle.", "We are on a 90-day trial."])
def test_denial_or_a_trial_of_something_else_makes_no_suspect(text: str) -> None:
    assert not any(suspect.citations for suspect in diagnose_pieces(("text", text)).suspects)


@pytest.mark.parametrize(
    ("line", "cause", "confidence"),
    [
        (
            " nvidia-driver-470 : Depends: libnvidia-gl-470 (= 470.256.02-1) but it is not going to be installed",
            "held-or-broken-packages",
            "likely",
        ),
        (" nvidia-smi : Depends: libc6 (>= 2.38) but it is not installable", "mixed-repo-packages", "certain"),
    ],
)
def test_denial_by_apt_is_not_that_of_a_person(line: str, cause: str, confidence: str) -> None:
    found = diagnose(take_snapshot(pasted.parse_text_report(line))).findings
    assert [(one.cause, one.confidence) for one in found] == [(cause, confidence)]


@pytest.mark.parametrize("author", ["Anna Berg wrote:", "Am 3. Mai schrieb Jan:", "张伟 写道："])
def test_quotation_of_a_named_person_is_of_another_node(author: str) -> None:
    quoted = f"> we had this\n> {XID}\n\nOurs is fine."
    assert not diagnose_pieces(("mail", f"{author}\n{quoted}")).findings
    assert diagnose_pieces(("mail", f"On the node\n{quoted}")).findings


@pytest.mark.parametrize(
    "source", ["history", "history | tail", "cat ~/.bash_history", "fc -l", "/root/.zsh_history", "shell history"]
)
def test_shell_history_is_no_message(source: str) -> None:
    assert identify_source(source).kind == "shell-history"
    typed = "101  echo 'NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.'"
    for pieces in ([(source, typed)], [(source, typed), ("nvidia-smi", SMI)]):
        found = diagnose_pieces(*pieces)
        assert (found.findings, found.open_questions) == ((), ())


def test_package_history_is_not_shell_history() -> None:
    assert identify_source("cat /var/log/zypp/history").kind == "package-history"
    assert identify_source("dnf history").kind == "package-history"
