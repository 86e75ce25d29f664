"""Helpers of the scenarios: a node that counts as a machine, a recipe for it, and parsed answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import Mounts
from tests.e2e.lab.commands import Result
from tests.e2e.lab.distro import add_nonfree
from tests.e2e.lab.pci import Device
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.tree import NATIVE, Base, use_archive

DIRECTORIES: Final = {"bookworm": "debian12", "trixie": "debian13"}
NONINTERACTIVE: Final = {"DEBIAN_FRONTEND": "noninteractive"}
RECIPE: Final = "/root/node.toml"
CONFIG: Final = "/etc/containerd/config.toml"
COMMENTED: Final = """\
# Written by hand on this node; do not lose it.
version = 2

[plugins]
  # The mirror in our own rack.
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.example/pause:3.9" # pinned, see the wiki

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true
"""
# Calls of apt, dpkg and the initramfs tools by any caller: gpunode, a maintainer script, dpkg itself.
_RECORDED: Final = ("apt-get", "apt-cache", "apt-config", "apt-mark", "dpkg", "dpkg-query", "update-initramfs")
_RECORDER: Final = """\
#!/bin/sh
echo "$(basename "$0") $*" >> /run/lab-calls
for folder in /usr/bin /usr/sbin; do
  [ -x "$folder/$(basename "$0")" ] && exec "$folder/$(basename "$0")" "$@"
