from __future__ import annotations

import pytest

from gpunode.errors import Undetermined
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture
from gpunode.facts.model import Unknown, require


@pytest.mark.parametrize(
    ("unknown", "hint"),
    [
        (
            Unknown("not understood: /etc/apt/sources.list.d/x.list:1: no entry", "apt-sources"),
            "line 1 of /etc/apt/sources.list.d/x.list",
        ),
        (Unknown("it is a named pipe", "file:/etc/containerd/config.toml"), "`ls -ld /etc/containerd/config.toml`"),
        (Unknown("/etc/x may not be read: Permission denied", "file:/etc/x"), "take that again as root"),
        (Unknown("not captured", "file:/etc/profile.d/gpunode-cuda.sh"), "take the capture again"),
        (Unknown("lspci: command not found", "lspci"), "install the tool it names"),
    ],
)
def test_hint_fits_the_reason_of_an_unknown_fact(unknown: Unknown, hint: str) -> None:
    with pytest.raises(Undetermined) as caught:
        require(unknown, "which it is")
    assert hint in caught.value.hint
    assert "file:" not in caught.value.why


def test_unreadable_file_is_named_once() -> None:
    with pytest.raises(Undetermined) as caught:
        require(Unknown("/etc/x may not be read: Permission denied", "file:/etc/x"), "what /etc/x holds")
    assert caught.value.why == "/etc/x may not be read: Permission denied"


def test_missing_program_comes_with_its_install_command() -> None:
    virt = Capture("systemd-detect-virt", "absent")
    rest = {key: Capture(key, "absent") for key in ("dev-dxg", "tegra-release", "device-tree", "container-manager")}
    facts = derive({"virt": virt, "kernel-release": Capture("uname -r", "ok", b"6.1"), "dockerenv": virt, **rest})
    with pytest.raises(Undetermined, match="cannot tell where this is") as caught:
        require(facts.platform, "where this is")
    assert caught.value.hint.endswith("\nsudo apt-get install systemd")
