"""Secrets that their place tells: in Kubernetes' documents, in cloud-init's, behind an option in the line before."""

from __future__ import annotations

import json

import pytest

from gpunode.host.redact import text

MANY = "".join(f"  k{number}: hunter{number}\n" for number in range(1000))
DIFF = """\
--- a/secret.yaml
+++ b/secret.yaml
@@ -1,6 +1,6 @@
 apiVersion: v1
 kind: Secret
 data:
-  foo: hunter
+  foo: hunter
 type: Opaque
"""


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (f"kind: Secret\ndata:\n{MANY}type: Opaque\n", "type: Opaque"),
        ("kind: SecretList\nitems:\n- data:\n    foo: hunter\n  metadata:\n    name: x\n", "name: x"),
        (
            "apiVersion: v1\nitems:\n- data:\n    foo: hunter\n  kind: Secret\n- data:\n    bar: hunter\n",
            "kind: Secret",
        ),
        ('{"kind":"SecretList","items":[{"data":{"foo":"hunter"},"type":"Opaque"}]}', '"type":"Opaque"'),
        ('{"data":{"a":"b{c","foo":"hunter"},"kind":"Secret","type":"Opaque"}', '"type":"Opaque"'),
        (
            '{\n  "kind": "Secret",\n  "data": {\n    "a": "hunter}",\n    "b": "hunter"\n  },\n  "type": "O"\n}',
            '"type": "O"',
        ),
        ('{"kind":"Secret","data":{"a":"hunter","b":"hun', '"b":'),
        ("kind: Secret\ndata: {\n  foo: hunter }\ntype: Opaque\n", "type: Opaque"),
        ("kind: Secret\nstringData: {foo: hunter two, bar: http://hunter}\ntype: Opaque\n", "type: Opaque"),
        (DIFF, " type: Opaque\n"),
        ("> kind: Secret\n> data:\n>   foo: hunter\n> type: Opaque\n", "> type: Opaque"),
        ("# kind: Secret\n# stringData:\n#   foo: hunter\n# type: Opaque\n", "# type: Opaque"),
        ('kind: Secret\nstringData:\n  a: |\n    "k": "hunter", foo hunter\n\n    -hunter: x\ntype: O\n', "type: O"),
        ("kind: Secret\ndata:\n  a:\n    hunter\n  b: 'hunter'\n  c: \"hunter\" # hunter\ntype: O\n", "type: O"),
    ],
)
def test_what_kubernetes_secrets_hold_is_hidden_and_nothing_beside_it(written: str, kept: str) -> None:
    after = text(written)
    assert "hun" not in after
    assert kept in after
    assert after.count("\n") == written.count("\n")
    assert text(after) == after


def test_json_stays_json_and_other_documents_stay() -> None:
    secret = {"kind": "Secret", "data": {"a": "b{c", "d": "hunter"}}
    assert json.loads(text(json.dumps(secret))) == {"kind": "Secret", "data": {"a": "redacted", "d": "redacted"}}
    other = "kind: ConfigMap\ndata:\n  mode: uuid\n"
    assert text(f"{other}---\nkind: Secret\ndata:\n  a: x\n---\n{other}") == (
        f"{other}---\nkind: Secret\ndata:\n  a: redacted\n---\n{other}"
    )
    cut = 'x {"kind":"Secret","data":{"a":"x"\nNVRM: Xid 79: a, b: "c"\n'
    assert text(cut) == cut.replace('"x"', '"redacted"')


@pytest.mark.parametrize(
    "said",
    ["kind: SecretStore\ndata:\n  a: b\n", "kind: SecretProviderClass\ndata:\n  a: b\n", "Secret data: {a: b}\n"],
)
def test_what_is_no_secret_of_kubernetes_stays(said: str) -> None:
    assert text(said) == said


