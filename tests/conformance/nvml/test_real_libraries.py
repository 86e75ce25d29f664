"""NVIDIA's real libraries without a GPU: they fail as expected, and have the functions that gpunode calls."""

from __future__ import annotations

import ctypes
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from gpunode.facts import cuda as cuda_facts
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.cuda import CudaError
from gpunode.facts.nvml import NvmlFailure, driver_version
from gpunode.host import cuda, nvml
from gpunode.host.container import UUID_QUERY, build_image, read_libraries
from gpunode.host.process import Runner
from tests.conformance.nvml import debian
from tests.fakes.runners import EnvRunner, looked

# The first two have other names in the library; Debian's 535 has only the first version of the last.
_FOUND_OTHERWISE = {"nvmlInit", "nvmlDeviceGetPciInfo", "nvmlDeviceGetGpuFabricInfoV"}


def test_nvml_without_a_driver_reports_driver_not_loaded(tmp_path: Path) -> None:
    debian.without_gpu()
    library = debian.only("libnvidia-ml.so.*.*")
    (tmp_path / "libnvidia-ml.so.1").symlink_to(library)
    found = nvml_facts.read_nvml_answer(looked(EnvRunner(LD_LIBRARY_PATH=str(tmp_path)), nvml.make_probe()))
    assert isinstance(found, NvmlFailure)
    assert (found.code, found.name, found.text) == (9, "DriverNotLoaded", "Driver Not Loaded")
    assert driver_version(found.nvml) == library.name.removeprefix("libnvidia-ml.so.")
    assert found.library == str(library)


def test_cuda_without_a_driver_names_the_failed_call(tmp_path: Path) -> None:
    debian.without_gpu()
    (tmp_path / "libcuda.so.1").symlink_to(debian.only("libcuda.so.*.*"))
    found = cuda_facts.read_cuda_answer(looked(EnvRunner(LD_LIBRARY_PATH=str(tmp_path)), cuda.make_probe()))
    assert isinstance(found, CudaError)
    assert found.call == "cuInit"
    assert found.name == "CUDA_ERROR_NO_DEVICE"


@pytest.mark.parametrize(
    ("module", "pattern", "library"),
    [(cuda, r'"(cu[A-Z]\w+)"', "libcuda.so.*.*"), (nvml, r"nvml\.(nvml[A-Z]\w+)", "libnvidia-ml.so.*.*")],
)
def test_every_called_function_exists_in_the_real_library(module: ModuleType, pattern: str, library: str) -> None:
    import pynvml

    called = set(re.findall(pattern, Path(str(module.__file__)).read_text()))
    assert len(called) > 8
    real = ctypes.CDLL(str(debian.only(library)))
    bindings = Path(pynvml.__file__).read_text()
    for name in called:
        wrapper = re.search(rf"def {name}\(.*?(?=\ndef )", bindings, re.DOTALL)
        inner = re.search(r'_nvmlGetFunctionPointer\("(\w+)"\)', wrapper.group(0)) if wrapper else None
        assert hasattr(real, inner.group(1) if inner else name) or name in _FOUND_OTHERWISE, name


def test_real_nvidia_smi_starts_in_the_image(tmp_path: Path) -> None:
    debian.without_gpu()
    if os.geteuid() != 0:
        pytest.skip("needs root: chroot")
    program = debian.only("nvidia/current/nvidia-smi")
    _unpack(
        build_image(read_libraries(Runner(), str(program)), os.uname().machine, "localhost/check:1", UUID_QUERY),
        tmp_path,
    )
    shutil.copy(program, tmp_path / "usr/bin/nvidia-smi")

    def smi() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["chroot", str(tmp_path), *UUID_QUERY], check=False, capture_output=True, text=True, cwd="/"
        )

    assert smi().returncode == 12, "the image has brought NVML along, which the container runtime must do"
    shutil.copy(debian.only("libnvidia-ml.so.*.*"), tmp_path / "usr/lib/libnvidia-ml.so.1")
    failed = smi()
    assert failed.returncode == 9, failed.stderr
    assert "couldn't communicate with the NVIDIA driver" in failed.stdout


def _unpack(archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as outer:
        (found,) = (outer.extractfile(one) for one in outer.getmembers() if one.name.endswith("/layer.tar"))
        assert found is not None
        layer = found.read()
    with tarfile.open(fileobj=io.BytesIO(layer)) as inner:
        # Python 3.12, 3.11.4, 3.10.12 and later have filters, and warn if none is given.
        inner.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        inner.extractall(folder)
