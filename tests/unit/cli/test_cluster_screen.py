"""What the plan for a cluster says on the screen."""

from __future__ import annotations

import pytest

from gpunode.change import CommandChange, ObjectChange
from gpunode.cli.screen.cluster import plan_lines, removal_lines
from gpunode.host.cluster import Identity
from gpunode.kubernetes.model import Rendered
from gpunode.kubernetes.reconcile import Item, State
from gpunode.workflow.cluster_plan import ClusterPlan

NODE = ObjectChange("c", "v1", "Node", "", "n", None, "{}", shared=True)
RELEASE = CommandChange(("helm", "uninstall", "op", "--namespace", "gpu"), "x", cluster="c")
STAY, EVICTED = "running pods stay as they are", "are evicted"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (Item("Node", "", "n", "change", "", 0, NODE, diff=("+taint a=b:NoSchedule",)), STAY),
        (Item("Node", "", "n", "change", "", 0, NODE, diff=("+taint a=b:NoExecute",)), EVICTED),
        (Item("Helm release", "gpu", "op", "delete", "", 0, RELEASE), ""),
    ],
)
def test_running_pods_are_promised_to_stay_only_where_they_do(item: Item, said: str) -> None:
    text = "\n".join(
        one.text for one in removal_lines(ClusterPlan(Identity("", "", "", "", ""), (item,)), verbose=False)
    )
    assert [one for one in (STAY, EVICTED) if one in text] == ([said] if said else [])


@pytest.mark.parametrize(
    ("states", "is_first"), [(("create", "change"), True), (("same", "change"), False), ((), False)]
)
def test_page_of_concepts_is_named_the_first_time(states: tuple[State, ...], is_first: bool) -> None:
    items = tuple(Item("Node", "", "n", state, "", 0, NODE) for state in states)
    plan = ClusterPlan(Identity("", "", "", "", ""), items)
    text = "\n".join(one.text for one in plan_lines(plan, Rendered(), "", verbose=False))
    assert ("docs/explanation/from-pod-to-gpu.md" in text) == is_first
