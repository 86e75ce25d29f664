from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from gpunode.facts.derive import derive, derive_kubelet_facts
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, encode_matches
from gpunode.facts.kubelet import read_top_level_texts
from gpunode.facts.model import Fact, Known, Kubelet, Unknown
from gpunode.facts.probes import FOLDERS, PROBES, kubelet_probes, standalone_kubelet_probe
from gpunode.redaction.evidence import redact

KUBEADM_DROPIN = """\
# Note: This dropin only works with kubeadm and kubelet v1.11+
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
# This is a file that "kubeadm init" and "kubeadm join" generate at runtime
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always

[Install]
WantedBy=multi-user.target
"""
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
kind: KubeletConfiguration
logging:
  options:
    text:
      infoBufferSize: "0"
"""
KUBEADM = {
    "/lib/systemd/system/kubelet.service": UNIT,
    "/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": KUBEADM_DROPIN,
    "/var/lib/kubelet/config.yaml": CONFIG,
    "/var/lib/kubelet/kubeadm-flags.env": 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint='
    'unix:///var/run/containerd/containerd.sock --pod-infra-container-image=registry.k8s.io/pause:3.10"\n',
}
ETC = "/etc/systemd/system/kubelet.service"
CONTAINERD = "/run/containerd/containerd.sock"
RANCHER = "/var/lib/rancher"


def evidence(files: Mapping[str, str], running: Iterable[str] = (), enabled: Iterable[str] = ()) -> Evidence:
    """Return a node with these files, on which these units run or would start at boot."""
    captured = {probe.key: Capture(probe.source, "absent") for probe in PROBES}
    for key, folder in FOLDERS.items():
        found = (
            GlobMatch(path, data=text.encode()) for path, text in files.items() if path.rpartition("/")[0] == folder
        )
        captured[key] = Capture(f"{folder}/*", "ok", encode_matches(found))
    captured |= {f"file:{path}": Capture(path, "ok", text.encode()) for path, text in files.items()}
    shown = [_unit_state(name, "active", "enabled") for name in running]
    shown += [_unit_state(name, "inactive", "enabled") for name in enabled]
    names = captured["units"].source.split("StateChangeTimestamp ", 1)[1].split()
    shown += [f"Id={name}\nLoadState=not-found\n" for name in names if name not in {*running, *enabled}]
    captured["units"] = Capture(captured["units"].source, "ok", "\n".join(shown).encode())
    return captured


def _unit_state(name: str, active: str, enabled: str) -> str:
    return f"Id={name}\nLoadState=loaded\nActiveState={active}\nUnitFileState={enabled}\nMainPID=0\n"


def read_kubelet(
    files: Mapping[str, str], running: Iterable[str] = (), enabled: Iterable[str] = ()
) -> Fact[Kubelet | None]:
    return derive(evidence(files, tuple(running), tuple(enabled))).kubelet


def test_node_without_a_kubelet() -> None:
    assert read_kubelet({}) == Known(None, "units")


def test_unprobed_node_has_an_unknown_kubelet() -> None:
    assert isinstance(derive({}).kubelet, Unknown)


def test_kubeadm_socket_is_read_from_flags() -> None:
    told = read_kubelet(KUBEADM, ["kubelet.service"])
    assert told == Known(
        Kubelet("kubelet", "kubelet.service", CONTAINERD, "systemd"), "file:/var/lib/kubelet/config.yaml"
    )


def test_kubeadm_1_32_socket_is_read_from_the_configuration() -> None:
    config = CONFIG.replace('containerRuntimeEndpoint: ""', "containerRuntimeEndpoint: unix:///run/crio/crio.sock")
    told = read_kubelet(
        {**KUBEADM, "/var/lib/kubelet/config.yaml": config, "/var/lib/kubelet/kubeadm-flags.env": ""},
        ["kubelet.service"],
    )
    assert isinstance(told, Known)
    assert told.value == Kubelet("kubelet", "kubelet.service", "/run/crio/crio.sock", "systemd")


def test_kubelet_without_options_has_defaults() -> None:
    told = read_kubelet({"/lib/systemd/system/kubelet.service": UNIT}, ["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value == Kubelet("kubelet", "kubelet.service", CONTAINERD, "cgroupfs")


def test_extra_args_override() -> None:
    own = "KUBELET_EXTRA_ARGS=--cgroup-driver cgroupfs --container-runtime-endpoint='unix:///var/run/crio/crio.sock'\n"
    told = read_kubelet({**KUBEADM, "/etc/default/kubelet": own}, ["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value == Kubelet("kubelet", "kubelet.service", "/run/crio/crio.sock", "cgroupfs")


def test_drop_in_in_etc_overrides_one_of_the_same_name() -> None:
    own = (
        "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint=unix:///run/other.sock\n"
    )
    told = read_kubelet({**KUBEADM, "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": own}, ["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.socket == "/run/other.sock"


@pytest.mark.parametrize("folder", ["/etc", "/run", "/usr/local/lib", "/lib"])
def test_drop_ins_are_read_from_every_systemd_folder(folder: str) -> None:
    own = """[Service]
