"""Choice of kubectl and Helm, and the part of the caller's environment that they get."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpunode.cli.clusters import ClusterRef
from gpunode.errors import Refused, UsageError
from gpunode.host import kubectl
from gpunode.host.cluster import _KUBECTL_COMMANDS_TO_TRY, Cluster, find_kubectl
from gpunode.host.helm import Helm
from gpunode.host.kubectl import HelmMissing, ProgramMissing, caller_environment, find_program

# Variables that the clouds' login programs read; they cannot be known in advance.
LOGIN = {
    "HOME": "/builds/me",
    "KUBECONFIG": "/builds/me/config",
    "AWS_PROFILE": "gpu",
    "GOOGLE_APPLICATION_CREDENTIALS": "/builds/me/key.json",
    "AZURE_CONFIG_DIR": "/builds/me/.azure",
    "AAD_LOGIN_METHOD": "azurecli",
    "HTTPS_PROXY": "http://proxy:3128",
    "SSL_CERT_FILE": "/builds/me/ca.pem",
    "CORP_TOKEN": "x",
}


def program(folder: Path, name: str, text: str = "exit 0") -> str:
    folder.mkdir(exist_ok=True)
    (path := folder / name).write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return root as the caller, with the only folder that root searches."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(kubectl, "SEARCH_PATH", str(tmp_path / "fixed"))
    return tmp_path / "fixed"


def test_root_runs_no_kubectl_or_helm_from_the_callers_path(
    as_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    theirs = [program(tmp_path / "theirs", name) for name in ("kubectl", "helm")]
    monkeypatch.setenv("PATH", str(tmp_path / "theirs"))
    with pytest.raises(ProgramMissing, match="kubectl was not found") as missing:
        find_kubectl()
    assert f"as root, gpunode ignores {theirs[0]}" in missing.value.hint
    assert "the one of Debian 12" in missing.value.hint
    with pytest.raises(HelmMissing, match="helm was not found"):
        Helm()
    ours = program(as_root, "kubectl")
    assert find_kubectl() == (ours,)


def test_ordinary_user_runs_programs_from_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("helm") is None
    assert find_program(Path(program(tmp_path, "helm")).name) == str(tmp_path / "helm")
    assert caller_environment()["PATH"] == str(tmp_path)


@pytest.mark.parametrize("user", [0, 1000])
def test_login_programs_get_the_callers_environment(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for name, value in (LOGIN | {"LC_ALL": "de_DE.UTF-8", "LANG": "de", "HELM_KUBECONTEXT": "other"}).items():
        monkeypatch.setenv(name, value)
    found = caller_environment()
    assert LOGIN.items() <= found.items()
    assert not found.keys() & {"LC_ALL", "LANG", "HELM_KUBECONTEXT"}


def test_root_path_for_login_programs_has_only_root_owned_folders(
    as_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to("/usr/share")
    monkeypatch.setenv("PATH", f"/usr/lib:{tmp_path}:bin::/nowhere:{link}:/tmp")
    assert caller_environment()["PATH"] == f"{as_root}:/usr/lib:{link}"


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, server: str = "v1.36.2") -> Path:
    """Create a kubectl of a version, and return the file in which it logs its arguments, a line for each call."""
    said = {"clientVersion": {"gitVersion": client}, "serverVersion": {"gitVersion": server}}
    asked = tmp_path / "asked"
    program(tmp_path / "bin", "kubectl", f"echo \"$@\" >> {asked}; echo '{json.dumps(said)}'")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return asked


def test_outdated_kubectl_is_asked_only_for_its_version(
    allow_subprocess: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = stand_in(tmp_path, monkeypatch, "v1.20.2")
    with pytest.raises(Refused, match=r"1\.20\.2 is too old"):
        Cluster().identify()
    assert asked.read_text().splitlines() == ["version -o json --request-timeout=20s"]


@pytest.mark.parametrize(("client", "says"), [("v1.36.2", True), ("v1.21.0", False)])
def test_kubectl_defaults_of_the_user_are_overridden(
    allow_subprocess: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: str, says: bool
) -> None:
    asked = stand_in(tmp_path, monkeypatch, client)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    Cluster().delete(body)
    Cluster().apply(body, "gpunode")
    assert ("--interactive=false" in asked.read_text()) is says
    assert "--force-conflicts=false" in asked.read_text()


def test_missing_kubeconfig_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(tmp_path, monkeypatch, "v1.36.2")
    with pytest.raises(UsageError, match="there is no kubeconfig /nowhere/config"):
        Cluster(kubeconfig="/nowhere/config").refuse_unusable()
    monkeypatch.setenv("KUBECONFIG", "/nowhere/a:/nowhere/b")
    with pytest.raises(UsageError, match="there is no kubeconfig /nowhere/a or /nowhere/b") as refused:
        Cluster().refuse_unusable()
    assert refused.value.why == "$KUBECONFIG names it"


@pytest.mark.parametrize("link", ["", "k3s", "microk8s.kubectl"])
def test_helm_reaches_the_cluster_of_a_distributions_own_kubectl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, link: str
) -> None:
    """By default it would use ~/.kube/config, which may name another cluster."""
    name = link.partition(".")[0] or "k3s"
    own = program(tmp_path, f"{name}.yaml")
    monkeypatch.setitem(_KUBECTL_COMMANDS_TO_TRY, (name, "kubectl"), (own,))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    path, helm = program(tmp_path, link or "k3s"), program(tmp_path, "helm")
    if link:
        (tmp_path / "kubectl").symlink_to(link)
    assert Cluster().kubectl == ((f"{tmp_path}/kubectl",) if link else (path, "kubectl")) + ("--kubeconfig", own)
    assert Cluster().helm.program == (helm, "--kubeconfig", own)
    assert Cluster("far", "x.yaml").helm.program == (helm, "--kube-context", "far", "--kubeconfig", "x.yaml")
    assert ClusterRef().adapt_hint("look: helm list") == f"look: helm --kubeconfig {own} list"
    hint = ClusterRef(kubeconfig="x.yaml").adapt_hint("look: kubectl get nodes")
    assert hint == f"look: {'' if link else f'{name} '}kubectl --kubeconfig x.yaml get nodes"
    monkeypatch.setenv("KUBECONFIG", "/theirs")
    # Only microk8s' kubectl ignores it.
    assert Cluster().helm.program == ((helm,) if name == "k3s" else (helm, "--kubeconfig", own))


def test_helm_reaches_the_cluster_of_a_rootless_k3s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own kubectl finds the kubeconfig in the home if that of a k3s of root is not there."""
    _, at_home = _KUBECTL_COMMANDS_TO_TRY["k3s", "kubectl"]
    of_root = tmp_path / "k3s.yaml"
    monkeypatch.setitem(_KUBECTL_COMMANDS_TO_TRY, ("k3s", "kubectl"), (str(of_root), at_home))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    k3s, helm = (program(tmp_path / "bin", name) for name in ("k3s", "helm"))
    own = program(tmp_path / ".kube", "k3s.yaml")
    assert Cluster().kubectl == (k3s, "kubectl", "--kubeconfig", own)
    assert Cluster().helm.program == (helm, "--kubeconfig", own)
    of_root.touch()
    assert Cluster().helm.program == (helm, "--kubeconfig", str(of_root))


def test_kubectl_in_a_pod_is_the_pods_service_account(
    allow_subprocess: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = stand_in(tmp_path, monkeypatch, "v1.36.2")
    said = "error: current-context must exist in order to minify"
    found = """echo '{"metadata": {"uid": "u"}}'"""
    with (tmp_path / "bin/kubectl").open("a") as script:
        script.write(f'case "$1" in config) echo "{said}" >&2; exit 1;; get) {found};; esac\n')
    versions = (tmp_path / "bin/kubectl").read_text().replace("; echo", "; [ $1 != version ] || echo", 1)
    (tmp_path / "bin/kubectl").write_text(versions)
    with pytest.raises(UsageError, match="kubectl has no cluster configured"):
        Cluster().identify()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    asked.write_text("")
    identity = Cluster().identify()
    assert (identity.context, identity.server, identity.uid) == ("", "https://10.0.0.1:443", "u")
    assert "--context" not in asked.read_text()
    assert "--request-timeout" not in asked.read_text()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert Cluster().identify().server == "https://[fd00::1]:443"
