"""The package manager's database: another program that holds its lock, and work that was left half done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DPKG
from gpunode.diagnoses.chains import MISMATCHES, NO_PACKAGES
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Family, Fix, Proof, Rule, Verdict
from gpunode.diagnoses.remedies import by_hand, reinstall, run
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
from gpunode.diagnoses.views import packages
from gpunode.diagnoses.views.history import is_drivers
from gpunode.diagnoses.views.system import package_manager
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# --- another program at work --------------------------------------------------------------------------------------

_LOCKED: Final = Pattern(
    r"Could not get lock /\S+(?!.{0,40}Permission denied)|Unable to acquire the dpkg (?:frontend|database) lock"
    r"|dpkg (?:frontend|database) lock (?:was|is) locked by another process|Waiting for cache lock"
    r"|Unable to lock (?:the administration )?directory|Failed to lock apt for exclusive operation"
    r"|Existing lock /var/run/yum\.pid|Another app is currently holding the yum lock"
    r"|Waiting for process with pid \d+ to finish|System management is locked by the application with pid \d+"
    r"|unable to lock database|another process is using the (?:dpkg|package) (?:database|manager)"
)
_DENIED: Final = Pattern(r"are you root\?|13: Permission denied|requires root|superuser privilege")
_HOLDER: Final = Pattern(
    r"held by process (?P<pid>\d{1,18})(?: \((?P<name>[^)]+)\))?"
    r"|(?:with|as) pid[: ]+(?P<other>\d{1,18})(?: \((?P<program>[^)]+)\))?"
)


def _lock(snapshot: Snapshot) -> Iterator[Verdict]:
    said = snapshot.said(_LOCKED)
    if not said:
        yield from _held_now(snapshot)
    if not said or all(_DENIED.search(snapshot.text_of(one)) for one in said):
        return
    holder = snapshot.match(_HOLDER)
    who = ""
    if holder:
        name = holder["name"] or holder["program"]
        pid = holder["pid"] or holder["other"]
        who = f": {name} (process {pid})" if name else f": process {pid}"
    yield Proof(f"another program is at work on the package database{who}; its lock passes when it has finished", said)


_LISTED_LOCK: Final = Pattern(
    r"^[ \t]*(?P<name>\S+)\s+(?P<pid>\d{1,18})\s+/var/lib/(?:dpkg|rpm)/(?:lock|\.rpm\.lock)\S*"
)


def _held_now(snapshot: Snapshot) -> Iterator[Verdict]:
    """A program holds the lock right now: nobody was refused yet, and it passes, so that is no fault of the node."""
    for item in snapshot.items:
        if not item.written.startswith("lslocks ") or item.outcome != "ok":
            continue
        for number, line in enumerate(item.lines, 1):
            if match := _LISTED_LOCK.match(line):
                who = f"{match['name']} (process {match['pid']})"
                summary = f"{who} is at work on the package database; what needs the lock has to wait for it"
                yield Proof(summary, (cite(item, number),), severity="info")
                return


def _wait(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(package_manager) != "apt":
        yield by_hand("wait", "wait until the other program has finished, then run the command again")
        return
    text = "wait until it has finished; apt does that by itself when it is told how long"
    yield run("wait", text, Shell("sudo apt-get -o DPkg::Lock::Timeout=600 check"))
    text = "where nodes are set up at their first boot, let the automatic upgrade end before"
    yield run("wait", text, Shell("sudo systemctl start --wait apt-daily-upgrade.service"), when="it is the first boot")


# --- half-done work -----------------------------------------------------------------------------------------------

_INTERRUPTED: Final = Pattern(r"dpkg was interrupted, you must manually run|dpkg --configure -a")
_NOT_FULLY: Final = Pattern(r"^[ \t]*[1-9]\d* not fully installed or removed", re.MULTILINE)
_LEFT: Final = Pattern(
    r"dependency problems - leaving unconfigured|Errors were encountered while processing:"
    r"|dpkg: error processing package (?P<package>\S+) \(--configure\)"
    r"|Sub-process \S*dpkg returned an error code|%(?:post|pre)\w*\(?\S*\)? scriptlet failed"
)
_DKMS: Final = Pattern(r"\bnvidia[\w-]{0,60}dkms|Bad return status for module build|make\.log")


def _unconfigured(snapshot: Snapshot) -> Iterator[Verdict]:
    half = [one for one in snapshot.view(packages.packages).values() if one.is_half_done]
    said = (*snapshot.said(_NOT_FULLY), *snapshot.said(_INTERRUPTED))
    stopped = snapshot.facts.packages_interrupted
    noted = isinstance(stopped, Known) and stopped.value
    if half or said or noted:
        broken = [one for one in half if one.is_broken]
        names = ", ".join(sorted(one.name for one in broken or half)[:4])
        what = "dpkg left packages half installed"
        if broken:
            what = f"dpkg did not finish unpacking {names}: files of {_them(broken)} are missing"
        elif half:
            what = f"dpkg unpacked {names} and did not configure {_them(half)}"
        cited = (*(one.citation for one in half), *said)
        yield Proof(what, cited or (stated("/var/lib/dpkg/updates", "notes of an interrupted run"),))
    elif left := _left(snapshot):
        what = f"{left[0]}'s own script failed, and its package is left half installed"
        yield Proof(what, snapshot.said(_LEFT), "likely")


def _left(snapshot: Snapshot) -> tuple[str, ...]:
    """The driver's packages that the package manager says it could not finish."""
    said = snapshot.of("package-output", "text", "package-history", "application")
    told = (item for item in said if not item.is_register)
    named = (match["one"] or match["two"] for item in told for match in _FAILED.finditer(item.text))
    return tuple(dict.fromkeys(name for name in named if is_drivers(name)))


