"""Benchmark of a fleet's controller: the collection's role against a plain role of 27 tasks, on one to eight hosts.

Controller and hosts are chroots with their own network namespaces on this machine, and share its processors: wall time
says more about the machine than about the roles. Processor time is counted by each one's control group, and the traffic
on a host's link by the kernel.
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

from benchmarks.measure import print_row, print_title
from tests.e2e import live
from tests.e2e.conftest import TOOLS
from tests.e2e.fleet.hosts import Fleet, Played
from tests.e2e.fleet.layers import provide_controller, provide_host
from tests.e2e.fleet.scenario import AT_ONCE, SITE, Fleets
from tests.e2e.lab import bases as lab_bases
from tests.e2e.lab.code import make_code
from tests.e2e.lab.commands import LabError
from tests.e2e.lab.repositories import Repositories, discard_keys, make_repositories

HOST_NAMES = tuple(f"node{number}" for number in range(1, 9))
FLEET_SIZES = (1, 2, 4, 8)
ROUNDS = 2
COLUMNS = ("wall", "controller", "of it main", "host", "over the link")
PLAIN_ROLE = Path(__file__).parent / "contenders/plain_role.yml"
ROLE_PLAYBOOK = """\
- hosts: gpu
  become: true
  gather_facts: false
  roles:
    - gpunode.node.node
