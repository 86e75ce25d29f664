"""Links in an image's data: whatever root writes, reads and deletes for the image stays inside it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.conformance.hostile.image import DAEMON_JSON, Image, gpunode, make_image, needs_root

pytestmark = needs_root
RECORD = "var/lib/gpunode"


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_image(tmp_path)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder of the machine's own, with files that the image's owner would like to change."""
    folder = tmp_path / "host"
    folder.mkdir()
    for name in ("passwd", ".hidden"):
        (folder / name).write_text("mine\n")
    return folder


def look(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def configure(image: Image) -> str:
    """Configure docker, which needs no consent; return the refusal."""
    answer = gpunode("ctk", "runtime", "configure", "--runtime=docker", "--root", str(image.root))
    assert answer.exit_code != 0, answer.said
    assert "Traceback" not in answer.said
    return answer.err


class TestRecordFolder:
    """Its names are predictable: a backup's is the sha256 of a file that the image holds."""

    def link(self, image: Image, name: str, target: Path) -> None:
        place = image.path(f"{RECORD}/{name}")
        for folder in (f"{RECORD}/runs", f"{RECORD}/objects"):
            image.path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        image.path(RECORD).chmod(0o700)
        place.symlink_to(target)

    def assert_refused(self, image: Image, name: str) -> None:
        before = image.tree()
        said = configure(image)
        assert f"{image.path(RECORD)}/{name} is not a folder but a link or a file" in said
        assert "next: look at it with `ls -ld" in said
        assert image.tree() == before
        assert list(image.path(f"{RECORD}/runs").glob("*/journal.jsonl")) == []

    def test_backup_is_not_written_through_a_link(self, image: Image, outside: Path) -> None:
        digits = hashlib.sha256(image.path(DAEMON_JSON).read_bytes()).hexdigest()[:2]
        before = look(outside)
        self.link(image, f"objects/{digits}", outside)
        self.assert_refused(image, f"objects/{digits}")
        assert look(outside) == before

    def test_surplus_backups_are_not_deleted_through_a_link(self, image: Image, outside: Path) -> None:
        before = look(outside)
        self.link(image, "objects/aa", outside)
        self.assert_refused(image, "objects/aa")
        assert look(outside) == before

    def test_link_with_another_name_is_not_entered(self, image: Image, outside: Path) -> None:
        before = look(outside)
        self.link(image, "objects/zz", outside)
        gpunode("ctk", "runtime", "configure", "--runtime=docker", "--root", str(image.root))
        assert look(outside) == before
