"""Screen of the plan for a cluster."""

from __future__ import annotations

import pytest

from gpunode.change import CommandChange, ObjectChange
from gpunode.cli.clusters import plan_lines
from gpunode.cli.k8s_render import user_pod_lines
from gpunode.host.cluster import ClusterIdentity
from gpunode.kubernetes.model import NodeEdit, RenderedCluster, UserPodNeeds
from gpunode.kubernetes.reconcile import PlanItem, PlanItemState
from gpunode.workflow.cluster_plan import ClusterPlan

NODE = ObjectChange("c", "v1", "Node", "", "n", None, "{}", shared=True)
RELEASE = CommandChange(("helm", "uninstall", "op", "--namespace", "gpu"), "x", cluster="c")
STAY, EVICTED = "running pods stay as they are", "are evicted"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (PlanItem("Node", "", "n", "edit", "", 0, NODE, diff=("+taint a=b:NoSchedule",)), STAY),
        (PlanItem("Node", "", "n", "edit", "", 0, NODE, diff=("+taint a=b:NoExecute",)), EVICTED),
        (PlanItem("Helm release", "gpu", "op", "delete", "", 0, RELEASE), ""),
    ],
)
def test_screen_says_whether_running_pods_stay(item: PlanItem, said: str) -> None:
    plan = ClusterPlan(ClusterIdentity("", "", "", "", ""), (item,))
    text = "\n".join(one.text for one in plan_lines(plan, RenderedCluster(), "", verbose=False))
    assert [one for one in (STAY, EVICTED) if one in text] == ([said] if said else [])


@pytest.mark.parametrize(
    ("states", "is_first"), [(("create", "edit"), True), (("unchanged", "edit"), False), ((), False)]
)
def test_concepts_page_is_named_the_first_time(states: tuple[PlanItemState, ...], is_first: bool) -> None:
    items = tuple(PlanItem("Node", "", "n", state, "", 0, NODE) for state in states)
    plan = ClusterPlan(ClusterIdentity("", "", "", "", ""), items)
    rendered = RenderedCluster(nodes=(NodeEdit("n", {}, "", ""),))
    text = "\n".join(one.text for one in plan_lines(plan, rendered, "", verbose=False))
    assert ("docs/explanation/from-pod-to-gpu.md" in text) == is_first


def test_pod_requirements_are_shown_in_the_plan_and_at_the_end() -> None:
    own = UserPodNeeds({"runtimeClassName": "nvidia"}, "gets a GPU only with runtimeClassName: nvidia")
    plan = ClusterPlan(ClusterIdentity("", "", "", "", ""), ())
    before = [one.text for one in plan_lines(plan, RenderedCluster(user_pods=(own,)), "", verbose=False)]
    assert "your pod gets a GPU only with runtimeClassName: nvidia" in before
    (head, *copied) = (one.text for one in user_pod_lines((own,), "there is a whole one"))
    assert head == "in your own pod (there is a whole one):"
    assert copied == ["  spec:", "    runtimeClassName: nvidia"]
    assert list(user_pod_lines((), "")) == []


def test_pods_for_several_resources_are_shown_in_turn() -> None:
    every = (
        UserPodNeeds({"runtimeClassName": "nvidia"}, "that asks for a"),
        UserPodNeeds({"containers": []}, "that asks for b"),
    )
    plan = ClusterPlan(ClusterIdentity("", "", "", "", ""), ())
    before = [one.text for one in plan_lines(plan, RenderedCluster(user_pods=every), "", verbose=False)]
    assert {"your pod that asks for a", "your pod that asks for b"} <= set(before)
    (_, *copied) = (one.text for one in user_pod_lines(every, "x"))
    assert copied == ["  spec:", "    runtimeClassName: nvidia", "or:", "  spec:", "    containers: []"]
