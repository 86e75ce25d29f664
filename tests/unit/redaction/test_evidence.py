"""Redaction of each class of evidence that leaves a node."""

from __future__ import annotations

import json

import pytest

from gpunode.change import FileChange, FileState, MigInstance, MigLayout
from gpunode.facts.evidence import Capture, ContentKind, GlobMatch, decode_matches, encode_matches
from gpunode.facts.examination import DOCTOR_PROBES
from gpunode.facts.probes import MIG_BOOT_DROP_IN_FILE, MIG_UNIT_FILE, MPS_UNIT_FILE, PROBES, _classify_file
from gpunode.redaction.evidence import count_masked, redact, redact_change, redact_content
from gpunode.steps import cuda_release, daemons, fabric, gpudirect, kernel, mig
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT

OWN_FILES = {
    kernel.NOUVEAU_BLACKLIST_FILE: kernel._BLACKLIST_TEXT,
    CUDA_PROFILE_SCRIPT: cuda_release._PATH_SCRIPT_TEMPLATE.format(folder="/usr/local/cuda-12.6").encode(),
    MIG_UNIT_FILE: mig.render_mig_unit({"GPU-1": MigLayout(True, (MigInstance("1g.10gb", 0, 1, ("1",)),))}),
    MIG_BOOT_DROP_IN_FILE: mig._WANTS_DROP_IN_CONTENT,
    MPS_UNIT_FILE: daemons.render_mps_unit(exclusive=True),
    fabric.FABRIC_MODULES_FILE: fabric._MODULES_TEXT.encode(),
    gpudirect.GPUDIRECT_MODULES_FILE: gpudirect._MODULES_FILE_HEADER.encode() + b"nvidia_fs\n",
}


CONTAINERD = '''version = 2
root = "/var/lib/containerd"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "nvidia" # ours
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
    SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".registry.configs."reg.example:5000".auth]
  username = "c4n4ry1"
  password = "c4n4ry2\\"x"
  identitytoken = """
c4n4ry3
"""
[plugins."io.containerd.grpc.v1.cri".registry.headers]
  X-Team = [
    "c4n4ry4", # c
  ]
[somebody.s.plugin]
  unheard_of = "c4n4ry5"
  more = { deep = ["c4n4ry6", 7], pin = 123456789012345 }
  # also = "c4n4ry7"
'''
DOCKER = {
    "default-runtime": "nvidia",
    "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
    "auths": {"reg.example": {"auth": "YzRuNHJ5", "c4n4rykey": "c4n4ry"}},
    "HttpHeaders": {"X-Meta": "c4n4ry", "X-Pin": "12345678"},
    "somebody's": [["c4n4ry"], {"x": "c4n4ry"}],
    "insecure-registries": ["10.0.0.1:5000"],
}
KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
authentication:
  webhook:
    cacheTTL: 2m0s
evictionHard:
  memory.available: 100Mi
staticPodURLHeader:
  X-Any:
  - c4n4ry
unheardOf: "c4n4ry
  c4n4ry"
block: |
  c4n4ry
  c4n4ry
