"""The archive of each package of a transaction, and its signing key; only recorded, decides nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import Change, PackageChange
from gpunode.facts.evidence import Probe
from gpunode.facts.model import EMBEDDED_KEY_PLACEHOLDER, Facts, PackageSource, value_or
from gpunode.host.port import HostView
from gpunode.packages import deb
from gpunode.redaction.secrets import redact_text as redact
from gpunode.workflow.converge import StagePlan

_KEYRING_LIMIT_BYTES = 1 << 20
_KEY_FINGERPRINT = re.compile(r"(?:0x)?([0-9A-Fa-f]{40}|[0-9A-Fa-f]{64})!?")


def with_origins(plan: StagePlan, host: HostView, facts: Facts) -> StagePlan:
    """Return ``plan`` with the known origins of its packages, from a single query."""
    installed = {change: after for change in plan.packages if (after := change.known_final_state)}
    if not installed:
        return plan
    named = dict.fromkeys(change.id for change in installed)
    answer = host.run_probe(deb.archives_probe(named))
    archives = deb.parse_archives(answer.text) if answer.outcome == "ok" else {}

    @cache
    def describe(archive: deb.Archive) -> str:
        archive_label = " ".join(filter(None, (redact(archive.uri), archive.part)))
        return f"{archive_label}, {_describe_signature(archive, facts, host)}"

    located: dict[Change, PackageChange] = {}
    for change, after in installed.items():
        origins = archives.get((change.id.name, after.version), ())
        located[change] = replace(change, after=replace(after, origin="; or ".join(map(describe, origins))))
    steps = tuple(
        replace(step, changes=tuple(located.get(change, change) for change in step.changes)) for step in plan.steps
    )
    return replace(plan, steps=steps, dependencies=tuple(located.get(change, change) for change in plan.dependencies))


def describe_problem_archives(problem: str, facts: Facts, host: HostView) -> str:
    """Return the origin of the driver packages that a refused transaction names, a line for each archive.

    Empty if only one archive has them: with two, a package of one may block those of the other.
    """
    named = driver_packages(deb.find_named_packages(problem))
    answer = host.run_probe(deb.archives_probe(named)) if named else None
    if answer is None or answer.outcome != "ok":
        return ""
    versions: dict[deb.Archive, list[str]] = {}
    for (name, version), archives in deb.parse_archives(answer.text).items():
        for archive in archives:
            versions.setdefault(archive, []).append(f"{name} {version}")
    rows = []
    for archive, found in versions.items():
        files = ", ".join(f"{source.file}:{source.line}" for source in _sources_of_archive(archive, facts))
        rows.append(f"{redact(archive.uri)}{f' ({files})' if files else ''} has {', '.join(found[:3])}")
    return "\n".join(rows) if len(versions) > 1 else ""


def _sources_of_archive(archive: deb.Archive, facts: Facts) -> list[PackageSource]:
    return [
        source
        for source in value_or(facts.sources, ())
        if source.enabled and not source.source_package and deb.is_entry_for_archive(source, archive)
    ]


def _describe_signature(archive: deb.Archive, facts: Facts, host: HostView) -> str:
    """Return whose signature the archive requires, in words; all entries of an archive have to agree."""
    sources, folder = _sources_of_archive(archive, facts), deb.TRUSTED_FOLDER
    ways = dict.fromkeys(_describe_entry_signature(source, folder, host) for source in sources)
    return " or ".join(ways) or "from an unknown entry of the sources"


def _describe_entry_signature(source: PackageSource, trusted_folder: str, host: HostView) -> str:
    if source.is_unsigned:
        return f"signature not required ({' '.join(source.relaxed)} in {source.file})"
    if not source.signed_by:
        return f"signed by a key of {trusted_folder}"
    if source.signed_by == EMBEDDED_KEY_PLACEHOLDER:
        return f"signed by the key in {source.file}"
    return "signed by " + " or ".join(_describe_keys(word, host) for word in source.signed_by.replace(",", " ").split())


def _describe_keys(word: str, host: HostView) -> str:
    """Return the fingerprints of a keyring, or the fingerprint that the entry itself names."""
    if named := _KEY_FINGERPRINT.fullmatch(word):
        return named[1].upper()
    from gpunode.catalog import openpgp  # loaded on use: a run that changes nothing needs no origins

    capture = host.run_probe(Probe(f"file:{word}", path=word, limit_bytes=_KEYRING_LIMIT_BYTES))
    try:
        fingerprints = openpgp.list_key_fingerprints(capture.data) if capture.outcome == "ok" else ()
    except ValueError:
        fingerprints = ()
    if len(fingerprints) == 1:
        return fingerprints[0]
    return f"a key of {word}" + (f" ({' '.join(fingerprints)})" if fingerprints else "")
