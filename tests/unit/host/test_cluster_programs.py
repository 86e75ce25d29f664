"""Choice of kubectl and Helm, and what of the caller's environment they get."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpunode.errors import Refused, UsageError
from gpunode.host import kubectl
from gpunode.host.cluster import Cluster, find_kubectl
from gpunode.host.helm import Helm
from gpunode.host.kubectl import HelmMissing, ProgramMissing, caller_environment, find_program

# What the login programs of clouds read, and none of them can be known in advance.
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
    """Return a caller who is root, with the only folder that root searches."""
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
    """Make a kubectl of a version, and return the file in which it writes its words, a line for each call."""
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


def test_helm_reaches_the_cluster_of_rke2s_own_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("/var/lib/rancher/rke2/bin/kubectl", "--kubeconfig", "/etc/rancher/rke2/rke2.yaml")
    monkeypatch.setattr("gpunode.host.cluster.find_kubectl", lambda: own)
    monkeypatch.setattr("gpunode.host.helm.find_program", lambda _: "helm")
    assert Cluster().helm.program == ("helm", *own[1:])
    assert Cluster("far", "x.yaml").helm.program == ("helm", "--kube-context", "far", "--kubeconfig", "x.yaml")
