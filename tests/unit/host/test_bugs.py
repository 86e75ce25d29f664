"""Contents of a bug report."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import gpunode
from gpunode.host import bugs


def test_bug_report_begins_with_the_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bugs, "TRACEBACK_FOLDER", tmp_path)
    monkeypatch.setattr(bugs, "explain_untrusted_folder", lambda _: "")
    monkeypatch.setattr("gpunode.host.bugs.os.geteuid", lambda: 0)
    first, _, rest = Path(bugs.save_traceback("Traceback\n", "bug.txt")).read_text().partition("\n")
    assert first.startswith(f"gpunode {gpunode.__version__}, Python {platform.python_version()}, ")
    assert first.endswith(f", {platform.machine()}")
    assert rest == "\nTraceback\n"


@pytest.mark.parametrize("release", [b'PRETTY_NAME="Debian\n', b"PRETTY_NAME=\xe9\n"])
def test_unreadable_os_release_does_not_break_the_bug_report(
    release: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distro

    file = tmp_path / "os-release"
    file.write_bytes(release)
    real = distro.LinuxDistribution
    monkeypatch.setattr(distro, "LinuxDistribution", lambda **more: real(os_release_file=str(file), **more))
    monkeypatch.setattr(bugs, "TRACEBACK_FOLDER", tmp_path)
    monkeypatch.setattr(bugs, "explain_untrusted_folder", lambda _: "")
    monkeypatch.setattr("gpunode.host.bugs.os.geteuid", lambda: 0)
    assert platform.system() in Path(bugs.save_traceback("Traceback\n", "bug.txt")).read_text()