"""


@dataclass(frozen=True, slots=True)
class PlayCost:
    """The cost of one play on ``hosts`` hosts.

    Attributes:
        controller_s: processor time of everything that ran on the controller.
        main_s: the part of Ansible's main process, of which there is one for all hosts.
        hosts_s: processor time of all hosts together.
        link_bytes: over the links of all hosts together, in both directions.
        memory_mb: peak memory of the controller's processes together, shared pages counted once.
    """

    hosts: int
    wall_s: float
    controller_s: float
    main_s: float
    hosts_s: float
    link_bytes: float
    memory_mb: float
    tasks: int


def benchmark() -> None:
    """Print all measurements, or why there is no fleet."""
    print_title("A fleet: eight Debian 12 hosts, real SSH, the newest ansible-core that the collection supports")
    if os.geteuid() != 0:
        print("  not run: chroots need root")
        return
    if missing := sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None}):
        print(f"  not run: apt-get install {' '.join(missing)}")
        return
    try:
        with _make_fleets() as fleets:
            _measure_fleet(fleets)
    except LabError as error:
        print(f"  not run: {error}")


@contextmanager
def _make_fleets() -> Iterator[Fleets]:
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
def _fleet_with_playbooks(fleets: Fleets, hosts: tuple[str, ...]) -> Iterator[Fleet]:
    with fleets.make(hosts, controller="trixie") as fleet:
        fleet.write("role.yml", ROLE_PLAYBOOK)
        fleet.write("plain.yml", PLAIN_ROLE.read_text())
        fleet.write("plain.json", _variables(fleets.repositories))
        yield fleet


def _measure_fleet(fleets: Fleets) -> None:
    """Print the cost of a first run, and of plays on up to eight copies of its host."""
    with _fleet_with_playbooks(fleets, HOST_NAMES[:1]) as fleet:
        print_title("First run of the role on one host, with apt, dpkg and DKMS: once")
        _print_costs([_measure_play(fleet, "role.yml", 1)])
        _measure_play(fleet, "plain.yml", 1)
        base = live.preserved(fleet.hosts[HOST_NAMES[0]], fleets.folder / "set-up")
    with _fleet_with_playbooks(replace(fleets, host=lambda _: base), HOST_NAMES) as fleet:
        for host in fleet.hosts.values():
            live.boot(host)
        _measure_converged(fleet)


def _measure_converged(fleet: Fleet) -> None:
    costs: dict[str, list[PlayCost]] = {}
    plays = {"the role": ("role.yml",), "plain role": ("plain.yml",), "site play": (SITE, *AT_ONCE)}
    for size in FLEET_SIZES:
        rounds = [
            {name: _measure_play(fleet, play[0], size, *play[1:]) for name, play in plays.items()}
            for _ in range(ROUNDS)
        ]
        for name in plays:
            costs.setdefault(name, []).append(_mean_cost([costs_by_play[name] for costs_by_play in rounds]))
    for name, runs in costs.items():
        print_title(f"Converged, {name} ({runs[0].tasks} results a host): mean of {ROUNDS}, in turns")
        _print_costs(runs)
    print_title("Plain role against the role, converged: how many times as much a host")
    print_row("hosts", *COLUMNS)
    for role, plain in zip(costs["the role"], costs["plain role"], strict=True):
        pairs = zip(_figures(plain), _figures(role), strict=True)
        print_row(str(role.hosts), *(f"{theirs / mine:.1f}×" for theirs, mine in pairs))
    print_title("The controller, converged: what a play costs, and each host more (from 1 and 8 hosts)")
    print_row("", "play", "host", "of it main", "memory a host")
    for name, runs in costs.items():
        smallest, largest = runs[0], runs[-1]
        hosts = largest.hosts - smallest.hosts
        each, main = (largest.controller_s - smallest.controller_s) / hosts, (largest.main_s - smallest.main_s) / hosts
        memory = (largest.memory_mb - smallest.memory_mb) / hosts
        print_row(name, f"{smallest.controller_s - each:.2f} s", f"{each:.2f} s", f"{main:.2f} s", f"{memory:.0f} MB")


def _figures(run: PlayCost) -> tuple[float, ...]:
    return (run.wall_s, run.controller_s, run.main_s, run.hosts_s, run.link_bytes)


def _print_costs(runs: list[PlayCost]) -> None:
    print_row("hosts; each host's share:", *COLUMNS, "memory in all")
    for run in runs:
        *times, link_bytes = (figure / run.hosts for figure in _figures(run))
        seconds = (f"{figure:.2f} s" for figure in times)
        print_row(str(run.hosts), *seconds, f"{link_bytes / 1000:.0f} kB", f"{run.memory_mb:.0f} MB")


def _mean_cost(runs: list[PlayCost]) -> PlayCost:
    rows = zip(*((*_figures(run), run.memory_mb) for run in runs), strict=True)
    wall, controller, main, hosts, link_bytes, memory = (statistics.fmean(figures) for figures in rows)
    return PlayCost(runs[0].hosts, wall, controller, main, hosts, link_bytes, memory, runs[0].tasks)


def _measure_play(fleet: Fleet, play: str, size: int, *options: str) -> PlayCost:
    """Run ``play`` on the first ``size`` hosts, which must all succeed, and return its cost."""
    names = HOST_NAMES[:size]
    limit = ("--limit", ",".join(names), "--forks", str(size), "--extra-vars", "@plain.json", *options)
    before = _read_counters(fleet, names)
    started = time.monotonic()
    running_play = fleet.start(play, *limit)
    with _record_memory(fleet) as peak:
        result = fleet.end(running_play)
    wall = time.monotonic() - started
    _require_success(result)
    controller, hosts, link_bytes = (
        after - earlier for after, earlier in zip(_read_counters(fleet, names), before, strict=True)
    )
    return PlayCost(size, wall, controller, result.main_s, hosts, link_bytes, max(peak), len(result.of(names[0])))


def _require_success(result: Played) -> None:
    if result.exit_code:
        raise LabError(result.output[-3000:])


def _read_counters(fleet: Fleet, names: tuple[str, ...]) -> tuple[float, float, float]:
    hosts = sum(fleet.processor_s(fleet.hosts[name]) for name in names)
    return fleet.processor_s(fleet.controller), hosts, float(sum(fleet.link_bytes(name) for name in names))


@contextmanager
def _record_memory(fleet: Fleet) -> Iterator[list[float]]:
    """Yield a list that receives the controller's memory several times a second."""
    samples_mb, stopped = [0.0], Event()

    def watch() -> None:
        while not stopped.wait(0.3):
            samples_mb.append(fleet.memory_mb(fleet.controller))

    thread = Thread(target=watch)
    thread.start()
    try:
        yield samples_mb
    finally:
        stopped.set()
        thread.join()


def _variables(repositories: Repositories) -> str:
    import json

    source_line = "deb [signed-by=/etc/apt/keyrings/{}.asc] {} /\n"
    variables: dict[str, Any] = {
        "cuda_key": f"http://127.0.0.1:8099{repositories.key_path('debian12')}",
        "toolkit_key": f"{repositories.toolkit}/gpgkey",
        "cuda_list": source_line.format("cuda", f"{repositories.cuda}/debian12/x86_64"),
        "toolkit_list": source_line.format("toolkit", f"{repositories.toolkit}/stable/deb/amd64"),
        "pin": "Package: nvidia-*\nPin: version 580.*\nPin-Priority: 900\n",
        "runtime": "version = 2\n[plugins]\n",
    }
    return json.dumps(variables)
