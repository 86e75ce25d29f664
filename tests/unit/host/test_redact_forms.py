"""The forms in which text reaches a capture: other ends of lines, text within text, text made to be slow."""

from __future__ import annotations

import json

import pytest

from gpunode.host.redact import text


@pytest.mark.parametrize(
    "written",
    [
        "password: >-\n  hunter two\nimage: cuda\n",
        "- name: DB_PASSWORD\n  value: hunter2\n- name: X\n",
        "kind: Secret\ndata:\n  foo: hunter\n  bar: hunter\n",
        "key: |\n-----BEGIN RSA PRIVATE KEY-----\nhunter\n-----END RSA PRIVATE KEY-----\nimage: cuda\n",
    ],
)
def test_lines_that_end_as_on_windows_hide_no_secret_and_end_so_afterwards(written: str) -> None:
    kept = text(written.replace("\n", "\r\n"))
    assert "hunt" not in kept
    assert kept == text(written).replace("\n", "\r\n")
    assert text(kept) == kept


def test_each_line_keeps_its_own_end() -> None:
    assert text("password: hunter2\r\nimage: cuda\nx: y\r\n") == "password: redacted\r\nimage: cuda\nx: y\r\n"
    plain = "token:   # rotated\r\nx\n\r\r\n"
    assert text(plain) == plain


def manifest(*, separators: tuple[str, str] = (",", ":")) -> str:
    env = [{"name": "DB_PASSWORD", "value": "abc&hunter2"}, {"name": "MODE", "value": "a&b"}]
    container = {"image": "cuda:12", "args": ["--db-password", "hunter2", "--verbose"], "env": env}
    written = json.dumps({"kind": "Pod", "spec": {"containers": [container]}}, separators=separators)
    return written.replace("&", "\\u0026")


def test_json_within_a_string_of_json_loses_its_secrets_and_nothing_else() -> None:
    key = "kubectl.kubernetes.io/last-applied-configuration"
    written = json.dumps({"items": [{"metadata": {"annotations": {key: manifest() + "\n"}}}]})
    kept = text(written)
    assert "hunt" not in kept
    within = json.loads(json.loads(kept)["items"][0]["metadata"]["annotations"][key])["spec"]["containers"][0]
    assert within["args"] == ["--db-password", "redacted", "--verbose"]
    assert within["env"][0]["name"] == "DB_PASSWORD"
    assert within["env"][1]["value"] == "a&b"
    assert text(kept) == kept


@pytest.mark.parametrize("said", ["{}", "pulled with {} by bob"])
def test_json_in_a_line_of_a_log_loses_its_secrets(said: str) -> None:
    line = f"level=info msg={json.dumps(said.format(manifest()))} image=cuda"
    kept = text(line)
    assert "hunt" not in kept
    assert kept.startswith("level=info msg=")
    assert kept.endswith(" image=cuda")
    assert text(kept) == kept


def test_a_string_that_holds_json_without_a_secret_stays_as_it_is() -> None:
    line = r'no token msg="{\"args\":[\"a\u0026b\", \"\/x\"],\"é\":1}"'
    assert text(line) == line


@pytest.mark.parametrize(
    "written",
    [
        "k3s server --etcd-s3-secret-key {} --debug",
        "k3s server '--etcd-s3-secret-key' '{}'",
        "ExecStart=/usr/local/bin/k3s \\\n\t'--etcd-s3-secret-key' \\\n\t'{}' \\\n",
        "args:\n- --etcd-s3-secret-key\n- {}\n- --debug\n",
    ],
)
def test_k3s_key_of_its_snapshots_is_no_files_name(written: str) -> None:
    kept = text(written.format("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"))
    assert "MDENG" not in kept
    assert "--debug" in kept or "--debug" not in written


def test_kubeadm_certificate_key() -> None:
    assert text("kubeadm join h:6443 --certificate-key f8902e11 --v 5") == (
        "kubeadm join h:6443 --certificate-key redacted --v 5"
    )
    for line in ("x --certificate-key /etc/ssl/node.key", "x --secret-key /etc/ssl/node.key --v"):
        assert text(line) == line


