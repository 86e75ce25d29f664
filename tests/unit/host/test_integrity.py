"""gpunode's own files against their checksums."""

from __future__ import annotations

import hashlib
import io
import py_compile
import sys
import zipfile
from pathlib import Path

import pytest

from gpunode import installed
from gpunode.errors import Undetermined, UsageError
from gpunode.host import integrity


@pytest.fixture
def unpacked(tmp_path: Path) -> tuple[zipfile.ZipFile, Path]:
    """An archive, and what it holds in a folder, compiled."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.py", "A = 1\n")
        archive.writestr("data.csv", "x\n")
    archive = zipfile.ZipFile(made)
    archive.extractall(tmp_path)
    py_compile.compile(str(tmp_path / "a.py"), doraise=True)
    return archive, tmp_path


def test_files_as_they_were_unpacked_have_no_fault(unpacked: tuple[zipfile.ZipFile, Path]) -> None:
    assert list(integrity._unpacked(*unpacked)) == []


def test_every_kind_of_change_is_named(unpacked: tuple[zipfile.ZipFile, Path]) -> None:
    _, folder = unpacked
    (folder / "b.py").write_text("A = 2\n")
    py_compile.compile(str(folder / "b.py"), cfile=next((folder / "__pycache__").glob("a.*")).__fspath__())
    (folder / "data.csv").unlink()
    (folder / "json.pyc").write_bytes(b"would be imported before Python's own")
    (folder / "yaml").symlink_to(folder.parent)
    assert list(integrity._unpacked(*unpacked)) == [
        "the bytecode of a.py was changed",
        "data.csv: No such file or directory",
        "b.py is not part of gpunode",
        "json.pyc is not part of gpunode",
        "yaml is not part of gpunode",
    ]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("missing     /usr/share/man/man1/gpunode.1.gz", "passed"),  # dpkg, where path-exclude left it out
        ("missing     /usr/share/doc/gpunode", "passed"),
        ("missing   d /usr/share/man/man1/gpunode.1.gz", "passed"),  # rpm
        ("??5?????? c /etc/logrotate.d/gpunode", "passed"),
        ("missing     /usr/share/gpunode/INSTALLER", "failed"),
        ("??5??????   /usr/share/man/man1/gpunode.1.gz", "failed"),
    ],
)
@pytest.mark.usefixtures("allow_subprocess")
def test_documents_that_a_minimal_system_leaves_out_are_no_fault(line: str, status: str) -> None:
    assert integrity._package(("printf", "%s\\n", line)).status == status


def test_a_release_lists_the_zipapp_by_name_and_hash(tmp_path: Path) -> None:
    zipapp, sums = tmp_path / "gpunode", tmp_path / "SHA256SUMS"
    zipapp.write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    sums.write_text(f"{digest}  gpunode.pyz\n")
    assert integrity._listed(str(zipapp), str(sums)).status == "passed"
    sums.write_text(f"{digest}  other\n")
    assert integrity._listed(str(zipapp), str(sums)).status == "failed"
    with pytest.raises(UsageError):
        integrity._listed(str(zipapp), str(tmp_path / "missing"))


def test_a_source_tree_has_nothing_to_check_against() -> None:
    with pytest.raises(Undetermined):
        list(integrity.checks(""))


def test_how_it_was_installed_is_told_by_the_file_beside_the_zipapp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed.how()[0] == "source"
    place = tmp_path / "gpunode.pyz"
    place.touch()
    link = tmp_path / "bin"
    link.symlink_to(place)
    monkeypatch.setattr(sys.modules["__main__"], "GPUNODE_ZIPAPP", str(link), raising=False)
    assert installed.how() == ("zipapp", str(place))
    (tmp_path / "INSTALLER").write_text("deb\n")
    assert installed.how() == ("deb", str(place))
    (tmp_path / "INSTALLER").write_text("something else")
    assert installed.how() == ("zipapp", str(place))
