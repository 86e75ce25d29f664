from __future__ import annotations

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
