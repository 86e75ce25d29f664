from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gpunode import diagnoses
from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Probe, encode_matches
from gpunode.facts.examination import DOCTOR_PROBES, command_probe
from gpunode.facts.follow_ups import (
    DRIVER_QUERY_CONDITION_KEYS,
    can_query_driver,
    driver_probes,
    final_follow_ups,
    follow_ups,
)
from gpunode.facts.probes import PROBES
from gpunode.host.local import LocalHost
from gpunode.workflow import doctor
from gpunode.workflow.doctor import collect_doctor_evidence
from tests.conftest import Tools


def test_doctor_probes_have_unique_keys_and_short_timeouts() -> None:
    keys = [probe.key for probe in DOCTOR_PROBES]
    assert len(keys) == len(set(keys))
    assert all(probe.timeout_s <= 20 for probe in DOCTOR_PROBES if probe.argv)
    assert all(bool(probe.argv) + bool(probe.path) + bool(probe.glob) == 1 for probe in DOCTOR_PROBES)


def listing(*paths: str) -> Capture:
    return Capture(paths[0], "ok", encode_matches(GlobMatch(path) for path in paths))


# A node on which every later probe has a reason to run.
EVERYTHING = {
    "kernel-release": Capture("uname -r", "ok", b"6.1.0-18-amd64\n"),
    "dev-nvidia": listing("/dev/nvidiactl"),
    "nvidia-version": Capture("/proc/driver/nvidia/version", "ok", b"NVRM version: x\n"),
    "docker-socket": listing("/run/docker.sock"),
    "cri-sockets": listing("/run/containerd/containerd.sock"),
    "rpm-database": listing("/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/rpmdb.sqlite-shm"),
    "kubelet-conf": listing("/etc/kubernetes/kubelet.conf"),
    "kubelet-conf-programs": Capture("sed", "ok"),
    "node-name": Capture("/proc/sys/kernel/hostname", "ok", b"gpu1\n"),
    "docker-containers": Capture("docker ps", "ok", b"0123456789ab cuda Up 2 hours\n"),
    "initramfs-tools": listing("/usr/bin/lsinitramfs"),
    "initramfs-images": listing("/boot/initrd.img-6.1.0-18-amd64"),
    "apt-logs": listing("/var/log/apt/history.log.1.gz"),
    "fabric-logs": listing("/var/log/fabricmanager.log"),
    "fabric-binary": listing("/usr/bin/nv-fabricmanager"),
    "imex-binary": listing("/usr/bin/nvidia-imex"),
}


def test_probes_with_side_effects_are_not_run() -> None:
    asked = {
        probe.argv[0] for probe in (*DOCTOR_PROBES, *follow_ups({})) if probe.argv and probe.argv[1:2] != ("--version",)
    }
    assert not asked & {"nvidia-smi", "rpm", "kubectl", "crictl"}
    assert not [probe for probe in DOCTOR_PROBES if probe.argv[:2] in {("docker", "info"), ("docker", "version")}]
    unloaded = {**EVERYTHING, "nvidia-version": Capture("/proc/driver/nvidia/version", "absent")}
    assert not [probe for probe in follow_ups(unloaded) if "nvidia-smi" in probe.argv], "its files outlive the module"
    stopped = Capture(
        "systemctl show", "ok", b"Id=docker.service\nActiveState=inactive\n\nId=x.service\nActiveState=active\n"
    )
    later = follow_ups({**EVERYTHING, "units": stopped})
    assert "docker-info" not in {probe.key for probe in later}
    assert "docker-info" in {probe.key for probe in follow_ups(EVERYTHING)}


def information(minor: int, excluded: str = "No") -> GlobMatch:
    text = f"Model: \t\t NVIDIA A100\nDevice Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
    return GlobMatch(f"/proc/driver/nvidia/gpus/0000:0{minor}:00.0/information", data=text.encode())


