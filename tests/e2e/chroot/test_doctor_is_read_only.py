"""doctor changes no byte of a node, for root or a user, and lists everything that a user could not see."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e import live
from tests.e2e.chroot.scenario import Lab
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e

# Files that administrators restrict, and files that are restricted by default.
CLOSED = {
    "/etc/modprobe.d/own.conf": "options nvidia NVreg_EnableGpuFirmware=0\n",
    "/etc/profile.d/own.sh": "export LD_LIBRARY_PATH=/opt/own/lib\n",
    "/etc/systemd/system/docker.service.d/proxy.conf": "[Service]\nEnvironment=HTTP_PROXY=http://proxy.example\n",
    "/etc/default/own": "LD_PRELOAD=/opt/own/lib/libown.so\n",
    "/etc/cdi/own.yaml": "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: []\n",
    "/etc/docker/daemon.json": "{}\n",
    "/var/log/fabricmanager.log": "Fabric Manager Log initializing at: 11/16/2026 06:12:00.000\n",
    "/var/log/apt/history.log.1": "Start-Date: 2026-10-02  06:11:02\n",
}
FOLDERS = ("/var/lib/kubelet/device-plugins", "/var/log/pods/gpu-operator_nvidia-device-plugin_1/ctr")


@pytest.fixture(scope="module", params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def node(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    with chroots.node(bases[request.param].runtime, [T4]) as made:
        live.dress(made, chroots.repositories.recipe)
        for path, text in CLOSED.items():
            made.write(path, text, 0o600)
        for folder in FOLDERS:
            made.path(folder).mkdir(parents=True)
            made.path(str(Path(folder).parent)).chmod(0o700)
        yield made


def disk(node: Chroot) -> Mapping[str, tuple[object, ...]]:
    """Return all writes to the node's disk, to the byte and nanosecond; for temporary folders, only what is left."""
    return dict(_rows(node.upper))


def _rows(top: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    for path in sorted(top.rglob("*")):
        place, status = f"/{path.relative_to(top)}", path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        owner = (oct(status.st_mode), status.st_uid, status.st_gid)
        if kind == stat.S_IFREG:
            yield place, (*owner, status.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        elif kind == stat.S_IFLNK:
            yield place, (*owner, os.readlink(path))
        elif place not in {"/tmp", "/var/tmp"}:
            yield place, (*owner, status.st_mtime_ns)


@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
def test_doctor_writes_nothing(node: Chroot, *, user: bool) -> None:
    before = disk(node)
    live.diagnose(node, user=user)
    assert disk(node) == before


def test_root_is_denied_nothing(node: Chroot) -> None:
    shown = live.diagnose(node).envelope["result"]["denied"]
    # The lab's proc and sys are parts of the machine's own.
    assert not [source for source in shown if source.startswith(("/etc", "/var", "grep", "tail", "ls"))]


def test_user_gets_a_list_of_denied_sources(node: Chroot) -> None:
    shown = " ".join(live.diagnose(node, user=True).envelope["result"]["denied"])
    named = {path for path in CLOSED if path in shown}
    # One search covers the variables in all files of units and services.
    assert set(CLOSED) - named <= {"/etc/systemd/system/docker.service.d/proxy.conf", "/etc/default/own"}
    for source in ("/etc/systemd", "/etc/default", "/var/lib/kubelet/device-plugins/*", "/var/log/pods/"):
        assert source in shown
