"""Requests that nothing serves as they are written: amounts, options, capabilities, a compiler that is not there."""

from __future__ import annotations

import re
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Rule, RuleFamily
from gpunode.diagnoses.remedies import always, manual_step, run_step
from gpunode.diagnoses.signs import any_of, message_line, unless
from gpunode.diagnoses.source_urls import DEVICE_PLUGIN
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

_RESOURCES: Final = "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources"

FAMILY: Final = RuleFamily(
    "requests",
    "requests that nothing serves",
    (
        Rule(
            cause="gpu-share-request-above-one",
            layer="kubernetes",
            disruption="none",
            title="a pod asks for more than one share of a GPU",
            story=(
                "Where time-slicing or MPS divides a GPU, each container may ask for one share: with "
                "failRequestsGreaterThanOne, and always with MPS, the device plugin refuses a request for two. More "
                "shares would give no more of the GPU, and possibly both of the same one. The refused pod stays as it "
                "is, and is to be deleted."
            ),
            sources=(f"{DEVICE_PLUGIN}#shared-access-to-gpus",),
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
            title="the pod's amount of GPUs is none that Kubernetes takes",
            story=(
                "nvidia.com/gpu is an extended resource: Kubernetes counts it in whole numbers, and its request must "
                "be its limit, since devices cannot be overcommitted. The API server refuses a pod with 0.5, 500m, a "
                "request without a limit or another one. Nothing is wrong with the node; a part of a GPU is given by "
                "time-slicing, MPS, MIG or HAMi, each as a whole number of a resource."
            ),
            sources=(_RESOURCES, "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"),
            decisive=any_of(_NOT_WHOLE, _NOT_EQUAL, _NO_LIMIT),
            summary="the pod's limits for GPUs are no whole numbers, or differ from its requests",
            remedy=always(
                manual_step("application", "write only resources.limits, with a whole number: nvidia.com/gpu: 1"),
                manual_step(
                    "configure", "share the GPUs by time-slicing, MPS or MIG", when="a pod needs less than one"
                ),
            ),
        ),
        Rule(
            cause="option-misspelt",
            layer="toolkit",
            disruption="none",
            title="a program does not have the option that it was given",
            story=(
                "docker's option is --gpus, with an s, and takes all, a number or '\"device=0\"'. --include-crds "
                "belongs to helm template; helm install and upgrade install the definitions of a chart by themselves. "
                "The program refuses its command line before it looks at any GPU, so the message says nothing about "
                "the node."
            ),
            sources=(
                "https://docs.docker.com/engine/containers/resource_constraints/#gpu",
                "https://helm.sh/docs/helm/helm_template/",
            ),
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
            title="the libraries of NVENC and NVDEC are not there",
            story=(
                "libnvidia-encode and libnvcuvid encode and decode video. A container gets them only if "
                "NVIDIA_DRIVER_CAPABILITIES names video; images of CUDA ask for compute and utility. On the node "
                "itself they are packages of their own, which a driver for computing alone does not install. ffmpeg "
                "says that it cannot load the library, and then guesses that the driver is too old."
            ),
            sources=(
                "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
                "https://docs.nvidia.com/video-technologies/video-codec-sdk/13.0/ffmpeg-with-nvidia-gpu/index.html",
            ),
            typical=_NO_VIDEO,
            symptoms=(_NO_VIDEO,),
            look_at=(Shell("ldconfig -p | grep -E 'libnvidia-encode|libnvcuvid'"),),
            summary="the program finds no library of NVENC or NVDEC: its container, or the node's driver, lacks them",
            remedy=always(
                run_step(
                    "inspect",
                    "see whether the node has them",
                    Shell("ldconfig -p | grep -E 'libnvidia-encode|libnvcuvid'"),
                ),
                manual_step(
                    "application",
                    "start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,video,utility",
                    when="the node has them",
                ),
                manual_step(
                    "install", 'set [driver] scope = "media" in the recipe and set up again', when="it lacks them"
                ),
            ),
            explains=frozenset({"driver-too-old-for-image"}),
        ),
        Rule(
            cause="cuda-toolkit-not-in-path",
            layer="userspace",
            severity="warning",
            shows_in="programs",
            disruption="none",
            title="the shell finds no CUDA Toolkit",
            story=(
                "nvcc compiles CUDA programs. It comes with the CUDA Toolkit, which is no part of the driver: "
                "nvidia-smi's «CUDA Version» is what the driver can run at most, not what is installed. Containers "
                "and PyTorch's wheels bring their own libraries, so a node that only runs them needs no toolkit. "
                "Where one is installed in /usr/local/cuda, its bin folder may be missing in PATH."
            ),
            sources=("https://docs.nvidia.com/cuda/cuda-installation-guide-linux/#post-installation-actions",),
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
            title="the program wants more memory than HAMi gives its container",
            story=(
                "HAMi gives a container a part of a GPU's memory (nvidia.com/gpumem or gpumem-percentage), and its "
                "library refuses what goes beyond: it logs the wanted and the permitted bytes of the device, and the "
                "program is told that CUDA is out of memory, although nvidia-smi on the node shows plenty. A CUDA "
                "program needs some hundred MiB for its context alone."
            ),
            sources=("https://github.com/Project-HAMi/HAMi-core", "https://github.com/Project-HAMi/HAMi"),
            decisive=_HAMI_LIMIT,
            look_at=(Shell("kubectl get pods -A -o yaml | grep -E 'gpumem|gpucores'"),),
            summary="the program wants more GPU memory than its container was given by HAMi",
            remedy=always(
                manual_step("application", "raise nvidia.com/gpumem in the pod's limits, or let the program use less")
            ),
            explains=frozenset({"gpu-memory-taken"}),
        ),
    ),
)
