from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpunode.cli import CommandExit, doctor_page
from gpunode.cli.doctor import doctor
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import UsageError

PASTE = """\
$ lsmod
Module                  Size  Used by
nouveau              2400256  4
$ lspci -nnk -d 10de:
01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GP104 [GeForce GTX 1080] [10de:1b80] (rev a1)
\tKernel driver in use: nouveau
$ HF_TOKEN=hunter2 docker run -e NGC_API_KEY=hunter2 -e PASSWORD=hunter2 cuda nvidia-smi
Failed to initialize NVML: Unknown Error
$ cat /etc/docker/daemon.json
{"http-proxy": "http://bob:hunter2@proxy:3128"}
"""


@pytest.fixture
def report(tmp_path: Path) -> str:
    file = tmp_path / "paste.txt"
    file.write_text(PASTE)
    return str(file)


def run(report: str, page: Path | str, how: OutputOptions | None = None) -> int:
    with pytest.raises(CommandExit) as answered:
        doctor((report,), how or OutputOptions(), html=str(page))
    return answered.value.exit_code


def test_page_is_written_and_the_exit_code_stays(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert run(report, page) == 8
    text = page.read_text()
    assert "nouveau-bound" in text
    assert "report paste.txt" in text
    assert "hunter2" not in text
    assert str(page) in capsys.readouterr().out.splitlines()[-1]


def test_existing_page_is_overwritten_and_keeps_its_mode(report: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("an older page")
    page.chmod(0o600)
    run(report, page)
    assert "an older page" not in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_new_page_follows_the_umask(report: str, tmp_path: Path, mask: int, mode: int) -> None:
    page = tmp_path / "page.html"
    before = os.umask(mask)
    try:
        run(report, page)
    finally:
        os.umask(before)
    assert stat.S_IMODE(page.stat().st_mode) == mode


def test_dash_writes_only_the_page_to_standard_output(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(report, "-") == 8
    out = capsys.readouterr().out
    assert out.startswith("<!DOCTYPE html>")
    assert out.endswith("</html>\n")


def test_two_outputs_on_standard_output_are_refused(report: str) -> None:
    with pytest.raises(UsageError, match="both write to standard output"):
        doctor((report,), OutputOptions(json=True), html="-")


def test_unwritable_page_is_refused_before_the_examination(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "page.html"):
        with pytest.raises(UsageError, match="the page cannot be written"):
            doctor_page.refuse_unwritable_page_file(str(place), OutputOptions())


def test_page_of_a_cause_is_refused() -> None:
    with pytest.raises(UsageError, match="--html cannot be used with a cause"):
        doctor(("nouveau-bound",), OutputOptions(), html="page.html")


def test_symlink_at_the_page_is_replaced_and_its_target_kept(report: str, tmp_path: Path) -> None:
    others, page = tmp_path / "others", tmp_path / "page.html"
    others.write_text("theirs")
    for target in (others, tmp_path / "new"):
        page.unlink(missing_ok=True)
        page.symlink_to(target)
        run(report, page)
        assert not page.is_symlink()
        assert "nouveau-bound" in page.read_text()
    assert others.read_text() == "theirs"
    assert not (tmp_path / "new").exists()


def test_special_file_is_not_replaced_by_a_page(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for place in (str(pipe), "/dev/null", "/dev/stdout"):
        with pytest.raises(UsageError, match="the page cannot be written"):
            doctor_page.refuse_unwritable_page_file(place, OutputOptions())


def test_deleted_working_folder_is_a_usage_error(report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the page cannot be written"):
        doctor((report,), OutputOptions(), html="page.html")
