"""The real helm accepts gpunode's commands: Helm 3 and 4 have different options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.facts.helm import HelmRelease
from gpunode.host import helm
from gpunode.host.helm import Helm
from gpunode.kubernetes.model import ChartRelease
from gpunode.kubernetes.reconcile import install_command
from tests.e2e.kubernetes.control_plane import API_PROGRAMS, ControlPlane
from tests.needs import asset, lacking_assets

pytestmark = pytest.mark.e2e

PLACE = ("--namespace", "gpu-system", "--wait")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Yield an API server with the namespace of the release, as ``k8s apply`` creates it."""
    if reason := lacking_assets(*API_PROGRAMS, "helm"):
        pytest.skip(reason)
    with ControlPlane(tmp_path / "plane", scheduling=False) as plane:
        plane.kubectl("create", "namespace", "gpu-system")
        yield plane


def test_release_is_installed_listed_updated_and_removed(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (chart := tmp_path / "chart").mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: hami\nversion: 2.10.0\n")
    (chart / "templates").mkdir()
    (chart / "templates/one.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\ndata:\n  size: {{ .Values.size | quote }}\n"
    )
    monkeypatch.setattr(helm, "find_program", asset)
    monkeypatch.setenv("HOME", str(tmp_path))
    there, namespace = Helm("", str(plane.kubeconfig())), plane.get("namespace", "gpu-system")

    def release(size: int) -> tuple[str, ...]:
        """Return the command that installs the chart from its folder instead of a repository."""
        made = install_command(ChartRelease("hami", "hami", "2.10.0", "", "gpu-system", {"size": size}, "", 0))
        option = made.index("--repo")
        return (*made[1 : option - 1], str(chart), *made[option + 2 :])

    assert there.list_releases(charts={"hami"}) == ()
    there.run(release(1))
    (found,) = there.list_releases(charts={"hami"})
    assert found == HelmRelease("gpu-system", "hami", "hami", "2.10.0", 1, "deployed", {"size": 1})
    there.run(release(2))
    assert plane.get("configmap", "one", "--namespace=gpu-system")["data"] == {"size": "2"}
    there.run(("rollback", "hami", "1", *PLACE))
    assert there.count_revisions() == {("gpu-system", "hami"): 3}
    assert plane.get("configmap", "one", "--namespace=gpu-system")["data"] == {"size": "1"}
    there.run(("uninstall", "hami", *PLACE))
    assert there.count_revisions() == {}
    # Helm 4 sets a label on the namespace that it is told to create, even if it exists.
    assert plane.get("namespace", "gpu-system")["metadata"] == namespace["metadata"]
