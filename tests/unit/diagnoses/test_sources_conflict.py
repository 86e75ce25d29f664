"""Two entries for one archive with different keys: only the surplus entry is removed, wherever it is."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

ARCHIVE = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
KEPT = f"deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg] {ARCHIVE} /\n"
OTHERS = "deb http://archive.ubuntu.com/ubuntu jammy main\n"
PARAGRAPHS = (
    "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu\nSuites: jammy\nComponents: main\n\n"
    f"Types: deb\nURIs: {ARCHIVE}\nSuites: /\nTrusted: yes\n"
)


def remedy(path: str, text: str) -> list[str]:
    pieces = [
        ("cat /etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\n'),
        (f"cat {path}", text),
        ("cat /etc/apt/sources.list.d/nvidia-container-toolkit.list", KEPT),
    ]
    (found,) = diagnose(take_snapshot(pasted.collect_pieces(pieces))).findings
    assert found.cause == "apt-signed-by-conflict"
    return shlex.split(found.remedy[0].commands[0])


@pytest.mark.usefixtures("allow_subprocess")
@pytest.mark.parametrize(
    ("path", "text", "after"),
    [
        ("/etc/apt/sources.list", f"{OTHERS}deb {ARCHIVE} /\n", f"{OTHERS}#deb {ARCHIVE} /\n"),
        ("/etc/apt/sources.list.d/all.list", f"deb {ARCHIVE} /\n{OTHERS}", f"#deb {ARCHIVE} /\n{OTHERS}"),
        (
            "/etc/apt/sources.list.d/all.sources",
            PARAGRAPHS,
            PARAGRAPHS.replace(f"URIs: {ARCHIVE}", f"Enabled: no\nURIs: {ARCHIVE}"),
        ),
    ],
)
def test_only_the_conflicting_source_entry_is_removed(path: str, text: str, after: str, tmp_path: Path) -> None:
    words = remedy(path, text)
    assert words[-1] == path
    (file := tmp_path / "file").write_text(text)
    subprocess.run([*words[1:-1], str(file)], check=True)
    assert file.read_text() == after
    assert (tmp_path / "file.bak").read_text() == text
