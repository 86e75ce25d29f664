"""The fleet's page: what is wrong on how many nodes, what is odd, how versions are spread, and every node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpunode.diagnoses.model import STACK
from gpunode.diagnoses.stack import TITLES
from gpunode.page.frame import About, body, card, columns, commands, head, scroll, table
from gpunode.page.markup import Markup, document, joined, listed, tag
from gpunode.page.words import CONDITIONS, DISRUPTIONS, STATES, called, condition_of, count, grouped, odd_words, ranges

if TYPE_CHECKING:
    from gpunode.diagnoses.model import StackLayer
    from gpunode.diagnoses.stack import State
    from gpunode.page.words import Condition
    from gpunode.workflow.fleet import Row
    from gpunode.workflow.picture import Left, Picture, Tally

# Bytes beyond which each node is told in fewer words: a page of 5 000 nodes must open at once, and be mailed.
_LARGEST: Final = 4_500_000
# The nodes with a fault come first, so what is left out beyond so many is healthy.
_MOST_NODES: Final = 8_000
# So many of a kind are shown; --json has all.
_MOST_KINDS: Final = 40
_MOST_VALUES: Final = 12
_MOST_NAMES: Final = 24
_LONGEST: Final = 240
_BRIEF: Final = 60
# With so few nodes nothing is to be hidden at first.
_FEW: Final = 60
_UNPROVEN: Final = "nothing shows that the driver works"


@dataclass(frozen=True, slots=True)
class _Filter:
    """A set of radio buttons, each of which leaves the rows of one value."""

    id: str
    title: str
    values: tuple[str, ...]

    def class_of(self, value: str) -> str:
        """The class of a row with this value; those without a button of their own share the last."""
        return f"{self.id}{self.values.index(value) if value in self.values else len(self.values)}"


def page(seen: Picture, about: About, recipe: str = "") -> str:
    """The page about the fleet.

    Args:
        seen: the fleet.
        about: where it comes from.
        recipe: what the nodes were held against; empty where nobody asked.
    """
    filters = tuple(_filters(seen.rows))
    top = head(_title(seen), "style.css", "fleet.css", rules="\n".join(_rules(filters)))
    whole = document(top, _body(seen, about, recipe, filters, _LONGEST))
    is_small = len(whole.encode("utf-8", "replace")) <= _LARGEST
    return whole if is_small else document(top, _body(seen, about, recipe, filters, _BRIEF))


def _title(seen: Picture) -> str:
    how = Counter(map(condition_of, seen.rows))
    worst: Condition = next((one for one in CONDITIONS if how[one]), "healthy")
    all_ = count(len(seen.rows), "node")
    if worst == "healthy":
        return f"All {all_} are healthy" if len(seen.rows) > 1 else "The node is healthy"
    return f"{grouped(how[worst])} of {all_} {'is' if how[worst] == 1 else 'are'} {worst}"


def _body(seen: Picture, about: About, recipe: str, filters: Sequence[_Filter], longest: int) -> Markup:
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
        _layers(seen.layers),
        _spread(seen),
        _nodes(seen, filters, longest),
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


_SHOWN: Final[tuple[State, ...]] = ("broken", "warned", "affected", "works", "seen", "unseen", "absent")
_STATE_WORDS: Final[Mapping[State, str]] = {"works": "works", "seen": "looked at", "absent": "none here"}


def _word(state: State) -> str:
    return STATES[state][1] or _STATE_WORDS[state]


def _layers(layers: Mapping[StackLayer, Mapping[State, int]]) -> Markup | None:
    if not layers:
        return None
    rows = (
        tag(
            "tr",
            tag("th", TITLES[layer], scope="row"),
            (tag("td", grouped(n) if (n := counted.get(s, 0)) else "", class_=s if n else None) for s in _SHOWN),
        )
        for layer, counted in reversed(tuple(layers.items()))
    )
    found = table("layers", columns("layer", *map(_word, _SHOWN)), rows)
    return card("Layers", scroll("nodes by layer", found), legend="How many nodes have each layer in which state")


def _spread(seen: Picture) -> Markup | None:
    if not seen.spread:
        return None
    axes = tag("div.axes", (_axis(axis, values) for axis, values in seen.spread.items()))
    return card("Versions", axes, legend="Where most nodes have one version, the others are worth a look")


def _axis(axis: str, values: Mapping[str, int]) -> Markup:
    whole = sum(values.values())
    shown = [*values.items()][:_MOST_VALUES]
    rows = (
        tag(
            "tr",
            tag("th", _cut(value, 90), scope="row"),
            tag("td", grouped(number)),
            tag("td", tag("meter", grouped(number), min=0, max=whole, value=number)),
        )
        for value, number in shown
    )
    more, left = len(values) - len(shown), whole - sum(number for _, number in shown)
    caption = tag("caption", tag("b", axis), f" {count(len(values), 'value')}" if len(values) > 1 else None)
    rest = tag("p.legend", f"and {grouped(more)} more, on {count(left, 'node')}") if more else None
    return tag("div", tag("table", caption, tag("tbody", rows)), rest)


# What a row is, beside its condition: every row has one of these classes.
_LOOK: Final = "look"
_FINE: Final = "fine"


def _needs_look(row: Row) -> bool:
    return row.status != "healthy" or bool(row.differences or row.drift)


_AXES: Final[Mapping[str, tuple[str, Callable[[Row], str]]]] = {
    "h": ("state", condition_of),
    "c": ("cause", lambda row: row.cause),
    "m": ("model", lambda row: row.model),
    "d": ("driver", lambda row: row.versions.get("driver", "")),
    "k": ("kernel", lambda row: row.versions.get("kernel", "")),
}


def _filters(rows: Sequence[Row]) -> Iterator[_Filter]:
    for id_, (title, value_of) in _AXES.items():
        counted = Counter(value for row in rows if (value := value_of(row)))
        values = sorted(counted, key=lambda value: (-counted[value], value))
        if len(values) > 1 or (id_ == "c" and values):
            yield _Filter(id_, title, tuple(values[:_MOST_KINDS]))


def _rules(filters: Sequence[_Filter]) -> Iterator[str]:
    """The style that makes the radio buttons filter: each hides the rows that are not of its class."""
    names = [_LOOK, *(f"{one.id}{place}" for one in filters for place in range(len(one.values)))]
    yield from (f"main:has(#{name}:checked) .nodes tbody tr:not(.{name}) {{ display: none; }}" for name in names)


def _nodes(seen: Picture, filters: Sequence[_Filter], longest: int) -> Markup:
    ordered = sorted(seen.rows, key=lambda row: (CONDITIONS.index(condition_of(row)), not _needs_look(row)))
    shown = ordered[:_MOST_NODES]
    layers = tuple(id_ for id_ in STACK if id_ in seen.layers)
    layer_names = (tag("th.layer", tag("span", TITLES[one]), scope="col") for one in layers)
    names = joined(columns("node", "state"), layer_names, columns("what", "driver"))
    rows = (_node(row, layers, filters, longest) for row in shown)
    more = len(ordered) - len(shown)
    legend = " · ".join(f"{STATES[state][0]} {_word(state)}" for state in _SHOWN) if layers else None
    return tag(
        "section.card",
        tag("h2#nodes", "Nodes"),
        _buttons(seen.rows, filters),
        tag("p.legend", legend),
        scroll("every node", table("nodes", names, rows)),
        tag("p.legend", f"and {count(more, 'healthy node')} more; --json has all") if more > 0 else None,
    )


def _buttons(rows: Sequence[Row], filters: Sequence[_Filter]) -> Markup:
    looks = sum(map(_needs_look, rows))
    first = len(rows) > _FEW and looks > 0
    show = tag(
        "fieldset",
        tag("legend", "show"),
        _button("show", "all", f"all {grouped(len(rows))}", checked=not first),
        _button("show", _LOOK, f"needs a look ({grouped(looks)})", checked=first) if looks else None,
    )
    return tag("form.filters", show, map(_set, filters), aria_label="filter the nodes")


def _set(one: _Filter) -> Markup:
    values = ((f"{one.id}{place}", _cut(value, _BRIEF)) for place, value in enumerate(one.values))
    buttons = (_button(one.title, id_, value) for id_, value in values)
    first = _button(one.title, f"any-{one.id}", "any", checked=True)
    title = tag("summary", one.title, tag("span.legend", f" {len(one.values)}"))
    return tag("details", title, tag("fieldset", first, buttons, aria_label=one.title), open=len(one.values) <= 4)


def _button(name: str, id_: str, text: str, *, checked: bool = False) -> Markup:
    return tag("label", tag("input", type="radio", name=name, id=id_, checked=checked), f" {text}")


def _node(row: Row, layers: Sequence[StackLayer], filters: Sequence[_Filter], longest: int) -> Markup:
    looks = _needs_look(row)
    classes = (_LOOK if looks else _FINE, *(one.class_of(_AXES[one.id][1](row)) for one in filters))
    return tag(
        "tr",
        tag("th", _cut(called(row.report), _BRIEF), scope="row"),
        tag("td", condition_of(row), class_=condition_of(row).replace(" ", "-") if looks else None),
        (_cell(row.stack.get(layer)) for layer in layers),
        tag("td", _what(row, longest)),
        tag("td", row.versions.get("driver", "")),
        class_=" ".join(classes),
    )


def _cell(state: State | None) -> Markup:
    if state is None:
        return tag("td")
    mark, word = STATES[state]
    return tag("td", mark, class_=state, title=word or None)


def _what(row: Row, longest: int) -> Iterator[Markup]:
    """What is wrong with the node, each on a line of its own; in brief, what sort of thing it is."""
    is_brief = longest == _BRIEF
    if row.error:
        yield tag("p", _cut(row.error.replace(row.path, "it"), longest))
    if row.cause:
        yield tag("p", tag("code", row.cause), "" if is_brief else f" {_cut(row.summary, longest)}")
        if row.others:
            others = f"and {count(len(row.others), 'other fault')}" if is_brief else joined("also ", listed(row.others))
            yield tag("p", others)
    elif row.status == "unknown":
        yield tag("p", _cut("".join(row.unknown[:1]) or _UNPROVEN, longest))
    if row.differences:
        more = f", and {count(len(row.differences) - 1, 'other difference')}" if len(row.differences) > 1 else ""
        yield tag(
            "p", "unlike its group", "" if is_brief else f": {_cut(odd_words(row.differences[0]), longest)}{more}"
        )
    if row.drift:
        yield tag("p", "drift", "" if is_brief else f": {_cut(', '.join(one.title for one in row.drift), longest)}")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
