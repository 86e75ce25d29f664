"""verify's checks of the driver: the results of NVML, the device files and a vector addition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

from gpunode.catalog.fabric import MANAGER_UNIT
from gpunode.check import Check, CheckStatus
from gpunode.command import command
from gpunode.errors import Undetermined
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.model import Facts, Known, Unknown, value_or
from gpunode.facts.nvml import Gpu, NoAnswer, NvmlAnswer, NvmlFailure, NvmlInventory, UnreadNvmlValue
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Recipe
from gpunode.steps.fabric import find_fabric
from gpunode.steps.gpus import find_gpus
from gpunode.steps.installed_driver import is_at_version, packages_with_library
from gpunode.steps.selection import WantedDriver, mismatched_packages, wanted_driver

_NVML_TITLE = "the driver answers (NVML)"
_NVML_LIBRARY_NOT_FOUND_CODE = 12  # NVML_ERROR_LIBRARY_NOT_FOUND, nvml.h


def driver_checks(recipe: Recipe, facts: Facts, answer: NvmlAnswer) -> Iterator[Check]:
    """Yield checks that the driver answers, has one version in all its parts, and is reachable by programs."""
    if recipe.driver.version == "none" and not isinstance(answer, NvmlInventory) and _has_neither_gpu_nor_driver(facts):
        yield Check("nvml", _NVML_TITLE, "skipped", "no NVIDIA GPU found", "")
        return
    yield from _check_nvml(recipe, facts, answer)
    yield from _check_versions(recipe, facts, answer)
    if not isinstance(answer, NoAnswer) and answer.libcuda_error:
        yield _check_libcuda(recipe, facts, answer.libcuda_error)
    if isinstance(answer, NvmlInventory):
        yield from _check_device_nodes(facts, answer)


def _has_neither_gpu_nor_driver(facts: Facts) -> bool:
    devices, loaded = facts.devices, facts.loaded_driver
    return isinstance(devices, Known) and not find_gpus(devices.value) and loaded == Known(None, loaded.probe)


def gpu_count_text(number: int) -> str:
    """Return ``1 GPU``, ``8 GPUs``."""
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _check_nvml(recipe: Recipe, facts: Facts, answer: NvmlAnswer) -> Iterator[Check]:
    check = partial(Check, "nvml", _NVML_TITLE)
    if isinstance(answer, NoAnswer):
        status: CheckStatus = "skipped" if answer.kind == "not-queried" else "failed"
        yield check(status, answer.reason, "read `dmesg | grep -iE 'nvrm|xid'`")
        return
    if isinstance(answer, NvmlFailure):
        is_lost = answer.code == _NVML_LIBRARY_NOT_FOUND_CODE
        hint = _library_hint("libnvidia-ml1", recipe, facts) if is_lost else answer.remedy
        yield check("failed", f"{answer.name} ({answer.code}): {answer.meaning}", hint)
        return
    if not answer.gpus:
        yield check("failed", f"driver {answer.driver} sees no GPU", "read `dmesg | grep -i nvrm`")
        return
    yield check("passed", f"driver {answer.driver}, CUDA {answer.cuda}, {gpu_count_text(len(answer.gpus))}")
    for gpu in answer.gpus:
        yield _check_gpu(gpu)


def _check_gpu(gpu: Gpu) -> Check:
    id, title = f"gpu-{gpu.index}", f"GPU {gpu.index}"  # noqa: A001 - the check's own word
    if gpu.faults:
        name, fault = gpu.faults[0]
        return Check(id, title, "failed", f"{name}: {fault.meaning}", fault.remedy)
    traits = [
        str(gpu.name),
        f"{gpu.memory_mib} MiB" if isinstance(gpu.memory_mib, int) else "",
        str(gpu.uuid),
        _describe_on_off("persistence", gpu.persistence),
        _describe_on_off("ECC", gpu.ecc),
    ]
    return Check(id, title, "passed", ", ".join(trait for trait in traits if trait))


def _describe_on_off(name: str, value: bool | UnreadNvmlValue) -> str:
    if isinstance(value, UnreadNvmlValue):
        return ""
    return f"{name} {'on' if value else 'off'}"


def _check_versions(recipe: Recipe, facts: Facts, answer: NvmlAnswer) -> Iterator[Check]:
    """Yield the check that the loaded module, the library in use and the installed package are one driver."""
    title = "module, library, package: one version"
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    module = loaded.version if loaded else None
    library = None if isinstance(answer, NoAnswer) else str(answer.nvml or "")
    driver = _managed_driver(recipe, facts)
    package = _driver_package_version(recipe, facts, driver)
    problems = nvml_facts.compare_versions(module, library, package)
    for problem in problems:
        yield Check("versions", title, "failed", problem.what, problem.hint)
    # An upgrade counts every installed version as outdated; here the question is what it has led to.
    strays = mismatched_packages(replace(recipe, upgrade=False), facts, driver) if driver else ()
    for stray in strays:
        what = f"{stray} is {value_or(facts.packages, {})[stray].version}, the installed package {package}"
        yield Check("versions", title, "failed", what, "change it to the driver's version:\nsudo gpunode setup")
    if not problems and not strays and module:
        seen = nvml_facts.driver_version(library or "")
        status: CheckStatus = "passed" if seen or package else "skipped"  # nothing to compare the module with
        detail = f"module {module}, library {seen or 'not reported by NVML'}, package {package or 'none'}"
        yield Check("versions", title, status, detail)


def _check_libcuda(recipe: Recipe, facts: Facts, error: str) -> Check:
    """Return the failed check of the library that every CUDA program loads; nvidia-smi works without it."""
    return Check(
        "libcuda", "programs can load CUDA's library", "failed", error, _library_hint("libcuda1", recipe, facts)
    )


def _library_hint(library: Literal["libcuda1", "libnvidia-ml1"], recipe: Recipe, facts: Facts) -> str:
    """Return how to repair a library that the loader does not find.

    setup looks at packages, not at their files, so it would find nothing to do where the package is there.
    """
    if packages := packages_with_library(library, value_or(facts.packages, {})):
        anew = deb.reinstall_command(packages)
        return f"its package is installed: reinstall it, then check what the loader finds:\nsudo {anew}\nldconfig -p"
    if _managed_driver(recipe, facts):
        return "install the driver's libraries with `sudo gpunode setup`"
    if isinstance(facts.loaded_driver, Known) and facts.loaded_driver.value is None:
        return "the library comes with a driver: this node has none loaded, and gpunode manages none here"
    name = f"{library.removesuffix('1')}.so.1"
    return f"install {name} of the loaded driver from where this driver comes from: gpunode does not manage it"


def _managed_driver(recipe: Recipe, facts: Facts) -> WantedDriver | None:
    """Return the driver that the node should have; None if gpunode manages none, or if that is unknown."""
    try:
        driver = wanted_driver(recipe, facts)
    except Undetermined:
        return None
    return driver if isinstance(driver, WantedDriver) else None


def _driver_package_version(recipe: Recipe, facts: Facts, driver: WantedDriver | None) -> str | None:
    """Return the version of the driver's kernel modules, or else of its first installed package; None without one."""
    if driver is None:
        return None
    packages = value_or(facts.packages, {})
    named = (PackageId(driver.family.dkms_package(driver.chosen)), *driver.packages(recipe))
    return next((packages[package].version for package in named if is_at_version(packages.get(package), "")), None)


