"""Answers of kubectl and their meaning for gpunode: messages as observed from 1.20 and 1.36."""

from __future__ import annotations

import pytest

from gpunode.errors import ChangeFailed, GpunodeError, Refused, Undetermined, UsageError
from gpunode.host.kubectl import (
    explain_failure,
    find_failed_api_groups,
    is_object_rejection,
    refuse_old_kubectl,
    split_errors,
    version_skew_warning,
)
from gpunode.host.process import FinishedCommand

URL = "https://127.0.0.1:6443/api?timeout=20s"
MISSING = """\
Unable to connect to the server: getting credentials: exec: executable aws-iam-authenticator not found

It looks like you are trying to use a client-go credential plugin that is not installed.

To learn more about this feature, consult the documentation available at:
      https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""
# Before its message kubectl prints client-go's log: the same error for each of five tries, some on several lines.
LOGGED = "".join(
    (
        'E1128 06:38:19.852205    2381 memcache.go:265] "Unhandled Error" err=<\n'
        f'\tcouldn\'t get current server API group list: Get "{URL}": getting credentials: exec: executable '
        "aws-iam-authenticator not found\n\t\n\tIt looks like you are trying to use a plugin.\n >\n"
    )
    * 5
)
WEBHOOK = (
    'Error from server (InternalError): error when creating "STDIN": Internal error occurred: failed calling webhook '
    '"pods.kyverno.svc": failed to call webhook: Post "https://kyverno.svc:443/validate?timeout=10s": tls: failed to '
    "verify certificate: x509: certificate signed by unknown authority"
)
X509 = "Unable to connect to the server: tls: failed to verify certificate: x509: certificate"
EXPIRED = "error: You must be logged in to the server (the server has asked for the client to provide credentials)"
FAILED = "Unable to connect to the server: getting credentials: exec: executable aws failed with exit code 253"
NO_FILE = 'error: error loading config file "/etc/rancher/k3s/k3s.yaml": open /etc/rancher/k3s/k3s.yaml: '
INCOMPLETE = "unable to retrieve the complete list of server APIs"
TOLD = [
    (MISSING, Refused, "logs in by aws-iam-authenticator, which cannot be run", "-authenticator not found", "aws eks"),
    (
        LOGGED + MISSING,
        Refused,
        "aws-iam-authenticator",
        "aws-iam-authenticator not found",
        "aws eks update-kubeconfig",
    ),
    (f"{MISSING}\nRun: corp-get login", Refused, "aws-iam-authenticator", "not found", "Run: corp-get login"),
    (
        "Unable to connect to the server: getting credentials: exec: fork/exec /opt/x/login: no such file or directory",
        Refused,
        "logs in by /opt/x/login, which cannot be run",
        "no such file",
        "install /opt/x/login",
    ),
    (
        f"\nUnable to locate credentials. You can configure credentials by running aws configure\n{FAILED}",
        Refused,
        "the login by aws failed",
        "Unable to locate credentials",
        "log in again",
    ),
    (f"{X509} signed by unknown authority", Undetermined, "the certificate", "unknown authority", "kubeconfig"),
    (f"{X509} is valid for 10.0.0.1, not 10.0.0.2", Undetermined, "the certificate", "10.0.0.2", "tls-server-name"),
    (f"{X509} has expired or is not yet valid: now", Undetermined, "the certificate", "expired", "clock"),
    (
        "The connection to the server 127.0.0.1:9 was refused - did you specify the right host or port?",
        Undetermined,
        "the cluster does not answer",
        "127.0.0.1:9 was refused",
        "kubectl cluster-info",
    ),
    (EXPIRED, Refused, "the cluster does not accept your credentials", "must be logged in", "kubectl auth whoami"),
    (
        f"{NO_FILE}permission denied",
        UsageError,
        "kubectl cannot read /etc/rancher/k3s/k3s.yaml",
        "permission denied",
        "with sudo, or name another kubeconfig: --kubeconfig FILE",
    ),
    (
        "error: unable to read certificate-authority /x/ca.pem for c due to open /x/ca.pem: no such file or directory",
        UsageError,
        "kubectl cannot read /x/ca.pem",
        "no such file",
        "correct the file, or name another kubeconfig: --kubeconfig FILE",
    ),
    ('error: context "far" does not exist', UsageError, "there is no context 'far'", "lacks it", "get-contexts"),
    (
        'Error from server (Forbidden): nodes is forbidden: User "x" cannot list\nError from server (Forbidden): pods',
        Refused,
        "your credentials may not do this",
        'nodes is forbidden: User "x" cannot list; and 1 more like this',
        "auth can-i --list",
    ),
    (
        'Error from server (Forbidden): pods "x" is forbidden: violates PodSecurity "baseline:latest": hostPath',
        ChangeFailed,
        "the cluster's admission control refuses this",
        "violates PodSecurity",
        "the policy or quota",
    ),
    (
        'Error from server (Forbidden): admission webhook "gatekeeper.sh" denied the request: [owner] no label',
        ChangeFailed,
        "the cluster's admission control refuses this",
        "[owner] no label",
        "the policy or quota",
    ),
    (
        f"error: {INCOMPLETE}: metrics.k8s.io/v1beta1: the server is currently unable to handle the request",
        ChangeFailed,
        "the cluster does not list all of its kinds of objects",
        "metrics.k8s.io/v1beta1",
        "kubectl get apiservices",
    ),
    (WEBHOOK, Refused, "the admission webhook pods.kyverno.svc of this cluster does not answer", "x509", "webhook"),
    ("Error: unknown flag: --chunk-size", ChangeFailed, "kubectl get failed", "unknown flag", "kubectl get nodes"),
]


def failed_command(said: str) -> FinishedCommand:
    return FinishedCommand(("/usr/bin/kubectl", "--kubeconfig", "x", "get", "nodes"), 1, b"", said.encode(), 1.0, False)


@pytest.mark.parametrize(("said", "kind", "what", "why", "hint"), TOLD)
def test_error_is_explained_by_the_relevant_line(
    said: str, kind: type[GpunodeError], what: str, why: str, hint: str
) -> None:
    error = explain_failure(failed_command(said))
    assert isinstance(error, kind)
    assert what in error.what
    assert why in error.why
    assert hint in error.hint
    assert "memcache.go" not in error.why
    assert "https://kubernetes.io/docs/reference/access" not in error.why


@pytest.mark.parametrize("said", [said for said, kind, *_ in TOLD if kind is Undetermined])
def test_connection_errors_are_not_about_objects(said: str) -> None:
    assert not is_object_rejection(failed_command(said))
    assert is_object_rejection(failed_command(WEBHOOK))


def test_object_errors_are_split_without_log_lines() -> None:
    both = 'The Pod "a" is invalid: x\nThe Pod "b" is invalid: y'
    assert split_errors(f"{LOGGED}Warning: old\n{both}") == both.splitlines()


@pytest.mark.parametrize(
    ("said", "groups"),
    [
        (
            f"{INCOMPLETE}: metrics.k8s.io/v1beta1: stale GroupVersion discovery: metrics.k8s.io/v1beta1",
            {"metrics.k8s.io"},
        ),
        (f"{INCOMPLETE}: a.io/v1: stale, nvidia.com/v1alpha1: the server is unable", {"a.io", "nvidia.com"}),
        ("error: the server doesn't have a resource type", set()),
    ],
)
def test_failed_api_groups_are_named(said: str, groups: set[str]) -> None:
    assert find_failed_api_groups(failed_command(said)) == groups


@pytest.mark.parametrize("version", ["v1.21.0", "v1.32.4-dispatcher", "v1.31.4+k3s1", "v1.33.5-gke.1080000", ""])
def test_supported_kubectl_version_is_accepted(version: str) -> None:
    refuse_old_kubectl(version, "/usr/bin/kubectl", "")


def test_outdated_kubectl_is_refused_with_the_needed_version() -> None:
    with pytest.raises(Refused, match=r"kubectl 1\.20\.2 is too old: gpunode needs 1\.21 or newer") as refused:
        refuse_old_kubectl("v1.20.2", "/usr/bin/kubectl", "install")
    assert "/usr/bin/kubectl has no --show-managed-fields" in refused.value.why


@pytest.mark.parametrize(
    ("client", "server", "warns"),
    [("1.32.4", "v1.36.2", True), ("1.36.2", "1.34.0", True), ("1.35.0", "1.36.2", False), ("", "1.36.2", False)],
)
def test_version_skew_above_one_minor_is_a_warning(client: str, server: str, warns: bool) -> None:
    assert bool(version_skew_warning(client, server)) is warns
