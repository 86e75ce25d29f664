"""Hints for the named cluster, and the journal's record of how it was named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpunode.cli import CommandExit, clusters
from gpunode.cli.boundary import run_cli
from gpunode.cli.clusters import ClusterRef
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import Refused
from gpunode.host import cluster
from gpunode.host.cluster import _batches
from gpunode.host.kubectl import HelmMissing, ProgramMissing
from gpunode.journal.store import Store
from gpunode.workflow.cluster_apply import journal_run

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
def test_hint_command_names_the_same_cluster(hint: str, meant: str) -> None:
    assert FAR.adapt_hint(hint) == meant
    assert ClusterRef().adapt_hint(hint) == hint
    with pytest.raises(Refused) as refused, FAR.adapt_error_hints():
        raise Refused("no", hint=hint)
    assert refused.value.hint == meant


def test_rollback_in_a_hint_gets_the_sudo_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "own_sudo", lambda: ("sudo",))
    assert FAR.adapt_hint("or undo it: gpunode rollback k1") == "or undo it: sudo gpunode rollback k1"


def test_hint_command_starts_the_kubectl_that_gpunode_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_program", lambda name: "/usr/local/bin/k3s" if name == "k3s" else None)
    assert FAR.adapt_hint("look: kubectl get nodes") == f"look: k3s kubectl {OPTIONS} get nodes"


def test_json_answer_to_a_failure_in_a_run_names_the_same_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users would type a hint for another cluster's context there."""
    monkeypatch.setattr(clusters, "open_cluster_journal", lambda: Store(tmp_path))
    output = OutputOptions(json=True)
    with pytest.raises(CommandExit), FAR.adapt_error_hints():  # noqa: SIM117 - as the commands nest them
        with clusters._begin_changes("k8s apply", output.open_screen(), FAR, output, yes=True):
            raise Refused("no", hint="kubectl edit node n")
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["hint"] == f"kubectl {OPTIONS} edit node n"


PLAN = ["k8s", "plan", "gpu.toml", "--node", "a=b c.json", "--context", "far", "--check"]


@pytest.mark.parametrize(
    ("error", "argv", "offers"),
    [
        (ProgramMissing, PLAN, "gpunode k8s render gpu.toml --node 'a=b c.json' --format manifests --output gpu-node"),
        (HelmMissing, PLAN, "gpunode k8s render gpu.toml --node 'a=b c.json' --format argocd --output gpu-node"),
        (HelmMissing, ["k8s", "remove"], ""),
    ],
)
def test_missing_program_hint_offers_to_render_the_request(
    monkeypatch: pytest.MonkeyPatch, error: type[ProgramMissing], argv: list[str], offers: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpunode", *argv])
    with pytest.raises(ProgramMissing) as missing, ClusterRef().adapt_error_hints():
        raise error("no", hint="install it")
    assert missing.value.hint.partition(": ")[2] == offers


@pytest.mark.parametrize("hint", ["gpunode k8s render --format helm --output x", "see it:\ngpunode k8s render"])
def test_render_hint_repeats_the_requested_recipe_and_nodes(monkeypatch: pytest.MonkeyPatch, hint: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpunode", *PLAN])
    assert "gpunode k8s render gpu.toml --node 'a=b c.json'" in FAR.adapt_hint(hint)


def test_plan_hint_repeats_the_requested_recipe_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpunode", "k8s", "verify", *PLAN[2:-1], "--image", "x", "--timeout=9"])
    assert FAR.adapt_hint("run: gpunode k8s plan") == "run: gpunode k8s plan gpu.toml --node 'a=b c.json' --context far"


@pytest.mark.parametrize("given", [("--kubeconfig=a/b",), ("--kubeconfig", "a/b")])
def test_journal_keeps_an_absolute_kubeconfig_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = tuple(clusters._with_absolute_kubeconfig(["k8s", "remove", "--context=far", *given]))
    assert clusters._cluster_of_run(argv) == ClusterRef("far", str(tmp_path / "a/b"))


@pytest.mark.parametrize("number", [0, 1, 500, 501, 5000])
def test_large_object_lists_are_requested_in_batches(number: int) -> None:
    """kubectl requests each object separately, and gpunode ends a call that takes a minute."""
    objects = [{"metadata": {"name": str(one)}} for one in range(number)]
    parts = list(_batches(objects))
    assert [one for few in parts for one in few] == objects
    assert all(0 < len(few) <= 500 for few in parts)


@pytest.mark.parametrize("run", [["3"], []])
def test_rollback_takes_a_context_only_for_cluster_runs(run: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["rollback", *run, "--context", "far"]) == 2
    error = capsys.readouterr().err
    assert "are for runs that changed a cluster" in error
    assert "next: gpunode log\n" in error


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (ClusterRef(), ClusterRef("first", "/first")),
        (ClusterRef("typed"), ClusterRef("typed")),
        (ClusterRef("", "/typed"), ClusterRef("", "/typed")),
    ],
)
def test_rollback_uses_the_cluster_of_the_run_unless_overridden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: ClusterRef, meant: ClusterRef
) -> None:
    store = Store(tmp_path)
    words = ("k8s", "apply", "--context", "first", "--kubeconfig=/first")
    with journal_run(lambda: store.begin("k8s apply", argv=words)) as first:
        pass
    with journal_run(lambda: store.begin("k8s rollback", argv=("rollback", "k1"), undoes=first.id)):
        pass
    went: list[ClusterRef] = []

    def reach(where: ClusterRef) -> None:
        went.append(where)
        raise Refused("far enough")

    monkeypatch.setattr(clusters, "open_cluster_journal", lambda: store)
    monkeypatch.setattr(ClusterRef, "connect", reach)
    with pytest.raises(Refused, match="far enough"):
        clusters.rollback("k2", typed, OutputOptions(), yes=True)
    assert went == [meant]
