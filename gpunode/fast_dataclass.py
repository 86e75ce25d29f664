"""Create dataclasses faster than the standard library does.

``dataclasses.dataclass`` compiles up to six methods of each class from text; for 190 classes, that was half the time of
all imports. Here only ``__init__`` is compiled, when the first value is created, and the others are ordinary functions.
Modules import ``dataclass`` from here; type checkers see the standard library's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

T = TypeVar("T")


def _make_dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False
) -> Callable[[type[T]], type[T]]:
    """Return a decorator with the meaning of ``dataclasses.dataclass`` with these options."""

    def decorate(declared: type[T]) -> type[T]:
        # Without a text, the standard library would write the parameters of a method that it does not make.
        declared.__doc__ = declared.__doc__ or declared.__name__
        # Not frozen for the standard library, which would compile the methods that refuse changes.
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(declared)
        fields = dataclasses.fields(made)  # type: ignore[arg-type]
        shown = tuple(field.name for field in fields if field.repr)
        compared = tuple(field.name for field in fields if field.compare)
        values_of: Callable[[object], Any] = attrgetter(*compared) if compared else lambda _: ()

        def initialize(one: object, *values: object, **named_values: object) -> None:
            method = _compile_init(made, fields)
            made.__init__ = method  # type: ignore[method-assign]
            method(one, *values, **named_values)

        def is_equal(one: object, other: object) -> bool:
            return values_of(one) == values_of(other) if other.__class__ is one.__class__ else NotImplemented

        def hash_values(one: object) -> int:
            return hash(values_of(one))

        def represent(one: object) -> str:
            return f"{type(one).__qualname__}({', '.join(f'{name}={getattr(one, name)!r}' for name in shown)})"

        for name, method in {
            "__init__": initialize,
            "__eq__": is_equal,
            "__hash__": hash_values if frozen else None,
            "__repr__": represent,
            **(_FROZEN_METHODS if frozen else {}),
        }.items():
            if name not in vars(declared):
                setattr(made, name, method)
        return made

    return decorate


def _compile_init(made: type, fields: Sequence[dataclasses.Field[Any]]) -> Callable[..., None]:
    """Return the ``__init__`` of ``made``."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": dataclasses.MISSING}
    parameters, named_only, lines = ["self"], ["*"], ["pass"]
    for field in fields:
        parameter = value = name = field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            given = f"{name} if {name} is not _MISSING else " if field.init else ""
            parameter, value = f"{name}=_MISSING", f"{given}_make_{name}()"
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        if field.init:
            (named_only if field.kw_only else parameters).append(parameter)
        lines.append(f"_set(self, {name!r}, {value})")
    parameters += named_only if len(named_only) > 1 else []
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), names)  # noqa: S102
    method: Callable[..., None] = names["__init__"]
    method.__qualname__ = f"{made.__qualname__}.__init__"
    return method


def _refuse_assignment(_: object, name: str, value: object) -> NoReturn:  # noqa: ARG001
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


# For copies and pickles, which would otherwise assign to the fields.
def _list_values(one: Any) -> list[object]:
    return [getattr(one, field.name) for field in dataclasses.fields(one)]


def _restore_values(one: Any, values: Sequence[object]) -> None:
    for field, value in zip(dataclasses.fields(one), values, strict=True):
        object.__setattr__(one, field.name, value)


_FROZEN_METHODS = {
    "__setattr__": _refuse_assignment,
    "__delattr__": _refuse_deletion,
    "__getstate__": _list_values,
    "__setstate__": _restore_values,
}
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _make_dataclass
