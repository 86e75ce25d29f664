"""gpunode ctk's command line: nvidia-ctk's arguments are accepted, and read-only commands write nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from gpunode.cli import runtime_config
from gpunode.cli.boundary import run_cli
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.runtime_config import EditPermissions, RuntimeOptions
from gpunode.journal.store import Store

CONFIGURE = ("ctk", "runtime", "configure")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RuntimeOptions, OutputOptions, str, EditPermissions]]:
    calls: list[tuple[RuntimeOptions, OutputOptions, str, EditPermissions]] = []
    monkeypatch.setattr(runtime_config, "configure", lambda *arguments: calls.append(arguments))
    return calls


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "etc/docker").mkdir(parents=True)
    program = tmp_path / "usr/bin/nvidia-container-runtime"
    program.parent.mkdir(parents=True)
    program.touch()
    return tmp_path


def written_files(image: Path) -> list[Path]:
    return [path for path in image.rglob("*") if path.is_file() and path.name != "nvidia-container-runtime"]


def test_every_option_of_nvidia_ctk_is_accepted(
    heard: list[tuple[RuntimeOptions, OutputOptions, str, EditPermissions]],
) -> None:
    options = (
        "--runtime=containerd",
        "--config=/etc/c.toml",
        "--drop-in-config=/etc/d.toml",
        "--config-source=command",
        "--executable-path=/opt/containerd",
        "--config-mode=config-file",
        "--oci-hook-path=/h.json",
        "--nvidia-runtime-name=nv",
        "--nvidia-runtime-path=/opt/nv",
        "--nvidia-runtime-hook-path=/opt/hook",
        "--nvidia-set-as-default",
        "--cdi.enabled",
        "--dry-run",
    )
    assert run_cli([*CONFIGURE, *options]) == 0
    typed, _, root, permissions = heard[0]
    assert typed == RuntimeOptions(
        "containerd",
        "/etc/c.toml",
        "/etc/d.toml",
        "auto",
        "nv",
        "/opt/nv",
        default=True,
        cdi=True,
        source="command",
        executable="/opt/containerd",
        config_mode="config-file",
    )
    assert (root, permissions.dry_run) == ("/", True)


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        (["--runtime-path", "/opt/nv"], RuntimeOptions(path="/opt/nv")),
        (["--set-as-default"], RuntimeOptions(default=True)),
        (["--set-as-default=true"], RuntimeOptions(default=True)),
        (["--nvidia-set-as-default", "--set-as-default=F"], RuntimeOptions()),
        (["--cdi.enable"], RuntimeOptions(cdi=True)),
        (["--enable-cdi=1"], RuntimeOptions(cdi=True)),
        (["--drop-in-config="], RuntimeOptions(drop_in="")),
        (["--mode", "drop-in", "--enable-cri"], RuntimeOptions(mode="drop-in", enable_cri=True)),
    ],
)
def test_option_aliases_and_boolean_values_are_equivalent(
    option: list[str], typed: RuntimeOptions, heard: list[tuple[RuntimeOptions, OutputOptions, str, EditPermissions]]
) -> None:
    assert run_cli([*CONFIGURE, *option]) == 0
    assert heard[0][0] == typed


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (("ctk", "-q", "runtime", "configure"), OutputOptions(quiet=True)),
        (("ctk", "--quiet=true", "runtime", "configure"), OutputOptions(quiet=True)),
        (("ctk", "--debug", "runtime", "configure"), OutputOptions(verbose=True)),
        ((*CONFIGURE, "-d"), OutputOptions(verbose=True)),
        ((*CONFIGURE, "--quiet", "--json"), OutputOptions(json=True, quiet=True)),
    ],
)
def test_global_options_are_accepted_before_and_after_the_command(
    words: Sequence[str], how: OutputOptions, heard: list[tuple[RuntimeOptions, OutputOptions, str, EditPermissions]]
) -> None:
    assert run_cli(list(words)) == 0
    assert heard[0][1] == how


def test_global_options_may_come_from_the_environment(
    heard: list[tuple[RuntimeOptions, OutputOptions, str, EditPermissions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_CTK_QUIET", "true")
    assert run_cli(list(CONFIGURE)) == 0
    assert heard[0][1] == OutputOptions(quiet=True)


@pytest.mark.parametrize(
    ("words", "next_"),
    [
        (["--set-as-default", "false"], "unexpected extra argument"),
        (["--dry-run=maybe"], "write --dry-run, or leave it out"),
        (["--nosuch"], "`gpunode ctk runtime configure --help`"),
    ],
)
def test_mistyped_option_is_answered_with_the_right_one(
    words: list[str], next_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([*CONFIGURE, *words]) == 2
    assert next_ in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "begins"),
    [(["ctk"], "Usage: gpunode ctk"), (["ctk", "runtime"], "Usage: gpunode ctk runtime")],
)
def test_missing_subcommand_shows_the_help(typed: list[str], begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(typed) == 2
    assert capsys.readouterr().err.startswith(begins)


def test_dry_run_prints_the_file_and_writes_nothing(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*CONFIGURE, "--root", str(image), "--dry-run"]) == 0
    told = capsys.readouterr()
    assert list(json.loads(told.out)["runtimes"]) == ["nvidia"]
    assert "+++ /etc/docker/daemon.json" in told.err
    assert written_files(image) == []


def test_quiet_dry_run_prints_only_the_file(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["ctk", "-q", *CONFIGURE[1:], "--root", str(image), "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


def test_check_reports_pending_changes_and_writes_nothing(
    image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["ctk", "runtime", "check", "--root", str(image), "--set-as-default"]
    monkeypatch.setattr("sys.argv", ["gpunode", *check, "-v"])
    assert run_cli(check) == 4
    command = f"next: sudo gpunode ctk runtime configure --root {image} --set-as-default\n"
    assert command in capsys.readouterr().out
    assert written_files(image) == []
    done = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}'
    (image / "etc/docker/daemon.json").write_text(done)
    assert run_cli(check) == 0
    assert "nothing runs in an image" in capsys.readouterr().out


def test_check_reports_pending_changes_as_json(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["ctk", "runtime", "check", "--json", "--root", str(image)]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert (answer["command"], answer["status"], answer["exit_code"]) == ("ctk runtime check", "changes-pending", 4)
    assert [change["subject"] for change in answer["changes"]] == ["/etc/docker/daemon.json"]
    assert answer["result"]["runtime"] == "docker"


@pytest.mark.parametrize("words", [("check",), ("configure", "--dry-run"), ("unconfigure", "--dry-run")])
def test_read_only_command_tells_of_a_run_in_progress(
    words: tuple[str, ...], image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may see the middle of that run."""
    told = []
    for is_held in (False, True):
        with Store(image).lock() if is_held else nullcontext():
            run_cli(["ctk", "runtime", *words, "--root", str(image), "--json"])
        told.append(json.loads(capsys.readouterr().out)["notes"])
    assert [any("another gpunode is changing this node" in note for note in notes) for notes in told] == [False, True]


