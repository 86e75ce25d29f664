"""A booted machine with Secure Boot on: its key is queued, lost at a boot, queued again, confirmed; with kills.

mokutil, openssl, DKMS, sign-file and systemd are Debian's. The firmware is a folder in place of efivarfs, on the
machine's disk; at each boot a script does MokManager's work, and the kernel accepts the driver once the key is
enrolled.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.chroot.killing import DPKG_LOG
from tests.e2e.chroot.scenario import Answer
from tests.e2e.lab import nonfree
from tests.e2e.lab.archive import NoArchive
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.machine.scenario import Machines, ask, run_old_driver, setup, setup_ok
from tests.e2e.machine.test_reboot_resumes import UNIT, boots, finished_output, loaded_driver

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CERTIFICATE: Final = "/var/lib/dkms/mok.pub"
_FIRMWARE: Final = "/var/lib/lab-firmware"
_EFIVARS: Final = "/sys/firmware/efi/efivars"
_SWITCH: Final = "/var/lib/lab-secure-boot"
_CONSOLE: Final = "/var/lib/lab-at-console"
_SHIM: Final = "605dab50-e046-4300-abb6-3dd810dd8b23"
_MOKUTIL: Final = f'#!/bin/sh\nEFIVARFS_PATH={_EFIVARS}/ exec /usr/bin/mokutil "$@"\n'
_BOOT: Final = f"""\
#!/bin/sh
# A request is answered once, by somebody at the console or by nobody. The kernel (modprobe) rejects the driver's module
# until the key is enrolled.
set -e
cd {_FIRMWARE}
if [ -e MokNew-{_SHIM} ]; then
  if [ -e {_CONSOLE} ]; then mv MokNew-{_SHIM} MokListRT-{_SHIM}; fi
  rm -f MokNew-{_SHIM} MokAuth-{_SHIM}
fi
rm -f /lab-secure-boot
is_on=$(cat {_SWITCH})
printf "\\006\\000\\000\\000\\00$is_on" > SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
[ $is_on = 0 ] || [ -e MokListRT-{_SHIM} ] || touch /lab-secure-boot
mount -o remount,bind,rw /sys
mkdir -p {_EFIVARS}
mount --bind {_FIRMWARE} {_EFIVARS}
"""
_OWN_LIST: Final = "/etc/apt/sources.list.d/own.list"
_DROP_IN: Final = "[Service]\nExecStartPre=/usr/lib/lab/boot-firmware\n"
QUEUED: Final = "already in the enrollment request"
# Slightly less than `progress` counts in an undisturbed run.
_STEPS_TO_REQUEST: Final = 58
_STEPS_TO_DRIVER: Final = 88
_PASSWORD: Final = "chosen2026"
_IMPORT: Final = f"mokutil --import {CERTIFICATE} --hash-file /run/gpunode-mok-password"


@pytest.fixture
def node(bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    """Yield a machine whose next boot has Secure Boot on; its archives contain the tools that enrol keys."""
    base = bases["bookworm"].runtime
    try:
        debs = nonfree.provide(base, nonfree.DRIVER, machines.folder / "fetch-bookworm")
    except NoArchive as error:
        pytest.skip(f"no mokutil without Debian's archive: {error}")
    line = nonfree.offer(debs, machines.repositories.root, base, machines.repositories.keys.debian)
    with machines.make(base) as node:
        machines.furnish(node)
        node.write("/usr/local/sbin/update-initramfs", "#!/bin/sh\nexit 0\n", 0o755)
        node.write(_OWN_LIST, line)
        node.run("apt-get", "update")
        node.write("/usr/local/bin/mokutil", _MOKUTIL, 0o755)
        node.write("/usr/lib/lab/boot-firmware", _BOOT, 0o755)
        node.path(_FIRMWARE).mkdir()
        node.write(_SWITCH, "1")
        node.write("/etc/systemd/system/lab-coldplug.service.d/firmware.conf", _DROP_IN)
        yield node
        left = marks(node)
    assert leftovers(left) == []


def boot(node: Machine, *, confirms: bool = False) -> None:
    """Reboot with a person at the console, or without."""
    console = node.path(_CONSOLE)
    if confirms:
        console.touch()
    else:
        console.unlink(missing_ok=True)
    node.reboot()


def setup_with_password(node: Machine, *options: str) -> Answer:
    """Run `setup` with a chosen one-time password."""
    node.write("/root/password", f"{_PASSWORD}\n", 0o600)
    return setup(node, "containerd", "--mok-password-file", "/root/password", *options)


def enrolment(node: Machine) -> str:
    """Return mokutil's answer about the certificate."""
    return node.finish("mokutil", "--test-key", CERTIFICATE).stdout.strip().removeprefix(f"{CERTIFICATE} is ")


def waits_at_console(node: Machine, done: Answer) -> bool:
    """True if a run ended with its request queued, the next step printed, and nouveau not blocked."""
    assert done.exit_code == 10, done.error
    assert "with console access" in done.error
    assert "Enroll MOK → Continue → Yes → the one-time password" in done.error
    assert not node.path("/root/password").exists()
    assert not node.path("/run/gpunode-mok-password").exists()
    assert "nvidia-kernel-dkms" not in node.installed()
    assert not node.path("/etc/modprobe.d/gpunode-nouveau.conf").exists()
    return enrolment(node) == QUEUED


