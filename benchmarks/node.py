"""What setup costs on a node of the test lab, where apt, dpkg, DKMS and containerd are real: first run and re-run.

Every contender has a node of its own, so none finds the others' files. The node is a Debian 12 chroot with a GTX 1080
on its made PCI bus. NVIDIA's repositories are local and so is the distribution's, with the whole index of Debian 12:
apt has as much to read as on a real node, but no network is measured, which favours whoever asks the network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, cost, row, side_by_side, title
from tests.e2e.conftest import TOOLS
from tests.e2e.lab import bases as lab_bases
from tests.e2e.lab.archive import debian_archive, transport_options
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import make_code
from tests.e2e.lab.commands import LabError, run
from tests.e2e.lab.node import ENVIRONMENT
from tests.e2e.lab.pci import GTX_1080
from tests.e2e.lab.repositories import Repositories, discard_keys, make_repositories
from tests.e2e.lab.tree import ADDRESS, PROJECT, SITE

ROOT = Path(__file__).parent.parent
CONTENDERS = ROOT / "benchmarks/contenders"
# What others need, beside the project's own environment; kept between runs.
OTHERS = ROOT / "build/bench-site"
INSIDE = "/opt/lab/contenders"
RECIPE = "/tmp/node.toml"
RELEASE = "debian12"
HELPER = "/usr/lib/apt/apt-helper"
INDEX = "debian12-index"
INSTALLED = "/opt/gpunode"
PYTHON = {"PYTHONPATH": INSTALLED, "NO_COLOR": "1"}
GPUNODE = ("python3", "-m", "gpunode")
SETUP = (*GPUNODE, "setup", RECIPE, "--yes")
CONFIG = "version = 2\n# Written by hand.\n[plugins]\n"
NVIDIA_TOML = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
"""
# A command of the log: when it ended, how, after how long, and what it was.
LOGGED = re.compile(r"^\S+ (?:exit \d+|timeout) (\d+\.\d+) s: (.*)$", re.MULTILINE)
# Those whose time is not gpunode's: it waits for them one after the other.
FOREIGN = (
    "apt-",
    "prlimit",  # around apt-helper
    "dpkg ",
    "dkms",
    "update-initramfs",
    "systemctl",
    "containerd",
    "modprobe",
)


@dataclass(frozen=True, slots=True)
class Lab:
    """What nodes are made of."""

    folder: Path
    base: Any
    repositories: Repositories
    code: Any

    def node(self, name: str) -> Chroot:
        """A node that is not entered yet."""
        return Chroot(self.base, self.folder / name, devices=[GTX_1080], archives=self.repositories, code=self.code)


def benchmark() -> None:
    """Prints all that needs a node, or why there is none."""
    title("On a node: Debian 12, GTX 1080, local repositories")
    if os.geteuid() != 0:
        print("  not run: chroots need root")
        return
    if missing := sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None}):
        print(f"  not run: apt-get install {' '.join(missing)}")
        return
    try:
        with lab() as made:
            first_setup(made)
            converged(made)
    except LabError as error:
        print(f"  not run: {error}")


