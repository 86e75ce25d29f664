from __future__ import annotations

import pytest

from gpunode.cli.doctor import diagnosis_lines
from gpunode.facts import pasted
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, GlobMatch, encode_matches
from gpunode.facts.examination import DOCTOR_PROBES
from gpunode.facts.probes import PROBES
from gpunode.redaction.evidence import redact
from gpunode.workflow.doctor import diagnose_evidence


def test_denied_evidence_is_named() -> None:
    examined = diagnose_evidence({
        "kernel-journal": Capture("journalctl -k", "denied", error="No journal files were opened"),
        "dmesg": Capture("dmesg", "ok", b""),
        "file:/etc/shadow": Capture("/etc/shadow", "denied"),
        "docker-info": Capture("docker info", "failed", error="permission denied while trying to connect"),
        "docker-version": Capture("docker version", "failed", error="Cannot connect to the Docker daemon"),
        "lspci-verbose": Capture("lspci -nnDvvv", "ok", b"00:00.0 Host bridge\n\tCapabilities: <access denied>\n"),
    })  # fmt: skip
    assert examined.denied == ("journalctl -k", "/etc/shadow", "docker info", "lspci -nnDvvv")


def test_log_that_an_ordinary_user_may_not_see_says_nothing() -> None:
    """Its refusal was taken for a log of RKE2, so doctor --npd reported a fault."""
    refused = "No journal files were opened due to insufficient permissions.\n"
    journals = {
        probe.key: Capture(probe.source, "failed", error=refused, exit_status=1)
        for probe in DOCTOR_PROBES
        if probe.argv[:1] == ("journalctl",)
    }
    socket = b"ERROR: permission denied while trying to connect to the Docker daemon socket at unix:///x.sock"
    config = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n"
    seen = {
        "file:/etc/containerd/config.toml": Capture("/etc/containerd/config.toml", "ok", config.encode()),
        "dmesg": Capture("dmesg", "failed", b"", "dmesg: read kernel buffer failed: Operation not permitted\n", 1),
        "docker-info": Capture("docker info", "failed", socket, "errors pretty printing info\n", 1),
        "docker-version": Capture("docker version", "failed", b"Client:\n", f"{socket.decode()}\n", 1),
        "smi": Capture("nvidia-smi", "absent"),
    }
    report = f"$ journalctl -u rke2-server\n{refused}$ cat /etc/containerd/config.toml\n{config}"
    for evidence in (seen, {**journals, **seen}, pasted.parse_text_report(report)):
        said = diagnose_evidence(evidence)
        assert [finding.cause for finding in said.diagnosis.findings] == []
        cited = {line.line for doubt in said.diagnosis.suspects for line in doubt.citations}
        assert not any("permi" in line for line in cited), cited
    assert set(diagnose_evidence(journals).denied) == {capture.source for capture in journals.values()}


def test_text_of_a_wrapper_script_is_not_cited_as_an_error() -> None:
    script = b'#!/bin/sh\n[ -e /x ] || { echo "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND" >&2; exit 1; }\n'
    found = encode_matches(iter([GlobMatch("/usr/bin/nvidia-ctk", data=script)]))
    said = diagnose_evidence({"toolkit-programs": Capture("/usr/bin/nvidia-c*", "ok", found)}).diagnosis
    assert [line for doubt in said.open_questions for line in doubt.citations] == []


@pytest.mark.parametrize(
    "complaint",
    [
        "Die GPU fällt zweimal am Tag vom Bus",
        "La GPU se cae dos veces al día",
        "A GPU cai duas vezes por dia",
        "GPU pada dwa razy dziennie",
        "Видеокарта отваливается два раза в день",
        "显卡每天掉两次",
        "GPU가 하루에 두 번 떨어집니다",
        "the GPU drops out twice a day",
    ],
)
def test_complaint_in_any_language_is_not_called_no_fault(complaint: str) -> None:
    working = "$ nvidia-smi -L\nGPU 0: Tesla T4 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
    thanks = diagnose_evidence(pasted.parse_text_report(f"this is the output of my node:\n\n{working}"))
    examined = diagnose_evidence(pasted.parse_text_report(f"{complaint}\n\n{working}"))
    assert (thanks.verdict, examined.verdict) == ("healthy", "unknown")


@pytest.mark.parametrize("remark", ["Thanks everyone, works great now", "Fresh install Ubuntu server driver working"])
def test_remark_without_a_function_word_is_english(remark: str) -> None:
    working = "$ nvidia-smi -L\nGPU 0: Tesla T4 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
    assert diagnose_evidence(pasted.parse_text_report(f"{remark}\n\n{working}")).verdict == "healthy"


def test_deeply_nested_answers_do_not_crash_doctor() -> None:
    """A user who can write one file of a node could otherwise crash doctor, plan and render with "a bug in gpunode"."""
    deep = b'{"a":' * 3000
    evidence = {
        probe.key: Capture(probe.source, "ok", deep, content_kind=probe.content_kind)
        for probe in (*PROBES, *DOCTOR_PROBES)
    }
    for captures in (evidence, redact(evidence)):
        derive(captures)
        derive(captures, image=True)
        assert diagnose_evidence(captures).diagnosis.bugs == ()


