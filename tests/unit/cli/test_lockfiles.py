"""``plan --lock``: when a lock is written, when it is read, and what is never overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpunode.cli import CommandExit
from gpunode.cli import plan as cli
from gpunode.cli.inputs import RecipeOptions, view_node
from gpunode.cli.lockfiles import read_lock
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import hash_recipe
from gpunode.cli.samples import default_sample
from gpunode.errors import LockFileError, Undetermined, UsageError
from tests.ids import by_name
from tests.unit.test_lockfile import TEXT

Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """Return a recipe for which only the sample's containerd is locked."""
    path = tmp_path / "node.toml"
    text = 'schema = 1\nextends = "containerd"\n[driver]\nversion = "none"\n[toolkit]\nversion = "none"\n'
    path.write_text(text)
    return str(path)


@pytest.fixture
def plan(recipe: str, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return the JSON answer of ``plan --lock``."""

    def made(lock: Path, *, check: bool = False, upgrade: bool = False, only: tuple[str, ...] = ()) -> dict[str, Any]:
        wanted = RecipeOptions(recipe, lock=str(lock), upgrade=upgrade)
        with suppress(CommandExit):
            cli.plan(wanted, OutputOptions(json=True), only, str(default_sample()), "/", "", check=check)
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return made


def test_missing_lock_file_is_written(plan: Plan, tmp_path: Path) -> None:
    answer = plan(tmp_path / "f.lock")
    assert list(answer["result"]["lock"]["packages"]) == ["containerd"]
    assert by_name(read_lock(str(tmp_path / "f.lock")).packages) == answer["result"]["lock"]["packages"]
    assert sorted(os.listdir(tmp_path)) == ["f.lock", "node.toml"]


def test_existing_lock_file_is_applied(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "f.lock"
    plan(path)
    path.write_text(path.read_text().replace('containerd = "1.6', 'containerd = "1.5'))
    text = path.read_text()
    for check, code in ((False, 0), (True, 4)):
        answer = plan(path, check=check)
        assert answer["exit_code"] == code
        (change,) = [change for change in answer["changes"] if change["kind"] == "package"]
        assert change["subject"] == "containerd"
        assert change["after"].startswith("1.5")
    assert path.read_text() == text


def test_upgrade_rewrites_the_lock_and_lists_the_changes(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "f.lock"
    plan(path)
    right = path.read_text()
    path.write_text(right.replace('containerd = "1', 'containerd = "0'))
    answer = plan(path, upgrade=True)
    (changed,) = answer["result"]["lock"]["changed"]
    assert (changed["name"], changed["before"][0], changed["after"][0]) == ("containerd", "0", "1")
    assert path.read_text() == right
    assert plan(path, upgrade=True)["result"]["lock"]["changed"] == []


@pytest.mark.parametrize("text", ["[driver]\nversion = '580'\n", "notes to myself\n", ""])
@pytest.mark.parametrize("upgrade", [True, False])
def test_file_that_is_no_lock_is_never_overwritten(plan: Plan, tmp_path: Path, text: str, upgrade: bool) -> None:
    path = tmp_path / "f.lock"
    path.write_text(text)
    with pytest.raises(LockFileError):
        plan(path, upgrade=upgrade)
    assert path.read_text() == text


def test_pipe_as_lock_file_is_refused(plan: Plan, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.lock")
    with pytest.raises(UsageError, match=r"cannot read the lock file"):
        plan(tmp_path / "f.lock")


def test_check_does_not_write_a_lock(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no lock file"):
        plan(tmp_path / "f.lock", check=True)
    assert not (tmp_path / "f.lock").exists()


def test_lock_of_selected_steps_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="whole recipe"):
        plan(tmp_path / "f.lock", only=("toolkit",))


def test_missing_folder_is_not_made_for_a_lock(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        plan(tmp_path / "typo" / "f.lock")
    assert not (tmp_path / "typo").exists()


def test_lock_with_unknown_versions_is_not_written(tmp_path: Path) -> None:
    wanted = RecipeOptions("containerd", lock=str(tmp_path / "f.lock"), upgrade=True, driver="580")
    with pytest.raises(Undetermined) as caught:
        cli.plan(wanted, OutputOptions(json=True), (), str(default_sample()), "/", "", check=False)
    assert caught.value.hint.endswith("\nsudo gpunode setup containerd --driver 580 --upgrade"), "of this very recipe"
    assert "is a capture: set up a node of its kind first" in caught.value.hint
    assert not (tmp_path / "f.lock").exists()


def test_command_that_a_lock_needs_first_sets_up_the_same_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --root it would set up the build machine."""
    (tmp_path / "etc").mkdir()
    view = view_node(str(default_sample()), "/", "")
    monkeypatch.setattr(cli, "view_node", lambda *_: view)
    wanted = RecipeOptions("containerd", lock=str(tmp_path / "f.lock"))
    with pytest.raises(Undetermined) as caught:
        cli.plan(wanted, OutputOptions(json=True), (), "", str(tmp_path), "10de:1b80", check=False)
    assert caught.value.hint.endswith(f"\nsudo gpunode setup containerd --root {tmp_path} --gpu 10de:1b80")


def test_missing_lock_is_written_by_a_plan_of_the_same_recipe(tmp_path: Path) -> None:
    lock = str(tmp_path / "f.lock")
    with pytest.raises(UsageError, match="no lock file") as caught:
        RecipeOptions("containerd", runtime="docker", lock=lock).load()
    assert caught.value.hint.endswith(f"gpunode plan containerd --runtime docker --lock {lock}")


def test_lock_contradicts_upgrade_in_setup(tmp_path: Path) -> None:
    (tmp_path / "f.lock").write_text(TEXT)
    with pytest.raises(UsageError, match="contradict") as caught:
        RecipeOptions("containerd", upgrade=True, lock=str(tmp_path / "f.lock")).load()
    assert "gpunode plan containerd --upgrade --lock" in caught.value.hint


def test_recipe_hash_depends_on_the_lock(tmp_path: Path) -> None:
    (tmp_path / "f.lock").write_text(TEXT)
    without, with_lock = (RecipeOptions("containerd", lock=lock).load() for lock in ("", str(tmp_path / "f.lock")))
    assert hash_recipe(without) != hash_recipe(with_lock)
