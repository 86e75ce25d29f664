"""Diagnose the package database: locks, and packages left half installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import MISMATCHES, NO_PACKAGES
from gpunode.diagnoses.model import Fix, Proof, Rule
from gpunode.diagnoses.remedies import manual_step, reinstall, run_step
from gpunode.diagnoses.signs import any_of, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import packages
from gpunode.diagnoses.views.system import package_manager
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_LOCKED: Final = unless(
    message_line(
        r"Could not get lock /\S+(?!.{0,40}Permission denied)|Unable to acquire the dpkg (?:frontend|database) lock"
        r"|dpkg (?:frontend|database) lock (?:was|is) locked by another process|Waiting for cache lock"
        r"|Unable to lock (?:the administration )?directory|Failed to lock apt for exclusive operation"
        r"|Existing lock /var/run/yum\.pid|Another app is currently holding the yum lock"
        r"|Waiting for process with pid \d+ to finish|System management is locked by the application with pid \d+"
        r"|unable to lock database|another process is using the (?:dpkg|package) (?:database|manager)"
    ),
    message_line(r"are you root\?|13: Permission denied|requires root|superuser privilege"),
)
_HOLDER: Final = Pattern(r"(?:held by process|(?:with|as) pid:?) *(?P<pid>\d{1,18})(?: \((?P<name>[^)]+)\))?")


def _summarize_lock(snapshot: Snapshot) -> str:
    holder = snapshot.match(_HOLDER)
    name = f" ({holder['name']})" if holder and holder["name"] else ""
    who = f": process {holder['pid']}{name}" if holder else ""
    return f"another program is using the package database{who}; it releases the lock when it has finished"


_LISTED_LOCK: Final = Pattern(
    r"^[ \t]*(?P<name>\S+)\s+(?P<pid>\d{1,18})\s+/var/lib/(?:dpkg|rpm)/(?:lock|\.rpm\.lock)\S*", re.MULTILINE
)


def _find_held_lock(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield a lock that is held now, which passes and is not a fault."""
    for item in snapshot.items:
        if item.written.startswith("lslocks ") and (match := _LISTED_LOCK.search(item.text)):
            who = f"{match['name']} (process {match['pid']})"
            summary = f"{who} is using the package database; everything that needs the lock must wait for it"
            yield Proof(summary, (cite(item, item.number_at(match.start())),), severity="info")


def _wait_for_lock(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(package_manager) != "apt":
        yield manual_step("wait", "wait until the other program has finished, then run the command again")
        return
    text = "wait until it has finished; apt can do that by itself, with a time limit"
    yield run_step("wait", text, Shell("sudo apt-get -o DPkg::Lock::Timeout=600 check"))
    text = "if nodes are set up at their first boot, wait for the automatic upgrade first"
    yield run_step(
        "wait", text, Shell("sudo systemctl start --wait apt-daily-upgrade.service"), when="it is the first boot"
    )


_SAID: Final = message_line(
    r"dpkg was interrupted, you must manually run|dpkg --configure -a|unpacked but not yet configured"
    r"|are only half (?:configured|installed)|^[ \t]*[1-9]\d* not fully installed or removed"
)


def _half_done_packages(snapshot: Snapshot) -> list[packages.Package]:
    return [one for one in snapshot.view(packages.listed_packages).values() if one.is_half_done]


def _has_dpkg_notes(snapshot: Snapshot) -> bool:
    stopped = snapshot.facts.packages_interrupted
    return isinstance(stopped, Known) and stopped.value


_HALF: Final = any_of(
    custom_sign(lambda snapshot: (one.citation for one in _half_done_packages(snapshot))),
    _SAID,
    predicate(_has_dpkg_notes, "/var/lib/dpkg/updates has notes of an interrupted run"),
)
# What the package manager says that it could not finish.
_LEFT: Final = message_line(
    r"(?:error processing package|prevent configuration of|Errors were encountered while processing:)\s+"
    r"(?:lib)?(?:nvidia-(?!peer|fs|gds)|cuda-drivers)"
)


def _summarize_half_done(snapshot: Snapshot) -> str:
    half = _half_done_packages(snapshot)
    names = ", ".join(sorted(one.name for one in half)[:4])
    return f"dpkg started to install {names} and did not finish" if half else "dpkg left packages half installed"


_BUILD: Final = any_of(
    message_line(
        r"\bnvidia[\w-]{0,60}dkms|[Bb]ad (?:return|exit) status|make\.log", "package-output", "text", "dkms-output"
    ),
    custom_sign(lambda snapshot: (one.citation for one in _half_done_packages(snapshot) if "dkms" in one.name)),
)


def _finish_packages(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_BUILD):
        log = Shell("sudo sh -c 'tail -n 60 /var/lib/dkms/nvidia*/*/build/make.log'")
        yield run_step("inspect", "read why the module did not build; fix that first", log)
    else:
        yield run_step("inspect", "list these packages and what each still needs", Shell("sudo dpkg --audit"))
    finish = (Shell("sudo dpkg --configure -a"), Shell("sudo apt-get -f install"))
    yield run_step("install", "finish the interrupted dpkg run", *finish)
    if broken := sorted(one.name for one in _half_done_packages(snapshot) if one.is_broken):
        yield reinstall(snapshot, "neither of them completes a package that has lost files: reinstall it", *broken)


RULES: Final = (
    Rule(
        cause="dpkg-lock-held",
        layer="package",
        disruption="none",
        check=_find_held_lock,
        decisive=_LOCKED,
        symptoms=(symptoms.PACKAGES_BROKEN, _LOCKED),
        summary=_summarize_lock,
        look_at=(Shell("sudo fuser -v /var/lib/dpkg/lock-frontend"),),
        remedy=_wait_for_lock,
    ),
    Rule(
        cause="dpkg-unconfigured-packages",
        layer="package",
        disruption="none",
        decisive=_HALF,
        typical=_LEFT,
        symptoms=(symptoms.PACKAGES_BROKEN, _HALF),
        summary=_summarize_half_done,
        look_at=(Shell("dpkg --audit"),),
        remedy=_finish_packages,
        explains=MISMATCHES | NO_PACKAGES | {"held-or-broken-packages"},
    ),
)
