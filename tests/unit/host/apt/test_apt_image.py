"""apt in an image that controls its own answers, links, pipes and devices: this machine stays untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpunode.errors import ChangeFailed
from gpunode.host import apt
from gpunode.host.locks import find_holder
from tests.unit.host.apt.test_apt_transact import DRIVER, INST, Bench

MISMATCH = (100, "", "E: Failed to fetch http://ssh.example/dists/x/InRelease  Hash Sum mismatch\n")
INDEX = "ssh.example_dists_x_InRelease"
LIST = "/etc/apt/sources.list.d/cuda.list"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return a folder of this machine outside the image."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / INDEX).write_text("mine")
    return tmp_path / "host"


def make_bench(tmp_path: Path, **answers: list[tuple[int, str, str]]) -> Bench:
    return Bench(tmp_path / "image", **answers)


def test_folder_of_apt_outside_its_root_is_refused(tmp_path: Path, host: Path) -> None:
    config = "L='/../host'\nA='/archives/'\nS='/dpkg/status'\nU='_apt'\n"
    bench = make_bench(tmp_path, config=[(0, config, "")], update=[MISMATCH])
    with pytest.raises(ChangeFailed, match="names folders that gpunode does not use") as stopped:
        bench.apt.refresh(())
    assert "'/../host'" in stopped.value.why
    assert os.listdir(host) == [INDEX]


@pytest.mark.parametrize("name", ["lists", "lists/partial"])
def test_index_behind_a_link_out_of_the_image_is_not_set_aside(tmp_path: Path, host: Path, name: str) -> None:
    bench = make_bench(tmp_path, update=[MISMATCH])
    if name == "lists":
        (tmp_path / "image/lists").rmdir()
    (tmp_path / "image" / name).symlink_to(host)
    bench.apt.refresh(())
    assert len(bench.runner.made("update")) == 2
    assert os.listdir(host) == [INDEX]


def test_folder_for_temporary_files_behind_a_link_is_not_used(tmp_path: Path, host: Path) -> None:
    config = "L='/state/lists/'\nA='/archives/'\nS='/dpkg/status'\nU='_apt'\n"
    bench = make_bench(tmp_path, config=[(0, config, "")])
    (tmp_path / "image/state").symlink_to(host)
    host.chmod(0o500)
    before = host.stat().st_mtime_ns
    with pytest.raises(ChangeFailed, match="/state cannot be used for apt's temporary files"):
        bench.apt.refresh(())
    assert host.stat().st_mtime_ns == before


@pytest.mark.usefixtures("allow_subprocess")
def test_list_and_passwd_that_are_pipes_are_not_waited_for(tmp_path: Path, host: Path) -> None:
    bench = make_bench(tmp_path)
    os.mkfifo(host / "pipe")
    for path in (LIST, "/etc/passwd"):
        place = tmp_path / f"image{path}"
        place.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(place)
    bench.apt.refresh([LIST])
    with pytest.raises(ChangeFailed, match="left nothing to read"):
        bench.apt.fetch("https://h.example/key", 100)


def test_fetched_file_that_is_a_link_is_not_read_outside(tmp_path: Path, host: Path) -> None:
    bench = make_bench(tmp_path)
    run = bench.runner.run

    def run_and_plant(argv: tuple[str, ...], **settings: object) -> object:
        if argv[0] == "prlimit":
            os.symlink(host / INDEX, tmp_path / f"image{argv[-1]}")
        return run(argv, **settings)  # type: ignore[arg-type]

    bench.runner.run = run_and_plant  # type: ignore[method-assign, assignment]
    with pytest.raises(ChangeFailed, match="left nothing to read"):
        bench.apt.fetch("https://h.example/key", 100)


def test_build_log_behind_a_link_out_of_the_image_is_not_shown(tmp_path: Path, host: Path) -> None:
    (host / INDEX).write_text("error: a secret of this machine\n")
    said = "Error! Bad return status for module build on kernel: 6.1.0-1-amd64 (x86_64)\n"
    said += "Consult /var/lib/dkms/nvidia/580/build/make.log for more information.\n"
    said += "dpkg: error processing package driver (--configure):\nE: Sub-process /usr/bin/dpkg returned an error\n"
    bench = make_bench(tmp_path, simulate=[(0, INST, "")], install=[(100, said, said)])
    log = tmp_path / "image/var/lib/dkms/nvidia/580/build/make.log"
    log.parent.mkdir(parents=True)
    log.symlink_to(host / INDEX)
    with pytest.raises(ChangeFailed) as stopped:
        bench.apt.transact((DRIVER,))
    assert "the kernel module of package driver does not build" in stopped.value.what
    assert "secret" not in f"{stopped.value.what}{stopped.value.why}"


def test_folders_of_this_machine_are_not_swept(tmp_path: Path, host: Path) -> None:
    (host / "gpunode-ab3_defg").mkdir()
    (tmp_path / "image/var/lib").mkdir(parents=True)
    (tmp_path / "image/var/lib/apt").symlink_to(host)
    apt.remove_temporary_folders(str(tmp_path / "image"))
    assert (host / "gpunode-ab3_defg").is_dir()


@pytest.mark.usefixtures("allow_subprocess")
def test_lock_behind_a_link_out_of_the_image_is_not_looked_at(tmp_path: Path, host: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/lock").symlink_to(host / INDEX)
    hold = f"import fcntl\nf = open({str(host / INDEX)!r}, 'r+')\nfcntl.lockf(f, 2)\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert find_holder(str(host / INDEX)) is not None
        assert find_holder("/lock", root=str(tmp_path / "image")) is None
        child.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes a device")
def test_device_in_the_place_of_a_lock_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        os.mknod(tmp_path / "lock", 0o020600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    opened: list[object] = []
    really = os.open

    def watch(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if not flags & os.O_PATH:
            opened.append(path)
        return really(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watch)
    assert find_holder("/lock", root=str(tmp_path)) is None
    assert opened == []
