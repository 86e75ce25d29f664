"""Debian's own driver for real: built by DKMS, signed with gpunode's key, undone; and a build that fails.

apt, dpkg, DKMS, gcc, the kernel's headers and its sign-file, openssl, mokutil and the driver are Debian's. The firmware
is a folder in place of efivarfs, in which the test confirms the key that mokutil queued. No kernel loads the module.
"""

from __future__ import annotations

import hashlib
import lzma
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.chroot.scenario import DIRECTORIES, Lab, ask
from tests.e2e.lab import nonfree
from tests.e2e.lab.archive import NoArchive
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import Result
from tests.e2e.lab.pci import GTX_1080

pytestmark = [pytest.mark.e2e, pytest.mark.long]

BRANCHES: Final = {"bookworm": "535", "trixie": "550"}
EFIVARS: Final = "/sys/firmware/efi/efivars"
SECURE_BOOT: Final = f"{EFIVARS}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM: Final = "605dab50-e046-4300-abb6-3dd810dd8b23"
MOKUTIL: Final = f'#!/bin/sh\nEFIVARFS_PATH={EFIVARS}/ exec /usr/bin/mokutil "$@"\n'
RECIPE: Final = ("bare-metal", "--driver-source", "distro")
BUILD_S: Final = 1800.0
MAGIC: Final = b"~Module signature appended~\n"
# Folders to which DKMS and the driver's packages write.
FOLDERS: Final = ("/etc/modprobe.d", "/etc/apt", "/etc/modules-load.d", "/usr/src", "/usr/lib/modules")


@dataclass
class Machine:
    """A node with Debian's archive, which has Debian's driver in its own components."""

    node: Chroot
    branch: str
    offered: dict[str, str]

    def setup(self, *more: str) -> Result:
        return self.node.gpunode("setup", *RECIPE, "--yes", *more, timeout=BUILD_S)

    def switch_secure_boot_on(self) -> None:
        self.node.sandbox.mount("-t", "tmpfs", "tmpfs", self.node.merged / "sys/firmware")
        self.node.path(EFIVARS).mkdir(parents=True)
        self.node.path(SECURE_BOOT).write_bytes(b"\x06\0\0\0\x01")
        self.node.write("/usr/local/bin/mokutil", MOKUTIL, 0o755)

    def confirm_enrolment(self) -> None:
        """Do what MokManager does after the user has typed the password."""
        self.node.path(f"{EFIVARS}/MokNew-{SHIM}").rename(self.node.path(f"{EFIVARS}/MokListRT-{SHIM}"))
        self.node.path(f"{EFIVARS}/MokAuth-{SHIM}").unlink()

    def module(self) -> Path:
        found = sorted(self.node.path(f"/usr/lib/modules/{self.node.kernel}/updates/dkms").glob("nvidia-current.ko*"))
        assert len(found) == 1, found
        return found[0]


@contextmanager
def make_machine(codename: str, bases: dict[str, Bases], chroots: Lab, lab: Path) -> Iterator[Machine]:
    base = bases[codename].runtime
    try:
        debs = nonfree.provide(base, nonfree.DRIVER, lab / f"fetch-{codename}")
    except NoArchive as error:
        pytest.skip(f"no driver of Debian's without its archive: {error}")
    line = nonfree.offer(debs, chroots.repositories.root, base, chroots.repositories.keys.debian)
    with chroots.node(base, [GTX_1080]) as node:
        node.write("/usr/bin/systemd-detect-virt", "#!/bin/sh\necho none\nexit 1\n", 0o755)
        node.write("/etc/apt/sources.list.d/nonfree.list", line)
        node.run("apt-get", "update")
        offered = (deb.name.split("_")[:2] for deb in debs.glob("*.deb"))
        yield Machine(node, BRANCHES[codename], {name: version.replace("%3a", ":") for name, version in offered})


@pytest.fixture(scope="module", params=BRANCHES)
def machine(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab, lab: Path) -> Iterator[Machine]:
    with make_machine(request.param, bases, chroots, lab) as made:
        yield made


@pytest.fixture(scope="module")
def enrolled(machine: Machine) -> Machine:
    """Return the machine with its key made by gpunode, queued by mokutil and confirmed."""
    machine.switch_secure_boot_on()
    machine.node.write("/root/password", "chosen2026\n", 0o600)
    first = machine.setup("--mok-password-file", "/root/password")
    assert first.returncode == 10, first
    assert not machine.node.path("/root/password").exists()
    assert (
        "already in the enrollment request"
        in machine.node.finish("mokutil", "--test-key", "/var/lib/dkms/mok.pub").stdout
    )
    machine.confirm_enrolment()
    return machine


@dataclass(frozen=True)
class Before:
    """The packages and files of the node before the driver."""

    installed: dict[str, str]
    files: dict[str, bytes]


def hash_files(node: Chroot) -> dict[str, bytes]:
    """Return the hash of each file in FOLDERS; depmod rewrites its lists, so times do not count."""
    found = (path for folder in FOLDERS for path in node.path(folder).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).digest() for path in found if not path.is_symlink()}


@pytest.fixture(scope="module")
def built(enrolled: Machine) -> tuple[Machine, Before, Result]:
    before = Before(enrolled.node.installed(), hash_files(enrolled.node))
    return enrolled, before, enrolled.setup()


def openssl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)


def split_signature(module: bytes) -> tuple[bytes, bytes]:
    """Return a module without its signature, and the signature. Source: include/linux/module_signature.h."""
    assert module.endswith(MAGIC)
    end = len(module) - len(MAGIC) - 12
    size = int.from_bytes(module[end + 8 : end + 12], "big")
    return module[: end - size], module[end - size : end]


