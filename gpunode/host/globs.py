"""What matches a pattern inside a node's root."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from gpunode.facts.evidence import Capture, Found, encode_found
from gpunode.host.files import ownership, read, unread
from gpunode.host.places import ABSENT, folder, link_target, names, parts


def find(pattern: str, limit: int, *, contents: bool, root: str = "/") -> Capture:
    """What matches ``pattern`` (``*``, ``?`` and ``[…]`` in any component), as ``encode_found`` writes it.

    Nothing matched is an answer too: the outcome is ok and the data empty. A folder that could not be listed makes it
    denied or failed, with what was found elsewhere as the data.

    Args:
        pattern: absolute, inside ``root``.
        limit: in bytes, of each file; the content of a longer one is left out.
        contents: whether the files are read; folders are left out then.
        root: the node's root.
    """
    problems: list[OSError] = []
    found = encode_found(iter(_find("", parts(pattern), limit if contents else None, root, problems)))
    if problems:
        worst = unread(pattern, problems[0])
        return Capture(pattern, worst.outcome, found, f"{problems[0].filename}: {worst.error}")
    return Capture(pattern, "ok", found)


def _find(above: str, todo: list[str], limit: int | None, root: str, problems: list[OSError]) -> Iterable[Found]:
    *later, part = todo
    if later and not _is_pattern(part):
        return _find(f"{above}/{part}", later, limit, root, problems)
    try:
        with folder(above or "/", root=root) as fd:
            names = _matches(fd, part)
            if not later:
                if limit is not None:
                    names = [name for name in names if not _is_folder(name, fd)]
                return [_found(f"{above}/{name}", name, fd, limit, root) for name in names]
    except OSError as error:
        if error.errno not in ABSENT:
            error.filename = above or "/"
            problems.append(error)
        return ()
    return [one for name in names for one in _find(f"{above}/{name}", later, limit, root, problems)]


def _is_folder(name: str, folder: int) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
    return False


def _is_pattern(part: str) -> bool:
    return any(mark in part for mark in "*?[")


def _matches(folder: int, part: str) -> list[str]:
    if not _is_pattern(part):
        with suppress(FileNotFoundError):
            os.lstat(part, dir_fd=folder)
            return [part]
        return []
    hidden = part.startswith(".")
    return [name for name in names(folder) if fnmatch.fnmatchcase(name, part) and hidden == name.startswith(".")]


def _found(path: str, name: str, folder: int, limit: int | None, root: str) -> Found:
    link = link_target(name, folder)
    if limit is not None:
        capture = read(path, limit, root=root)
        data = capture.data if capture.outcome == "ok" else None
        return Found(path, link, data, capture.ownership, denied=capture.outcome == "denied")
    with suppress(OSError):
        return Found(path, link, None, None if link else ownership(os.lstat(name, dir_fd=folder)))
    return Found(path, link)
