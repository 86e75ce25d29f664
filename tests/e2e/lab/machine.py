"""A test node with systemd as its init: units, boots and reboots are real; the kernel is the machine's own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final

from tests.e2e.lab.commands import LabError
from tests.e2e.lab.node import Node

# Each boot finds the hardware in its initial state: a driver's changes are gone, as after any reboot.
# 133 is systemd-nspawn's answer to a reboot.
_POWER: Final = """
hardware=$1; shift
mkdir -p /sys/fs/cgroup/machine
echo 0 > /sys/fs/cgroup/machine/cgroup.procs
cp -a "$hardware" "$hardware.pristine"
while :; do
  rm -rf "$hardware"
  cp -a "$hardware.pristine" "$hardware"
  "$@"
  status=$?
  echo "exit $status"
  [ $status = 133 ] || exit $status
done
"""
# The node mounts the hardware itself: systemd-nspawn cannot bind below /proc and /sys, and leaves most of /sys out.
# Then the driver is loaded, as udev does for devices on the kernel's own bus.
_COLDPLUG: Final = """\
[Unit]
Description=Load drivers for the devices of the lab
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mount -o remount,bind,rw /sys
ExecStart=/bin/mkdir -p /sys/module
MOUNTSExecStart=/bin/mount -o remount,bind,ro /sys
ExecStart=-/usr/sbin/modprobe nvidia

[Install]
WantedBy=sysinit.target
"""


class Machine(Node):
    """A node that has booted; its services start by themselves.

    Attributes:
        patience_s: how long a boot may take.
    """

    patience_s: ClassVar[float] = 60

    def enter(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` in the node."""
        kinds = ("mount", "pid", "net", "uts", "ipc", "cgroup", "root", "wd")
        leader = self._leader()
        return self.sandbox.argv("nsenter", f"--target={leader}", *(f"--{kind}" for kind in kinds), "--", *argv)

    def path(self, path: str) -> Path:
        """Return this process's path of the running node's ``path``; absolute symlinks in it lead outside the node."""
        return self.sandbox.inside(Path(f"/proc/{self._leader()}/root{path}"))

    def wait_running(self) -> None:
        """Wait until systemd has started all units of its default target, or some have failed."""
        self._wait(lambda: self._state() in {"running", "degraded"}, "booted")

    def boot_id(self) -> str:
        """Return an id that differs after each boot."""
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    def reboot(self) -> None:
        """Reboot the node, and wait until it is running again."""
        before = self.boot_id()
        self.finish("systemctl", "reboot")
        self.wait_reboot(before)

    def wait_reboot(self, before: str) -> None:
        """Wait until the node has booted again since ``before``, whoever requested it."""
        self._wait(lambda: self._booted_since(before), "rebooted")
        self.wait_running()

    def console(self) -> str:
        """Return the console output of the node and of systemd-nspawn."""
        return (self.sandbox.scratch / "console").read_text(errors="replace")

    def _boot(self) -> None:
        root = self.sandbox.inside(self.merged)
        (root / "etc/machine-id").write_text("6770756e6f64656c6162000000000001\n")
        unit = _COLDPLUG.replace("MOUNTS", "".join(self._mount_lines()))
        (root / "etc/systemd/system/lab-coldplug.service").write_text(unit)
        wanted = root / "etc/systemd/system/sysinit.target.wants"
        wanted.mkdir(exist_ok=True)
        link = wanted / "lab-coldplug.service"
        # A base that was made from a machine already has it.
        link.unlink(missing_ok=True)
        link.symlink_to("../lab-coldplug.service")
        power = ("sh", "-c", _POWER, "sh", os.fspath(self.hardware.folder), *self._nspawn())
        self._power = self.spawn(self.sandbox.argv(*power), self.sandbox.scratch / "console")
        self.wait_running()

    def _mount_lines(self) -> Iterator[str]:
        for target, source in self.hardware.mounts().items():
            inside = Path("/lab") / source.relative_to(self.hardware.folder)
            yield f"ExecStart=/bin/mount --bind {inside} {target}\n"

    def _nspawn(self) -> list[str]:
        binds = [f"--bind={source}:{target}" for target, source in {**self.storage(), **self.shared()}.items()]
        read_only = [f"--bind-ro={source}:{target}" for target, source in self.bound().items()]
        return [
            *("env", "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network", "systemd-nspawn", "--quiet", "--boot"),
            *("--register=no", "--keep-unit", "--capability=all", "--system-call-filter=@keyring bpf"),
            *("--console=pipe", "--resolv-conf=off", "--timezone=off", "--link-journal=no", "--machine=lab"),
            f"--directory={self.merged}",
            f"--bind={self.hardware.folder}:/lab",
            *binds,
            *read_only,
        ]

    def _leader(self) -> int:
        """Return the pid of the node's systemd in the sandbox."""
        processes = {}
        for stat in self.sandbox.inside(Path("/proc")).glob("[0-9]*/stat"):
            try:
                name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # It has ended meanwhile.
            processes[int(stat.parent.name)] = (name, int(rest.split()[1]))
        for number, (name, parent) in processes.items():
            if name in {"systemd", "init"} and processes.get(parent, ("", 0))[0] == "systemd-nspawn":
                return number
        raise LabError("the node is not up")

    def _state(self) -> str:
        return self.finish("systemctl", "is-system-running").stdout.strip()

    def _booted_since(self, before: str) -> bool:
        return self.boot_id() != before

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline and self._power.poll() is None:
            try:
                if condition():
                    return
            except (LabError, OSError):
                pass  # Between two boots no process answers.
            time.sleep(0.1)
        raise LabError(f"the node has not {what}:\n{self.console()[-4000:]}")
