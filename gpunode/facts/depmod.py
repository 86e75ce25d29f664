"""depmod's search order, which decides between modules of the same name.

Sources: depmod.d(5); kmod's tools/depmod.c, depmod_module_is_higher_priority(). Between modules of equal rank the order
of the file system decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.facts.model import Facts
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import DEPMOD_FOLDERS
from gpunode.fast_dataclass import dataclass

_DEFAULT_SEARCH_ORDER: Final = ("updates", "built-in")
_REGEX_OPERATORS: Final = Pattern(r"[][*+?^$|(){}\\]")


@dataclass(frozen=True, slots=True)
class DepmodOrder:
    """The folders below /lib/modules/KERNEL in search order; ``built-in`` stands for all that are not named.

    Attributes:
        overrides: a module, a pattern of kernels (a regular expression, or ``*``), and the folder that wins for both.
    """

    searches: tuple[str, ...]
    overrides: frozenset[tuple[str, str, str]] = frozenset()

    def is_first(self, folder: str, other: str, module: str, kernel: str) -> bool:
        """Return whether a module in ``folder`` certainly comes before one of the same name in ``other``."""
        rules = [(pattern, place) for name, pattern, place in self.overrides if name == module]
        forced = {place for pattern, place in rules if pattern == "*" or pattern in kernel}
        # Regular expressions from files are not evaluated, so it is uncertain what they match.
        if any(place not in forced and _REGEX_OPERATORS.search(pattern) for pattern, place in rules):
            return False
        here, there = folder in forced, other in forced
        return here if here != there else self._rank(folder) < self._rank(other)

    def _rank(self, folder: str) -> int:
        named = (
            rank for rank, one in enumerate(self.searches) if one != "built-in" and f"{folder}/".startswith(f"{one}/")
        )
        unnamed = self.searches.index("built-in") if "built-in" in self.searches else len(self.searches)
        return next(named, unnamed)


def read_depmod_order(facts: Facts) -> DepmodOrder:
    """Return the order that the configuration of depmod gives."""
    searches: list[str] = []
    overrides: set[tuple[str, str, str]] = set()
    for words in _read_depmod_config_lines(facts):
        match words:
            case ("search", *folders):
                searches += folders
            case ("override", module, kernel, folder):
                overrides.add((module.replace("-", "_"), kernel, folder))
            case _:
                pass  # other directives say where else to look, or not to look
    return DepmodOrder(tuple(searches) or _DEFAULT_SEARCH_ORDER, frozenset(overrides))


def _read_depmod_config_lines(facts: Facts) -> Iterator[list[str]]:
    """Yield the words of each line, by file name; a file hides those of the same name in later folders."""
    paths = {
        path.rpartition("/")[2]: path
        for folder in reversed(DEPMOD_FOLDERS)
        for path in facts.files
        if path.startswith(f"{folder}/") and not path.startswith(f"{folder}/.") and path.endswith(".conf")
    }
    for name in sorted(paths):
        for line in facts.text(paths[name]).replace("\\\n", "").splitlines():
            if (words := line.split()) and not words[0].startswith("#"):
                yield words
