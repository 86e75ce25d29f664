"""Programs, frameworks and their libcuda: built for another CUDA or GPU, without CUDA, or not the driver's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Command, Shell, edit_files, is_path_below
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import (
    align_fabric_manager,
    make_fixed_remedy,
    manual_step,
    reboot_node,
    run_step,
    upgrade_driver_for_cuda,
)
from gpunode.diagnoses.signs import all_of, any_of, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import cuda, driver
from gpunode.facts.patterns import Pattern

_IMAGE_REQUIREMENT: Final = Pattern(r"unsatisfied condition: (?P<what>(?:cuda|driver|brand)[^\n]{0,80})")
_DRIVER_BELOW_IMAGE_MESSAGE: Final = Pattern(
    r"unsupported CUDA version: driver (?P<has>[1-9]\d*\.\d) < image (?P<needs>\d+\.\d)"
)


def _too_new_builds(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    """Yield the CUDA versions of programs and images that the driver is too old for."""
    has = cuda.supported_cuda(snapshot)
    for version, citation in snapshot.view(cuda.cuda_runtimes):
        if has is not None and not cuda.can_run_on_driver(snapshot, version, has):
            yield cuda.format_version(version), citation


_DRIVER_INSUFFICIENT: Final = message_line(cuda.DRIVER_INSUFFICIENT_MESSAGE.pattern)
_CALL_NEEDS_NEWER_DRIVER: Final = message_line(cuda.CALL_NEEDS_NEWER_DRIVER.pattern)
_IMAGE_NEEDS_NEWER_DRIVER: Final = message_line(
    r"built for NVIDIA Driver Release [\d.]+ or later, but[\s\n]+version [\d.]+ was detected"
    r"\s+and compatibility mode is UNAVAILABLE"
)
_DRIVER_TOO_OLD: Final = any_of(
    message_line(_IMAGE_REQUIREMENT.pattern),
    message_line(_DRIVER_BELOW_IMAGE_MESSAGE.pattern),
    message_line(cuda.DRIVER_TOO_OLD.pattern),
    # CUDA.jl and FFmpeg
    message_line(r"\byour driver \(which supports up to \d|Driver does not support the required nvenc API version"),
    unless(_IMAGE_NEEDS_NEWER_DRIVER, message_line(cuda.COMPAT_UNSUPPORTED_MESSAGE.pattern)),
)
_CUDA_RUNTIME_SEEN: Final = custom_sign(
    lambda snapshot: (citation for _, citation in snapshot.view(cuda.cuda_runtimes))
)
_DRIVER_SUPPORTS_NAMED_CUDA: Final = predicate(
    lambda node: bool(cuda.supported_cuda(node) and node.view(cuda.cuda_runtimes)) and not any(_too_new_builds(node)),
    "the driver supports all CUDA versions that are named",
)
_CUDA_TOO_NEW: Final = custom_sign(lambda snapshot: (place for _, place in _too_new_builds(snapshot)))
_DRIVER_AT_TWO_VERSIONS: Final = predicate(driver.has_two_versions, "the node's own driver is at two versions")


# A missing or broken driver causes the same CUDA errors.
_DRIVER_FAILURE_SYMPTOMS: Final = (
    *(symptoms.NO_DRIVER, symptoms.NO_MODULE, symptoms.NO_NVML_LIBRARY, symptoms.DRIVER_MISMATCH, symptoms.NO_DEVICES),
    *(symptoms.CUDA_FINDS_NO_DEVICE, symptoms.ADAPTER_INIT_FAILED, symptoms.NO_GPU_ON_BUS, symptoms.IN_CONTAINER),
)


def _summarize_mismatch(snapshot: Snapshot) -> str:
    has = cuda.supported_cuda(snapshot)
    mine = f"; the node's driver supports CUDA {cuda.format_version(has)}" if has else ""
    if match := snapshot.match(_IMAGE_REQUIREMENT):
        return f"the image requires {match['what'].split(',')[0].strip()}{mine}"
    built = next((f"CUDA {one}" for one, _ in _too_new_builds(snapshot)), "a newer CUDA than the driver knows")
    return f"the program was built with {built}{mine}"


def _upgrade_driver(snapshot: Snapshot) -> Iterable[Fix]:
    release = cuda.requested_cuda_release(snapshot)
    least = f" to {release.driver} or later" if release else ""
    newer = tuple(upgrade_driver_for_cuda(snapshot, f"upgrade the driver{least}"))
    yield from newer
    if any(fix.commands for fix in newer):
        yield from align_fabric_manager(snapshot)
        yield reboot_node()
    yield manual_step("application", f"or use an image{_cuda_limit_phrase(snapshot)}")


_NO_KERNEL_IMAGE: Final = message_line(
    r"no kernel image is available for execution|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"
    r"|is not compatible with the current PyTorch installation|no longer supported by (?:the current )?PyTorch"
    r"|PyTorch no longer supports this GPU|has no device code compatible with CUDA arch"
    r"|Unsupported gpu architecture '(?:compute|sm)_\d+'|Value 'sm_\d+' is not defined for option 'gpu-name'"
    r"|device kernel image is invalid|CUDA error: invalid device function|minimum required Cuda capability is"
    r"|is for sm\d+-sm\d+, but was built for|invalid value for --gpu-architecture"
    r"|kernel for this GPU architecture was not (?:built|found)"
)
# JAX prints this both for a build without CUDA and for one whose CUDA fails to start.
_JAX_FELL_BACK_TO_CPU: Final = message_line(r"No GPU/TPU found, falling back to CPU")
_FRAMEWORK_BUILT_FOR_CPU: Final = message_line(
    r"[Nn]ot compiled with CUDA enabled|Torch not compiled with CUDA|CUDA-enabled jaxlib is not installed"
    r"|\b\d+\.\d+(?:\.\d+)?\+cpu\b|\bpytorch\s+\S+\s+(?:py[\w.]*_cpu_|cpu_)\S*"
    r"|was not compiled with CUDA support|compiled without (?:CUDA|GPU) support"
    r"|XGBoost (?:is |version )?not compiled with"
    r"|CUDA Tree Learner was not enabled in this build|The library is compiled without CUDA support"
    r"|is_built_with_cuda\(\)\D{0,12}False|is_built_with_cuda:? False|not linked with CUDA|without GPU offload support"
    r"|was compiled without GPU support|not built with CUDA|built without CUDA|tensorflow-cpu\b"
    r"|not compiled with GPU offload support|using CPU version PaddlePaddle|has no attribute 'StandardGpuResources'"
    r"|requires CUDA support but .{0,40}CPU[- ]only|CPU-only (?:build|version) of"
)
_TORCH_WITHOUT_CUDA: Final = message_line(r"torch\.version\.cuda\D{0,4}\s*None|CUDA used to build PyTorch: None")
_ONNX_WITHOUT_CUDA: Final = message_line(
    r"CUDAExecutionProvider' is not in available provider|Available providers: "
    r"\[?'?(?!.{0,200}CUDAExecution).{0,80}CPUExecutionProvider"
)


_NODE_DRIVER_MISSING_OR_MISMATCHED: Final = predicate(
    lambda snapshot: any(state in {"no-driver", "mismatch"} for state, _ in snapshot.view(driver.smi_states)),
    "the node has no working driver",
)


def _cuda_limit_phrase(snapshot: Snapshot) -> str:
    has = cuda.supported_cuda(snapshot)
    return f", for CUDA {cuda.format_version(has)} or older" if has else ""


def _install_other_build(snapshot: Snapshot) -> Iterable[Fix]:
    text = f"install a build of the framework that names this GPU's architecture{_cuda_limit_phrase(snapshot)}"
    yield manual_step("application", text)


def _install_cuda_build(snapshot: Snapshot) -> Iterable[Fix]:
    text = f"replace the CPU build of the framework with its CUDA build{_cuda_limit_phrase(snapshot)}"
    yield manual_step("application", text)


_SHM_FULL: Final = message_line(
    r"unable to (?:write to|allocate shared memory\(shm\) for) file </torch_[^\n]{0,80}(?:No space left|\(28\))"
    r"|failed to extend /dev/shm/nccl-|shared memory segment \S*nccl-[^\n]{0,60}No space left"
    r"|shm\.h:\d+ NCCL WARN Call to posix_fallocate failed ?: No space left"
)
_SHM_TOO_SMALL: Final = message_line(
    r"workers are out of shared memory|insufficient shared memory \(shm\)|unable to write to file </torch_"
    r"|DataLoader worker .{0,30}by signal: Bus error"
    r"|Error while creating shared memory segment /dev/shm/nccl-\w+ \(size \d+\)$"
)
_WORKER_LOST: Final = message_line(
    r"DataLoader worker \(pid\S* [\d, ]+\) (?:exited unexpectedly|is killed by signal"
    r"(?!: (?:Killed|Terminated|Segmentation|Aborted)))"
)
_SHM_OF_DEFAULT_SIZE: Final = message_line(r"\s(?:64M|65536)\s.*\s/dev/shm$")


_STUB_LIBRARY_REPORTED: Final = message_line(
    r"CUDA driver is a stub library|cudaErrorStubLibrary|CUDA_ERROR_STUB_LIBRARY|CudaAPIError: \[34\]"
    r"|CUDA error: error code 34|Linked to libnvidia-ml library at wrong path"
    r"|libnvidia-ml\.so in GDK package is a stub library"
    r"|lib(?:cuda|nvidia-ml)\.so[\w.]*: (?:file too short|invalid ELF header)"
)
_COMPAT_UNSUPPORTED_BY_CUDA: Final = message_line(cuda.COMPAT_UNSUPPORTED_MESSAGE.pattern)
# Without a word of CUDA's, the number may be a program's own.
_COMPAT_UNSUPPORTED: Final = any_of(_COMPAT_UNSUPPORTED_BY_CUDA, message_line(r"[Ee]rror:? 804\b|returned 804\b"))
_LIBCUDA_FILE_VERSION: Final = Pattern(rf"libcuda\.so\.(?P<version>{driver.VERSION})")
_DRIVER_VERSION: Final = Pattern(rf"Driver Version\s*:\s*(?P<version>{driver.VERSION})")


def _library_places(snapshot: Snapshot) -> tuple[cuda.LoadedLibrary | cuda.LoaderFolder, ...]:
    return (*snapshot.view(cuda.loaded_libraries), *snapshot.view(cuda.extra_loader_folders))


def _stub_library_places(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the folders and files with stubs that a report shows."""
    return (
        library_place.citation
        for library_place in _library_places(snapshot)
        if library_place.sort == "stub" and not is_examined_by_gpunode(snapshot)
    )