def test_partially_visible_evidence_is_named_as_denied() -> None:
    """On Debian 13, for such a user journalctl and lslocks succeed, and nvidia-smi prints to standard output."""
    hint = "Hint: You are currently not seeing messages from other users and the system.\n"
    files = (GlobMatch("/etc/modprobe.d/a.conf", data=b""), GlobMatch("/etc/modprobe.d/b.conf", denied=True))
    evidence = {
        "journal": Capture("journalctl -n 0 --no-pager", "ok", b"-- No entries --\n", hint, 0),
        "locks": Capture("lslocks -u -n -o COMMAND,PID,PATH", "ok", b"flock             225 /...\n", "", 0),
        "smi-mig": Capture("nvidia-smi mig -lgi", "failed", b"Insufficient Permissions\n", "", 4),
        "modprobe-d": Capture("/etc/modprobe.d/*", "ok", encode_matches(iter(files))),
    }
    wanted = ("journalctl -n 0 --no-pager", "lslocks -u -n -o COMMAND,PID,PATH", "nvidia-smi mig -lgi")
    assert diagnose_evidence(evidence).denied == (*wanted, "/etc/modprobe.d/b.conf")
    fine = {"locks": Capture("lslocks -u -n -o COMMAND,PID,PATH", "ok", b"apt 225 /var/lib/dpkg/lock\n", "", 0)}
    assert diagnose_evidence(fine).denied == ()


def test_unreadable_folder_does_not_hide_readable_ones() -> None:
    found = encode_matches(iter([GlobMatch("/home/a/.config/docker/daemon.json", data=b'{"runtimes": {}}')]))
    source = "/home/*/.config/docker/daemon.json"
    evidence = {"docker-user": Capture(source, "denied", found, "/home/b: Permission denied")}
    examined = diagnose_evidence(evidence)
    assert examined.denied == (source,)
    assert examined.snapshot.file("/home/a/.config/docker/daemon.json") is not None


CPU_ONLY = {
    "lspci": Capture("lspci -nn", "ok", b"00:00.0 Host bridge [0600]: Intel Corporation 440FX [8086:1237] (rev 02)\n"),
    "ctk": Capture("nvidia-ctk cdi list", "absent", error="nvidia-ctk: command not found"),
    "cli": Capture("nvidia-container-cli -V", "absent", error="nvidia-container-cli: command not found"),
}


def test_machine_without_a_gpu_is_not_blamed_for_missing_tools() -> None:
    examined = diagnose_evidence(CPU_ONLY)
    (doubt,) = examined.diagnosis.open_questions
    assert (examined.verdict, doubt.citations) == ("unknown", ())
    assert "should this machine have a GPU" in doubt.question
    first = next(diagnosis_lines(examined, verbose=False))
    assert "".join(one.text for one in first.spans) == "? no NVIDIA GPU found, and no fault detected"


def test_failing_tool_on_a_machine_with_a_gpu_is_a_fault() -> None:
    gpu = Capture("lspci -nn", "ok", b"07:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0] (rev a1)\n")
    assert diagnose_evidence({**CPU_ONLY, "lspci": gpu}).verdict != "healthy"


def test_fault_fixed_by_the_power_cycle_of_another_has_no_own_steps() -> None:
    rows = (
        ("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.127"),
        ("dmesg", "[ 10.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."),
        ("cat /proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri"),
        ("modinfo -F version nvidia", "550.127.05"),
    )
    lost, mismatch = diagnose_evidence(pasted.collect_pieces(rows)).diagnosis.roots
    assert lost.cause == "gpu-fallen-off-bus"
    assert [(fix.kind, fix.commands) for fix in mismatch.remedy] == [("reboot", ())]
    assert lost.cause in mismatch.remedy[0].text


def test_runtime_that_crio_left_out_names_no_snap_and_no_old_specification() -> None:
    """The snap's file does not exist; the missing file is no mount of the specification."""
    said = (
        b'crio[1]: level=warning msg="Runtime handler \\"nvidia\\" is being ignored due to: invalid runtime_path for '
        b"runtime 'nvidia': stat /usr/bin/nvidia-container-runtime: no such file or directory\"\n"
    )
    spec = b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    mounts:\n"
    spec += b"    - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05\n"
    snap = "/var/snap/docker/current/config/daemon.json"
    found = diagnose_evidence({
        "crio-journal": Capture("journalctl -u crio", "ok", said),
        f"file:{snap}": Capture(snap, "absent", error="No such file or directory"),
        "file:/var/run/cdi/nvidia.yaml": Capture("/var/run/cdi/nvidia.yaml", "ok", spec),
    }).diagnosis  # fmt: skip
    assert not {one.cause for one in found.findings} & {"docker-from-snap", "cdi-spec-stale"}
