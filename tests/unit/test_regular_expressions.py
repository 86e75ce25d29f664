"""No regular expression of gpunode's can take exponential time, proved from its structure and not by a clock."""

from __future__ import annotations

import ast
import gc
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gpunode
from gpunode.facts.patterns import Pattern

if sys.version_info >= (3, 11):
    from re import _compiler, _parser
else:
    import sre_compile as _compiler
    import sre_parse as _parser

# A smaller bound is no loop: two nested ones take a few hundred steps.
_MANY = 32
_SIGNS = "".join(map(chr, range(256)))
_CALLS = frozenset({"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"})
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
_ONE_SIGN = frozenset({"LITERAL", "NOT_LITERAL", "IN", "ANY"})
Node = tuple[Any, Any]


@cache
def every_expression() -> frozenset[tuple[str, int]]:
    """Return every expression of the package: literal ones, and those built when its modules are imported."""
    found = set[tuple[str, int]]()
    for module in pkgutil.walk_packages(gpunode.__path__, "gpunode."):
        if not module.name.endswith("__main__"):
            found |= {(one.pattern, one.flags) for one in vars(importlib.import_module(module.name)).values()
                      if isinstance(one, re.Pattern) and isinstance(one.pattern, str)}  # fmt: skip
    gc.unfreeze()  # a fleet of another test has already frozen every existing object
    found |= {(one.pattern, one.flags) for one in gc.get_objects() if isinstance(one, Pattern)}
    for file in Path(gpunode.__path__[0]).rglob("*.py"):
        found |= {(text, 0) for text in _written_patterns(ast.parse(file.read_text("utf-8")))}
    return frozenset(found)


def _written_patterns(tree: ast.Module) -> Iterator[str]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.args and isinstance(text := call.args[0], ast.Constant):
            is_re = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "re"
            is_ours = isinstance(call.func, ast.Name) and call.func.id in {"Pattern", "compiled"}
            if isinstance(text.value, str) and (is_ours or (is_re and ast.unparse(call.func)[3:] in _CALLS)):
                yield text.value


def exponential(expression: str, flags: int = 0) -> list[str]:
    """Return the nested loops that match one text in many ways: ``(a+b?)*`` does so in two ways for each ``a``.

    Such a loop runs over characters with which one can also leave it, go round the outer loop and return.
    """
    parsed: Any = _parser.parse(expression, flags)
    return [str(loop) for loop in _loops(parsed) for signs in _inner(loop, (), (), parsed.state) if signs]


def _kind(node: Node) -> str:
    return str(node[0])


def _parts(node: Node) -> tuple[Sequence[Node], ...]:
    """Return the contents of the node: one sequence of nodes, or several to choose from."""
    match _kind(node):
        case "SUBPATTERN":
            return (node[1][3],)
        case "BRANCH":
            return tuple(node[1][1])
        case "ASSERT" | "ASSERT_NOT":
            return (node[1][1],)
        case "ATOMIC_GROUP":
            return (node[1],)
        case kind if kind in _REPEATS or kind == "POSSESSIVE_REPEAT":
            return (node[1][2],)
        case _:
            pass
    return ()


def _loops(nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """Yield the bodies of all loops."""
    for node in nodes:
        for part in _parts(node):
            if _is_loop(node):
                yield part
            yield from _loops(part)


def _is_loop(node: Node) -> bool:
    return _kind(node) in _REPEATS and int(node[1][1]) >= _MANY


def _inner(
    nodes: Sequence[Node], before: tuple[Node, ...], after: tuple[Node, ...], state: Any
) -> Iterator[frozenset[str]]:
    """Yield the characters of each loop in a loop's body from which those characters lead round the outer loop."""
    for number, node in enumerate(nodes):
        ahead, behind = (*before, *nodes[:number]), (*nodes[number + 1 :], *after)
        for part in map(_without_groups, _parts(node)):
            if _is_loop(node) and len(part) == 1 and _kind(part[0]) in _ONE_SIGN:
                signs = _signs(part[0], state)
                if all(_passes(one, signs, state) for one in (*behind, *ahead)):
                    yield signs
            elif not _kind(node).startswith("ASSERT"):
                yield from _inner(part, ahead, behind, state)


def _without_groups(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return ``nodes`` without the brackets around all of them."""
    while len(nodes) == 1 and _kind(nodes[0]) == "SUBPATTERN":
        (nodes,) = _parts(nodes[0])
    return nodes


def _passes(node: Node, signs: frozenset[str], state: Any) -> bool:
    """True if the node accepts some text of ``signs``, even an empty one."""
    kind = _kind(node)
    if kind in _ONE_SIGN:
        return bool(_signs(node, state) & signs)
    if kind.endswith("REPEAT") and node[1][0] == 0:
        return True
    if kind == "AT":
        # Nothing follows the end of the text, and no word ends between two letters.
        ends_word = str(node[1]) == "AT_BOUNDARY"
        return not (ends_word and all(map(re.compile(r"\w").match, signs))) and str(node[1]) != "AT_END_STRING"
    return (
        kind.startswith("ASSERT")
        or not (parts := _parts(node))
        or any(all(_passes(one, signs, state) for one in part) for part in parts)
    )


def _signs(node: Node, state: Any) -> frozenset[str]:
    taken = _compiler.compile(_parser.SubPattern(state, [node]))
    return frozenset(filter(taken.match, _SIGNS))


@pytest.mark.parametrize(
    "expression", ["(a+)+b", "(a*)*b", "(?:a|b+)*c", r"(\w+\s?)*!", r"(?:[^,]+,?)*x", "((a|b)*c?)*d", "(?i:(a+A?)*)!"]
)
def test_exponential_loop_is_detected(expression: str) -> None:
    assert exponential(expression)


@pytest.mark.parametrize(
    "expression", [r"(?:\n .*)*", r"(\w+ )*!", "a+b+", r"(?:[^,]+,)*x", "(?:a{1,9}){1,9}", "(ab)*", r"(\w+\b ?)*x"]
)
def test_harmless_loop_is_not_reported(expression: str) -> None:
    assert not exponential(expression)


def test_no_expression_takes_exponential_time() -> None:
    assert len(every_expression()) > 1200
    assert [expression for expression, flags in sorted(every_expression()) if exponential(expression, flags)] == []
