"""Requests that nothing serves as they are written: amounts, options, capabilities, a compiler that is not there."""

from __future__ import annotations

import re
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Rule
from gpunode.diagnoses.remedies import always, manual_step, run_step
from gpunode.diagnoses.signs import any_of, message_line, unless
from gpunode.facts.items import NO_COMMAND

_OWN: Final = r"(?:nvidia\.com/[\w.-]+)"
_TOO_LARGE: Final = message_line(
    rf"request for '?{_OWN}: \d+'? too large: maximum request size for shared resources is 1"
)
# Kubernetes' validation names the field, and the value after it.
_NOT_WHOLE: Final = message_line(rf"{_OWN}\]?: Invalid value: [^\n]{{1,80}}: must be an integer")
_NOT_EQUAL: Final = message_line(rf"must be equal to {_OWN} limit")
_NO_LIMIT: Final = message_line(
    rf"{_OWN}\]?: Required value: Limit must be set for non overcommitable resources"
    rf"|limits\[?[^\n]{{0,40}}{_OWN}\]?: Required value"
)
_UNKNOWN_OPTION: Final = message_line(
    r"unknown flag: --gpu$|unknown (?:shorthand )?flag: --(?:include-crds|gpu-?id|gpu-devices)\b"
    r"|unrecognized arguments?: --gpu$"
)
_NO_VIDEO: Final = unless(
    message_line(
        r"Cannot load lib(?:nvidia-encode|nvcuvid)\.so|lib(?:nvidia-encode"
        r"|nvcuvid)\.so[.\d]*: cannot open shared object"
        r"|dlopen[^\n]{0,40}lib(?:nvidia-encode|nvcuvid)\.so[^\n]{0,60}(?:fail|not found)"
    ),
    message_line(r"Cannot load libcuda\.so|libcuda\.so[.\d]*: cannot open"),
)
_NO_NVCC: Final = unless(
    message_line(
        rf"\bnvcc[’'\"]?[:：]? {{0,2}}(?:{NO_COMMAND}|not found)|not found: nvcc$"
        r"|Command ['‘]nvcc['’] not found"
        r"|[Nn]o such file or directory: [^\n]{0,80}/nvcc\b|nvcc was not found|Could not find nvcc\b"
        r"|The 'nvcc' command was not found",
        flags=re.MULTILINE,
    ),
    symptoms.NO_DRIVER, symptoms.NO_MODULE, symptoms.NO_NVML_LIBRARY, symptoms.MISMATCH, symptoms.NO_DEVICES,
)  # fmt: skip
_HAMI_LIMIT: Final = message_line(r"\[HAMI-core ERROR[^\n]{0,120}\bDevice \d+ OOM \d+ / \d+")


RULES: Final = (
    Rule(
        cause="gpu-share-request-above-one",
        layer="kubernetes",
        disruption="none",
        decisive=_TOO_LARGE,
        look_at=(Shell("kubectl describe nodes | grep -E 'nvidia.com/gpu'"),),
        summary="the pod asks for more than one share of a GPU, and the device plugin gives one",
        remedy=always(
            manual_step(
                "application", "ask for nvidia.com/gpu: 1 in the pod, delete the refused one and create it again"
            ),
            manual_step("configure", "or take nodes whose GPUs are not shared", when="it needs several whole GPUs"),
        ),
        explains=frozenset(
            {
                *("kubelet-stale-device-allocation", "device-plugin-not-ready-after-reboot"),
                "kubelet-restart-admission-bug",
            }
        ),
    ),
    Rule(
        cause="gpu-amount-invalid",
        layer="kubernetes",
        disruption="none",
        decisive=any_of(_NOT_WHOLE, _NOT_EQUAL, _NO_LIMIT),
        summary="the pod's limits for GPUs are no whole numbers, or differ from its requests",
        remedy=always(
            manual_step("application", "write only resources.limits, with a whole number: nvidia.com/gpu: 1"),
            manual_step("configure", "share the GPUs by time-slicing, MPS or MIG", when="a pod needs less than one"),
        ),
    ),
    Rule(
        cause="option-misspelt",
        layer="toolkit",
        disruption="none",
        decisive=_UNKNOWN_OPTION,
        summary="the program was given an option that it does not have",
        remedy=always(
            run_step(
                "application",
                "for docker write --gpus; for helm install and upgrade leave --include-crds away",
                Shell("docker run --rm --gpus all ubuntu nvidia-smi"),
            )
        ),
    ),
    Rule(
        cause="video-libraries-missing",
        layer="toolkit",
        disruption="restart-container",
        typical=_NO_VIDEO,
        symptoms=(_NO_VIDEO,),
        look_at=(Shell("ldconfig -p | grep -E 'libnvidia-encode|libnvcuvid'"),),
        summary="the program finds no library of NVENC or NVDEC: its container, or the node's driver, lacks them",
        remedy=always(
            run_step(
                "inspect", "see whether the node has them", Shell("ldconfig -p | grep -E 'libnvidia-encode|libnvcuvid'")
            ),
            manual_step(
                "application",
                "start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,video,utility",
                when="the node has them",
            ),
            manual_step("install", 'set [driver] scope = "media" in the recipe and set up again', when="it lacks them"),
        ),
        explains=frozenset({"driver-too-old-for-image"}),
    ),
    Rule(
        cause="cuda-toolkit-not-in-path",
        layer="userspace",
        severity="warning",
        shows_in="programs",
        disruption="none",
        typical=_NO_NVCC,
        symptoms=(_NO_NVCC,),
        look_at=(Shell("ls -d /usr/local/cuda*/bin/nvcc"),),
        summary="nvcc is not found: no CUDA Toolkit is installed, or its folder is not in PATH",
        remedy=always(
            run_step("inspect", "see whether a toolkit is there", Shell("ls -d /usr/local/cuda*/bin/nvcc")),
            run_step(
                "configure",
                "put its folder into PATH",
                Shell("export PATH=/usr/local/cuda/bin:$PATH"),
                when="it is there",
            ),
            manual_step(
                "install",
                "or let setup install the newest that the driver runs: --cuda-toolkit auto",
                when="programs are compiled here",
            ),
        ),
    ),
    Rule(
        cause="hami-memory-limit",
        layer="kubernetes",
        shows_in="programs",
        disruption="restart-container",
        decisive=_HAMI_LIMIT,
        look_at=(Shell("kubectl get pods -A -o yaml | grep -E 'gpumem|gpucores'"),),
        summary="the program wants more GPU memory than its container was given by HAMi",
        remedy=always(
            manual_step("application", "raise nvidia.com/gpumem in the pod's limits, or let the program use less")
        ),
        explains=frozenset({"gpu-memory-taken"}),
    ),
)