@contextmanager
def lab() -> Iterator[Lab]:
    """A lab with the base of Debian 12, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gpunode-bench-", dir="/var/tmp"))
    try:
        both = lab_bases.provide("bookworm", folder / "bookworm")
        repositories = make_repositories(folder / "www", [both.runtime])
        _whole_index(repositories)
        try:
            yield Lab(folder, both.runtime, repositories, make_code(folder / "site"))
        finally:
            discard_keys(repositories.keys)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _whole_index(repositories: Repositories) -> None:
    """An archive without packages, but with the index of all that Debian 12 has."""
    folder = repositories.root / INDEX
    folder.mkdir()
    url = f"{debian_archive().rstrip('/')}/dists/bookworm/main/binary-amd64/Packages.xz"
    run(
        [
            HELPER,
            *(word for one in transport_options() for word in ("-o", one)),
            "download-file",
            url,
            f"{folder}/Packages.xz",
        ]
    )
    run(["xz", "--decompress", "--keep", f"{folder}/Packages.xz"])
    release = run(["env", f"--chdir={folder}", "apt-ftparchive", "release", "."]).stdout
    (folder / "Release").write_text(release)
    (folder / "InRelease").write_text(repositories.keys.debian.clearsigned(release))


def prepare(made: Lab, node: Chroot) -> None:
    """The node is a machine with a configuration that a person wrote, and the contenders' inputs lie in it."""
    node.write("/etc/containerd/config.toml", CONFIG)
    # systemd-detect-virt would see the chroot that the node is.
    node.write("/usr/local/bin/systemd-detect-virt", "#!/bin/sh\necho none\nexit 1\n", 0o755)
    node.write(RECIPE, f'schema = 1\nextends = "containerd"\n{made.repositories.recipe(RELEASE)}')
    line = f"deb [signed-by=/usr/share/keyrings/lab.gpg] {ADDRESS}/{INDEX}/ /\n"
    node.write("/etc/apt/sources.list.d/index.list", line)
    node.write("/tmp/nvidia.toml", NVIDIA_TOML)
    node.write("/tmp/blacklist", "blacklist nouveau\noptions nouveau modeset=0\n")
    line = f"deb [signed-by=/etc/apt/keyrings/toolkit.asc] {made.repositories.toolkit}/stable/deb/$(ARCH) /\n"
    node.write("/tmp/toolkit.list", line)
    node.path("/etc/apt/keyrings").mkdir(parents=True, exist_ok=True)
    node.path(INSIDE).mkdir(parents=True, exist_ok=True)
    node.sandbox.bind(CONTENDERS, node.merged / INSIDE.lstrip("/"), read_only=True)
    node.run("apt-get", "update")
    _install(node)


def _install(node: Chroot) -> None:
    """The folder ``INSTALLED`` holds gpunode and what it needs, compiled beside their sources, as pip leaves them.

    A folder of its own for compiled modules would be lost on gpunode's children: Python's -I passes over PYTHON*.
    """
    node.path(INSTALLED).mkdir(parents=True)
    node.run("cp", "-r", f"{SITE}/.", f"{PROJECT}/gpunode", INSTALLED)
    node.run("cp", "-r", f"{PROJECT}/recipes", f"{INSTALLED}/gpunode/_recipes")
    node.run("python3", "-m", "compileall", "-q", INSTALLED)


def measured(node: Chroot, argv: tuple[str, ...], env: Mapping[str, str]) -> Cost:
    """What ``argv`` costs in the node."""
    settings = [f"{name}={value}" for name, value in {**ENVIRONMENT, **env}.items()]
    return cost(node.enter("env", "--ignore-environment", *settings, *argv))


def first_setup(made: Lab) -> None:
    """Own overhead, counters and memory of a first setup, and of what comes after it."""
    title("First setup: what of it is gpunode's own (goal ≤ 3 s; one refresh, one transaction, one initramfs)")
    with made.node("first") as node:
        prepare(made, node)
        peaks = {"setup, first": measured(node, SETUP, PYTHON)}
        log = node.read("/var/log/gpunode/setup.log") if node.path("/var/log/gpunode/setup.log").exists() else ""
        commands = [(float(seconds), words) for seconds, words in LOGGED.findall(log)]
        foreign = sum(seconds for seconds, words in commands if words.startswith(FOREIGN))
        total = peaks["setup, first"].wall_s
        row("total", f"{total:.2f} s", f"exit {peaks['setup, first'].exit_status}")
        row("apt, dpkg, dkms, initramfs, daemons", f"{foreign:.2f} s")
        row("gpunode's own", f"{total - foreign:.2f} s")
        for name, pattern in COUNTED.items():
            row(name, str(sum(bool(re.search(pattern, words)) for _, words in commands)))
        peaks["setup, converged"] = measured(node, SETUP, PYTHON)
        peaks["verify"] = measured(node, (*GPUNODE, "verify", RECIPE), PYTHON)
        peaks["rollback"] = measured(node, (*GPUNODE, "rollback", "--yes"), PYTHON)
        title("Peak memory of any one process in the node, apt's and dkms's included (goal for gpunode: under 80 MB)")
        for name, one in peaks.items():
            row(name, f"{one.peak_mb:.0f} MB", f"exit {one.exit_status}")


COUNTED = {
    "index refreshes": r"apt-get\b.* update\b",
    "transactions": r"apt-get\b(?!.*(--simulate|-s )).* install\b",
    "initramfs rebuilds asked for": r"^update-initramfs",
    "restarts": r"systemctl .*restart",
}


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to make the node so; ``before`` readies its node."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    before: Callable[[Chroot], None] = lambda _: None


