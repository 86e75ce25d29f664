"""Which NVIDIA modules are built, by whom and for which kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpunode.facts.evidence import Found
from gpunode.facts.model import DkmsBuild, ModuleFile
from gpunode.facts.patterns import Pattern

# The main module alone: Debian calls it nvidia-current or nvidia-tesla-470; nvidia-uvm, -drm and the rest come with it.
_MAIN = Pattern(r"nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\w+|-\d+)?(?:-open)?\.ko(?:\.(?:xz|gz|zst))?")
_DRIVER = Pattern(r"nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\w+|-\d+)?(?:-open)?")
_PREBUILT = Pattern(r"/kernel/nvidia-(\d+)[^/]*/")


def installed(links: Iterable[Found]) -> Mapping[tuple[str, str], str]:
    """The version that DKMS has installed, by its module's name and the kernel.

    Source: dkms 3.0.10, ``_is_module_installed``: <tree>/<module>/kernel-<kernel>-<arch> links to
    <version>/<kernel>/<arch>.
    """
    return {key: version for found in links for key, version in _link(found)}


def _link(found: Found) -> Iterator[tuple[tuple[str, str], str]]:
    module = found.path.rpartition("/")[0].rpartition("/")[2]
    parts = (found.link or "").rstrip("/").split("/")[-3:]
    if len(parts) == 3 and found.path.endswith(f"/kernel-{parts[1]}-{parts[2]}"):
        yield (module, parts[1]), parts[0]


def drivers(links: Iterable[Found]) -> Mapping[str, DkmsBuild]:
    """The NVIDIA driver that DKMS holds to be installed, by kernel."""
    builds = installed(links).items()
    return {kernel: DkmsBuild(module, version) for (module, kernel), version in builds if _DRIVER.fullmatch(module)}


def module_files(found: Iterable[Found], links: Iterable[Found]) -> tuple[ModuleFile, ...]:
    """The main NVIDIA modules among ``found``, by path, with the version that DKMS or the path tells."""
    versions = {kernel: build.version for kernel, build in drivers(links).items()}
    paths = sorted({one.path for one in found if _MAIN.fullmatch(one.path.rpartition("/")[2])})
    return tuple(_module_file(path, versions) for path in paths)


def _module_file(path: str, versions: Mapping[str, str]) -> ModuleFile:
    kernel = path.split("/")[3]
    if match := _PREBUILT.search(path):
        return ModuleFile(kernel, path, match[1])
    dkms = "/updates/dkms/" in path
    return ModuleFile(kernel, path, versions.get(kernel, "") if dkms else "", dkms)
