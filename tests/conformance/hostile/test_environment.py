"""Unusual environments of a command: it does its work, or says what prevents it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.hostile.image import DAEMON_JSON, TOP, Done, Image, command, make_image, needs_root, shell

pytestmark = needs_root


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    made = make_image(tmp_path)
    yield made
    assert [str(path) for path in made.root.rglob(".gpunode-*")] == []


def run(image: Image, script: str, env: dict[str, str] | None = None) -> Done:
    """Run ``script`` with bash, where $SETUP sets the image up, $PLAN plans it and $G is gpunode."""
    gpunode, arguments = shlex.join(command()), f"{image.recipe()} --root {image.root}"
    words = {"G": gpunode, "SETUP": f"{gpunode} setup {arguments} --yes", "PLAN": f"{gpunode} plan {arguments}"}
    return shell(("bash", "-c", f"cd {image.folder}; {script}"), env={**words, **(env or {})})


def is_set_up(image: Image) -> bool:
    return "nvidia" in image.path(DAEMON_JSON).read_text()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("LC_ALL=tr_TR.UTF-8 $SETUP", id="a Turkish i"),
        pytest.param("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 $SETUP", id="a locale without Unicode"),
        pytest.param("PYTHONIOENCODING=ascii:strict $SETUP", id="output in ASCII"),
        pytest.param("PYTHONIOENCODING=utf-16 $SETUP", id="output in UTF-16"),
        pytest.param("umask 077; $SETUP", id="a strict umask"),
        pytest.param("umask 0; $SETUP", id="no umask"),
        pytest.param("unset PATH; exec $SETUP", id="no PATH"),
        pytest.param("unset HOME; $SETUP", id="no HOME"),
        pytest.param(f"env -i PYTHONPATH={TOP} $SETUP", id="no environment"),
        pytest.param("TMPDIR=/nonexistent $SETUP", id="no TMPDIR"),
        pytest.param("ln -s /proc t; TMPDIR=$PWD/t $SETUP", id="a TMPDIR where nothing can be written"),
        pytest.param("mkdir gone; cd gone; rmdir ../gone; $SETUP", id="a folder that is gone"),
        pytest.param("$SETUP <&-", id="no input"),
        pytest.param("$SETUP >&-", id="no output"),
        pytest.param("$SETUP <&- >&- 2>&-", id="no streams at all"),
        pytest.param("$SETUP 2>/dev/full", id="no room for errors"),
        pytest.param("ulimit -n 32; $SETUP", id="few descriptors"),
        pytest.param("ulimit -s 256; $SETUP", id="a small stack"),
        pytest.param("PYTHONWARNINGS=error PYTHONDEVMODE=1 $SETUP", id="Python's warnings as errors"),
        pytest.param("PYTHONOPTIMIZE=2 $SETUP", id="Python without assertions"),
        pytest.param("COLUMNS=1 $SETUP", id="one column"),
        pytest.param(f"COLUMNS={'9' * 5000} $SETUP", id="columns without an end"),
        pytest.param("SUDO_USER=$'\\e[31m\\nx' TZ=:/dev/zero TERM=$'\\e' $SETUP", id="odd words"),
    ],
)
def test_setup_does_not_depend_on_its_environment(image: Image, script: str) -> None:
    done = run(image, script)
    assert done.exit_code == 0, done.said
    assert "Traceback" not in done.said
    assert is_set_up(image)
    assert image.path(DAEMON_JSON).stat().st_mode & 0o7777 == 0o644
    own = [path for path in image.root.rglob("*") if "gpunode" in str(path.relative_to(image.root))]
    assert {path.stat().st_mode & 0o7777 for path in own} == {0o600, 0o700}
    assert image.rollback("--yes").exit_code == 0


def test_programs_of_the_callers_path_are_not_run_as_root(image: Image) -> None:
    names = ("lspci", "systemctl", "apt-get", "dpkg", "chroot", "mount", "uname", "containerd", "dockerd", "docker")
    for name in names:
        program = image.folder / "theirs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {image.folder}/owned\n")
        program.chmod(0o755)
    assert run(image, "PATH=$PWD/theirs:$PATH $SETUP").exit_code == 0
    assert run(image, "PATH=$PWD/theirs:$PATH $G status").exit_code == 0
    assert not (image.folder / "owned").exists()


@pytest.mark.parametrize(
    ("script", "exit_code", "says"),
    [
        pytest.param("$SETUP >/dev/full", 2, "the output cannot be written", id="setup, before anything is changed"),
        pytest.param("$PLAN >/dev/full", 2, "the output cannot be written", id="plan"),
        pytest.param("$PLAN --json >/dev/full", 2, "the output cannot be written", id="JSON"),
        pytest.param("$G --help >/dev/full", 2, "the help cannot be written", id="help"),
        pytest.param("$G --version >/dev/full", 2, "", id="version"),
        pytest.param("$G plan no-such-recipe >/dev/full 2>/dev/full", 2, "", id="an error"),
        pytest.param("set -o pipefail; $SETUP | true", 141, "", id="a reader who went away"),
        pytest.param("$SETUP <&- | cat; exit ${PIPESTATUS[0]}", 0, "", id="no terminal, and --yes"),
        pytest.param("${SETUP% --yes} <&-", 2, "nothing was changed", id="nobody can agree"),
        pytest.param("ulimit -n 8; $SETUP", 13, "Too many open files", id="too few descriptors to look"),
        pytest.param("ulimit -n 12; $SETUP", 6, "the file is as it was", id="too few descriptors to write"),
        pytest.param("ulimit -f 0; $SETUP", 6, "nothing was changed", id="no file may be written"),
    ],
)
def test_unusable_environment_is_reported(image: Image, script: str, exit_code: int, says: str) -> None:
    done = run(image, script)
    assert done.exit_code == exit_code, done.said
    assert "Traceback" not in done.said
    assert says in done.said
    if "141" not in str(exit_code) and exit_code:
        assert not is_set_up(image)


def test_lost_json_answer_undoes_nothing(image: Image) -> None:
    done = run(image, "$SETUP --json >/dev/full")
    assert (done.exit_code, is_set_up(image)) == (2, True)
    assert run(image, "$SETUP --json").exit_code == 0


@pytest.mark.parametrize(
    "command_line", ["recipe from-node --node {sample} -o new", "capture new.tar.gz", "capture new"]
)
def test_file_that_does_not_fit_leaves_no_partial_file(image: Image, command_line: str) -> None:
    sample = TOP / "gpunode/samples/debian12-gtx1080"
    there = set(os.listdir(image.folder))
    done = run(image, f"echo $PLAN >/dev/null; ulimit -f 0; $G {command_line.format(sample=sample)}")
    assert (done.exit_code, "Traceback" in done.said) == (2, False), done.said
    assert "cannot be written" in done.err
    assert set(os.listdir(image.folder)) - {"docker.toml"} == there


def test_recipe_is_not_written_over_an_existing_file(image: Image) -> None:
    sample = TOP / "gpunode/samples/debian12-gtx1080"
    for name, make in {
        "file": "echo mine >x",
        "link": "ln -s victim x",
        "pipe": "mkfifo x",
        "folder": "mkdir x",
    }.items():
        done = run(image, f"{make}; $G recipe from-node --node {sample} -o x; code=$?; rm -rf x; exit $code")
        assert done.exit_code == 2, name
        assert "x cannot be written" in done.err
    assert not (image.folder / "victim").exists()
    assert (
        run(image, f"$G recipe from-node --node {sample} -o x && $G recipe check x").exit_code == 2
    )  # no .toml: a name
    assert run(image, f"$G recipe from-node --node {sample} -o x.toml && $G recipe check x.toml").exit_code == 0