def _resolved_stubs(snapshot: Snapshot) -> Iterator[Citation]:
    return (library.citation for library in snapshot.view(cuda.loaded_libraries) if library.sort == "stub")


def _libraries_in_unusual_places(snapshot: Snapshot) -> Iterator[Citation]:
    return (library.citation for library in snapshot.view(cuda.loaded_libraries) if library.sort == "other")


def _compat_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield compatibility libraries that are loaded or belong to another driver."""
    yield from (library_place.citation for library_place in _library_places(snapshot) if library_place.sort == "compat")
    node = driver.loaded_version(snapshot)
    for item in snapshot.items:
        told = _DRIVER_VERSION.search(item.text) if "/compat" in item.written else None
        version = node.version if node else told["version"] if told else ""
        if version and "/compat" in item.written:
            for match in _LIBCUDA_FILE_VERSION.finditer(item.text):
                if match["version"] != version:
                    yield cite(item, item.line_number_at(match.start()))


_COMPAT_LIBRARIES_SEEN: Final = custom_sign(_compat_lines)
_LIBRARY_OF_OTHER_DRIVER: Final = all_of(
    symptoms.CUDA_DRIVER_COMBINATION_UNFIT,
    symptoms.DRIVER_WORKS,
    unless(custom_sign(_libraries_in_unusual_places), _COMPAT_LIBRARIES_SEEN),
)
_DRIVER_LIBRARY_SHADOWED: Final = any_of(_STUB_LIBRARY_REPORTED, custom_sign(_resolved_stubs), _LIBRARY_OF_OTHER_DRIVER)


def _summarize_shadow(snapshot: Snapshot) -> str:
    path = next(
        (place.path for place in _library_places(snapshot) if place.sort in {"stub", "other"}), "a stub or another copy"
    )
    return f"programs load {path} in place of the driver's own library"


def _remove_compat_library(snapshot: Snapshot) -> Iterable[Fix]:
    named = [
        loader_folder
        for loader_folder in snapshot.view(cuda.extra_loader_folders)
        if loader_folder.file and loader_folder.sort == "compat" and loader_folder.where == "host"
    ]
    if commands := _comment_out_loader_folders(named):
        yield run_step(
            "remove", "remove the compatibility folder from the loader's path", *commands, Shell("sudo ldconfig")
        )
    text = "in an image: build it without the package cuda-compat, and remove its folder from LD_LIBRARY_PATH"
    yield manual_step("remove", text)
    yield from upgrade_driver_for_cuda(snapshot, "or upgrade the node's driver to one for the image's CUDA")


_PLAIN_PATH: Final = Pattern(r"/[A-Za-z0-9/._+-]+")


def _comment_out_loader_folders(folders: Iterable[cuda.LoaderFolder]) -> tuple[Command, ...]:
    """Return the commands that comment out these folders; none if a name has unsafe characters."""
    found: list[Command] = []
    for folder in folders:
        if not _PLAIN_PATH.fullmatch(folder.path) or not is_path_below(folder.file, "/etc/ld.so.conf.d"):
            return ()
        plain = folder.path.rstrip("/").replace(".", r"\.").replace("+", r"\+")
        found.extend(edit_files(f"s,^[[:space:]]*{plain}/*[[:space:]]*$,#&,", folder.file))
    return tuple(dict.fromkeys(found))


def _remove_shadowing_folders(snapshot: Snapshot) -> Iterable[Fix]:
    wrong = [
        one for one in snapshot.view(cuda.extra_loader_folders) if one.where == "host" and _hides_driver(snapshot, one)
    ]
    conf = [folder for folder in wrong if folder.file]
    if conf:
        text = f"remove {', '.join(sorted({folder.path for folder in conf}))} from /etc/ld.so.conf.d, then run ldconfig"
        commands = _comment_out_loader_folders(conf)
        yield run_step("configure", text, *((*commands, Shell("sudo ldconfig")) if commands else ()))
    paths = sorted({folder.path for folder in wrong if not folder.file})
    if conf and not paths:
        return
    named = f" ({', '.join(paths)})" if paths else ""
    where = "where it is set: a profile, a unit, an image"
    yield manual_step("configure", f"remove the folder from LD_LIBRARY_PATH{named}, {where}")
    find = Shell("grep -rsF LD_LIBRARY_PATH /etc/environment /etc/profile /etc/profile.d /etc/bash.bashrc /etc/systemd")
    yield run_step("inspect", "find where it is set", find)


def _hides_driver(snapshot: Snapshot, folder: cuda.LoaderFolder) -> bool:
    """Return whether the folder contains a library that shadows the driver's."""
    hiding = {one.path.rpartition("/")[0] for one in snapshot.view(cuda.loaded_libraries) if one.sort != "driver"}
    return folder.path.rstrip("/") in hiding if hiding else folder.sort != "other"


