"""Glob matching inside a node's root, and the files that probes name."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from gpunode.facts.evidence import Capture, GlobMatch, Probe, encode_matches
from gpunode.host.files import capture_error, make_ownership, read_file
from gpunode.host.rooted_paths import ABSENT_ERRNOS, list_names, open_folder, read_link_target, split_path_reversed


def read_probe(probe: Probe, root: str) -> Capture:
    """Read the file or the glob of ``probe`` inside ``root``."""
    if probe.glob:
        return read_glob(probe.glob, probe.limit_bytes, contents=probe.contents, root=root)
    return read_file(probe.path, probe.limit_bytes, root=root)


def read_glob(pattern: str, limit: int, *, contents: bool, root: str = "/") -> Capture:
    """Return the matches of ``pattern`` (``*``, ``?``, ``[…]`` in any component), encoded by ``encode_matches``.

    Without matches the outcome is ok and the data empty. If a folder cannot be listed, the outcome is denied or failed,
    and the data holds the matches found elsewhere.

    The content of a file longer than ``limit`` bytes is left out. If ``contents`` are read, folders are left out.
    """
    problems: list[OSError] = []
    encoded_matches = encode_matches(
        iter(_walk_pattern("", split_path_reversed(pattern), limit if contents else None, root, problems))
    )
    if problems:
        worst = capture_error(pattern, problems[0])
        return Capture(pattern, worst.outcome, encoded_matches, f"{problems[0].filename}: {worst.error}")
    return Capture(pattern, "ok", encoded_matches)


def _walk_pattern(
    above: str, todo: list[str], limit: int | None, root: str, problems: list[OSError]
) -> Iterable[GlobMatch]:
    *later, part = todo
    if later and not _is_pattern(part):
        return _walk_pattern(f"{above}/{part}", later, limit, root, problems)
    try:
        with open_folder(above or "/", root=root) as fd:
            names = _matching_names(fd, part)
            if not later:
                if limit is not None:
                    names = [name for name in names if not _is_folder(name, fd)]
                return [_make_match(f"{above}/{name}", name, fd, limit, root) for name in names]
    except OSError as error:
        if error.errno not in ABSENT_ERRNOS:
            error.filename = above or "/"
            problems.append(error)
        return ()
    return [match for name in names for match in _walk_pattern(f"{above}/{name}", later, limit, root, problems)]


def _is_folder(name: str, folder: int) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
    return False


def _is_pattern(part: str) -> bool:
    return any(mark in part for mark in "*?[")


def _matching_names(folder: int, part: str) -> list[str]:
    if not _is_pattern(part):
        with suppress(FileNotFoundError):
            os.lstat(part, dir_fd=folder)
            return [part]
        return []
    hidden = part.startswith(".")
    names = [name for name in list_names(folder) if hidden == name.startswith(".")]
    beginning, *rest = part.split("*")
    if len(rest) != 1 or any(mark in part for mark in "?["):
        return fnmatch.filter(names, part)
    # As fnmatch decides, without the regular expression that it compiles for every pattern.
    end, length = rest[0], len(part) - 1
    return [name for name in names if name.startswith(beginning) and name.endswith(end) and len(name) >= length]


def _make_match(path: str, name: str, folder: int, limit: int | None, root: str) -> GlobMatch:
    link = read_link_target(name, folder)
    if limit is not None:
        capture = read_file(path, limit, root=root)
        data = capture.data if capture.outcome == "ok" else None
        return GlobMatch(path, link, data, capture.ownership, denied=capture.outcome == "denied")
    with suppress(OSError):
        return GlobMatch(path, link, None, None if link else make_ownership(os.lstat(name, dir_fd=folder)))
    return GlobMatch(path, link)
