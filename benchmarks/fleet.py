"""What a fleet costs its controller: the collection's role against a plain role of 27 tasks, on one to eight hosts.

Controller and hosts are chroots with network namespaces of their own on this one machine, and share its processors: the
seconds on the wall say more of the machine than of the roles. Processor time is each one's own, as its control group
counts it, and what went over a host's link is counted by the kernel.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.measure import row, title
from tests.e2e import live
from tests.e2e.conftest import TOOLS
from tests.e2e.fleet.hosts import Fleet, Played
from tests.e2e.fleet.layers import provide_controller, provide_host
from tests.e2e.fleet.scenario import AT_ONCE, SITE, Fleets
from tests.e2e.lab import bases as lab_bases
from tests.e2e.lab.code import make_code
from tests.e2e.lab.commands import LabError
from tests.e2e.lab.repositories import Repositories, discard_keys, make_repositories

HOSTS = tuple(f"node{number}" for number in range(1, 9))
SIZES = (1, 2, 4, 8)
TIMES = 2
COLUMNS = ("wall", "controller", "of it main", "host", "over the link")
PLAIN = Path(__file__).parent / "contenders/plain_role.yml"
ROLE = """\
- hosts: gpu
  become: true
  gather_facts: false
  roles:
    - gpunode.node.node
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one play on ``hosts`` hosts cost.

    Attributes:
        controller_s: processor time of all that ran on the controller.
        main_s: what of it was that of Ansible's main process, of which there is one for all hosts.
        hosts_s: the same of all hosts together.
        bytes: over the links of all hosts together, both ways.
        memory_mb: the most that the controller's processes held at one time, shared pages counted once.
    """

    hosts: int
    wall_s: float
    controller_s: float
    main_s: float
    hosts_s: float
    bytes: float
    memory_mb: float
    tasks: int


def benchmark() -> None:
    """Prints all of it, or why there is no fleet."""
    title("A fleet: eight Debian 12 hosts, real SSH, the newest ansible-core that the collection supports")
    if os.geteuid() != 0:
        print("  not run: chroots need root")
        return
    if missing := sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None}):
        print(f"  not run: apt-get install {' '.join(missing)}")
        return
    try:
        with _fleets() as fleets:
            _measure(fleets)
    except LabError as error:
        print(f"  not run: {error}")


@contextmanager
def _fleets() -> Iterator[Fleets]:
    folder = Path(tempfile.mkdtemp(prefix="gpunode-bench-", dir="/var/tmp"))
    try:
        bases = {name: lab_bases.provide(name, folder / name).runtime for name in ("bookworm", "trixie")}
        hosts = {name: provide_host(base, folder / f"host-{name}") for name, base in bases.items()}
        controller = provide_controller(hosts["trixie"], folder / "controller")
        repositories = make_repositories(folder / "www", [bases["bookworm"]])
        try:
            yield Fleets(folder, hosts.__getitem__, lambda _: controller, repositories, make_code(folder / "site"))
        finally:
            discard_keys(repositories.keys)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


@contextmanager
def _playing(fleets: Fleets, hosts: tuple[str, ...]) -> Iterator[Fleet]:
    with fleets.make(hosts, controller="trixie") as fleet:
        fleet.write("role.yml", ROLE)
        fleet.write("plain.yml", PLAIN.read_text())
        fleet.write("plain.json", _variables(fleets.repositories))
        yield fleet


def _measure(fleets: Fleets) -> None:
    """The first run makes the host of which all eight are copies."""
    with _playing(fleets, HOSTS[:1]) as fleet:
        title("First run of the role on one host, with apt, dpkg and DKMS: once")
        _table([_run(fleet, "role.yml", 1)])
        _run(fleet, "plain.yml", 1)
        base = live.preserved(fleet.hosts[HOSTS[0]], fleets.folder / "set-up")
    with _playing(replace(fleets, host=lambda _: base), HOSTS) as fleet:
        for host in fleet.hosts.values():
            live.boot(host)
        _converged(fleet)


def _converged(fleet: Fleet) -> None:
    costs: dict[str, list[Run]] = {}
    plays = {"the role": ("role.yml",), "plain role": ("plain.yml",), "site play": (SITE, *AT_ONCE)}
    for size in SIZES:
        rounds = [{name: _run(fleet, play[0], size, *play[1:]) for name, play in plays.items()} for _ in range(TIMES)]
        for name in plays:
            costs.setdefault(name, []).append(_mean([one[name] for one in rounds]))
    for name, runs in costs.items():
        title(f"Converged, {name} ({runs[0].tasks} results a host): mean of {TIMES}, in turns")
        _table(runs)
    title("Plain role against the role, converged: how many times as much a host")
    row("hosts", *COLUMNS)
    for own, plain in zip(costs["the role"], costs["plain role"], strict=True):
        pairs = zip(_figures(plain), _figures(own), strict=True)
        row(str(own.hosts), *(f"{theirs / mine:.1f}×" for theirs, mine in pairs))
    title("The controller, converged: what a play costs, and each host more (from 1 and 8 hosts)")
    row("", "play", "host", "of it main", "memory a host")
    for name, runs in costs.items():
        one, eight = runs[0], runs[-1]
        hosts = eight.hosts - one.hosts
        each, main = (eight.controller_s - one.controller_s) / hosts, (eight.main_s - one.main_s) / hosts
        memory = (eight.memory_mb - one.memory_mb) / hosts
        row(name, f"{one.controller_s - each:.2f} s", f"{each:.2f} s", f"{main:.2f} s", f"{memory:.0f} MB")


def _figures(run: Run) -> tuple[float, ...]:
    return (run.wall_s, run.controller_s, run.main_s, run.hosts_s, run.bytes)


def _table(runs: list[Run]) -> None:
    row("hosts; each host's share:", *COLUMNS, "memory in all")
    for run in runs:
        *times, sent = (figure / run.hosts for figure in _figures(run))
        seconds = (f"{figure:.2f} s" for figure in times)
        row(str(run.hosts), *seconds, f"{sent / 1000:.0f} kB", f"{run.memory_mb:.0f} MB")


def _mean(runs: list[Run]) -> Run:
    rows = zip(*((*_figures(run), run.memory_mb) for run in runs), strict=True)
    wall, controller, main, hosts, sent, memory = (statistics.fmean(figures) for figures in rows)
    return Run(runs[0].hosts, wall, controller, main, hosts, sent, memory, runs[0].tasks)


def _run(fleet: Fleet, play: str, size: int, *options: str) -> Run:
    """What ``play`` costs on the first ``size`` hosts; all of them must end well."""
    names = HOSTS[:size]
    limit = ("--limit", ",".join(names), "--forks", str(size), "--extra-vars", "@plain.json", *options)
    before = _counted(fleet, names)
    started = time.monotonic()
    playing = fleet.start(play, *limit)
    with _watched(fleet) as peak:
        played = fleet.end(playing)
    wall = time.monotonic() - started
    _demand(played)
    controller, hosts, sent = (after - then for after, then in zip(_counted(fleet, names), before, strict=True))
    return Run(size, wall, controller, played.main_s, hosts, sent, max(peak), len(played.of(names[0])))


def _demand(played: Played) -> None:
    if played.exit_code:
        raise LabError(played.output[-3000:])


def _counted(fleet: Fleet, names: tuple[str, ...]) -> tuple[float, float, float]:
    hosts = sum(fleet.processor_s(fleet.hosts[name]) for name in names)
    return fleet.processor_s(fleet.controller), hosts, float(sum(fleet.link_bytes(name) for name in names))


@contextmanager
def _watched(fleet: Fleet) -> Iterator[list[float]]:
    """A list to which the controller's memory is added several times a second."""
    seen, over = [0.0], Event()

    def watch() -> None:
        while not over.wait(0.3):
            seen.append(fleet.memory_mb(fleet.controller))

    thread = Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _variables(repositories: Repositories) -> str:
    import json

    list_of = "deb [signed-by=/etc/apt/keyrings/{}.asc] {} /\n"
    variables: dict[str, Any] = {
        "cuda_key": f"http://127.0.0.1:8099{repositories.key_path('debian12')}",
        "toolkit_key": f"{repositories.toolkit}/gpgkey",
        "cuda_list": list_of.format("cuda", f"{repositories.cuda}/debian12/x86_64"),
        "toolkit_list": list_of.format("toolkit", f"{repositories.toolkit}/stable/deb/amd64"),
        "pin": "Package: nvidia-*\nPin: version 580.*\nPin-Priority: 900\n",
        "runtime": "version = 2\n[plugins]\n",
    }
    return json.dumps(variables)
