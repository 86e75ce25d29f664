"""Unpacks gpunode's modules from gpunode.pyz; loaded when they are not unpacked yet."""

from __future__ import annotations

import atexit
import compileall
import contextlib
import ctypes
import fcntl
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable

import __main__ as start

# Where only root makes names, or nobody removes another's: never TMPDIR, nor the folder that root happens to be in.
_TEMPORARY = ("/tmp", "/var/tmp", "/run", "/dev/shm")  # noqa: S108 - mkdtemp makes the name


def into(caches: Iterable[str], name: str) -> str:
    """The folder ``name`` in the first of ``caches`` that can be used, with the modules in it.

    Where none can, as on a read-only system, a folder that goes at the end of this process.
    """
    payload, places = _payload(), tuple(caches)
    for cache in places:
        try:
            return _into(cache, name, payload)
        except OSError:
            continue
    for place in _TEMPORARY:
        try:
            return _temporary(place, payload)
        except OSError as error:
            reason = error.strerror
    tried = ", ".join((*places, *_TEMPORARY))
    sys.stderr.write(f"gpunode cannot unpack itself: {reason}. Make 30 MB of room in one of {tried}.\n")
    sys.exit(3)


def _temporary(place: str, payload: bytes) -> str:
    folder = tempfile.mkdtemp(prefix="gpunode-", dir=place)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        _extract(payload, folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _payload() -> bytes:
    try:
        with zipfile.ZipFile(start.GPUNODE_ZIPAPP) as archive:
            payload = archive.read("payload.zip")
    except zipfile.BadZipFile:
        payload = b""
    if hashlib.sha256(payload).hexdigest() != start.PAYLOAD_SHA256:
        sys.stderr.write(f"{start.GPUNODE_ZIPAPP} is damaged: its content has another sha256; copy it here again.\n")
        sys.exit(3)
    return payload


def _into(cache: str, name: str, payload: bytes) -> str:
    os.makedirs(os.path.dirname(cache), mode=0o700 if os.geteuid() else 0o755, exist_ok=True)
    if not os.path.isdir(cache):
        os.mkdir(cache, 0o755)
        os.chmod(cache, 0o755)
    if not start.nobody_else_writes(cache):
        raise PermissionError(cache)
    partial = tempfile.mkdtemp(prefix=".partial-", dir=cache)
    if not start.hold_folder(partial):  # another process cleared it away at once
        raise FileNotFoundError(partial)
    umask = os.umask(0o022)
    try:
        _extract(payload, partial)
        _compile(partial, os.path.join(cache, name))
        _sync(partial)
        os.chmod(partial, 0o755)
        os.rename(partial, os.path.join(cache, name))
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not start.nobody_else_writes(os.path.join(cache, name)):  # else another process was first
            raise
    finally:
        os.umask(umask)
    _forget_others(cache, name)
    if not start.hold_folder(os.path.join(cache, name)):
        raise FileNotFoundError(name)
    return os.path.join(cache, name)


def _extract(payload: bytes, folder: str) -> None:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        archive.extractall(folder)


def _compile(folder: str, name: str) -> None:
    """All of it, for ``name``: where root unpacked, other users could keep no bytecode.

    On a full disk Python 3.11 keeps bytecode that is cut off, and stumbles over it at every start.
    """
    if not compileall.compile_dir(folder, quiet=2, stripdir=folder, prependdir=name):
        raise OSError("bytecode could not be written")


def _sync(folder: str) -> None:
    """All of it is on the disk: a power cut leaves no empty module behind a finished name.

    One call for the whole file system: 2000 of fsync take ten seconds on a busy disk.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None).syncfs(descriptor):
            raise OSError("syncfs failed")
    finally:
        os.close(descriptor)


def _forget_others(cache: str, name: str) -> None:
    """Remove what other versions unpacked, unless one of them runs."""
    for other in os.listdir(cache):
        if other != name:
            with contextlib.suppress(OSError):  # it runs, or another process was first
                _forget(cache, other)


def _forget(cache: str, other: str) -> None:
    descriptor = os.open(os.path.join(cache, other), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed first: a removal that is killed leaves no half of it under its name.
        partial = tempfile.mkdtemp(prefix=".partial-", dir=cache)
        os.rename(os.path.join(cache, other), partial)
        shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(descriptor)
