"""Render the fleet's page: faults by number of nodes, outliers, version spread, every node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.diagnoses.model import STACK_LAYERS
from gpunode.diagnoses.stack import LAYER_TITLES
from gpunode.page.markup import (
    Markup,
    PageOrigin,
    card,
    column_heads,
    comma_list,
    command_block,
    html_document,
    join_markup,
    page_body,
    page_head,
    scroll_box,
    table,
    tag,
)
from gpunode.page.words import (
    NODE_CONDITIONS,
    STATE_MARKS,
    TEXT_BY_DISRUPTION,
    collapse_ranges,
    condition_of,
    count,
    describe_deviation,
    group_digits,
    node_name,
)
from gpunode.values import dataclass

if TYPE_CHECKING:
    from gpunode.diagnoses.model import StackLayer
    from gpunode.diagnoses.stack import State
    from gpunode.page.words import NodeCondition
    from gpunode.workflow.fleet import CauseTally, FleetRow, FleetSummary, SkippedNodes

# Above this size each node gets a shorter text: a page of 5 000 nodes must open at once and fit into a mail.
_MAX_PAGE_BYTES: Final = 4_500_000
# Faulty nodes come first, so the nodes beyond this number are healthy.
_MAX_NODES: Final = 8_000
# Limits on what is shown of each kind; --json has everything.
_MAX_GROUPS_SHOWN: Final = 40
_MAX_VALUES_SHOWN: Final = 12
_MAX_NAMES_SHOWN: Final = 24
_MAX_TEXT_LENGTH: Final = 240
_BRIEF_TEXT_LENGTH: Final = 60
# Up to this number of nodes, no row is hidden at first.
_MAX_UNFILTERED_NODES: Final = 60
_UNPROVEN_DRIVER_TEXT: Final = "nothing shows that the driver works"


@dataclass(frozen=True, slots=True)
class _Filter:
    """A group of radio buttons, each of which shows only the rows with one value."""

    id: str
    title: str
    values: tuple[str, ...]

    def css_class_of(self, value: str) -> str:
        """Return the CSS class of a row with this value; values without a button share the last class."""
        return f"{self.id}{self.values.index(value) if value in self.values else len(self.values)}"


def fleet_page(fleet: FleetSummary, about: PageOrigin, recipe: str = "") -> str:
    """Return the page about the fleet.

    Args:
        fleet: the fleet.
        about: the origin of the page.
        recipe: the recipe that the nodes were compared with, or empty.
    """
    filters = tuple(_make_filters(fleet.rows))
    top = page_head(_page_title(fleet), "style.css", "fleet.css", rules="\n".join(_filter_style_rules(filters)))
    whole = html_document(top, _page_body(fleet, about, recipe, filters, _MAX_TEXT_LENGTH))
    is_small = len(whole.encode("utf-8", "replace")) <= _MAX_PAGE_BYTES
    return whole if is_small else html_document(top, _page_body(fleet, about, recipe, filters, _BRIEF_TEXT_LENGTH))


def _page_title(fleet: FleetSummary) -> str:
    counts = Counter(map(condition_of, fleet.rows))
    worst: NodeCondition = next((one for one in NODE_CONDITIONS if counts[one]), "healthy")
    all_ = count(len(fleet.rows), "node")
    if worst == "healthy":
        return f"All {all_} are healthy" if len(fleet.rows) > 1 else "The node is healthy"
    return f"{group_digits(counts[worst])} of {all_} {'is' if counts[worst] == 1 else 'are'} {worst}"


def _page_body(
    fleet: FleetSummary, about: PageOrigin, recipe: str, filters: Sequence[_Filter], max_length: int
) -> Markup:
    return page_body(
        about,
        "Skip to the nodes",
        "#nodes",
        _render_verdict(fleet),
        _render_node_groups("What is wrong", "", map(_render_cause, fleet.causes)),
        _render_node_groups("Odd ones out", "Unlike most nodes of the same model", _render_outliers(fleet), "odd"),
        _render_node_groups("Drift", f"Drifted from {recipe}", _render_drift(fleet), "drift") if recipe else None,
        _render_node_groups(
            "Undetermined", "No fault found, and no proof that the driver works", _render_skipped(fleet.unknown)
        ),
        _render_node_groups("Unread", "These reports could not be read", _render_skipped(fleet.unreadable)),
        _render_layers(fleet.layers),
        _render_versions(fleet),
        _render_nodes(fleet, filters, max_length),
    )


def _render_verdict(fleet: FleetSummary) -> Markup:
    by_condition = Counter(map(condition_of, fleet.rows))
    tone = "error" if by_condition["broken"] else "warning" if len(fleet.rows) > by_condition["healthy"] else "good"
    counted: list[tuple[str, int]] = [(one, by_condition[one]) for one in NODE_CONDITIONS if by_condition[one]]
    if odd := sum(1 for row in fleet.rows if row.differences):
        counted.append(("unlike their group", odd))
    if drifted := sum(1 for row in fleet.rows if row.drift):
        counted.append(("drifted", drifted))
    counts = (tag("div", tag("dd", group_digits(number)), tag("dt", word)) for word, number in counted)
    parts = tag("p.label", "fleet"), tag("h1#verdict", _page_title(fleet)), tag("dl.counts", counts)
    return tag(f"section.verdict.{tone}", *parts, aria_labelledby="verdict")


def _render_node_groups(title: str, legend: str, kinds: Iterable[Markup], id_: str | None = None) -> Markup | None:
    found = list(kinds)
    more = len(found) - _MAX_GROUPS_SHOWN
    rest = tag("p.legend", f"and {group_digits(more)} more; --json has all") if more > 0 else None
    return card(title, tag("ol.kinds", found[:_MAX_GROUPS_SHOWN]), rest, legend=legend, id_=id_) if found else None


def _render_cause(tally: CauseTally) -> Markup:
    disruption = f" (the fix {TEXT_BY_DISRUPTION[tally.disruption]})" if tally.disruption != "none" else ""
    what = join_markup(tag("b", tally.title), " ", tag("code", tally.cause))
    return _render_node_group(
        what, tally.reports, tag("p", f"next: {tally.advice}{disruption}"), command_block(tally.command)
    )


def _render_node_group(heading: str, names: Sequence[str], *more: Markup | None) -> Markup:
    number = tag("span.number", f"{group_digits(len(names))} ×")
    return tag("li", number, tag("div", tag("p", heading), tag("p.names", _join_node_names(names)), *more))


def _render_outliers(fleet: FleetSummary) -> Iterator[Markup]:
    for one in fleet.differences:
        more = f"; and {count(one.other_differences, 'other difference')}" if one.other_differences else ""
        what = _shorten(describe_deviation(one.difference), _MAX_TEXT_LENGTH)
        yield _render_node_group(f"{what}: {one.difference.why}{more}", one.reports)


def _render_drift(fleet: FleetSummary) -> Iterator[Markup]:
    drifted = ((f"{one.drift.title}: {one.drift.reason}", one.reports) for one in fleet.drift)
    left = ((f"not compared: {skipped.why}", skipped.reports) for skipped in fleet.not_compared)
    for what, reports in (*drifted, *left):
        yield _render_node_group(_shorten(what, _MAX_TEXT_LENGTH), reports)


def _render_skipped(skipped: Sequence[SkippedNodes]) -> Iterator[Markup]:
    for one in skipped:
        yield _render_node_group(_shorten(one.why or _UNPROVEN_DRIVER_TEXT, _MAX_TEXT_LENGTH), one.reports)


def _join_node_names(reports: Sequence[str]) -> str:
    names = list(collapse_ranges(map(node_name, reports)))
    more = len(names) - _MAX_NAMES_SHOWN
    shown = ", ".join(_shorten(one, _BRIEF_TEXT_LENGTH) for one in names[:_MAX_NAMES_SHOWN])
    return f"{shown} and {group_digits(more)} more" if more > 0 else shown


_STATE_COLUMNS: Final[tuple[State, ...]] = ("broken", "warning", "affected", "works", "no-fault", "unknown", "absent")
_TEXT_BY_LAYER_STATE: Final[Mapping[State, str]] = {"works": "works", "no-fault": "looked at", "absent": "none here"}


def _state_word(state: State) -> str:
    return STATE_MARKS[state][1] or _TEXT_BY_LAYER_STATE[state]


def _render_layers(layers: Mapping[StackLayer, Mapping[State, int]]) -> Markup | None:
    if not layers:
        return None
    rows = (
        tag(
            "tr",
            tag("th", LAYER_TITLES[layer], scope="row"),
            (
                tag("td", group_digits(n) if (n := counted.get(s, 0)) else "", class_=s if n else None)
                for s in _STATE_COLUMNS
            ),
        )
        for layer, counted in reversed(tuple(layers.items()))
    )
    found = table("layers", column_heads("layer", *map(_state_word, _STATE_COLUMNS)), rows)
    return card("Layers", scroll_box("nodes by layer", found), legend="How many nodes have each layer in which state")


def _render_versions(fleet: FleetSummary) -> Markup | None:
    if not fleet.spread:
        return None
    axes = tag("div.axes", (_render_axis(axis, values) for axis, values in fleet.spread.items()))
    return card("Versions", axes, legend="Where most nodes have one version, the others are worth a look")


def _render_axis(axis: str, values: Mapping[str, int]) -> Markup:
    whole = sum(values.values())
    shown = [*values.items()][:_MAX_VALUES_SHOWN]
    rows = (
        tag(
            "tr",
            tag("th", _shorten(value, 90), scope="row"),
            tag("td", group_digits(number)),
            tag("td", tag("meter", group_digits(number), min=0, max=whole, value=number)),
        )
        for value, number in shown
    )
    more, left = len(values) - len(shown), whole - sum(number for _, number in shown)
    caption = tag("caption", tag("b", axis), f" {count(len(values), 'value')}" if len(values) > 1 else None)
    rest = tag("p.legend", f"and {group_digits(more)} more, on {count(left, 'node')}") if more else None
    return tag("div", tag("table", caption, tag("tbody", rows)), rest)


# Every row has one of these classes in addition to its condition.
_NEEDS_ATTENTION_CSS_CLASS: Final = "look"
_HEALTHY_CSS_CLASS: Final = "fine"


def _is_faulty_or_deviating(row: FleetRow) -> bool:
    return row.status != "healthy" or bool(row.differences or row.drift)


_FILTER_AXES: Final[Mapping[str, tuple[str, Callable[[FleetRow], str]]]] = {
    "h": ("state", condition_of),
    "c": ("cause", lambda row: row.cause),
    "m": ("model", lambda row: row.model),
    "d": ("driver", lambda row: row.versions.get("driver", "")),
    "k": ("kernel", lambda row: row.versions.get("kernel", "")),
}


def _make_filters(rows: Sequence[FleetRow]) -> Iterator[_Filter]:
    for id_, (title, value_of) in _FILTER_AXES.items():
        counted = Counter(value for row in rows if (value := value_of(row)))
        values = sorted(counted, key=lambda value: (-counted[value], value))
        if len(values) > 1 or (id_ == "c" and values):
            yield _Filter(id_, title, tuple(values[:_MAX_GROUPS_SHOWN]))


def _filter_style_rules(filters: Sequence[_Filter]) -> Iterator[str]:
    """Yield the CSS rules by which each radio button hides the rows of other classes."""
    names = [_NEEDS_ATTENTION_CSS_CLASS, *(f"{one.id}{place}" for one in filters for place in range(len(one.values)))]
    yield from (f"main:has(#{name}:checked) .nodes tbody tr:not(.{name}) {{ display: none; }}" for name in names)


def _render_nodes(fleet: FleetSummary, filters: Sequence[_Filter], max_length: int) -> Markup:
    ordered = sorted(
        fleet.rows, key=lambda row: (NODE_CONDITIONS.index(condition_of(row)), not _is_faulty_or_deviating(row))
    )
    shown = ordered[:_MAX_NODES]
    layers = tuple(id_ for id_ in STACK_LAYERS if id_ in fleet.layers)
    layer_names = (tag("th.layer", tag("span", LAYER_TITLES[layer]), scope="col") for layer in layers)
    names = join_markup(column_heads("node", "state"), layer_names, column_heads("what", "driver"))
    rows = (_render_node(row, layers, filters, max_length) for row in shown)
    more = len(ordered) - len(shown)
    legend = " · ".join(f"{STATE_MARKS[state][0]} {_state_word(state)}" for state in _STATE_COLUMNS) if layers else None
    return tag(
        "section.card",
        tag("h2#nodes", "Nodes"),
        _render_buttons(fleet.rows, filters),
        tag("p.legend", legend),
        scroll_box("every node", table("nodes", names, rows)),
        tag("p.legend", f"and {count(more, 'healthy node')} more; --json has all") if more > 0 else None,
    )


def _render_buttons(rows: Sequence[FleetRow], filters: Sequence[_Filter]) -> Markup:
    looks = sum(map(_is_faulty_or_deviating, rows))
    first = len(rows) > _MAX_UNFILTERED_NODES and looks > 0
    show = tag(
        "fieldset",
        tag("legend", "show"),
        _render_button("show", "all", f"all {group_digits(len(rows))}", checked=not first),
        _render_button("show", _NEEDS_ATTENTION_CSS_CLASS, f"needs a look ({group_digits(looks)})", checked=first)
        if looks
        else None,
    )
    return tag("form.filters", show, map(_render_filter, filters), aria_label="filter the nodes")


def _render_filter(one: _Filter) -> Markup:
    values = ((f"{one.id}{place}", _shorten(value, _BRIEF_TEXT_LENGTH)) for place, value in enumerate(one.values))
    buttons = (_render_button(one.title, id_, value) for id_, value in values)
    first = _render_button(one.title, f"any-{one.id}", "any", checked=True)
    title = tag("summary", one.title, tag("span.legend", f" {len(one.values)}"))
    return tag("details", title, tag("fieldset", first, buttons, aria_label=one.title), open=len(one.values) <= 4)


def _render_button(name: str, id_: str, text: str, *, checked: bool = False) -> Markup:
    return tag("label", tag("input", type="radio", name=name, id=id_, checked=checked), f" {text}")


def _render_node(row: FleetRow, layers: Sequence[StackLayer], filters: Sequence[_Filter], max_length: int) -> Markup:
    looks = _is_faulty_or_deviating(row)
    classes = (
        _NEEDS_ATTENTION_CSS_CLASS if looks else _HEALTHY_CSS_CLASS,
        *(one.css_class_of(_FILTER_AXES[one.id][1](row)) for one in filters),
    )
    return tag(
        "tr",
        tag("th", _shorten(node_name(row.report), _BRIEF_TEXT_LENGTH), scope="row"),
        tag("td", condition_of(row), class_=condition_of(row).replace(" ", "-") if looks else None),
        (_render_cell(row.stack.get(layer)) for layer in layers),
        tag("td", _describe_node_faults(row, max_length)),
        tag("td", row.versions.get("driver", "")),
        class_=" ".join(classes),
    )


def _render_cell(state: State | None) -> Markup:
    if state is None:
        return tag("td")
    mark, word = STATE_MARKS[state]
    return tag("td", mark, class_=state, title=word or None)


def _describe_node_faults(row: FleetRow, max_length: int) -> Iterator[Markup]:
    """Yield each fault of the node on its own line; in brief, only its kind."""
    is_brief = max_length == _BRIEF_TEXT_LENGTH
    if row.error:
        yield tag("p", _shorten(row.error.replace(row.path, "it"), max_length))
    if row.cause:
        yield tag("p", tag("code", row.cause), "" if is_brief else f" {_shorten(row.summary, max_length)}")
        if row.other_causes:
            number = f"and {count(len(row.other_causes), 'other fault')}"
            yield tag("p", number if is_brief else ("also ", comma_list(row.other_causes)))
        if row.unexplained and not is_brief:
            yield tag("p", "not explained by this, perhaps ", comma_list(row.unexplained))
    elif row.status == "unknown":
        yield tag("p", _shorten("".join(row.unknown[:1]) or _UNPROVEN_DRIVER_TEXT, max_length))
    if row.differences:
        more = f", and {count(len(row.differences) - 1, 'other difference')}" if len(row.differences) > 1 else ""
        first = f": {_shorten(describe_deviation(row.differences[0]), max_length)}{more}"
        yield tag("p", "unlike its group", "" if is_brief else first)
    if row.drift:
        titles = f": {_shorten(', '.join(drift.title for drift in row.drift), max_length)}"
        yield tag("p", "drift", "" if is_brief else titles)


def _shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
