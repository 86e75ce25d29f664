"""Resuming after a reboot: the boot runs root's own program, on a request that only root could change."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.cli import resume
from gpunode.cli.resume import (
    boot_resume_command,
    encode_request,
    explain_program_risk,
    find_input_risks,
    hash_recipe,
    load_request,
    load_request_and_set_proxies,
    refuse_unsafe_program,
)
from gpunode.cli.setup import find_requested_argv
from gpunode.errors import JournalDamaged, Refused, UsageError
from gpunode.host import process
from gpunode.journal.store import Store
from gpunode.recipe import Driver, Expect, Recipe, RuntimeSettings, VersionLock
from tests.ids import by_id

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a file to another user")
LOCK = VersionLock(
    "node.lock", "mine", "debian", "12", "amd64", by_id({"libcuda1": "580.178.04-1", "gcc:i386": "4:12.2.0-3"})
)
MINE = Recipe(
    "mine",
    description='a "quoted" line, # Written by `gpunode plan --lock`.',
    skip=("nouveau",),
    driver=Driver(version="580"),
    runtime=RuntimeSettings("containerd", set_as_default=True),
    expect=Expect(gpus=8),
)


@pytest.mark.parametrize("lock", [None, LOCK])
def test_resumed_setup_uses_the_saved_request(tmp_path: Path, lock: VersionLock | None) -> None:
    asked = replace(MINE, lock=lock)
    store = Store(tmp_path)
    run = store.begin("setup", recipe=asked.name, recipe_sha256=hash_recipe(asked))
    run.save_request(encode_request(asked, {}))
    run.commit("waiting")
    found, proxies = load_request(store, run.id)
    assert not proxies
    assert replace(found, lock=None) == replace(asked, lock=None)
    assert (found.lock and found.lock.packages) == (lock and lock.packages)
    assert hash_recipe(found) == hash_recipe(asked)


PROXIES = {
    "http_proxy": "http://ada:s3cr3t-word@proxy.example:3128/",
    "HTTPS_PROXY": "http://proxy.example:3128",
    "no_proxy": '.example, "\\\x7f\n[other]\n',
}


def run_with_request(store: Store, content: bytes, recipe: Recipe = MINE) -> str:
    """Return the id of a run that saved ``content`` for after the reboot."""
    run = store.begin("setup", recipe=recipe.name, recipe_sha256=hash_recipe(recipe))
    run.save_request(content)
    run.commit("waiting")
    return run.id


@pytest.mark.parametrize("lock", [None, LOCK])
def test_resumed_setup_restores_the_proxy_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: VersionLock | None
) -> None:
    asked, store = replace(MINE, lock=lock), Store(tmp_path)
    for name in [*PROXIES, *map(str.upper, PROXIES), *map(str.lower, PROXIES)]:
        monkeypatch.delenv(name, raising=False)
    run = run_with_request(store, encode_request(asked, PROXIES), asked)
    assert hash_recipe(load_request_and_set_proxies(store, run)) == hash_recipe(asked)
    assert process.proxy_variables() == PROXIES
    (file,) = tmp_path.rglob("request.json")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'{"recipe": "schema = 1"}',
        b'"s3cr3t-word',
        b'{"recipe": null, "lock": "", "proxies": {}}',
    ],
)
def test_damaged_request_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path)
    run = run_with_request(store, content)
    with pytest.raises(JournalDamaged, match="is damaged") as told:
        load_request(store, run)
    assert "s3cr3t-word" not in f"{told.value.what} {told.value.why} {told.value.hint}"


def test_request_readable_by_others_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = run_with_request(store, encode_request(MINE, PROXIES))
    (file,) = tmp_path.rglob("request.json")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="cannot be continued") as told:
        load_request(store, run)
    assert "mode 0644" in told.value.why


def test_proxy_that_is_not_utf_8_is_kept(tmp_path: Path) -> None:
    store, proxies = Store(tmp_path), {"http_proxy": os.fsdecode(b"http://proxy\xff")}
    assert load_request(store, run_with_request(store, encode_request(MINE, proxies)))[1] == proxies


def test_run_without_a_request_cannot_be_resumed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.begin("setup")
    run.commit("done")
    with pytest.raises(UsageError, match="cannot be continued"):
        load_request(store, run.id)


def test_resume_command_isolates_python_and_does_not_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/gpunode", "setup", "node.toml", "--reboot", "--json"])
    assert boot_resume_command("000001-x", ["--only", "driver"]) == (
        *(sys.executable, "-I", "/usr/local/bin/gpunode"),
        *("setup", "--resume", "000001-x", "--yes", "--only", "driver"),
    )
    monkeypatch.setattr(sys, "argv", ["/opt/x/gpunode/__main__.py", "setup", "--reboot"])
    assert boot_resume_command("1", [])[:4] == (sys.executable, "-I", "-m", "gpunode")


def test_program_found_only_by_pythonpath_is_refused_at_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "explain_program_risk", lambda **_: "")
    monkeypatch.setattr(sys, "argv", ["/opt/x/gpunode/__main__.py", "setup", "--reboot"])
    monkeypatch.setenv("PYTHONPATH", "/opt/x")
    with pytest.raises(Refused, match="--reboot"):
        refuse_unsafe_program()


@as_root
@pytest.mark.parametrize("part", ["program", "folder"])
def test_program_writable_by_a_user_is_never_run_at_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "gpunode"
    program.write_text("")
    os.chown(program if part == "program" else folder, 12345, 0)
    monkeypatch.setattr(sys, "argv", [str(program), "setup"])
    assert "12345" in explain_program_risk()
    with pytest.raises(Refused, match="--reboot") as told:
        refuse_unsafe_program()
    assert "make install" in told.value.hint


@as_root
def test_package_writable_by_a_user_is_never_run_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lent"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/usr/bin/env", "setup"])
    # The process of the tests has loaded hundreds of packages, whose thousands of files are not in question.
    monkeypatch.setattr(sys, "modules", {"lent": importlib.import_module("lent")})
    assert "lent" not in explain_program_risk(packages=True)
    os.chown(package / "inner", 12345, 0)
    assert str(package / "inner") in explain_program_risk(packages=True)
    assert explain_program_risk() == ""


@as_root
def test_recipe_writable_by_a_user_is_noted_with_its_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    base, mine = tmp_path / "base.toml", tmp_path / "mine.toml"
    base.write_text('schema = 1\nextends = "containerd"\n')
    mine.write_text('schema = 1\nextends = "base.toml"\n')
    assert list(find_input_risks(str(mine), "")) == []
    os.chown(base, 12345, 0)
    (told,) = find_input_risks(str(mine), "")
    assert str(base) in told
    monkeypatch.setenv("SUDO_UID", "12345")
    assert list(find_input_risks(str(mine), "")) == []
    mine.chmod(0o666)
    assert len(list(find_input_risks(str(mine), ""))) == 1
    assert list(find_input_risks("containerd", "")) == []


def test_follow_up_commands_repeat_what_was_typed_before_the_reboot(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.begin("setup", argv=("setup", "node.toml", "--reboot")).id
    assert find_requested_argv(store, run) == ("setup", "node.toml", "--reboot")
    assert find_requested_argv(store, "") == ()
