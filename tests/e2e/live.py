"""Helpers of the tests of doctor on live nodes: realistic nodes, and remedies executed as printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.e2e.lab.commands import Result
from tests.e2e.lab.debs import Package, build_all
from tests.e2e.lab.node import Node
from tests.e2e.lab.tree import ADDRESS, COMPILED, PROJECT, SITE, Base
from tests.faults import Fault

NONINTERACTIVE: Final = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
# As pip installs the entry point.
_PROGRAM: Final = f"""\
#!/usr/bin/python3
import sys
sys.pycache_prefix = "{COMPILED}"
sys.path[:0] = ["{PROJECT}", "{SITE}"]
from gpunode.__main__ import main
sys.exit(main())
"""
# systemd-detect-virt would detect the lab's namespaces, and dmesg show the log of the machine that runs the lab.
_STAND_INS: Final = {
    "/usr/local/bin/gpunode": _PROGRAM,
    "/usr/local/bin/sudo": '#!/bin/sh\nexec "$@"\n',
    "/usr/local/bin/systemd-detect-virt": "#!/bin/sh\necho none\nexit 1\n",
    "/usr/local/bin/dmesg": "#!/bin/sh\ncat /run/lab-dmesg 2>/dev/null || :\n",
}
# A boot's effect on drivers: the initramfs and udev load them, and both respect blacklists.
_BOOT: Final = """\
rm -rf /run/lab-dmesg /run/lab-hangs
for device in /sys/bus/pci/devices/*; do
  [ ! -h "$device/driver" ] || rm "/sys/bus/pci/drivers/$(basename "$(readlink "$device/driver")")/${device##*/}"
  rm -f "$device/driver"
