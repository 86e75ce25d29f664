"""Benchmark of setup on a node of the test lab, with real apt, dpkg, DKMS and containerd: first run and re-run.

Every contender has its own node, so none finds the others' files. The node is a Debian 12 chroot with a GTX 1080 on its
simulated PCI bus. NVIDIA's repositories and the distribution's are local, with the complete index of Debian 12: apt has
as much to read as on a real node, but no network is measured, which favours the tools that use it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, measure_command, measure_in_turns, print_row, print_title
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
# The other tools' packages; kept between runs.
OTHER_TOOLS = ROOT / "build/bench-site"
CONTENDERS_MOUNT = "/opt/lab/contenders"
RECIPE = "/tmp/node.toml"
RELEASE = "debian12"
APT_HELPER = "/usr/lib/apt/apt-helper"
INDEX_NAME = "debian12-index"
INSTALL_FOLDER = "/opt/gpunode"
PYTHON_ENVIRONMENT = {"PYTHONPATH": INSTALL_FOLDER, "NO_COLOR": "1"}
GPUNODE = ("python3", "-m", "gpunode")
SETUP_COMMAND = (*GPUNODE, "setup", RECIPE, "--yes")
CONTAINERD_CONFIG = "version = 2\n# Written by hand.\n[plugins]\n"
NVIDIA_TOML = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
"""
# A command in the log: end time, exit status, duration, command line.
LOGGED_COMMAND = re.compile(r"^\S+ (?:exit \d+|timeout) (\d+\.\d+) s: (.*)$", re.MULTILINE)
# The highest resident size of a process so far, in kB: proc_pid_status(5).
PEAK_MEMORY = re.compile(r"^VmHWM:\s*(\d+)", re.MULTILINE)
# gpunode waits for these in sequence; their time is not counted as its own.
FOREIGN_COMMANDS = (
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
class BenchmarkLab:
    """The parts from which test nodes are made."""

    folder: Path
    base: Any
    repositories: Repositories
    code: Any

    def make_node(self, name: str) -> Chroot:
        """Return a node that has not been entered yet."""
        return Chroot(self.base, self.folder / name, devices=[GTX_1080], archives=self.repositories, code=self.code)


def benchmark() -> None:
    """Print the measurements that need a node, or why there is none."""
    print_title("On a node: Debian 12, GTX 1080, local repositories")
    if os.geteuid() != 0:
        print("  not run: chroots need root")
        return
    if missing := sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None}):
        print(f"  not run: apt-get install {' '.join(missing)}")
        return
    try:
        with make_lab() as lab:
            measure_first_setup(lab)
            measure_converged(lab)
    except LabError as error:
        print(f"  not run: {error}")


@contextmanager
def make_lab() -> Iterator[BenchmarkLab]:
    """Yield a lab with the base of Debian 12, and delete it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gpunode-bench-", dir="/var/tmp"))
    try:
        base = lab_bases.provide("bookworm", folder / "bookworm")
        repositories = make_repositories(folder / "www", [base.runtime])
        _add_full_index(repositories)
        try:
            yield BenchmarkLab(folder, base.runtime, repositories, make_code(folder / "site"))
        finally:
            discard_keys(repositories.keys)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _add_full_index(repositories: Repositories) -> None:
    """Add an archive without packages but with the complete index of Debian 12."""
    folder = repositories.root / INDEX_NAME
    folder.mkdir()
    url = f"{debian_archive().rstrip('/')}/dists/bookworm/main/binary-amd64/Packages.xz"
    run(
        [
            APT_HELPER,
            *(word for option in transport_options() for word in ("-o", option)),
            "download-file",
            url,
            f"{folder}/Packages.xz",
        ]
    )
    run(["xz", "--decompress", "--keep", f"{folder}/Packages.xz"])
    release = run(["env", f"--chdir={folder}", "apt-ftparchive", "release", "."]).stdout
    (folder / "Release").write_text(release)
    (folder / "InRelease").write_text(repositories.keys.debian.clearsigned(release))


def prepare_node(lab: BenchmarkLab, node: Chroot) -> None:
    """Give the node a hand-written configuration, the contenders' input files and gpunode."""
    node.write("/etc/containerd/config.toml", CONTAINERD_CONFIG)
    # The real systemd-detect-virt would detect the chroot.
    node.write("/usr/local/bin/systemd-detect-virt", "#!/bin/sh\necho none\nexit 1\n", 0o755)
    node.write(RECIPE, f'schema = 1\nextends = "containerd"\n{lab.repositories.recipe(RELEASE)}')
    line = f"deb [signed-by=/usr/share/keyrings/lab.gpg] {ADDRESS}/{INDEX_NAME}/ /\n"
    node.write("/etc/apt/sources.list.d/index.list", line)
    node.write("/tmp/nvidia.toml", NVIDIA_TOML)
    node.write("/tmp/blacklist", "blacklist nouveau\noptions nouveau modeset=0\n")
    line = f"deb [signed-by=/etc/apt/keyrings/toolkit.asc] {lab.repositories.toolkit}/stable/deb/$(ARCH) /\n"
    node.write("/tmp/toolkit.list", line)
    node.path("/etc/apt/keyrings").mkdir(parents=True, exist_ok=True)
    node.path(CONTENDERS_MOUNT).mkdir(parents=True, exist_ok=True)
    node.sandbox.bind(CONTENDERS, node.merged / CONTENDERS_MOUNT.lstrip("/"), read_only=True)
    node.run("apt-get", "update")
    _install_gpunode(node)


