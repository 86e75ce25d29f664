"""modprobe.d(5) and modules-load.d(5): what the node says of modules by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpunode.facts.model import Facts, known

FOLDER: Final = "/etc/modprobe.d"
LOAD_FOLDER: Final = "/etc/modules-load.d"
# Names of modules to load, one a line: at boot, and in the initramfs.
LISTS: Final = ("/etc/modules", "/etc/initramfs-tools/modules")


@dataclass(frozen=True, slots=True)
class Said:
    """One line; ``words`` with module names as the kernel writes them."""

    file: str
    line: int
    words: tuple[str, ...]


def directives(facts: Facts) -> Iterator[Said]:
    """Every line of the files that modprobe reads in /etc."""
    return _lines(_texts(facts, FOLDER, ()))


def loaded_by_name(facts: Facts) -> Iterator[Said]:
    """Every line of the files that name modules to be loaded; the first word is the module's name."""
    return _lines(_texts(facts, LOAD_FOLDER, LISTS))


def _texts(facts: Facts, folder: str, single: tuple[str, ...]) -> Mapping[str, str]:
    paths = (
        path for path in facts.files if path in single or (path.startswith(f"{folder}/") and path.endswith(".conf"))
    )
    states = ((path, known(facts.file(path), None)) for path in sorted(paths))
    return {path: state.content.decode("utf-8", "replace") for path, state in states if state is not None}


def _lines(texts: Mapping[str, str]) -> Iterator[Said]:
    for file, text in texts.items():
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split("#")[0].split()
            if words:
                yield Said(file, number, tuple(word.replace("-", "_") for word in words))
