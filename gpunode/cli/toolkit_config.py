"""`ctk config`: print the toolkit's configuration, or write it through the journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import validate_root
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.runtime_config import EditPermissions, resolve_file_option, run_edit
from gpunode.cli.screen.printer import standard_output
from gpunode.cli.session import LOCK_TIMEOUT_S
from gpunode.errors import UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.host.local import LocalHost
from gpunode.host.port import HostView
from gpunode.runtimes import toolkit
from gpunode.workflow import ctk_plan
from gpunode.workflow.ctk_plan import CtkPlan, preview_contents

_CONFIG_SUBPATH = "nvidia-container-runtime/config.toml"
_WITHOUT_ROOT_HINT = "without --in-place and --output it prints what it would write, and needs no root"


@dataclass(frozen=True, slots=True)
class ToolkitConfigOptions:
    """The options of ``ctk config``.

    Attributes:
        file: the file to read; empty for the default.
        output: the file to write; empty for the screen, or with ``in_place`` for ``file``.
    """

    file: str
    output: str
    root: str
    in_place: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S


def edit_config(words: Sequence[str], options: ToolkitConfigOptions, output: OutputOptions) -> None:
    """Print or write the configuration as changed by ``words``, the values of --set."""
    if options.in_place and options.output:
        raise UsageError(
            "--in-place and --output contradict each other",
            why="the first writes the file that was read, the second another file; nvidia-ctk accepts both "
            f"and never writes {options.output}",
            hint="leave one of them out",
        )
    desired, root_folder = toolkit.parse_set_options(words), validate_root(options.root)
    path = resolve_file_option(
        "--config-file", options.file or default_config_path(os.environ, image=root_folder != "/"), root_folder
    )
    target = path if options.in_place else resolve_file_option("--output", options.output, root_folder)
    _write_or_print(
        "ctk config",
        lambda host: ctk_plan.plan_toolkit_config(host, path, desired, target),
        root_folder,
        target,
        options,
        output,
    )


def write_default_config(options: ToolkitConfigOptions, output: OutputOptions) -> None:
    """Print or write the configuration of a new installation."""
    root_folder = validate_root(options.root)
    target = resolve_file_option("--output", options.output, root_folder)
    plan_edit = lambda host: ctk_plan.plan_new_toolkit_config(host, target or toolkit.TOOLKIT_CONFIG)  # noqa: E731
    _write_or_print("ctk config default", plan_edit, root_folder, target, options, output)


def default_config_path(environment: Mapping[str, str], *, image: bool) -> str:
    """Return the file that the toolkit reads; an image ignores this machine's environment.

    Source: nvidia-container-toolkit@v1.20.0, api/config/v1/config.go.
    """
    if image:
        return toolkit.TOOLKIT_CONFIG
    above = environment.get("XDG_CONFIG_HOME") or "/etc"
    return environment.get("NVIDIA_CTK_CONFIG_FILE_PATH") or str(Path(above, _CONFIG_SUBPATH))


def _write_or_print(
    command: str,
    plan_edit: Callable[[HostView], CtkPlan],
    root: str,
    target: str,
    options: ToolkitConfigOptions,
    output: OutputOptions,
) -> None:
    if target:
        permissions = EditPermissions(lock_timeout=options.lock_timeout_s)
        run_edit(command, "configure", lambda host, _: plan_edit(host), output, root, permissions, _WITHOUT_ROOT_HINT)
        return
    (content,) = preview_contents(plan_edit(LocalHost(root)))
    text = content.decode()
    if not output.json:
        standard_output().print_raw(text)
    output.emit(Envelope(command, result={"text": text}))