@pytest.mark.parametrize(
    "written",
    [
        "[upload-certs] Using certificate key:\n{key}\n[mark-control-plane] x\n",
        "$ kubeadm certs certificate-key\n{key}\n",
        "certificateKey: {key}\n",
        "bootstrapTokens:\n- token: {token}\n",
        "TOKEN                     TTL   EXPIRES\n{token}   23h   2026-11-23T09:10:36Z   authentication,signing\n",
        "$ kubeadm token create\n{token}\n",
        "[bootstrap-token] Using token: {token}\n",
    ],
)
def test_kubeadms_own_words(written: str) -> None:
    key, token = "9555b74008f24687eb964bd90a164ecb5760a89481d9c55a77c129b7db438168", "abcdef.0123456789abcdef"
    kept = text(written.format(key=key, token=token))
    assert key[:8] not in kept
    assert "0123" not in kept
    assert text(kept) == kept
    assert kept.count("\n") == written.count("\n")


@pytest.mark.parametrize(
    "line",
    [
        "kernel.unprivilegedusers system.slicesandscopes",
        "libfoo.0123456789abcdef.so /x/abcdef.0123456789abcdef abcdef.0123456789abcdef.log",
        "the certificate key: /etc/ssl/node.key",
        "certificate key\nsha256:9555b74008f24687eb964bd90a164ecb5760a89481d9c55a77c129b7db438168",
    ],
)
def test_what_looks_like_kubeadms_words_stays(line: str) -> None:
    assert text(line) == line


