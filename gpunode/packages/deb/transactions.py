"""apt's transactions: package changes as its arguments, and its output as data.

``tests/conformance/apt`` has every form of output as apt itself printed it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.package_id import PackageId
from gpunode.packages.deb.version import is_older
from gpunode.packages.simulation import Action, Simulation, is_downgrade

_ACTION_BY_VERB: dict[str, Literal["install", "remove", "purge"]] = {
    "Inst": "install",
    "Remv": "remove",
    "Purg": "purge",
}
# "Inst name [former] (version origin, origin [arch]) [broken meanwhile]"; leftovers are "Purg name" without a version.
_SIMULATED_ACTION_LINE = re.compile(
    r"^(?P<verb>Inst|Remv|Purg) (?P<name>\S+)(?: \[(?P<former>[^\]]+)\])?"
    r"(?: \((?P<version>\S+) (?:.*? )?\[[^\]]*\]\))?"
)
_UNMET_DEPENDENCIES_HEADING = "The following packages have unmet dependencies:"
# apt-private/private-install.cc; the names follow, indented.
_HELD_OR_DOWNGRADED_LIST = re.compile(
    r"^The following (?:held packages will be changed|packages will be DOWNGRADED):\n(?: .*\n)+", re.MULTILINE
)


def parse_simulation(stdout: str, stderr: str, *, ok: bool) -> Simulation:
    """Parse the output of ``apt-get --simulate``."""
    return Simulation(tuple(_actions(stdout)), "" if ok else refusal(stdout, stderr) or "it gives no reason", "apt")


def _actions(stdout: str) -> Iterator[Action]:
    for line in stdout.splitlines():
        if match := _SIMULATED_ACTION_LINE.match(line):
            version, former = match["version"] or "", match["former"] or ""
            is_downgrade = bool(version and former) and is_older(version, former)
            package = PackageId.of(match["name"])
            yield Action(_ACTION_BY_VERB[match["verb"]], package, version, former, is_downgrade)


def refusal(stdout: str, stderr: str) -> str:
    """Return apt's own reason for refusing, without the preliminaries."""
    _, heading, unmet = stdout.partition(_UNMET_DEPENDENCIES_HEADING)
    parts = [heading + unmet.rstrip()] if heading else []
    parts += [named[0].rstrip() for named in _HELD_OR_DOWNGRADED_LIST.finditer(stdout)]
    parts += messages(stderr) or messages(stdout)
    return "\n".join(parts or (stderr.strip() or stdout.strip()).splitlines()[-5:])


def messages(output: str, kinds: str = "E") -> list[str]:
    """Return apt's messages of these kinds (``E``, ``W``), each with the indented lines that belong to it."""
    apt_messages: list[str] = []
    wanted = False
    for line in output.splitlines():
        if re.match(r"[EWN]: ", line):
            wanted = line[0] in kinds
            if wanted:
                apt_messages.append(line.rstrip())
        elif wanted and line.startswith("   "):
            apt_messages[-1] += "\n" + line.rstrip()
        else:
            wanted = False
    return apt_messages


def is_update_incomplete(output: str) -> bool:
    """Return whether ``apt-get update`` skipped some index although it reports success.

    apt before Debian 11's lacks APT::Update::Error-Mode, and only warns about a server's 503 or a missing key.
    """
    return any(
        re.match(r"[WE]: (Failed to fetch |Some index files failed|An error occurred during the signature)", message)
        for message in messages(output, "EW")
    )


def failed_fetches(output: str) -> tuple[str, ...]:
    """Return the addresses that could not be fetched, each once, in the order of apt's messages."""
    found = re.findall(r"^[EW]: Failed to fetch (\S+)", output, re.MULTILINE)
    return tuple(dict.fromkeys(found))


def index_file_prefix(uri: str) -> str:
    """Return the beginning of the names of a repository's index files in ``/var/lib/apt/lists``.

    ``uri`` is that of any of its index files. Source of the escaping: URItoFileName of apt.
    """
    bare = re.sub(r"\A[a-z0-9+]+:(?://)?(?:[^/@]*@)?", "", uri)
    suite = re.match(r".*?/dists/.+?(?=/[^/]*\Z|/[^/]+/(?:binary-|source/|i18n/|dep11/|cnf/))", bare)
    base = suite[0] if suite else bare.rpartition("/")[0]
    escaped = re.sub(r'[\\|{}\[\]<>"^~_=!@#$%&*]', lambda found: f"%{ord(found[0]):02x}", base)
    return escaped.replace("/", "_") + "_"


def purged_by_dpkg(changes: Sequence[PackageChange]) -> tuple[PackageId, ...]:
    """Return the packages that dpkg purges after apt has removed them.

    apt's ``--purge`` applies to a whole transaction: if one package must leave its configuration files behind, it is
    not given, and the others are purged afterwards.
    """
    if not any(isinstance(change.after, PackageState) and change.after.config_files_only for change in changes):
        return ()
    return tuple(change.id for change in changes if change.after is None)


def arguments(changes: Sequence[PackageChange], known_packages: Collection[PackageId]) -> tuple[str, ...]:
    """Return the arguments of ``apt-get install``: the options that the plan allows, then packages; empty for no work.

    Nothing can restore the configuration files that a purge removed: such a change requests nothing here, and file
    changes of their own restore them.

    ``known_packages`` are those that dpkg knows: apt refuses ``name-`` for an unknown name.
    """
    packages = tuple(_package_arguments(changes, known_packages))
    return (*_permission_options(changes), *packages) if packages else ()


def _package_arguments(changes: Sequence[PackageChange], known_packages: Collection[PackageId]) -> Iterator[str]:
    by_dpkg = purged_by_dpkg(changes)
    for change in changes:
        if change.is_mark:
            continue  # done by apt-mark
        if isinstance(change.after, KnownAfter):
            # For a branch the preferences choose the version; an exact version must be given to apt.
            yield f"{change.id}={change.after.prefix}*" if change.after.prefix.endswith("-") else str(change.id)
        elif change.after is not None and not change.after.config_files_only:
            yield f"{change.id}={change.after.version}"
        elif change.id in known_packages and (change.exists_before or (change.after is None and not by_dpkg)):
            yield f"{change.id}-"


def _permission_options(changes: Sequence[PackageChange]) -> Iterator[str]:
    """Yield only what the plan needs: apt grants each to the whole transaction, hence ``differences_from_plan``."""
    if any(change.after is None for change in changes) and not purged_by_dpkg(changes):
        yield "--purge"
    if any(is_downgrade(change, is_older) for change in changes):
        yield "--allow-downgrades"
    if any(change.before is not None and change.before.held for change in changes):
        yield "--allow-change-held-packages"
