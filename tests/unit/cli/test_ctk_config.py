"""`ctk config`: printed or written, journaled, and never both."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer

from gpunode.change import RUNTIME_CONFIG_STAGE
from gpunode.cli import toolkit_config
from gpunode.cli.ctk import config_app
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.toolkit_config import ToolkitConfigOptions, default_config_path, edit_config, write_default_config
from gpunode.errors import Refused, UsageError
from gpunode.journal.record import Intent
from gpunode.journal.store import Store
from gpunode.runtimes import toolkit

FILE = "/etc/nvidia-container-runtime/config.toml"
TEXT = "# ours\ndisable-require = false # why\n"
NO_CGROUPS = ["nvidia-container-cli.no-cgroups"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what is written is root's")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    file = Path(f"{tmp_path}{FILE}")
    file.parent.mkdir(parents=True)
    file.write_text(TEXT)
    file.chmod(0o640)
    return tmp_path


def config_options(root: Path, *, file: str = "", output: str = "", in_place: bool = False) -> ToolkitConfigOptions:
    return ToolkitConfigOptions(file, output, str(root), in_place=in_place)


def path_below(root: Path, path: str = FILE) -> Path:
    return Path(f"{root}{path}")


def test_ctk_config_without_an_output_prints_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(NO_CGROUPS, config_options(root), OutputOptions())
    assert capsys.readouterr().out == f"{TEXT}\n[nvidia-container-cli]\n  no-cgroups = true\n"
    assert path_below(root).read_text() == TEXT
    assert sorted(path.name for path in root.iterdir()) == ["etc"]


@as_root
def test_in_place_edit_is_journaled_and_shown_as_a_diff(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(NO_CGROUPS, config_options(root, in_place=True), OutputOptions())
    out = capsys.readouterr().out
    assert "+  no-cgroups = true" in out
    (run,) = Store(root).ids()
    assert f"sudo gpunode rollback {run}" in out
    assert path_below(root).read_text().startswith(TEXT)
    assert path_below(root).stat().st_mode & 0o777 == 0o640
    (intent,) = [entry for entry in Store(root).entries(run) if isinstance(entry, Intent)]
    assert intent.stage == RUNTIME_CONFIG_STAGE


@as_root
def test_unchanged_setting_is_not_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(["disable-require=false"], config_options(root, in_place=True), OutputOptions())
    assert "nothing to do" in capsys.readouterr().out
    assert Store(root).ids() == ()
    assert path_below(root).read_text() == TEXT


@as_root
def test_output_file_belongs_to_root_with_the_mode_of_its_source(root: Path) -> None:
    os.chown(path_below(root), 12345, 12345)
    path_below(root).chmod(0o660)
    edit_config(NO_CGROUPS, config_options(root, output="/srv/new/config.toml"), OutputOptions())
    assert path_below(root).read_text() == TEXT
    assert path_below(root, "/srv/new/config.toml").read_text().startswith(TEXT)
    status = path_below(root, "/srv/new/config.toml").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, 12345, 0o640)


@as_root
def test_missing_config_is_created_with_the_defaults_of_the_machine(root: Path) -> None:
    path_below(root).unlink()
    path_below(root, "/etc/os-release").write_text('ID_LIKE="suse opensuse"\n')
    path_below(root, "/sbin").mkdir()
    path_below(root, "/sbin/ldconfig.real").touch()
    edit_config((), config_options(root, in_place=True), OutputOptions())
    made = path_below(root).read_text()
    assert 'ldconfig = "@/sbin/ldconfig.real"' in made
    assert '\nuser = "root:video"' in made


def test_json_answer_holds_the_text(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(["disable-require"], config_options(root), OutputOptions(json=True))
    answer = json.loads(capsys.readouterr().out)
    assert (answer["command"], answer["changed"]) == ("ctk config", False)
    assert answer["result"]["text"] == TEXT.replace("false", "true")
    write_default_config(config_options(root), OutputOptions(json=True))
    assert json.loads(capsys.readouterr().out)["command"] == "ctk config default"


@as_root
def test_json_answer_holds_the_written_file_and_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(["disable-require"], config_options(root, in_place=True), OutputOptions(json=True))
    answer = json.loads(capsys.readouterr().out)
    assert answer["changed"]
    assert (answer["result"]["file"], answer["result"]["run"]) == (FILE, Store(root).ids()[0])
    assert answer["diff"][0]["after"] == TEXT.replace("false", "true")


@as_root
def test_default_config_is_printed_or_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_default_config(config_options(root), OutputOptions())
    assert capsys.readouterr().out == toolkit.render_default_config(toolkit.ToolkitHost())
    write_default_config(config_options(root, output=FILE), OutputOptions())
    assert path_below(root).read_text() == toolkit.render_default_config(toolkit.ToolkitHost())


def test_in_place_contradicts_an_output_file(root: Path) -> None:
    with pytest.raises(UsageError, match="contradict") as refused:
        edit_config((), config_options(root, in_place=True, output="/x"), OutputOptions())
    assert refused.value.hint


def test_relative_path_in_an_image_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.toml is not an absolute path"):
        edit_config((), config_options(root, file="config.toml"), OutputOptions())


def test_path_that_is_no_file_is_refused(root: Path) -> None:
    with pytest.raises(Refused, match="/etc cannot be read as a file"):
        edit_config((), config_options(root, file="/etc"), OutputOptions())


def test_write_needs_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="needs root"):
        edit_config((), config_options(root, in_place=True), OutputOptions())


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({}, FILE),
        ({"XDG_CONFIG_HOME": ""}, FILE),
        ({"XDG_CONFIG_HOME": "/home/u/.config"}, "/home/u/.config/nvidia-container-runtime/config.toml"),
        ({"XDG_CONFIG_HOME": "/x", "NVIDIA_CTK_CONFIG_FILE_PATH": "/y.toml"}, "/y.toml"),
    ],
)
def test_default_config_path_is_the_one_the_toolkit_reads(environment: dict[str, str], path: str) -> None:
    assert default_config_path(environment, image=False) == path
    assert default_config_path(environment, image=True) == FILE


def test_option_aliases_of_nvidia_ctk_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(toolkit_config, "edit_config", lambda words, where, how: told.append((words, where)))
    monkeypatch.setattr(toolkit_config, "write_default_config", lambda where, how: told.append(where.output))
    command = typer.main.get_command(config_app)

    def run(*words: str) -> None:
        command.main(args=list(words), standalone_mode=False)

    for flag in ("--config-file=/c", "--config=/c", "-c/c"):
        run(flag, "--set", "a=1", "--set=b", "-i")
        assert told.pop() == (["a=1", "b"], ToolkitConfigOptions("/c", "", "/", in_place=True, lock_timeout_s=600))
    run("--in-place", "-o", "/o")
    assert told.pop() == ([], ToolkitConfigOptions("", "/o", "/", in_place=True, lock_timeout_s=600))
    for alias in ("default", "create-default", "generate-default"):
        run(alias, "--output", "/o")
        assert told == ["/o"]
        told.clear()
    run("--in-place=false", "--set=b", "--in-place=1", "-c", "/c")
    assert told.pop() == (["b"], ToolkitConfigOptions("/c", "", "/", in_place=True, lock_timeout_s=600))
