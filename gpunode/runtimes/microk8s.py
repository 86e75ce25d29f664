"""microk8s: a TOML file with the snap's variables in its strings, from which containerd's own is made at every start.

The file is edited in place as TOML: a variable is part of a string, and stays as it is. A drop-in would not do, as its
variables would stay unfilled.

Source: canonical/microk8s microk8s-resources (default-args/containerd-template.toml; wrappers/run-containerd-with-args,
which fills in ${SNAP}, ${SNAP_DATA}, ${RUNTIME} and others with sed); microk8s issue 3959; gpu-operator issue 1367
(with docker's containerd on the PATH the toolkit took the wrong one's settings).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpunode.errors import Refused
from gpunode.runtimes import containerd, containerd_files
from gpunode.runtimes.model import ConfigEdit, DesiredConfig, Files, ObservedConfig

CONTAINERD_TEMPLATE_FILE: Final = "/var/snap/microk8s/current/args/containerd-template.toml"


def reads(files: Files, desired: DesiredConfig) -> tuple[str, ...]:
    """The template alone; what it imports is read when containerd starts, and not edited."""
    return containerd_files.reads({}, locate(files, desired))[:1]


def inspect(files: Files, desired: DesiredConfig) -> ObservedConfig:
    """The template's configuration."""
    return containerd.inspect(files, locate(files, desired))


def configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    """The template with the requested handler; no edits if it has it already.

    Raises:
        Refused: it is not there or cannot be read, or a drop-in was requested.
    """
    if CONTAINERD_TEMPLATE_FILE not in files:
        raise Refused(
            f"{CONTAINERD_TEMPLATE_FILE} does not exist",
            why="microk8s generates containerd's configuration from it, and does not start without it",
            hint="reinstall or refresh the snap: snap refresh microk8s",
        )
    if desired.mode == "drop-in":
        raise Refused(
            "microk8s does not support drop-ins",
            why=f"it only fills in the variables of {CONTAINERD_TEMPLATE_FILE}",
            hint="leave --mode out: gpunode edits the template in place",
        )
    edited = containerd.configure(files, locate(files, desired))
    return replace(edited, how="in place: microk8s generates the configuration from this template at every start")


def locate(files: Files, desired: DesiredConfig) -> DesiredConfig:
    """Return ``desired`` for the template."""
    del files
    return replace(desired, config=CONTAINERD_TEMPLATE_FILE, drop_in="", mode="in-place", version=None)
