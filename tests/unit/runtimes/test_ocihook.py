"""The OCI hook as nvidia-ctk 1.20 writes it."""

from __future__ import annotations

import json

from gpunode.runtimes.ocihook import hook


def test_it_is_nvidia_ctks() -> None:
    assert json.loads(hook("/usr/bin/nvidia-container-runtime-hook")) == {
        "version": "1.0.0",
        "hook": {
            "path": "/usr/bin/nvidia-container-runtime-hook",
            "args": ["nvidia-container-runtime-hook", "prestart"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }


def test_a_program_elsewhere_finds_what_lies_beside_it() -> None:
    assert json.loads(hook("/opt/nvidia/hook"))["hook"]["env"][0].endswith(":/bin:/opt/nvidia")
