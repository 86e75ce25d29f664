"""What somebody mistyped and then typed otherwise: a complaint about a command's own words says nothing of the node.

An image whose tag does not exist, a runtime of which nobody has heard: once the same program was given other
words and went on, the first try is no fault. The words are those of docker, podman and nerdctl.
"""

from __future__ import annotations

from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import program

_ENGINES: Final = frozenset({"docker", "podman", "nerdctl", "nvidia-docker"})
# Each names the word that it refuses.
_REFUSED: Final = (
    Pattern(r"manifest for (?P<word>\S{1,200}) not found"),
    Pattern(r"reading manifest (?P<tag>\S{1,100}) in (?:docker\.io/)?(?P<word>\S{1,200}): manifest unknown"),
    Pattern(r"\"?(?:docker\.io/)?(?P<word>[\w./-]{1,150}:[\w.-]{1,100})\"?: not found"),
    Pattern(r"pull access denied for (?P<word>[^\s,]{1,200}),"),
    Pattern(r"unknown or invalid runtime name: (?P<word>[\w./-]{0,60}\w)"),
    Pattern(r"[Uu]nknown runtime specified (?P<word>[\w./-]{0,60}\w)"),
    Pattern(r"runtime \"(?P<word>[\w./-]{1,60})\" not found"),
)
# A runtime that the engine should know: who cannot use it and goes another way has found a fault.
_RIGHT: Final = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-container-runtime", "runc", "crun"})


def is_corrected(words: tuple[str, ...], said: str, later: tuple[str, ...], later_said: str) -> bool:
    """Whether ``said`` complains of words that were mistyped, and ``later`` was typed without them, and went on."""
    if program(words) not in _ENGINES or program(later) not in _ENGINES or _named(later_said):
        return False
    refused = {word for word in words for name in _named(said) if _is(word, name)}
    return bool(refused) and not refused & set(later)


def _named(said: str) -> frozenset[str]:
    found = (match for pattern in _REFUSED for match in pattern.finditer(said))
    return frozenset(f"{one['word']}:{one['tag']}" if "tag" in one.groupdict() else one["word"] for one in found)


def _is(word: str, name: str) -> bool:
    """Whether the word that was typed is what the complaint names: an image has a tag and a registry by itself."""
    value = word.partition("=")[2] if word.startswith("--") else word
    if name in _RIGHT:
        return False
    return name in {value, f"{value}:latest", value.removeprefix("docker.io/")}