@pytest.mark.long
@pytest.mark.parametrize(
    "unit", ["eyJ-", "eyJaaaaaaaa.", "\\", '\\"', '\\"{', '"[', '"{\\"', "\r", " ", '"name":"token",']
)
def test_a_text_that_was_made_to_cost_the_square_of_its_length_is_answered(unit: str) -> None:
    for written in ("token=x " + unit * (100_000 // len(unit)), unit * (100_000 // len(unit)) + "\npassword=x"):
        assert len(text(written)) > 0


@pytest.mark.parametrize(
    "said",
    [
        "failed to fetch oauth token: unexpected status from GET request to https://nvcr.io/x?scope=y%3Apull: 401 Bad",
        "failed to fetch anonymous token: unexpected status from GET request to https://nvcr.io/x: 403 Forbidden",
        'failed to fetch anonymous token: Get "https://nvcr.io/x": dial tcp: lookup nvcr.io: no such host',
        r'msg="failed to fetch oauth token: Post \"https://nvcr.io/x\": EOF"',
        'Post "https://h/service/token": EOF',
        "Get https://h/token: dial tcp: no such host",
        'Error: Head "https://gitlab.h/jwt/auth": x509: certificate signed by unknown authority',
        "Requesting bearer token: invalid status code from registry 403 (Forbidden)",
        "unable to retrieve auth token: invalid username/password: unauthorized: incorrect username or password",
        "error getting IMDSv2 token: context deadline exceeded (Client.Timeout)",
        'couldn\'t get service account token: serviceaccounts "default" not found',
        "unable to read token: open /etc/nvidia/ClientConfigToken: no such file or directory",
        r'msg="failed to validate token: failed to get CA certs: Get \"https://127.0.0.1:6444/cacerts\": EOF"',
    ],
)
def test_why_no_token_was_given_is_no_secret(said: str) -> None:
    assert text(said) == said


@pytest.mark.parametrize(
    "said",
    [
        '{{"https://h/token": "{}"}}',
        '{{"https://h/token":{}}}',
        "https://h/token: {}",
        "/x/token: {}",
        "refresh token: {}",
        "failed to get the driver with token: {}",
        "could not fetch pods for token: {}",
        "invalid token: {}",
        "failed to parse token: {}",
    ],
)
def test_but_a_token_that_a_message_shows_is(said: str) -> None:
    assert text(said.format("q7Wk2nVx9Lr4Tz8P")) == said.format("redactedredactedredactedredacted")


def test_but_what_stands_in_its_address_is() -> None:
    kept = text('failed to fetch anonymous token: Get "https://bob:hunter2@nvcr.io/x?token=hunter2": EOF')
    assert "hunt" not in kept
    assert "nvcr.io/x" in kept


@pytest.mark.parametrize(
    "written",
    [
        "- name: DB_PASS\n  value: it's-hunter2\n",
        '- name: DB_PASS\n  value: a"hunter2\n',
        "- name: DB_PASS\n  value: 'it''s hunter2'\n",
        '- name: DB_PASS\n  value: "a\\"hunter2"\n',
        "kind: Secret\nstringData:\n  a: |-\n    x\n\n    hunter2\n",
        "kind: Secret\ndata:\n\n  a: hunter2\n",
        "kind: Secret\ndata:\n# rotated\n  a: hunter2\n",
        "kind: Secret\nstringData: {foo: hunter2, bar: 'hunter2'}\n",
        "- --password # rotated\n- hunter2\n",
        'x: {"key":"NGC_API_KEY","value":"hunter2"}',
        "command: [app, --db-password, hunter2]",
        "ctr images pull --user bob:hunter2 nvcr.io/x",
        "ctr -n k8s.io i pull -u bob:hunter2 x",
        "crictl pull --creds bob:hunter2 x",
        "crictl pull --auth hunter2== x",
        "skopeo copy --src-creds bob:hunter2 docker://x",
        "kubectl create secret generic x --from-literal=K=hunter2",
        "printf hunter2 | docker login --password-stdin",
        "printf '%s' hunter2 | docker login --password-stdin",
        "machine r password hunter2 login bob",
        "ldap_default_authtok = hunter2",
        "wep-key0=hunter2",
        "root=/dev/cifs cifsroot=//u:hunter2@h/s",
        "chap_password hunter2",
    ],
)
def test_no_quote_blank_line_or_order_gives_a_secret_away(written: str) -> None:
    kept = text(written)
    assert "hunt" not in kept
    assert text(kept) == kept


@pytest.mark.parametrize(
    "line",
    [
        "Upgrade: passwd:amd64 (1:4.13, 1:4.14), libsecret-1-0:amd64 (0.20, 0.21)",
        " passwd : Depends: libpam-modules but it is not going to be installed",
        " passwd: PreDepends: libc6 (>= 2.38) but 2.35 is to be installed",
        "tcontext=system_u:object_r:passwd_file_t:s0 tclass=file permissive=0",
        "tcontext=system_u:object_r:passwd_file_t:s0:c1,c2",
        "      HF_TOKEN:   <set to the key 'HF_TOKEN' in secret 'hf'>  Optional: false",
        "      DB_PASS:   <set to the key 'pass' of config map 'db'>  Optional: false",
        'failed to list *v1.Secret: secrets "x" is forbidden: User "system:node:gpu1" cannot list resource "secrets"',
        "--tls-private-key-file=/var/lib/kubelet/pki/kubelet.key --v=2",
        'tlsPrivateKeyFile: "/etc/kubernetes/pki/kubelet.key"',
        "secretName: nvidia-licensing",
        '"secretName":"nvidia-licensing","optional":true',
        'tokenizer: /models/llama/tokenizer.json, "tokenizer_mode":"auto"',
        "prompt_tokens=100 completion_tokens=5000 total_tokens=5100",
        '{"completion_tokens": 5000, "total_tokens":5100}',
    ],
)
def test_what_is_only_called_so_is_no_secret(line: str) -> None:
    assert text(line) == line
    assert text(f"{line}\npassword: hunter2\n") == f"{line}\npassword: redacted\n"


@pytest.mark.parametrize(
    "written",
    [
        "passwd: hunter2",
        "passwd_t:s0hunter2",
        "HF_TOKEN:  <hunter2>",
        "*v1.Secret=hunter2",
        "password_file=hunter2",
        "secretName: Hunter2hunter2",
        "api_tokens=hunter2",
        "api_tokens=12345 hunter2",
        'os.environ["HF_TOKEN"] = "hunter2"',
        "os.environ['HF_TOKEN']='hunter2'",
        'process.env["DB_PASSWORD"] = load("hunter2")',
    ],
)
def test_but_what_is_not_is_one(written: str) -> None:
    after = text(written)
    assert "hunter2" not in after.lower()
    assert text(after) == after


def test_why_a_token_was_not_fetched_is_told_however_short_it_is_cut() -> None:
    line = "failed to authorize: failed to fetch oauth token: unexpected status from GET request to https://h/x: 401"
    assert [text(line[:end]) for end in range(len(line))] == [line[:end] for end in range(len(line))]