Environment="KUBELET_EXTRA_ARGS=--container-runtime-endpoint=/run/crio/crio.sock 'of no interest"
[Install]
ExecStart=
"""
    told = read_kubelet({**KUBEADM, f"{folder}/systemd/system/kubelet.service.d/20-own.conf": own}, ["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.socket == "/run/crio/crio.sock"


def test_run_folder_of_an_image_is_not_read() -> None:
    stored = {probe.key for probe in kubelet_probes(image=True)}
    wants = {"unit-wants": "/etc/systemd/system/multi-user.target.wants/kubelet.service"}
    wants["unit-files-lib"] = "/lib/systemd/system/kubelet.service"
    seen = {key: capture for key, capture in evidence(KUBEADM).items() if key in stored}
    seen |= {key: Capture(path, "ok", encode_matches(iter([GlobMatch(path)]))) for key, path in wants.items()}
    told = derive_kubelet_facts(seen, image=True).kubelet
    assert isinstance(told, Known)
    assert told.value == Kubelet("kubelet", "kubelet.service", CONTAINERD, "systemd")


def test_unprobed_drop_in_folder_gives_an_unknown_kubelet() -> None:
    seen = dict(evidence(KUBEADM, ["kubelet.service"]))
    del seen["kubelet-unit-run"]
    assert derive(seen).kubelet == Unknown("not captured", "file:/run/systemd/system/kubelet.service.d")


def test_kubelet_with_dockershim_uses_docker() -> None:
    unit = UNIT.replace("/usr/bin/kubelet", "/usr/bin/kubelet --container-runtime=docker")
    told = read_kubelet({"/lib/systemd/system/kubelet.service": unit}, ["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.socket == "/run/dockershim.sock"


EKS = {
    "/etc/systemd/system/kubelet.service": "[Service]\nEnvironmentFile=/etc/eks/kubelet/environment\n"
    "ExecStart=/usr/bin/kubelet $NODEADM_KUBELET_ARGS\n",
    "/etc/eks/kubelet/environment": 'NODEADM_KUBELET_ARGS="--cloud-provider=external '
    '--config=/etc/kubernetes/kubelet/config.json --config-dir=/etc/kubernetes/kubelet/config.json.d"\n',
    "/etc/kubernetes/kubelet/config.json": '{"kind": "KubeletConfiguration", "cgroupDriver": "systemd",\n'
    ' "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock"}\n',
}


def test_eks_json_configuration_is_read() -> None:
    told = read_kubelet(EKS, ["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value == Kubelet("kubelet", "kubelet.service", CONTAINERD, "systemd")


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("/var/lib/kubelet/config.yaml", "{kind: KubeletConfiguration, cgroupDriver: systemd}\n", "config.yaml: "),
        ("/var/lib/kubelet/config.yaml", "a: 1\ncgroupDriver: &driver systemd\n", "config.yaml:2: anchors"),
        ("/var/lib/kubelet/config.yaml", "cgroupDriver: windows\n", "not a cgroup driver"),
        ("/var/lib/kubelet/config.yaml", "cgroupDriver: systemd\ncgroupDriver: cgroupfs\n", "twice"),
        (f"{ETC}.d/20.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet 'open\n", "how it is started"),
        (ETC, "", "how it is started"),
    ],
)
def test_ambiguous_kubelet_configuration_is_unknown(path: str, text: str, reason: str) -> None:
    told = read_kubelet({**KUBEADM, path: text}, ["kubelet.service"])
    assert isinstance(told, Unknown)
    assert reason in told.reason


def test_running_command_line_overrides_the_unit() -> None:
    seen = dict(evidence(KUBEADM, ["kubelet.service"], ()))
    words = (
        "/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0--container-runtime-endpoint\0/run/crio/crio.sock\0"
    )
    seen["kubelet-command"] = Capture("/proc/77/cmdline", "ok", words.encode())
    told = derive(seen).kubelet
    assert isinstance(told, Known)
    assert told.value == Kubelet("kubelet", "kubelet.service", "/run/crio/crio.sock", "systemd")
    seen["kubelet-command"] = Capture("/proc/77/cmdline", "absent")
    told = derive(seen).kubelet
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.socket == CONTAINERD


def test_unit_without_a_unit_file_is_unknown() -> None:
    told = read_kubelet({}, ["kubelet.service"])
    assert isinstance(told, Unknown)
    assert "unit file" in told.reason


@pytest.mark.parametrize(
    ("units", "path"),
    [
        ("Id=kubelet.service\nMainPID=77\n\nId=docker.service\nMainPID=78\n", "/proc/77/cmdline"),
        ("Id=docker.service\nMainPID=78\n\nId=kubelet.service\nMainPID=0\n", None),
        ("Id=docker.service\nMainPID=78\n", None),
        ("", None),
    ],
)
def test_kubelet_process_is_found_by_systemd(units: str, path: str | None) -> None:
    probe = standalone_kubelet_probe(Capture("systemctl show", "ok", units.encode()))
    assert (probe.path if probe else None) == path


def test_unprobed_kubelet_configuration_is_unknown() -> None:
    dropin = KUBEADM_DROPIN.replace("/var/lib/kubelet/config.yaml", "/opt/kubelet.yaml")
    told = read_kubelet(
        {**KUBEADM, "/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": dropin}, ["kubelet.service"]
    )
    assert told == Unknown("not captured", "file:/opt/kubelet.yaml")


def crictl(socket: str) -> str:
    return f"runtime-endpoint: unix://{socket}\n"


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("k3s", "k3s.service"),
        ("k3s", "k3s-agent.service"),
        ("rke2", "rke2-server.service"),
        ("rke2", "rke2-agent.service"),
    ],
)
def test_k3s_and_rke2_have_their_own_socket(kind: str, unit: str) -> None:
    files = {f"{RANCHER}/{kind}/agent/etc/crictl.yaml": crictl("/run/k3s/containerd/containerd.sock")}
    told = read_kubelet(files, [unit])
    assert isinstance(told, Known)
    assert told.value is not None
    assert (told.value.kind, told.value.unit) == (kind, unit)
    assert told.value.socket == "/run/k3s/containerd/containerd.sock"
    assert told.value.data == f"{RANCHER}/{kind}"
    assert told.value.cgroup_driver is None


def test_k3s_may_use_an_external_containerd() -> None:
    told = read_kubelet({f"{RANCHER}/k3s/agent/etc/crictl.yaml": crictl(CONTAINERD)}, ["k3s.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.socket == CONTAINERD


def test_k3s_may_use_another_data_folder() -> None:
    config = "token: redacted\ndata-dir: /data/k3s/  # the fast disk\nnode-label:\n  - gpu=nvidia\n"
    told = read_kubelet({"/etc/rancher/k3s/config.yaml": config}, ["k3s.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert (told.value.data, told.value.socket) == ("/data/k3s", "/run/k3s/containerd/containerd.sock")


MICROK8S = """\
--kubeconfig=${SNAP_DATA}/credentials/kubelet.config
--root-dir=${SNAP_COMMON}/var/lib/kubelet
--eviction-hard="memory.available<100Mi,nodefs.available<1Gi,imagefs.available<1Gi"
--container-runtime=remote
--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock
--authentication-token-webhook=true
"""


def test_microk8s_socket_variables_are_expanded() -> None:
    told = read_kubelet(
        {"/var/snap/microk8s/current/args/kubelet": MICROK8S}, ["snap.microk8s.daemon-kubelite.service"]
    )
    assert isinstance(told, Known)
    assert told.value == Kubelet(
        "microk8s",
        "snap.microk8s.daemon-kubelite.service",
        "/var/snap/microk8s/common/run/containerd.sock",
        "cgroupfs",
    )


def test_k0s_runs_its_own_containerd() -> None:
    told = read_kubelet({"/etc/k0s/containerd.toml": "# k0s_managed=true\nversion = 3\n"}, ["k0sworker.service"])
    assert isinstance(told, Known)
    assert told.value == Kubelet("k0s", "k0sworker.service", "/run/k0s/containerd.sock")


def test_k0s_without_containerd_is_unknown() -> None:
    told = read_kubelet({}, ["k0sworker.service"])
    assert isinstance(told, Unknown)
    assert "--cri-socket" in told.reason


def test_running_kubelet_is_preferred_to_an_enabled_one() -> None:
    files = {**KUBEADM, f"{RANCHER}/k3s/agent/etc/crictl.yaml": crictl("/run/k3s/containerd/containerd.sock")}
    told = read_kubelet(files, running=["k3s.service"], enabled=["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.kind == "k3s"


def test_image_uses_the_enabled_kubelet() -> None:
    told = read_kubelet(KUBEADM, enabled=["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.socket == CONTAINERD


def test_kubelet_is_found_by_files_without_a_unit() -> None:
    told = read_kubelet({f"{RANCHER}/rke2/agent/etc/crictl.yaml": crictl("/run/k3s/containerd/containerd.sock")})
    assert isinstance(told, Known)
    assert told.value is not None
    assert (told.value.kind, told.value.unit) == ("rke2", "")


def test_two_running_kubelets_are_unknown() -> None:
    told = read_kubelet(KUBEADM, ["kubelet.service", "k3s.service"])
    assert told == Unknown("kubelet.service and k3s.service are both running here", "units")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cgroupDriver: systemd\n", {"cgroupDriver": "systemd"}),
        ("---\n# made by kubeadm\n\"cgroupDriver\": 'systemd' # ours\n", {"cgroupDriver": "systemd"}),
        ('cgroupDriver: "systemd"\r\nkind: X\r\n', {"cgroupDriver": "systemd"}),
        ("cgroupDriver:\n", {"cgroupDriver": None}),
        ("cgroupDriver: null\n", {"cgroupDriver": None}),
        ("cgroupDriver: yes\n", {"cgroupDriver": "yes"}),
        ("cgroupDriver: 1_0\n", {"cgroupDriver": "1_0"}),
        ('cgroupDriver: "sys\\x74emd"\n', {"cgroupDriver": "systemd"}),
        ("x:\n  cgroupDriver: systemd\n", {}),
        ("x: |\n  cgroupDriver: systemd\n", {}),
        ("x:\n- cgroupDriver: systemd\n", {}),
        ("", {}),
    ],
)
def test_top_level_yaml_keys_are_read(text: str, value: Mapping[str, str | None]) -> None:
    assert read_top_level_texts(text, ("cgroupDriver",)) == value


@pytest.mark.parametrize(
    "text",
    [
        "- cgroupDriver: systemd\n",
        "cgroupDriver: {a: b}\n",
        "cgroupDriver: *driver\n",
        "cgroupDriver: !local systemd\n",
        "cgroupDriver: &driver systemd\n",
        "cgroupDriver: systemd\ncgroupDriver: cgroupfs\n",
        "cgroupDriver: systemd\n---\ncgroupDriver: cgroupfs\n",
        '{"cgroupDriver": 1}',
        '{"cgroupDriver": ',
        "cgroupDriver systemd\n",
    ],
)
def test_ambiguous_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_top_level_texts(text, ("cgroupDriver",))


K3S_UNIT = """\
[Service]
EnvironmentFile=-/etc/systemd/system/k3s.service.env
ExecStart=/usr/local/bin/k3s \\
    server \\
