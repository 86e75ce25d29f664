"""Settings of the node that block what a driver needs: components that no source names (sources.list(5))."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from gpunode.facts.model import Facts, PackageSource, require, value_or
from gpunode.outcome import Refusal

_SUITE_SUFFIXES: Final = frozenset({"", "updates", "security"})
# Names of suites that do not tell the release.
_SUITES_NAMED_BY_AGE: Final = frozenset({"stable", "oldstable", "oldoldstable", "testing"})


def find_missing_components_refusal(facts: Facts, components: Sequence[str]) -> Refusal | None:
    """Return the refusal of a node whose entries for its own archive leave some of ``components`` out.

    None if no entry is for that archive, such as with a mirror that has one flat folder: only apt can tell then.
    """
    codename = require(facts.distro, "which distribution this is").codename
    own = [source for source in value_or(facts.sources, ()) if _is_release_archive_entry(source, codename)]
    present = {*chain.from_iterable(source.components for source in own)}
    missing = [component for component in components if component not in present]
    if not own or not missing:
        return None
    first = next((source for source in own if source.suite == codename), own[0])
    every = " ".join(dict.fromkeys((*first.components, *components)))
    line = f"Components: {every}" if first.file.endswith(".sources") else f"… {first.suite} {every}"
    more = sorted({f"{source.file}:{source.line}" for source in own} - {f"{first.file}:{first.line}"})
    others = f" ({', '.join(more)} likewise, for updates and security fixes)" if more else ""
    return Refusal(
        what=f"the distribution's own driver is in {' and '.join(missing)}, which no package source names",
        why=f"{first.file}:{first.line} has {' '.join(first.components)} alone; gpunode does not edit sources that it "
        "did not write",
        hint=f"make that entry say: {line}{others}\nsudo apt-get update\nthen run the same command again",
    )


def _is_release_archive_entry(source: PackageSource, codename: str) -> bool:
    """Return whether an entry is for the release's own archive, its updates or its security fixes.

    Others have a component main, too; a mirror keeps the folder's name (debian, debian-security, ubuntu-ports).
    """
    if not source.enabled or source.source_package or "main" not in source.components:
        return False
    stem, _, part = source.suite.partition("/")[0].partition("-")
    folder = source.uri.rstrip("/").rpartition("/")[2]
    return (
        (stem == codename or stem in _SUITES_NAMED_BY_AGE)
        and part in _SUITE_SUFFIXES
        and folder.startswith(("debian", "ubuntu"))
    )