def _install_gpunode(node: Chroot) -> None:
    """Install gpunode and its dependencies in ``INSTALL_FOLDER``, compiled beside their sources, as by pip.

    gpunode's children would not use a separate folder for compiled modules: Python's -I ignores PYTHONPYCACHEPREFIX.
    """
    node.path(INSTALL_FOLDER).mkdir(parents=True)
    node.run("cp", "-r", f"{SITE}/.", f"{PROJECT}/gpunode", INSTALL_FOLDER)
    node.run("cp", "-r", f"{PROJECT}/recipes", f"{INSTALL_FOLDER}/gpunode/_recipes")
    node.run("python3", "-m", "compileall", "-q", INSTALL_FOLDER)


def measure_in_node(node: Chroot, argv: tuple[str, ...], env: Mapping[str, str]) -> Cost:
    """Run ``argv`` in the node and return its cost."""
    settings = [f"{name}={value}" for name, value in {**ENVIRONMENT, **env}.items()]
    return measure_command(node.enter("env", "--ignore-environment", *settings, *argv))


@contextmanager
def find_largest_process(node: Chroot) -> Iterator[list[str]]:
    """Yield a list that will name the process in the node with the largest peak memory seen, until the end."""
    peaks: dict[str, int] = {}
    largest: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
            for process in Path("/proc").glob("[1-9]*"):
                with suppress(OSError):  # most processes end meanwhile
                    if str(node.merged) in str((process / "root").readlink()):
                        name = " ".join((process / "cmdline").read_text(errors="replace").split("\0")[:2])
                        for peak in PEAK_MEMORY.findall((process / "status").read_text()):
                            peaks[name] = max(int(peak), peaks.get(name, 0))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield largest
    finally:
        ended.set()
        watcher.join()
        largest += sorted(peaks, key=peaks.__getitem__)[-1:]


def measure_first_setup(lab: BenchmarkLab) -> None:
    """Print the overhead, counters and peak memory of a first setup and of the commands after it."""
    print_title("First setup: what of it is gpunode's own (goal ≤ 3 s; one refresh, one transaction, one initramfs)")
    with lab.make_node("first") as node:
        prepare_node(lab, node)
        with find_largest_process(node) as largest:
            costs = {"setup, first": measure_in_node(node, SETUP_COMMAND, PYTHON_ENVIRONMENT)}
        log = node.read("/var/log/gpunode/setup.log") if node.path("/var/log/gpunode/setup.log").exists() else ""
        commands = [(float(seconds), words) for seconds, words in LOGGED_COMMAND.findall(log)]
        foreign_s = sum(seconds for seconds, words in commands if words.startswith(FOREIGN_COMMANDS))
        total_s = costs["setup, first"].wall_s
        print_row("total", f"{total_s:.2f} s", f"exit {costs['setup, first'].exit_status}")
        print_row("apt, dpkg, dkms, initramfs, daemons", f"{foreign_s:.2f} s")
        print_row("gpunode's own", f"{total_s - foreign_s:.2f} s")
        for name, pattern in COUNTED_COMMANDS.items():
            print_row(name, str(sum(bool(re.search(pattern, words)) for _, words in commands)))
        costs["setup, converged"] = measure_in_node(node, SETUP_COMMAND, PYTHON_ENVIRONMENT)
        costs["verify"] = measure_in_node(node, (*GPUNODE, "verify", RECIPE), PYTHON_ENVIRONMENT)
        costs["rollback"] = measure_in_node(node, (*GPUNODE, "rollback", "--yes"), PYTHON_ENVIRONMENT)
        print_title(
            "Peak memory of any one process in the node, apt's and dkms's included (goal for gpunode: under 80 MB)"
        )
        for name, cost in costs.items():
            which = largest if name == "setup, first" else ()
            print_row(name, f"{cost.peak_mb:.0f} MB", f"exit {cost.exit_status}", *which)


COUNTED_COMMANDS = {
    "index refreshes": r"apt-get\b.* update\b",
    "transactions": r"apt-get\b(?!.*(--simulate|-s )).* install\b",
    "initramfs rebuilds asked for": r"^update-initramfs",
    "restarts": r"systemctl .*restart",
}


