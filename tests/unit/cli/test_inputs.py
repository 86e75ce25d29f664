from __future__ import annotations

import json
import os
import pwd
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_group

from gpunode.cli import app
from gpunode.cli.boundary import run_cli
from gpunode.cli.inputs import (
    RecipeOptions,
    explain_default_recipe,
    open_cluster_journal,
    parse_setup_gpus,
    validate_root,
    view_node,
)
from gpunode.cli.samples import SAMPLES_FOLDER, resolve_sample, sample_capture_names
from gpunode.errors import UsageError
from gpunode.facts.model import Known
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.gpus import find_nvswitches, find_own_gpus
from tests.unit.steps.machines import machine, planned, recipe


def test_words_of_recipe_options_choose_the_same_state() -> None:
    values: dict[str, Any] = {field.name: True if field.default is False else "word" for field in fields(RecipeOptions)}
    options = RecipeOptions(**values)
    for name in ("setup", "plan"):
        context = get_group(app.app).commands[name].make_context(name, [*options.words])
        assert app.build_options(context, RecipeOptions) == replace(options, lock="", upgrade=False)


def test_gpu_option_is_for_images_only() -> None:
    (device,) = parse_setup_gpus("10de:1B80", image=True)
    assert device.device == "1b80"
    with pytest.raises(UsageError, match="--gpu is for an image"):
        parse_setup_gpus("10de:1b80", image=False)
    assert parse_setup_gpus("", image=False) == ()


def test_only_gpus_among_the_named_devices_get_a_driver() -> None:
    named = parse_setup_gpus("10de:1b80,10de:10f0,10de:1ad6,10de:22a3,10de:22a5", image=True)
    assert [device.device for device in find_own_gpus(named)] == ["1b80"]
    assert [device.device for device in find_nvswitches(named)] == ["22a3", "22a5"]
    notes = planned(DETECT_STEP.plan(recipe(), replace(machine(), devices=Known(named, "--gpu")))).notes
    said = [note for note in notes if "not a GPU" in note]
    assert [note.split()[2].rstrip(",") for note in said] == ["10de:10f0", "10de:1ad6"]
    assert "GP104 High Definition Audio Controller" in said[0]


@pytest.mark.parametrize("command", [("plan", "--node", "debian12-gtx1080"), ("gpus",)])
def test_repeated_gpu_option_names_every_gpu(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*gpus: str) -> object:
        assert run_cli([*command, *gpus, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["result"]

    both = answer("--gpu", "10de:1b80", "--gpu", "10de:2330")
    assert both == answer("--gpu", "10de:1b80,10de:2330") != answer("--gpu", "10de:2330")


def test_setup_of_an_image_takes_every_gpu_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "etc").mkdir()
    argv = ["setup", "--root", str(tmp_path), "--gpu", "10de:xyz", "--gpu", "10de:1b80"]
    assert run_cli(argv) == 2
    assert "'10de:xyz' is not the PCI id" in capsys.readouterr().err


def test_device_list_without_a_gpu_is_refused_with_lspci_command() -> None:
    for wrong in ("10de:10f0,10de:22a3", "10de:10f0", "1002:73bf", "T4"):
        with pytest.raises(UsageError) as caught:
            parse_setup_gpus(wrong, image=True)
        assert "lspci -nn -d 10de::0300; lspci -nn -d 10de::0302" in caught.value.hint
    with pytest.raises(UsageError, match="names no GPU") as caught:
        parse_setup_gpus("10de:22a3", image=True)
    assert "NVSwitch" in caught.value.why


# The purpose of each sample, in plan's words.
_SHOWN: Final = {
    "debian12-gtx1080": r"packages of driver 470\.256\.02, .* conflict with branch",
    "debian12-hgx-h100": r"one transaction.* nvidia-driver-cuda,[^\n]* (\d+\.\*)\n.* nvidia-fabricmanager,[^\n]* \1\n",
    "debian12-run-driver": r"\.run installer has installed a driver.* add --remove-runfile-driver to let setup",
    "debian12-secure-boot": r"\A(?!.* nvidia-driver-cuda).* run mokutil --import ",
}


@pytest.mark.parametrize("name", sample_capture_names())
def test_sample_shows_what_it_is_shipped_for(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    exit_code = 3 if name == "debian12-run-driver" else 0
    for command in ("plan", "rehearse"):
        assert run_cli([command, "--node", name]) == exit_code
        said = capsys.readouterr()
        assert re.search(_SHOWN[name], said.out + said.err, re.DOTALL)
    assert run_cli(["status", "--node", name]) == 0


def test_sample_with_gpudirect_in_reach_holds_what_its_plan_reads() -> None:
    assert run_cli(["plan", "rdma", "--node", "debian12-hgx-h100"]) == 0


def test_rehearsal_takes_the_option_that_its_refusal_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["rehearse", "--node", "debian12-run-driver", "--remove-runfile-driver"]) == 0
    assert "nvidia-installer --uninstall" in capsys.readouterr().out


def test_shipped_samples_are_completed_and_listed() -> None:
    assert sample_capture_names() == tuple(_SHOWN)
    assert app.sample_nodes() == list(sample_capture_names())
    assert view_node("debian12-gtx1080", "/", "").evidence
    for wrong in ("debian12", "README.md-of-samples"):
        with pytest.raises(UsageError, match="no sample of that name") as caught:
            view_node(wrong, "/", "")
        assert "debian12-gtx1080" in caught.value.why


def test_relative_root_in_a_deleted_folder_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="cannot be resolved"):
        validate_root(".")


@pytest.mark.parametrize("others", [True, False])
def test_root_does_not_keep_its_journal_in_another_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """With another user's HOME, as after ``su`` without a dash, a link there could redirect root's writes."""
    risks = {tmp_path: "alice"} if others else {tmp_path: ""}
    monkeypatch.setattr("gpunode.host.ownership.explain_writable_by_others", risks.__getitem__)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    root_home = Path(pwd.getpwuid(0).pw_dir)
    expected = root_home / ".local/state/gpunode" if others else tmp_path / "gpunode"
    assert open_cluster_journal().folder == expected


def test_sample_name_resolves_unless_a_file_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_sample("debian12-gtx1080") == str(SAMPLES_FOLDER / "debian12-gtx1080")
    assert resolve_sample("xid-79") == "xid-79"
    (tmp_path / "debian12-gtx1080").touch()
    assert resolve_sample("debian12-gtx1080") == "debian12-gtx1080"


def test_default_recipe_is_named() -> None:
    assert "this is bare-metal" in explain_default_recipe(RecipeOptions())
    assert (
        explain_default_recipe(RecipeOptions(runtime="docker"))
        == explain_default_recipe(RecipeOptions("containerd"))
        == ""
    )


def test_rehearsal_passes_no_recipe_whose_mig_layout_comes_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["rehearse", "k8s-mig", "--node", "debian12-hgx-h100"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"– matches recipe k8s-mig +not run: nothing is left to do but the MIG layout", shown)
    assert re.search(r"– the GPUs have the MIG layout +not run: set once the driver is loaded", shown)


def test_rehearsal_promises_no_mig_layout_that_the_recipe_skips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "node.toml"
    recipe.write_text('schema = 1\nextends = "containerd"\nskip = ["mig"]\n[mig]\nlayout = "all-1g.10gb"\n')
    assert run_cli(["rehearse", str(recipe), "--node", "debian12-hgx-h100"]) == 0
    assert "MIG layout" not in capsys.readouterr().out