done
rm -rf /sys/module/nvidia /sys/module/nouveau /proc/driver/nvidia /run/lab-gpus /dev/nvidia*
bind() {
  mkdir -p "/sys/bus/pci/drivers/$1" "/sys/module/$(echo "$1" | tr - _)"
  for device in /sys/bus/pci/devices/*; do
    [ "$(cat "$device/vendor")" = 0x10de ] || continue
    ln -s "../../drivers/$1" "$device/driver"
    ln -s "../../devices/${device##*/}" "/sys/bus/pci/drivers/$1/${device##*/}"
  done
}
release=$(uname -r)
image=/run/lab-initramfs
rm -rf $image
[ ! -e /boot/initrd.img-$release ] || unmkinitramfs /boot/initrd.img-$release $image
if grep -qs '^options vfio-pci ids=10de' /etc/modprobe.d/*.conf; then
  bind vfio-pci
elif find $image -name 'nouveau.ko*' | grep -q . && ! grep -rqs '^blacklist nouveau' $image; then
  bind nouveau
elif [ -e /lib/modules/$release/kernel/drivers/gpu/drm/nouveau/nouveau.ko ] && [ -z "$(modprobe_of nouveau)" ]; then
  bind nouveau
fi
rm -rf $image
grep -qs '^blacklist nvidia$' /etc/modprobe.d/*.conf || modprobe nvidia || :
""".replace('[ -z "$(modprobe_of nouveau)" ]', "! grep -rqs '^blacklist nouveau' /etc/modprobe.d /lib/modprobe.d")
_QUESTION: Final = "y\n" * 20
Reboot = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """The answer of doctor on a node."""

    exit_code: int
    envelope: Mapping[str, Any]

    @property
    def causes(self) -> list[str]:
        """The root causes, as they are listed."""
        return [finding["cause"] for finding in self.envelope["findings"] if not finding["explained_by"]]

    @property
    def remedy(self) -> list[Mapping[str, Any]]:
        """The remedy of the first finding."""
        return list(self.envelope["findings"][0]["remedy"])

    def __str__(self) -> str:
        found = [
            f"{one['cause']} < {one['explained_by'] or 'root'}: {one['summary']}" for one in self.envelope["findings"]
        ]
        return "\n".join((f"exit {self.exit_code}", *found, *(one["question"] for one in self.envelope["unknown"])))


@dataclass(slots=True)
class Carried:
    """An executed remedy: each command as typed, and its result."""

    lines: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, command: str, done: Result) -> None:
        """Run ``command``, and add it."""
        self.lines.append(f"$ {command}\n{(done.stdout + done.stderr)[-1500:]}[{done.returncode}]")
        # 7: gpunode did its step, and says that more is needed; 10: a reboot, which a later step makes.
        if done.returncode and not ("gpunode setup" in command and done.returncode in {7, 10}):
            self.failed.append(command)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def dress(node: Node, recipes: Callable[[str], str]) -> None:
    """Put gpunode and sudo on the node's PATH; it counts as bare metal, and recipes name the lab's archives."""
    for path, text in _STAND_INS.items():
        node.write(path, text, 0o755)
    for name in ("bare-metal", "containerd", "docker", "k8s-containerd"):
        recipe = f'schema = 1\nextends = "{name}"\n{recipes("debian12")}'
        node.write(f"/root/{name}.toml", recipe)
        node.write(f"/root/{name}-580.toml", f'{recipe}[driver]\nversion = "580"\n')


def preserved(node: Node, folder: Path) -> Base:
    """Halt ``node`` and return a base with the content of its disk, from which nodes start quickly."""
    node.halt()
    node.upper.rename(folder)
    return replace(node.base, layers=(folder, *node.base.layers))


def boot(node: Node) -> None:
    """Do the work of a boot on a node that has no boots."""
    node.run("sh", "-c", _BOOT)


def diagnose(node: Node, *, user: bool = False, path: str = "") -> Diagnosed:
    """Return the answer to ``gpunode doctor --json`` on the node.

    Args:
        node: the node to diagnose.
        user: whether an ordinary user runs it.
        path: the PATH, if not the usual one.
    """
    as_user = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups") if user else ()
    # Not through env, which would look for the program on the new PATH.
    start = f"PATH={path}; export PATH; exec /usr/bin/python3 /usr/local/bin/gpunode doctor --json"
    asked = ("sh", "-c", start) if path else ("gpunode", "doctor", "--json")
    done = node.finish(*as_user, *asked, timeout=120)
    assert done.stdout.count("\n") == 1, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    envelope = json.loads(done.stdout)
    assert envelope["exit_code"] == done.returncode
    assert "Traceback" not in done.stderr
    return Diagnosed(done.returncode, envelope)


def carry_out(node: Node, fault: Fault, remedy: list[Mapping[str, Any]], reboot: Reboot) -> Carried:
    """Carry out the steps of ``remedy`` in order: commands as printed, manual steps as in the fault's data.

    A conditional step is done if the fault says that the condition holds; a step that begins with "or" is done if the
    one before it failed.
    """
    carried = Carried()
    for step in remedy:
        if step["when"] and step["when"] not in fault.when:
            continue
        if step["text"].startswith("or ") and not carried.failed:
            continue
        if step["when"]:
            carried.failed.clear()  # that is what the condition says
        if not step["commands"] and fault.hand:
            carried.add(f"# {step['text']}", node.finish("sh", "-c", fault.hand))
        for command in step["commands"]:
            if command == "sudo systemctl reboot":
                reboot()
                carried.lines.append(f"$ {command}")
                continue
            done = node.finish("sh", "-c", typed(command), env=NONINTERACTIVE, stdin=_QUESTION, timeout=600)
            # These only show something: fuser fails if nothing uses a GPU, and is not on every system.
            if step["kind"] in {"inspect", "drain"}:
                carried.lines.append(f"$ {command}\n{(done.stdout + done.stderr)[-500:]}[{done.returncode}]")
            else:
                carried.add(command, done)
    return carried


def typed(command: str) -> str:
    """Return ``command`` as typed in the lab: setup gets its recipe, with the lab's archives, and consent."""
    if "gpunode setup" not in command:
        return command
    words = shlex.split(command)
    at = words.index("setup")
    runtime = "bare-metal"
    if words[at + 1 :] and not words[at + 1].startswith("-"):
        runtime = words.pop(at + 1)
    if "--runtime" in words:
        option = words.index("--runtime")
        runtime = words[option + 1]
        del words[option : option + 2]
    return shlex.join((*words[: at + 1], f"/root/{runtime}.toml", "--yes", *words[at + 1 :]))


def said(carried: Carried, *answers: Diagnosed) -> str:
    """Return everything, for the message of a failing test."""
    return "\n".join(_parts(carried, answers))


def _parts(carried: Carried, answers: tuple[Diagnosed, ...]) -> Iterator[str]:
    yield from map(str, answers)
    yield str(carried)


_OTHER: Final = "570.86.15"
# Tools for causing faults, on a node that is set up.
_STOCK: Final = f"""\
set -e
mkdir -p /root/faults/595
printf 'Package: /nvidia|cuda|nvcuvid/\\nPin: version 595.*\\nPin-Priority: 1001\\n' > /root/faults/595/pin
cp -r /usr/src/nvidia-580.178.04 /root/module
sed -i 's/580\\.178\\.04/{_OTHER}/' /root/module/Makefile
make -s -C /root/module KVER="$(uname -r)" >/dev/null
mv /root/module/nvidia.ko /root/faults/nvidia-{_OTHER}.ko
rm -r /root/module
cp /root/faults/nvidia-{_OTHER}.ko /root/faults/other.ko
echo 'int cuInit(unsigned flags) {{ return 34; }}' | gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -x c - -o \
/root/faults/libcuda.so.1
"""
# A kubelet as kubeadm leaves one; its program only stays.
_KUBELET: Final = {
    "/var/lib/kubelet/config.yaml": """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
""",
    "/lib/systemd/system/kubelet.service": """\
[Service]
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml
[Install]
WantedBy=multi-user.target
""",
    "/usr/bin/kubelet": "#!/bin/sh\nwhile :; do sleep 1000; done\n",
}
_NONFREE: Final = f"""\
#!/bin/sh
echo "deb [signed-by=/usr/share/keyrings/lab.gpg] {ADDRESS}/debian-nonfree/ /" > /etc/apt/sources.list.d/nonfree.list
apt-get update
"""
_HOLD_LOCK: Final = """\
#!/bin/sh
python3 -c 'import fcntl, time
lock = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
time.sleep(20)' >/dev/null 2>&1 </dev/null &
sleep 0.5
"""


def furnish(node: Node, stranger: bytes, *, stocked: bool) -> None:
    """Install the tools that cause faults on a node prepared by `dress`.

    Args:
        node: without a driver, or set up.
        stranger: a keyring whose key signs nothing.
        stocked: whether the node is set up and gets replacements for a driver's parts.
    """
    for name, text in {"lab-boot": f"#!/bin/sh\n{_BOOT}", "lab-nonfree": _NONFREE, "lab-hold-lock": _HOLD_LOCK}.items():
        node.write(f"/usr/local/sbin/{name}", text, 0o755)
    node.path("/root/faults").mkdir()
    node.path("/root/faults/stranger.gpg").write_bytes(stranger)
    if stocked:
        node.run("sh", "-c", _STOCK)
        build_all([Package("libcuda1", "580.65.06-1")], node.path("/root/faults"))
    node.run("apt-get", "update")


def add_kubelet(node: Node) -> None:
    """Install and enable a kubelet with systemd's cgroup driver and containerd."""
    for path, text in _KUBELET.items():
        node.write(path, text, 0o755 if path.startswith("/usr/bin") else 0o644)
    node.run("systemctl", "enable", "--now", "kubelet.service")


def make(node: Node, fault: Fault) -> None:
    """Make the fault."""
    node.run("sh", "-e", "-c", fault.shell, env=NONINTERACTIVE)
