from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.nvml import (
    ERRORS,
    TYPE_BY_NVML_VALUE,
    NoAnswer,
    NvmlFailure,
    NvmlInventory,
    UnreadNvmlValue,
    compare_versions,
    driver_version,
    explain_error,
    parse_answer,
    read_nvml_answer,
)
from gpunode.host.capture import CaptureHost

GPU: dict[str, Any] = {
    "index": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "pci": "0000:0f:00.0",
    "memory_mib": 81559,
    "persistence": True,
    "ecc": True,
    "ecc_pending": True,
    "compute_capability": "9.0",
    "mig": False,
    "mig_pending": False,
}
ANSWER: dict[str, Any] = {
    "schema": 1,
    "driver": "580.178.04",
    "cuda": "13.0",
    "nvml": "13.580.178.04",
    "library": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.178.04",
    "gpus": [GPU],
}


def _parse(answer: object) -> NvmlInventory | NvmlFailure:
    return parse_answer(json.dumps(answer).encode())


def test_inventory_is_parsed() -> None:
    found = _parse(ANSWER)
    assert isinstance(found, NvmlInventory)
    assert found.driver == "580.178.04"
    assert found.gpus[0].memory_mib == 81559
    assert found.uuids == {GPU["uuid"]}
    assert found.gpus[0].faults == ()


def test_unsupported_reading_is_no_fault_and_a_denied_one_is() -> None:
    row = {**GPU, "ecc": {"error": "NotSupported", "code": 3}, "name": {"error": "NoPermission", "code": 4}}
    found = _parse({**ANSWER, "gpus": [row]})
    assert isinstance(found, NvmlInventory)
    assert found.gpus[0].ecc == UnreadNvmlValue(3, "NotSupported")
    assert [key for key, _ in found.gpus[0].faults] == ["name"]


def test_lost_gpu_does_not_hide_the_others() -> None:
    found = _parse({**ANSWER, "gpus": [{"index": 0, "error": "GpuIsLost", "code": 15}, {**GPU, "index": 1}]})
    assert isinstance(found, NvmlInventory)
    lost, well = found.gpus
    assert lost.failure == UnreadNvmlValue(15, "GpuIsLost")
    assert all(getattr(lost, key) == lost.failure for key in TYPE_BY_NVML_VALUE)
    assert "fallen off the bus" in lost.faults[0][1].meaning
    assert well.name == GPU["name"]
    assert found.uuids == {GPU["uuid"]}


def test_nvml_failure_keeps_the_known_versions() -> None:
    error: dict[str, Any] = {
        "code": 18,
        "name": "LibRmVersionMismatch",
        "text": "RM has detected an NVML/RM version mismatch.",
    }
    found = _parse(
        {"schema": 1, "driver": {"error": "Uninitialized", "code": 1}, "nvml": "13.580.178.04", "error": error}
    )
    assert found == NvmlFailure(18, "LibRmVersionMismatch", error["text"], nvml="13.580.178.04")
    assert "different driver versions" in found.meaning
    assert "reboot" in found.remedy


def test_common_nvml_errors_have_a_meaning_and_a_remedy() -> None:
    for code in (4, 8, 9, 12, 15, 16, 18, 999):
        assert explain_error(code).meaning
        assert explain_error(code).remedy
    assert "777" in explain_error(777).meaning


def test_error_table_matches_pynvml() -> None:
    import pynvml

    theirs = {value: key for key, value in vars(pynvml).items() if key.startswith("NVML_ERROR_")}
    assert set(ERRORS) == set(theirs)
    for code, row in ERRORS.items():
        assert type(pynvml.NVMLError(code)).__name__ == f"NVMLError_{row.name}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*ANSWER, *GPU, "error", "code"]), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_parsed_or_refused(answer: object) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(_parse(answer), NvmlInventory | NvmlFailure)


@given(st.sampled_from([*ANSWER]), JSON)
def test_damaged_value_is_refused_or_unread(key: str, value: object) -> None:
    try:
        found = _parse({**ANSWER, key: value})
    except ValueError:
        return
    assert isinstance(found, NvmlInventory)
    assert all(isinstance(getattr(found, name), str | UnreadNvmlValue) for name in ("driver", "cuda", "nvml"))