\t'--node-name' \\
\t'GPU-7' \\
"""


@pytest.mark.parametrize(
    ("files", "unit", "name"),
    [
        (KUBEADM, "kubelet.service", ""),
        (
            {**KUBEADM, "/var/lib/kubelet/kubeadm-flags.env": 'KUBELET_KUBEADM_ARGS="--hostname-override=gpu-7"\n'},
            "kubelet.service",
            "gpu-7",
        ),
        ({"/etc/rancher/k3s/config.yaml": "node-name: gpu-7\n"}, "k3s.service", "gpu-7"),
        ({"/etc/rancher/rke2/config.yaml": "node-name: gpu-7\n"}, "rke2-agent.service", "gpu-7"),
        (
            {"/etc/rancher/k3s/config.yaml": "node-name: gpu-8\n", "/etc/systemd/system/k3s.service": K3S_UNIT},
            "k3s.service",
            "GPU-7",
        ),
        (
            {"/var/snap/microk8s/current/args/kubelet": "--hostname-override=gpu-7\n"},
            "snap.microk8s.daemon-kubelite.service",
            "gpu-7",
        ),
    ],
)
def test_node_name_given_to_the_kubelet_is_read(files: dict[str, str], unit: str, name: str) -> None:
    told = read_kubelet(files, [unit])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.node_name == name


@pytest.mark.parametrize(
    ("files", "unit"),
    [
        ({**KUBEADM, "/var/lib/kubelet/config.yaml": f"{CONFIG}cpuManagerPolicy: static\n"}, "kubelet.service"),
        (
            {**KUBEADM, "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=--cpu-manager-policy=static\n"},
            "kubelet.service",
        ),
        (
            {"/var/snap/microk8s/current/args/kubelet": f"{MICROK8S}--cpu-manager-policy=static\n"},
            "snap.microk8s.daemon-kubelite.service",
        ),
    ],
)
def test_static_cpu_manager_is_read_from_flags_and_file(files: Mapping[str, str], unit: str) -> None:
    told = read_kubelet(files, [unit])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.static_cpus


K3S_UNIT = """\
[Service]
EnvironmentFile=-/etc/systemd/system/k3s-agent.service.env
ExecStart=/usr/local/bin/k3s \\
    agent \\
