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


def test_an_option_and_its_secret_may_be_two_words() -> None:
    words = [
        "kubelet",
        "--password",
        "hunter2",
        "-p",
        "hunter2",
        "--bootstrap-token",
        "hunter2",
        "-p",
        "8080",
        "--v",
        "2",
    ]
    after = redact({"kubelet-command": Capture("/proc/4711/cmdline", "ok", "\0".join(words).encode())})
    kept = after["kubelet-command"].data.decode().split("\0")
    assert not leaks("".join(kept))
    assert len(kept) == len(words)
    assert kept[-3:] == ["8080", "--v", "2"]


@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("/proc/self/environ", b"HOME=/root\0HF_TOKEN=Zq7xK2mW9pLs4vT1\0"),
        ("/proc/1/task/1/environ", b"HF_TOKEN=Zq7xK2mW9pLs4vT1\0"),
        ("/proc/self/cmdline", b"mysql\0-u\0root\0-pZq7xK2mW9pLs4vT1\0"),
        ("/proc/mounts", b"//nas/data /data cifs rw,username=bob,password=Zq7xK2mW9pLs4vT1 0 0\n"),
        ("/dev/shm/job.env", b"HF_TOKEN=Zq7xK2mW9pLs4vT1\n"),
        ("/sys/../etc/job.env", b"HF_TOKEN=Zq7xK2mW9pLs4vT1\n"),
        ("uname -a, env", b"Linux n1 6.8.0\nHF_TOKEN=Zq7xK2mW9pLs4vT1\n"),
    ],
)
def test_what_a_process_was_given_is_no_table_of_the_system(source: str, data: bytes) -> None:
    assert b"Zq7xK2mW9pLs4vT1" not in redact({source: Capture(source, "ok", data)})[source].data


def test_the_kernels_command_line_keeps_what_is_no_secret() -> None:
    line = (
        "BOOT_IMAGE=/vmlinuz ks=http://bob:hunter2@h/ks cifs_password=hunter2 vnc.password=hunter2 quiet "
        "inst.rootpw=hunter2 nouveau.modeset=0 iommu=pt\n"
    )
    for source in ("/proc/cmdline", "dmesg", "journalctl -k"):
        after = redact({"x": Capture(source, "ok", line.encode())})["x"].text
        assert not leaks(after)
        assert after.startswith("BOOT_IMAGE=/vmlinuz ks=http://")
        assert after.endswith(" nouveau.modeset=0 iommu=pt\n")


@pytest.mark.parametrize(
    "source",
    ["systemctl cat docker", "systemctl show docker", "/usr/lib/systemd/system/docker.service", "uname -a; env"],
)
def test_what_a_person_may_have_written_is_no_table(source: str) -> None:
    data = b'Environment="HTTP_PROXY=http://user:hunter2@proxy:1" FOO_PASSWORD=hunter2\n'
    after = redact({"docker-unit": Capture(source, "ok", data)})["docker-unit"]
    assert not leaks(after.text)
    assert after.text.startswith('Environment="HTTP_PROXY=http://')


def test_the_command_that_somebody_typed_keeps_its_words_and_loses_its_secrets() -> None:
    command = "HF_TOKEN=hunter2 docker run -e NGC_API_KEY=hunter2 -e PASSWORD=hunter2 cuda nvidia-smi"
    (key,) = after = redact({command: Capture(command, "ok", b"x\n")})
    assert not leaks(key + after[key].source)
    assert after[key].source.split()[1:3] == ["docker", "run"]
    assert after[key].source.endswith(" cuda nvidia-smi")
    assert redact(after) == after


