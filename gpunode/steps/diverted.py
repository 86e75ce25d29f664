"""Files of packages that somebody has put under another name: what the package brings there is not used."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gpunode.facts import diversions
from gpunode.facts.model import Facts, known


def diverted(facts: Facts, *words: str) -> Iterator[str]:
    """A note for every diversion by hand of a file whose path has one of ``words``."""
    state = known(facts.file(diversions.PATH), None)
    for path, target in diversions.by_hand(state.content.decode("utf-8", "replace")) if state else ():
        if any(word in path for word in words):
            yield (
                f"{path} is diverted to {target}, so the package's own file is not used: "
                f"`dpkg-divert --rename --remove {shlex.quote(path)}` removes the diversion"
            )