"""
K3S_DIR = "/etc/rancher/k3s/config.yaml"
K3S_ENV = "/etc/systemd/system/k3s-agent.service.env"


@pytest.mark.parametrize(
    ("files", "name", "static"),
    [
        ({K3S_ENV: "K3S_TOKEN='secret'\nK3S_NODE_NAME='gpu-7'\n"}, "gpu-7", False),
        ({K3S_ENV: "K3S_NODE_NAME=gpu-7\n", K3S_DIR: "node-name: gpu-8\n"}, "gpu-8", False),
        ({K3S_DIR: "node-name: a\n", f"{K3S_DIR}.d/10.yaml": "node-name: b\n"}, "b", False),
        (
            {
                f"{K3S_DIR}.d/20.yaml": "node-name: c\n",
                f"{K3S_DIR}.d/10.yaml": "node-name: b\n",
                f"{K3S_DIR}.d/30.txt": "node-name: d\n",
            },
            "c",
            False,
        ),
        ({K3S_DIR: "kubelet-arg:\n  - max-pods=99\n  - 'cpu-manager-policy=static' # pinned\n"}, "", True),
        ({K3S_DIR: 'kubelet-arg: ["cpu-manager-policy=static", max-pods=99]\n'}, "", True),
        ({K3S_DIR: "kubelet-arg:\n- cpu-manager-policy=static\nnode-name: e\n"}, "e", True),
        ({K3S_DIR: "kubelet-arg:\n# - cpu-manager-policy=static\n- max-pods=9\n"}, "", False),
        ({K3S_DIR: "kubelet-arg:\n- max-pods=9\nnote: cpu-manager-policy=static\n"}, "", False),
        (
            {
                K3S_DIR: "kubelet-arg:\n- cpu-manager-policy=static\n",
                f"{K3S_DIR}.d/1.yaml": "kubelet-arg: max-pods=9\n",
            },
            "",
            False,
        ),
        (
            {
                K3S_DIR: "kubelet-arg: cpu-manager-policy=static\n",
                f"{K3S_DIR}.d/1.yaml": "kubelet-arg+:\n- max-pods=9\n",
            },
            "",
            True,
        ),
        (
            {"/etc/systemd/system/k3s-agent.service": f"{K3S_UNIT}    --kubelet-arg=cpu-manager-policy=static\n"},
            "",
            True,
        ),
    ],
)
def test_k3s_config_folder_flags_and_environment_are_merged(files: Mapping[str, str], name: str, static: bool) -> None:
    """Source: docs.k3s.io, "Configuration Options": the last value counts, + adds; flags before the environment."""
    unit = {"/etc/systemd/system/k3s-agent.service": K3S_UNIT}
    seen = evidence({**unit, **files}, ["k3s-agent.service"])
    redacted = {key: one for key, one in redact(seen).items() if key.startswith("file:") or key in FOLDERS}
    for told in (derive(seen).kubelet, derive({**seen, **redacted}).kubelet):
        assert isinstance(told, Known)
        assert told.value is not None
        assert (told.value.node_name, told.value.static_cpus) == (name, static)
    assert b"secret" not in b"".join(one.data for one in redacted.values())


def test_k3s_config_file_is_read_without_the_folder() -> None:
    seen = dict(evidence({K3S_DIR: "node-name: a\n"}, ["k3s-agent.service"]))
    del seen["k3s-config-d"]
    told = derive(seen).kubelet
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.node_name == "a"


def test_unreadable_file_is_ignored_where_flags_override_it() -> None:
    own = "KUBELET_EXTRA_ARGS=--cgroup-driver=systemd --container-runtime-endpoint=/run/crio/crio.sock\n"
    told = read_kubelet(
        {**KUBEADM, "/etc/default/kubelet": own, "/var/lib/kubelet/config.yaml": "{a: b}\n"}, ["kubelet.service"]
    )
    assert isinstance(told, Known)
    assert told.value == Kubelet("kubelet", "kubelet.service", "/run/crio/crio.sock", "systemd")


def test_node_labels_are_read_from_flags() -> None:
    own = "KUBELET_EXTRA_ARGS=--node-labels=a=b,c=d\n"
    told = read_kubelet({**KUBEADM, "/etc/default/kubelet": own}, ["kubelet.service"])
    assert isinstance(told, Known)
    assert told.value is not None
    assert told.value.labels == "a=b,c=d"
