from __future__ import annotations

import inspect
import json

import pytest

from gpunode import errors
from gpunode.errors import GpunodeError, RecipeError, Terminated, UsageError, exit_codes

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, GpunodeError)]


def test_exit_codes_are_stable() -> None:
    assert [code for code, _ in exit_codes()] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 130, 143]


def test_every_exit_code_has_one_meaning() -> None:
    meanings = [meaning for _, meaning in exit_codes()]
    assert len(set(meanings)) == len(meanings)
    assert all(meanings)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind is not GpunodeError and not issubclass(kind, RecipeError)]
)
def test_every_error_has_what_why_and_hint_in_json(kind: type[GpunodeError]) -> None:
    stop = kind("it stopped", why="because", hint="do this")
    assert json.loads(json.dumps(stop.as_dict())) == {
        "error": kind.status,
        "what": "it stopped",
        "why": "because",
        "hint": "do this",
    }
    assert str(stop) == "it stopped"


def test_error_without_a_cause_ends_with_what_happened() -> None:
    assert (UsageError("x", why="y").what_and_why, UsageError("x").what_and_why) == ("x: y", "x")


def test_status_words_are_unique() -> None:
    own = [kind.status for kind in KINDS if kind is not GpunodeError and not issubclass(kind, RecipeError)]
    assert len(set(own)) == len(own)


def test_recipe_error_is_a_usage_error_with_its_place() -> None:
    stop = RecipeError("no such key", file="node.toml", line=3, key="driver.verion", allowed=("driver.version",))
    assert isinstance(stop, UsageError)
    assert str(stop) == "node.toml:3: no such key"
    assert "gpunode recipe check node.toml" in stop.hint
    place = {"file": "node.toml", "line": 3, "key": "driver.verion", "allowed": ["driver.version"]}
    assert stop.as_dict() | place == stop.as_dict()
    assert str(RecipeError("not text", file="node.toml")) == "node.toml: not text"


def test_termination_is_an_interruption_with_exit_code_143() -> None:
    assert (Terminated.exit_code, Terminated("x").exit_code) == (143, 143)
    assert issubclass(Terminated, errors.Interrupted)
