"""The commands below ``gpunode ctk``: nvidia-ctk's own options, and a few on top.

As in ``cli/app.py`` only typer is imported here; every command imports what it needs.
"""

# No annotations from __future__ here: see cli/app.py.
# ruff: noqa: I002

from typing import Annotated, Any

import typer

from gpunode.cli.app import (
    DebugOption,
    JsonOption,
    LockTimeoutOption,
    QuietOption,
    RootOption,
)
from gpunode.cli.ctk_config import config_app
from gpunode.cli.goflags import GoCommand, given, how_asked

app = typer.Typer(rich_markup_mode=None)
runtime_app = typer.Typer(help="Add, remove or check the NVIDIA runtime.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(runtime_app, name="runtime")
app.add_typer(config_app, name="config")

RuntimeOption = Annotated[
    str,
    typer.Option("--runtime", metavar="NAME", help="docker (the default, as nvidia-ctk's), containerd, crio or podman"),
]
ConfigOption = Annotated[
    str, typer.Option("--config", metavar="FILE", help="the runtime's configuration file (default: the usual one)")
]
DropInOption = Annotated[
    str | None,
    typer.Option(
        "--drop-in-config", metavar="FILE", help="write into this drop-in; empty edits the configuration itself"
    ),
]
ModeOption = Annotated[
    str, typer.Option("--mode", metavar="MODE", help="auto, in-place (the configuration itself) or drop-in")
]
SourceOption = Annotated[
    str,
    typer.Option(
        "--config-source", metavar="SOURCE", help="where to copy options from: file, or the runtime's own command"
    ),
]
ExecutableOption = Annotated[
    str, typer.Option("--executable-path", metavar="FILE", help="the runtime's program for --config-source=command")
]
NameOption = Annotated[
    str, typer.Option("--nvidia-runtime-name", metavar="NAME", help="the name by which containers request the runtime")
]
PathOption = Annotated[
    str,
    typer.Option("--nvidia-runtime-path", "--runtime-path", metavar="FILE", help="what the runtime runs"),
]
DefaultOption = Annotated[
    bool, typer.Option("--nvidia-set-as-default", "--set-as-default", help="make it the default runtime")
]
CdiOption = Annotated[
    bool, typer.Option("--cdi.enabled", "--cdi.enable", "--enable-cdi", help="enable the runtime's CDI support")
]
CriOption = Annotated[
    bool, typer.Option("--enable-cri", help="remove cri from containerd's disabled_plugins, for the kubelet")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="print the new files, and the diff to standard error; change nothing")
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="restart the runtime, check that it came up, restore the old file if not")
]

DisruptionOption = Annotated[
    bool, typer.Option("--allow-disruption", help="continue even if running containers are stopped")
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="show new files in full")]


def commands() -> dict[str, Any]:
    """The commands by name, for the group that loads them."""
    return dict(typer.main.get_group(app).commands)


@runtime_app.command("configure", cls=GoCommand)
def configure(
    ctx: typer.Context,
    runtime: RuntimeOption = "docker",
    config: ConfigOption = "",
    drop_in: DropInOption = None,
    mode: ModeOption = "auto",
    name: NameOption = "nvidia",
    path: PathOption = "nvidia-container-runtime",
    default: DefaultOption = False,
    cdi: CdiOption = False,
    enable_cri: CriOption = False,
    source: SourceOption = "file",
    executable: ExecutableOption = "",
    config_mode: Annotated[
        str, typer.Option("--config-mode", metavar="MODE", help="config-file; OCI hooks are not supported")
    ] = "",
    hook_file: Annotated[str, typer.Option("--oci-hook-path", hidden=True)] = "",
    hook_path: Annotated[str, typer.Option("--nvidia-runtime-hook-path", hidden=True)] = "",
    dry_run: DryRunOption = False,
    restart: RestartOption = False,
    allow_disruption: DisruptionOption = False,
    lock_timeout: LockTimeoutOption = 600,
    root: RootOption = "/",
    json: JsonOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
    quiet: QuietOption = False,
) -> None:
    """Add the NVIDIA runtime to a runtime's configuration."""
    from gpunode.cli import configuring
    from gpunode.cli.runtime_options import Typed

    permissions = given(ctx, configuring.Permissions)
    configuring.configure(given(ctx, Typed), how_asked(ctx), root, permissions)


@runtime_app.command("unconfigure", cls=GoCommand)
def unconfigure(
    ctx: typer.Context,
    runtime: RuntimeOption = "docker",
    config: ConfigOption = "",
    drop_in: DropInOption = None,
    name: NameOption = "nvidia",
    path: PathOption = "nvidia-container-runtime",
    dry_run: DryRunOption = False,
    restart: RestartOption = False,
    allow_disruption: DisruptionOption = False,
    lock_timeout: LockTimeoutOption = 600,
    root: RootOption = "/",
    json: JsonOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove what configure added.

    The former default comes back; edits made since stay.
    """
    from gpunode.cli import configuring
    from gpunode.cli.runtime_options import Typed

    configuring.unconfigure(given(ctx, Typed), how_asked(ctx), root, given(ctx, configuring.Permissions))


@runtime_app.command("check", cls=GoCommand)
def check(
    ctx: typer.Context,
    runtime: RuntimeOption = "docker",
    config: ConfigOption = "",
    drop_in: DropInOption = None,
    mode: ModeOption = "auto",
    name: NameOption = "nvidia",
    path: PathOption = "nvidia-container-runtime",
    default: DefaultOption = False,
    cdi: CdiOption = False,
    enable_cri: CriOption = False,
    source: SourceOption = "file",
    executable: ExecutableOption = "",
    root: RootOption = "/",
    json: JsonOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check the configuration; change nothing.

    Exit 0: as configure would leave it. 4: a file differs. 7: the daemon has something else, or a program is missing.
    """
    from gpunode.cli import configuring
    from gpunode.cli.runtime_options import Typed

    configuring.check(given(ctx, Typed), how_asked(ctx), root)
