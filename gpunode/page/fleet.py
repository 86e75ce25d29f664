"""The fleet's page: what is wrong on how many nodes, what is odd, how versions are spread, and every node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpunode.diagnoses.model import STOREYS
from gpunode.diagnoses.stack import TITLES
from gpunode.page.frame import About, footer, head, masthead
from gpunode.page.markup import Markup, document, element, joined
from gpunode.page.words import (
    CONDITIONS,
    DISRUPTIONS,
    STATES,
    called,
    condition_of,
    count,
    grouped,
    odd_words,
    ranges,
)

if TYPE_CHECKING:
    from gpunode.diagnoses.model import StoreyId
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
    whole = document("en", top, _body(seen, about, recipe, filters, _LONGEST))
    if len(whole.encode("utf-8", "replace")) <= _LARGEST:
        return whole
    return document("en", top, _body(seen, about, recipe, filters, _BRIEF))


def _title(seen: Picture) -> str:
    how = Counter(map(condition_of, seen.rows))
    worst: Condition = next((one for one in CONDITIONS if how[one]), "healthy")
    all_ = count(len(seen.rows), "node")
    if worst == "healthy":
        return f"All {all_} are healthy" if len(seen.rows) > 1 else "The node is healthy"
    return f"{grouped(how[worst])} of {all_} {'is' if how[worst] == 1 else 'are'} {worst}"


def _body(seen: Picture, about: About, recipe: str, filters: Sequence[_Filter], longest: int) -> Markup:
    return element(
        "body",
        element("a", "Skip to the nodes", href="#nodes", class_="skip"),
        masthead(about),
        element(
            "main",
            _verdict(seen),
            _causes(seen.causes),
            _kinds("Odd ones out", "Unlike most nodes of the same model", _odd(seen), "odd"),
            _kinds("Drift", f"Not as {recipe} has it", _drift(seen), "drift") if recipe else None,
            _kinds("Undetermined", "No fault found, and no proof that the driver works", _lefts(seen.unknown)),
            _kinds("Unread", "These reports could not be read", _lefts(seen.unread)),
            _layers(seen.layers),
            _spread(seen),
            _nodes(seen, filters, longest),
        ),
        footer(about),
    )


def _verdict(seen: Picture) -> Markup:
    how = Counter(map(condition_of, seen.rows))
    tone = "error" if how["broken"] else "warning" if len(seen.rows) > how["healthy"] else "good"
    counted: list[tuple[str, int]] = [(one, how[one]) for one in CONDITIONS if how[one]]
    if odd := sum(1 for row in seen.rows if row.differences):
        counted.append(("unlike their group", odd))
    if drifted := sum(1 for row in seen.rows if row.drift):
        counted.append(("drifted", drifted))
    return element(
        "section",
        element("p", "fleet", class_="label"),
        element("h1", _title(seen), id="verdict"),
        element(
            "dl",
            (element("div", element("dd", grouped(number)), element("dt", word)) for word, number in counted),
            class_="counts",
        ),
        class_=f"verdict {tone}",
        aria_labelledby="verdict",
    )


def _causes(tallies: Sequence[Tally]) -> Markup | None:
    if not tallies:
        return None
    return _card(
        "What is wrong",
        None,
        element("ol", (_cause(one) for one in tallies[:_MOST_KINDS]), class_="kinds"),
        _rest(len(tallies)),
    )


def _cause(one: Tally) -> Markup:
    disruption = f" ({DISRUPTIONS[one.disruption]})" if one.disruption != "none" else ""
    command = element("pre", element("code", one.command), class_="commands", tabindex=0) if one.command else None
    return element(
        "li",
        _number(one.reports),
        element(
            "div",
            element("p", element("b", one.title), " ", element("code", one.cause)),
            element("p", _names(one.reports), class_="names"),
            element("p", f"next: {one.advice}{disruption}"),
            command,
        ),
    )


_Kind = tuple[str, Sequence[str]]


def _kinds(title: str, legend: str, kinds: Iterable[_Kind], id_: str | None = None) -> Markup | None:
    found = list(kinds)
    if not found:
        return None
    rows = (
        element("li", _number(names), element("div", element("p", what), element("p", _names(names), class_="names")))
        for what, names in found[:_MOST_KINDS]
    )
    return _card(title, legend, element("ol", rows, class_="kinds"), _rest(len(found)), id_=id_)


def _odd(seen: Picture) -> Iterator[_Kind]:
    for one in seen.odd:
        more = f"; and {count(one.more, 'other difference')}" if one.more else ""
        yield f"{_cut(odd_words(one.odd), _LONGEST)}: {one.odd.why}{more}", one.reports


def _drift(seen: Picture) -> Iterator[_Kind]:
    for drifted in seen.drift:
        yield _cut(f"{drifted.drift.title}: {drifted.drift.reason}", _LONGEST), drifted.reports
    for left in seen.undrifted:
        yield _cut(f"not compared: {left.why}", _LONGEST), left.reports


def _lefts(left: Sequence[Left]) -> Iterator[_Kind]:
    for one in left:
        yield _cut(one.why or _UNPROVEN, _LONGEST), one.reports


def _number(names: Sequence[str]) -> Markup:
    return element("span", f"{grouped(len(names))} ×", class_="number")


def _rest(number: int) -> Markup | None:
    more = number - _MOST_KINDS
    return element("p", f"and {grouped(more)} more; --json has all", class_="legend") if more > 0 else None


def _names(reports: Sequence[str]) -> str:
    found = list(ranges(map(called, reports)))
    more = len(found) - _MOST_NAMES
    shown = ", ".join(_cut(one, _BRIEF) for one in found[:_MOST_NAMES])
    return f"{shown} and {grouped(more)} more" if more > 0 else shown


def _card(title: str, legend: str | None, *parts: Markup | None, id_: str | None = None) -> Markup:
    said = element("p", legend, class_="legend") if legend else None
    return element("section", element("h2", title), said, *parts, class_="card", id=id_)


_SHOWN: Final[tuple[State, ...]] = ("broken", "warned", "affected", "works", "seen", "unseen", "absent")
_STATE_WORDS: Final[Mapping[State, str]] = {"works": "works", "seen": "looked at", "absent": "none here"}


def _word(state: State) -> str:
    return STATES[state][1] or _STATE_WORDS[state]


def _layers(layers: Mapping[StoreyId, Mapping[State, int]]) -> Markup | None:
    if not layers:
        return None
    names = element("tr", element("th", "layer", scope="col"), (element("th", _word(s), scope="col") for s in _SHOWN))
    rows = (
        element(
            "tr",
            element("th", TITLES[layer], scope="row"),
            (element("td", grouped(n) if (n := counted.get(s, 0)) else "", class_=s if n else None) for s in _SHOWN),
        )
        for layer, counted in reversed(tuple(layers.items()))
    )
    table = element("table", element("thead", names), element("tbody", rows), class_="layers")
    return _card("Layers", "How many nodes have each layer in which state", _scroll(table, "nodes by layer"))


def _scroll(table: Markup, label: str) -> Markup:
    return element("div", table, class_="scroll", tabindex=0, role="group", aria_label=label)


def _spread(seen: Picture) -> Markup | None:
    if not seen.spread:
        return None
    return _card(
        "Versions",
        "Where most nodes have one version, the others are worth a look",
        element("div", (_axis(axis, values) for axis, values in seen.spread.items()), class_="axes"),
    )


def _axis(axis: str, values: Mapping[str, int]) -> Markup:
    whole = sum(values.values())
    rows = [
        element(
            "tr",
            element("th", _cut(value, 90), scope="row"),
            element("td", grouped(number)),
            element("td", element("meter", grouped(number), min=0, max=whole, value=number)),
        )
        for value, number in list(values.items())[:_MOST_VALUES]
    ]
    more = len(values) - _MOST_VALUES
    left = whole - sum(list(values.values())[:_MOST_VALUES])
    caption = element("caption", element("b", axis), f" {count(len(values), 'value')}" if len(values) > 1 else None)
    rest = element("p", f"and {grouped(more)} more, on {count(left, 'node')}", class_="legend") if more > 0 else None
    return element("div", element("table", caption, element("tbody", rows)), rest)


# What a row is, beside its condition: every row has one of these classes.
_LOOK: Final = "look"
_FINE: Final = "fine"


def _needs_look(row: Row) -> bool:
    return row.status != "healthy" or bool(row.differences or row.drift)


def _filters(rows: Sequence[Row]) -> Iterator[_Filter]:
    axes: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
        ("h", "state", condition_of),
        ("c", "cause", lambda row: row.cause),
        ("m", "model", lambda row: row.model),
        ("d", "driver", lambda row: row.versions.get("driver", "")),
        ("k", "kernel", lambda row: row.versions.get("kernel", "")),
    )
    for id_, title, value_of in axes:
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
    layers = tuple(id_ for id_ in STOREYS if id_ in seen.layers)
    names = element(
        "tr",
        element("th", "node", scope="col"),
        element("th", "state", scope="col"),
        (element("th", element("span", TITLES[one]), scope="col", class_="layer") for one in layers),
        element("th", "what", scope="col"),
        element("th", "driver", scope="col"),
    )
    rows = (_node(row, layers, filters, longest) for row in shown)
    table = element("table", element("thead", names), element("tbody", rows), class_="nodes")
    more = len(ordered) - len(shown)
    return element(
        "section",
        element("h2", "Nodes", id="nodes"),
        _buttons(seen.rows, filters),
        element("p", *_legend(layers), class_="legend"),
        _scroll(table, "every node"),
        element("p", f"and {count(more, 'healthy node')} more; --json has all", class_="legend") if more > 0 else None,
        class_="card",
    )


def _legend(layers: Sequence[StoreyId]) -> Iterator[str]:
    if layers:
        yield " · ".join(f"{STATES[state][0]} {_word(state)}" for state in _SHOWN)


def _buttons(rows: Sequence[Row], filters: Sequence[_Filter]) -> Markup:
    looks = sum(map(_needs_look, rows))
    first = len(rows) > _FEW and looks > 0
    show = element(
        "fieldset",
        element("legend", "show"),
        _button("show", "all", f"all {grouped(len(rows))}", checked=not first),
        _button("show", _LOOK, f"needs a look ({grouped(looks)})", checked=first) if looks else None,
    )
    return element("form", show, (_set(one) for one in filters), class_="filters", aria_label="filter the nodes")


def _set(one: _Filter) -> Markup:
    buttons = joined(
        _button(one.title, f"any-{one.id}", "any", checked=True),
        *(_button(one.title, f"{one.id}{place}", _cut(value, _BRIEF)) for place, value in enumerate(one.values)),
    )
    title = element("summary", one.title, element("span", f" {len(one.values)}", class_="legend"))
    return element("details", title, element("fieldset", buttons, aria_label=one.title), open=len(one.values) <= 4)


def _button(name: str, id_: str, text: str, *, checked: bool = False) -> Markup:
    return element("label", element("input", type="radio", name=name, id=id_, checked=checked), f" {text}")


def _node(row: Row, layers: Sequence[StoreyId], filters: Sequence[_Filter], longest: int) -> Markup:
    values = {
        "h": condition_of(row),
        "c": row.cause,
        "m": row.model,
        "d": row.versions.get("driver", ""),
        "k": row.versions.get("kernel", ""),
    }
    classes = (_LOOK if _needs_look(row) else _FINE, *(one.class_of(values[one.id]) for one in filters))
    return element(
        "tr",
        element("th", _cut(called(row.report), _BRIEF), scope="row"),
        element("td", condition_of(row), class_=condition_of(row).replace(" ", "-") if _needs_look(row) else None),
        (_cell(row.stack.get(layer)) for layer in layers),
        element("td", _what(row, longest)),
        element("td", row.versions.get("driver", "")),
        class_=" ".join(classes),
    )


def _cell(state: State | None) -> Markup:
    if state is None:
        return element("td")
    mark, word = STATES[state]
    return element("td", mark, class_=state, title=word or None)


def _what(row: Row, longest: int) -> Iterator[Markup]:
    """What is wrong with the node, each on a line of its own; in brief, what sort of thing it is."""
    is_brief = longest == _BRIEF
    if row.error:
        yield element("p", _cut(row.error.replace(row.path, "it"), longest))
    if row.cause:
        yield element("p", element("code", row.cause), "" if is_brief else f" {_cut(row.summary, longest)}")
        if row.others:
            yield element("p", f"and {count(len(row.others), 'other fault')}" if is_brief else _also(row.others))
    elif row.status == "unknown":
        yield element("p", _cut("".join(row.unknown[:1]) or _UNPROVEN, longest))
    if row.differences:
        more = f", and {count(len(row.differences) - 1, 'other difference')}" if len(row.differences) > 1 else ""
        yield element(
            "p", "unlike its group", "" if is_brief else f": {_cut(odd_words(row.differences[0]), longest)}{more}"
        )
    if row.drift:
        yield element("p", "drift", "" if is_brief else f": {_cut(', '.join(one.title for one in row.drift), longest)}")


def _also(causes: Sequence[str]) -> Markup:
    return joined("also ", *(joined(", " if place else "", element("code", one)) for place, one in enumerate(causes)))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
