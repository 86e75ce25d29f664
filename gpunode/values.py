"""Create frozen dataclasses faster than the standard library does.

``dataclasses.dataclass`` compiles six methods of each class from text; for 190 classes, that was half the time of all
imports. Here comparison, hash and representation are ordinary functions, and the other three methods remain. Modules
with many classes import ``dataclass`` from here; type checkers see the standard library's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")


def _make_dataclass(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator with the meaning of ``dataclasses.dataclass`` with these options."""

    def decorate(declared: type[T]) -> type[T]:
        made = dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only, eq=False, repr=False)(declared)
        fields = dataclasses.fields(made)  # type: ignore[arg-type]
        shown = tuple(field.name for field in fields if field.repr)
        compared = tuple(field.name for field in fields if field.compare)
        values_of: Callable[[object], Any] = attrgetter(*compared)

        def is_equal(one: object, other: object) -> bool:
            return values_of(one) == values_of(other) if other.__class__ is one.__class__ else NotImplemented

        def hash_values(one: object) -> int:
            return hash(values_of(one))

        def represent(one: object) -> str:
            return f"{type(one).__qualname__}({', '.join(f'{name}={getattr(one, name)!r}' for name in shown)})"

        for name, method in (("__eq__", is_equal), ("__hash__", hash_values), ("__repr__", represent)):
            setattr(made, name, method)
        return made

    return decorate


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _make_dataclass
