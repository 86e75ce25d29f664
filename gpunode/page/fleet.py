"""Render the fleet's page: faults by number of nodes, outliers, version spread, every node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    LAYER_MARKS,
    NODE_CONDITIONS,
    TEXT_BY_DISRUPTION,
    collapse_ranges,
    condition_of,
    describe_deviation,
    node_name,
)
from gpunode.wording import count_noun, group_digits

if TYPE_CHECKING:
    from gpunode.diagnoses.model import StackLayer
    from gpunode.diagnoses.stack import State
    from gpunode.page.words import NodeCondition
    from gpunode.workflow.fleet import CauseTally, FleetRow, FleetSummary, SkippedNodes

# Above this size each node gets a shorter text: a page of 5 000 nodes must open at once and fit into a mail.
_MAX_PAGE_BYTES: Final = 4_500_000
_MAX_NODES: Final = 8_000
# Limits on what is shown of each kind; --json has everything.
_MAX_GROUPS_SHOWN: Final = 40
_MAX_VALUES_SHOWN: Final = 12
_MAX_NAMES_SHOWN: Final = 24
_MAX_TEXT_LENGTH: Final = 240
_BRIEF_TEXT_LENGTH: Final = 60


def fleet_page(fleet: FleetSummary, about: PageOrigin, recipe: str = "") -> str:
    """Return the page about the fleet.

    Args:
        fleet: the fleet.
        about: the origin of the page.
        recipe: the recipe that the nodes were compared with, or empty.
    """
    top = page_head(_page_title(fleet), "style.css", "fleet.css")
    whole = html_document(top, _page_body(fleet, about, recipe, _MAX_TEXT_LENGTH))
    is_small = len(whole.encode("utf-8", "replace")) <= _MAX_PAGE_BYTES
    return whole if is_small else html_document(top, _page_body(fleet, about, recipe, _BRIEF_TEXT_LENGTH))


def _page_title(fleet: FleetSummary) -> str:
    counts = Counter(map(condition_of, fleet.rows))
    worst: NodeCondition = next((one for one in NODE_CONDITIONS if counts[one]), "healthy")
    all_ = count_noun(len(fleet.rows), "node")
    if worst == "healthy":
        return f"All {all_} are healthy" if len(fleet.rows) > 1 else "The node is healthy"
    return f"{group_digits(counts[worst])} of {all_} {'is' if counts[worst] == 1 else 'are'} {worst}"


def _page_body(fleet: FleetSummary, about: PageOrigin, recipe: str, max_length: int) -> Markup:
    return page_body(
        about,
        "Skip to the nodes",
        "#nodes",
        _render_verdict(fleet),
        _render_node_groups("What is wrong", "", map(_render_cause, fleet.causes)),
        _render_node_groups("Odd ones out", "Unlike most nodes of the same model", _render_outliers(fleet), "odd"),
        _render_node_groups("Drift", f"Drifted from {recipe}", _render_drift(fleet), "drift") if recipe else None,
        _render_node_groups(
            "Undetermined", "No cause found, and no proof that the nodes are healthy", _render_skipped(fleet.unknown)
        ),
        _render_node_groups("Unread", "These reports could not be read", _render_skipped(fleet.unreadable)),
        _render_versions(fleet),
        _render_nodes(fleet, max_length),
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
    groups = list(kinds)
    more = len(groups) - _MAX_GROUPS_SHOWN
    rest = tag("p.legend", f"and {group_digits(more)} more; --json has all") if more > 0 else None
    return card(title, tag("ol.kinds", groups[:_MAX_GROUPS_SHOWN]), rest, legend=legend, id_=id_) if groups else None


def _render_cause(tally: CauseTally) -> Markup:
    disruption = f" (the fix {TEXT_BY_DISRUPTION[tally.disruption]})" if tally.disruption != "none" else ""
    heading = join_markup(tag("b", tally.title), " ", tag("code", tally.cause))
    return _render_node_group(
        heading, tally.reports, tag("p", f"next: {tally.advice}{disruption}"), command_block(tally.command)
    )


def _render_node_group(heading: str, names: Sequence[str], *more: Markup | None) -> Markup:
    number = tag("span.number", f"{group_digits(len(names))} ×")
    return tag("li", number, tag("div", tag("p", heading), tag("p.names", _join_node_names(names)), *more))


def _render_outliers(fleet: FleetSummary) -> Iterator[Markup]:
    for one in fleet.differences:
        more = f"; and {count_noun(one.other_differences, 'other difference')}" if one.other_differences else ""
        heading = _shorten(describe_deviation(one.difference), _MAX_TEXT_LENGTH)
        yield _render_node_group(f"{heading}: {one.difference.why}{more}", one.reports)


def _render_drift(fleet: FleetSummary) -> Iterator[Markup]:
    drifted = ((f"{one.drift.title}: {one.drift.reason}", one.reports) for one in fleet.drift)
    left = ((f"not compared: {skipped.why}", skipped.reports) for skipped in fleet.not_compared)
    for heading, reports in (*drifted, *left):
        yield _render_node_group(_shorten(heading, _MAX_TEXT_LENGTH), reports)


def _render_skipped(skipped: Sequence[SkippedNodes]) -> Iterator[Markup]:
    for one in skipped:
        yield _render_node_group(_shorten(one.why, _MAX_TEXT_LENGTH), one.reports)


def _join_node_names(reports: Sequence[str]) -> str:
    names = list(collapse_ranges(map(node_name, reports)))
    more = len(names) - _MAX_NAMES_SHOWN
    shown = ", ".join(_shorten(one, _BRIEF_TEXT_LENGTH) for one in names[:_MAX_NAMES_SHOWN])
    return f"{shown} and {group_digits(more)} more" if more > 0 else shown


_STATE_COLUMNS: Final[tuple[State, ...]] = ("broken", "warning", "affected", "works", "no-fault", "unknown", "absent")
_TEXT_BY_LAYER_STATE: Final[Mapping[State, str]] = {"works": "works", "no-fault": "looked at", "absent": "none here"}


def _state_word(state: State) -> str:
    return LAYER_MARKS[state][1] or _TEXT_BY_LAYER_STATE[state]


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
    caption = tag("caption", tag("b", axis), f" {count_noun(len(values), 'value')}" if len(values) > 1 else None)
    rest = tag("p.legend", f"and {group_digits(more)} more, on {count_noun(left, 'node')}") if more else None
    return tag("div", tag("table", caption, tag("tbody", rows)), rest)


def _is_faulty_or_deviating(row: FleetRow) -> bool:
    return row.status != "healthy" or bool(row.differences or row.drift)


def _render_nodes(fleet: FleetSummary, max_length: int) -> Markup:
    """Return the table of the nodes that need a look, and the names of the others."""
    looks = [row for row in fleet.rows if _is_faulty_or_deviating(row)]
    looks.sort(key=lambda row: NODE_CONDITIONS.index(condition_of(row)))
    fine = [row.report for row in fleet.rows if not _is_faulty_or_deviating(row)]
    layers = tuple(id_ for id_ in STACK_LAYERS if id_ in fleet.layers)
    layer_names = (tag("th.layer", tag("span", LAYER_TITLES[layer]), scope="col") for layer in layers)
    names = join_markup(column_heads("node", "state"), layer_names, column_heads("what", "model", "driver", "kernel"))
    rows = (_render_node(row, layers, max_length) for row in looks[:_MAX_NODES])
    legend = " · ".join(f"{LAYER_MARKS[state][0]} {_state_word(state)}" for state in _STATE_COLUMNS) if layers else None
    more = len(looks) - _MAX_NODES
    return tag(
        "section.card",
        tag("h2#nodes", "Nodes"),
        (tag("p.legend", legend), scroll_box("nodes to look at", table("nodes", names, rows))) if looks else None,
        tag("p.legend", f"and {count_noun(more, 'node')} more; --json has all") if more > 0 else None,
        tag("p", f"{count_noun(len(fine), 'healthy node')}: {_join_node_names(fine)}") if fine else None,
    )


def _render_node(row: FleetRow, layers: Sequence[StackLayer], max_length: int) -> Markup:
    driver, kernel = row.versions.get("driver", ""), row.versions.get("kernel", "")
    return tag(
        "tr",
        tag("th", _shorten(node_name(row.report), _BRIEF_TEXT_LENGTH), scope="row"),
        tag("td", condition_of(row), class_=condition_of(row).replace(" ", "-")),
        (_render_cell(row.stack.get(layer)) for layer in layers),
        tag("td", _describe_node_faults(row, max_length)),
        (tag("td", _shorten(text, _BRIEF_TEXT_LENGTH)) for text in (row.model, driver, kernel)),
    )


def _render_cell(state: State | None) -> Markup:
    if state is None:
        return tag("td")
    mark, word = LAYER_MARKS[state]
    return tag("td", mark, class_=state, title=word or None)


def _describe_node_faults(row: FleetRow, max_length: int) -> Iterator[Markup]:
    """Yield each fault of the node on its own line; in brief, only its kind."""
    is_brief = max_length == _BRIEF_TEXT_LENGTH
    if row.error:
        yield tag("p", _shorten(row.error.replace(row.path, "it"), max_length))
    if row.cause:
        yield tag("p", tag("code", row.cause), "" if is_brief else f" {_shorten(row.summary, max_length)}")
        if row.other_causes:
            number = f"and {count_noun(len(row.other_causes), 'other fault')}"
            yield tag("p", number if is_brief else ("also ", comma_list(row.other_causes)))
        if row.unexplained and not is_brief:
            yield tag("p", "not explained by this, perhaps ", comma_list(row.unexplained))
    elif row.status == "unknown":
        yield tag("p", _shorten(row.unknown[0], max_length))
    if row.differences:
        more = f", and {count_noun(len(row.differences) - 1, 'other difference')}" if len(row.differences) > 1 else ""
        first = f": {_shorten(describe_deviation(row.differences[0]), max_length)}{more}"
        yield tag("p", "unlike its group", "" if is_brief else first)
    if row.drift:
        titles = f": {_shorten(', '.join(drift.title for drift in row.drift), max_length)}"
        yield tag("p", "drift", "" if is_brief else titles)


def _shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
