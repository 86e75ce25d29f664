"""The fleet's page: what is wrong on how many nodes, what is odd, how versions are spread, and every node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.diagnoses.model import STACK
from gpunode.diagnoses.stack import TITLES
from gpunode.page.frame import About, body, card, columns, commands, head, scroll, table
from gpunode.page.markup import Markup, document, joined, tag
from gpunode.page.words import CONDITIONS, DISRUPTIONS, STATES, called, condition_of, count, grouped, odd_words, ranges

if TYPE_CHECKING:
    from gpunode.diagnoses.model import StackLayer
    from gpunode.diagnoses.stack import State
    from gpunode.page.words import Condition
    from gpunode.workflow.fleet import Row
    from gpunode.workflow.picture import Left, Picture, Tally

# The nodes with a fault come first, so what is left out beyond so many is healthy.
_MOST_NODES: Final = 8_000
# So many of a kind are shown; --json has all.
_MOST_KINDS: Final = 40
_MOST_VALUES: Final = 12
_MOST_NAMES: Final = 24
_LONGEST: Final = 120
_BRIEF: Final = 60
# With so few nodes nothing is to be hidden at first.
_FEW: Final = 60
_LOOK: Final = "look"
_LEGEND: Final = {
    "✗": "broken", "!": "at risk or suffers", "✓": "works", "○": "looked at", "?": "not seen", "–": "none here"
}  # fmt: skip
_UNPROVEN: Final = "nothing shows that the driver works"


def page(seen: Picture, about: About, recipe: str = "") -> str:
    """The page about the fleet.

    Args:
        seen: the fleet.
        about: where it comes from.
        recipe: what the nodes were held against; empty where nobody asked.
    """
    return document(head(_title(seen), "style.css", "fleet.css"), _body(seen, about, recipe))


def _title(seen: Picture) -> str:
    how = Counter(map(condition_of, seen.rows))
    worst: Condition = next((one for one in CONDITIONS if how[one]), "healthy")
    all_ = count(len(seen.rows), "node")
    if worst == "healthy":
        return f"All {all_} are healthy" if len(seen.rows) > 1 else "The node is healthy"
    return f"{grouped(how[worst])} of {all_} {'is' if how[worst] == 1 else 'are'} {worst}"


def _body(seen: Picture, about: About, recipe: str) -> Markup:
    return body(
        about,
        "Skip to the nodes",
        "#nodes",
        _verdict(seen),
        _kinds("What is wrong", "", map(_cause, seen.causes)),
        _kinds("Odd ones out", "Unlike most nodes of the same model", _odd(seen), "odd"),
        _kinds("Drift", f"Not as {recipe} has it", _drift(seen), "drift") if recipe else None,
        _kinds("Undetermined", "No fault found, and no proof that the driver works", _lefts(seen.unknown)),
        _kinds("Unread", "These reports could not be read", _lefts(seen.unread)),
        _spread(seen),
        _nodes(seen),
    )


def _verdict(seen: Picture) -> Markup:
    how = Counter(map(condition_of, seen.rows))
    tone = "error" if how["broken"] else "warning" if len(seen.rows) > how["healthy"] else "good"
    counted: list[tuple[str, int]] = [(one, how[one]) for one in CONDITIONS if how[one]]
    if odd := sum(1 for row in seen.rows if row.differences):
        counted.append(("unlike their group", odd))
    if drifted := sum(1 for row in seen.rows if row.drift):
        counted.append(("drifted", drifted))
    counts = (tag("div", tag("dd", grouped(number)), tag("dt", word)) for word, number in counted)
    parts = tag("p.label", "fleet"), tag("h1#verdict", _title(seen)), tag("dl.counts", counts)
    return tag(f"section.verdict.{tone}", *parts, aria_labelledby="verdict")


def _kinds(title: str, legend: str, kinds: Iterable[Markup], id_: str | None = None) -> Markup | None:
    found = list(kinds)
    more = len(found) - _MOST_KINDS
    rest = tag("p.legend", f"and {grouped(more)} more; --json has all") if more > 0 else None
    return card(title, tag("ol.kinds", found[:_MOST_KINDS]), rest, legend=legend, id_=id_) if found else None


def _cause(one: Tally) -> Markup:
    disruption = f" ({DISRUPTIONS[one.disruption]})" if one.disruption != "none" else ""
    what = joined(tag("b", one.title), " ", tag("code", one.cause))
    return _kind(what, one.reports, tag("p", f"next: {one.advice}{disruption}"), commands(one.command))


def _kind(what: str, names: Sequence[str], *more: Markup | None) -> Markup:
    number = tag("span.number", f"{grouped(len(names))} ×")
    return tag("li", number, tag("div", tag("p", what), tag("p.names", _names(names)), *more))


def _odd(seen: Picture) -> Iterator[Markup]:
    for one in seen.odd:
        more = f"; and {count(one.more, 'other difference')}" if one.more else ""
        yield _kind(f"{_cut(odd_words(one.odd), _LONGEST)}: {one.odd.why}{more}", one.reports)


def _drift(seen: Picture) -> Iterator[Markup]:
    for drifted in seen.drift:
        yield _kind(_cut(f"{drifted.drift.title}: {drifted.drift.reason}", _LONGEST), drifted.reports)
    for left in seen.undrifted:
        yield _kind(_cut(f"not compared: {left.why}", _LONGEST), left.reports)


def _lefts(left: Sequence[Left]) -> Iterator[Markup]:
    for one in left:
        yield _kind(_cut(one.why or _UNPROVEN, _LONGEST), one.reports)


def _names(reports: Sequence[str]) -> str:
    found = list(ranges(map(called, reports)))
    more = len(found) - _MOST_NAMES
    shown = ", ".join(_cut(one, _BRIEF) for one in found[:_MOST_NAMES])
    return f"{shown} and {grouped(more)} more" if more > 0 else shown


def _spread(seen: Picture) -> Markup | None:
    """How many nodes have each version, the most frequent first."""
    if not seen.spread:
        return None
    rows = (tag("tr", tag("th", axis, scope="row"), tag("td", _values(values))) for axis, values in seen.spread.items())
    found = scroll("nodes by version", table("versions", columns("what", "version (nodes)"), rows))
    return card("Versions", found, legend="Where most nodes have one version, the others are worth a look")


def _values(values: Mapping[str, int]) -> str:
    shown = [f"{_cut(value, _BRIEF)} ({grouped(number)})" for value, number in [*values.items()][:_MOST_VALUES]]
    more = len(values) - len(shown)
    return ", ".join([*shown, f"{grouped(more)} more"] if more > 0 else shown)


def _needs_look(row: Row) -> bool:
    return row.status != "healthy" or bool(row.differences or row.drift)


def _nodes(seen: Picture) -> Markup:
    ordered = sorted(seen.rows, key=lambda row: (CONDITIONS.index(condition_of(row)), not _needs_look(row)))
    shown = ordered[:_MOST_NODES]
    layers = tuple(id_ for id_ in STACK if id_ in seen.layers)
    layer_names = (tag("th.layer", tag("span", TITLES[one]), scope="col") for one in layers)
    names = joined(columns("node", "state"), layer_names, columns("what", "driver"))
    rows = (_node(row, layers) for row in shown)
    more = len(ordered) - len(shown)
    legend = " · ".join(f"{mark} {word}" for mark, word in _LEGEND.items()) if layers else None
    return tag(
        "section.card",
        tag("h2#nodes", "Nodes"),
        _buttons(seen.rows),
        tag("p.legend", legend),
        scroll("every node", table("nodes", names, rows)),
        tag("p.legend", f"and {count(more, 'healthy node')} more; --json has all") if more > 0 else None,
    )


def _buttons(rows: Sequence[Row]) -> Markup:
    """What hides the healthy nodes, by a rule of the style sheet; with few nodes nothing is hidden at first."""
    looks = sum(map(_needs_look, rows))
    first = len(rows) > _FEW and looks > 0
    all_ = _button("all", f"all {grouped(len(rows))}", checked=not first)
    look = _button(_LOOK, f"needs a look ({grouped(looks)})", checked=first) if looks else None
    return tag("form.filters", tag("fieldset", tag("legend", "show"), all_, look), aria_label="filter the nodes")


def _button(id_: str, text: str, *, checked: bool) -> Markup:
    return tag("label", tag("input", type="radio", name="show", id=id_, checked=checked), f" {text}")


def _node(row: Row, layers: Sequence[StackLayer]) -> Markup:
    looks = _needs_look(row)
    return tag(
        "tr",
        tag("th", _cut(called(row.report), _BRIEF), scope="row"),
        tag("td", condition_of(row), class_=condition_of(row).replace(" ", "-") if looks else None),
        (_cell(row.stack.get(layer)) for layer in layers),
        tag("td", _what(row)),
        tag("td", row.versions.get("driver", "")),
        class_=_LOOK if looks else None,
    )


def _cell(state: State | None) -> Markup:
    if state is None:
        return tag("td")
    mark, word = STATES[state]
    return tag("td", mark, class_=state, title=word or None)


def _what(row: Row) -> Iterator[Markup]:
    """What is wrong with the node, each on a line of its own."""
    if row.error:
        yield tag("p", _cut(row.error.replace(row.path, "it"), _LONGEST))
    if row.cause:
        others = f", and {count(len(row.others), 'other fault')}" if row.others else ""
        yield tag("p", tag("code", row.cause), f" {_cut(row.summary, _LONGEST)}{others}")
    elif row.status == "unknown":
        yield tag("p", _cut("".join(row.unknown[:1]) or _UNPROVEN, _LONGEST))
    if row.differences:
        more = f", and {count(len(row.differences) - 1, 'other difference')}" if len(row.differences) > 1 else ""
        yield tag("p", f"unlike its group: {_cut(odd_words(row.differences[0]), _LONGEST)}{more}")
    if row.drift:
        yield tag("p", f"drift: {_cut(', '.join(one.title for one in row.drift), _LONGEST)}")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
