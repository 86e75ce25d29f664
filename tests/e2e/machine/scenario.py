"""Helpers of the scenarios on booted machines: gpunode installed on one, units watched, daemons that will not start."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from tests.e2e.chroot.scenario import NONINTERACTIVE, Answer, answer
from tests.e2e.lab.code import Mounts
from tests.e2e.lab.commands import Result
from tests.e2e.lab.distro import OLD, add_nonfree
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.node import Node
from tests.e2e.lab.pci import GTX_1080, Device
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.tree import COMPILED, PROJECT, SITE, Base

_M = TypeVar("_M", bound=Machine)
PROGRAM: Final = "/usr/local/bin/gpunode"
CONTAINERD: Final = "containerd.service"
DOCKER: Final = "docker.service"
PERSISTENCED: Final = "nvidia-persistenced.service"
UNIT_VERBS: Final = ("enable", "disable", "start", "stop", "restart", "reload")
CONTAINERD_CONFIG: Final = "/etc/containerd/config.toml"
DOCKER_CONFIG: Final = "/etc/docker/daemon.json"
_PROGRAMS: Final = (
    *("usr/sbin/dockerd", "usr/sbin/docker-proxy", "usr/bin/docker", "usr/bin/docker-init"),
    *("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc", "usr/bin/runc"),
)
_NUMBERS: Final = itertools.count(1)
# systemd-detect-virt sees the namespaces that the lab is made of.
_BARE_METAL: Final = "#!/bin/sh\necho none\nexit 1\n"
# As pip installs the entry point; SETTINGS stands for what a test makes shorter than a person would wait.
_ENTRY_POINT: Final = f"""\
#!/usr/bin/python3
import sys
sys.pycache_prefix = "{COMPILED}"
sys.path[:0] = ["{PROJECT}", "{SITE}"]
from gpunode.__main__ import main
SETTINGS
sys.exit(main())
"""
# A wrapper of a daemon, which starts as usual unless its configuration has NVIDIA's runtime.
_FUSSY: Final = """\
#!/bin/sh
how=$1 config=$2
shift 2
grep -q nvidia "$config" 2>/dev/null || exec "$@"
[ "$how" = dies ] && timeout 3 "$@"
echo "lab daemon: $how because of nvidia" >&2
[ "$how" = hangs ] && exec sleep 1000
exit 1
"""
# Visible traces of a loaded module of the old driver.
_LOADED: Final = f"""\
#!/bin/sh
mkdir -p /sys/module/nvidia /proc/driver/nvidia
echo {OLD} > /sys/module/nvidia/version
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {OLD}  Thu May  2 14:37:44 UTC 2024" > /proc/driver/nvidia/version
echo 1 > /run/lab-gpus
"""
# SD_MESSAGE_UNIT_STARTING of sd-messages.h.
_STARTING: Final = "7d4958e842da4a758f6c1cdc7b36dcc5"
_FUSSY_PATH: Final = "/usr/local/sbin/lab-fussy"


@dataclass(frozen=True, slots=True)
class Machines:
    """Makes machines for scenarios that outlive one test."""

    folder: Path
    repositories: Repositories
    code: Mounts

    def make(self, base: Base, devices: Iterable[Device] = (GTX_1080,)) -> Machine:
        """Return a machine that has not booted yet."""
        return self.make_of(Machine, base, devices)

    def make_of(self, kind: type[_M], base: Base, devices: Iterable[Device]) -> _M:
        """Make a machine as `make` does, of a subclass of Machine."""
        # Unique on the machine: others may run the same tests, and a node's leftovers are found by this name.
        scratch = self.folder / f"{self.folder.name}-machine-{next(_NUMBERS)}"
        return kind(base, scratch, devices=devices, archives=self.repositories, code=self.code)

    def furnish(self, node: Node, directory: str = "debian12") -> None:
        """Install gpunode on ``node``, which counts as bare metal, with recipes for the lab's repositories."""
        node.write("/usr/local/bin/systemd-detect-virt", _BARE_METAL, 0o755)
        node.write(PROGRAM, _ENTRY_POINT.replace("SETTINGS", ""), 0o755)
        for name, more in _RECIPES.items():
            text = f'schema = 1\nextends = "{name.partition("-")[0]}"\n{self.repositories.recipe(directory)}{more}'
            node.write(f"/root/{name}.toml", text)


_RECIPES: Final = {
    "containerd": "",
    "docker": "",
    "docker-default": "[runtime]\nset_as_default = true\n",
    "docker-cdi": "[runtime]\ncdi = true\n",
}


@dataclass(frozen=True, slots=True)
class Start:
    """A daemon's latest start.

    Attributes:
        starts: how often systemd has started it, or tried to, in this boot.
    """

    pid: int
    at: str
    starts: int


def run_old_driver(node: Machine) -> None:
    """Install and load the distribution's driver of branch 470."""
    node.write("/usr/lib/lab/load-old", _LOADED, 0o755)
    add_nonfree(node)
    node.run("apt-get", "-y", "install", "nvidia-driver", env=NONINTERACTIVE)
    node.run("/usr/lib/lab/load-old")