def _check_device_nodes(facts: Facts, inventory: NvmlInventory) -> Iterator[Check]:
    """Yield the check of /dev/nvidiactl and of a /dev/nvidiaN for every GPU, which every process needs."""
    if isinstance(facts.device_nodes, Unknown):
        return
    nodes, layout = facts.device_nodes.value, value_or(facts.layout, None)
    # In a container whose GPUs do not include the first, NVML's indices differ from the device files' numbers.
    is_complete = sum(path.removeprefix("/dev/nvidia").isdecimal() for path in nodes) >= len(inventory.gpus)
    minors = () if is_complete else (layout and layout.minors) or [gpu.index for gpu in inventory.gpus]
    wanted = {"/dev/nvidiactl": 255, **{f"/dev/nvidia{minor}": minor for minor in minors}}
    check = partial(Check, "device-nodes", "device nodes")
    if missing := sorted(wanted.keys() - nodes):
        create = command("nvidia-modprobe", *(f"--create-nvidia-device-file={wanted[path]}" for path in missing))
        yield check("failed", f"missing: {', '.join(missing)}", str(create))
    else:
        yield check("passed", f"{len(inventory.gpus) + 1} under /dev")


def check_vector_addition(host: HostView) -> Check:
    """Check that every GPU adds correctly."""
    from gpunode.facts.cuda import CudaTestResult, read_cuda_answer
    from gpunode.host import cuda

    check = partial(Check, "cuda", "vector addition on every GPU (CUDA)")
    answer = read_cuda_answer(host.run_probe(cuda.make_probe()))
    if isinstance(answer, NoAnswer):
        return check("failed", answer.reason, "read `dmesg | grep -iE 'nvrm|xid'`")
    if not isinstance(answer, CudaTestResult):
        return check("failed", str(answer), answer.remedy)
    if answer.passed:
        elements = sum(gpu.elements for gpu in answer.gpus)
        return check("passed", f"Test PASSED: {elements} sums right on {gpu_count_text(len(answer.gpus))}")
    wrong = "; ".join(
        f"GPU {gpu.index} {gpu.name}: {gpu.error or f'{gpu.mismatches} of {gpu.elements} sums wrong'}"
        for gpu in answer.gpus
        if not gpu.passed
    )
    return check("failed", wrong or "CUDA sees no GPU", "take the GPU out of service and read `dmesg`")