_FAILED: Final = Pattern(
    r"error processing package (?P<one>[a-z0-9][\w.+-]*)"
    r"|^(?:Errors were encountered while processing:)?\s(?P<two>[a-z0-9][\w.+-]*)(?::\w+)?\s*$",
    re.MULTILINE,
)


def _them(names: list[packages.Package]) -> str:
    return "it" if len(names) == 1 else "them"


def _finish(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.says(_DKMS, "package-output", "text", "dkms-output") or any(
        _DKMS.search(one.name) for one in snapshot.view(packages.packages).values() if one.is_half_done
    ):
        log = Shell("sudo sh -c 'tail -n 60 /var/lib/dkms/nvidia*/*/build/make.log'")
        yield run("inspect", "read why the module did not build; that is to be repaired first", log)
    else:
        yield run("inspect", "see which packages they are and what each still needs", Shell("sudo dpkg --audit"))
    finish = (Shell("sudo dpkg --configure -a"), Shell("sudo apt-get -f install"))
    yield run("install", "finish what dpkg began", *finish)
    half = snapshot.view(packages.packages).values()
    if broken := sorted(one.name for one in half if one.is_broken):
        yield reinstall(snapshot, "neither of them completes a package that has lost files: install it anew", *broken)


FAMILY: Final = Family(
    "packages",
    "the package manager",
    (
        Rule(
            cause="dpkg-lock-held",
            layer="package",
            storey="packages",
            disruption="none",
            title="another program is using the package database",
            symptoms=(symptoms.PACKAGES_BROKEN,),
            look_at=(Shell("sudo fuser -v /var/lib/dpkg/lock-frontend"),),
            story=(
                "Only one program at a time may change the package database. On a fresh cloud node that is "
                "unattended-upgrades or cloud-init, minutes after the first boot, and a provisioning that starts then "
                "fails with «Could not get lock». The lock passes by itself. To delete its file while the other "
                "program works can destroy the database."
            ),
            sources=("https://wiki.debian.org/UnattendedUpgrades", DPKG),
            check=_lock,
            remedy=_wait,
        ),
        Rule(
            cause="dpkg-unconfigured-packages",
            layer="package",
            storey="packages",
            disruption="none",
            title="packages are half installed",
            symptoms=(symptoms.PACKAGES_BROKEN,),
            look_at=(Shell("dpkg --audit"),),
            story=(
                "dpkg unpacks packages first and configures them after. A script that fails in between, for a driver "
                "mostly the build of its module, or an interruption, leaves them and everything that needs them "
                "unconfigured; the list shows iU, iF or iH. Every later run of apt begins by failing at the same place "
                "until the reason is gone."
            ),
            sources=(DPKG,),
            check=_unconfigured,
            remedy=_finish,
            explains=MISMATCHES | NO_PACKAGES | {"held-or-broken-packages"},
        ),
    ),
)
