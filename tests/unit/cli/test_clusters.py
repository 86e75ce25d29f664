"""Hints for the cluster that was named, and what the journal keeps of how it was named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpunode.cli import clusters
from gpunode.cli.clusters import Where
from gpunode.errors import Refused
from gpunode.host.cluster import _few

FAR = Where("far", "/x y/config")
OPTIONS = "--context far --kubeconfig '/x y/config'"


@pytest.mark.parametrize(
    ("hint", "meant"),
    [
        ("see its Nodes: kubectl get nodes\nthen", f"see its Nodes: kubectl {OPTIONS} get nodes\nthen"),
        (f"kubectl {OPTIONS} get nodes", f"kubectl {OPTIONS} get nodes"),
        ("switch:\nkubectl config use-context NAME", "switch:\nkubectl config use-context NAME"),
        ("check kubectl itself: kubectl version", "check kubectl itself: kubectl version"),
        (
            "look: helm history op --namespace ops",
            "look: helm --kube-context far --kubeconfig '/x y/config' history op --namespace ops",
        ),
    ],
)
def test_a_command_in_a_hint_is_for_the_cluster_that_was_named(hint: str, meant: str) -> None:
    assert FAR.in_hint(hint) == meant
    assert Where().in_hint(hint) == hint
    with pytest.raises(Refused) as refused, FAR.meant():
        raise Refused("no", hint=hint)
    assert refused.value.hint == meant


@pytest.mark.parametrize("given", [("--kubeconfig=a/b",), ("--kubeconfig", "a/b")])
def test_the_journal_names_the_kubeconfig_from_the_root_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpunode", "k8s", "remove", "--context=far", *given])
    argv = clusters._request("k8s remove").argv
    assert clusters._where_of(argv) == Where("far", str(tmp_path / "a/b"))


@pytest.mark.parametrize("number", [0, 1, 500, 501, 5000])
def test_thousands_of_objects_are_asked_for_in_parts(number: int) -> None:
    """kubectl asks for each object by itself, and gpunode ends a call that takes a minute."""
    objects = [{"metadata": {"name": str(one)}} for one in range(number)]
    parts = list(_few(objects))
    assert [one for few in parts for one in few] == objects
    assert all(0 < len(few) <= 500 for few in parts)