def drives_with_enrolled_key(node: Machine) -> bool:
    """True if the driver is loaded, signed with the enrolled key, and nothing is left to do."""
    module = ("modinfo", "-k", node.kernel, "-F", "sig_key", "nvidia")
    serial = int(node.run(*module).stdout.strip().replace(":", ""), 16)
    shown = node.run("openssl", "x509", "-inform", "DER", "-in", CERTIFICATE, "-noout", "-serial").stdout
    assert int(shown.strip().removeprefix("serial="), 16) == serial
    assert enrolment(node) == "already enrolled"
    assert loaded_driver(node) == "580.178.04"
    assert not node.path("/var/lib/gpunode/secure-boot-request").exists()
    assert node.run("dpkg", "--audit").stdout == ""
    return setup_ok(node, "containerd").envelope["changed"] is False


def test_request_is_queued_forgotten_queued_again_and_confirmed(node: Machine) -> None:
    boot(node)
    assert waits_at_console(node, setup_with_password(node))
    assert [one["subject"] for one in setup_with_password(node).changes] == []
    node.path("/root/password").unlink()
    before = node.installed(), node.fingerprint("/etc", "/var/lib/dkms")

    boot(node)
    assert enrolment(node) == "not enrolled"
    planned = ask(node, "plan", "/root/containerd.toml").result["steps"]
    (reason,) = [step["reason"] for step in planned if step["id"] == "secure-boot"]
    assert "nobody has confirmed its enrolment at the console, so it is queued again" in reason
    again = setup_with_password(node)
    assert waits_at_console(node, again)
    assert [one["subject"] for one in again.changes] == [_IMPORT]
    assert (node.installed(), node.fingerprint("/etc", "/var/lib/dkms")) == before

    boot(node, confirms=True)
    assert not node.path("/proc/driver/nvidia/version").exists()
    setup_ok(node, "containerd")
    assert drives_with_enrolled_key(node)
    assert node.finish("grep", "-r", _PASSWORD, "/var/lib/gpunode", "/var/log").stdout == ""
    boot(node)
    assert drives_with_enrolled_key(node)


def test_resumed_setup_ends_where_somebody_has_to_be_at_the_console(node: Machine) -> None:
    node.write(_SWITCH, "0")
    boot(node)
    # Besides the tools that enrol keys there is a newer driver, which an old machine has not seen.
    line = node.read(_OWN_LIST)
    node.write(_OWN_LIST, "")
    run_old_driver(node)
    node.write(_OWN_LIST, line)
    node.run("apt-get", "update")
    # The firmware is set to Secure Boot during the reboot.
    node.write(_SWITCH, "1")
    first = node.boot_id()
    assert setup(node, "containerd", "--reboot").exit_code == 10
    node.wait_reboot(first)
    said = finished_output(node)
    assert "there is no terminal to show the one-time password of the key's enrolment; nothing was changed" in said
    assert "add --mok-password-file FILE" in said
    assert boots(node) == 3
    assert not node.path("/proc/driver/nvidia/version").exists()

    # --reboot does not reboot if a reboot alone does not help.
    second = node.boot_id()
    waiting = setup_with_password(node, "--reboot")
    assert waiting.exit_code == 10
    assert "with console access" in waiting.error
    assert enrolment(node) == QUEUED
    assert node.boot_id() == second
    assert not node.path(f"/etc/systemd/system/{UNIT}").exists()

    boot(node, confirms=True)
    done = setup_ok(node, "containerd")
    assert [one["subject"] for one in done.changes] == ["/var/lib/gpunode/secure-boot-request", "mokutil --timeout 10"]
    assert drives_with_enrolled_key(node)


def progress(root: Path) -> int:
    """Return the number of lines of all journals, and of changes of a package's state that dpkg has logged."""
    journals = (root / "var/lib/gpunode/runs").glob("*/journal.jsonl")
    log = root / DPKG_LOG.lstrip("/")
    return sum(one.read_bytes().count(b"\n") for one in journals) + log.read_bytes().count(b" status ")


def kill_setup(node: Machine, chance: random.Random, steps: int) -> None:
    """Kill a setup with SIGKILL at a random one of its ``steps``: alone, or with all its children.

    If it is killed alone, systemd ends the rest.
    """
    whom, step = chance.choice(("gpunode", "everything")), chance.randint(1, steps)
    node.write("/root/password", f"{_PASSWORD}\n", 0o600)
    root = node.path("/")
    processes = root / "sys/fs/cgroup/system.slice/lab-setup.service/cgroup.procs"
    before = progress(root)
    argv = ("gpunode", "setup", "/root/containerd.toml", "--yes", "--mok-password-file", "/root/password")
    unit = ("systemd-run", "--wait", "--quiet", "--collect", "--unit=lab-setup")
    waiting = node.start(*unit, *argv, log="/root/setup.log")
    while progress(root) - before < step:
        assert waiting.poll() is None, node.read("/root/setup.log")
        time.sleep(0.001)
    victims = sorted(map(int, processes.read_text().split()))
    for victim in victims[:1] if whom == "gpunode" else victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    assert waiting.wait(60) != 0
    print(f"killed {whom} at step {step} of {steps}, {progress(root) - before} were done {enrolment(node)}")
    node.path("/root/password").unlink(missing_ok=True)


@pytest.mark.parametrize("seed", [2, 3, 5, 11, 17, 23])
def test_killed_setup_is_finished_after_the_next_boot(node: Machine, seed: int) -> None:
    chance = random.Random(seed)
    boot(node)
    kill_setup(node, chance, _STEPS_TO_REQUEST)
    boot(node)
    assert waits_at_console(node, setup_with_password(node))

    boot(node, confirms=True)
    kill_setup(node, chance, _STEPS_TO_DRIVER)
    boot(node)
    setup_ok(node, "containerd")
    assert drives_with_enrolled_key(node)
