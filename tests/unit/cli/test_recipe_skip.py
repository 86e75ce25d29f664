from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.cli.inputs import load_recipe
from gpunode.errors import RecipeError


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