def test_json_error_names_its_command(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*CONFIGURE, "--json", "--root", str(image), "--runtime=rkt"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer["command"], answer["errors"][0]["error"]) == ("ctk runtime configure", "usage")


def test_hook_mode_is_refused(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config-mode=hook", "--oci-hook-path=/h.json", "--nvidia-runtime-hook-path=/opt/hook"]
    assert run_cli([*CONFIGURE, "--root", str(image), *words]) == 2
    assert "OCI hooks" in capsys.readouterr().err
    assert written_files(image) == []


def test_configure_needs_root_and_mentions_dry_run(
    image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run_cli([*CONFIGURE, "--root", str(image)]) == 2
    assert "--dry-run shows what it would do" in capsys.readouterr().err


def test_check_accepts_the_path_that_setup_writes(image: Path) -> None:
    entry = {"args": [], "path": "/usr/bin/nvidia-container-runtime"}
    file = image / "etc/docker/daemon.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"runtimes": {"nvidia": entry}}))
    check = ["ctk", "runtime", "check", "--root", str(image), "--runtime=docker"]
    assert run_cli(check) == 0
    assert run_cli([*check, "--nvidia-runtime-path=/opt/nvidia-container-runtime"]) == 4


@pytest.mark.usefixtures("allow_subprocess")
@pytest.mark.parametrize("runtime", ["docker", "containerd", "crio"])
def test_default_runtime_without_its_binary_is_refused(
    runtime: str, image: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (image / "usr/bin/nvidia-container-runtime").unlink()
    asked = [f"--runtime={runtime}", "--root", str(image), "--set-as-default"]
    install = f"sudo gpunode setup --runtime={runtime} --only=toolkit-repository --only=toolkit --root={image}"

    assert run_cli([*CONFIGURE, *asked, "--dry-run"]) == 3
    refused = capsys.readouterr().err
    assert "nvidia-container-runtime is not installed" in refused
    assert install in refused
    monkeypatch.setattr("sys.argv", ["gpunode", "ctk", "runtime", "check", *asked])
    assert run_cli(["ctk", "runtime", "check", *asked]) == 4
    assert f"next: {install}\n" in capsys.readouterr().out.replace("\n      ", " ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what is written is root's")
def test_configured_runtime_without_its_binary_names_the_installation_next(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (image / "usr/bin/nvidia-container-runtime").unlink()
    assert run_cli([*CONFIGURE, "--runtime=docker", "--root", str(image)]) == 0
    shown = capsys.readouterr().out.replace("\n        ", " ")
    install = f"sudo gpunode setup --runtime=docker --only=toolkit-repository --only=toolkit --root={image}"
    assert f"next  {install}\n" in shown


def test_handler_without_its_binary_fails_the_check(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (image / "usr/bin/nvidia-container-runtime").unlink()
    (image / "etc/docker/daemon.json").write_text(
        '{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}'
    )

    assert run_cli(["ctk", "runtime", "check", "--runtime=docker", "--root", str(image)]) == 7
    shown = capsys.readouterr().out
    assert "which is not installed" in shown
    assert "✓" not in shown


def test_hint_on_a_missing_program_of_the_sites_own_names_no_toolkit(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (image / "etc/docker/daemon.json").write_text('{"runtimes": {"nvidia": {"args": [], "path": "/opt/own"}}}')
    asked = ["--runtime=docker", "--nvidia-runtime-path=/opt/own", "--root", str(image)]

    assert run_cli(["ctk", "runtime", "check", *asked]) == 7
    assert "next: install /opt/own, which is not part of the container toolkit's packages\n" in capsys.readouterr().out
    assert run_cli(["ctk", "runtime", "check", *asked, "--json"]) == 7
    assert '"hint": "install /opt/own, which is not part' in capsys.readouterr().out


@pytest.mark.usefixtures("allow_subprocess")
def test_only_files_that_exist_are_named_as_configured(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CRI-O needs no crio.conf: the drop-in alone configures it."""
    (image / "etc/crio/crio.conf.d").mkdir(parents=True)
    configure = [*CONFIGURE, "--runtime=crio", "--root", str(image), "--dry-run"]
    assert run_cli(configure) == 0
    (image / "etc/crio/crio.conf.d/99-nvidia.toml").write_text(capsys.readouterr().out)
    assert run_cli(configure) == 0
    assert "crio is configured as requested (/etc/crio/crio.conf.d/99-nvidia.toml)" in capsys.readouterr().err
