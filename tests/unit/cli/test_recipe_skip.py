from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.cli.inputs import load_recipe
from gpunode.errors import RecipeError


def test_a_recipe_that_leaves_out_a_step_that_is_none_is_told_which_there_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\n\nskip = ["nouveau", "nouvo"]\n')
    with pytest.raises(RecipeError, match=r"mine\.toml:3: skip names nouvo") as caught:
        load_recipe(str(path))
    assert "runtime-config" in caught.value.allowed
    path.write_text('schema = 1\nskip = ["nouveau"]\n')
    assert load_recipe(str(path)).skip == ("nouveau",)


def test_detection_is_no_step_that_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\nskip = ["detect"]\n')
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    assert "detect" not in caught.value.allowed
