"""The distribution of a running machine or a mounted root, as the package ``distro`` reads it from os-release(5)."""

from __future__ import annotations

from gpunode.facts import machine
from gpunode.facts.model import Distro
from gpunode.host import places

_LIMIT_BYTES = 1 << 16


def read_distribution(root: str = "/") -> Distro | None:
    """Return the distribution in ``root``; None if ``distro`` cannot tell.

    ``LinuxDistribution(root_dir=…)`` would follow an absolute link out of the root, so each file is found inside it and
    handed over by the folder in which it stands. Of ``distro`` only os-release is asked: its other sources are programs
    that it looks for in the caller's PATH.
    """
    import distro

    for path in machine.PATHS:
        try:
            with places.open_place(path, root) as place:
                if (status := place.status()) is None or status.st_size > _LIMIT_BYTES:
                    continue
                file = f"/proc/self/fd/{place.folder}/{place.name}"
                found = distro.LinuxDistribution(
                    os_release_file=file, include_lsb=False, include_uname=False, include_oslevel=False
                ).os_release_info()
            return machine.make_distro({key.upper(): value for key, value in found.items()})
        except (OSError, ValueError):  # no such file, or one with a quote that is never closed
            continue
    return None
