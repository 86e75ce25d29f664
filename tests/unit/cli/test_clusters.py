"""Hints for the cluster that was named, and what the journal keeps of how it was named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpunode.cli import clusters
from gpunode.cli.boundary import run_cli
from gpunode.cli.clusters import ClusterRef
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import Refused
from gpunode.host.cluster import _batches
from gpunode.host.cluster_programs import HelmMissing, ProgramMissing
from gpunode.journal.store import Store
from gpunode.workflow.cluster_apply import RunHeader, run_journaled

FAR = ClusterRef("far", "/x y/config")
OPTIONS = "--context far --kubeconfig '/x y/config'"


@pytest.mark.parametrize(
    ("hint", "meant"),
    [
        ("list its Nodes: kubectl get nodes\nthen", f"list its Nodes: kubectl {OPTIONS} get nodes\nthen"),
        (f"kubectl {OPTIONS} get nodes", f"kubectl {OPTIONS} get nodes"),
        ("switch:\nkubectl config use-context NAME", "switch:\nkubectl config use-context NAME"),
        ("check kubectl itself: kubectl version", "check kubectl itself: kubectl version"),
        ("put a kubectl of its version there, then Helm", "put a kubectl of its version there, then Helm"),
        (
            "look: helm history op --namespace ops",
            "look: helm --kube-context far --kubeconfig '/x y/config' history op --namespace ops",
        ),
    ],
)
def test_a_command_in_a_hint_is_for_the_cluster_that_was_named(hint: str, meant: str) -> None:
    assert FAR.adapt_hint(hint) == meant
    assert ClusterRef().adapt_hint(hint) == hint
    with pytest.raises(Refused) as refused, FAR.hints_for_this_cluster():
        raise Refused("no", hint=hint)
    assert refused.value.hint == meant


PLAN = ["k8s", "plan", "gpu.toml", "--node", "a=b c.json", "--context", "far", "--check"]


@pytest.mark.parametrize(
    ("error", "argv", "offers"),
    [
        (ProgramMissing, PLAN, "gpunode k8s render gpu.toml --node 'a=b c.json' --form manifests --out gpu-node"),
        (HelmMissing, PLAN, "gpunode k8s render gpu.toml --node 'a=b c.json' --form argocd --out gpu-node"),
        (HelmMissing, ["k8s", "remove"], ""),
    ],
)
def test_without_a_program_the_files_of_what_was_asked_for_are_offered(
    monkeypatch: pytest.MonkeyPatch, error: type[ProgramMissing], argv: list[str], offers: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpunode", *argv])
    with pytest.raises(ProgramMissing) as missing, ClusterRef().hints_for_this_cluster():
        raise error("no", hint="install it")
    assert missing.value.hint.partition(": ")[2] == offers


@pytest.mark.parametrize("hint", ["gpunode k8s render --form helm --out x", "see it:\ngpunode k8s render"])
def test_a_hint_s_render_is_of_the_recipe_and_nodes_that_were_named(monkeypatch: pytest.MonkeyPatch, hint: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpunode", *PLAN])
    assert "gpunode k8s render gpu.toml --node 'a=b c.json'" in FAR.adapt_hint(hint)


@pytest.mark.parametrize("given", [("--kubeconfig=a/b",), ("--kubeconfig", "a/b")])
def test_the_journal_names_the_kubeconfig_from_the_root_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpunode", "k8s", "remove", "--context=far", *given])
    argv = clusters._run_header("k8s remove").argv
    assert clusters._cluster_of_run(argv) == ClusterRef("far", str(tmp_path / "a/b"))


@pytest.mark.parametrize("number", [0, 1, 500, 501, 5000])
def test_thousands_of_objects_are_asked_for_in_parts(number: int) -> None:
    """kubectl asks for each object by itself, and gpunode ends a call that takes a minute."""
    objects = [{"metadata": {"name": str(one)}} for one in range(number)]
    parts = list(_batches(objects))
    assert [one for few in parts for one in few] == objects
    assert all(0 < len(few) <= 500 for few in parts)


def test_rollback_takes_a_context_for_runs_in_clusters_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["rollback", "3", "--context", "far"]) == 2
    assert "are for runs that changed a cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (ClusterRef(), ClusterRef("first", "/first")),
        (ClusterRef("typed"), ClusterRef("typed")),
        (ClusterRef("", "/typed"), ClusterRef("", "/typed")),
    ],
)
def test_a_rollback_goes_where_the_run_went_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: ClusterRef, meant: ClusterRef
) -> None:
    store = Store(tmp_path)
    words = ("k8s", "apply", "--context", "first", "--kubeconfig=/first")
    first = run_journaled(store, RunHeader("k8s apply", "0", words), lambda _: None)
    run_journaled(store, RunHeader("k8s rollback", "0", ("rollback", "k1"), of=first), lambda _: None)
    went: list[ClusterRef] = []

    def reach(where: ClusterRef) -> None:
        went.append(where)
        raise Refused("far enough")

    monkeypatch.setattr(clusters, "open_cluster_journal", lambda: store)
    monkeypatch.setattr(ClusterRef, "connect", reach)
    with pytest.raises(Refused, match="far enough"):
        clusters.rollback("k2", typed, OutputOptions(), yes=True)
    assert went == [meant]
