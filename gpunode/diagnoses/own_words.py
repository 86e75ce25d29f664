"""Words of people about their machine that speak for one cause among those that a program's error fits.

They order suspects, and some let one stand alone beside a failing program's own line; they prove nothing.
``prose.tells`` leaves out what is asked, denied, quoted, supposed or heard. Where rows of several causes fit a post,
none decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.model import Sign
from gpunode.facts.patterns import Pattern

_LATER: Final = (
    r"(?:later|after (?:some|a|an|few|several|about|\d+)\b[^.]{0,20}(?:time|while|minutes?|hours?|days?|lunch))"
)
_UPDATED: Final = r"(?:updat|upgrad)\w*"
OWN_WORDS: Final[Mapping[str, Pattern]] = {
    cause: Pattern(f"(?i){words}")
    for cause, words in {
        "no-gpu-present": r"\blspci\b[^.]{0,40}\b(?:nothing|empty|no (?:nvidia|gpu|card|output)|not (?:show|list))",
        "vfio-bound": r"[a-z] vfio\b|\b(?:GPU|card) (?:is |was )?(?:passed|assigned|given) (?:through )?to \w+ VM\b",
        "nouveau-bound": r"\bnouveau\b[^.]{0,30}(?:\b(?:loaded|in use|active|running|there)\b|\d{5,})|using nouveau",
        "secure-boot-key-not-enrolled": r"\b(?:secure ?boot (?:is |was )?(?:on|enabled|active|back)|MOK\b|enrol|with"
        r" secure ?boot|trusted launch|set a password)",
        "kernel-headers-missing": r"\b(?:no|without|only|missing)\b[^.]{0,30}\bheaders|headers are missing",
        "module-built-for-other-kernel": r"\b(?:old(?:er)?|previous|other|another|lts|stock|plain|both|two)\b[^.]{0,20}"
        r"\bkernels?\b|\bkernel [^.]{0,40}\b(?:works|is fine|fine with)",
        "driver-library-mismatch-reboot-pending": rf"\b(?:after|since|did|ran|just)\b[^.]{{0,30}}\b{_UPDATED}|\bupdate"
        r" (?:of )?the (?:nvidia )?driver|\b(?:before|without|no|not|n't)\b[^.]{0,20}\breboot",
        "driver-library-mismatch-unattended-upgrade": rf"\b(?:unattended|automatic\w* (?:\w+ )?{_UPDATED}"
        rf"|{_UPDATED} automatic\w*|by itself|on its own|overnight)\b",
        "driver-library-mismatch-mixed-installs": r"(?:NVIDIA-\S+|\b(?:a|the|by|with|via|using)\s)\.run\b"
        r"|\brun ?file\b|\bfrom NVIDIA's (?:web ?)?site\b",
        "container-driver-mismatch": r"\b(?:LX[CD]|containers?|pods?|chroot|jail|image)\b[^.]{0,60}\b(?:install|brought"
        r"|ran|has|have|ships|contains|own)|\binside\b[^.]{0,30}\b(?:LX[CD]|container|pod)",
        "docker-from-snap": r"\bsnap\b[^.]{0,20}\bdocker\b|\bdocker\b[^.,]{0,40}\bsnap\b",
        "docker-from-snap-or-desktop-vm": r"\bdocker desktop\b",
        "docker-rootless-config": r"\brootless\b",
        "cgroup-daemon-reload-loses-gpu": rf"\b{_LATER}|\bdaemon-reload\b|\b(?:restart|recreat|new)\w* (?:the |a )?"
        r"container[^.]{0,20}\b(?:help|work|fix|back)",
        "nvidia-uvm-wedged": r"\b(?:suspend|resum|sle(?:ep|pt)|hibernat|standby|wak(?:e|es|ing)|woke|lid)",
        "fabric-manager-not-installed": r"\b(?:no|without|never installed)\b[^.]{0,20}\bfabric ?manager",
        "fabric-manager-version-mismatch": r"\bfabric ?manager\b[^.]{0,40}\b(?:still|old|older|other|differ|version)",
        "gpu-memory-taken": r"\bkill(?:ed)? -9\b|(?:kill|zombie|leftover|other)[^.]{0,40}\b(?:process|job|run|script)",
        "gpus-all-allocated": r"\b(?:another|second|other|first) pod\b|\ball (?:the )?GPUs are (?:in use|taken)"
        r"|\bshared with\b|\bother (?:users?|teams?|projects?|people)\b",
        "pod-missing-gpu-toleration": r"(?<!is )\btaint(?!ed by)",
        "nested-node-config-not-applied": r"\b(?:minikube|k3d|kind (?:cluster|node))\b",
        "k3s-runtime-config-overwritten": r"\b(?:k3s|rke2)\b[^.]{0,80}\bconfig\.toml",
        "wsl-gpu-access-blocked": r"(?<!from )(?<!about )\bWSL",
        "shared-memory-too-small": r"\b(?:in|inside|with|under|from|by|docker) (?:\w+ ){0,2}"
        r"(?:docker|container|pod|run)\b",
        "driver-too-old-for-image": r"\bdriver\b(?! version)[^.|]{0,40}\b\d{3}\b|\b\d{3}(?:\.\d+)? driver\b",
    }.items()
}
# Many name their driver's version whatever fails.
SYMPTOM_NEEDED: Final[Mapping[str, Sign]] = {"driver-too-old-for-image": symptoms.CUDA_TOO_NEW}
# These words also stand in stories of other causes and other machines, and the fix of some removes or disables a thing.
# Hardly a post at hand needs them for its answer: they order suspects alone.
ORDERING_ONLY: Final = frozenset({
    *("no-gpu-present", "vfio-bound", "nouveau-bound", "secure-boot-key-not-enrolled", "kernel-headers-missing"),
    *("driver-library-mismatch-reboot-pending", "driver-library-mismatch-unattended-upgrade"),
    *("driver-library-mismatch-mixed-installs", "docker-from-snap", "docker-rootless-config", "nvidia-uvm-wedged"),
    *("fabric-manager-not-installed", "fabric-manager-version-mismatch", "pod-missing-gpu-toleration"),
    *("nested-node-config-not-applied", "wsl-gpu-access-blocked"),
})  # fmt: skip
