from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.host import container
from gpunode.host.container import (
    ContainerCheck,
    ContainerCommands,
    check_container,
    containerd_commands,
    docker_commands,
    parse_uuids,
    read_libraries,
)
from gpunode.host.process import FinishedCommand
from tests.fakes.runners import ScriptedRunner, ended

A, B = (f"GPU-0000000{n}-aaaa-bbbb-cccc-0123456789ab" for n in (1, 2))


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make a host with nvidia-smi; its files do not matter here."""
    smi = tmp_path / "nvidia-smi"
    smi.touch()
    monkeypatch.setattr(container, "read_libraries", lambda runner, program: {})
    monkeypatch.setattr(container, "_NVIDIA_SMI_PATHS", (str(smi),))


def _answering(out: str = "", status: int = 0, *, late: bool = False, import_fails: bool = False) -> ScriptedRunner:
    def answer(argv: tuple[str, ...]) -> FinishedCommand:
        if "run" in argv:
            return ended(argv, status, out.encode(), b"the runtime's own words", late=late)
        if import_fails and ("import" in argv or "load" in argv):
            return ended(argv, 1, err=b"no space left on device")
        return ended(argv)

    return ScriptedRunner(answer)


BOTH = pytest.mark.parametrize(
    "commands", [containerd_commands("t"), docker_commands("t")], ids=["containerd", "docker"]
)


@BOTH
def test_matching_gpus_pass_and_everything_is_removed(commands: ContainerCommands) -> None:
    runner = _answering(f"{A}\n{B}\n")
    found = check_container(runner, commands, [B, A])
    assert found.passed
    assert found.problems == ()
    assert runner.calls == [commands.load, commands.run, *commands.remove]
    assert runner.stdin[0], "the image comes by standard input"


@BOTH
def test_missing_or_unexpected_gpu_is_named(commands: ContainerCommands) -> None:
    missing = check_container(_answering(A), commands, [A, B])
    strange = check_container(_answering(f"{A}\n{B}"), commands, [A])
    assert not missing.passed
    assert missing.problems == (f"the container does not see {B}",)
    assert not strange.passed
    assert strange.problems == (f"the container sees {B}, which NVML does not list",)


@BOTH
@pytest.mark.parametrize("late", [False, True])
def test_failing_or_hanging_container_is_removed(commands: ContainerCommands, late: bool) -> None:
    runner = _answering(status=1, late=late)
    found = check_container(runner, commands, [A])
    assert not found.passed
    assert "the container did not run" in found.failure
    assert ("timed out after" in found.failure) == late
    assert "the runtime's own words" in found.failure
    assert runner.calls == [commands.load, commands.run, *commands.force_remove, *commands.remove]


@BOTH
def test_image_that_cannot_be_loaded_runs_nothing_and_is_removed(commands: ContainerCommands) -> None:
    runner = _answering(import_fails=True)
    found = check_container(runner, commands, [A])
    assert "no space left on device" in found.failure
    assert runner.calls == [commands.load, *commands.remove]


@BOTH
def test_interruption_removes_the_container(commands: ContainerCommands) -> None:
    def answer(argv: tuple[str, ...]) -> FinishedCommand:
        if argv == commands.run:
            raise KeyboardInterrupt
        return ended(argv)

    runner = ScriptedRunner(answer)
    with pytest.raises(KeyboardInterrupt):
        check_container(runner, commands, [A])
    assert runner.calls[-len(commands.remove) :] == list(commands.remove)
    assert set(commands.force_remove) <= set(runner.calls)


def test_failed_cleanup_is_reported_with_the_command() -> None:
    commands = docker_commands("t")

    def answer(argv: tuple[str, ...]) -> FinishedCommand:
        if argv in commands.remove:
            return ended(argv, 1, err=b"image is in use")
        return ended(argv, out=A.encode())

    found = check_container(ScriptedRunner(answer), commands, [A])
    assert found.passed
    assert found.leftovers == ("docker image rm --force localhost/gpunode-check:t: image is in use",)


def test_missing_nvidia_smi_is_reported_and_nothing_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_NVIDIA_SMI_PATHS", ("/nonexistent/nvidia-smi",))
    runner = _answering()
    found = check_container(runner, docker_commands("t"), [A])
    assert "nvidia-smi is not installed" in found.failure
    assert runner.calls == []


@pytest.mark.parametrize(
    ("status", "out", "reason"),
    [
        (127, "", "ldd is missing; it comes with glibc"),
        (1, "\tnot a dynamic executable\n", "not a dynamic executable"),
        (0, "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibgone.so.1 => not found\n", "libgone.so.1 is missing"),
    ],
)
def test_libraries_not_found_by_ldd_are_named(tmp_path: Path, status: int, out: str, reason: str) -> None:
    runner = ScriptedRunner(lambda argv: ended(argv, status, out.encode()))
    with pytest.raises(ValueError, match=reason):
        read_libraries(runner, str(tmp_path / "nvidia-smi"))


def test_ldd_is_not_run_on_a_program_writable_by_others(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.chmod(0o757)
    runner = ScriptedRunner(ended)
    with pytest.raises(ValueError, match=r"ldd may run .*every user can write"):
        read_libraries(runner, str(program))
    assert runner.calls == []


def test_host_without_gpus_never_passes() -> None:
    found = check_container(_answering(), docker_commands("t"), [])
    assert not found.passed
    assert found.problems


def test_check_uses_its_own_namespace_and_no_network() -> None:
    one = containerd_commands("t")
    ctr = [argv for argv in (one.load, one.run, *one.force_remove, *one.remove) if argv[0] == "ctr"]
    assert all(argv[3:5] == ("--namespace", "gpunode-t") for argv in ctr)
    assert "none" in docker_commands("t").run


@given(st.binary())
def test_any_output_is_parsed_without_a_crash(output: bytes) -> None:
    assert all(one.startswith("GPU-") for one in parse_uuids(output))


@given(st.frozensets(st.sampled_from([A, B])), st.frozensets(st.sampled_from([A, B])))
def test_check_passes_exactly_without_problems(expected: frozenset[str], seen: frozenset[str]) -> None:
    found = ContainerCheck(expected, seen)
    assert found.passed == (not found.problems) == (expected == seen and bool(expected))


def test_uuids_are_parsed_from_nvidia_smi() -> None:
    listing = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {A})\n{B}\nUnable to determine the device handle\n"
    assert parse_uuids(listing.encode()) == {A, B}
