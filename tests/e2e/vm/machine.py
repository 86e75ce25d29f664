"""A virtual machine whose power can be cut: QEMU without hardware support, its disk bypassing the host's page cache."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.lab.archive import debian_archive, demand_archive
from tests.e2e.lab.code import PROJECT, make_code
from tests.e2e.lab.commands import LabError, finish, run

TOOLS: Final = {
    "debugfs": "e2fsprogs",
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "qemu-system-x86_64": "qemu-system-x86",
}
_SUITE: Final = "bookworm"
_PACKAGES: Final = ("linux-image-cloud-amd64", "initramfs-tools", "python3")
_SYSTEM_SIZE: Final = "1500M"
# From 512 MB on, mkfs.ext4 uses the same settings as for a server's disk.
_NODE_SIZE: Final = "600M"
_INIT: Final = """\
#!/bin/sh
[ -d /proc/self ] || mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount /dev/vdb /node
cd /
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 PYTHONPATH=/opt/project:/opt/site
exec python3 -u /opt/guest.py
"""
_BOOT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Images:
    """The images that a machine boots.

    Attributes:
        system: Debian with gpunode, never written to.
        node: the file system that gpunode changes, ext4 as mkfs makes it.
    """

    kernel: Path
    initrd: Path
    system: Path
    node: Path


def make_images(folder: Path, recipes: dict[str, str], node: Path) -> Images:
    """Return a Debian 12 that runs ``guest.py`` on a node whose files are those below ``node``.

    Raises:
        NoArchive: there is no Debian archive that can be reached.
        LabError: building failed.
    """
    root = folder / "root"
    demand_archive(debian_archive(), _SUITE)
    options = [
        '--aptopt=APT::Install-Recommends "false"',
        "--dpkgopt=force-unsafe-io",
        f"--include={','.join(_PACKAGES)}",
    ]
    target = [_SUITE, os.fspath(root), debian_archive()]
    run(["mmdebstrap", "--variant=minbase", "--format=directory", *options, *target], timeout=1800)
    return images_of(folder, root, recipes, node)


def images_of(folder: Path, root: Path, recipes: dict[str, str], node: Path) -> Images:
    """Make images as ``make_images`` does, of an existing Debian."""
    for name in ("gpunode", "recipes"):
        shutil.copytree(PROJECT / name, root / "opt/project" / name, dirs_exist_ok=True)
    make_code(root / "opt/site")
    shutil.copyfile(Path(__file__).with_name("guest.py"), root / "opt/guest.py")
    for name, text in recipes.items():
        (root / "opt" / f"{name}.toml").write_text(text)
    (root / "node").mkdir(exist_ok=True)
    init = root / "sbin/power-cut-init"
    init.write_text(_INIT)
    init.chmod(0o755)
    images = Images(
        next(root.glob("boot/vmlinuz-*")),
        next(root.glob("boot/initrd.img-*")),
        folder / "system.img",
        folder / "node.img",
    )
    _format(images.system, root, _SYSTEM_SIZE)
    _format(images.node, node, _NODE_SIZE)
    return images


def _format(image: Path, tree: Path, size: str) -> None:
    run(["mkfs.ext4", "-q", "-F", "-d", os.fspath(tree), os.fspath(image), size], timeout=300)


@dataclass(slots=True)
class Machine:
    """A machine that runs until its power is cut."""

    images: Images
    console: Path
    _process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        with self.console.open("wb") as console:
            self._process = subprocess.Popen(
                _command(self.images), stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )

    def said(self) -> list[list[str]]:
        """Return the words of every complete line that the guest's program has written."""
        whole = self.console.read_bytes().rpartition(b"\n")[0].decode(errors="replace")
        return [line[1:].split() for line in whole.splitlines() if line.startswith("@")]

    def wait_until_ready(self) -> None:
        """Wait until the guest's program runs.

        Raises:
            LabError: it does not come up.
        """
        deadline = time.monotonic() + _BOOT_S
        while ["ready"] not in self.said():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.cut()
                raise LabError(f"the machine does not come up:\n{self.console.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def cut(self) -> None:
        """Cut the power: nothing in the guest's memory is written any more."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def _command(images: Images) -> Sequence[str]:
    append = "root=/dev/vda ro console=ttyS0 quiet mitigations=off panic=-1 init=/sbin/power-cut-init"
    return [
        *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "768"),
        *("-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio", "-nic", "none"),
        *("-drive", f"if=virtio,format=raw,readonly=on,file={images.system}"),
        *("-drive", f"if=virtio,format=raw,cache=none,file={images.node}"),
        *("-kernel", os.fspath(images.kernel), "-initrd", os.fspath(images.initrd), "-append", append),
    ]


def files_of(image: Path, folder: Path) -> Path:
    """Return the files of a disk as the next boot would find them, its journal replayed, in a new ``folder``.

    Raises:
        LabError: the file system itself has further damage.
    """
    folder.mkdir()
    copy = folder.with_suffix(".img")
    run(["cp", "--sparse=always", os.fspath(image), os.fspath(copy)])
    checked = finish(["e2fsck", "-p", os.fspath(copy)])
    # 1: it replayed its journal or fixed errors automatically (e2fsck(8)).
    if checked.returncode > 1:
        raise LabError(f"e2fsck exits with {checked.returncode}: {checked.stdout}{checked.stderr}")
    run(["debugfs", "-R", f"rdump / {folder}", os.fspath(copy)])
    copy.unlink()
    (folder / "lost+found").rmdir()
    return folder
