"""Removal from a cluster; tests/e2e/kubernetes/test_apply.py uses a real API server."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from gpunode.change import CommandChange, display_command
from gpunode.change.node import without_helm_values
from gpunode.errors import ChangeFailed, Conflict
from gpunode.facts.helm import HelmRelease
from gpunode.host.cluster import Cluster, ClusterIdentity
from gpunode.host.helm import move_values_to_stdin
from gpunode.host.kubectl import Forbidden
from gpunode.journal.store import Store
from gpunode.workflow.cluster_apply import apply_removal
from gpunode.workflow.cluster_plan import ClusterPlan
from gpunode.workflow.cluster_undo import plan_removal, plan_rollback

SECRET = "c4n4ry"
PLACE = ("gpu-operator", "gpu-operator")
LIVE = HelmRelease(*PLACE, "gpu-operator", "v26.7.0", 4, "deployed", {"driver": {"token": SECRET}})
OTHER = HelmRelease("metrics", "dcgm-exporter", "dcgm-exporter", "4.8.2", 1, "deployed")


@dataclass
class StandInHelm:
    """Helm with a table of releases, which cannot fetch some charts."""

    there: dict[tuple[str, str], HelmRelease]
    unreachable: frozenset[str] = frozenset()
    ran: list[tuple[str, ...]] = field(default_factory=list)

    def list_releases(self, *, places: Collection[tuple[str, str]]) -> tuple[HelmRelease, ...]:
        return tuple(one for place, one in self.there.items() if place in places)

    def count_revisions(self) -> Mapping[tuple[str, str], int]:
        return {place: one.revision for place, one in self.there.items()}

    def run(self, argv: tuple[str, ...]) -> None:
        self.ran.append(argv)
        name = argv[1] if argv[0] == "uninstall" else argv[2]
        if argv[0] == "upgrade" and name in self.unreachable:
            raise ChangeFailed("helm upgrade failed", why="the repository does not answer", hint="look")
        if argv[0] == "uninstall":
            self.there = {place: one for place, one in self.there.items() if place[1] != name}


@dataclass
class StandInCluster:
    """A cluster that holds releases of gpunode's, but no objects."""

    helm: StandInHelm
    may_see_secrets: bool = True
    are_ours: bool = True

    def identify(self) -> ClusterIdentity:
        return ClusterIdentity("c", "https://c", "me", "v1.36.2", "uid")

    def list(self, *_: str) -> tuple[Any, ...]:
        return ()

    def list_nodes(self) -> tuple[Any, ...]:
        return ()

    def get(self, _: object) -> tuple[Any, ...]:
        return ()

    def check_access(self, _: object) -> tuple[bool, ...]:
        return ()

    def list_metadata(self, *_: str) -> tuple[Any, ...]:
        if not self.may_see_secrets:
            raise Forbidden("no", why="secrets is forbidden: cannot list", hint="ask")
        if not self.are_ours:
            return ()
        return tuple({"metadata": {"namespace": space, "labels": {"name": name}}} for space, name in self.helm.there)


def carry_out(plan: ClusterPlan, cluster: StandInCluster, store: Store, of: str = "") -> str:
    begin = partial(store.begin, "k8s rollback" if of else "k8s remove", argv=(), undoes=of, with_packages=bool(of))
    ignore: Any = lambda *_: None  # noqa: E731
    return apply_removal(
        plan, cast(Cluster, cluster), begin, on_event=ignore, on_progress=ignore, check_interrupt=ignore
    )


def test_removed_helm_release_is_restored_with_its_chart_and_values(tmp_path: Path) -> None:
    store, cluster = Store(tmp_path), StandInCluster(StandInHelm({PLACE: LIVE}))
    run = carry_out(plan_removal(cast(Cluster, cluster)), cluster, store)
    assert not cluster.helm.there
    (journal,) = [one for one in tmp_path.rglob("*") if one.is_file() and SECRET in one.read_text("utf-8", "replace")]
    assert journal.stat().st_mode & 0o077 == 0

    carry_out(plan_rollback(cast(Cluster, cluster), store, run), cluster, store, run)
    words, values = move_values_to_stdin(cluster.helm.ran[-1])
    assert words[:3] == ("upgrade", "--install", "gpu-operator")
    assert (
        *words[words.index("--version") :][:2],
        *words[words.index("--labels") :][:2],
    ) == ("--version", "v26.7.0", "--labels", "managed-by=gpunode")
    assert SECRET not in " ".join(words)
    assert json.loads(values) == LIVE.values


def test_release_whose_chart_is_unavailable_does_not_stop_the_others(tmp_path: Path) -> None:
    releases = {PLACE: LIVE, ("metrics", "dcgm-exporter"): OTHER}
    store, cluster = Store(tmp_path), StandInCluster(StandInHelm(releases, frozenset({"dcgm-exporter"})))
    run = carry_out(plan_removal(cast(Cluster, cluster)), cluster, store)
    back = plan_rollback(cast(Cluster, cluster), store, run)
    with pytest.raises(
        ChangeFailed, match="metrics/dcgm-exporter could not be changed; everything else is done"
    ) as failed:
        carry_out(back, cluster, store, run)
    assert "does not answer" in failed.value.why
    assert {argv[2] for argv in cluster.helm.ran if argv[0] == "upgrade"} == {"gpu-operator", "dcgm-exporter"}


def test_foreign_release_in_place_of_ours_is_refused(tmp_path: Path) -> None:
    store, cluster = Store(tmp_path), StandInCluster(StandInHelm({PLACE: LIVE}))
    removed = carry_out(plan_removal(cast(Cluster, cluster)), cluster, store)
    back = carry_out(plan_rollback(cast(Cluster, cluster), store, removed), cluster, store, removed)
    cluster.helm.there = {PLACE: replace(LIVE, revision=1)}
    assert [one.state for one in plan_rollback(cast(Cluster, cluster), store, back).items] == ["delete"]
    cluster.are_ours = False
    for run in (removed, back):  # to restore ours, or to remove it again
        with pytest.raises(Conflict, match="gpu-operator/gpu-operator is not gpunode's"):
            plan_rollback(cast(Cluster, cluster), store, run)


def test_release_of_an_unknown_chart_has_no_undo() -> None:
    other = replace(LIVE, chart="somebody-s")
    (item,) = plan_removal(cast(Cluster, StandInCluster(StandInHelm({PLACE: other})))).items
    assert isinstance(item.change, CommandChange)
    assert item.change.undo is None


def test_helm_values_are_never_displayed() -> None:
    (item,) = plan_removal(cast(Cluster, StandInCluster(StandInHelm({PLACE: LIVE})))).items
    assert isinstance(item.change, CommandChange)
    again = item.change.inverse()
    assert isinstance(again, CommandChange)
    assert SECRET in " ".join(again.argv)
    assert SECRET not in display_command(again.argv) + " ".join(without_helm_values(again.argv))


def test_forbidden_secrets_list_is_noted_and_the_rest_is_removed() -> None:
    found = plan_removal(cast(Cluster, StandInCluster(StandInHelm({PLACE: LIVE}), may_see_secrets=False)))
    assert not found.items
    assert "Helm releases were not looked for" in found.skipped_nodes[0]
    assert "secrets is forbidden" in found.skipped_nodes[0]
