from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.diagnoses.comparison import Census, NodeModel, NodeProfile

H100 = NodeModel("Dell XE9680", ("GH100",))


def node_profile(*features: tuple[str, str, str], model: NodeModel = H100) -> NodeProfile:
    return NodeProfile(model, {}, features)


def census(*portraits: NodeProfile) -> Census:
    found = Census()
    for number, one in enumerate(portraits):
        found.add(f"n{number}", one)
    return found


KERNEL, OTHER, MORE = ("kernel", "running", "6.1"), ("kernel", "running", "6.8"), ("args", "iommu", "pt")


def test_changed_missing_and_additional_features_are_outliers() -> None:
    (group,) = census(
        *[node_profile(KERNEL)] * 17, node_profile(OTHER), node_profile(), node_profile(KERNEL, MORE)
    ).group_by_model()
    assert group.outliers == {
        "n17": frozenset({("kernel", "running")}),
        "n18": frozenset({("kernel", "running")}),
        "n19": frozenset({("args", "iommu")}),
    }
    assert group.common_counts == {("kernel", "running"): 18, ("args", "iommu"): 19}
    assert group.reference == "n0"


@pytest.mark.parametrize(
    "portraits", [[node_profile(KERNEL), node_profile(OTHER)], [node_profile(KERNEL)] * 7 + [node_profile(OTHER)] * 3]
)
def test_pair_or_even_spread_has_no_outlier(portraits: list[NodeProfile]) -> None:
    (group,) = census(*portraits).group_by_model()
    assert group.outliers == {}


def test_nodes_of_two_models_are_not_compared() -> None:
    other = NodeModel("Dell XE9680", ("GB200",))
    groups = census(*[node_profile(KERNEL)] * 4, *[node_profile(OTHER, model=other)] * 3).group_by_model()
    assert [(group.model, len(group.nodes), dict(group.outliers)) for group in groups] == [
        (H100, 4, {}),
        (other, 3, {}),
    ]


def test_node_that_lost_all_gpus_stays_in_the_group_of_its_model() -> None:
    gone = node_profile(model=NodeModel("Dell XE9680", ()))
    (group,) = census(*[node_profile(KERNEL)] * 4, gone).group_by_model()
    assert group.outliers == {"n4": frozenset({("kernel", "running")})}


@given(st.integers(5, 40), st.data())
def test_single_outlier_is_found_in_any_order(size: int, data: st.DataObject) -> None:
    common = data.draw(st.sets(st.tuples(st.sampled_from("ab"), st.sampled_from("cdef"), st.just("usual")), min_size=1))
    changed = data.draw(st.sampled_from(sorted(common)))
    at = data.draw(st.integers(0, size - 1))
    odd = (common - {changed}) | {(*changed[:2], "odd")}
    (group,) = census(*(node_profile(*(odd if number == at else common)) for number in range(size))).group_by_model()
    assert group.outliers == {f"n{at}": frozenset({changed[:2]})}
    assert group.common_counts == {changed[:2]: size - 1}
