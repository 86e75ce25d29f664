"""Clusters to render for, and the golden files; ``python -m tests.unit.kubernetes.clusters`` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpunode import builtin
from gpunode.catalog.gpus import find_model
from gpunode.kubernetes.model import ClusterNode
from gpunode.kubernetes.render import RenderFormat, render_cluster
from gpunode.kubernetes.render_formats import make_files

GOLDEN: Final = Path(__file__).parent / "golden"
_A100, _H100, _H200, _B200, _T4, _GTX = "20b2", "2330", "2335", "2901", "1eb8", "1b80"


def node(name: str, device: str, count: int, **more: object) -> ClusterNode:
    """Return a node with this number of GPUs of a model."""
    return ClusterNode(name, (find_model(device),) * count, **{"driver": "595.91.07", "toolkit": True, **more})  # type: ignore[arg-type]


CLUSTERS: Final[Mapping[str, tuple[ClusterNode, ...]]] = {
    "one": (node("desk", _GTX, 1, kubelet="kubelet", reads_cdi=True),),
    "eight": (node("gpu-01", _H100, 8, kubelet="kubelet", reads_cdi=True),),
    "sixteen": (node("dgx", _A100, 16, kubelet="kubelet"),),
    "k3s": (node("edge", _T4, 2, kubelet="k3s"),),
    "microk8s": (node("snap", _H200, 4, kubelet="microk8s"),),
    "fleet": (node("gpu-02", _B200, 8, kubelet="kubelet", reads_cdi=True), node("gpu-01", _H100, 8, kubelet="kubelet")),
}
RECIPES: Final = ("k8s-containerd", "k8s-time-slicing", "k8s-mps", "k8s-mig", "gpu-operator", "hami", "dra", "k3s")
_GOLDEN: Final[Sequence[tuple[str, str, RenderFormat]]] = (
    ("k8s-containerd", "one", "manifests"),
    ("k8s-time-slicing", "k3s", "kustomize"),
    ("k8s-mps", "eight", "manifests"),
    ("k8s-mps", "eight", "flux"),
    ("k8s-mig", "fleet", "manifests"),
    ("gpu-operator", "eight", "argocd"),
    ("gpu-operator", "eight", "kustomize"),
    ("gpu-operator", "microk8s", "helm"),
    ("hami", "sixteen", "manifests"),
    ("dra", "eight", "manifests"),
    ("k3s", "k3s", "manifests"),
    ("kind", "eight", "manifests"),
)


def text_of(recipe: str, cluster: str, form: RenderFormat) -> str:
    """Return all files of a render, one after the other."""
    made = make_files(render_cluster(builtin.read_recipe(recipe), CLUSTERS[cluster], form), form)
    return "".join(f"=== {path}\n{text}" for path, text in made.items())


def golden() -> Mapping[Path, str]:
    """Return every golden file with its expected content."""
    return {GOLDEN / f"{r}-{c}-{f}.txt": text_of(r, c, f) for r, c, f in _GOLDEN}


if __name__ == "__main__":
    for place, text in golden().items():
        place.write_text(text)
