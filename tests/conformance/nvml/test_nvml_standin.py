"""The real pynvml in the real child program, driven by a stand-in for libnvidia-ml.so.1 (tests/fakes/nvml)."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpunode
from gpunode.facts.nvml import (
    ERRORS,
    NoAnswer,
    NvmlAnswer,
    NvmlFailure,
    NvmlInventory,
    UnreadNvmlValue,
    read_nvml_answer,
)
from gpunode.host.nvml import child_argv, make_probe
from tests.fakes.compile import library
from tests.fakes.runners import EnvRunner, looked

# The functions that read one GPU, and the readings that are missing if each fails.
READERS = {
    "nvmlDeviceGetName": ["name"],
    "nvmlDeviceGetUUID": ["uuid"],
    "nvmlDeviceGetPciInfo_v3": ["pci"],
    "nvmlDeviceGetMemoryInfo": ["memory_mib"],
    "nvmlDeviceGetPersistenceMode": ["persistence"],
    "nvmlDeviceGetEccMode": ["ecc", "ecc_pending"],
    "nvmlDeviceGetCudaComputeCapability": ["compute_capability"],
    "nvmlDeviceGetMigMode": ["mig", "mig_pending"],
    "nvmlDeviceGetGpuFabricInfoV": ["fabric"],
}


def _ask(gpus: int = 1, faults: str = "", timeout_s: float = 60.0, fabric: int = 0) -> NvmlAnswer:
    folder = str(library("nvml/nvml.c", "libnvidia-ml.so.1"))
    settings = {"FAKE_NVML_GPUS": str(gpus), "FAKE_NVML_FAULTS": faults, "FAKE_NVML_FABRIC": str(fabric)}
    runner = EnvRunner(LD_LIBRARY_PATH=folder, **settings)
    return read_nvml_answer(looked(runner, make_probe(timeout_s)))


@pytest.mark.parametrize("count", [0, 1, 8, 16])
def test_every_gpu_is_listed_with_its_readings(count: int) -> None:
    found = _ask(count)
    assert isinstance(found, NvmlInventory)
    assert (found.driver, found.cuda, found.nvml) == ("580.178.04", "13.0", "13.580.178.04")
    assert found.library.endswith("/libnvidia-ml.so.1")
    assert [gpu.index for gpu in found.gpus] == list(range(count))
    assert len(found.uuids) == count
    for gpu in found.gpus:
        assert gpu.pci == f"0000:{0x0F + gpu.index:02x}:00.0"
        assert (gpu.name, gpu.memory_mib, gpu.compute_capability) == ("NVIDIA H100 80GB HBM3", 81559, "9.0")
        assert (gpu.persistence, gpu.ecc, gpu.ecc_pending, gpu.mig, gpu.mig_pending) == (True, True, False, False, True)


@pytest.mark.parametrize(
    ("state", "faults", "words"),
    [
        (0, "", "not supported"),
        (1, "", "not started"),
        (2, "", "in progress"),
        (3, "", "completed"),
        (3, "fabric-status=999", "failed with Unknown"),
        (7, "", "state 7"),
    ],
)
def test_fabric_state_of_each_gpu_is_read(state: int, faults: str, words: str) -> None:
    found = _ask(2, faults, fabric=state)
    assert isinstance(found, NvmlInventory)
    assert [gpu.fabric for gpu in found.gpus] == [words, words]


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_nvml_init_error_is_named(code: int) -> None:
    found = _ask(faults=f"nvmlInitWithFlags={code}")
    assert isinstance(found, NvmlFailure)
    assert (found.code, found.name) == (code, ERRORS[code].name)
    assert found.text
    assert found.nvml == "13.580.178.04"


def test_unknown_error_keeps_its_number() -> None:
    found = _ask(faults="nvmlInitWithFlags=777")
    assert isinstance(found, NvmlFailure)
    assert (found.code, found.name) == (777, "Error777")


def test_failed_gpu_count_is_a_failure_of_nvml() -> None:
    found = _ask(faults="nvmlDeviceGetCount_v2=999")
    assert isinstance(found, NvmlFailure)
    assert found.name == "Unknown"


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_unresponsive_gpu_does_not_hide_the_others(code: int) -> None:
    found = _ask(8, f"nvmlDeviceGetHandleByIndex_v2@3={code}")
    assert isinstance(found, NvmlInventory)
    assert len(found.gpus) == 8
    assert found.gpus[3].failure == UnreadNvmlValue(code, ERRORS[code].name)
    assert all(gpu.failure is None for gpu in found.gpus if gpu.index != 3)
    assert len(found.uuids) == 7


@pytest.mark.parametrize("reader", READERS)
def test_error_of_one_reading_leaves_the_others(reader: str) -> None:
    codes = sorted(ERRORS)
    found = _ask(len(codes), ",".join(f"{reader}@{index}={code}" for index, code in enumerate(codes)))
    assert isinstance(found, NvmlInventory)
    for gpu, code in zip(found.gpus, codes, strict=True):
        for key in READERS[reader]:
            assert getattr(gpu, key) == UnreadNvmlValue(code, ERRORS[code].name)
        others = {key for keys in READERS.values() for key in keys} - set(READERS[reader])
        assert not any(isinstance(getattr(gpu, key), UnreadNvmlValue) for key in others)


@pytest.mark.parametrize(
    "function", ["nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetNVMLVersion"]
)
def test_unreadable_version_leaves_the_gpus(function: str) -> None:
    found = _ask(2, f"{function}=4")
    assert isinstance(found, NvmlInventory)
    assert UnreadNvmlValue(4, "NoPermission") in (found.driver, found.cuda, found.nvml)
    assert len(found.uuids) == 2


def test_undecodable_name_is_one_unread_value() -> None:
    found = _ask(2, "nvmlDeviceGetName@0=garbage")
    assert isinstance(found, NvmlInventory)
    assert isinstance(found.gpus[0].name, UnreadNvmlValue)
    assert found.gpus[1].name == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    "function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2@5", "nvmlDeviceGetName@5"]
)
def test_hanging_call_is_stopped_and_reported(function: str) -> None:
    found = _ask(8, f"{function}=hang", timeout_s=2)
    assert isinstance(found, NoAnswer)
    assert found.kind == "hangs"
    assert "did not return within 2 s" in found.reason


def test_library_that_kills_the_child_is_reported() -> None:
    found = _ask(8, "nvmlDeviceGetName@5=abort")
    assert isinstance(found, NoAnswer)
    assert found.kind == "crashed"


def test_missing_library_is_the_failure() -> None:
    found = read_nvml_answer(looked(EnvRunner(), make_probe()))
    if isinstance(found, NvmlInventory) or getattr(found, "code", 12) != 12:
        pytest.skip("this machine has an NVIDIA driver's library")
    assert isinstance(found, NvmlFailure)
    assert found.name == "LibraryNotFound"


def test_child_imports_only_what_it_needs() -> None:
    code = "import sys; from gpunode.host import nvml; print(*(m for m in sys.modules if m.startswith('gpunode')))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path(gpunode.__file__).parents[1]
    )
    assert set(done.stdout.split()) == {"gpunode", "gpunode.host", "gpunode.host.child", "gpunode.host.nvml"}


def test_modules_in_the_working_folder_are_not_run(tmp_path: Path) -> None:
    for name in ("pynvml.py", "json.py", "gpunode.py", "sitecustomize.py"):
        (tmp_path / name).write_text("import os; os.write(1, b'taken over'); os._exit(3)\n")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library("nvml/nvml.c", "libnvidia-ml.so.1")),
        "PYTHONPATH": str(tmp_path),
    }
    done = subprocess.run(child_argv(), check=False, capture_output=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(b'{"schema": 1')


def test_child_runs_as_a_module() -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library("nvml/nvml.c", "libnvidia-ml.so.1"))}
    environment["PYTHONPATH"] = str(Path(gpunode.__file__).parents[1])
    command = [sys.executable, "-m", "gpunode.host.nvml"]
    done = subprocess.run(command, check=True, capture_output=True, cwd="/", env=environment)
    assert done.stdout.startswith(b'{"schema": 1')
    assert b"a line that a library prints" in done.stderr


def test_child_runs_from_a_zipapp(tmp_path: Path) -> None:
    import pynvml

    archive = tmp_path / "gpunode.pyz"
    root = Path(gpunode.__file__).parents[1]
    with zipfile.ZipFile(archive, "w") as out:
        for file in (root / "gpunode").rglob("*.py"):
            out.write(file, file.relative_to(root))
        out.write(pynvml.__file__, "pynvml.py")
        # The parent process that a user starts: it queries with the command from its own child_argv().
        out.writestr(
            "__main__.py",
            "import subprocess; from gpunode.host.nvml import child_argv as argv; print(argv()); "
            "subprocess.run(argv(), check=True)",
        )
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library("nvml/nvml.c", "libnvidia-ml.so.1"))}
    done = subprocess.run(
        [sys.executable, "-I", str(archive)], check=True, capture_output=True, text=True, cwd="/", env=environment
    )
    assert str(archive) in done.stdout
    assert str(root) + "'" not in done.stdout
    assert '"driver": "580.178.04"' in done.stdout