def test_two_commands_that_differ_by_their_secret_stay_two_pieces() -> None:
    commands = ["curl -u a:hunter2 x", "curl -u a:hunter3 x"]
    after = redact({one: Capture(one, "ok", one.encode()) for one in commands})
    assert len(after) == 2
    assert not leaks("".join(after))
    assert redact(after) == after


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
    "a kubelet's headers": (
        "staticPodURLHeader:\n  Authorization:\n  - Basic aHVudGVyMg==\n  X-Any:\n    - hunter2\nauth: 1\n"
    ),
    "a header as a list": "Authorization:\n- Basic aHVudGVyMg==\n",
    "a header of a digest": 'Authorization: Digest username="bob", realm="x", response="hunter2"\n',
    "environment variables": "DB_PASS=hunter2\nPGPASS=hunter2\nPASS=hunter2\nOPENAI_KEY=hunter2\nGITHUB_PAT=hunter2\n",
    "keys of services": (
        "AZURE_STORAGE_KEY=hunter2\nLICENSE_KEY=hunter2\nENCRYPTION_KEY=hunter2\nAccountKey=hunter2;x\n"
    ),
    "credentials": "CREDENTIALS=hunter2\nProxyCredentials=hunter2\nSetCredential=db:hunter2\n",
    "cookies": "Cookie: sid=hunter2\nSet-Cookie: sid=hunter2; HttpOnly\n",
    "a proxy without a scheme": 'http_proxy=bob:hunter2@proxy:3128\nAcquire::http::Proxy "bob:hunter2@proxy:3128";\n',
    "a pod's environment in JSON": '{"name":"NGC_API_KEY","value":"hunter2"},{"name": "PASS", "value": "a\\"hunter2"}',
    "a pod's environment in a line of a log": r"{\"name\":\"DB_PASS\",\"value\":\"hunter2\"}",
    "a pod's environment in YAML": '  - name: DB_PASS\n    value: "my hunter2"\n',
    "a sentence": "the password is hunter2, said he",
    "mysql": "mysql -u root -phunter2 db",
    "sshpass": "sshpass -p hunter2 ssh h; sshpass -phunter2 ssh h",
    "ipmitool": "ipmitool -I lanplus -H bmc -U admin -P hunter2 power cycle",
    "curl behind a proxy": "curl -x bob:hunter2@proxy:3128 https://x",
    "an option of an option": (
        "dockerd --cluster-store-opt token=hunter2 --bootstrap-token hunter2 --db-password 'hunter2'"
    ),
    "kickstart": "rootpw --plaintext hunter2\ninst.rootpw=hunter2 quiet\n",
    "a hashed password": "root:$6$saltsalt$aHVudGVyMgaHVudGVyMgaHVudGVyMg/x:19000:0:99999:7:::",
    "a directory": "bindpw: hunter2\nbind_pw=hunter2\n",
    "dkms": "sign_pass=hunter2\n",
    "hooks": "https://hooks.slack.com/services/T0/B0/hunter2 https://packagecloud.io/priv/hunter2/x",
    "docker's logs to Sumo Logic": '{"log-opts": {"sumo-url": "https://c.example/receiver/v1/http/hunter2"}}',
    "shapes": (
        "sk-proj-hunter2hunter2 sk-hunter2hunter2hunter2 "
        "AIzahunter2hunter2hunter2hunter2hunter2 npm_hunter2hunter2hunter2hunter2hunter2"
    ),
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
        "sig_key:        6B:0A:1F:3C:99",
        'mok_signing_key="/var/lib/dkms/mok.key"',
        "Signing key: /var/lib/dkms/mok.key",
        'ssl_key = "/etc/pki/tls/private/node.pem"',
        "CONFIG_MODULE_SIG_KEY=y CONFIG_STATIC_KEY=y",
        "Result = PASS, test PASS: bandwidth",
        "the password is required; Basic authentication failed",
        "kube-proxy: proxy mode iptables, topology_key: kubernetes.io/hostname",
        "git@github.com:NVIDIA/libnvidia-container.git",
        "docker run -e NVIDIA_VISIBLE_DEVICES=all -e HF_TOKEN vllm/vllm-openai:latest; docker run -e HF_TOKEN ubuntu",
        "[sudo] password for bob: modprobe: ERROR: could not insert 'nvidia': No such device",
        "PWD=/root OLDPWD=/ key-mgmt=wpa-psk --bypass yes max_tokens=4096 --max-num-batched-tokens=8192",
        "https://nvcr.io:443/nvidia/cuda@sha256:0123 the token is invalid or expired 401, see community: https://x",
        "kubectl logs snmp-exporter -c exporter; the secret is not found, kind: SecretProviderClass",
        "basic render, mkdir -p /etc/x, gpg: no valid OpenPGP data found",
    ],
)
def test_evidence_stays_evidence(line: str) -> None:
    assert text(line) == line


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("source", ["/etc/environment", "journalctl -k", "/etc/x/*"])
def test_text_of_two_bytes_a_sign_is_redacted_and_stays_so(encoding: str, source: str) -> None:
    written = "X=y\nDB_PASSWORD=hunter2\nZ=1\n".encode(encoding)
    data = encode_found(iter([Found("/etc/x/y", data=written)])) if "*" in source else written
    kept = redact({"x": Capture(source, "ok", data)})["x"].data
    if "*" in source:
        (one,) = decode_found(kept)
        kept = one.data or b""
    assert kept.decode(encoding) == "X=y\nDB_PASSWORD=redacted\nZ=1\n"


def test_colours_hide_no_secret_and_stay_where_there_is_none() -> None:
    assert text("\x1b[31mDB_PASSWORD\x1b[0m=\x1b[32mhunter2\x1b[0m\n") == "DB_PASSWORD=redacted\n"
    assert text("\x1b[31mNVRM: Xid 79\x1b[0m\n") == "\x1b[31mNVRM: Xid 79\x1b[0m\n"
