"""Commands of doctor's: which words of the evidence may stand in one, and commands made of commands.

What was pasted may have been written by anybody, and the commands of a remedy are run as root. So a command is put
together of words, each quoted, and a word of the evidence is taken only where it has the form of what it is said to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpunode.command import Command as Command
from gpunode.command import Shell as Shell
from gpunode.command import command as command
from gpunode.facts.patterns import Pattern

# To apt a name with + or - behind it is an order to install or remove, so none but g++ and its like ends in one.
_PACKAGE: Final = Pattern(r"[A-Za-z0-9](?:[A-Za-z0-9.+_-]{0,126}[A-Za-z0-9.])?|[a-z]{1,4}\+\+")
_UNIT: Final = Pattern(r"[A-Za-z0-9][A-Za-z0-9.:_@-]{0,127}")
_RELEASE: Final = Pattern(r"\d[A-Za-z0-9.+~_-]{0,127}")
_NAME: Final = Pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_GPU: Final = Pattern(
    r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|\d{1,3}|(?:GPU|MIG)-[0-9A-Fa-f-]{36}"
)
_MOST: Final = 255

RUNNING_KERNEL: Final = Shell("$(uname -r)")


class OfGpu(Command):
    """A command about the GPU that is at fault: until that one is known, ``ADDRESS`` stands for it.

    Without an address nvidia-smi takes every GPU of the node, and resets those that are at work as well; to this word
    it answers that there is no such GPU.
    """

    __slots__ = ()


ADDRESS: Final = "ADDRESS"


def joined(*parts: Command) -> Command:
    """One command of several, and of the signs between them."""
    return Command("".join(part if part.startswith((";", ")")) else f" {part}" for part in parts).strip())


def output(typed: Command) -> Shell:
    """The words that the command prints, in the place of a word."""
    return Shell(f"$({typed})")


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


def of_gpu(*words: str) -> Command:
    """The command of these words, ``ADDRESS`` among them."""
    return OfGpu(command(*words))


def on_gpus(typed: Command, gpus: Iterable[str]) -> tuple[Command, ...]:
    """The command for each of these GPUs, where it is about the one at fault; as it is where none is known."""
    named = tuple(gpu for gpu in gpus if is_gpu(gpu))
    return (
        tuple(Command(typed.replace(ADDRESS, gpu)) for gpu in named) if isinstance(typed, OfGpu) and named else (typed,)
    )


def is_place(path: str, *below: str) -> bool:
    """Whether this is the whole path of one thing at or below one of the places that this program names.

    A report may name any path; what a command of root's writes, moves or trusts is only where it belongs.
    """
    is_whole = (
        path.startswith("/")
        and len(path) <= _MOST
        and path.isprintable()
        and not any(letter in path for letter in "*?[]{}")
        and not {".", ".."}.intersection(path.split("/"))
    )
    return is_whole and any(path == place or path.startswith(f"{place}/") for place in below)


def at(gpu: str) -> tuple[str, str]:
    """The words of ``of_gpu`` that have nvidia-smi speak of that GPU alone, of the one at fault where it is empty."""
    return "-i", gpu if is_gpu(gpu) else ADDRESS


_SETTINGS: Final = (
    *("/etc/modprobe.d", "/lib/modprobe.d", "/usr/lib/modprobe.d", "/run/modprobe.d", "/etc/ld.so.conf.d"),
    *("/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/dnf", "/etc/default/grub"),
)


def edited(expression: str, *paths: str) -> tuple[Command, ...]:
    """The command by which sed edits these files and keeps what they were; none where no path is sound.

    Args:
        expression: of sed, extended.
        paths: of the files; those that stand elsewhere than such configuration does are left out.
    """
    sound = tuple(path for path in dict.fromkeys(paths) if is_place(path, *_SETTINGS))
    return (command("sudo", "sed", "-i.bak", "-E", expression, *sound),) if sound else ()


def edited_where(pattern: str, expression: str, *places: str) -> Command:
    """The command by which sed edits those files below ``places`` that have such a line, and keeps what they were.

    Args:
        pattern: of grep, extended.
        expression: of sed, extended.
        places: as this program names them; a file that is not there is passed over.
    """
    find = command("grep", "-rlsE", "--exclude=*.bak", "--", pattern, *places)
    return joined(find, Shell(r"| xargs -r -d '\n'"), command("sudo", "sed", "-i.bak", "-E", expression))


def beside(before: str, word: str, after: str = "") -> str:
    """``word`` with something of this program before and behind it; for the shell to work out where it was."""
    return Shell(f"{before}{word}{after}") if isinstance(word, Shell) else f"{before}{word}{after}"


def kernel(release: str, before: str = "", after: str = "") -> str:
    """A word with a kernel's release in it; where that is not known, the shell puts the running one there."""
    return beside(before, release if is_release(release) else RUNNING_KERNEL, after)