list:
- c4n4ry
- c4n4ry: c4n4ry
"""
UNIT = """[Service]
Environment="NVIDIA_VISIBLE_DEVICES=all" "SOME_THING=c4n4ry"
Environment=LD_LIBRARY_PATH=/usr/local/cuda/lib64
EnvironmentFile=-/etc/default/x
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --token c4n4ry --v=2
"""


def redacted_text(text: str, content_kind: ContentKind = "config") -> str:
    kept = redact_content(text.encode(), content_kind).decode()
    assert redact_content(kept.encode(), content_kind).decode() == kept, "redacting twice is redacting once"
    assert kept.count("\n") == text.count("\n"), "citations name lines"
    return kept


@pytest.mark.parametrize("text", [CONTAINERD, json.dumps(DOCKER), json.dumps(DOCKER, indent=2), KUBELET, UNIT])
def test_configuration_contains_no_unknown_value(text: str) -> None:
    kept = redacted_text(text).replace("c4n4rykey", "")
    assert "c4n4ry" not in kept.replace("- c4n4ry: redacted", "")
    assert "YzRuNHJ5" not in kept


def test_known_settings_are_kept_and_parse() -> None:
    import tomlkit

    toml = tomlkit.parse(redacted_text(CONTAINERD)).unwrap()
    cri = toml["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert (toml["root"], cri["containerd"]["default_runtime_name"]) == ("/var/lib/containerd", "nvidia")
    for written in (json.dumps(DOCKER), json.dumps(DOCKER, indent=2)):
        found = json.loads(redacted_text(written))
        assert {key: found[key] for key in ("runtimes", "default-runtime", "insecure-registries")} == {
            key: DOCKER[key] for key in ("runtimes", "default-runtime", "insecure-registries")
        }
        assert found["HttpHeaders"] == {"X-Meta": "redacted", "X-Pin": "redacted"}
    assert "cgroupDriver: systemd\n" in redacted_text(KUBELET)
    assert "memory.available: 100Mi\n" in redacted_text(KUBELET)
    unit = redacted_text(UNIT)
    assert "LD_LIBRARY_PATH=/usr/local/cuda/lib64\n" in unit
    assert "--config=/var/lib/kubelet/config.yaml --token redacted --v=2\n" in unit


def test_configuration_written_by_gpunode_is_unchanged() -> None:
    """A node in the state of its recipe must look so in its capture, too."""
    table = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]'
    toml = f'version = 3\n\n{table}\n  runtime_type = "io.containerd.runc.v2"\n'
    assert redacted_text(toml) == toml
    docker = '{\n  "default-runtime": "nvidia",\n  "runtimes": {}\n}\n'
    assert redacted_text(docker) == docker


def test_shell_control_flow_is_kept() -> None:
    program = (
        "if [ -n c4n4ry ]; then\n  export LD_LIBRARY_PATH=/opt/x/lib\nfi\nc4n4ry c4n4ry\nreturn\nexport MINE=c4n4ry\n"
    )
    kept = redacted_text(program)
    assert "c4n4ry" not in kept
    assert [line.split()[0] for line in kept.splitlines()] == ["if", "export", "fi", "redacted", "return", "export"]
    assert "  export LD_LIBRARY_PATH=/opt/x/lib\nfi\n" in kept


@pytest.mark.parametrize("written", ["- q7W00000==\n", "x:\n  - q7W00000=\n", "Q7W00000=\n", "{a: q7W00000==}\n"])
def test_base64_padding_is_no_assignment(written: str) -> None:
    assert "7W00000" not in redacted_text(written)
    assert redacted_text("ExecStart=\nExecStart=/usr/bin/x\n") == "ExecStart=\nExecStart=/usr/bin/x\n"


@pytest.mark.parametrize("content_kind", ["log", "config"])
@pytest.mark.parametrize(
    "value",
    [
        {"a": {"password": ["hunter2xx", 'x"]hunter2']}, "b": 1},
        {"headers": {"Authorization": ["Basic hunter2aGVsbG8="]}},
        {"spec": {"imagePullSecrets": [{"name": "ngc-secret"}], "nodeName": "n1"}},
        {"secrets": [{"name": "sa-token-x1"}], "kind": "ServiceAccount"},
    ],
)
def test_redacted_json_stays_valid(value: object, content_kind: ContentKind) -> None:
    """Otherwise the parser would call a capture's daemon.json broken."""
    for indent in (None, 1):
        kept = redact_content(json.dumps(value, indent=indent).encode(), content_kind).decode()
        assert type(json.loads(kept)) is type(value)
        assert "hunter2" not in kept


def test_pull_secret_name_in_a_log_is_kept() -> None:
    line = b"imagePullSecrets: [{name: ngc-secret}]"
    assert redact_content(line, "log") == line


def test_table_is_unchanged() -> None:
    evidence = {
        "dpkg-status": Capture(
            "/var/lib/dpkg/status", "ok", b"Description: password: a manager\n", content_kind="table"
        )
    }
    assert redact(evidence) == evidence