def impatient(node: Machine) -> str:
    """Install a second gpunode that expects a daemon to start within 4 s; return the program."""
    settings = "import gpunode.host.services as services\nservices._START_TIMEOUT_S = 4.0"
    node.write(f"{PROGRAM}-impatient", _ENTRY_POINT.replace("SETTINGS", settings), 0o755)
    return f"{PROGRAM}-impatient"


def ask(node: Machine, *arguments: str, program: str = "gpunode") -> Answer:
    """Return the answer to ``gpunode ARGUMENTS --json``."""
    return answer(node.finish(program, *arguments, "--json"))


def setup(node: Machine, recipe: str, *options: str, program: str = "gpunode") -> Answer:
    """Return the answer to ``gpunode setup`` with one of the recipes."""
    return ask(node, "setup", f"/root/{recipe}.toml", "--yes", *options, program=program)


def setup_ok(node: Machine, recipe: str, *options: str) -> Answer:
    """Run `setup`, and assert that nothing went wrong."""
    done = setup(node, recipe, *options)
    assert done.exit_code == 0, f"{done.error}\n{done.result}\n{done.stderr}"
    return done


def show(node: Machine, unit: str, *properties: str) -> list[str]:
    """Return the values of the unit's properties in systemd, in their order."""
    return [node.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip() for name in properties]


def start_of(node: Machine, unit: str) -> Start:
    """Return the daemon's latest start."""
    pid, at = show(node, unit, "MainPID", "ExecMainStartTimestampMonotonic")
    node.run("journalctl", "--sync")
    started = node.run("journalctl", "--boot", "-q", "-o", "cat", f"UNIT={unit}", f"MESSAGE_ID={_STARTING}")
    return Start(int(pid), at, len(started.stdout.splitlines()))


def is_up(node: Machine, unit: str) -> bool:
    """True if the unit is active with a process of its own."""
    active, pid = show(node, unit, "ActiveState", "MainPID")
    return active == "active" and int(pid) > 0


def make_fussy(node: Machine, unit: str, how: str, *settings: str) -> None:
    """Keep the daemon from starting with NVIDIA's runtime in its configuration, although its parser accepts that.

    Args:
        how: ``refuses`` exits at once, ``hangs`` never becomes ready, ``dies`` runs for 3 s.
        settings: further lines of the unit's section.
    """
    config = CONTAINERD_CONFIG if unit == CONTAINERD else DOCKER_CONFIG
    daemon = "/usr/bin/containerd" if unit == CONTAINERD else "/usr/sbin/dockerd -H fd://"
    node.write(_FUSSY_PATH, _FUSSY, 0o755)
    lines = ("[Service]", "ExecStart=", f"ExecStart={_FUSSY_PATH} {how} {config} {daemon}", "NotifyAccess=all")
    node.write(_drop_in(unit), "\n".join((*lines, *settings)) + "\n")
    node.run("systemctl", "daemon-reload")


def make_tame(node: Machine, unit: str) -> None:
    """Let the daemon start as in its package."""
    node.path(_drop_in(unit)).unlink(missing_ok=True)
    node.run("systemctl", "daemon-reload")


def _drop_in(unit: str) -> str:
    return f"/run/systemd/system/{unit}.d/fussy.conf"


def restore(node: Machine, unit: str, path: str, content: str | None) -> None:
    """Run the daemon as in its package, with ``content`` as its configuration."""
    make_tame(node, unit)
    if content is None:
        node.path(path).unlink(missing_ok=True)
    else:
        node.write(path, content)
    node.run("systemctl", "reset-failed", unit)
    node.run("systemctl", "restart", unit)


def put_programs(node: Machine, base: Base) -> None:
    """Replace docker, containerd and runc by those of ``base``; their units stay."""
    node.run("systemctl", "stop", "docker.socket", DOCKER, CONTAINERD)
    for name in _PROGRAMS:
        for source in (root / name for root in base.layers if (root / name).is_file()):
            node.path(f"/{name}").unlink(missing_ok=True)
            shutil.copy2(source, node.path(f"/{name}"))
    node.run("systemctl", "start", CONTAINERD, "docker.socket", DOCKER)


def kill_at_restart(node: Machine) -> Result:
    """Kill ``gpunode setup`` when it has written the configuration and requests the daemon's restart."""
    return kill_at_unit_change(node, "setup", "/root/containerd.toml", "--yes", verbs=("restart",))


def kill_at_unit_change(node: Machine, *arguments: str, verbs: Sequence[str] = UNIT_VERBS, number: int = 1) -> Result:
    """Kill ``gpunode ARGUMENTS`` when it asks systemd for change ``number``, counted from 1, of those in ``verbs``.

    The change itself is not made.
    """
    count = "/run/lab-unit-changes"
    stand_in = f"""\
#!/bin/sh
case "$1" in
  {"|".join(verbs)})
    echo "$*" >> {count}
    [ "$(wc -l < {count})" -lt {number} ] || {{ kill -KILL $PPID; exit 1; }}
esac
exec /usr/bin/systemctl "$@"
"""
    path = node.write("/usr/local/sbin/systemctl", stand_in, 0o755)
    try:
        return node.finish("gpunode", *arguments)
    finally:
        path.unlink()
        node.path(count).unlink(missing_ok=True)
