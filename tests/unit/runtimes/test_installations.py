from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from gpunode.change import FileState
from gpunode.errors import Refused
from gpunode.facts.derive import derive
from gpunode.facts.model import Fact, Facts, Known, Kubelet, MisreadKubelet, Unknown
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.runtimes.installations import INSTALLATIONS, containerd_socket_of, resolve_runtime
from tests.unit.runtimes.unconfigured import unconfigure

CONTAINERD = find_runtime("containerd")
K3S = "/run/k3s/containerd/containerd.sock"


def node(kubelet: Fact[Kubelet | None], **files: str) -> Facts:
    known: dict[str, Fact[FileState | None]] = {
        path: Known(FileState(text.encode()), f"file:{path}") for path, text in files.items()
    }
    return replace(derive({}), kubelet=kubelet, files=known)


def using(kubelet: Kubelet, **files: str) -> Facts:
    return node(Known(kubelet, "units"), **files)


def test_node_without_a_kubelet_uses_the_packaged_containerd() -> None:
    assert resolve_runtime(CONTAINERD, node(Known(None, "units"))).runtime is CONTAINERD
    assert not resolve_runtime(CONTAINERD, node(Known(None, "units"))).notes


def test_kubeadm_kubelet_uses_the_packaged_containerd() -> None:
    told = resolve_runtime(CONTAINERD, using(Kubelet("kubelet", "kubelet.service", "/run/containerd/containerd.sock")))
    assert told.runtime is CONTAINERD
    assert not told.notes


def test_two_running_kubelets_are_noted() -> None:
    told = resolve_runtime(CONTAINERD, node(Unknown("kubelet.service and k3s.service are both running here", "units")))
    assert told.runtime is CONTAINERD
    assert "both running" in told.notes[0]


def test_unreadable_configuration_of_k3s_is_refused_with_its_line() -> None:
    """The packaged containerd, even if there is one, is not that of k3s."""
    problem = "/etc/rancher/k3s/config.yaml:3: anchors and aliases are not read"
    with pytest.raises(Refused) as caught:
        resolve_runtime(CONTAINERD, node(MisreadKubelet(f"not understood: {problem}", "kubelet", "k3s", problem)))
    assert caught.value.why == problem


def test_old_capture_without_kubelet_facts_has_no_note() -> None:
    assert not resolve_runtime(CONTAINERD, node(Unknown("not captured", "units"))).notes


@pytest.mark.parametrize(
    ("kubelet", "config", "unit"),
    [
        (
            Kubelet("k3s", "k3s-agent.service", K3S, data="/var/lib/rancher/k3s"),
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "k3s-agent.service",
        ),
        (
            Kubelet("k3s", "", K3S, data="/data/k3s"),
            "/data/k3s/agent/etc/containerd/config.toml",
            "k3s.service",
        ),
        (
            Kubelet(
                "rke2", "rke2-server.service", "/run/rke2/containerd/containerd.sock", data="/var/lib/rancher/rke2"
            ),
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
            "rke2-server.service",
        ),
        (
            Kubelet(
                "microk8s", "snap.microk8s.daemon-kubelite.service", "/var/snap/microk8s/common/run/containerd.sock"
            ),
            "/var/snap/microk8s/current/args/containerd-template.toml",
            "snap.microk8s.daemon-containerd.service",
        ),
        (
            Kubelet("k0s", "k0scontroller.service", "/run/k0s/containerd.sock"),
            "/etc/k0s/containerd.toml",
            "k0scontroller.service",
        ),
    ],
)
def test_kubernetes_product_uses_its_own_containerd(kubelet: Kubelet, config: str, unit: str) -> None:
    row = resolve_runtime(CONTAINERD, using(kubelet)).runtime
    assert (row.product, row.config, row.unit, row.socket) == (kubelet.kind, config, unit, kubelet.socket)
    assert not row.packages, "no package of the distribution provides it"
    assert not row.config_packages


def test_k0s_file_without_its_marker_is_not_generated() -> None:
    kubelet = Kubelet("k0s", "k0sworker.service", "/run/k0s/containerd.sock")
    config = "/etc/k0s/containerd.toml"
    made = resolve_runtime(CONTAINERD, using(kubelet, **{config: "\n# k0s_managed=true\nversion = 2\n"})).runtime
    own = resolve_runtime(CONTAINERD, using(kubelet, **{config: "# mine\n# k0s_managed=true\nversion = 2\n"})).runtime
    assert (made.watches_files, made.generated_files) == (True, frozenset({config}))
    assert (own.watches_files, own.generated_files) == (False, frozenset())


def test_generated_file_of_another_shape_is_refused_when_unconfigured() -> None:
    config = "/etc/k0s/containerd.toml"
    data = "# k0s_managed=true\nversion = 2\n[plugins.'io.containerd.grpc.v1.cri']\ncontainerd = 5\n"
    kubelet = Kubelet("k0s", "k0sworker.service", "/run/k0s/containerd.sock")
    row = resolve_runtime(CONTAINERD, using(kubelet, **{config: data})).runtime
    with pytest.raises(Refused, match="containerd is not a table"):
        unconfigure(row, {config: data.encode()}, DesiredConfig(), ())


@pytest.mark.parametrize("handler", ["nvidia", "nvidia-cdi", "1.0", "on", "a: b #c", 'say "hi"'])
def test_k3s_reads_the_name_of_the_default_runtime_as_written(handler: str) -> None:
    row = resolve_runtime(CONTAINERD, using(Kubelet("k3s", "k3s.service", K3S, data="/k3s"))).runtime
    entry = f"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{json.dumps(handler)}]"
    options = 'options = {BinaryName = "/opt/run"}\nruntime_type = "io.containerd.runc.v2"\n'
    files = {row.config: f"version = 3\n{entry}\n{options}".encode()}
    (edit,) = row.configure(files, DesiredConfig(handler=handler, binary="/opt/run", default=True)).edits
    assert yaml.safe_load((edit.after or b"").decode()) == {"default-runtime": handler}


@pytest.mark.parametrize("socket", ["/run/crio/crio.sock", "/run/cri-dockerd.sock", "/run/dockershim.sock"])
def test_kubelet_with_another_runtime_is_noted(socket: str) -> None:
    told = resolve_runtime(CONTAINERD, using(Kubelet("kubelet", "kubelet.service", socket)))
    assert told.runtime is CONTAINERD
    assert socket in told.notes[0]


def test_k3s_on_the_packaged_containerd_uses_that() -> None:
    told = resolve_runtime(CONTAINERD, using(Kubelet("k3s", "k3s.service", "/run/containerd/containerd.sock")))
    assert told.runtime is CONTAINERD


@pytest.mark.parametrize(
    ("socket", "word"), [("/run/docker/containerd/containerd.sock", "dockerd"), ("/run/mine.sock", "/run/mine.sock")]
)
def test_unusable_cri_socket_is_refused(socket: str, word: str) -> None:
    with pytest.raises(Refused, match=word):
        resolve_runtime(CONTAINERD, using(Kubelet("kubelet", "kubelet.service", socket)))


def test_unit_maps_to_the_socket_of_its_containerd() -> None:
    assert containerd_socket_of("rke2-agent.service") == K3S
    assert containerd_socket_of("containerd.service") == ""
    assert len({row.id for row in INSTALLATIONS}) == len(INSTALLATIONS)
