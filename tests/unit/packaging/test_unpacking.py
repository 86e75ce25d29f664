"""The folder that gpunode.pyz runs from: complete, kept while in use, and safe from other users."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import os
import shutil
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import payload
import pytest

ZIPAPP = Path(payload.__file__).parent / "zipapp"


def _load(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ZIPAPP / file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start() -> ModuleType:
    return _load("zipapp_start", "__main__.py")


@pytest.fixture
def unpack(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "__main__", start)
    module = _load("zipapp_unpack", "unpack.py")
    monkeypatch.setattr(module, "_payload", _modules)
    return module


def _modules() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("gpunode/__init__.py", "")
    return made.getvalue()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    return folder


def test_lock_of_another_user_does_not_block(start: ModuleType, cache: Path) -> None:
    descriptor = os.open(cache, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert start.hold_folder(str(cache))
    os.close(descriptor)


def test_deleted_or_replaced_folder_is_not_held(start: ModuleType, cache: Path) -> None:
    assert not start.hold_folder(str(cache / "gone"))
    descriptor = os.open(cache, os.O_RDONLY)
    cache.rename(cache.with_name("renamed"))
    cache.mkdir()
    assert not start.is_still(str(cache), descriptor)
    os.close(descriptor)


def test_other_versions_are_deleted_unless_in_use(unpack: ModuleType, start: ModuleType, cache: Path) -> None:
    for name in ("0.1.0", "0.2.0", ".partial-killed"):
        (cache / name / "gpunode").mkdir(parents=True)
    assert start.hold_folder(str(cache / "0.2.0"))
    made = unpack.into([str(cache)], "0.3.0")
    assert sorted(os.listdir(cache)) == ["0.2.0", "0.3.0"]
    assert made == str(cache / "0.3.0")


def test_interrupted_deletion_leaves_no_partial_version(
    unpack: ModuleType, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (cache / "0.1.0/gpunode").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        unpack.into([str(cache)], "0.2.0")
    assert "0.1.0" not in os.listdir(cache)


def test_full_disk_leaves_nothing_in_the_cache(
    unpack: ModuleType, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of-somebody"))
    monkeypatch.setattr(unpack, "_TEMPORARY", (str(tmp_path / "mine"),))
    monkeypatch.setattr(unpack.compileall, "compile_dir", lambda *_, **__: False)
    made = Path(unpack.into([str(cache)], "0.1.0"))
    assert made.parent == tmp_path / "mine"
    assert os.listdir(cache) == []


def test_missing_space_ends_with_one_sentence(
    unpack: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unpack, "_TEMPORARY", (str(tmp_path / "missing"),))
    with pytest.raises(SystemExit) as ended:
        unpack.into([], "0.1.0")
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith("gpunode cannot unpack itself: No such file or directory. ")


def test_cache_folder_is_never_relative(start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert list(start.cache_folders()) == ["/var/cache/gpunode"]


def test_cache_folder_of_another_user_is_not_run(
    start: ModuleType, unpack: ModuleType, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "cache_folders", lambda: [str(cache)])
    (cache / f"{start.VERSION}-{start.PAYLOAD_SHA256[:16]}").symlink_to(cache)
    monkeypatch.setitem(sys.modules, "unpack", unpack)
    monkeypatch.setattr(unpack, "_TEMPORARY", (str(cache.parent),))
    assert Path(start.find_or_unpack_modules()).parent == cache.parent
