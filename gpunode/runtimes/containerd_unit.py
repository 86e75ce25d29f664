"""Which configuration containerd's own unit names, as Flatcar's does. Pure.

Source: containerd(8), ``--config`` and ``-c``; containerd 1.6.20, run with each way of writing them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.facts import systemd
from gpunode.runtimes.model import Files

UNIT = "containerd.service"
_CONFIG = frozenset({"config", "c"})
# Every other flag takes a value.
_SWITCHES = frozenset({"help", "h", "version", "v"})


@dataclass(frozen=True, slots=True)
class Named:
    """A configuration that a unit names.

    Attributes:
        path: of it.
        said_in: the file with the command line that does.
    """

    path: str
    said_in: str


def reads(files: Files) -> tuple[str, ...]:
    """The paths and patterns of all that says how containerd is started, as far as ``files`` tells."""
    return systemd.unit_file_patterns(files, UNIT)


def find_named_configuration(files: Files) -> Named | None:
    """The configuration that the unit names; None where it leaves containerd its usual one."""
    command = systemd.find_start_command(files, UNIT)
    path = config_of(command.argv) if command else ""
    return Named(path, command.sources[0]) if command and path else None


def config_of(argv: Sequence[str]) -> str:
    """The configuration that a command line gives containerd, be it through a wrapper; empty where it gives none."""
    words = list(_own_words(argv))
    found = ""
    while words and words[0].startswith("-"):
        name, mark, value = words.pop(0).lstrip("-").partition("=")
        if not mark and name not in _SWITCHES:
            value = words.pop(0) if words else ""
        if name in _CONFIG:
            found = value
    # A service's working folder is the root, unless told otherwise.
    return posixpath.normpath(posixpath.join("/", found)) if found else ""


def _own_words(argv: Sequence[str]) -> Sequence[str]:
    """The words behind containerd's name; none where it is not named."""
    words = [word for one in argv for word in (systemd.split_words(one) if "containerd " in one else (one,))]
    names = [index for index, word in enumerate(words) if posixpath.basename(word) == "containerd" and "=" not in word]
    return words[names[0] + 1 :] if names else ()
