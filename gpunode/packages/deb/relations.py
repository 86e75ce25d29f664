"""Relations between packages as control files write them: deb-control(5), Debian Policy 7.1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.facts.patterns import Pattern

_ALTERNATIVE: Final = Pattern(r"\s*([^\s:(\[<|,]+)(?::([^\s(\[<|,]+))?\s*(?:\(\s*([<>=]{1,2})\s*([^)\s]+)\s*\))?")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One package of a clause ``a (>= 1) | b:any``.

    Attributes:
        qualifier: the architecture that is asked for: empty for that of the package that asks, ``any``, or a name.
        operator: empty where every version will do.
    """

    name: str
    qualifier: str
    operator: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name


def clauses(field: str) -> Iterator[tuple[Alternative, ...]]:
    """Yield each clause of a field such as Depends, with its alternatives in order; what is no relation is left out."""
    for clause in filter(str.strip, field.split(",")):
        if found := tuple(_alternatives(clause)):
            yield found


def _alternatives(clause: str) -> Iterator[Alternative]:
    for text in clause.split("|"):
        if found := _ALTERNATIVE.match(text):
            yield Alternative(found[1], found[2] or "", found[3] or "", found[4] or "")