@given(st.sampled_from([*TYPE_BY_NVML_VALUE]), JSON)
def test_damaged_gpu_is_refused_or_typed(key: str, value: object) -> None:
    try:
        found = _parse({**ANSWER, "gpus": [{**GPU, key: value}]})
    except ValueError:
        return
    assert isinstance(found, NvmlInventory)
    assert isinstance(getattr(found.gpus[0], key), (TYPE_BY_NVML_VALUE[key], UnreadNvmlValue))


@given(st.binary(max_size=200))
def test_any_bytes_give_no_answer(data: bytes) -> None:
    assert isinstance(read_nvml_answer(Capture("nvml", "ok", data)), NoAnswer)


def test_deep_nesting_and_newer_schemas_are_refused() -> None:
    with pytest.raises(ValueError, match="deep"):
        parse_answer(b"[" * 100_000)
    with pytest.raises(ValueError, match="schema 2"):
        _parse({**ANSWER, "schema": 2})


def test_missing_answer_is_explained() -> None:
    hung = read_nvml_answer(Capture("nvml", "timeout"))
    died = read_nvml_answer(Capture("nvml", "failed", error="x\nImportError: no pynvml", exit_status=1))
    absent = read_nvml_answer(Capture("nvml", "absent", error="no such program"))
    assert isinstance(hung, NoAnswer)
    assert hung.kind == "hangs"
    assert "did not return: the driver or a GPU hangs" in hung.reason
    assert isinstance(died, NoAnswer)
    assert died.kind == "crashed"
    assert "ImportError: no pynvml" in died.reason
    assert absent == NoAnswer("not-queried", "no such program")


def test_capture_without_nvml_does_not_say_that_it_crashed() -> None:
    found = read_nvml_answer(CaptureHost({}).run_probe(Probe("nvml", argv=("nvml",))))
    assert found == NoAnswer("not-queried", "not in this capture")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.178.04", "580.178.04"),
        ("13.580.178.04", "580.178.04"),
        ("12.535.261.03", "535.261.03"),
        ("1:580.178.04-0ubuntu1", "580.178.04"),
        ("535.261.03-1", "535.261.03"),
        ("580.95.05-0ubuntu0.24.04.1", "580.95.05"),
        ("390.48", "390.48"),
        ("9.390.48", "390.48"),
        ("550.163.01-4+deb13u1", "550.163.01"),
        ("", ""),
        ("unknown", ""),
        ("1.2.3", ""),
    ],
)
def test_driver_version_is_extracted(text: str, version: str) -> None:
    assert driver_version(text) == version


def test_equal_versions_have_no_problem() -> None:
    assert compare_versions("580.178.04", "13.580.178.04", "580.178.04-1") == ()
    assert compare_versions(None, None, "580.178.04-1") == ()
    assert compare_versions("580.178.04", None, None) == ()


def test_upgrade_under_a_loaded_module_needs_a_reboot() -> None:
    (problem,) = compare_versions("570.211.01", "13.580.178.04", "580.178.04-1")
    assert problem.what == "the loaded nvidia module (570.211.01) is older than the installed package (580.178.04)"
    assert "reboot" in problem.hint
    assert "modprobe -r" in problem.hint


def test_downgrade_under_a_loaded_module_needs_a_reboot() -> None:
    (problem,) = compare_versions("595.91.07", "13.580.178.04", "580.178.04-1")
    assert "is newer than" in problem.what
    assert problem.hint.startswith("reboot")


def test_stray_library_is_not_fixed_by_a_reboot() -> None:
    (problem,) = compare_versions("580.178.04", "12.535.261.03", "580.178.04-1")
    assert problem.what == "the NVML library in use (535.261.03) is older than the installed package (580.178.04)"
    assert "a reboot does not help" in problem.hint


def test_unpackaged_driver_is_compared_with_its_library() -> None:
    (older,) = compare_versions("570.211.01", "13.580.178.04", None)
    (newer,) = compare_versions("580.178.04", "12.570.211.01", None)
    assert "older" in older.what
    assert older.hint.startswith("reboot")
    assert "newer" in newer.what
    assert "does not help" in newer.hint


VERSIONS = st.tuples(st.integers(300, 999), st.integers(0, 300), st.integers(0, 99)).map(
    lambda v: f"{v[0]}.{v[1]:02}.{v[2]:02}"
)


@given(VERSIONS, VERSIONS)
def test_version_comparison_is_antisymmetric(one: str, other: str) -> None:
    forth, back = compare_versions(one, None, other), compare_versions(other, None, one)
    assert len(forth) == len(back) == (one != other)
    if forth:
        assert {"older" in forth[0].what, "older" in back[0].what} == {True, False}
