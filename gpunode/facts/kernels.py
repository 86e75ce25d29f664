"""Kernels, their headers and order; their modules: loaded, on disk, built by DKMS, named in modprobe.d(5)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpunode.facts.evidence import GlobMatch
from gpunode.facts.model import DkmsBuild, Facts, LoadedDriver, ModuleFile
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_VERSION_PARTS = Pattern(r"(\D*)(\d*)")
# Files that grub-mkconfig skips, too (grub_file_is_not_garbage), and Ubuntu's second copies of signed images.
_NON_KERNEL_FILE_ENDING = Pattern(r"\.(?:dpkg-\w+|rpm\w+|ucf-\w+|old|bak|signed|unsigned|save|hmac)\Z|~\Z")


def version_key(version: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the key that sorts ``version`` as Debian's packages are sorted; epochs are ignored.

    Source: deb-version(7).
    """
    return tuple((_sort_key(letters), int(digits[:18] or "0")) for letters, digits in _VERSION_PARTS.findall(version))


def _sort_key(text: str) -> tuple[int, ...]:
    # The final 0 marks the end of the part: it sorts after a tilde and before anything else.
    return (*(-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 0x110000 for c in text), 0)


def installed_kernels(images: Iterable[GlobMatch]) -> tuple[str, ...]:
    """Return the versions of the kernel ``images`` in /boot, the newest last."""
    names = (found.path.partition("/vmlinuz-")[2] for found in images)
    return tuple(sorted({name for name in names if name and not _NON_KERNEL_FILE_ENDING.search(name)}, key=version_key))


def kernels_with_headers(builds: Iterable[GlobMatch], sources: Iterable[GlobMatch]) -> frozenset[str]:
    """Return the kernels whose build tree exists: a link into /usr/src may outlive the package of its target."""
    trees = {found.path for found in sources}
    return frozenset(found.path.split("/")[3] for found in builds if _is_tree_present(found, trees))


def _is_tree_present(build: GlobMatch, trees: set[str]) -> bool:
    if build.link is None:
        return True
    # /lib is a link to /usr/lib, where Debian 13's relative links start.
    target = posixpath.normpath(posixpath.join("/usr", posixpath.dirname(build.path).lstrip("/"), build.link))
    return target in trees if target.startswith("/usr/src/") else True


# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  <date>" and, for the open modules,
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (<user>)  <date>".
_NVRM_VERSION_LINE = Pattern(
    r"^NVRM version:\s*NVIDIA UNIX (.{0,80}?Kernel Module.{0,40}?)\s+(\d+(?:\.\d+){1,3})\b", re.MULTILINE
)


def parse_proc_modules(text: str) -> frozenset[str]:
    """Return the names of the loaded modules, from /proc/modules.

    Raises:
        ValueError: if a line is not one of that file.
    """
    names = set()
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name or not rest[:1].isdigit():
            raise ValueError(f"not a line of /proc/modules: {line[:80]!r}")
        names.add(name)
    return frozenset(names)


def parse_nvrm_version(text: str) -> LoadedDriver:
    """Return the driver that is loaded, from /proc/driver/nvidia/version.

    Raises:
        ValueError: if no version is found.
    """
    match = _NVRM_VERSION_LINE.search(text)
    if match is None:
        raise ValueError(f"no NVRM version in {text[:80]!r}")
    return LoadedDriver(match[2], "Open" in match[1].split())


# Only the main module: Debian calls it nvidia-current or nvidia-tesla-470; nvidia-uvm, -drm and the rest come with it.
_MAIN_MODULE_FILE_NAME = Pattern(
    r"nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\w+|-\d+)?(?:-open)?\.ko(?:\.(?:xz|gz|zst))?"
)
_DKMS_DRIVER_NAME = Pattern(r"nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\w+|-\d+)?(?:-open)?")
_PREBUILT_MODULE_FOLDER = Pattern(r"/kernel/nvidia-(\d+)[^/]*/")


