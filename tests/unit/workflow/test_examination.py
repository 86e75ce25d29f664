from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import examination
from gpunode.facts.evidence import Capture, Evidence, Probe
from gpunode.facts.examination import EXAMINATION, follow_ups
from gpunode.facts.probes import PROBES
from gpunode.host.local import LocalHost
from gpunode.workflow import doctor
from gpunode.workflow.doctor import examine
from tests.conftest import Tools


def test_every_probe_has_its_own_name_and_a_limit_of_its_own() -> None:
    keys = [probe.key for probe in EXAMINATION]
    assert len(keys) == len(set(keys))
    assert all(probe.timeout_s <= 20 for probe in EXAMINATION if probe.argv)
    assert all(bool(probe.argv) + bool(probe.path) + bool(probe.glob) == 1 for probe in EXAMINATION)


def test_no_command_writes() -> None:
    """What each may be, word by word: a new one is added here after somebody has thought about it."""
    allowed = {
        *("apt-get", "ausearch", "containerd", "dkms", "dmesg", "docker", "ibstat", "journalctl", "ldconfig", "ls"),
        *("lslocks", "lspci", "modinfo", "mokutil", "nvidia-container-cli", "nvidia-ctk", "nvidia-smi", "ofed_info"),
        *("podman", "rpm", "stat", "systemctl", "uname", "systemd-detect-virt"),
    }
    assert {probe.argv[0] for probe in (*EXAMINATION, *PROBES) if probe.argv} - allowed == set()
    (apt,) = [probe.argv for probe in EXAMINATION if probe.argv[:1] == ("apt-get",)]
    assert apt[-1] == "check"
    assert "Debug::NoLocking=1" in apt


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit is a small part of what it is; nothing is asked but what the tests put there."""
    few = {"smi", "smi-query", "modules", "dmesg", "kernel-journal", "node-name", "kubelet-conf"}
    quick = tuple(replace(probe, timeout_s=0.3) for probe in EXAMINATION if probe.key in few)
    monkeypatch.setattr(doctor, "EXAMINATION", quick)
    monkeypatch.setattr(doctor, "probes", lambda _: ())
    monkeypatch.setattr(doctor, "_NVML_S", 0.3)


@pytest.mark.usefixtures("hurried")
def test_a_tool_that_hangs_is_given_up_and_doctor_answers_all_the_same(tools: Tools) -> None:
    tools.add("nvidia-smi", "trap '' TERM; sleep 600 & sleep 600")
    tools.add("journalctl", "echo 'kernel: NVRM: loading'")
    tools.add("dmesg", "echo '[ 1.0] NVRM: loading'")
    evidence = examine(LocalHost("/"))
    assert evidence["smi"].outcome == evidence["smi-query"].outcome == "timeout"
    assert "no answer within 0.3 s" in evidence["smi"].error
    diagnosis = diagnose(snapshot(evidence))
    assert diagnosis.findings or diagnosis.unknown, "that nvidia-smi hangs is no sign of health"
    said = " ".join([*(one.summary for one in diagnosis.findings), *(one.question for one in diagnosis.unknown)])
    assert "nvidia-smi" in said


@pytest.mark.usefixtures("hurried")
def test_the_journal_stands_for_the_kernels_own_buffer_and_that_where_there_is_none(tools: Tools) -> None:
    tools.add("nvidia-smi", "exit 9")
    tools.add("dmesg", "echo '[ 1.0] NVRM: loading'")
    tools.add("journalctl", "echo 'kernel: NVRM: loading'")
    assert "dmesg" not in examine(LocalHost("/"))
    tools.add("journalctl", "exit 1")
    assert "dmesg" in examine(LocalHost("/"))


def seen(**texts: str) -> Evidence:
    return {key.replace("_", "-"): Capture(key, "ok", text.encode()) for key, text in texts.items()}


def keys(probes: tuple[Probe, ...]) -> set[str]:
    return {probe.key for probe in probes}


def test_the_slow_looks_are_for_a_driver_that_is_off() -> None:
    off = seen(kernel_release="6.1.0-18-amd64\n")
    assert {"initramfs", "make-logs"} <= keys(follow_ups(off))
    version = {"file:/sys/module/nvidia/version": Capture("x", "ok", b"550.54.15\n")}
    fine = {**off, **version, "modinfo:nvidia": Capture("modinfo nvidia", "ok", b"version:        550.54.15\n")}
    assert not keys(follow_ups(fine))
    other = {**off, **version, "modinfo:nvidia": Capture("modinfo nvidia", "ok", b"version:        535.1\n")}
    nouveau = {**fine, "modules": Capture("/proc/modules", "ok", b"nouveau 1 0 - Live 0x0\n")}
    assert "initramfs" in keys(follow_ups(other)) & keys(follow_ups(nouveau))


def test_the_cluster_is_asked_about_this_node_alone_and_only_where_a_kubelet_has_its_key() -> None:
    asked = follow_ups(seen(node_name="GPU1\n", kubelet_conf='{"path": "/etc/kubernetes/kubelet.conf"}\n'))
    words = {probe.key: probe.argv for probe in asked}
    assert "gpu1" in words["kubernetes-node"]
    assert "spec.nodeName=gpu1" in words["kubernetes-pods"]
    assert examination.follow_ups(seen(node_name="gpu1\n")) == ()
