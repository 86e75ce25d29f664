"""What `ctk config` does: the toolkit's configuration printed, or written through the journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.cli.changing import LOCK_TIMEOUT_S
from gpunode.cli.compose import checked_root
from gpunode.cli.configuring import Permissions, edit
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.runtime_options import absolute
from gpunode.cli.screen.printer import standard_output
from gpunode.errors import UsageError
from gpunode.host.local import LocalHost
from gpunode.host.port import HostView
from gpunode.runtimes import toolkit
from gpunode.workflow import edits
from gpunode.workflow.edits import CtkPlan, preview_files

_BELOW = "nvidia-container-runtime/config.toml"
_WITHOUT_ROOT = "without --in-place and --output it prints what it would write, and needs no root"


@dataclass(frozen=True, slots=True)
class Where:
    """Which file is read, and where the outcome goes.

    Attributes:
        file: empty for the usual one.
        output: empty for the screen, or with ``in_place`` for ``file``.
    """

    file: str
    output: str
    root: str
    in_place: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S


def config(words: Sequence[str], where: Where, how: OutputOptions) -> None:
    """Prints the configuration with what ``words``, the values of --set, ask for; or writes it."""
    if where.in_place and where.output:
        raise UsageError(
            "--in-place and --output contradict each other",
            why="the first writes the file that was read, the second another file; nvidia-ctk accepts both "
            f"and never writes {where.output}",
            hint="leave one of them out",
        )
    desired, place = toolkit.settings(words), checked_root(where.root)
    path = absolute("--config-file", where.file or usual(os.environ, image=place != "/"), place)
    target = path if where.in_place else absolute("--output", where.output, place)
    _answer(
        "ctk config", lambda host: edits.plan_toolkit_config(host, path, desired, target), place, target, where, how
    )


def default(where: Where, how: OutputOptions) -> None:
    """Prints the configuration of a new installation, or writes it."""
    place = checked_root(where.root)
    target = absolute("--output", where.output, place)
    planning = lambda host: edits.plan_new_toolkit_config(host, target or toolkit.CONFIG)  # noqa: E731
    _answer("ctk config default", planning, place, target, where, how)


def usual(environment: Mapping[str, str], *, image: bool) -> str:
    """The file that the toolkit itself reads; what this machine's environment says holds for no image.

    Source: nvidia-container-toolkit@v1.20.0, api/config/v1/config.go.
    """
    if image:
        return toolkit.CONFIG
    above = environment.get("XDG_CONFIG_HOME") or "/etc"
    return environment.get("NVIDIA_CTK_CONFIG_FILE_PATH") or str(Path(above, _BELOW))


def _answer(
    command: str, planning: Callable[[HostView], CtkPlan], place: str, target: str, where: Where, how: OutputOptions
) -> None:
    if target:
        permissions = Permissions(lock_timeout=where.lock_timeout_s)
        edit(command, "configure", lambda host, _: planning(host), how, place, permissions, _WITHOUT_ROOT)
        return
    (content,) = preview_files(planning(LocalHost(place)))
    text = content.decode()
    if not how.json:
        standard_output().raw(text)
    how.answer(Envelope(command, result={"text": text}))
