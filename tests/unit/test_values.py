from __future__ import annotations

import dataclasses
from dataclasses import field, replace
from typing import Any

import pytest

from gpunode import values


@values.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0
    note: str = field(default="", compare=False)
    cache: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


@values.dataclass(frozen=True, slots=True)
class OtherPoint:
    x: int
    y: int = 0


def test_values_compare_and_hash_by_their_compared_fields() -> None:
    assert Point(1, 2, "a") == Point(1, 2, "b") != Point(1, 3, "a")
    assert len({Point(1, 2, "a"), Point(1, 2, "b"), Point(2, 2)}) == 2
    other: object = OtherPoint(1, 2)
    assert Point(1, 2) != other


def test_value_shows_its_fields_as_the_standard_dataclass_does() -> None:
    made: Any = dataclasses.make_dataclass("Point", [("x", int), ("y", int), ("note", str)], frozen=True)
    assert repr(Point(1, 2, "a")) == repr(made(1, 2, "a"))


def test_value_cannot_be_changed_but_replaced() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]
    assert replace(Point(1), y=3) == Point(1, 3)
    assert not hasattr(Point(1), "__dict__")


def test_value_class_compiles_fewer_methods_than_the_standard_one() -> None:
    def compiled(made: type) -> set[str]:
        return {
            name
            for name, one in vars(made).items()
            if getattr(getattr(one, "__code__", None), "co_filename", "") == "<string>"
        }

    assert compiled(OtherPoint) == {"__init__", "__setattr__", "__delattr__"}