@pytest.mark.parametrize(
    ("files", "gpus", "may"),
    [
        (("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"), (information(0), information(1)), True),
        (("/dev/nvidiactl", "/dev/nvidia-uvm"), (information(0),), False),
        (("/dev/nvidiactl", "/dev/nvidia0"), (information(0), information(1)), False),
        (("/dev/nvidiactl", "/dev/nvidia0"), (information(1),), False),
        (("/dev/nvidiactl", "/dev/nvidia0"), (information(0), information(1, "Yes")), True),
        (("/dev/nvidiactl", "/dev/nvidia0"), (), True),
        (("/dev/nvidiactl", "/dev/nvidia0"), (GlobMatch("/proc/driver/nvidia/gpus/0000:01:00.0/information"),), True),
        (("/dev/nvidiactl",), (GlobMatch("/proc/driver/nvidia/gpus/0000:01:00.0/information"),), False),
        (("/dev/nvidia-uvm",), (), False),
    ],
)
def test_nvml_is_not_queried_if_that_would_create_device_files(
    files: tuple[str, ...], gpus: tuple[GlobMatch, ...], may: bool
) -> None:
    node = {
        **EVERYTHING,
        "dev-nvidia": listing(*files),
        "nvidia-gpus": Capture("/proc/driver/nvidia/gpus/*/information", "ok", encode_matches(iter(gpus))),
    }
    assert can_query_driver(node) is may
    params = Capture("/proc/driver/nvidia/params", "ok", b"DeviceFileMode: 438\nModifyDeviceFiles: 0\n")
    in_a_container = {**node, "file:/proc/driver/nvidia/params": params}
    assert can_query_driver(in_a_container) is ("/dev/nvidiactl" in files), "there no client makes one"
    conditions = {key: in_a_container[key] for key in in_a_container.keys() & DRIVER_QUERY_CONDITION_KEYS}
    assert can_query_driver(conditions) is can_query_driver(in_a_container)


def test_no_command_is_awaited_before_the_driver_is_queried() -> None:
    conditions = [probe for probe in (*PROBES, *DOCTOR_PROBES) if probe.key in DRIVER_QUERY_CONDITION_KEYS]
    assert {probe.key for probe in conditions} == DRIVER_QUERY_CONDITION_KEYS
    assert not [probe.source for probe in conditions if probe.argv]


def test_every_file_read_by_a_rule_is_probed() -> None:
    families = Path(diagnoses.__file__).parent
    asked = {
        match[1]
        for source in families.rglob("*.py")
        for match in re.finditer(r'snapshot\.files?\("(/?[^"{]+)"\)', source.read_text("utf-8"))
    }
    looked_at = [probe.source for probe in (*PROBES, *DOCTOR_PROBES, *follow_ups(EVERYTHING)) if not probe.argv]
    assert len(asked) > 10
    for path in asked:
        assert any(fnmatchcase(source, path) or fnmatchcase(path, source) for source in looked_at), path


def test_doctor_runs_only_read_only_commands() -> None:
    """Each command is allowed word by word: add a new one here after review."""
    allowed = {
        *("apt-get", "ausearch", "containerd", "dkms", "dmesg", "docker", "ibstat", "journalctl", "ldconfig", "ls"),
        *("lslocks", "lspci", "modinfo", "mokutil", "nvidia-container-cli", "nvidia-ctk", "nvidia-smi", "ofed_info"),
        *(
            "podman",
            "rpm",
            "date",
            "sed",
            "stat",
            "systemctl",
            "uname",
            "systemd-detect-virt",
            "crictl",
            "kubectl",
            "lsinitramfs",
        ),
        *("grep", "zcat", "tail", "nv-fabricmanager", "nvidia-imex"),
    }
    later = (*follow_ups(EVERYTHING), *final_follow_ups(EVERYTHING))
    assert {probe.argv[0] for probe in (*DOCTOR_PROBES, *PROBES, *later) if probe.argv} - allowed == set()
    (apt,) = [probe.argv for probe in DOCTOR_PROBES if probe.argv[:1] == ("apt-get",)]
    assert apt[-1] == "check"
    assert "Debug::NoLocking=1" in apt


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce every limit to a small fraction; only the tests' own probes run."""

    def few(probes: Iterable[Probe]) -> tuple[Probe, ...]:
        wanted = {"smi", "smi-query", "dmesg", "kernel-journal"}
        return tuple(replace(probe, timeout_s=0.3) for probe in probes if probe.key in wanted)

    monkeypatch.setattr(doctor, "DOCTOR_PROBES", few(DOCTOR_PROBES))
    monkeypatch.setattr(doctor, "driver_probes", lambda _: few(driver_probes(EVERYTHING)))
    monkeypatch.setattr(doctor, "follow_ups", lambda _: few(follow_ups(EVERYTHING)))
    monkeypatch.setattr(doctor, "can_query_driver", lambda _: True)
    monkeypatch.setattr(doctor, "list_probes", lambda _: ())
    monkeypatch.setattr(doctor, "_NVML_TIMEOUT_S", 0.3)


