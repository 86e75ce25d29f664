"""``gpunode k8s render``: captures → files on the disk or on standard output."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.cli.k8s_render import render_recipe
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.samples import SAMPLES_FOLDER
from gpunode.errors import Conflict, RecipeError, Refused, UsageError
from gpunode.facts.evidence import Capture
from gpunode.host.capture import load_capture, save_capture
from gpunode.kubernetes.model import HEADER

SAMPLE = str(SAMPLES_FOLDER / "debian12-gtx1080")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Return a folder with the captures of two nodes."""
    for name in ("gpu-01", "GPU-02"):
        shutil.copytree(SAMPLE, tmp_path / "fleet" / name)
    return tmp_path / "fleet"


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_rendered_manifests_are_printed_as_a_yaml_stream(capsys: pytest.CaptureFixture[str]) -> None:
    render_recipe("k8s-containerd", (SAMPLE,), "", "manifests", OutputOptions())
    kinds = [one["kind"] for one in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["Namespace", "RuntimeClass", "ConfigMap", "DaemonSet", "Pod"]
    render_recipe("k8s-time-slicing", (SAMPLE,), "", "manifests", OutputOptions())
    assert capsys.readouterr().out.startswith("# Time slicing shares")


def test_render_writes_the_folder_and_a_second_one_changes_nothing(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    render_recipe("k8s-time-slicing", (str(fleet),), str(out), "manifests", OutputOptions(json=True))
    first = answer(capsys)
    assert first["changed"]
    assert set(first["result"]["expected_resources"]) == {"gpu-01", "gpu-02"}
    standing = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}
    assert standing == first["result"]["files"]
    assert stat.S_IMODE((out / "apply.sh").stat().st_mode) == 0o755
    render_recipe("k8s-time-slicing", (str(fleet),), str(out), "manifests", OutputOptions(json=True))
    assert not answer(capsys)["changed"]


def test_screen_names_a_whole_pod_that_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    render_recipe("k8s-containerd", (SAMPLE,), str(out), "manifests", OutputOptions())
    assert f"{out}/test-pod.yaml is a complete example" in " ".join(capsys.readouterr().out.split())
    assert yaml.safe_load((out / "test-pod.yaml").read_text())["kind"] == "Pod"


def test_files_of_a_former_render_are_removed_and_others_kept(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    render_recipe("k8s-containerd", (str(fleet),), str(out), "kustomize", OutputOptions(quiet=True))
    (out / "manifests" / "own.yaml").write_text("kind: ConfigMap\n")
    (out / "kustomization.yaml").chmod(0o600)
    render_recipe("gpu-operator", (str(fleet),), str(out), "manifests", OutputOptions(quiet=True))
    standing = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert standing == [
        "README.md",
        "apply.sh",
        "helm/gpu-operator.values.yaml",
        "manifests/01-namespace-gpu-operator.yaml",
        "manifests/own.yaml",
        "test-pod.yaml",
    ]
    assert "own.yaml" not in (out / "apply.sh").read_text()


def test_capture_says_which_node_it_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = Capture("/proc/sys/kernel/hostname", "ok", b"GPU-7.rack\n", content_kind="table")
    save_capture({**load_capture(Path(SAMPLE)), "node-name": name}, tmp_path / "renamed.tar.gz")
    render_recipe("k8s-containerd", (str(tmp_path / "renamed.tar.gz"),), "", "manifests", OutputOptions(json=True))
    assert set(answer(capsys)["result"]["expected_resources"]) == {"gpu-7.rack"}


def test_node_name_of_the_kubelet_overrides_the_host_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crictl, config = "/var/lib/rancher/k3s/agent/etc/crictl.yaml", "/etc/rancher/k3s/config.yaml"
    more = {
        "node-name": Capture("/proc/sys/kernel/hostname", "ok", b"gpu-7\n", content_kind="table"),
        f"file:{crictl}": Capture(crictl, "ok", b"runtime-endpoint: unix:///run/k3s/containerd/containerd.sock\n"),
        f"file:{config}": Capture(config, "ok", b"node-name: Rack-4.GPU-7\n"),
    }
    save_capture({**load_capture(Path(SAMPLE)), **more}, tmp_path / "named.tar.gz")
    render_recipe("k8s-containerd", (str(tmp_path / "named.tar.gz"),), "", "manifests", OutputOptions(json=True))
    assert set(answer(capsys)["result"]["expected_resources"]) == {"rack-4.gpu-7"}


def test_copy_of_a_rendered_file_is_kept(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    render_recipe("gpu-operator", (str(fleet),), str(out), "manifests", OutputOptions(quiet=True))
    mine = out / "helm" / "prod.yaml"
    shutil.copy(out / "helm" / "gpu-operator.values.yaml", mine)
    render_recipe("k8s-containerd", (str(fleet),), str(out), "manifests", OutputOptions(quiet=True))
    assert mine.exists()
    assert not (out / "helm" / "gpu-operator.values.yaml").exists()


def test_other_files_in_the_output_folder_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.bin").touch()
    read: list[str] = []
    read_bytes = Path.read_bytes

    def note_and_read(path: Path) -> bytes:
        read.append(path.name)
        return b"" if path.name == "model.bin" else read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", note_and_read)
    render_recipe("k8s-containerd", (SAMPLE,), str(tmp_path), "manifests", OutputOptions(quiet=True))
    assert "model.bin" not in read
    assert (tmp_path / "apply.sh").is_file()


@pytest.mark.parametrize("way", ["file", "link", "link for a folder", "file for a folder"])
def test_obstacle_in_the_output_folder_is_named_and_nothing_written(way: str, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    match way:
        case "file":
            (out / "apply.sh").write_text("mine")
        case "link":
            (out / "apply.sh").symlink_to(elsewhere / "gone")
        case "link for a folder":
            (out / "manifests").symlink_to(elsewhere)
        case _:
            (out / "manifests").write_text("mine")
    before = sorted(out.iterdir())
    with pytest.raises(Conflict, match="is in the way"):
        render_recipe("k8s-containerd", (SAMPLE,), str(out), "manifests", OutputOptions(quiet=True))
    assert sorted(out.iterdir()) == before
    assert not any(elsewhere.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a link to another user")
def test_swapped_folder_does_not_delete_files_elsewhere(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of --output swaps ``manifests`` when the first new file appears; netplan has a file of that name."""
    out, outside = tmp_path / "out", tmp_path / "outside"
    rendered_before = f"# {HEADER}\n"
    for folder in (out / "manifests", outside):
        folder.mkdir(parents=True)
        (folder / "50-cloud-init.yaml").write_text(rendered_before)
    rename = os.rename

    def rename_and_swap(source: str, target: str, **folders: int) -> None:
        rename(source, target, **folders)
        if target == "apply.sh":
            rename(out / "manifests", out / "old")
            (out / "manifests").symlink_to(outside)
            os.lchown(out / "manifests", 1234, 1234)

    monkeypatch.setattr(os, "rename", rename_and_swap)
    with pytest.raises(UsageError) as stopped:
        render_recipe("k8s-containerd", (str(fleet),), str(out), "manifests", OutputOptions(quiet=True))
    assert "symbolic link of uid 1234" in stopped.value.why
    assert (out / "manifests").is_symlink()
    assert [(one.name, one.read_text()) for one in outside.iterdir()] == [("50-cloud-init.yaml", rendered_before)]


def test_file_edited_during_the_render_is_not_removed(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    render_recipe("gpu-operator", (str(fleet),), str(out), "manifests", OutputOptions(quiet=True))
    stale, rename = out / "helm" / "gpu-operator.values.yaml", os.rename

    def rename_and_edit(source: str, target: str, **folders: int) -> None:
        rename(source, target, **folders)
        stale.write_text("mine\n")

    monkeypatch.setattr(os, "rename", rename_and_edit)
    render_recipe("k8s-containerd", (str(fleet),), str(out), "manifests", OutputOptions(quiet=True))
    assert stale.read_text() == "mine\n"


def test_node_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    render_recipe("k8s-containerd", (f"gpu-9={SAMPLE}",), "", "manifests", OutputOptions(json=True))
    assert set(answer(capsys)["result"]["expected_resources"]) == {"gpu-9"}


def test_capture_path_with_an_equals_sign_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SAMPLE, tmp_path / "rack=4")
    render_recipe("k8s-containerd", (f"n={tmp_path}/rack=4",), "", "manifests", OutputOptions(json=True))
    assert set(answer(capsys)["result"]["expected_resources"]) == {"n"}
    with pytest.raises(Refused, match="rack=4"):
        render_recipe("k8s-containerd", (f"{tmp_path}/rack=4",), "", "manifests", OutputOptions(json=True))


def test_screen_names_nodes_resources_and_the_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render_recipe("k8s-time-slicing", (SAMPLE,), f"{tmp_path}/a b", "manifests", OutputOptions())
    shown = capsys.readouterr().out
    assert "1 × GeForce GTX 1080" in shown
    assert "offers 4 × nvidia.com/gpu" in shown
    assert "shares a GPU's time, not its memory" in shown
    assert "nothing was sent to a cluster" in shown
    assert shown.rstrip().endswith(f"next: '{tmp_path}/a b/apply.sh'")


@pytest.mark.parametrize(
    ("place", "capture", "form", "kind", "what"),
    [
        ("k8s-containerd", SAMPLE, "yaml", UsageError, '--format cannot be "yaml"'),
        ("k8s-containerd", "gone.tar.gz", "manifests", UsageError, "no such file"),
        ("bare-metal", SAMPLE, "manifests", Refused, "does not configure Kubernetes"),
        ("k8s-mig", SAMPLE, "manifests", Refused, "knows no MIG profile of NVIDIA GeForce GTX 1080"),
        ("k8s-nothing", SAMPLE, "manifests", UsageError, "there is no recipe"),
    ],
)
def test_unrenderable_request_is_refused_and_writes_nothing(
    place: str, capture: str, form: str, kind: type[Exception], what: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as stopped:
        render_recipe(place, (capture,), str(tmp_path / "out"), form, OutputOptions(quiet=True))
    assert what in str(stopped.value)
    assert not (tmp_path / "out").exists()


def test_empty_folder_and_invalid_node_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no capture in this folder"):
        render_recipe("k8s-containerd", (str(tmp_path),), "", "manifests", OutputOptions(quiet=True))
    shutil.copytree(SAMPLE, tmp_path / "my_node; rm")
    with pytest.raises(Refused, match="cannot be the name of a Kubernetes node"):
        render_recipe("k8s-containerd", (str(tmp_path / "my_node; rm"),), "", "manifests", OutputOptions(quiet=True))


def test_recipe_error_names_file_line_key_and_allowed_values(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('schema = 1\n[kubernetes]\nstack = "device-plugin"\n[kubernetes.sharing]\nmode = "half"\n')
    with pytest.raises(RecipeError) as stopped:
        render_recipe(str(mine), (SAMPLE,), "", "manifests", OutputOptions(quiet=True))
    assert (stopped.value.line, stopped.value.key) == (5, "kubernetes.sharing.mode")
    assert stopped.value.allowed == ("none", "time-slicing", "mps")


def test_renumbered_files_are_not_reported_as_left_in_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file of a former form was reported as still in the cluster, although nothing had been applied."""
    out = str(tmp_path / "out")

    def told(recipe: str, form: str) -> dict[str, bool]:
        render_recipe(recipe, (SAMPLE,), out, form, OutputOptions())
        rows = [" ".join(line.split()) for line in capsys.readouterr().out.replace("\n      ", " ").splitlines()]
        gone = [row for row in rows if " from an earlier render" in row]
        return {row.split()[1]: "if it was applied" in row for row in gone}

    told("k8s-containerd", "kustomize")
    assert told("k8s-containerd", "manifests") == {
        "kustomization.yaml": False,
        "manifests/03-daemon-set-nvidia-device-plugin.yaml": False,
        "plugin-config.yaml": True,
    }
    left = told("k8s-containerd", "helm")
    assert left["manifests/04-daemon-set-nvidia-device-plugin.yaml"]
    assert told("k8s-containerd", "argocd")["helm/nvidia-device-plugin.values.yaml"] is False
