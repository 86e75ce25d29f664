"""Files of no package that are called as a driver's, such as an uninstaller leaves: packages overwrite them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from gpunode.facts.evidence import Probe, decode_found
from gpunode.host.port import HostView
from gpunode.packages import SYSTEMS

# Where the packages of drivers have files, other than those with a version in their name of a firmware or a module.
_PLACES: Final = (
    "/etc/OpenCL/vendors/nvidia*",
    "/usr/bin/nvidia-*",
    "/usr/lib/*-linux-gnu/lib*cuda*",
    "/usr/lib/*-linux-gnu/lib*nv*",
    "/usr/share/egl/egl_external_platform.d/*nvidia*",
    "/usr/share/glvnd/egl_vendor.d/*nvidia*",
    "/usr/share/nvidia/*",
    "/usr/share/vulkan/*/nvidia*",
)


def find_foreign_files(host: HostView) -> tuple[str, ...]:
    """Return the regular files in the places of a driver's that no package has brought."""
    return find_unowned(host, sorted(path for place in _PLACES for path in _list_files(host, place)))


def find_unowned(host: HostView, paths: Collection[str]) -> tuple[str, ...]:
    """Return those of ``paths`` that are no package's; none where nobody can tell."""
    # Before Debian 13 packages have /lib in their lists, which leads to /usr/lib.
    both = dict.fromkeys(name for path in paths for name in (path, path.removeprefix("/usr")))
    asked = Probe("file-owners", argv=(*SYSTEMS[0].owners, *both), content_kind="table")
    # Its exit status is 1 where one of them is not found.
    answer = host.look(asked) if paths else None
    if answer is None or answer.outcome not in ("ok", "failed") or answer.exit_status not in (0, 1):
        return ()
    owned = {line.partition(": ")[2] for line in answer.data.decode("utf-8", "replace").splitlines()}
    return tuple(path for path in paths if owned.isdisjoint((path, path.removeprefix("/usr"))))


def _list_files(host: HostView, place: str) -> Iterator[str]:
    found = host.look(Probe(f"foreign-{place}", glob=place, contents=False))
    yield from (one.path for one in decode_found(found.data) if one.link is None) if found.outcome == "ok" else ()
