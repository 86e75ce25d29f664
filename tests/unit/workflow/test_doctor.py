from __future__ import annotations

from gpunode.cli.screen.doctor import diagnosis_lines
from gpunode.facts.evidence import Capture
from gpunode.workflow.doctor import diagnosed


def test_what_the_system_kept_from_us_is_named() -> None:
    examined = diagnosed({
        "kernel-journal": Capture("journalctl -k", "denied", error="No journal files were opened"),
        "dmesg": Capture("dmesg", "ok", b""),
        "file:/etc/shadow": Capture("/etc/shadow", "denied"),
        "docker-info": Capture("docker info", "failed", error="permission denied while trying to connect"),
        "docker-version": Capture("docker version", "failed", error="Cannot connect to the Docker daemon"),
        "lspci-verbose": Capture("lspci -nnDvvv", "ok", b"00:00.0 Host bridge\n\tCapabilities: <access denied>\n"),
    })  # fmt: skip
    assert examined.denied == ("journalctl -k", "/etc/shadow", "docker info", "lspci -nnDvvv")


CPU_ONLY = {
    "lspci": Capture("lspci -nn", "ok", b"00:00.0 Host bridge [0600]: Intel Corporation 440FX [8086:1237] (rev 02)\n"),
    "ctk": Capture("nvidia-ctk cdi list", "absent", error="nvidia-ctk: command not found"),
    "cli": Capture("nvidia-container-cli -V", "absent", error="nvidia-container-cli: command not found"),
}


def test_a_machine_without_a_gpu_misses_none_of_nvidias_tools() -> None:
    examined = diagnosed(CPU_ONLY)
    (doubt,) = examined.diagnosis.unknown
    assert (examined.verdict, doubt.citations) == ("unknown", ())
    assert "is a GPU to be in this machine" in doubt.question
    first = next(diagnosis_lines(examined, verbose=False))
    assert "".join(one.text for one in first.spans) == "? no GPU of NVIDIA's is in this machine, and no fault shows"


def test_with_a_gpu_a_tool_that_fails_is_a_complaint() -> None:
    gpu = Capture("lspci -nn", "ok", b"07:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0] (rev a1)\n")
    assert diagnosed({**CPU_ONLY, "lspci": gpu}).verdict != "healthy"
