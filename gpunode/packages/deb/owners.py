"""The packages that have a file, from dpkg's lists of their files and its diversions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpunode.packages.deb.status import parse_diversions


def find_owners(paths: Collection[str], lists: Mapping[str, bytes], diversions: str) -> Mapping[str, tuple[str, ...]]:
    """Return the packages whose files are among ``paths``, by path.

    A package that was removed and not purged still has its configuration files.

    ``lists`` has the paths of a package, a line each, by its name (``libcuda1:amd64``). What another package, or a
    person, has diverted, by dpkg's file of ``diversions``, is elsewhere.
    """
    # Before Debian 13 packages have /lib in their lists, which leads to /usr/lib.
    aliases = {name: path for path in paths for name in (path.removeprefix("/usr"), path)}
    moves = {(source, by): target for source, target, by in parse_diversions(diversions)}
    sources = {target: source for (source, _), target in moves.items() if target in aliases}
    wanted = {name.encode(): name for name in (*aliases, *sources.values())}
    found: dict[str, tuple[str, ...]] = {}
    for package, listed in lists.items():
        for name in sorted(wanted[line] for line in wanted.keys() & set(listed.split(b"\n"))):
            diverted = [to for (source, by), to in moves.items() if source == name and by != package.partition(":")[0]]
            place = diverted[0] if diverted else name
            if place in aliases:
                found[aliases[place]] = (*found.get(aliases[place], ()), package)
    return found
