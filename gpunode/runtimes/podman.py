"""podman: it has no handlers to register; containers get GPUs as CDI devices. Checks podman's support for that.

Source: Debian's podman 4.3.1 and 5.4.2, tried with specifications of every version of CDI; podman issues 26569 (5.5
only reads /etc/cdi) and 25691 (before 5.5 the folders could not be configured); containers.conf(5), "Appending to
string arrays", which also applies to later files.
"""

from __future__ import annotations

from gpunode.facts.probes import CDI_FOLDERS
from gpunode.runtimes.documents import parse_document, value_at
from gpunode.runtimes.model import (
    ConfigEdit,
    DesiredConfig,
    Files,
    ObservedConfig,
)

# The first version that accepts CDI's specifications in their form since 2022 (CDI 0.3).
MIN_PODMAN_VERSION = (4, 1)
Version = tuple[int, ...]
PODMAN_CONFIG = "/etc/containers/containers.conf"
_MAX_CDI_SPEC_BY_PODMAN_VERSION = (((4, 4), (0, 5)), ((5, 0), (0, 6)))
_FIRST_VERSION_WITH_CDI_FOLDERS = (5, 5)


def configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    """Return no edits: there is no handler to register."""
    del files, desired
    return ConfigEdit(
        (), "podman uses GPUs as CDI devices (--device nvidia.com/gpu=all); none of its own files changes"
    )


def inspect(files: Files, desired: DesiredConfig) -> ObservedConfig:
    """Return no handlers, since podman's files have none; its support for CDI is always on."""
    del files, desired
    return ObservedConfig(cdi=True)


def spec_folders(files: Files, version: Version | None) -> tuple[str, ...]:
    """Return the folders in which podman looks for CDI specifications; the last folder wins.

    A list replaces those of earlier files, unless it or one of them has ``{append = true}``.

    Raises:
        Refused: a configuration file is not UTF-8.
    """
    if version is None or version < _FIRST_VERSION_WITH_CDI_FOLDERS:
        return CDI_FOLDERS
    folders: tuple[str, ...] = ("/etc/cdi",) if version[:2] == _FIRST_VERSION_WITH_CDI_FOLDERS else CDI_FOLDERS
    appends = False
    for path in sorted(files, key=lambda path: (not path.startswith("/usr/"), ".conf.d/" in path, path)):
        try:
            configured_folders = value_at(parse_document(files[path], path), ("engine", "cdi_spec_dirs"))
        except ValueError:
            continue  # podman itself fails and reports it
        items = configured_folders if isinstance(configured_folders, list) else []
        for item in items:
            appends = item.get("append", appends) is True if isinstance(item, dict) else appends
        own = tuple(item for item in items if isinstance(item, str))
        folders = (*folders, *own) if appends else own or folders
    return folders


def supports_spec(version: Version | None, spec_version: str) -> bool:
    """Return whether podman reads specifications of that CDI version; true if unknown."""
    numbers = tuple(int(part) for part in spec_version.split(".") if part.isdecimal())
    limit = next(
        (most for before, most in _MAX_CDI_SPEC_BY_PODMAN_VERSION if version is not None and version < before), None
    )
    return limit is None or numbers[:2] <= limit
