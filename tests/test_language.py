"""Rules of CONTRIBUTING.md for names and docstrings that a program can check.

A name that passes may still say nothing; a person must read it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpunode"
TESTS = Path(__file__).parent
SCRIPTS = tuple(ROOT / name for name in ("benchmarks", "docs", "packaging", ".ci"))
# A first line says what the function does ("Return …", "Refuse to …") or what the class or property is.
_BAD_START = re.compile(r"(What|Whether|Who|Whose|Where|How|Nothing|Nobody|As|One|Those|That)\b")
_THIRD_PERSON = re.compile(r"(Prints|Writes|Runs|Returns|Yields|Builds|Makes|Ends|Reads|Gives|Shows|Says|Tells)\b")
_IRREGULAR = frozenset(
    [
        "told",
        "said",
        "seen",
        "shown",
        "heard",
        "known",
        "had",
        "held",
        "left",
        "lost",
        "made",
        "met",
        "found",
        "begun",
        "built",
        "bound",
        "bought",
        "brought",
        "caught",
        "chosen",
        "come",
        "cut",
        "done",
        "drawn",
        "driven",
        "fallen",
        "felt",
        "fed",
        "given",
        "gone",
        "grown",
        "hidden",
        "kept",
        "laid",
        "led",
        "lent",
        "meant",
        "paid",
        "sent",
        "sought",
        "spoken",
        "spent",
        "stood",
        "swept",
        "taken",
        "taught",
        "thought",
        "thrown",
        "torn",
        "understood",
        "won",
        "worn",
        "written",
        "lacked",
        "owed",
    ]
)
# Participles that name a pure function which returns a changed copy, as sorted does.
_USUAL = frozenset(
    {
        "sorted",
        "reversed",
        "quoted",
        "escaped",
        "indented",
        "redacted",
        "anonymized",
        "rendered",
        "merged",
        "normalized",
    }
)
# The number of participles left in packages that were not reviewed yet. Only lower this number.
_PARTICIPLES_ALLOWED = 14
_LONGEST_TEST_NAME = 70
# A test's name is a statement about the product; these words begin half a sentence.
_BAD_TEST_START = re.compile(r"test_(what|who|whose|where|how|why|which|whether|those|that|as|of)_")


def _trees(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield str(path.relative_to(folder.parent)), ast.parse(path.read_text())


@cache
def package_trees() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(_trees(PACKAGE))


@cache
def trees_of_tests() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(_trees(TESTS))


@cache
def script_trees() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(tree for folder in SCRIPTS for tree in _trees(folder))


def _tests() -> Iterator[tuple[str, str]]:
    for place, tree in trees_of_tests():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield f"{place}:{node.lineno}", node.name


def test_docstring_begins_with_an_imperative_or_a_noun_phrase() -> None:
    bad = [
        f"{place}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for place, tree in (*package_trees(), *trees_of_tests(), *script_trees())
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        and (text := ast.get_docstring(node))
        and (_BAD_START.match(text) or (isinstance(node, ast.FunctionDef) and _THIRD_PERSON.match(text)))
    ]
    assert not bad, "begin with an imperative (Return, Yield, Refuse to) or with a noun phrase"


def test_class_name_stands_in_one_module() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for place, tree in package_trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(place)
    repeated = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not repeated, "grep must find one class by its name"


def test_no_function_is_named_by_a_bare_participle() -> None:
    bad = [
        f"{place}:{node.lineno}: {node.name}"
        for place, tree in (*package_trees(), *script_trees())
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _is_participle(node.name.strip("_"))
    ]
    advice = "a function is a verb with its object, such as read_lock or find_drift:\n"
    assert len(bad) <= _PARTICIPLES_ALLOWED, advice + "\n".join(bad)


def test_function_named_refuse_raises_and_returns_nothing() -> None:
    bad = [
        f"{place}:{node.lineno}: {node.name}"
        for place, tree in package_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name.lstrip("_").startswith("refuse_")
        and ast.unparse(node.returns or ast.Name("?")) not in {"None", "NoReturn"}
    ]
    assert not bad, "a caller that expects an exception would drop the returned refusal: name it …_refusal"


def test_no_test_name_is_longer_than_70_characters() -> None:
    bad = [f"{place}: {len(name)}: {name}" for place, name in _tests() if len(name) > _LONGEST_TEST_NAME]
    assert not bad, "say what breaks, and leave the circumstances to the body"


def test_no_test_name_begins_with_half_a_sentence() -> None:
    bad = [f"{place}: {name}" for place, name in _tests() if _BAD_TEST_START.match(name)]
    assert not bad, "begin with what breaks, such as test_rollback_restores_the_previous_file"


def _is_participle(name: str) -> bool:
    is_regular = name.endswith("ed") and not name.endswith("eed") and len(name) > 4
    return "_" not in name and name not in _USUAL and (name in _IRREGULAR or is_regular)