def read_dkms_links(links: Iterable[GlobMatch]) -> Mapping[tuple[str, str], str]:
    """Return the version that DKMS has installed, by its module's name and the kernel.

    Source: dkms 3.0.10, ``_is_module_installed``: <tree>/<module>/kernel-<kernel>-<arch> links to
    <version>/<kernel>/<arch>.
    """
    versions: dict[tuple[str, str], str] = {}
    for link in links:
        parts = (link.link or "").rstrip("/").split("/")[-3:]
        if len(parts) == 3 and link.path.endswith(f"/kernel-{parts[1]}-{parts[2]}"):
            versions[link.path.split("/")[-2], parts[1]] = parts[0]
    return versions


def find_dkms_drivers(links: Iterable[GlobMatch]) -> Mapping[str, DkmsBuild]:
    """Return the NVIDIA driver that DKMS considers installed, by kernel."""
    builds = read_dkms_links(links).items()
    return {
        kernel: DkmsBuild(module, version)
        for (module, kernel), version in builds
        if _DKMS_DRIVER_NAME.fullmatch(module)
    }


def find_module_files(matches: Iterable[GlobMatch], links: Iterable[GlobMatch]) -> tuple[ModuleFile, ...]:
    """Return the main NVIDIA modules among ``matches``, by path, with their version according to DKMS or the path."""
    versions = {kernel: build.version for kernel, build in find_dkms_drivers(links).items()}
    paths = sorted({match.path for match in matches if _MAIN_MODULE_FILE_NAME.fullmatch(match.path.rpartition("/")[2])})
    return tuple(_make_module_file(path, versions) for path in paths)


def _make_module_file(path: str, versions: Mapping[str, str]) -> ModuleFile:
    kernel = path.split("/")[3]
    if match := _PREBUILT_MODULE_FOLDER.search(path):
        return ModuleFile(kernel, path, match[1])
    dkms = posixpath.dirname(path).endswith("/updates/dkms")
    return ModuleFile(kernel, path, versions.get(kernel, "") if dkms else "", dkms)


# If files have the same name, modprobe reads only the first: modprobe.d(5).
MODPROBE_FOLDERS: Final = {
    "modprobe-d": "/etc/modprobe.d",
    "modprobe-d-run": "/run/modprobe.d",
    "modprobe-d-local": "/usr/local/lib/modprobe.d",
    "modprobe-d-lib": "/lib/modprobe.d",
}
MODULES_LOAD_FOLDER: Final = "/etc/modules-load.d"
# Names of modules to load, one per line: at boot, and in the initramfs.
MODULE_LISTS: Final = ("/etc/modules", "/etc/initramfs-tools/modules")


@dataclass(frozen=True, slots=True)
class ModuleLine:
    """A configuration line; ``words`` with module names as the kernel writes them."""

    file: str
    line: int
    words: tuple[str, ...]


def modprobe_directives(facts: Facts) -> Iterator[ModuleLine]:
    """Yield every line of the files that modprobe reads."""
    read: dict[str, str] = {}
    for folder in MODPROBE_FOLDERS.values():
        names = {path.rpartition("/")[2] for path in read}
        texts = _read_module_config_texts(facts, folder, ()).items()
        read |= {path: text for path, text in texts if path.rpartition("/")[2] not in names}
    return _split_module_lines(read)


def module_load_lines(facts: Facts) -> Iterator[ModuleLine]:
    """Yield every line of the files that name modules to be loaded; the first word is the module's name."""
    return _split_module_lines(_read_module_config_texts(facts, MODULES_LOAD_FOLDER, MODULE_LISTS))


def _read_module_config_texts(facts: Facts, folder: str, single: tuple[str, ...]) -> Mapping[str, str]:
    paths = (
        path for path in facts.files if path in single or (path.startswith(f"{folder}/") and path.endswith(".conf"))
    )
    return {path: facts.text(path) for path in sorted(paths)}


def _split_module_lines(texts: Mapping[str, str]) -> Iterator[ModuleLine]:
    for file, text in texts.items():
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split("#")[0].split()
            if words:
                yield ModuleLine(file, number, tuple(word.replace("-", "_") for word in words))
