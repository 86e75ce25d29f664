from __future__ import annotations

import json
from typing import Any

import pytest

from gpunode.change import FileChange, FileState, diff
from gpunode.facts import apt_sources
from gpunode.facts.evidence import Capture, Found, decode_found, encode_found
from gpunode.host.redact import redact, text, without_secrets

CONTAINERD = '''version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."reg.example:5000".auth]
  username = "robot" # who
  password = "hunter2\\"x"
  auth = 'aHVudGVyMg=='
  identitytoken = """
hunter2
"""
[plugins."io.containerd.grpc.v1.cri".registry.headers]
  User-Agent = ["hunter2"]
  "X-Meta" = [
    "hunter2]",  # don't
    'hunter2',
  ]
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
# [proxy] http://user:hunter2@proxy.example:3128
[proxy_plugins.x]
  address = "https://user:hunt@er2@proxy.example/a?token=hunter2&b=1"
  headers = { "X-Other" = ["hunter2"], Accept = "hunter2" }
  use_token = true
'''
DOCKER = {
    "proxies": {"http-proxy": "http://user:hunter2@proxy:3128", "no-proxy": "localhost"},
    "log-opts": {"splunk-token": "hunter2", "tag": "{{.Name}}", "splunk-url": "https://splunk"},
    "registry-mirrors": ["https://hunter2@mirror/"],
    "authorization-plugins": ["img-authz"],
    "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
    "HttpHeaders": {"X-Meta": "hunter2"},
    "auth": "",
}


def leaks(value: str) -> bool:
    return "hunt" in value or "aHVudGVyMg" in value


def parsed(value: str) -> dict[str, Any]:
    import tomlkit

    return tomlkit.parse(value).unwrap()


