"""kind clusters: the distribution of the GPUs, and the script that creates the cluster, with recorded commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpunode import builtin
from gpunode.command import command
from gpunode.errors import Refused
from gpunode.host.cluster import Cluster, ClusterIdentity
from gpunode.kubernetes.render import render_cluster, select_member_nodes
from gpunode.kubernetes.render_formats import make_files
from gpunode.recipe import Recipe
from gpunode.recipe.toml import parse
from gpunode.workflow.cluster_plan import make_plan
from gpunode.workflow.cluster_verify import ClusterVerification
from tests.unit.kubernetes.clusters import CLUSTERS, node

EIGHT = CLUSTERS["eight"]
COMMANDS = {
    "kind": 'case "$1 $2" in "get clusters") echo "$CLUSTERS" ;; esac',
    "docker": (
        'case "$*" in *SecurityOptions*) echo "$SECURITY" ;; *DefaultRuntime*) echo "$RUNTIME" ;; '
        "*grep*) exit $OLD ;; *'nvidia-smi -L') exit $BLIND ;; esac"
    ),
}


def of_workers(count: int, more: str = "") -> Recipe:
    text = f'schema = 1\nextends = "kind"\n[kubernetes.kind]\nworkers = {count}\nname = "lab"\n{more}'
    return parse(text, "mine.toml", builtin.load_recipe_text)


@pytest.mark.parametrize(("count", "shares"), [(1, [8]), (3, [2, 3, 3]), (8, [1] * 8)])
def test_every_gpu_belongs_to_one_kind_worker(count: int, shares: list[int]) -> None:
    found = render_cluster(of_workers(count), EIGHT)
    assert [one["nvidia.com/gpu"] for one in found.expected.values()] == shares
    assert [edit.node for edit in found.nodes] == ["lab-worker", *(f"lab-worker{n}" for n in range(2, count + 1))]
    assert found.kind is not None
    mounts = [m["containerPath"] for n in found.kind.config["nodes"] for m in n.get("extraMounts", ())]
    assert [place.rpartition("/")[2] for place in mounts] == (["all"] if count == 1 else [*"01234567"])


@pytest.mark.parametrize(
    ("wanted", "nodes", "what"),
    [
        (of_workers(9), EIGHT, "fewer GPUs than the 9 workers"),
        (of_workers(1), (node("a", "2330", 1), node("b", "2330", 1)), "on one machine"),
        (of_workers(1, "[toolkit]\nvolume_mounts = false"), EIGHT, "would get no GPU"),
        (of_workers(1, "[runtime]\nset_as_default = false"), EIGHT, "would get no GPU"),
        (of_workers(1, '[runtime]\nname = "containerd"'), EIGHT, "would get no GPU"),
    ],
)
def test_kind_cluster_without_gpus_is_refused(wanted: Recipe, nodes: tuple[object, ...], what: str) -> None:
    with pytest.raises(Refused, match=what):
        render_cluster(wanted, nodes)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["manifests", "kustomize", "argocd", "helm"])
def test_apply_script_only_uses_the_kind_context(form: str) -> None:
    found = render_cluster(of_workers(1, "[kubernetes.extras]\ndcgm_exporter = true"), EIGHT, form)  # type: ignore[arg-type]
    lines = make_files(found, form)["apply.sh"].splitlines()  # type: ignore[arg-type]
    sent = [line for line in lines if line.startswith(("kubectl", "helm"))]
    assert sent
    assert [line for line in sent if "context kind-lab" not in line] == []


def run(script: str, folder: Path, **environment: str) -> tuple[int, str, list[str]]:
    """Return the exit status, the errors, and the commands that ran."""
    for name, body in COMMANDS.items():
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$LOG"\n{body}\n')
        (folder / name).chmod(0o755)
    (folder / "kind.sh").write_text(script)
    log, usual = folder / "log", {"CLUSTERS": "other", "SECURITY": "[name=seccomp]", "RUNTIME": "nvidia"}
    own = {**usual, "OLD": "0", "BLIND": "0", **environment, "LOG": str(log), "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", str(folder / "kind.sh")], env=own, capture_output=True, text=True, check=False)
    ran = [line for line in log.read_text().splitlines() if " info" not in line]
    return done.returncode, done.stderr, ran


def script(count: int) -> str:
    return make_files(render_cluster(of_workers(count), EIGHT), "manifests")["kind.sh"]


@pytest.mark.usefixtures("allow_subprocess")
def test_kind_script_creates_the_cluster_once_and_prepares_workers(tmp_path: Path) -> None:
    status, _, ran = run(script(2), tmp_path)
    assert status == 0
    assert "kind create cluster --name lab --config kind-config.yaml" in ran
    restarted = [line for line in ran if line.endswith("systemctl restart containerd")]
    assert restarted == [f"docker exec lab-worker{n} systemctl restart containerd" for n in ("", "2")]
    hidden = [line.partition(" hide ")[2] for line in ran if " hide " in line]
    assert hidden == ["4 5 6 7", "0 1 2 3"]
    assert not any("umount -R" in line for line in ran)
    (tmp_path / "log").unlink()
    status, _, ran = run(script(1), tmp_path, CLUSTERS="other\nlab")
    assert status == 0
    assert not [line for line in ran if "create" in line or "hide" in line]


@pytest.mark.usefixtures("allow_subprocess")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"SECURITY": "[name=seccomp name=rootless]"}, "rootless"),
        ({"RUNTIME": "runc"}, "sudo gpunode setup RECIPE.toml"),
        ({"BLIND": "9"}, "lab-worker sees no GPU"),
        ({"OLD": "1"}, "older than 1.19"),
    ],
)
def test_kind_script_stops_with_a_reason(more: dict[str, str], why: str, tmp_path: Path) -> None:
    status, complaint, _ = run(script(2), tmp_path, **more)
    assert status == 1
    assert why in complaint


class Elsewhere(Cluster):
    """A cluster other than kind's: only its name may be queried, and no kubectl is needed."""

    def __init__(self) -> None:
        self.kubectl = ("kubectl",)

    def identify(self) -> ClusterIdentity:
        return ClusterIdentity("prod", "https://10.0.0.1:6443", "admin", "v1.36.2", "uid")


def test_recipe_for_kind_refuses_another_cluster() -> None:
    never: Any = lambda *_: None  # noqa: E731
    verification = ClusterVerification(
        Elsewhere(), of_workers(1), EIGHT, "", 1, command("gpunode"), never, never, never
    )
    for ask in (
        lambda: make_plan(render_cluster(of_workers(1), EIGHT), Elsewhere()),
        verification.run,
    ):
        with pytest.raises(Refused, match="kind cluster lab, and this is the context prod") as refused:
            ask()
        assert "--context=kind-lab" in refused.value.hint


def test_kind_workers_are_rendered_from_their_names() -> None:
    wanted = of_workers(3)
    assert wanted.kubernetes is not None
    workers = select_member_nodes(wanted.kubernetes, EIGHT)
    assert render_cluster(wanted, workers).expected == render_cluster(wanted, EIGHT).expected
    for worker in workers:
        assert set(render_cluster(wanted, (worker,)).expected) == {worker.name}
