"""Unpacks gpunode's modules from gpunode.pyz; loaded when they are not unpacked yet."""

from __future__ import annotations

import atexit
import compileall
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


def into(caches: Iterable[str], name: str) -> str:
    """The folder ``name`` in the first of ``caches`` that can be used, with the modules in it.

    Where none can, as on a read-only system, a folder that goes at the end of this process.
    """
    payload = _payload()
    for cache in caches:
        try:
            return _into(cache, name, payload)
        except OSError:
            continue
    folder = tempfile.mkdtemp(prefix="gpunode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _extract(payload, folder)
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
    start.held(partial)
    umask = os.umask(0o022)
    try:
        _extract(payload, partial)
        # All of it: where root unpacked, other users could keep no bytecode.
        compileall.compile_dir(partial, quiet=2, stripdir=partial, prependdir=os.path.join(cache, name))
        _sync(partial)
        os.chmod(partial, 0o755)
        os.rename(partial, os.path.join(cache, name))
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not os.path.isdir(os.path.join(cache, name)):  # else another process was first
            raise
    finally:
        os.umask(umask)
    _forget_others(cache, name)
    return start.held(os.path.join(cache, name))


def _extract(payload: bytes, folder: str) -> None:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        archive.extractall(folder)


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
    """What other versions unpacked goes, unless one of them runs."""
    for other in os.listdir(cache):
        if other == name:
            continue
        descriptor = os.open(os.path.join(cache, other), os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(os.path.join(cache, other), ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(descriptor)
