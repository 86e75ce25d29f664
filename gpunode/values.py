"""Create frozen dataclasses faster than the standard library does.

``dataclasses.dataclass`` compiles six methods of each class from text; for 190 classes, that was half the time of all
imports. Here only ``__init__`` is compiled, when the first instance is created, and the others are ordinary functions.
Modules import ``dataclass`` from here for frozen classes; type checkers see the standard library's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

T = TypeVar("T")


def _make_dataclass(
    *,
    frozen: Literal[True],  # noqa: ARG001  for type checkers, which see the standard library's
    slots: bool = False,
    kw_only: bool = False,
) -> Callable[[type[T]], type[T]]:
    """Return a decorator with the meaning of ``dataclasses.dataclass`` with these options."""

    def decorate(declared: type[T]) -> type[T]:
        declared.__doc__ = declared.__doc__ or declared.__name__  # else the slow signature
        # It is frozen below: the standard library would compile two more methods.
        made = dataclasses.dataclass(slots=slots, kw_only=kw_only, init=False, eq=False, repr=False)(declared)
        fields = dataclasses.fields(made)  # type: ignore[arg-type]
        shown = tuple(field.name for field in fields if field.repr)
        compared = tuple(field.name for field in fields if field.compare)
        values_of: Callable[[object], Any] = attrgetter(*compared) if compared else lambda _: ()

        def initialize(one: Any, *values: Any, **named_values: Any) -> None:
            made.__init__ = _compile_init(fields)  # type: ignore[method-assign]
            made.__init__(one, *values, **named_values)

        def is_equal(one: object, other: object) -> bool:
            return values_of(one) == values_of(other) if other.__class__ is one.__class__ else NotImplemented

        def hash_values(one: object) -> int:
            return hash(values_of(one))

        def represent(one: object) -> str:
            return f"{type(one).__qualname__}({', '.join(f'{name}={getattr(one, name)!r}' for name in shown)})"

        methods = {"__init__": initialize, "__eq__": is_equal, "__hash__": hash_values, "__repr__": represent}
        for name, method in {**methods, **_METHODS_OF_ALL}.items():
            setattr(made, name, method)
        return made

    return decorate


def _compile_init(fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """Return the ``__init__`` that sets the fields; keyword-only ones come last."""
    names: dict[str, Any] = {"set_field": object.__setattr__, "unset": dataclasses.MISSING}
    parameters, keyword_parameters, lines = ["self"], list[str](), list[str]()
    for field in fields:
        name = value = field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"make_{name}"] = field.default_factory
            value = f"make_{name}() if {name} is unset else {name}" if field.init else f"make_{name}()"
        names[f"default_{name}"] = field.default
        is_optional = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        if field.init:
            chosen = keyword_parameters if field.kw_only else parameters
            chosen.append(f"{name}=default_{name}" if is_optional else name)
        lines.append(f"set_field(self, {name!r}, {value})")
    if keyword_parameters:
        parameters += ["*", *keyword_parameters]
    # The text contains only names of fields.
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(lines) or 'pass'}", names)  # noqa: S102
    return names["__init__"]


def _refuse_assignment(_: object, name: str, __: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _list_values(one: Any) -> list[Any]:
    return [getattr(one, field.name) for field in dataclasses.fields(one)]


def _restore_values(one: Any, values: list[Any]) -> None:
    """Set the values of an unpickled instance."""
    for field, value in zip(dataclasses.fields(one), values, strict=True):
        object.__setattr__(one, field.name, value)


_METHODS_OF_ALL: dict[str, Callable[..., Any]] = {
    "__setattr__": _refuse_assignment,
    "__delattr__": _refuse_deletion,
    "__getstate__": _list_values,
    "__setstate__": _restore_values,
}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _make_dataclass
