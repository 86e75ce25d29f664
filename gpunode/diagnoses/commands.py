"""Build doctor's commands, and check which strings from the evidence may appear in them.

Anybody may have written a pasted report, and remedies run as root. So every word of a command is quoted, and a string
from the evidence is only used if it has the expected form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpunode.command import Command as Command
from gpunode.command import Shell as Shell
from gpunode.command import command as command
from gpunode.facts.patterns import Pattern

# apt reads a + or - at the end of a name as an order to install or remove, so only names like g++ may end in one.
_PACKAGE_NAME: Final = Pattern(r"[A-Za-z0-9](?:[A-Za-z0-9.+_-]{0,126}[A-Za-z0-9.])?|[a-z]{1,4}\+\+")
_UNIT_NAME: Final = Pattern(r"[A-Za-z0-9][A-Za-z0-9.:_@-]{0,127}")
_KERNEL_RELEASE_NAME: Final = Pattern(r"\d[A-Za-z0-9.+~_-]{0,127}")
_NODE_GROUP_OR_MODULE_NAME: Final = Pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_GPU_ID: Final = Pattern(
    r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|\d{1,3}|(?:GPU|MIG)-[0-9A-Fa-f-]{36}"
)
_MAX_PATH_LENGTH: Final = 255

# A text does not show which machine it is from, or when.
EXAMINE_NODE_COMMAND: Final = Shell("sudo gpunode doctor  # on the node itself")
RUNNING_KERNEL_SUBSTITUTION: Final = Shell("$(uname -r)")


class GpuCommand(Command):
    """A command about the faulty GPU; it contains ``GPU_ADDRESS`` until the address is known.

    Without an address nvidia-smi would reset every GPU of the node; this placeholder makes it report an unknown GPU.
    """

    __slots__ = ()


GPU_ADDRESS: Final = "ADDRESS"


def join_commands(*parts: Command) -> Command:
    """Return one command of several parts and the operators between them."""
    return Command("".join(part if part.startswith((";", ")")) else f" {part}" for part in parts).strip())


def is_package_name(name: str) -> bool:
    """Return whether ``name`` is a valid package name."""
    return isinstance(name, Shell) or _PACKAGE_NAME.fullmatch(name) is not None


def is_unit_name(name: str) -> bool:
    """Return whether ``name`` is a valid unit name, with or without suffix."""
    return _UNIT_NAME.fullmatch(name) is not None


def is_release_name(name: str) -> bool:
    """Return whether ``name`` is a version or a kernel release (``6.8.0-51-generic``)."""
    return _KERNEL_RELEASE_NAME.fullmatch(name) is not None


def is_plain_name(name: str) -> bool:
    """Return whether ``name`` is a valid name of a node, group or module."""
    return _NODE_GROUP_OR_MODULE_NAME.fullmatch(name) is not None


def is_gpu_id(name: str) -> bool:
    """Return whether nvidia-smi accepts ``name``: a bus address, an index or a UUID."""
    return _GPU_ID.fullmatch(name) is not None


def gpu_command(*words: str) -> Command:
    """Return the command of these words, ``GPU_ADDRESS`` among them."""
    return GpuCommand(command(*words))


def lacks_gpu_address(typed: Command) -> bool:
    """Return whether the command still names ``GPU_ADDRESS`` instead of a GPU."""
    return isinstance(typed, GpuCommand) and GPU_ADDRESS in typed


def fill_in_gpus(typed: Command, gpus: Iterable[str]) -> tuple[Command, ...]:
    """Return the GPU command once for each of ``gpus``; any other command unchanged."""
    named = tuple(gpu for gpu in gpus if is_gpu_id(gpu))
    return (
        tuple(Command(typed.replace(GPU_ADDRESS, gpu)) for gpu in named)
        if isinstance(typed, GpuCommand) and named
        else (typed,)
    )


def is_path_below(path: str, *below: str) -> bool:
    """Return whether ``path`` is a plain path at or below one of these folders.

    A report may name any path; root's commands must only touch files in their usual folders.
    """
    is_whole = (
        path.startswith("/")
        and len(path) <= _MAX_PATH_LENGTH
        and path.isprintable()
        and not any(letter in path for letter in "*?[]{}")
        and not {".", ".."}.intersection(path.split("/"))
    )
    return is_whole and any(path == place or path.startswith(f"{place}/") for place in below)


def gpu_option(gpu: str) -> tuple[str, str]:
    """Return the option that restricts nvidia-smi to that GPU, or to the faulty one if empty."""
    return "-i", gpu if is_gpu_id(gpu) else GPU_ADDRESS


_EDITABLE_FOLDERS: Final = (
    *("/etc/modprobe.d", "/lib/modprobe.d", "/usr/lib/modprobe.d", "/run/modprobe.d", "/etc/ld.so.conf.d"),
    *("/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/dnf", "/etc/default/grub"),
)


def edit_files(expression: str, *paths: str) -> tuple[Command, ...]:
    """Return the sed command that edits these files and keeps backups; none without an editable path.

    Args:
        expression: extended sed expression.
        paths: files to edit; those outside the configuration folders are skipped.
    """
    sound = tuple(path for path in dict.fromkeys(paths) if is_path_below(path, *_EDITABLE_FOLDERS))
    return (command("sudo", "sed", "-i.bak", "-E", expression, *sound),) if sound else ()


def edit_matching_files(pattern: str, expression: str, *places: str) -> Command:
    """Return the command that edits the files below ``places`` with a matching line and keeps backups.

    Args:
        pattern: extended grep pattern.
        expression: extended sed expression.
        places: literals of this program; missing files are skipped.
    """
    find = command("grep", "-rlsE", "--exclude=*.bak", "--", pattern, *places)
    return join_commands(find, Shell(r"| xargs -r -d '\n'"), command("sudo", "sed", "-i.bak", "-E", expression))


def surround_word(before: str, word: str, after: str = "") -> str:
    """Return ``word`` between literals; unquoted for the shell if ``word`` is a Shell string."""
    return Shell(f"{before}{word}{after}") if isinstance(word, Shell) else f"{before}{word}{after}"


def kernel_release_word(release: str, before: str = "", after: str = "") -> str:
    """Return a word with the kernel release, or with the running kernel if it is unknown."""
    return surround_word(before, release if is_release_name(release) else RUNNING_KERNEL_SUBSTITUTION, after)
