"""Settings of the node that block what a driver needs: components that no source names, paths not unpacked.

Sources: sources.list(5); dpkg.cfg(5) and dpkg(1) on the filters of paths that dpkg does not unpack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Final

from gpunode.command import command
from gpunode.facts.model import Facts, PackageSource, known, need
from gpunode.facts.patterns import Pattern
from gpunode.outcome import Refusal
from gpunode.packages.deb.configuration import DPKG_CONFIG_FOLDER, DPKG_MAIN

_SUITE_SUFFIXES: Final = frozenset({"", "updates", "security"})
# Names of suites that do not tell the release.
_SUITES_NAMED_BY_AGE: Final = frozenset({"stable", "oldstable", "oldoldstable", "testing"})


def refuse_missing_components(facts: Facts, components: Sequence[str]) -> Refusal | None:
    """Return the refusal of a node whose entries for its own archive leave some of ``components`` out.

    None if no entry is for that archive, such as with a mirror that has one flat folder: only apt can tell then.
    """
    codename = need(facts.distro, "which distribution this is").codename
    own = [source for source in known(facts.sources, ()) if _is_release_archive_entry(source, codename)]
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


_DPKG_CONFIG_FILE_NAME: Final = Pattern(r"[A-Za-z0-9_-]{1,255}")
# lib/dpkg/options.c (dpkg 1.21): a space or = after the name, then spaces; quotes around the value are dropped.
_PATH_FILTER_LINE: Final = Pattern(
    r"path-(?P<does>ex|in)clude(?:=|[^A-Za-z0-9-]=?)\s*(?P<quote>[\"']?)(?P<glob>.*)(?P=quote)"
)


@dataclass(frozen=True, slots=True)
class _PathFilter:
    place: str
    glob: str
    excludes: bool


def refuse_excluded_files(facts: Facts, uses: Mapping[str, str]) -> Refusal | None:
    """Return the refusal of a node whose dpkg unpacks none of the files that something needs.

    ``uses`` maps patterns of paths, in dpkg's syntax, to the purpose of the files.
    """
    rules = tuple(_read_filters(facts))
    exclusions = {paths: rule for paths in uses if (rule := _find_exclusion(rules, paths))}
    if not exclusions:
        return None
    lines = dict.fromkeys(f"{rule.place} has path-exclude={rule.glob}" for rule in exclusions.values())
    reasons = dict.fromkeys(uses[paths] for paths in exclusions)
    return Refusal(
        what=f"dpkg leaves {', '.join(exclusions)} out of every package on this node",
        why=f"{', '.join(lines)}; {', '.join(reasons)}",
        hint="\n".join(
            (
                "remove that from dpkg's configuration, or add exceptions where dpkg reads them last:",
                *(f"{command('echo', f'path-include={paths}')} | sudo tee -a {DPKG_MAIN}" for paths in exclusions),
                "then run the same command again",
            )
        ),
    )


def _find_exclusion(rules: tuple[_PathFilter, ...], paths: str) -> _PathFilter | None:
    """Return the filter that excludes ``paths``; the last match decides (src/main/filters.c)."""
    last = next((rule for rule in reversed(rules) if fnmatchcase(paths, rule.glob)), None)
    return last if last and last.excludes else None


def _read_filters(facts: Facts) -> Iterator[_PathFilter]:
    """Yield the filters in dpkg's order: its folder by name, then its main file."""
    folder = sorted(path for path in facts.files if path.startswith(f"{DPKG_CONFIG_FOLDER}/"))
    for path in (*(one for one in folder if _DPKG_CONFIG_FILE_NAME.fullmatch(one.rpartition("/")[2])), DPKG_MAIN):
        for number, line in enumerate(facts.text(path).splitlines(), 1):
            if match := _PATH_FILTER_LINE.fullmatch(line.rstrip()):
                yield _PathFilter(f"{path}:{number}", match["glob"], match["does"] == "ex")