# NVIDIA's own scripts give up after about two minutes.
_PATIENCE_S, _POLL_INTERVAL_S = 120.0, 3.0
_JOINING_STATES = frozenset({"not started", "in progress"})


def await_fabric(facts: Facts, host: HostView, answer: NvmlAnswer) -> NvmlAnswer:
    """Return NVML's answer once no GPU is still joining the fabric; after two minutes, the latest answer.

    Waits only if the fabric manager runs: without it nothing will change.
    """
    until = time.monotonic() + _PATIENCE_S
    while _is_manager_active(facts) and isinstance(answer, NvmlInventory) and time.monotonic() < until:
        if not any(gpu.fabric in _JOINING_STATES for gpu in answer.gpus):
            break
        time.sleep(_POLL_INTERVAL_S)
        answer = nvml_facts.read_nvml_answer(host.run_probe(nvml.make_probe()))
    return answer


def fabric_checks(facts: Facts, answer: NvmlAnswer) -> Iterator[Check]:
    """Yield the check of a machine with NVSwitches; none for other machines, or if NVML does not answer."""
    fabric = find_fabric(facts)
    if fabric is None or fabric.kind == "rack" or not isinstance(answer, NvmlInventory) or not answer.gpus:
        return
    check = partial(Check, "fabric", "the GPUs are registered with the NVSwitches")
    hint = f"look at its log: systemctl status {MANAGER_UNIT}; journalctl -b -u {MANAGER_UNIT}"
    # In a container the service is the host's, so only the GPUs' own states are visible.
    is_host = isinstance(facts.platform, Known) and facts.platform.value.can_install_kernel_driver
    if is_host and not facts.can_start(MANAGER_UNIT):
        yield check("skipped", f"systemd did not report whether {MANAGER_UNIT} runs")
        return
    if is_host and not _is_manager_active(facts):
        yield check("failed", f"{fabric.seen}, and {MANAGER_UNIT} does not run", hint)
        return
    states = [str(gpu.fabric) for gpu in answer.gpus if isinstance(gpu.fabric, str)]
    known = [state for state in states if state != "not supported"]
    unread = [gpu.fabric for gpu in answer.gpus if isinstance(gpu.fabric, UnreadNvmlValue) and gpu.fabric.supported]
    if unfinished := sorted({state for state in known if state != "completed"}):
        behind = ", ".join(f"{known.count(state)} of {len(answer.gpus)} {state}" for state in unfinished)
        yield check("failed", behind, hint)
    elif unread:
        yield check("skipped", f"{len(unread)} of {len(answer.gpus)} did not report their state: {unread[0]}", hint)
    elif not known and not is_host:
        yield check("skipped", f"these GPUs report no state, and {MANAGER_UNIT} runs on the host")
    elif known:
        yield check("passed", f"{len(known)} of {len(answer.gpus)} completed")
    else:
        # GPUs up to Ampere have no such state: the service has programmed the switches, or has exited.
        yield check("passed", f"{MANAGER_UNIT} runs; these GPUs report no state of their own")


def _is_manager_active(facts: Facts) -> bool:
    unit = facts.unit(MANAGER_UNIT)
    return isinstance(unit, Known) and unit.value.exists and unit.value.state.active
