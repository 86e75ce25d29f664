"""Phrases of users about their machine that favour one of the causes that fit a program's error.

They order suspects, and single one out beside a failing program's own output; they prove nothing. ``prose.tells`` skips
questions, denials, quotes, suppositions and hearsay. If the phrases of several causes match a post, none decides.
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
USER_PHRASES: Final[Mapping[str, Pattern]] = {
    cause: Pattern(f"(?i){words}")
    for cause, words in {
        "module-built-for-other-kernel": r"\b(?:old(?:er)?|previous|other|another|lts|stock|plain|both|two)\b[^.]{0,20}"
        r"\bkernels?\b|\bkernel [^.]{0,40}\b(?:works|is fine|fine with)",
        "container-driver-mismatch": r"\b(?:LX[CD]|containers?|pods?|chroot|jail|image)\b[^.]{0,60}\b(?:install|brought"
        r"|ran|has|have|ships|contains|own)|\binside\b[^.]{0,30}\b(?:LX[CD]|container|pod)",
        "docker-from-snap-or-desktop-vm": r"\bdocker desktop\b",
        "docker-rootless-config": r"\brootless\b",
        "cgroup-daemon-reload-loses-gpu": rf"\b{_LATER}|\bdaemon-reload\b|\b(?:restart|recreat|new)\w* (?:the |a )?"
        r"container[^.]{0,20}\b(?:help|work|fix|back)",
        "gpu-memory-taken": r"\bkill(?:ed)? -9\b|(?:kill|zombie|leftover|other)[^.]{0,40}\b(?:process|job|run|script)",
        "gpus-all-allocated": r"\b(?:another|second|other|first) pod\b|\ball (?:the )?GPUs are (?:in use|taken)"
        r"|\bshared with\b|\bother (?:users?|teams?|projects?|people)\b",
        "k3s-runtime-config-overwritten": r"\b(?:k3s|rke2)\b[^.]{0,80}\bconfig\.toml",
        "shared-memory-too-small": r"\b(?:in|inside|with|under|from|by|docker) (?:\w+ ){0,2}"
        r"(?:docker|container|pod|run)\b",
        "driver-too-old-for-image": r"\bdriver\b(?! version)[^.|]{0,40}\b\d{3}\b|\b\d{3}(?:\.\d+)? driver\b",
    }.items()
}
# Many people name their driver's version, whatever fails.
SYMPTOM_NEEDED: Final[Mapping[str, Sign]] = {"driver-too-old-for-image": symptoms.CUDA_TOO_NEW}