@dataclass(frozen=True, slots=True)
class Contender:
    """Another way to set the node up; ``prepare`` prepares its node."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    prepare: Callable[[Chroot], None] = lambda _: None


def measure_converged(lab: BenchmarkLab, times: int = 7) -> None:
    """Print the cost of a run that finds nothing to do, compared with other tools."""
    contenders = dict(_list_contenders(lab))
    with ExitStack() as stack:
        runs: dict[str, Callable[[], Cost]] = {}
        for name, contender in contenders.items():
            node = stack.enter_context(lab.make_node(name.split()[0]))
            prepare_node(lab, node)
            contender.prepare(node)
            finished = node.finish(*contender.argv, env=contender.env, timeout=900)
            if finished.returncode:
                print(f"  {name}: left out, its first run failed: {(finished.stdout + finished.stderr).strip()[-300:]}")
                continue
            runs[name] = partial(measure_in_node, node, contender.argv, contender.env)
        print_title(f"Converged re-run: median of {times}, in turns (goal: shell ≥ 12×, ansible ≥ 20×, pyinfra ≥ 2×)")
        print_row("", "wall", "processor", "wall ratio", "cpu ratio")
        costs = measure_in_turns(runs, times)
        own = costs.get("gpunode setup")
        for name, cost in costs.items():
            ratios = (f"{cost.wall_s / own.wall_s:.1f}×", f"{cost.cpu_s / own.cpu_s:.1f}×") if own else ()
            print_row(name, f"{cost.wall_s:.2f} s", f"{cost.cpu_s:.2f} s", *ratios)


def _list_contenders(lab: BenchmarkLab) -> Iterator[tuple[str, Contender]]:
    repository_urls = {"CUDA": lab.repositories.cuda, "TOOLKIT": lab.repositories.toolkit, "RELEASE": RELEASE}
    headers = f"linux-headers-{lab.base.kernel}"
    yield "gpunode setup", Contender(SETUP_COMMAND, PYTHON_ENVIRONMENT)
    yield "shell script", Contender(("sh", f"{CONTENDERS_MOUNT}/shell.sh"), repository_urls)
    yield "guarded shell script", Contender(("sh", f"{CONTENDERS_MOUNT}/guarded.sh"), repository_urls)
    if problem := install_other_tools():
        print(f"  ansible and pyinfra: left out, {problem}")
        return
    site = {"PYTHONPATH": CONTENDERS_MOUNT + "-site", "HEADERS": headers, "PYTHONPYCACHEPREFIX": "/var/cache/pycache"}
    ansible = (
        "python3",
        f"{CONTENDERS_MOUNT}-site/bin/ansible-playbook",
        "-i",
        "localhost,",
        "-e",
        f"headers={headers}",
    )
    yield (
        "ansible-core",
        Contender((*ansible, f"{CONTENDERS_MOUNT}/playbook.yml"), site, partial(_prepare_other_tools, lab)),
    )
    pyinfra = ("python3", "-m", "pyinfra", "-y", "@local", f"{CONTENDERS_MOUNT}/deploy.py")
    yield "pyinfra", Contender(pyinfra, site, partial(_prepare_other_tools, lab))


def install_other_tools() -> str:
    """Install ansible-core, pyinfra and apt's Python binding below ``OTHER_TOOLS``; return the reason if that fails."""
    if (OTHER_TOOLS / "ready").exists():
        return ""
    shutil.rmtree(OTHER_TOOLS, ignore_errors=True)
    OTHER_TOOLS.mkdir(parents=True)
    # For the Python of Debian 12, whichever version runs this.
    requirements = ("--python-version", "3.11", "--only-binary=:all:", "ansible-core<2.20", "pyinfra")
    steps = (
        (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(OTHER_TOOLS), *requirements),
        ("sh", "-c", "apt-get download -q python3-apt/bookworm || apt-get download -q python3-apt"),
    )
    for argv in steps:
        finished = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=OTHER_TOOLS)
        if finished.returncode:
            return f"they could not be fetched: {finished.stderr.strip()[-200:]}"
    (OTHER_TOOLS / "ready").touch()
    return ""


def _prepare_other_tools(lab: BenchmarkLab, node: Chroot) -> None:
    """Fetch the inputs of Ansible and pyinfra into the node, and make both importable there."""
    keyring = f"{lab.repositories.cuda}/{RELEASE}/x86_64/cuda-keyring_1.1-1_all.deb"
    node.run(APT_HELPER, "download-file", keyring, "/tmp/cuda-keyring.deb")
    node.run("dpkg", "-i", "/tmp/cuda-keyring.deb")
    node.run(APT_HELPER, "download-file", f"{lab.repositories.toolkit}/gpgkey", "/etc/apt/keyrings/toolkit.asc")
    node.run("cp", "/tmp/toolkit.list", "/etc/apt/sources.list.d/toolkit.list")
    node.run("apt-get", "update")
    node.path(CONTENDERS_MOUNT + "-site").mkdir(parents=True)
    node.sandbox.bind(OTHER_TOOLS, node.merged / f"{CONTENDERS_MOUNT}-site".lstrip("/"), read_only=True)
    for deb in OTHER_TOOLS.glob("*.deb"):
        node.run("dpkg", "-x", f"{CONTENDERS_MOUNT}-site/{deb.name}", "/")