def test_unclassified_evidence_is_masked() -> None:
    (kept,) = redact({"x": Capture("/etc/somebodys", "ok", b"c4n4ry\nx = c4n4ry\n")}).values()
    assert b"c4n4ry" not in kept.data


def test_binary_configuration_is_masked() -> None:
    (kept,) = redact({"x": Capture("/etc/somebodys", "ok", "X=c4n4ry".encode("utf-16"))}).values()
    assert "c4n4ry".encode("utf-16-le") not in kept.data


def test_only_file_contents_of_a_folder_are_redacted() -> None:
    rows = encode_matches(iter([GlobMatch("/etc/x/token=abc", data=b"token=abc9999\n")]))
    after = redact({"d": Capture("/etc/x/*", "ok", rows, content_kind="log")})["d"]
    assert [(one.path, one.data) for one in decode_matches(after.data)] == [("/etc/x/token=abc", b"token=redacted\n")]


@pytest.mark.parametrize(
    "line", ["kubelet\0--bootstrap-token\0c4n4ry\0--v\0{}2\0", "ro inst.sshpw=c4n4ry nouveau.modeset=0 {}\n"]
)
def test_command_line_words_are_kept(line: str) -> None:
    kept = redacted_text(line.format(""), "log")
    assert "c4n4ry" not in kept
    assert kept == line.format("").replace("c4n4ry", "redacted")


def test_kubernetes_secret_is_redacted_whatever_its_keys() -> None:
    for text in ("kind: Secret\ndata:\n  path: c4n4ry\n  b: c4n4ry\ntype: Opaque\n",
                 '{"kind": "Secret", "data": {"name": "c4n4ry"}, "type": "Opaque"}\n'):  # fmt: skip
        assert "c4n4ry" not in redacted_text(text, "log")


def test_commands_differing_by_a_secret_stay_two_pieces() -> None:
    commands = ["curl -u a:c4n4ry2 x", "curl -u a:c4n4ry3 x"]
    after = redact({one: Capture(one, "ok", one.encode(), content_kind="log") for one in commands})
    assert len(after) == 2
    assert "c4n4ry" not in "".join(after)
    assert redact(after) == after


def test_diff_shows_unknown_settings_but_no_secret() -> None:
    before = (
        '[x.headers]\nX-Team = [\n  "c4n4ry",\n]\n[y.auth]\nidentitytoken = """\nc4n4ry\n"""\nmine = "some words"\n'
    )
    change = FileChange("/etc/x", FileState(before.encode()), FileState((before + "[z]\na = 1\n").encode()))
    lines = "\n".join(redact_change(change).diff())
    assert "c4n4ry" not in lines
    assert "+[z]" in lines
    assert ' mine = "some words"' in lines


def test_every_probe_declares_its_content_class() -> None:
    """Text that people write is never a table: tables are not searched for secrets."""
    tables = [
        probe
        for probe in (*PROBES, *DOCTOR_PROBES)
        if probe.content_kind == "table" and (not probe.glob or probe.contents)
    ]
    written = [one.source for one in tables if one.source.startswith(("/etc/", "/root", "/home", "journalctl"))]
    # A keyring is binary: a table is kept unchanged, and only apt writes it.
    assert written == ["/etc/os-release", "/etc/nv_tegra_release", "/etc/apt/trusted.gpg"]


def test_masked_pieces_are_counted() -> None:
    evidence = {
        "a": Capture("/proc/modules", "ok", b"x\n", content_kind="table"),
        "b": Capture("/etc/b", "ok", b"x = c4n4ry\n"),
        "c": Capture("dmesg", "ok", b"x\n", content_kind="log"),
    }
    assert count_masked(evidence, redact(evidence)) == {"table": (1, 0), "config": (1, 1), "log": (1, 0)}


@pytest.mark.parametrize("path", OWN_FILES)
def test_files_that_gpunode_writes_are_captured_as_they_are(path: str) -> None:
    """Otherwise a plan for the capture would find drift."""
    assert redact_content(OWN_FILES[path], _classify_file(path)) == OWN_FILES[path]
