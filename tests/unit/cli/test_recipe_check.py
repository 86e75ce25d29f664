from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpunode.cli.inputs import RecipeOptions, load_recipe
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.recipes import check_recipe
from gpunode.errors import RecipeError, Refused
from gpunode.recipe import CudaToolkit


def test_recipe_that_skips_an_unknown_step_is_refused_with_all_steps(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\n\nskip = ["nouveau", "nouvo"]\n')
    with pytest.raises(RecipeError, match=r"mine\.toml:3: skip names nouvo") as caught:
        load_recipe(str(path))
    assert "runtime-config" in caught.value.allowed
    path.write_text('schema = 1\nskip = ["nouveau"]\n')
    assert load_recipe(str(path)).skip == ("nouveau",)


def test_detect_step_cannot_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\nskip = ["detect"]\n')
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    assert "detect" not in caught.value.allowed


def test_parts_of_cuda_without_a_release_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\n\n[cuda]\nparts = ["nvcc"]\n')
    with pytest.raises(RecipeError, match=r"mine\.toml:4: cuda\.parts names parts") as caught:
        check_recipe(str(path), OutputOptions())
    assert (caught.value.key, caught.value.allowed[0]) == ("cuda.version", "auto")
    with pytest.raises(RecipeError):
        RecipeOptions(str(path)).load()
    assert RecipeOptions(str(path), cuda_toolkit="12.9").load().cuda == CudaToolkit("12.9", ("nvcc",))


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ('[mig]\nlayout = "all-1g.10gb"\n[mps]\nenabled = true', "[mps] and MIG exclude each other"),
        ('[mps]\nenabled = true\n[kubernetes]\nstack = "device-plugin"', "[mps] is for hosts outside of Kubernetes"),
        ('[mig]\nfile = "/etc/mig.yaml"', "[mig] names a file and no layout"),
        ('[mig]\nlayout = "all-1g.10gb"\n[kubernetes]\nstack = "gpu-operator"', "would both set MIG layouts"),
    ],
)
def test_recipe_that_no_node_could_have_is_refused(tables: str, what: str, tmp_path: Path) -> None:
    """plan refuses it on every node, so ``recipe check`` must not call it valid."""
    file = tmp_path / "node.toml"
    file.write_text(f'schema = 1\nextends = "containerd"\n{tables}\n')
    with pytest.raises(Refused, match=rf"{re.escape(str(file))}: .*{re.escape(what)}"):
        check_recipe(str(file), OutputOptions())
