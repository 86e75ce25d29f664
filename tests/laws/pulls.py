"""Reasons why images are not pulled, as containerd, CRI-O, podman, docker and the kubelet word them, and where."""

from __future__ import annotations

from typing import Final

IMAGE: Final = "registry.corp.example/nvidia/driver:550.54.15-ubuntu22.04"
PULL: Final = f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": '
# Each message as its program prints it, without the quoting of the place where it appears.
WHY_NOT: Final = {
    # containerd
    "a certificate": PULL + "failed to authorize: failed to fetch oauth token: "
    'Post "https://registry.corp.example/service/token": x509: certificate signed by unknown authority',
    "no name": PULL + "failed to authorize: failed to fetch oauth token: "
    'Post "https://registry.corp.example/service/token": dial tcp: lookup registry.corp.example on 10.0.0.2:53: '
    "no such host",
    "a proxy": PULL + "failed to authorize: failed to fetch anonymous token: "
    'Get "https://auth.docker.io/token?scope=repository%3Anvidia%2Fdriver%3Apull&service=registry.docker.io": '
    "proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused",
    "too many": PULL + "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to "
    "https://auth.docker.io/token?scope=repository%3Anvidia%2Fdriver%3Apull: 429 Too Many Requests",
    "GitLab's address": PULL + "failed to authorize: failed to fetch oauth token: "
    'Post "https://gitlab.corp.example/jwt/auth": net/http: TLS handshake timeout',
    "refused": PULL + "failed to authorize: failed to fetch oauth token: unexpected status from POST request to "
    "https://registry.corp.example/service/token: 401 Unauthorized",
    "a challenge": PULL + "pull access denied, repository does not exist or may require authorization: server message: "
    "invalid_token: authorization failed",
    "an older containerd": PULL + "failed to authorize: failed to fetch oauth token: unexpected status: 403 Forbidden",
    # CRI-O and podman
    "wrong credentials": f"initializing source docker://{IMAGE}: unable to retrieve auth token: "
    "invalid username/password: unauthorized: authentication required",
    "wrong credentials of docker's hub": f"initializing source docker://{IMAGE}: unable to retrieve auth token: "
    "invalid username/password: unauthorized: incorrect username or password",
    "no permission": f"initializing source docker://{IMAGE}: Requesting bearer token: "
    "invalid status code from registry 403 (Forbidden)",
    "no name of the tokens' server": f"initializing source docker://{IMAGE}: Requesting bearer token: "
    'Get "https://nvcr.io/proxy_auth?scope=repository%3Anvidia%2Fdriver%3Apull": '
    "dial tcp: lookup nvcr.io: no such host",
    "an older CRI-O": f"Error reading manifest 550.54.15 in {IMAGE}: Requesting bear token: "
    "invalid status code from registry 401 (Unauthorized)",
    # docker
    "docker's daemon": 'Error response from daemon: Head "https://registry.corp.example/v2/nvidia/driver/manifests/x": '
    'Get "https://registry.corp.example/service/token": x509: certificate has expired or is not yet valid',
    "an older docker": "Error response from daemon: Get https://registry.corp.example/v2/: "
    "Get https://registry.corp.example/service/token: x509: certificate signed by unknown authority",
    "docker denied": "Error response from daemon: pull access denied for registry.corp.example/nvidia/driver, "
    "repository does not exist or may require 'docker login': denied: requested access to the resource is denied",
    "docker's credentials": 'Error response from daemon: Get "https://registry.corp.example/v2/": '
    "unauthorized: incorrect username or password",
    # the kubelet, for the pod's account
    "an account": 'failed to fetch token: serviceaccounts "nvidia-driver" not found',
    "an account's address": 'failed to fetch token: Post "https://10.0.0.1:6443/api/v1/namespaces/gpu-operator/'
    'serviceaccounts/nvidia-driver/token": dial tcp 10.0.0.1:6443: connect: connection refused',
}
_POD: Final = "nvidia-driver-daemonset-x7k2p"
_COLUMNS: Final = "NAME                            READY   STATUS             RESTARTS   AGE\n"
_ROWS: Final = (
    "kubectl get pods -n gpu-operator",
    f"{_COLUMNS}{_POD}   0/1     ImagePullBackOff   0          5m\n",
)


def in_events(why: str) -> tuple[tuple[str, str], ...]:
    """Return the pod's events."""
    event = (
        f'  Warning  Failed     5m    kubelet  Failed to pull image "{IMAGE}": rpc error: code = Unknown desc = {why}'
    )
    head = f"Name:             {_POD}\nNamespace:        gpu-operator\nStatus:           Pending\nEvents:\n"
    columns = "  Type     Reason     Age   From     Message\n  ----     ------     ----  ----     -------\n"
    return (_ROWS, (f"kubectl describe pod -n gpu-operator {_POD}", f"{head}{columns}{event}\n"))


def in_the_journal(why: str) -> tuple[tuple[str, str], ...]:
    """Return the kubelet's log, which quotes it."""
    desc = f"rpc error: code = Unknown desc = {why}".replace('"', '\\"')
    said = f'E1122 11:00:00.000000    812 kuberuntime_image.go:55] "Failed to pull image" err="{desc}" image="{IMAGE}"'
    return (_ROWS, ("journalctl -u kubelet", f"Nov 22 11:00:00 node kubelet[812]: {said}\n"))


def on_the_screen(why: str) -> tuple[tuple[str, str], ...]:
    """Return the screen of a person who pulled the image on the node."""
    return (_ROWS, (f"podman pull {IMAGE}", f"Trying to pull {IMAGE}...\nError: {why}\n"))


FRAMES: Final = {"events": in_events, "journal": in_the_journal, "screen": on_the_screen}
