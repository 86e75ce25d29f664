"""Programs and frameworks: built for a newer CUDA than the driver supports, for other GPUs, or for the CPU alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog.cuda import Version
from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import CUDA_COMPATIBILITY, CUDA_DRIVER_API
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, driver_of_newer_cuda, fabric_manager_too, reboot, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import cuda, driver, frameworks, presence
from gpunode.facts.patterns import Pattern

_REQUIRES: Final = Pattern(r"unsatisfied condition: (?P<what>(?:cuda|driver|brand)[^\n]{0,80})")
_FIRST_DOCKER: Final = Pattern(r"unsupported CUDA version: driver (?P<has>[1-9]\d*\.\d) < image (?P<needs>\d+\.\d)")


def _too_old(snapshot: Snapshot) -> Iterator[Verdict]:
    if driver.at_two_versions(snapshot):
        return
    plain = ((one, snapshot.match(one)) for one in (_REQUIRES, _FIRST_DOCKER, cuda.TOO_OLD))
    pattern, told = next(((one, match) for one, match in plain if match is not None), (None, None))
    banner = snapshot.match(cuda.BANNER)
    has = cuda.supported(snapshot)
    if pattern is not None and told is not None:
        yield Proof(_too_old_summary(snapshot, told), (*snapshot.said(pattern), *cuda.told_by(snapshot)))
    elif banner is not None and banner["mode"] == "UNAVAILABLE" and not snapshot.says(cuda.NOT_ON_THIS_GPU):
        what = f"the image was built for driver {banner['needs']} or later, the node's is {banner['has']}"
        yield Proof(what, (*snapshot.said(cuda.BANNER), *cuda.told_by(snapshot)))
    elif said := (snapshot.said(cuda.INSUFFICIENT) or snapshot.said(cuda.NEWER_CALL)):
        yield from _insufficient(snapshot, has, said)


def _insufficient(snapshot: Snapshot, has: Version | None, said: tuple[Citation, ...]) -> Iterator[Verdict]:
    """CUDA says this of an old driver, and of one that is not there: only the versions tell."""
    needs = snapshot.view(frameworks.runtimes)
    too_new = [one for one in needs if has is not None and not cuda.starts_on(snapshot, one.cuda, has)]
    if too_new:
        one = too_new[0]
        asked, mine = cuda.dotted(one.cuda), cuda.dotted(has or ())
        what = f"the program was built with CUDA {asked}, the node's driver supports {mine}"
        yield Proof(what, (*said, one.citation, *cuda.told_by(snapshot)))
    elif has is not None and not needs and _sees_driver(snapshot, said):
        what = f"the program was built with a newer CUDA than {cuda.dotted(has)}, which the node's driver supports"
        yield Proof(what, (*said, *cuda.told_by(snapshot)), "likely")
    elif not presence.missing(snapshot) and not any(state != "works" for state, _ in snapshot.view(driver.smi)):
        question = "is the driver older than the program's CUDA needs, or did the program not get the driver at all?"
        look = (Shell("nvidia-smi | grep 'CUDA Version'  # on the node, and in the container"),)
        yield Doubt(question, look, said, ("driver-not-installed", "nvidia-runtime-not-registered"))


def _sees_driver(snapshot: Snapshot, said: tuple[Citation, ...]) -> bool:
    """Whether the program has a driver before it: on the node one that works; in a pod it may have got none."""
    if snapshot.says(cuda.NEWER_CALL):
        return True
    pods = {item.key for item in snapshot.items if item.kind in {"kubernetes-log", "kubernetes-pod"}}
    return driver.works(snapshot) and not all(citation.key in pods for citation in said)


def _too_old_summary(snapshot: Snapshot, match: re.Match[str]) -> str:
    found = match.groupdict()
    has = cuda.supported(snapshot)
    mine = f"; the node's driver supports CUDA {cuda.dotted(has)}" if has else ""
    if what := found.get("what"):
        return f"the image asks for {what.split(',')[0].strip()}{mine}"
    if number := found.get("found"):
        shown = int(number)
        mine = f"CUDA {shown // 1000}.{shown % 1000 // 10}"
        return f"the program was built with a newer CUDA than {mine}, which the node's driver supports"
    return f"the image needs CUDA {found['needs']}, the node's driver supports {found['has']}"


def _newer_driver(snapshot: Snapshot) -> Iterable[Fix]:
    release = cuda.asked(snapshot)
    least = f" to {release.driver} or later" if release else ""
    newer = tuple(driver_of_newer_cuda(snapshot, f"upgrade the driver{least}"))
    has = cuda.supported(snapshot)
    up_to = f" for CUDA {cuda.dotted(has)} or older" if has else " for an older CUDA"
    yield from newer
    if any(fix.commands for fix in newer):
        yield from fabric_manager_too(snapshot)
        yield reboot()
    yield by_hand("application", f"or use an image{up_to}")


_NO_KERNEL: Final = Pattern(
    r"no kernel image is available for execution|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"
    r"|is not compatible with the current PyTorch installation|no longer supported by (?:the current )?PyTorch"
    r"|PyTorch no longer supports this GPU|has no device code compatible with CUDA arch"
    r"|Unsupported gpu architecture '(?:compute|sm)_\d+'|Value 'sm_\d+' is not defined for option 'gpu-name'"
    r"|device kernel image is invalid|CUDA error: invalid device function|minimum required Cuda capability is"
    r"|is for sm\d+-sm\d+, but was built for|invalid value for --gpu-architecture"
    r"|kernel for this GPU architecture was not (?:built|found)"
)
_CPU_ONLY: Final = Pattern(
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
_TORCH_NONE: Final = Pattern(r"torch\.version\.cuda\D{0,4}\s*None|CUDA used to build PyTorch: None")
_PROVIDERS: Final = Pattern(
    r"CUDAExecutionProvider' is not in available provider|Available providers: "
    r"\[?'?(?!.{0,200}CUDAExecution).{0,80}CPUExecutionProvider"
)


def _built_without(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whether the program has no code for this GPU, or none for any."""
    has_no_driver = any(state in {"missing", "no-driver", "mismatch"} for state, _ in snapshot.view(driver.smi))
    said = snapshot.said(_NO_KERNEL)
    lacks = _lacks(snapshot, frameworks.capabilities(snapshot) if said else frameworks.of_devices(snapshot))
    if said or lacks:
        cap, lines = lacks or ("", ())
        gpu = f"this GPU (sm_{cap})" if cap else "this GPU"
        what = f"the program was built for other architectures and has no code for {gpu}"
        yield "framework-without-this-architecture", Proof(what, (*said, *lines))
        return
    cpu = (*snapshot.said(_CPU_ONLY), *snapshot.said(_TORCH_NONE), *snapshot.said(_PROVIDERS))
    if cpu and not has_no_driver:
        works = driver.works(snapshot)
        what = (
            "the installed build of the framework has no CUDA in it and computes on the CPU, whatever the driver does"
        )
        ruled_out = ("the driver: nvidia-smi works",) if works else ()
        yield "framework-cpu-only", Proof(what, tuple(dict.fromkeys(cpu)), "certain", ruled_out)


