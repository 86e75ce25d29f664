from __future__ import annotations

import pytest

from gpunode.errors import Undetermined
from gpunode.facts.model import Unknown, need


@pytest.mark.parametrize(
    ("unknown", "hint"),
    [
        (
            Unknown("not understood: /etc/apt/sources.list.d/x.list:1: no entry", "apt-sources"),
            "line 1 of /etc/apt/sources.list.d/x.list",
        ),
        (Unknown("systemd-detect-virt is not installed", "virt"), "sudo apt-get install systemd"),
        (Unknown("it is a named pipe", "file:/etc/containerd/config.toml"), "`ls -ld /etc/containerd/config.toml`"),
        (Unknown("/etc/x may not be read: Permission denied", "file:/etc/x"), "as root"),
        (Unknown("lspci: command not found", "lspci"), "install the tool it names"),
    ],
)
def test_the_remedy_fits_what_kept_it_from_being_known(unknown: Unknown, hint: str) -> None:
    with pytest.raises(Undetermined) as caught:
        need(unknown, "which it is")
    assert hint in caught.value.hint
    assert "file:" not in caught.value.why


def test_a_file_that_cannot_be_read_is_named_once() -> None:
    with pytest.raises(Undetermined) as caught:
        need(Unknown("/etc/x may not be read: Permission denied", "file:/etc/x"), "what /etc/x holds")
    assert caught.value.why == "/etc/x may not be read: Permission denied"
