"""Helm as gpunode runs it, with a stand-in for Helm; e2e/kubernetes/test_helm.py uses the real one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpunode.errors import ChangeFailed, Refused
from gpunode.facts.helm import parse_release
from gpunode.host.helm import Helm
from gpunode.host.kubectl import Forbidden, HelmMissing

ROWS = [
    {"name": "op", "namespace": "gpu", "revision": "3", "status": "deployed", "chart": "gpu-operator-v26.7.0"},
    {"name": "web", "namespace": "web", "revision": "1", "status": "deployed", "chart": "nginx-1.2.3"},
    {"name": "old", "namespace": "web", "revision": "4", "status": "uninstalled", "chart": "nginx-1.2.3"},
]


@pytest.fixture
def helm(allow_subprocess: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helm:
    program = tmp_path / "helm"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        'case "$*" in\n'
        # Helm 4 has no such option.
        f"version*|*' version '*) cat {tmp_path}/version ;;\n"
        "*--all\\ *) echo 'Error: unknown flag: --all' >&2; exit 1 ;;\n"
        f"*list*) echo '{json.dumps(ROWS)}' ;;\n"
        '*uninstall*) echo \'Error: secrets is forbidden: User "x" cannot list resource "secrets"\' >&2; exit 1 ;;\n'
        '*"get values op"*) echo \'{"driver": {"enabled": false}}\' ;;\n'
        "*'show chart'*) echo 'Error: \"x\" is not a valid chart repository or cannot be reached' >&2; exit 1 ;;\n"
        "*) echo 'Error: UPGRADE FAILED: context deadline exceeded' >&2; exit 1 ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    (tmp_path / "version").write_text("v4.2.3+g43e8b7f\n")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: str(program) if name == "helm" else None)
    return Helm("prod", "/etc/kube.conf")


def test_releases_are_listed_with_version_and_values(helm: Helm, tmp_path: Path) -> None:
    (found,) = helm.list_releases(charts={"gpu-operator"})
    assert (found.namespace, found.name, found.chart, found.version) == ("gpu", "op", "gpu-operator", "v26.7.0")
    assert (found.revision, found.values) == (3, {"driver": {"enabled": False}})
    asked = (tmp_path / "asked").read_text().splitlines()
    assert all(line.startswith("--kube-context prod --kubeconfig /etc/kube.conf ") for line in asked)


def test_chart_that_cannot_be_loaded_is_refused(helm: Helm, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"Helm cannot load the chart hami 2\.10\.0") as refused:
        helm.require_chart(("hami", "--repo", "https://example.org/hami"), "2.10.0")
    assert "HTTPS_PROXY" in refused.value.hint
    asked = (tmp_path / "asked").read_text()
    assert asked.endswith("show chart hami --repo https://example.org/hami --version 2.10.0\n")


def test_release_with_only_a_history_has_no_revision(helm: Helm) -> None:
    assert helm.count_revisions() == {("gpu", "op"): 3, ("web", "web"): 1}


@pytest.mark.parametrize(("found", "is_old"), [("v3.12.3+gc9f554d", True), ("v3.13.0+g825e86f", False)])
def test_helm_without_labels_is_refused_before_it_installs(
    helm: Helm, tmp_path: Path, found: str, is_old: bool
) -> None:
    (tmp_path / "version").write_text(f"{found}\n")
    if not is_old:
        assert helm.list_releases(charts={"gpu-operator"})
        return
    with pytest.raises(HelmMissing, match=r"helm 3\.12\.3 is too old: gpunode needs 3\.13 or newer"):
        helm.list_releases(charts={"gpu-operator"})
    assert helm.list_releases(places={("gpu", "op")}), "what is there can be removed"


def test_helm_waits_as_long_as_the_user_asks(helm: Helm, tmp_path: Path) -> None:
    """Its own limit of five minutes is too short for a large image, and too long for a test."""
    for wait_s, option in ((300.0, "300s"), (1200.0, "1200s")):
        with pytest.raises(ChangeFailed):
            Helm(wait_s=wait_s).run(("upgrade", "--install", "op", "--namespace", "gpu"))
        assert (tmp_path / "asked").read_text().splitlines()[-1].endswith(f" --timeout {option}")


@pytest.mark.parametrize(
    ("chart", "name", "version"),
    [
        ("gpu-operator-v26.7.0", "gpu-operator", "v26.7.0"),
        ("nvidia-dra-driver-gpu-25.3.0-rc.2", "nvidia-dra-driver-gpu", "25.3.0-rc.2"),
        ("hami-2.10.0+build-1", "hami", "2.10.0+build-1"),
        ("theirs", "theirs", ""),
    ],
)
def test_chart_name_is_split_from_its_version(chart: str, name: str, version: str) -> None:
    row = {"namespace": "n", "name": "r", "chart": chart, "revision": "1", "status": "deployed"}
    assert (parse_release(row).chart, parse_release(row).version) == (name, version)


def test_failing_release_is_reported_in_the_words_of_helm(helm: Helm) -> None:
    with pytest.raises(ChangeFailed) as failed:
        helm.run(("upgrade", "--install", "op", "--namespace", "gpu"))
    assert "context deadline exceeded" in failed.value.why
    assert failed.value.hint.endswith("helm history op --namespace gpu")


@pytest.mark.parametrize(
    "said",
    [
        'looks like "https://x" is not a valid chart repository or cannot be reached: Get "https://x/index.yaml": EOF',
        'failed to perform "FetchReference" on source: Get "https://x/v2/y/manifests/1": dial tcp: no such host',
        'failed to do request: Head "https://x/v2/y/manifests/1": dial tcp: no such host',
    ],
)
def test_unreachable_chart_repository_leaves_no_history_to_look_at(helm: Helm, tmp_path: Path, said: str) -> None:
    (tmp_path / "helm").write_text(f"#!/bin/sh\necho 'Error: {said}' >&2; exit 1\n")
    with pytest.raises(ChangeFailed) as failed:
        helm.run(("upgrade", "--install", "op", "--namespace", "gpu"))
    assert failed.value.hint.startswith("let Helm reach the chart's repository")


def test_missing_right_is_told_from_a_failure(helm: Helm) -> None:
    with pytest.raises(Forbidden) as refused:
        helm.run(("uninstall", "op", "--namespace", "gpu"))
    assert 'cannot list resource "secrets"' in refused.value.why
    assert refused.value.hint.endswith("another credential: --kubeconfig FILE")