def _lacks(
    snapshot: Snapshot, capabilities: tuple[tuple[str, Citation], ...]
) -> tuple[str, tuple[Citation, ...]] | None:
    """A GPU for which a list of built architectures has nothing, with the lines that tell."""
    for listed, place in snapshot.view(frameworks.built_for):
        for cap, gpu in capabilities:
            if len(cap) >= 2 and not frameworks.runs_on(cap, listed):
                return cap, (place, gpu)
    return None


_TORCH: Final = Pattern(r"torch", re.IGNORECASE)


def _other_build(snapshot: Snapshot) -> Iterable[Fix]:
    capability = next((cap for cap, _ in snapshot.view(frameworks.capabilities)), "")
    named = f" (sm_{capability})" if capability else ""
    has = cuda.supported(snapshot)
    up_to = f", for CUDA {cuda.dotted(has)} or older" if has else ""
    yield by_hand("application", f"install a build of the framework that names this GPU's architecture{named}{up_to}")
    if snapshot.says(_TORCH):
        see = Shell('python3 -c "import torch; print(torch.__version__, torch.cuda.get_arch_list())"')
        yield run("inspect", "see what the new build was built for", see)


def _cuda_build(snapshot: Snapshot) -> Iterable[Fix]:
    has = cuda.supported(snapshot)
    up_to = f" (the driver supports CUDA {cuda.dotted(has)})" if has else ""
    yield by_hand("application", f"replace the CPU build of the framework with its CUDA build{up_to}")
    if snapshot.says(_TORCH):
        see = Shell(
            'python3 -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"'
        )
        yield run("inspect", "see that it has CUDA", see)


