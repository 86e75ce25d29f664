from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import pytest

import gpunode
from gpunode import fast_dataclass


@fast_dataclass.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0
    note: str = field(default="", compare=False)
    cache: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


@fast_dataclass.dataclass(frozen=True, slots=True)
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


def test_value_class_compiles_only_its_initializer_when_first_created() -> None:
    @fast_dataclass.dataclass(frozen=True, slots=True)
    class Unused:
        x: int

    def compiled() -> set[str]:
        methods = {name: getattr(one, "__code__", None) for name, one in vars(Unused).items()}
        return {name for name, code in methods.items() if code and code.co_filename == "<string>"}

    assert compiled() == set()
    Unused(1)
    assert compiled() == {"__init__"}


@fast_dataclass.dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    must: int
    seen: dict[str, int] = field(default_factory=dict, init=False)
    may: int = 1


@fast_dataclass.dataclass(frozen=True, slots=True)
class Longer(Point):
    last: int = field(default=9, kw_only=True)
    more: int = 8


def test_value_takes_the_arguments_that_the_standard_dataclass_does() -> None:
    assert (Named(must=2).must, Named(must=2).seen, Named(must=2, may=3).may) == (2, {}, 3)
    assert Named(must=2).seen is not Named(must=2).seen
    assert Longer(1, 2, "", {}, 5, last=6) == replace(Longer(1), y=2, more=5, last=6)
    wrong: list[Any] = [lambda: Named(1), Named, lambda: Longer(1, 2, "", {}, 5, 6), lambda: Point(1, z=2)]  # type: ignore[call-arg]
    for create in wrong:
        with pytest.raises(TypeError):
            create()


def test_value_can_be_pickled_but_not_stripped_of_a_field() -> None:
    assert pickle.loads(pickle.dumps(Longer(1, last=3))) == Longer(1, last=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del Point(1).x


@fast_dataclass.dataclass(slots=True)
class Tally:
    count: int = 0
    seen: list[str] = field(default_factory=list)


def test_each_value_has_its_own_default_container() -> None:
    first, second = Tally(), Tally(1, ["a"])
    first.seen.append("b")
    first.count = 2
    assert (first, second, Tally()) == (Tally(2, ["b"]), Tally(1, ["a"]), Tally(0, []))
    with pytest.raises(TypeError):
        hash(first)


def test_wrong_arguments_are_refused_as_by_the_standard_dataclass() -> None:
    assert Named(must=1).may == 1
    make: Any = Named
    for values_in_order, values_by_name in ((1,), {}), ((), {}), ((), {"must": 1, "other": 1}):
        with pytest.raises(TypeError, match=r"Named\.__init__\(\)"):
            make(*values_in_order, **values_by_name)


def test_value_outlives_copying_and_pickling() -> None:
    value = Point(1, 2, "a", {"b": 3})
    for again in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert (again, again.note, again.cache) == (value, "a", {"b": 3})


def test_modules_create_their_value_classes_here() -> None:
    modules = Path(gpunode.__file__).parent.rglob("*.py")
    text_by_module = {str(path): path.read_text() for path in modules}
    imports = re.compile(r"(?m)^from dataclasses import .*\bdataclass\b")
    assert [name for name, text in text_by_module.items() if imports.search(text)] == []
