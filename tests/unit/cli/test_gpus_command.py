from __future__ import annotations

import json

import pytest

from gpunode.cli.gpus import gpus
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import UsageError


def _answer(capsys: pytest.CaptureFixture[str], node: str = "", named: str = "") -> list[dict[str, object]]:
    gpus(OutputOptions(json=True, verbose=False), node, named)
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["result"]["gpus"]
    return found


def test_a_node_shows_its_own_gpus_with_their_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    (gpu,) = _answer(capsys, node="debian12-gtx1080")
    assert gpu["names"] == ["NVIDIA GeForce GTX 1080"]
    assert gpu["addresses"] == ["0000:01:00.0"]
    assert gpu["driver"] == {
        "branch": 580,
        "kernel_module_type": "proprietary",
        "reason": "580 is the last branch that supports it; open modules need Turing or newer",
    }
    assert (gpu["cuda"], gpu["end_of_life"]) == ("12.9", "2028-06")


def test_ids_and_names_can_be_mixed_and_equal_models_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = _answer(capsys, named="10de:1EB8, Tesla T4,GeForce GT 730")
    assert found[0]["device_ids"] == ["10de:1eb8"]
    assert {gpu["architecture"] for gpu in found[1:]} == {"Fermi", "Kepler"}
    assert all(gpu["driver"] is None and gpu["refusal"] for gpu in found[1:])


def test_gpu_of_exactly_that_name_is_shown_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = _answer(capsys, named="GTX 1080")
    assert found[0]["names"] == ["NVIDIA GeForce GTX 1080", "NVIDIA GeForce GTX 1080 Ti"]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("1002:73bf", "not a device of NVIDIA's"),
        ("10de:10f0", "names no GPU"),
        ("Voodoo 2", "no GPU of that name is known"),
        (" ,", "names no GPU"),
        ("rtx", "GPUs have such a name"),
    ],
)
def test_name_of_no_single_gpu_is_refused_with_a_next_command(named: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        gpus(OutputOptions(json=False, verbose=False), "", named)
    assert caught.value.hint


def test_the_screen_says_when_fixes_end_and_what_limits_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    gpus(OutputOptions(json=False, verbose=False), "debian12-gtx1080", "")
    shown = capsys.readouterr().out
    assert "no later branch supports it; fixes end 2028-06" in shown
    assert "CUDA      up to 12.9; later releases do not compile for Pascal" in shown