_TOOLKIT_NOTES: Final = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/"

FAMILY: Final = Family(
    "frameworks",
    "programs and frameworks",
    (
        Rule(
            cause="driver-too-old-for-image",
            layer="toolkit",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="the driver is older than the program's CUDA needs",
            share=4,
            symptoms=(
                symptoms.CUDA_TOO_NEW,
                symptoms.HOOK_FAILED,
                symptoms.CUDA_UNAVAILABLE,
                symptoms.NO_DRIVER,
            ),
            look_at=(Shell("nvidia-smi"),),
            story=(
                "Every CUDA release needs a driver of a certain age. Images say so in NVIDIA_REQUIRE_CUDA, and the "
                "toolkit refuses to start them on an older driver; programs that start all the same fail with «CUDA "
                "driver version is insufficient for CUDA runtime version». From CUDA 11 on, a driver of the same major "
                "version is mostly enough. The node works, and images with an older CUDA run."
            ),
            sources=("https://github.com/theroyallab/tabbyAPI/issues/324", CUDA_COMPATIBILITY, _TOOLKIT_NOTES),
            check=_too_old,
            remedy=_newer_driver,
        ),
        Rule(
            cause="framework-without-this-architecture",
            layer="userspace",
            storey="programs",
            severity="error",
            disruption="none",
            title="the program has no code for this GPU's architecture",
            share=1.5,
            symptoms=(
                symptoms.NO_KERNEL_IMAGE,
                symptoms.CUDA_TOO_NEW,
            ),
            look_at=(
                Shell("nvidia-smi --query-gpu=name,compute_cap --format=csv"),
                Shell("python3 -c 'import torch; print(torch.cuda.get_arch_list())'"),
            ),
            story=(
                "A CUDA program carries machine code for the architectures that it was built for. Wheels leave old "
                "ones out, and those of last year do not know this year's GPUs. Driver and GPU work, the device is "
                "found, and the first kernel fails with «no kernel image is available for execution on the device». "
                "Another build of the program is needed."
            ),
            sources=(
                "https://github.com/pytorch/pytorch/issues/167244",
                "https://github.com/Comfy-Org/ComfyUI/pull/16438",
                CUDA_DRIVER_API,
            ),
            check=only("framework-without-this-architecture", _built_without),
            remedy=_other_build,
        ),
        Rule(
            cause="framework-cpu-only",
            layer="userspace",
            storey="programs",
            severity="error",
            disruption="none",
            title="the framework was built without CUDA",
            share=1.5,
            symptoms=(symptoms.CUDA_UNAVAILABLE,),
            look_at=(Shell("python3 -c 'import torch; print(torch.__version__, torch.version.cuda)'"),),
            story=(
                "PyTorch, TensorFlow, JAX and others come in builds with and without CUDA, under one name. A package "
                "manager that finds no matching CUDA build installs the other and says nothing. The program then finds "
                "no GPU while nvidia-smi shows it: the version ends in +cpu, or the error says «not compiled with CUDA "
                "enabled»."
            ),
            sources=("https://pytorch.org/get-started/locally/", "https://github.com/JeffSHF/ColabDock/issues/28"),
            check=only("framework-cpu-only", _built_without),
            remedy=_cuda_build,
        ),
    ),
)
