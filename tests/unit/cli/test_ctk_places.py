"""Choice of the containerd that ``gpunode ctk`` edits if no file is named: the one that the node's kubelet uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.cli.boundary import run_cli

VECTORS = Path(__file__).parents[2] / "conformance" / "runtimes" / "vectors"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
DRY = ("ctk", "runtime", "configure", "--runtime", "containerd", "--dry-run", "--json")


def put(root: Path, path: str, content: bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def enable(root: Path, unit: str) -> None:
    """Enable the unit, so that it starts at the next boot."""
    put(root, f"/etc/systemd/system/{unit}", b"[Service]\nExecStart=/bin/true\n")
    put(root, f"/etc/systemd/system/multi-user.target.wants/{unit}", b"")


@pytest.fixture
def k3s(tmp_path: Path) -> Path:
    enable(tmp_path, "k3s.service")
    put(tmp_path, f"{K3S}/config.toml", (VECTORS / "019-ctd-k3s-v3" / "input.toml").read_bytes())
    put(tmp_path, "/etc/containerd/config.toml", b"version = 2\n")
    return tmp_path


def plan_configure(capsys: pytest.CaptureFixture[str], root: Path, *more: str) -> tuple[int, dict[str, Any]]:
    code = run_cli([*DRY, "--root", str(root), *more])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def paths(answer: dict[str, Any]) -> list[str]:
    return [change["subject"] for change in answer["changes"]]


def test_drop_in_of_k3s_is_planned(k3s: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = plan_configure(capsys, k3s)
    assert code == 0
    assert paths(answer) == [f"{K3S}/config-v3.toml.d/99-nvidia.toml"]
    assert "k3s" in answer["result"]["reason"]


@pytest.mark.usefixtures("allow_subprocess")
def test_file_named_by_option_is_planned(k3s: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = plan_configure(capsys, k3s, "--config", "/etc/containerd/config.toml", "--mode", "in-place")
    assert paths(answer) == ["/etc/containerd/config.toml"]


def test_config_dump_is_ignored_on_k3s(k3s: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = plan_configure(capsys, k3s, "--config-source", "command")
    assert code == 0
    assert any("--config-source=command is ignored" in note for note in answer["notes"])


def test_edit_that_k3s_would_overwrite_is_refused(k3s: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = plan_configure(capsys, k3s, "--mode", "in-place")
    assert code == 3
    assert "at every start" in answer["errors"][0]["why"]


@pytest.mark.usefixtures("allow_subprocess")
def test_two_kubelets_are_noted_and_the_default_file_is_used(k3s: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enable(k3s, "kubelet.service")
    _, answer = plan_configure(capsys, k3s)
    assert all(path.startswith("/etc/containerd/") for path in paths(answer))
    assert any("k3s.service" in note for note in answer["notes"])


@pytest.mark.usefixtures("allow_subprocess")
def test_node_without_a_kubelet_uses_the_default_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "/etc/containerd/config.toml", b"version = 2\n")
    put(tmp_path, "/usr/bin/nvidia-container-runtime", b"")
    _, answer = plan_configure(capsys, tmp_path)
    assert paths(answer) == ["/etc/containerd/config.toml"]
    assert not answer["notes"]


@pytest.mark.usefixtures("allow_subprocess")
def test_file_named_by_the_containerd_unit_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "/etc/containerd/config.toml", b"version = 2\n")
    put(tmp_path, "/srv/containerd.toml", b"version = 2\n")
    put(tmp_path, "/lib/systemd/system/containerd.service", b"[Service]\nExecStart=/usr/bin/containerd\n")
    unit = "/etc/systemd/system/containerd.service.d/own.conf"
    put(tmp_path, unit, b"[Service]\nExecStart=\nExecStart=/usr/bin/containerd -c /srv/containerd.toml\n")
    _, answer = plan_configure(capsys, tmp_path, "--mode", "in-place")
    assert paths(answer) == ["/srv/containerd.toml"]
    assert unit in answer["result"]["reason"]
    _, answer = plan_configure(capsys, tmp_path, "--mode", "in-place", "--config", "/etc/containerd/config.toml")
    assert paths(answer) == ["/etc/containerd/config.toml"]


@pytest.mark.usefixtures("allow_subprocess")
def test_disabled_cri_plugin_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "/etc/containerd/config.toml", b'disabled_plugins = ["cri"]\n')
    _, answer = plan_configure(capsys, tmp_path)
    assert any("disables the CRI plugin" in note for note in answer["notes"])
    _, answer = plan_configure(capsys, tmp_path, "--enable-cri")
    assert not any("disables the CRI plugin" in note for note in answer["notes"])


@pytest.mark.usefixtures("allow_subprocess")
def test_kubeadm_kubelet_gets_cri_plugin_and_cgroup_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "/etc/containerd/config.toml", b'version = 2\ndisabled_plugins = ["cri"]\n')
    put(tmp_path, "/etc/systemd/system/kubelet.service", b"[Service]\nExecStart=/usr/bin/kubelet $KUBELET_ARGS\n")
    put(tmp_path, "/etc/systemd/system/multi-user.target.wants/kubelet.service", b"")
    arguments = b"[Service]\nEnvironment=KUBELET_ARGS=--config=/var/lib/kubelet/config.yaml\n"
    put(tmp_path, "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", arguments)
    put(tmp_path, "/var/lib/kubelet/config.yaml", b"cgroupDriver: systemd\n")
    _, answer = plan_configure(capsys, tmp_path, "--mode", "in-place")
    diff = "\n".join(answer["diff"][0]["after"].splitlines())
    assert "disabled_plugins = []" in diff
    assert diff.count("SystemdCgroup = true") == 2, "runc and nvidia alike"


@pytest.mark.usefixtures("allow_subprocess")
def test_unrecorded_handler_is_removed_if_its_binary_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "/etc/docker/daemon.json", b'{"runtimes": {"gpu": {"path": "/opt/nvidia/run"}}}\n')
    words = ["ctk", "runtime", "unconfigure", "--dry-run", "--json", "--root", str(tmp_path)]
    words.append("--nvidia-runtime-name=gpu")
    assert run_cli(words) == 3
    hint = json.loads(capsys.readouterr().out)["errors"][0]["hint"]
    assert run_cli([*words, hint.rpartition(" ")[2]]) == 0
    assert json.loads(json.loads(capsys.readouterr().out)["diff"][0]["after"]) == {}


def test_containerd_version_is_read_from_the_package_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """containerd 2 reads no runtime under the plugin's name in a schema 1 file."""
    put(tmp_path, "/etc/containerd/config.toml", b'disabled_plugins = ["aufs"]\n')
    package = b"Package: containerd\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.1.9+ds1-5\n\n"
    put(tmp_path, "/var/lib/dpkg/status", package)
    assert run_cli([word for word in DRY if word != "--json"] + ["--root", str(tmp_path)]) == 0
    assert "io.containerd.cri.v1.runtime" in capsys.readouterr().out
