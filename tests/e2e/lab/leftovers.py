"""What is there on the machine that a test may have left: compared before and after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.e2e.lab.commands import run


@dataclass(frozen=True, slots=True)
class Inventory:
    """Mounts, namespaces in use, lab processes, cgroups and the files of a folder."""

    mounts: frozenset[str]
    namespaces: frozenset[str]
    processes: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]


def inventory(folder: Path) -> Inventory:
    """The machine as it is now; ``folder`` is where the lab puts its nodes."""
    return Inventory(
        mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        namespaces=_namespaces(),
        processes=_processes(),
        cgroups=_cgroups(),
        files=frozenset(str(path) for path in folder.iterdir()),
    )


def _namespaces() -> frozenset[str]:
    rows = run(["lsns", "--noheadings", "--raw", "--output", "NS,TYPE,COMMAND"]).stdout.splitlines()
    return frozenset(row for row in rows if " mnt " in row or " net " in row or " pid " in row)


def _processes() -> frozenset[str]:
    """Processes that see another file system root or another pid namespace than this one."""
    own = Path("/proc/self/ns/pid").readlink()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns/pid").readlink() != own or (process / "root").readlink() != Path("/"):
                found.add(process.name)
        except OSError:
            continue  # It has ended meanwhile, or is a kernel thread.
    return frozenset(found)


def _cgroups() -> frozenset[str]:
    script = "mount -t cgroup2 none /mnt && ls /mnt"
    return frozenset(run(["unshare", "--mount", "sh", "-c", script]).stdout.split())
