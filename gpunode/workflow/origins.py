"""Where each package of a transaction comes from, and whose key vouches for it: for the record, decides nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from gpunode.catalog import openpgp
from gpunode.change import Change, PackageChange, PackageState
from gpunode.facts.apt_sources import EMBEDDED
from gpunode.facts.evidence import Probe
from gpunode.facts.model import AptSource
from gpunode.host.port import HostView
from gpunode.redaction.secrets import text as redact
from gpunode.workflow.converge import StagePlan

_LIMIT_BYTES = 16 << 20
_KEYRING_LIMIT_BYTES = 1 << 20
_FINGERPRINT = re.compile(r"(?:0x)?([0-9A-Fa-f]{40}|[0-9A-Fa-f]{64})!?")
# apt writes no user name and no password, and no slash at the end. Source: apt, ::URI::ArchiveOnly.
_USERINFO = re.compile(r"(?<=://)[^/@]*@")


@dataclass(frozen=True, slots=True)
class Archive:
    """An index that apt has of a package version.

    Attributes:
        part: suite and component (``bookworm/main``); what apt prints of it, mostly nothing, for a flat repository.
    """

    uri: str
    part: str


def with_origins(plan: StagePlan, host: HostView, sources: tuple[AptSource, ...]) -> StagePlan:
    """``plan`` whose packages carry their origin, as far as apt tells it; one question for all of them."""
    brought = [change for change in plan.packages if isinstance(change.after, PackageState)]
    if not brought:
        return plan
    names = dict.fromkeys(change.name for change in brought)
    answer = host.look(Probe("archives", argv=("apt-cache", "madison", *names), limit_bytes=_LIMIT_BYTES))
    archives = served(answer.text) if answer.outcome == "ok" else {}

    @cache
    def vouched(archive: Archive) -> str:
        return f"{' '.join(filter(None, (redact(archive.uri), archive.part)))}, {_vouching(archive, sources, host)}"

    def marked(change: Change) -> Change:
        if not isinstance(change, PackageChange) or not isinstance(after := change.after, PackageState):
            return change
        found = archives.get((change.name.partition(":")[0], after.version), ())
        return replace(change, after=replace(after, origin="; or ".join(map(vouched, found))))

    steps = tuple(replace(step, changes=tuple(map(marked, step.changes))) for step in plan.steps)
    dependencies = (change for change in map(marked, plan.dependencies) if isinstance(change, PackageChange))
    return replace(plan, steps=steps, dependencies=tuple(dependencies))


def served(table: str) -> Mapping[tuple[str, str], tuple[Archive, ...]]:
    """The archives by package and version, as ``apt-cache madison`` lists them: one row for each."""
    found: dict[tuple[str, str], dict[Archive, None]] = {}
    for line in table.splitlines():
        name, _, rest = line.partition("|")
        version, _, index = rest.partition("|")
        words = index.split()
        if len(words) > 1 and words[-1] == "Packages":
            # Before the last word stands the architecture, except for a flat repository, which has none.
            archive = Archive(words[0], words[1] if len(words) > 2 else "")
            found.setdefault((name.strip(), version.strip()), {})[archive] = None
    return {key: tuple(archives) for key, archives in found.items()}


def _vouching(archive: Archive, sources: Iterable[AptSource], host: HostView) -> str:
    """Whose signature on the archive apt asks for, in words; the entries of one archive have to agree on it."""
    found = [source for source in sources if source.enabled and not source.source_package and _serves(source, archive)]
    ways = dict.fromkeys(_way(source, host) for source in found)
    return " or ".join(ways) or "from an unknown entry of the sources"


def _serves(source: AptSource, archive: Archive) -> bool:
    if not _means(_bare(source.uri), _bare(archive.uri)):
        return False
    if not source.components:
        return _means(source.suite.strip("./"), archive.part.strip("./"))
    return any(_means(f"{source.suite}/{component}", archive.part) for component in source.components)


def _bare(uri: str) -> str:
    return _USERINFO.sub("", uri).rstrip("/")


def _means(written: str, printed: str) -> bool:
    """Whether what is ``written`` in the sources is what apt prints, which names the architecture; sources.list(5)."""
    return re.fullmatch(re.escape(written).replace(re.escape("$(ARCH)"), "[^/]+"), printed) is not None


def _way(source: AptSource, host: HostView) -> str:
    if source.is_unsigned:
        return f"signature not required ({' '.join(source.relaxed)} in {source.file})"
    if not source.signed_by:
        return "signed by a key of /etc/apt/trusted.gpg.d"
    if source.signed_by == EMBEDDED:
        return f"signed by the key in {source.file}"
    return "signed by " + " or ".join(_keys(word, host) for word in source.signed_by.replace(",", " ").split())


def _keys(word: str, host: HostView) -> str:
    """The fingerprints of a keyring, or the fingerprint that the entry itself names."""
    if named := _FINGERPRINT.fullmatch(word):
        return named[1].upper()
    capture = host.look(Probe(f"file:{word}", path=word, limit_bytes=_KEYRING_LIMIT_BYTES))
    try:
        found = openpgp.fingerprints(capture.data) if capture.outcome == "ok" else ()
    except ValueError:
        found = ()
    if len(found) == 1:
        return found[0]
    return f"a key of {word}" + (f" ({' '.join(found)})" if found else "")
