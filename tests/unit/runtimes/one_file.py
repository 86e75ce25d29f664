"""containerd's configuration as one file, edited in place: bytes in, bytes out."""

from __future__ import annotations

from dataclasses import replace

from gpunode.runtimes import DesiredConfig, ObservedConfig, apply_edits, containerd


def configure(data: bytes | None, desired: DesiredConfig, path: str = containerd.CONFIG) -> bytes:
    """Return the file after configuring it."""
    files = {} if data is None else {path: data}
    edited = containerd.configure(files, replace(desired, mode="in-place", config=path))
    return apply_edits(files, edited).get(path, b"")


def inspect(data: bytes | None, desired: DesiredConfig = DesiredConfig()) -> ObservedConfig:  # noqa: B008 - frozen
    """Return the state that the file describes."""
    return containerd.inspect({} if data is None else {containerd.CONFIG: data}, desired)