_COMPAT_LOADED: Final = custom_sign(
    lambda node: (library.citation for library in node.view(cuda.loaded_libraries) if library.sort == "compat")
)
_GEFORCE_SEEN: Final = message_line(r"\bGeForce\b|\b[GR]TX \d{3,4}\b")

_rule = partial(Rule, layer="libraries")

RULES: Final = (
    Rule(
        cause="driver-too-old-for-image",
        layer="driver",
        disruption="reboot",
        share=4,
        symptoms=(
            any_of(_DRIVER_TOO_OLD, _DRIVER_INSUFFICIENT, _CALL_NEEDS_NEWER_DRIVER),
            symptoms.CUDA_TOO_NEW,
            symptoms.HOOK_FAILED,
            symptoms.CUDA_UNAVAILABLE,
        ),
        decisive=any_of(_DRIVER_TOO_OLD, all_of(any_of(_DRIVER_INSUFFICIENT, _CALL_NEEDS_NEWER_DRIVER), _CUDA_TOO_NEW)),
        typical=any_of(
            _CALL_NEEDS_NEWER_DRIVER,
            unless(
                all_of(_DRIVER_INSUFFICIENT, any_of(_CUDA_RUNTIME_SEEN, symptoms.DRIVER_WORKS)),
                _DRIVER_SUPPORTS_NAMED_CUDA,
                *_DRIVER_FAILURE_SYMPTOMS,
            ),
        ),
        against=(_DRIVER_AT_TWO_VERSIONS,),
        look_at=(Shell("nvidia-smi | grep 'CUDA Version'  # on the node, and in the container"),),
        summary=_summarize_mismatch,
        remedy=_upgrade_driver,
    ),
    _rule(
        cause="framework-without-this-architecture",
        layer="programs",
        share=1.5,
        decisive=_NO_KERNEL_IMAGE,
        symptoms=(_NO_KERNEL_IMAGE, symptoms.NO_CUDA_KERNEL_IMAGE),
        look_at=(
            Shell("nvidia-smi --query-gpu=name,compute_cap --format=csv"),
            Shell("python3 -c 'import torch; print(torch.cuda.get_arch_list())'"),
        ),
        remedy=_install_other_build,
    ),
    _rule(
        cause="framework-cpu-only",
        layer="programs",
        share=1.5,
        decisive=any_of(_FRAMEWORK_BUILT_FOR_CPU, _TORCH_WITHOUT_CUDA, _ONNX_WITHOUT_CUDA),
        typical=unless(
            _JAX_FELL_BACK_TO_CPU,
            *(symptoms.NO_DRIVER, symptoms.NO_MODULE, symptoms.DRIVER_MISMATCH, symptoms.CUDA_UNKNOWN),
        ),
        symptoms=(symptoms.CUDA_UNAVAILABLE, _ONNX_WITHOUT_CUDA, _FRAMEWORK_BUILT_FOR_CPU, _JAX_FELL_BACK_TO_CPU),
        against=(_NODE_DRIVER_MISSING_OR_MISMATCHED, _NO_KERNEL_IMAGE),
        look_at=(Shell("python3 -c 'import torch; print(torch.__version__, torch.version.cuda)'"),),
        remedy=_install_cuda_build,
    ),
    Rule(
        cause="shared-memory-too-small",
        layer="runtime",
        disruption="restart-container",
        decisive=any_of(_SHM_FULL, all_of(_SHM_TOO_SMALL, _SHM_OF_DEFAULT_SIZE)),
        typical=_SHM_TOO_SMALL,
        symptoms=(symptoms.NCCL_FAILS, _SHM_TOO_SMALL, _SHM_FULL, _WORKER_LOST),
        look_at=(Shell("df -h /dev/shm  # in the container"),),
        remedy=make_fixed_remedy(
            manual_step("configure", "start it with docker run --shm-size=8g, or with --ipc=host", "docker runs it"),
            manual_step("configure", "mount an emptyDir with medium: Memory at /dev/shm", "it is a pod's"),
        ),
    ),
    _rule(
        cause="cuda-compat-lib-mismatch",
        disruption="restart-container",
        decisive=all_of(symptoms.CUDA_DRIVER_COMBINATION_UNFIT, _COMPAT_LIBRARIES_SEEN),
        typical=any_of(symptoms.CUDA_DRIVER_COMBINATION_UNFIT, unless(_COMPAT_LOADED, _GEFORCE_SEEN)),
        may_be_normal=True,
        symptoms=(symptoms.CUDA_DRIVER_COMBINATION_UNFIT, symptoms.CUDA_UNAVAILABLE, symptoms.CUDA_NOT_INITIALISED),
        context=_COMPAT_LIBRARIES_SEEN,
        against=(_DRIVER_AT_TWO_VERSIONS, symptoms.DRIVER_MISMATCH, _COMPAT_UNSUPPORTED, _DRIVER_LIBRARY_SHADOWED),
        look_at=(Shell("ldconfig -p | grep libcuda  # in the container"), Shell("nvidia-smi  # on the node")),
        remedy=_remove_compat_library,
    ),
    _rule(
        cause="cuda-compat-not-supported-hw",
        disruption="restart-container",
        decisive=_COMPAT_UNSUPPORTED_BY_CUDA,
        typical=any_of(_COMPAT_UNSUPPORTED, all_of(_COMPAT_LOADED, _GEFORCE_SEEN)),
        may_be_normal=True,
        symptoms=(_COMPAT_UNSUPPORTED, symptoms.CUDA_NOT_INITIALISED, symptoms.CUDA_TOO_NEW, symptoms.CUDA_UNAVAILABLE),
        context=_COMPAT_LIBRARIES_SEEN,
        against=(_DRIVER_AT_TWO_VERSIONS, _DRIVER_LIBRARY_SHADOWED),
        look_at=(Shell("ldconfig -p | grep libcuda"),),
        remedy=_remove_compat_library,
    ),
    _rule(
        cause="library-path-shadows-libcuda",
        disruption="restart-container",
        decisive=_DRIVER_LIBRARY_SHADOWED,
        typical=custom_sign(_stub_library_places),
        symptoms=(
            _STUB_LIBRARY_REPORTED,
            symptoms.CUDA_DRIVER_COMBINATION_UNFIT,
            symptoms.DRIVER_MISMATCH,
            symptoms.CUDA_NOT_INITIALISED,
            symptoms.NO_NVML_LIBRARY,
            symptoms.CUDA_UNAVAILABLE,
            symptoms.CUDA_FINDS_NO_DEVICE,
        ),
        look_at=(Shell("ldconfig -p | grep libcuda"), Shell("echo $LD_LIBRARY_PATH")),
        summary=_summarize_shadow,
        remedy=_remove_shadowing_folders,
        explains=frozenset({"cuda-compat-lib-mismatch"}),
    ),
)