def converged(made: Lab, times: int = 7) -> None:
    """A run that finds everything done, against others that do the same."""
    contenders = dict(_contenders(made))
    with ExitStack() as stack:
        runs: dict[str, Callable[[], Cost]] = {}
        for name, contender in contenders.items():
            node = stack.enter_context(made.node(name.split()[0]))
            prepare(made, node)
            contender.before(node)
            done = node.finish(*contender.argv, env=contender.env, timeout=900)
            if done.returncode:
                print(f"  {name}: left out, its first run failed: {(done.stdout + done.stderr).strip()[-300:]}")
                continue
            runs[name] = partial(measured, node, contender.argv, contender.env)
        title(f"Converged re-run: median of {times}, in turns (goal: shell ≥ 12×, ansible ≥ 20×, pyinfra ≥ 2×)")
        row("", "wall", "processor", "wall ratio", "cpu ratio")
        costs = side_by_side(runs, times)
        own = costs.get("gpunode setup")
        for name, one in costs.items():
            ratios = (f"{one.wall_s / own.wall_s:.1f}×", f"{one.cpu_s / own.cpu_s:.1f}×") if own else ()
            row(name, f"{one.wall_s:.2f} s", f"{one.cpu_s:.2f} s", *ratios)


def _contenders(made: Lab) -> Iterator[tuple[str, Contender]]:
    places = {"CUDA": made.repositories.cuda, "TOOLKIT": made.repositories.toolkit, "RELEASE": RELEASE}
    headers = f"linux-headers-{made.base.kernel}"
    yield "gpunode setup", Contender(SETUP, PYTHON)
    yield "shell script", Contender(("sh", f"{INSIDE}/shell.sh"), places)
    yield "guarded shell script", Contender(("sh", f"{INSIDE}/guarded.sh"), places)
    if problem := install_others():
        print(f"  ansible and pyinfra: left out, {problem}")
        return
    site = {"PYTHONPATH": INSIDE + "-site", "HEADERS": headers, "PYTHONPYCACHEPREFIX": "/var/cache/pycache"}
    ansible = ("python3", f"{INSIDE}-site/bin/ansible-playbook", "-i", "localhost,", "-e", f"headers={headers}")
    yield "ansible-core", Contender((*ansible, f"{INSIDE}/playbook.yml"), site, partial(_ready_others, made))
    pyinfra = ("python3", "-m", "pyinfra", "-y", "@local", f"{INSIDE}/deploy.py")
    yield "pyinfra", Contender(pyinfra, site, partial(_ready_others, made))


def install_others() -> str:
    """ansible-core, pyinfra and apt's Python binding are below ``OTHERS``; else why not."""
    if (OTHERS / "ready").exists():
        return ""
    shutil.rmtree(OTHERS, ignore_errors=True)
    OTHERS.mkdir(parents=True)
    # For the Python of Debian 12, whichever runs this.
    wanted = ("--python-version", "3.11", "--only-binary=:all:", "ansible-core<2.20", "pyinfra")
    steps = (
        (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(OTHERS), *wanted),
        ("sh", "-c", "apt-get download -q python3-apt/bookworm || apt-get download -q python3-apt"),
    )
    for argv in steps:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=OTHERS)
        if done.returncode:
            return f"they could not be fetched: {done.stderr.strip()[-200:]}"
    (OTHERS / "ready").touch()
    return ""


def _ready_others(made: Lab, node: Chroot) -> None:
    """Ansible's and pyinfra's inputs that are fetched once lie in the node, and Python finds them."""
    keyring = f"{made.repositories.cuda}/{RELEASE}/x86_64/cuda-keyring_1.1-1_all.deb"
    node.run(HELPER, "download-file", keyring, "/tmp/cuda-keyring.deb")
    node.run("dpkg", "-i", "/tmp/cuda-keyring.deb")
    node.run(HELPER, "download-file", f"{made.repositories.toolkit}/gpgkey", "/etc/apt/keyrings/toolkit.asc")
    node.run("cp", "/tmp/toolkit.list", "/etc/apt/sources.list.d/toolkit.list")
    node.run("apt-get", "update")
    node.path(INSIDE + "-site").mkdir(parents=True)
    node.sandbox.bind(OTHERS, node.merged / f"{INSIDE}-site".lstrip("/"), read_only=True)
    for deb in OTHERS.glob("*.deb"):
        node.run("dpkg", "-x", f"{INSIDE}-site/{deb.name}", "/")
