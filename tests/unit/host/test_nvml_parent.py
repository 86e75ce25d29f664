from __future__ import annotations

from gpunode.facts.evidence import Capture
from gpunode.facts.nvml import NoAnswer, NvmlFailure, read_nvml_answer
from gpunode.host.nvml import child_argv, make_probe
from tests.fakes.runners import ScriptedRunner, ended, looked

NOT_LOADED = b'{"schema":1,"error":{"code":9,"name":"DriverNotLoaded","text":"Driver Not Loaded"}}'


def test_nvml_answer_is_the_same_live_and_captured() -> None:
    runner = ScriptedRunner(lambda argv: ended(argv, out=NOT_LOADED))
    live = read_nvml_answer(looked(runner, make_probe()))
    assert live == NvmlFailure(9, "DriverNotLoaded", "Driver Not Loaded")
    assert read_nvml_answer(Capture(make_probe().source, "ok", NOT_LOADED)) == live
    assert runner.calls == [child_argv()]
    assert make_probe().argv == child_argv()
    assert make_probe().timeout_s == 30


def test_hanging_driver_is_reported_as_hanging() -> None:
    found = read_nvml_answer(looked(ScriptedRunner(lambda argv: ended(argv, late=True)), make_probe(30)))
    assert isinstance(found, NoAnswer)
    assert found.kind == "hangs"
    assert "a call into the NVIDIA driver did not return within 30 s" in found.reason


def test_crashed_child_is_reported_with_its_output() -> None:
    said = b"Traceback\nModuleNotFoundError: No module named 'pynvml'"
    found = read_nvml_answer(looked(ScriptedRunner(lambda argv: ended(argv, 1, err=said)), make_probe()))
    assert isinstance(found, NoAnswer)
    assert found.kind == "crashed"
    assert "No module named 'pynvml'" in found.reason
