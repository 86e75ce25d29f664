"""Output of apt, as data; pure. ``tests/conformance/apt`` has every form as apt itself printed it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from gpunode.package_id import PackageId
from gpunode.packages.deb.version import is_older
from gpunode.packages.simulation import Action, Simulation

_ACTION_BY_VERB: dict[str, Literal["install", "remove", "purge"]] = {
    "Inst": "install",
    "Remv": "remove",
    "Purg": "purge",
}
# "Inst name [former] (version origin, origin [arch]) [broken meanwhile]"; a residue is "Purg name" without a version.
_SIMULATED_ACTION_LINE = re.compile(
    r"^(?P<verb>Inst|Remv|Purg) (?P<name>\S+)(?: \[(?P<former>[^\]]+)\])?"
    r"(?: \((?P<version>\S+) (?:(?P<origin>.*?) )?\[[^\]]*\]\))?"
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
            yield Action(_ACTION_BY_VERB[match["verb"]], package, version, former, match["origin"] or "", is_downgrade)


def refusal(stdout: str, stderr: str) -> str:
    """Apt's own reason for refusing, without the preliminaries."""
    _, heading, unmet = stdout.partition(_UNMET_DEPENDENCIES_HEADING)
    parts = [heading + unmet.rstrip()] if heading else []
    parts += [named[0].rstrip() for named in _HELD_OR_DOWNGRADED_LIST.finditer(stdout)]
    parts += messages(stderr) or messages(stdout)
    return "\n".join(parts or (stderr.strip() or stdout.strip()).splitlines()[-5:])


def messages(output: str, kinds: str = "E") -> list[str]:
    """The messages of apt of these kinds (``E``, ``W``), each with the indented lines that belong to it."""
    found: list[str] = []
    wanted = False
    for line in output.splitlines():
        if re.match(r"[EWN]: ", line):
            wanted = line[0] in kinds
            if wanted:
                found.append(line.rstrip())
        elif wanted and line.startswith("   "):
            found[-1] += "\n" + line.rstrip()
        else:
            wanted = False
    return found


def parse_madison(output: str) -> Mapping[PackageId, frozenset[str]]:
    """The versions of each package in what ``apt-cache madison`` printed: ``name | version | archive``."""
    found: dict[PackageId, frozenset[str]] = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and not fields[2].endswith(" Sources"):
            package = PackageId.of(fields[0])
            found[package] = found.get(package, frozenset()) | {fields[1]}
    return found


def is_update_incomplete(output: str) -> bool:
    """Return whether ``apt-get update`` went without some index although it says that it ended well.

    apt before Debian 11's knows no APT::Update::Error-Mode, and only warns of a server's 503 or a missing key.
    """
    return any(
        re.match(r"[WE]: (Failed to fetch |Some index files failed|An error occurred during the signature)", message)
        for message in messages(output, "EW")
    )


def failed_fetches(output: str) -> tuple[str, ...]:
    """The addresses that could not be fetched, each once, in the order of apt's messages."""
    found = re.findall(r"^[EW]: Failed to fetch (\S+)", output, re.MULTILINE)
    return tuple(dict.fromkeys(found))


def index_file_prefix(uri: str) -> str:
    """Return the beginning of the names of a repository's index files in ``/var/lib/apt/lists``.

    Args:
        uri: of any of its index files. Source of the escaping: URItoFileName of apt.
    """
    bare = re.sub(r"\A[a-z0-9+]+:(?://)?(?:[^/@]*@)?", "", uri)
    suite = re.match(r".*?/dists/.+?(?=/[^/]*\Z|/[^/]+/(?:binary-|source/|i18n/|dep11/|cnf/))", bare)
    base = suite[0] if suite else bare.rpartition("/")[0]
    escaped = re.sub(r'[\\|{}\[\]<>"^~_=!@#$%&*]', lambda found: f"%{ord(found[0]):02x}", base)
    return escaped.replace("/", "_") + "_"