done
"""
# systemd-detect-virt would detect the lab's namespaces.
_BARE_METAL: Final = "#!/bin/sh\necho none\nexit 1\n"
_OLD_DRIVER: Final = {"bookworm": "nvidia-driver", "trixie": "nvidia-tesla-470-driver"}
_NUMBERS: Final = itertools.count(1)

MakeNode = Callable[..., AbstractContextManager[Chroot]]


@dataclass(frozen=True, slots=True)
class Lab:
    """Makes nodes for scenarios that outlive one test."""

    folder: Path
    repositories: Repositories
    code: Mounts

    def node(self, base: Base, devices: Iterable[Device] = (), kernel: str = "") -> Chroot:
        """Return a node that is not entered yet."""
        scratch = self.folder / f"scenario-{next(_NUMBERS)}"
        return Chroot(base, scratch, devices=devices, archives=self.repositories, code=self.code, kernel=kernel)

    def recipe(self, node: Chroot, directory: str, extends: str = "containerd", more: str = "") -> str:
        """Return a recipe in ``node`` that takes its packages from the lab's repositories."""
        text = f'schema = 1\nextends = "{extends}"\n{self.repositories.recipe(directory)}{more}'
        node.write(RECIPE, text)
        return RECIPE


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of gpunode to a program."""

    exit_code: int
    envelope: Mapping[str, Any]
    stderr: str

    @property
    def changes(self) -> list[dict[str, Any]]:
        return list(self.envelope["changes"])

    @property
    def error(self) -> str:
        """The whole text of the first error."""
        first = self.envelope["errors"][0]
        return "\n".join((first["what"], first["why"], first["hint"]))

    @property
    def result(self) -> Mapping[str, Any]:
        return dict(self.envelope["result"])


@dataclass(frozen=True, slots=True)
class Called:
    """The programs started on a node since the last call."""

    lines: tuple[str, ...] = field(default=())

    def count(self, program: str, word: str = "") -> int:
        """Return how often ``program`` was started with ``word`` among its arguments; simulations are not counted."""
        return sum(
            line.split()[0] == program and (not word or word in line.split()) and "--simulate" not in line.split()
            for line in self.lines
        )


def as_machine(node: Chroot) -> None:
    """Make ``node`` count as bare metal, and record calls of apt and dpkg."""
    node.write("/usr/local/bin/systemd-detect-virt", _BARE_METAL, 0o755)
    # A cached base holds the stand-in as of its build.
    node.write("/usr/sbin/modprobe", (NATIVE / "modprobe.sh").read_text(), 0o755)
    for name in _RECORDED:
        node.write(f"/usr/local/sbin/{name}", _RECORDER, 0o755)


def mount_image(builder: Chroot, path: str, base: Base, repositories: Repositories) -> tuple[Path, Path]:
    """Mount at ``path`` for the builder a second tree of ``base``, without the lab's stand-ins.

    Returns the tree, and the folder that holds writes to it.
    """
    scratch, target = builder.sandbox.scratch, builder.merged / path.lstrip("/")
    parts = {name: scratch / f"image-{name}" for name in ("upper", "work")}
    for folder in parts.values():
        folder.mkdir()
    builder.path(path).mkdir(parents=True)
    lower = ":".join(str(layer) for layer in base.layers)
    builder.sandbox.mount(
        *("-t", "overlay", "-o", f"lowerdir={lower},upperdir={parts['upper']},workdir={parts['work']},volatile"),
        *("overlay", target),
    )
    root = builder.path(path)
    use_archive(root, base, repositories.debian_keyring)
    for stand_in in ("etc/ld.so.preload", "usr/sbin/policy-rc.d"):
        (root / stand_in).unlink()
    (root / "etc/apt/apt.conf.d/90lab").write_text('Acquire::Languages "none";\n')
    return root, parts["upper"]


def called(node: Chroot) -> Called:
    """Return the programs started since the last call, and forget them."""
    path = node.path("/run/lab-calls")
    lines = tuple(path.read_text().splitlines()) if path.exists() else ()
    path.unlink(missing_ok=True)
    return Called(lines)


def ask(node: Chroot, *arguments: str, timeout: float = 300) -> Answer:
    """Return the answer to ``gpunode ARGUMENTS --json``."""
    return answer(node.gpunode(*arguments, "--json", timeout=timeout))


def answer(done: Result) -> Answer:
    """Return the output in ``done`` as an envelope; standard output holds nothing else."""
    assert done.stdout.count("\n") == 1, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    envelope = json.loads(done.stdout)
    assert envelope["exit_code"] == done.returncode
    return Answer(done.returncode, envelope, done.stderr)


def setup(node: Chroot, *options: str, recipe: str = RECIPE) -> Answer:
    """Return the answer to ``gpunode setup``."""
    return ask(node, "setup", recipe, "--yes", *options)


def setup_ok(node: Chroot, *options: str, recipe: str = RECIPE) -> Answer:
    """Run `setup`, and assert that it succeeded."""
    done = setup(node, *options, recipe=recipe)
    assert done.exit_code == 0, f"{done.error}\n{done.result}\n{done.stderr}"
    return done


def install_old_driver(node: Chroot) -> None:
    """Install the distribution's driver of branch 470 from the distribution's own archive.

    dkms of Debian 13 breaks a module package of that age; such a node has only the legacy packages.
    """
    add_nonfree(node)
    node.run("apt-get", "-y", "install", _OLD_DRIVER[node.base.codename], env=NONINTERACTIVE)
    give_kernel_modules(node)


def give_kernel_modules(node: Chroot) -> None:
    """Give the kernel its own modules: dkms of Debian 13 treats a kernel without modules as removed."""
    folder = f"/lib/modules/{node.kernel}"
    node.run("sh", "-c", f"mkdir -p {folder}/kernel && cp {folder}/updates/dkms/*.ko {folder}/kernel/lab.ko")
    node.run("depmod", "-a", node.kernel)


def add_toolkit_repository(node: Chroot, repositories: Repositories) -> None:
    """Add NVIDIA's toolkit repository, as its installation guide adds it."""
    keyring = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
    repositories.keys.toolkit.write_keyring(node.path(keyring))
    line = f"deb [signed-by={keyring}] {repositories.toolkit}/stable/deb/$(ARCH) /\n"
    node.write("/etc/apt/sources.list.d/nvidia-container-toolkit.list", line)
    node.run("apt-get", "update")


def by_kind(changes: Iterable[Mapping[str, Any]], kind: str) -> dict[str, Mapping[str, Any]]:
    """Return the changes of one kind, by subject."""
    return {change["subject"]: change for change in changes if change["kind"] == kind}
