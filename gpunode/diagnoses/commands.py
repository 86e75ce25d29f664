"""Commands made of words: which words of the evidence may stand in one, and how the shell is to read them.

What was pasted may have been written by anybody, and the commands of a remedy are run as root. So a command is put
together of words, each quoted, and a word of the evidence is taken only where it has the form of what it is said to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote
from typing import Final

from gpunode.facts.patterns import Pattern

_PACKAGE: Final = Pattern(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,127}")
_UNIT: Final = Pattern(r"[A-Za-z0-9][A-Za-z0-9.:_@-]{0,127}")
_RELEASE: Final = Pattern(r"\d[A-Za-z0-9.+~_-]{0,127}")
_NAME: Final = Pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_GPU: Final = Pattern(
    r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|\d{1,3}|(?:GPU|MIG)-[0-9A-Fa-f-]{36}"
)
_MOST: Final = 255


class Shell(str):
    """Words that the shell is to work out, as they are written in this program; never of the evidence."""

    __slots__ = ()


RUNNING_KERNEL: Final = Shell("$(uname -r)")


class OfGpu(str):
    """A command about the GPU that is at fault: until that one is known, ``ADDRESS`` stands for it.

    Without an address nvidia-smi takes every GPU of the node, and resets those that are at work as well; to this word
    it answers that there is no such GPU.
    """

    __slots__ = ()


ADDRESS: Final = "ADDRESS"


def command(*words: str) -> str:
    """The command of these words; each but those of ``Shell`` is one word to the shell, whatever is in it."""
    return " ".join(word if isinstance(word, Shell) else quote(word) for word in words)


def is_package(name: str) -> bool:
    """Whether this is the name of a package."""
    return isinstance(name, Shell) or _PACKAGE.fullmatch(name) is not None


def is_unit(name: str) -> bool:
    """Whether this is the name of a unit, with its ending or without."""
    return _UNIT.fullmatch(name) is not None


def is_release(name: str) -> bool:
    """Whether this is a version, or a kernel's release (``6.8.0-51-generic``)."""
    return _RELEASE.fullmatch(name) is not None


def is_name(name: str) -> bool:
    """Whether this is the name of a node, a group, a module."""
    return _NAME.fullmatch(name) is not None


def is_gpu(name: str) -> bool:
    """Whether nvidia-smi takes this for a GPU: an address on the bus, an index, a UUID."""
    return _GPU.fullmatch(name) is not None


def of_gpu(*words: str) -> str:
    """The command of these words, ``ADDRESS`` among them."""
    return OfGpu(command(*words))


def on_gpus(typed: str, gpus: Iterable[str]) -> tuple[str, ...]:
    """The command for each of these GPUs, where it is about the one at fault; as it is where none is known."""
    named = tuple(gpu for gpu in gpus if is_gpu(gpu))
    return tuple(typed.replace(ADDRESS, gpu) for gpu in named) if isinstance(typed, OfGpu) and named else (typed,)


def is_path(path: str) -> bool:
    """Whether this is the whole path of one thing: no pattern, no way back up, nothing that no terminal shows."""
    return (
        path.startswith("/")
        and len(path) <= _MOST
        and path.isprintable()
        and not any(letter in path for letter in "*?[]{}")
        and not {".", ".."}.intersection(path.split("/"))
    )


def at(gpu: str) -> tuple[str, str]:
    """The words of ``of_gpu`` that have nvidia-smi speak of that GPU alone, of the one at fault where it is empty."""
    return "-i", gpu if is_gpu(gpu) else ADDRESS


def edited(expression: str, *paths: str) -> tuple[str, ...]:
    """The command by which sed edits these files and keeps what they were; none where no path is sound.

    Args:
        expression: of sed, extended.
        paths: of the files; those that are no whole path of one file are left out.
    """
    sound = tuple(path for path in dict.fromkeys(paths) if is_path(path))
    return (command("sudo", "sed", "-i.bak", "-E", expression, *sound),) if sound else ()


def edited_where(pattern: str, expression: str, *places: str) -> str:
    """The command by which sed edits those files below ``places`` that have such a line, and keeps what they were.

    Args:
        pattern: of grep, extended.
        expression: of sed, extended.
        places: as this program names them; a file that is not there is passed over.
    """
    find = command("grep", "-rlsE", "--exclude=*.bak", "--", pattern, *places)
    return f"{find} | xargs -r -d '\\n' {command('sudo', 'sed', '-i.bak', '-E', expression)}"


def kernel(release: str, before: str = "", after: str = "") -> str:
    """A word with a kernel's release in it; where that is not known, the shell puts the running one there."""
    if is_release(release):
        return f"{before}{release}{after}"
    return Shell(f"{before}{RUNNING_KERNEL}{after}")
