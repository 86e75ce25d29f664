from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from gpunode.diagnoses.model import STACK_LAYERS
from gpunode.diagnoses.stack import State
from gpunode.page.fleet import fleet_page
from gpunode.page.markup import PageOrigin
from gpunode.page.words import LAYER_MARKS, collapse_ranges
from gpunode.workflow.fleet import Deviation, Drift, FleetRow, summarize_fleet
from tests.unit.page.nodes import HOSTILE
from tests.unit.page.test_page import Seen

ABOUT = PageOrigin("", "reports in rack7", "2026-11-21 20:00 UTC", "0.1.0")
STATES = get_args(State)
LAYERS = {layer: STATES[number % len(STATES)] for number, layer in enumerate(STACK_LAYERS)}
ODD = Deviation("firmware", "VBIOS of the GPUs", "96.00.A5", "96.00.89", "GPUs with another VBIOS may differ", 511)
HEALTHY = FleetRow(
    "x", "/x", "healthy", stack=LAYERS, model="XE9680 with H100", versions={"driver": "595.91.07", "kernel": "6.8.0-88"}
)
BROKEN = replace(
    HEALTHY, status="problem", cause="nouveau-bound", title="nouveau owns the GPU", severity="error",
    confidence="certain", summary="nouveau drives 0000:1b:00.0", advice="keep nouveau away",
    command="sudo gpunode setup",
)  # fmt: skip
UNREAD = FleetRow("x", "/x", "unreadable", error="/x is damaged: not a gzipped file")
DRIFTED = replace(HEALTHY, drift=(Drift("driver", "driver", "change", "580 is installed, the recipe wants 595"),))


def with_report_names(*rows: FleetRow) -> tuple[FleetRow, ...]:
    files = (f"rack7-n{number:04}.tar.gz" for number in range(len(rows)))
    return tuple(
        replace(row, report=file, path=f"/captures/{file}", error=row.error.replace("/x", f"/captures/{file}"))
        for row, file in zip(rows, files, strict=True)
    )


def render_fleet(*rows: FleetRow, recipe: str = "") -> str:
    return fleet_page(summarize_fleet(with_report_names(*rows)), ABOUT, recipe)


def test_fleet_page_lists_each_node_and_why_it_needs_attention() -> None:
    text = render_fleet(
        HEALTHY, BROKEN, replace(HEALTHY, differences=(ODD,)), UNREAD, DRIFTED, recipe="recipe k8s-containerd"
    )
    seen = Seen(text)
    assert '<h1 id="verdict">1 of 5 nodes is broken</h1>' in text
    for said in (
        "nouveau owns the GPU", "keep nouveau away", "sudo gpunode setup",
        "VBIOS of the GPUs 96.00.89 among 511 nodes with 96.00.A5", "it is damaged",
        "Drifted from recipe k8s-containerd",
        *(f"rack7-n000{number}" for number in range(5)),
    ):  # fmt: skip
        assert said in text
    assert "/captures" not in text
    assert len(set(seen.ids)) == len(seen.ids)
    assert {"script", "img", "iframe"}.isdisjoint(name for name, _ in seen.tags)


def test_only_nodes_that_need_a_look_have_a_row() -> None:
    text = render_fleet(*[HEALTHY] * 3, BROKEN, UNREAD, DRIFTED)
    assert text.count('<th scope="row">rack7-n') == 3
    assert "3 healthy nodes: rack7-n0000 … n0002" in text


def test_each_state_of_a_layer_has_its_own_mark() -> None:
    legend = "✗ broken · ! at risk · ↳ affected · ✓ works · ○ looked at · ? not seen · – none here"
    assert legend in render_fleet(BROKEN)
    assert len({mark for mark, _ in LAYER_MARKS.values()}) == len(STATES)


def test_page_of_5000_worst_case_nodes_is_below_5_mb() -> None:
    """Each has everything that can be said of a node, in characters that need escaping."""
    long = "<&'\"é" * 100
    bad = replace(
        BROKEN, summary=long, other_causes=("nouveau-in-initramfs",) * 4, drift=(Drift("x", long, "change", long),),
        differences=(replace(ODD, actual=long),), versions={"driver": "595.91.07", "kernel": "6.8.0-88-generic"},
    )  # fmt: skip
    assert len(render_fleet(*[bad] * 5000).encode()) < 5_000_000


def test_hostile_text_is_escaped_on_the_fleet_page() -> None:
    row = FleetRow(
        HOSTILE, HOSTILE, "problem", cause="nouveau-bound", title=HOSTILE, severity="error", summary=HOSTILE,
        advice=HOSTILE, command=HOSTILE, stack=LAYERS, model=HOSTILE, versions={"driver": HOSTILE, "kernel": HOSTILE},
        differences=(replace(ODD, name=HOSTILE, actual=HOSTILE),), error=HOSTILE,
        drift=(Drift("x", HOSTILE, "change", HOSTILE),),
    )  # fmt: skip
    text = fleet_page(summarize_fleet([row, replace(HEALTHY, report="y", model="<style>")]), ABOUT, HOSTILE)
    seen = Seen(text)
    assert {"script", "img", "svg", "a"} & {name for name, _ in seen.tags} <= {"a"}
    assert seen.links == ["#nodes"]
    assert len([name for name, _ in seen.tags if name == "style"]) == 1


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["rack7-n08", "rack7-n09", "rack7-n10"], ["rack7-n08 … n10"]),
        (["a1", "a2", "b3"], ["a1", "a2", "b3"]),
        (["n1", "n2", "n3", "n5"], ["n1 … n3", "n5"]),
        (["n9", "n10", "n11"], ["n9 … n11"]),
        (["x", "x"], ["x", "x"]),
    ],
)
def test_consecutive_names_are_collapsed_to_ranges(names: list[str], said: list[str]) -> None:
    assert list(collapse_ranges(names)) == said
