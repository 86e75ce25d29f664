"""The real helm accepts gpunode's commands: Helm 3 and 4 have different options."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpunode.errors import ChangeFailed, Conflict
from gpunode.facts.helm import HelmRelease
from gpunode.host import helm
from gpunode.host.helm import Helm
from gpunode.kubernetes.model import ChartRelease
from gpunode.kubernetes.reconcile import _plan_release, install_command
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


@pytest.fixture
def there(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helm:
    """Return Helm in that cluster, with a chart in a folder; without controllers its pods never start."""
    (chart := tmp_path / "chart").mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: hami\nversion: 2.10.0\n")
    (chart / "templates").mkdir()
    (chart / "templates/one.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\ndata:\n  size: {{ .Values.size | quote }}\n"
        "{{ if .Values.pods }}\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: one\nspec:\n  containers: [{ name: one, image: one }]\n"
        "{{ end }}\n"
    )
    monkeypatch.setattr(helm, "find_program", asset)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Helm("", str(plane.kubeconfig()))


@pytest.fixture
def release(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """Return the command that installs the chart from its folder instead of a repository."""

    def command(size: int, *, pods: bool = False) -> tuple[str, ...]:
        values = {"size": size, "pods": pods}
        made = install_command(ChartRelease("hami", "hami", "2.10.0", "", "gpu-system", values, "", 0))
        option = made.index("--repo")
        return (*made[1 : option - 1], str(tmp_path / "chart"), *made[option + 2 :])

    return command


@pytest.mark.parametrize("is_installed", [False, True])
def test_killed_helm_leaves_a_state_that_the_named_command_ends(
    plane: ControlPlane, there: Helm, release: Callable[..., tuple[str, ...]], is_installed: bool
) -> None:
    if is_installed:
        there.run(release(1))
    words, values = helm.move_values_to_stdin(release(2, pods=True))
    with subprocess.Popen([*there.program, *words], stdin=subprocess.PIPE, stdout=-1, stderr=-1) as waiting:
        assert waiting.stdin is not None
        waiting.stdin.write(values)
        waiting.stdin.close()
        state = "pending-upgrade" if is_installed else "pending-install"
        plane.wait_for(state, lambda: [one.status for one in there.list_releases(charts={"hami"})] == [state])
        waiting.kill()
    with pytest.raises(ChangeFailed) as refused:
        there.run(release(3))
    assert "another operation" in refused.value.why

    (found,) = there.list_releases(charts={"hami"})
    with pytest.raises(Conflict) as told:
        _plan_release(ChartRelease("hami", "hami", "2.10.0", "", "gpu-system", {}, "", 0), [found], "")
    (line,) = re.findall(r": helm (.+)\n", told.value.hint)
    there.run(tuple(shlex.split(line)))
    there.run(release(3))
    assert plane.get("configmap", "one", "--namespace=gpu-system")["data"] == {"size": "3"}


def test_release_is_installed_listed_updated_and_removed(
    plane: ControlPlane, there: Helm, release: Callable[..., tuple[str, ...]]
) -> None:
    namespace = plane.get("namespace", "gpu-system")
    assert there.list_releases(charts={"hami"}) == ()
    there.run(release(1))
    (found,) = there.list_releases(charts={"hami"})
    assert found == HelmRelease("gpu-system", "hami", "hami", "2.10.0", 1, "deployed", {"size": 1, "pods": False})
    there.run(release(2))
    assert plane.get("configmap", "one", "--namespace=gpu-system")["data"] == {"size": "2"}
    there.run(("rollback", "hami", "1", *PLACE))
    assert there.count_revisions() == {("gpu-system", "hami"): 3}
    assert plane.get("configmap", "one", "--namespace=gpu-system")["data"] == {"size": "1"}
    there.run(("uninstall", "hami", *PLACE))
    assert there.count_revisions() == {}
    # Helm 4 sets a label on the namespace that it is told to create, even if it exists.
    assert plane.get("namespace", "gpu-system")["metadata"] == namespace["metadata"]


def test_kept_history_is_no_release_and_the_named_command_deletes_it(
    plane: ControlPlane, there: Helm, release: Callable[..., tuple[str, ...]]
) -> None:
    there.run(release(1))
    there.run(("uninstall", "hami", *PLACE, "--keep-history"))
    assert there.count_revisions() == {}
    (found,) = there.list_releases(charts={"hami"})
    with pytest.raises(Conflict, match="Helm kept its history") as told:
        _plan_release(ChartRelease("hami", "hami", "2.10.0", "", "gpu-system", {}, "", 0), [found], "")
    (line,) = re.findall(r": helm (.+)$", told.value.hint)
    there.run(tuple(shlex.split(line)))
    assert there.list_releases(charts={"hami"}) == ()
    assert plane.get("secrets", "--namespace=gpu-system")["items"] == []
    there.run(release(2))
    assert plane.get("configmap", "one", "--namespace=gpu-system")["data"] == {"size": "2"}