def test_driver_is_built_for_the_kernel_and_loaded(built: tuple[Machine, Before, Result]) -> None:
    machine, _, done = built
    shown = machine.node.run("modinfo", str(Path("/", machine.module().relative_to(machine.node.path("/"))))).stdout
    fields = dict(line.split(":", 1) for line in shown.splitlines() if ":" in line)
    assert fields["version"].strip().startswith(f"{machine.branch}."), shown
    assert fields["license"].strip() == "NVIDIA"
    assert fields["vermagic"].split()[0] == machine.node.kernel
    assert fields["signer"].strip() == "DKMS module signing key"
    # Real libraries find no driver in the lab's kernel: setup has done its part, and verify says that.
    assert done.returncode == 7, done.stdout + done.stderr
    assert "applied, but" in done.stderr


def test_signature_is_that_of_the_enrolled_key(built: tuple[Machine, Before, Result], tmp_path: Path) -> None:
    machine = built[0]
    path = machine.module()
    data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    content, signature = split_signature(data)
    pem = tmp_path / "mok.pem"
    assert (
        openssl("x509", "-inform", "DER", "-in", machine.node.path("/var/lib/dkms/mok.pub"), "-out", pem).returncode
        == 0
    )
    (tmp_path / "signature").write_bytes(signature)

    def verifies(text: bytes) -> bool:
        (tmp_path / "module").write_bytes(text)
        options = ("-verify", "-binary", "-inform", "DER", "-noverify", "-nointern", "-certfile", pem)
        files = ("-in", tmp_path / "signature", "-content", tmp_path / "module", "-out", "/dev/null")
        return openssl("cms", *options, *files).returncode == 0

    assert verifies(content)
    assert not verifies(content[:-1] + b"?")


def test_nothing_of_another_source_is_installed(built: tuple[Machine, Before, Result]) -> None:
    machine, before, _ = built
    new = {name: version for name, version in machine.node.installed().items() if name not in before.installed}
    assert {"nvidia-kernel-dkms", "libcuda1", "nvidia-smi", "nvidia-persistenced"} <= new.keys()
    assert new.items() <= machine.offered.items()


def test_second_run_changes_nothing(built: tuple[Machine, Before, Result]) -> None:
    machine = built[0]
    again = machine.node.gpunode("plan", *RECIPE, "--check")
    assert again.returncode == 0, again.stdout + again.stderr


def test_lock_of_this_node_installs_nothing_on_it(built: tuple[Machine, Before, Result]) -> None:
    machine = built[0]
    written = machine.node.gpunode("plan", *RECIPE, "--lock", "/root/lock.toml")
    assert written.returncode == 0, written.stdout + written.stderr
    locked = machine.node.gpunode("plan", *RECIPE, "--lock", "/root/lock.toml", "--check")
    # The pin of an exact version is all that a lock adds.
    assert locked.returncode == 4, locked.stdout + locked.stderr
    assert "gpunode-nvidia" in locked.stdout
    assert "transaction" not in locked.stdout


def test_rollback_takes_the_driver_back(built: tuple[Machine, Before, Result]) -> None:
    machine, before, _ = built
    done = machine.node.gpunode("rollback", "--packages", "--yes", timeout=600)
    assert done.returncode in {0, 10}, done.stdout + done.stderr
    assert machine.node.installed() == before.installed
    after = hash_files(machine.node)
    assert {path for path, content in before.files.items() if after.get(path) != content} == set()
    assert after.keys() - before.files.keys() == set()
    assert not list(machine.node.path("/var/lib/dkms").glob("nvidia*"))
    assert machine.node.path("/var/lib/dkms/mok.key").exists(), "the enrolled key is the machine's"


@pytest.mark.parametrize("codename", BRANCHES)
def test_setup_and_doctor_quote_the_compilers_error(
    codename: str, bases: dict[str, Bases], chroots: Lab, lab: Path
) -> None:
    with make_machine(codename, bases, chroots, lab) as machine:
        header = next(machine.node.path("/usr/src").glob("linux-headers-*-common/include/linux/pci.h"))
        header.write_text(f'#error "broken on purpose"\n{header.read_text()}')

        failed = machine.setup()

        assert failed.returncode == 6, failed.stdout + failed.stderr
        assert "broken on purpose" in failed.stderr
        assert "make.log" in failed.stderr
        found = ask(machine.node, "doctor")
        assert found.exit_code == 8
        (first,) = [finding for finding in found.envelope["findings"] if finding["cause"].startswith("dkms-build")]
        assert first == found.envelope["findings"][0], "the root cause"
        assert "broken on purpose" in first["citations"][0]["line"]
        assert "runfile-leftover" not in {finding["cause"] for finding in found.envelope["findings"]}


@pytest.mark.parametrize("codename", BRANCHES)
def test_apt_takes_nvidias_driver_away_for_the_own_one(
    codename: str, bases: dict[str, Bases], chroots: Lab, lab: Path
) -> None:
    """The real apt makes the plan, before anything is built."""
    with make_machine(codename, bases, chroots, lab) as machine:
        wanted = chroots.recipe(machine.node, DIRECTORIES[codename], extends="bare-metal")
        done = machine.node.gpunode("setup", wanted, "--yes", timeout=BUILD_S)
        assert done.returncode == 0, done.stdout + done.stderr
        planned = machine.node.gpunode("plan", wanted, "--driver-source", "distro")
        assert planned.returncode == 0, planned.stdout + planned.stderr
        assert "this cannot be done" not in planned.stdout
        (replaced,) = [line for line in planned.stdout.splitlines() if "downgrade" in line and "→" in line]
        assert "libcuda1, nvidia-smi, nvidia-kernel-dkms, nvidia-persistenced  580." in replaced