DESCRIBED = """\
    Args:
      --model
      meta-llama/Llama-3-8B
      --tokenizer
      meta-llama/Llama-3-8B
      --api-key
      {}
      --max-num-batched-tokens
      8192
      --tls-private-key
      /etc/ssl/node.key
      --hf-token
      --port
      8000
    Limits:
      nvidia.com/gpu:  1
"""


@pytest.mark.parametrize("secret", ["q7Wk2nVx9Lr4Tz8P", "ab/cdq7Wk2nVx", "two words"])
def test_an_argument_stands_in_the_line_behind_its_option(secret: str) -> None:
    masked = "redacted" if len(secret) <= 8 else "redacted" * 4
    after = text(DESCRIBED.format(secret))
    assert after == DESCRIBED.format(masked)
    assert text(after) == after
    assert text(f"agent\n--token\n{secret}\n--v\n") == f"agent\n--token\n{masked}\n--v\n"


def test_an_options_explanation_is_no_argument() -> None:
    usage = "  --token\n        how to join the cluster\n  --api-key\n\n  --password\n  --user\n"
    assert text(usage) == usage


@pytest.mark.parametrize(
    "written",
    [
        "#cloud-config\nchpasswd:\n  expire: false\n  list: |\n    ubuntu:hunter2\n    root:hunter 2\nhostname: x\n",
        "#cloud-config\nchpasswd:\n  list:\n    - ubuntu:hunter2\n    - 'root:hunter'\nhostname: x\n",
        "  chpasswd:\n    list: |\n\n      ubuntu:hunter2\nhostname: x\n",
    ],
)
def test_cloud_inits_list_of_passwords(written: str) -> None:
    after = text(written)
    assert "hunter" not in after
    assert "hostname: x" in after
    assert "expire: false" in after or "expire" not in written
    assert text(after) == after


def test_a_password_that_cloud_init_draws_is_none() -> None:
    drawn = "chpasswd:\n  list: |\n    ubuntu:RANDOM\n    bob:R\n"
    assert text(drawn) == drawn


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("HF_TOKEN:\n  value: hunter2\n  optional: true\n", "HF_TOKEN:\n  value: redacted\n  optional: true\n"),
        ('ngcApiKey:\n\n  # of us\n  value: "hunter2"\n', 'ngcApiKey:\n\n  # of us\n  value: "redacted"\n'),
        ("tokens:\n- hunter2\n- 'hunter'\nx: y\n", "tokens:\n- redacted\n- 'redacted'\nx: y\n"),
        ("  - api_keys:\n      - hunter2 # c\n    x: y\n", "  - api_keys:\n      - redacted # c\n    x: y\n"),
        ("token:\n  - hunter2\nimage:\n- cuda\n", "token:\n  - redacted\nimage:\n- cuda\n"),
    ],
)
def test_a_value_stands_in_the_lines_behind_its_key(written: str, kept: str) -> None:
    assert text(written) == kept
    assert text(kept) == kept


@pytest.mark.parametrize(
    "said",
    [
        "secrets:\n- db\nimagePullSecrets:\n- name: ngc\n",
        "stop_tokens:\n- 128001\n- <eos>\n",
        "token:\nvalue: x\n",
        "HF_TOKEN:\n  valueFrom:\n    secretKeyRef: {name: hf}\n",
    ],
)
def test_what_is_none_of_its_key_stays(said: str) -> None:
    assert text(said) == said


@pytest.mark.long
@pytest.mark.parametrize(
    "unit",
    [
        "data:\n",
        '\t"data":{',
        "data:\n  a: ",
        "  a: b\n",
        "--token\n",
        "chpasswd:\n",
        "tokens:\n- a\n",
        "tokens:\n\n#\n",
        '{"a":',
        "---\n",
        "    ",
        "a: |\n ",
        "abcdef.",
    ],
)
def test_a_document_that_was_made_to_cost_the_square_of_its_length_is_answered(unit: str) -> None:
    for head in ("kind: Secret\ndata:\n", 'kind: Secret\n"data": {'):
        written = head + unit * (50_000 // len(unit)) + "\n  x: y"
        assert len(text(written)) > 0
