"""recipe from-node: the recipe of a manually built node requests no change."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings

from gpunode.change import PackageState
from gpunode.cli import recipes
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Known, Platform, Unknown
from gpunode.host.rehearsal import RehearsalHost
from gpunode.recipe import CudaToolkit, Recipe
from gpunode.recipe.toml import parse, render
from gpunode.runtimes import DesiredConfig, apply_edits, find_runtime
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT
from gpunode.workflow.from_node import note_unread_runtimes, recipe_from_node
from gpunode.workflow.plan import plan
from tests.laws.nodes import facts
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, UBUNTU, gpu, machine, unit, with_driver
from tests.unit.steps.test_distro_driver import SIGNED, noble, with_own_driver

HOST = RehearsalHost({}, {})
TOOLKIT = {
    name: PackageState("1.19.1-1")
    for name in (
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    )
}


def asks_for_nothing(found: Recipe, node: Facts) -> bool:
    plans = plan(found, node, HOST)
    assert not any(stage.refusal for stage in plans), [stage.refusal for stage in plans]
    return not any(stage.ordered_changes for stage in plans)


@settings(deadline=None)
@given(facts())
def test_recipe_from_any_node_plans_nothing_on_it(node: Facts) -> None:
    if isinstance(node.packages_interrupted, Known) and node.packages_interrupted.value:
        with pytest.raises(Refused, match="was interrupted on this node"):
            recipe_from_node(node, HOST)
        return
    found = recipe_from_node(node, HOST)
    assert asks_for_nothing(found, node)
    again = parse(render(found), "from-node.toml", lambda _place: "")
    assert asks_for_nothing(again, node)


def hand_built(**more: object) -> Facts:
    configured = _docker(DesiredConfig(default=True))
    given: dict[str, object] = {
        "packages": {**TOOLKIT, "docker-ce": PackageState("5:28.5.2-1")},
        "files": {DAEMON_JSON: configured},
        "units": {"docker.service": unit(), "nvidia-persistenced.service": unit()},
        **more,
    }
    return with_driver("580.95.05", **given)  # type: ignore[arg-type]


def test_recipe_describes_a_hand_built_node() -> None:
    found = recipe_from_node(hand_built(), HOST)
    assert (found.driver.version, found.driver.kernel_module_type, found.driver.scope) == ("580", "auto", "compute")
    assert (found.runtime.name, found.runtime.set_as_default) == ("docker", True)
    assert found.toolkit.version == "auto"
    assert "driver" not in found.skip
    assert "runtime-config" not in found.skip


def test_runtime_that_could_not_be_read_is_noted() -> None:
    node = hand_built()
    node = replace(node, files={**node.files, DAEMON_JSON: Unknown("permission denied", DAEMON_JSON)})
    (note,) = note_unread_runtimes(node)
    assert DAEMON_JSON in note
    assert "permission denied" in note
    assert "if docker has an nvidia runtime, this recipe lacks it: run the same command as root" in note
    assert recipe_from_node(node, HOST).runtime.name != "docker"
    assert not list(note_unread_runtimes(hand_built()))


def test_recipe_begins_with_what_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = hand_built()
    node = replace(node, files={**node.files, DAEMON_JSON: Unknown("denied\n[driver]", DAEMON_JSON)})
    monkeypatch.setattr(recipes, "view_node", lambda *_: SimpleNamespace(facts=node, host=HOST))
    recipes.write_recipe_from_node("", "", OutputOptions())
    text = capsys.readouterr().out
    assert text.startswith(f"# cannot tell what {DAEMON_JSON} holds")
    assert parse(text, "from-node.toml", lambda _place: "") == recipe_from_node(node, HOST)


@pytest.mark.parametrize(
    ("packages", "found"),
    [
        (("cuda-toolkit-12-6", "cuda-nvcc-12-6"), CudaToolkit("12.6")),
        (("cuda-nvcc-12-6", "cuda-cudart-dev-12-6", "libcublas-12-6"), CudaToolkit("12.6", ("nvcc",))),
        (("cuda-toolkit-12-4", "cuda-toolkit-12-6"), CudaToolkit("12.6")),
        (("cuda-cudart-12-6",), CudaToolkit("12.6", ("cudart",))),
        (("cuda-nvcc-12-6",), CudaToolkit()),  # without the headers it compiles nothing
        ((), CudaToolkit()),
    ],
)
def test_recipe_has_the_installed_cuda_toolkit(packages: tuple[str, ...], found: CudaToolkit) -> None:
    node = hand_built(packages={**TOOLKIT, **dict.fromkeys(packages, "12.6.3-1"), "docker-ce": "5:28.5.2-1"})
    node = replace(node, files={CUDA_PROFILE_SCRIPT: Known(None, "x"), **node.files})
    written = recipe_from_node(node, HOST)
    assert written.cuda == found
    assert asks_for_nothing(written, node)


def test_refused_step_does_not_hide_later_steps() -> None:
    """A file with other archives, too, names the archive with another key; the later steps still differ."""
    rival = (
        b"deb [signed-by=/mine.gpg] https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /\n"
        b"deb http://mirror.example.org/debian bookworm main\n"
    )
    packages = {"docker-ce": PackageState("5:28.5.2-1"), "nvidia-container-toolkit": PackageState("1.19.1-1")}
    node = hand_built(packages=packages, files={"/etc/apt/sources.list": rival, DAEMON_JSON: _docker()})
    found = recipe_from_node(node, HOST)
    assert {"toolkit-repository", "toolkit"} <= set(found.skip)
    assert asks_for_nothing(found, node)


def _docker(desired: DesiredConfig = DesiredConfig()) -> bytes:  # noqa: B008 - frozen
    before = {DAEMON_JSON: b"{}"}
    return apply_edits(before, find_runtime("docker").configure(before, desired))[DAEMON_JSON]


def test_container_recipe_has_no_driver() -> None:
    found = recipe_from_node(hand_built(platform=Platform("container", "lxc")), HOST)
    assert found.driver.version == "none"
    assert asks_for_nothing(found, hand_built(platform=Platform("container", "lxc")))


def test_distribution_driver_is_left_out_of_the_recipe() -> None:
    node = machine(distro=UBUNTU, packages={"nvidia-driver-580-server-open": "580.95.05-0ubuntu1"})
    found = recipe_from_node(node, HOST)
    assert found.driver.version == "none"
    assert asks_for_nothing(found, node)


def test_runtime_with_another_binary_is_skipped() -> None:
    own = b'{"runtimes": {"nvidia": {"path": "/opt/mine/nvidia-container-runtime"}}}'
    found = recipe_from_node(hand_built(files={DAEMON_JSON: own}), HOST)
    assert "runtime-config" in found.skip


def test_unreadable_runtime_file_gives_no_runtime() -> None:
    assert recipe_from_node(hand_built(files={DAEMON_JSON: b"{,}", CONTAINERD: b"= ="}), HOST).runtime.name == "none"


def test_node_without_a_gpu_has_no_recipe() -> None:
    with pytest.raises(Refused, match="no NVIDIA GPU"):
        recipe_from_node(machine(gpus=()), HOST)


def test_vgpu_guest_recipe_has_no_driver() -> None:
    vgpu = gpu("13bd", subsystem=("10de", "11cc"))
    node = with_driver("580.95.05", open_module=False, gpus=(vgpu,))
    found = recipe_from_node(node, HOST)
    assert found.driver.version == "none"
    assert asks_for_nothing(found, node)


def test_podman_with_a_cdi_specification_is_in_the_recipe() -> None:
    spec = b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n"
    with_podman = {**TOOLKIT, "podman": PackageState("5.4.2-1")}
    node = with_driver("580.95.05", packages=with_podman, files={"/var/run/cdi/nvidia.yaml": spec})
    found = recipe_from_node(node, HOST)
    assert (found.runtime.name, found.runtime.install) == ("podman", "never")
    assert recipe_from_node(with_driver("580.95.05", packages=with_podman), HOST).runtime.name == "none"


@pytest.mark.parametrize(
    ("node", "branch"),
    [(with_own_driver(), "535"), (noble(packages=dict.fromkeys(SIGNED, "580.173.02-0ubuntu0.24.04.1")), "580")],
    ids=["debian", "ubuntu"],
)
def test_driver_of_the_distributions_archive_keeps_its_source(node: Facts, branch: str) -> None:
    found = recipe_from_node(node, HOST)
    assert (found.driver.source, found.driver.version, found.driver.scope) == ("distro", branch, "compute")
    assert 'source = "distro"' in render(found)
    assert asks_for_nothing(found, node)
