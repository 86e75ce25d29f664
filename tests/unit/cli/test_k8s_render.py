"""``gpunode k8s render``: captures → files on the disk or on standard output."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.cli.compose import SAMPLES
from gpunode.cli.how import How
from gpunode.cli.rendering import render
from gpunode.errors import Conflict, RecipeError, Refused, UsageError
from gpunode.facts.evidence import Capture
from gpunode.host.capture import load, save

SAMPLE = str(SAMPLES / "debian12-gtx1080")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder with the captures of two nodes."""
    for name in ("gpu-01", "GPU-02"):
        shutil.copytree(SAMPLE, tmp_path / "fleet" / name)
    return tmp_path / "fleet"


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_is_printed_is_a_stream_that_kubectl_reads(capsys: pytest.CaptureFixture[str]) -> None:
    render("k8s-containerd", (SAMPLE,), "", "manifests", How())
    parts = capsys.readouterr().out.split("# file: ")
    texts = [part.partition("\n")[2] for part in parts if part.partition("\n")[0].endswith(".yaml")]
    kinds = [one["kind"] for text in texts for one in yaml.safe_load_all(text)]
    assert kinds == ["Namespace", "RuntimeClass", "ConfigMap", "DaemonSet", "Node", "Pod"]


def test_the_files_stand_in_the_folder_and_a_second_render_changes_nothing(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    render("k8s-time-slicing", (str(fleet),), str(out), "manifests", How(json=True))
    first = answer(capsys)
    assert first["changed"]
    assert set(first["result"]["expected"]) == {"gpu-01", "gpu-02"}
    standing = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}
    assert standing == first["result"]["files"]
    assert stat.S_IMODE((out / "apply.sh").stat().st_mode) == 0o755
    render("k8s-time-slicing", (str(fleet),), str(out), "manifests", How(json=True))
    assert not answer(capsys)["changed"]


def test_what_a_former_render_left_goes_and_what_others_put_there_stays(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    render("k8s-containerd", (str(fleet),), str(out), "kustomize", How(quiet=True))
    (out / "manifests" / "own.yaml").write_text("kind: ConfigMap\n")
    (out / "kustomization.yaml").chmod(0o600)
    render("gpu-operator", (str(fleet),), str(out), "manifests", How(quiet=True))
    standing = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert standing == [
        "apply.sh",
        "helm/gpu-operator.values.yaml",
        "manifests/01-namespace-gpu-operator.yaml",
        "manifests/own.yaml",
        "nodes.yaml",
        "test-pod.yaml",
    ]


def test_a_capture_says_itself_which_node_it_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = Capture("/proc/sys/kernel/hostname", "ok", b"GPU-7.rack\n", holds="table")
    save({**load(Path(SAMPLE)), "node-name": name}, tmp_path / "renamed.tar.gz")
    render("k8s-containerd", (str(tmp_path / "renamed.tar.gz"),), "", "manifests", How(json=True))
    assert set(answer(capsys)["result"]["expected"]) == {"gpu-7.rack"}


def test_a_file_of_others_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text("mine")
    with pytest.raises(Conflict, match=r"nodes\.yaml is not from gpunode"):
        render("k8s-containerd", (SAMPLE,), str(tmp_path), "manifests", How(quiet=True))
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.yaml"]
    assert (tmp_path / "nodes.yaml").read_text() == "mine"


def test_the_screen_names_the_nodes_what_they_offer_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    render("k8s-time-slicing", (SAMPLE,), f"{tmp_path}/a b", "manifests", How())
    shown = capsys.readouterr().out
    assert "1 × GeForce GTX 1080" in shown
    assert "offers 4 × nvidia.com/gpu" in shown
    assert "shares a GPU's time, not its memory" in shown
    assert "nothing was sent to a cluster" in shown
    assert shown.rstrip().endswith(f"next: '{tmp_path}/a b/apply.sh'")


@pytest.mark.parametrize(
    ("place", "capture", "form", "kind", "what"),
    [
        ("k8s-containerd", SAMPLE, "yaml", UsageError, "--form cannot be 'yaml'"),
        ("k8s-containerd", "gone.tar.gz", "manifests", UsageError, "no such file"),
        ("bare-metal", SAMPLE, "manifests", Refused, "asks nothing of Kubernetes"),
        ("k8s-mig", SAMPLE, "manifests", Refused, "GeForce GTX 1080 has no MIG"),
        ("k8s-nothing", SAMPLE, "manifests", UsageError, "there is no recipe"),
    ],
)
def test_what_cannot_be_rendered_is_told_and_writes_nothing(
    place: str, capture: str, form: str, kind: type[Exception], what: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as stopped:
        render(place, (capture,), str(tmp_path / "out"), form, How(quiet=True))
    assert what in str(stopped.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_captures_and_names_that_no_node_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no capture in this folder"):
        render("k8s-containerd", (str(tmp_path),), "", "manifests", How(quiet=True))
    shutil.copytree(SAMPLE, tmp_path / "my_node; rm")
    with pytest.raises(Refused, match="cannot be the name of a Kubernetes node"):
        render("k8s-containerd", (str(tmp_path / "my_node; rm"),), "", "manifests", How(quiet=True))


def test_a_mistake_in_the_recipe_names_file_line_key_and_what_is_allowed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('schema = 1\n[kubernetes]\nstack = "device-plugin"\n[kubernetes.sharing]\nmode = "half"\n')
    with pytest.raises(RecipeError) as stopped:
        render(str(mine), (SAMPLE,), "", "manifests", How(quiet=True))
    assert (stopped.value.line, stopped.value.key) == (5, "kubernetes.sharing.mode")
    assert stopped.value.allowed == ("none", "time-slicing", "mps")