def shape(value: object) -> object:
    """``value`` with every string reduced to its type."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return [shape(one) for one in value] if isinstance(value, list) else type(value)


def test_a_runtime_configuration_keeps_its_structure() -> None:
    after = text(CONTAINERD)
    assert not leaks(after)
    assert shape(parsed(after)) == shape(parsed(CONTAINERD))
    assert parsed(after)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["default_runtime_name"] == "runc"
    assert "# who" in after


def test_a_docker_configuration_keeps_what_is_no_secret() -> None:
    after = text(json.dumps(DOCKER, indent=2))
    assert not leaks(after)
    found = json.loads(after)
    assert shape(found) == shape(DOCKER)
    for key in ("authorization-plugins", "runtimes", "auth"):
        assert found[key] == DOCKER[key]
    assert found["proxies"]["no-proxy"] == "localhost"
    assert found["log-opts"]["tag"] == "{{.Name}}"


def test_compact_json_is_redacted_too() -> None:
    after = text(json.dumps(DOCKER, separators=(",", ":")))
    assert not leaks(after)
    assert shape(json.loads(after)) == shape(DOCKER)


def test_sources_keep_their_archives_and_keys() -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==\n"
    block = f"Types: deb\nURIs: https://me:hunter2@r/x\nSuites: /\n{key}"
    after = text(block)
    assert not leaks(after)
    assert after.partition("Suites")[2] == block.partition("Suites")[2]
    assert [one.suite for one in apt_sources.parse("/x.sources", after)] == ["/"]


def test_a_private_key_is_no_evidence() -> None:
    after = text("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n")
    assert not leaks(after)
    assert after.endswith("-----END RSA PRIVATE KEY-----\n")


@pytest.mark.parametrize("secret", ["q", "q" * 8, "q" * 9, "q" * 40, "q" * 200, "q" * 5000, "ä\\\\"])
def test_redacting_twice_is_redacting_once(secret: str) -> None:
    once = text(f'password = "{secret}"\nuri = "https://{secret}:{secret}@h/"\n')
    assert secret not in once.replace("redacted", "")
    assert text(once) == once


def test_every_file_of_a_folder_is_redacted_and_no_other_field() -> None:
    rows = encode_found(iter([Found("/etc/x/token=abc", data=b"token=abc\n"), Found("/etc/x/y", data=b"\xff\xfe")]))
    after = redact({"d": Capture("/etc/x/*", "ok", rows)})["d"]
    assert [(one.path, one.data) for one in decode_found(after.data)] == [
        ("/etc/x/token=abc", b"token=redacted\n"),
        ("/etc/x/y", b"\xff\xfe"),
    ]


def test_dpkg_keeps_its_words() -> None:
    evidence = {"dpkg-status": Capture("/var/lib/dpkg/status", "ok", b"Description: password: a manager\n")}
    assert redact(evidence) == evidence


def test_the_words_that_started_a_process_lose_their_secrets_and_stay_words() -> None:
    words = ["kubelet", "--x-token=hunter2", "--http-proxy=http://me:hunter2@proxy:3128", "--config=/var/lib/kubelet/c"]
    after = redact({"kubelet-command": Capture("/proc/4711/cmdline", "ok", "\0".join((*words, "")).encode())})
    kept = after["kubelet-command"].data.decode()
    assert not leaks(kept)
    assert len(kept.split("\0")) == 5
    assert kept.endswith("\0--config=/var/lib/kubelet/c\0")


def test_configuration_below_var_lib_is_no_table_of_the_system() -> None:
    path = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    after = redact({f"file:{path}": Capture(path, "ok", b'[x."r".auth]\n  password = "hunter2"\n')})[f"file:{path}"]
    assert b"hunter2" not in after.data


def test_a_diff_shows_no_line_of_a_secret_that_spans_lines() -> None:
    """A line by itself does not tell that it belongs to a key, a token or a header."""
    before = '[x.headers]\nX-Team = [\n  "hunter2a",\n]\n[y.auth]\nidentitytoken = """\nhunter2b\n"""\n'
    change = FileChange("/etc/x", FileState(before.encode()), FileState((before + "[z]\na = 1\n").encode()))
    shown = "\n".join(diff(without_secrets(change)))
    assert not leaks(shown)
    assert "+[z]" in shown


# Each with `hunter2` where a person or a program would have put a secret.
LEAKY = {
    "docker's login": '{"auths": {"ghcr.io": {"auth": "aHVudGVyMg=="}, "r": {"identitytoken": "hunter2"}}}',
    "JSON in a line of a log": r'level=info msg="pull {\"auth\":\"hunter2\",\"password\":\"hunter2\"}"',
    "JSON in JSON in a line of a log": r'msg="{\\\"password\\\":\\\"hunter2\\\"}"',
    "a web token": "token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodW50ZXIyIn0.hunter2sig rejected",
    "a kubeconfig": "users:\n- user:\n    client-key-data: aHVudGVyMg==\n    token: hunter2\n",
    "an environment file": "HF_TOKEN=hf_hunter2hunter2hunter2\nMYSQL_PWD=hunter2\nHTTPS_PROXY=http://a:hunter2@x:1\n",
    "a unit's environment": 'Environment="REG_PASSWORD=hunter2" "X=1"\n',
    "docker login": "docker login -u bob -p hunter2 registry.example",
    "curl": "curl -s -u bob:hunter2 https://x",
    "options as a list of words": '["server","--token","hunter2"]',
    "an option behind an option": 'FLAG: --token-auth-file=/x FLAG: --token="hunter2"',
    "kubeadm": "kubeadm join 10.0.0.1:6443 --token hunter2.hunter2hunter2ab",
    "a key of NGC": "docker: denied for nvapi-hunter2hunter2hunter2hunter2",
    "a request that is signed": "https://s3/x?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2",
    "a pod's environment": "    - name: HF_TOKEN\n      value: hunter2\n",
    "a header in a log": 'request.header.authorization="Bearer hunter2hunter2"',
    "grub": "password_pbkdf2 root grub.pbkdf2.sha512.10000.68756e7465723268756e74",
}


@pytest.mark.parametrize("place", LEAKY)
def test_no_place_gives_a_secret_away(place: str) -> None:
    after = text(LEAKY[place])
    assert not leaks(after)
    assert "68756e74" not in after
    assert text(after) == after


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.",
        "kubelet: nvidia.com/gpu allocatable 0, login.defs read, PWD=/root",
        'Failed to initialize NVML: could not load NVML library "libnvidia-ml.so.1"',
        "--discovery-token-ca-cert-hash sha256:12",
        "docker run -p 8080:80 -u 1000:1000 nvidia/cuda nvidia-smi",
    ],
)
def test_evidence_stays_evidence(line: str) -> None:
    assert text(line) == line
