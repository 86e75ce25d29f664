"""nvidia-ctk's options for runtimes, as gpunode interprets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.cli.runtime_config import RuntimeOptions, parse_options, resolve_file_option
from gpunode.errors import UsageError
from gpunode.runtimes import DesiredConfig

DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"


def desired_config(typed: RuntimeOptions) -> DesiredConfig:
    return parse_options(typed, "/").desired


def test_defaults_are_those_of_nvidia_ctk() -> None:
    asked = parse_options(RuntimeOptions(), "/")
    assert asked.runtime.id == "docker"
    assert asked.desired == DesiredConfig(handler="nvidia", binary="nvidia-container-runtime", exact=True)
    assert (asked.dumps, asked.notes) == ((), ())


def test_named_drop_in_selects_drop_in_mode_and_empty_in_place() -> None:
    named = desired_config(RuntimeOptions("containerd", drop_in=DROP_IN))
    assert (named.mode, named.drop_in) == ("drop-in", DROP_IN)
    assert desired_config(RuntimeOptions("containerd", drop_in="")).mode == "in-place"
    assert desired_config(RuntimeOptions("containerd")).mode == "auto"
    assert desired_config(RuntimeOptions("containerd", mode="drop-in")).mode == "drop-in"


def test_empty_drop_in_contradicting_the_mode_is_noted() -> None:
    asked = parse_options(RuntimeOptions("containerd", drop_in="", mode="drop-in"), "/")
    assert asked.desired.mode == "in-place"
    assert ["--drop-in-config is empty" in note for note in asked.notes] == [True]


def test_empty_drop_in_is_the_default_for_docker() -> None:
    assert parse_options(RuntimeOptions("docker", drop_in=""), "/").notes == ()


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (RuntimeOptions("rkt"), '--runtime cannot be "rkt"'),
        (RuntimeOptions("containerd", drop_in="99-nvidia.toml"), "not an absolute path"),
        (RuntimeOptions("docker", drop_in="/etc/docker/daemon.d/nv.json"), "docker reads no drop-ins"),
        (RuntimeOptions("containerd", drop_in=DROP_IN, mode="in-place"), "contradict"),
        (RuntimeOptions("containerd", mode="beside"), '--mode cannot be "beside"'),
        (RuntimeOptions("containerd", source="bogus"), '--config-source cannot be "bogus"'),
        (RuntimeOptions("containerd", name=""), "--nvidia-runtime-name is empty"),
    ],
)
def test_contradictory_options_are_refused_with_a_hint(typed: RuntimeOptions, says: str) -> None:
    with pytest.raises(UsageError) as stopped:
        parse_options(typed, "/")
    assert says in stopped.value.what
    assert stopped.value.why
    assert stopped.value.hint


def test_command_source_dumps_the_named_runtime() -> None:
    assert parse_options(RuntimeOptions("containerd", source="command"), "/").dumps == (
        ("containerd", "config", "dump"),
    )
    named = RuntimeOptions("containerd", source="command", executable="/opt/bin/containerd")
    assert parse_options(named, "/").dumps == (("/opt/bin/containerd", "config", "dump"),)


def test_docker_always_reads_its_file_and_notes_it() -> None:
    asked = parse_options(RuntimeOptions("docker", source="command", executable="/usr/bin/dockerd"), "/")
    assert asked.dumps == ()
    assert len(asked.notes) == 2


def test_unknown_config_mode_is_noted() -> None:
    assert "bogus" in parse_options(RuntimeOptions("containerd", config_mode="bogus"), "/").notes[0]
    for known in ("", "config", "config-file"):
        assert parse_options(RuntimeOptions("containerd", config_mode=known), "/").notes == ()
    for hook in ("hook", "oci-hook"):
        with pytest.raises(UsageError, match="OCI hooks"):
            parse_options(RuntimeOptions("containerd", config_mode=hook), "/")


def test_relative_path_is_resolved_and_refused_in_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_file_option("--config", "daemon.json", "/") == str(tmp_path / "daemon.json")
    assert resolve_file_option("--config", "", "/") == ""
    with pytest.raises(UsageError, match="not an absolute path"):
        resolve_file_option("--config", "daemon.json", "/mnt")
