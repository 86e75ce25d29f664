"""dpkg's filters, dpkg.cfg(5) and dpkg(1): the paths of packages that it does not unpack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gpunode.command import command
from gpunode.facts.model import Facts
from gpunode.facts.patterns import Pattern
from gpunode.outcome import Refusal
from gpunode.packages.deb.configuration import DPKG_FOLDER, DPKG_MAIN

_DPKG_CONFIG_FILE_NAME: Final = Pattern(r"[A-Za-z0-9_-]{1,255}")
# lib/dpkg/options.c (dpkg 1.21): one sign after the name, a space or =, then spaces; quotes around the value fall.
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

    Args:
        facts: the node's.
        uses: by a pattern of paths as dpkg takes it, what the files are for.
    """
    rules = tuple(_read_filters(facts))
    found = {paths: rule for paths in uses if (rule := _find_exclusion(rules, paths))}
    if not found:
        return None
    lines = dict.fromkeys(f"{rule.place} has path-exclude={rule.glob}" for rule in found.values())
    reasons = dict.fromkeys(uses[paths] for paths in found)
    return Refusal(
        what=f"dpkg leaves {', '.join(found)} out of every package on this node",
        why=f"{', '.join(lines)}; {', '.join(reasons)}",
        hint="\n".join(
            (
                "remove that from dpkg's configuration, or add exceptions where dpkg reads them last:",
                *(f"{command('echo', f'path-include={paths}')} | sudo tee -a {DPKG_MAIN}" for paths in found),
                "then run the same command again",
            )
        ),
    )


def _find_exclusion(rules: tuple[_PathFilter, ...], paths: str) -> _PathFilter | None:
    """Return the filter that keeps ``paths`` out; the last one that fits decides (src/main/filters.c)."""
    last = next((rule for rule in reversed(rules) if fnmatchcase(paths, rule.glob)), None)
    return last if last and last.excludes else None


def _read_filters(facts: Facts) -> Iterator[_PathFilter]:
    """Yield the filters in dpkg's order: its folder by name, then its main file."""
    folder = sorted(path for path in facts.files if path.startswith(f"{DPKG_FOLDER}/"))
    for path in (*(one for one in folder if _DPKG_CONFIG_FILE_NAME.fullmatch(one.rpartition("/")[2])), DPKG_MAIN):
        for number, line in enumerate(facts.text(path).splitlines(), 1):
            if match := _PATH_FILTER_LINE.fullmatch(line.rstrip()):
                yield _PathFilter(f"{path}:{number}", match["glob"], match["does"] == "ex")