@pytest.mark.usefixtures("hurried")
def test_hanging_tool_is_given_up_and_doctor_still_answers(tools: Tools) -> None:
    tools.add("nvidia-smi", "trap '' TERM; sleep 600 & sleep 600")
    tools.add("journalctl", "echo 'kernel: NVRM: loading'")
    tools.add("dmesg", "echo '[ 1.0] NVRM: loading'")
    evidence = collect_doctor_evidence(LocalHost("/"))
    assert evidence["smi"].outcome == evidence["smi-query"].outcome == "timeout"
    assert "no answer within 0.3 s" in evidence["smi"].error
    diagnosis = diagnose(take_snapshot(evidence))
    assert "gsp-rpc-timeout" in [one.cause for one in diagnosis.suspects], "that nvidia-smi hangs is no sign of health"


@pytest.mark.usefixtures("hurried")
def test_driver_is_queried_while_all_other_probes_run(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tools.add("nvidia-smi", f"/bin/cat {pipe}")
    tools.add("docker", f"echo answered >{pipe}")
    tools.add("journalctl", "exit 1")
    monkeypatch.setattr(doctor, "driver_probes", lambda _: (command_probe("smi", "nvidia-smi", timeout_s=60.0),))
    monkeypatch.setattr(doctor, "follow_ups", lambda _: ())
    monkeypatch.setattr(doctor, "final_follow_ups", lambda _: (command_probe("docker-inspect", "docker"),))
    assert collect_doctor_evidence(LocalHost("/"))["smi"].data == b"answered\n"


def test_dmesg_is_read_only_where_the_journal_is_unavailable(tools: Tools) -> None:
    tools.add("nvidia-smi", "exit 9")
    tools.add("dmesg", "echo '[ 1.0] NVRM: loading'")
    tools.add("journalctl", "echo 'kernel: NVRM: loading'")
    assert "dmesg" not in collect_doctor_evidence(LocalHost("/"))
    tools.add("journalctl", "exit 1")
    assert "dmesg" in collect_doctor_evidence(LocalHost("/"))


def evidence_of(**texts: str) -> Evidence:
    return {key.replace("_", "-"): Capture(key, "ok", text.encode()) for key, text in texts.items()}


def keys(probes: tuple[Probe, ...]) -> set[str]:
    return {probe.key for probe in probes}


def test_slow_probes_run_only_when_the_driver_is_not_loaded() -> None:
    images = {key: EVERYTHING[key] for key in ("initramfs-tools", "initramfs-images")}
    off = {**evidence_of(kernel_release="6.1.0-18-amd64\n"), **images}
    assert {"initramfs", "make-logs"} <= keys(follow_ups(off))
    version = {"file:/sys/module/nvidia/version": Capture("x", "ok", b"550.54.15\n")}
    fine = {**off, **version, "modinfo:nvidia": Capture("modinfo nvidia", "ok", b"version:        550.54.15\n")}
    assert not keys(follow_ups(fine))
    other = {**off, **version, "modinfo:nvidia": Capture("modinfo nvidia", "ok", b"version:        535.1\n")}
    nouveau = {**fine, "modules": Capture("/proc/modules", "ok", b"nouveau 1 0 - Live 0x0\n")}
    assert "initramfs" in keys(follow_ups(other)) & keys(follow_ups(nouveau))


def test_container_probes_ask_for_no_secrets() -> None:
    started = "Id=docker.service\nActiveState=active\nExecMainStartTimestamp=Sat 2026-11-21 10:00:00.123456 UTC\n"
    (inspect,) = final_follow_ups({**EVERYTHING, "units": Capture("systemctl show", "ok", started.encode())})
    assert inspect.source == "docker inspect"
    assert inspect.argv[-1] == "0123456789ab"
    template = inspect.argv[3]
    assert template.count(".Config.Env") == 1, "each variable is compared with those that are wanted"
    assert not [name for name in ("TOKEN", "KEY", "SECRET", "Cmd", "Labels", "Mounts") if name in template]
    assert '(gt .Created "2026-11-21T10:00:00.123456Z")' in template


def test_cluster_probes_ask_only_about_this_node_with_the_kubelet_key() -> None:
    asked = follow_ups({**EVERYTHING, "node-name": Capture("x", "ok", b"GPU1\n")})
    words = {probe.key: probe.argv for probe in asked}
    assert words["kubernetes-node"][-1] == "/api/v1/nodes/gpu1"
    assert words["kubernetes-pods"][-1].endswith("=spec.nodeName%3Dgpu1")
    assert follow_ups(evidence_of(node_name="gpu1\n")) == ()
