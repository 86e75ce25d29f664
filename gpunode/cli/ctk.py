"""The commands below ``gpunode ctk``: nvidia-ctk's options and a few more.

As in ``cli/app.py``, only typer is imported here; every command imports what it needs.
"""

# No annotations from __future__ here: see cli/app.py.
# ruff: noqa: I002

from typing import Annotated

import typer

from gpunode.cli.app import (
    DebugOption,
    DisruptionOption,
    JsonOption,
    LockTimeoutOption,
    QuietOption,
    RootOption,
    build_options,
    text_option,
)
from gpunode.cli.goflags import GoCommand, GoGroup, ctk_output_options

app = typer.Typer(rich_markup_mode=None)
runtime_app = typer.Typer(help="Add, remove or check the NVIDIA runtime.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(runtime_app, name="runtime")
config_app = typer.Typer(
    help="Print or change the container toolkit's own configuration; comments are kept.",
    cls=GoGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(config_app, name="config")

RuntimeOption = Annotated[
    str, text_option("--runtime", "NAME", "docker (the default, as in nvidia-ctk), containerd, crio or podman")
]
ConfigOption = Annotated[
    str, text_option("--config", "FILE", "the runtime's configuration file (default: the usual one)")
]
DropInOption = Annotated[
    str | None,
    text_option("--drop-in-config", "FILE", "write to this drop-in; an empty value edits the configuration itself"),
]
ModeOption = Annotated[str, text_option("--mode", "MODE", "auto, in-place (the configuration itself) or drop-in")]
ConfigSourceOption = Annotated[
    str, text_option("--config-source", "SOURCE", "where to copy options from: file, or the runtime's own command")
]
ExecutableOption = Annotated[
    str, text_option("--executable-path", "FILE", "the runtime's program for --config-source=command")
]
NvidiaRuntimeNameOption = Annotated[
    str, text_option("--nvidia-runtime-name", "NAME", "the name by which containers request the runtime")
]
NvidiaRuntimePathOption = Annotated[
    str,
    typer.Option("--nvidia-runtime-path", "--runtime-path", metavar="FILE", help="the binary that the runtime runs"),
]
SetAsDefaultOption = Annotated[
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

VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="show new files in full")]


@runtime_app.command("configure", cls=GoCommand)
def configure(
    ctx: typer.Context,
    runtime: RuntimeOption = "docker",
    config: ConfigOption = "",
    drop_in: DropInOption = None,
    mode: ModeOption = "auto",
    name: NvidiaRuntimeNameOption = "nvidia",
    path: NvidiaRuntimePathOption = "nvidia-container-runtime",
    default: SetAsDefaultOption = False,
    cdi: CdiOption = False,
    enable_cri: CriOption = False,
    source: ConfigSourceOption = "file",
    executable: ExecutableOption = "",
    config_mode: Annotated[str, text_option("--config-mode", "MODE", "config-file; OCI hooks are not supported")] = "",
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
    from gpunode.cli import runtime_config

    permissions = build_options(ctx, runtime_config.EditPermissions)
    runtime_config.configure(
        build_options(ctx, runtime_config.RuntimeOptions), ctk_output_options(ctx), root, permissions
    )


@runtime_app.command("unconfigure", cls=GoCommand)
def unconfigure(
    ctx: typer.Context,
    runtime: RuntimeOption = "docker",
    config: ConfigOption = "",
    drop_in: DropInOption = None,
    name: NvidiaRuntimeNameOption = "nvidia",
    path: NvidiaRuntimePathOption = "nvidia-container-runtime",
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

    Restores the previous default runtime. Edits made since are kept.
    """
    from gpunode.cli import runtime_config

    runtime_config.unconfigure(
        build_options(ctx, runtime_config.RuntimeOptions),
        ctk_output_options(ctx),
        root,
        build_options(ctx, runtime_config.EditPermissions),
    )


@runtime_app.command("check", cls=GoCommand)
def check(
    ctx: typer.Context,
    runtime: RuntimeOption = "docker",
    config: ConfigOption = "",
    drop_in: DropInOption = None,
    mode: ModeOption = "auto",
    name: NvidiaRuntimeNameOption = "nvidia",
    path: NvidiaRuntimePathOption = "nvidia-container-runtime",
    default: SetAsDefaultOption = False,
    cdi: CdiOption = False,
    enable_cri: CriOption = False,
    source: ConfigSourceOption = "file",
    executable: ExecutableOption = "",
    root: RootOption = "/",
    json: JsonOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check the configuration; change nothing.

    Exits with 0 if everything is configured, 4 if a file differs, 7 if the daemon uses another configuration or a
    program is missing, 13 if that cannot be determined.
    """
    from gpunode.cli import runtime_config

    runtime_config.check_runtime(build_options(ctx, runtime_config.RuntimeOptions), ctk_output_options(ctx), root)


_DEFAULT_FILE_HELP = (
    "default: $NVIDIA_CTK_CONFIG_FILE_PATH, else nvidia-container-runtime/config.toml in $XDG_CONFIG_HOME or /etc"
)
ToolkitConfigFileOption = Annotated[
    str,
    typer.Option("-c", "--config-file", "--config", metavar="FILE", help=f"the file to read ({_DEFAULT_FILE_HELP})"),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY[=VALUE]",
        help="set a key, such as nvidia-container-cli.no-cgroups=true; separate list items with colons; "
        "features.NAME=nil removes a feature; may be repeated, the last value counts",
    ),
]
InPlaceOption = Annotated[bool, typer.Option("-i", "--in-place", help="write the result to the file that was read")]
OutputOption = Annotated[
    str, typer.Option("-o", "--output", metavar="FILE", help="write to FILE, not to standard output")
]


@config_app.callback()
def config(
    ctx: typer.Context,
    config_file: ToolkitConfigFileOption = "",
    set_: SetOption = [],  # noqa: B006 - typer's own idiom for a repeated option
    in_place: InPlaceOption = False,
    output: OutputOption = "",
    root: RootOption = "/",
    lock_timeout: LockTimeoutOption = 600,
    json: JsonOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print the toolkit's configuration with the changes of --set; -i or -o writes it, with a journal."""
    if ctx.invoked_subcommand is not None:
        return
    from gpunode.cli import toolkit_config

    options = toolkit_config.ToolkitConfigOptions(config_file, output, root, in_place, lock_timeout)
    toolkit_config.edit_config(set_, options, ctk_output_options(ctx))


def _print_default_config(
    ctx: typer.Context,
    output: OutputOption = "",
    root: RootOption = "/",
    lock_timeout: LockTimeoutOption = 600,
    json: JsonOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print the toolkit's default configuration; -o writes it to a file, with a journal."""
    from gpunode.cli import toolkit_config

    options = toolkit_config.ToolkitConfigOptions("", output, root, lock_timeout_s=lock_timeout)
    toolkit_config.write_default_config(options, ctk_output_options(ctx))


config_app.command("default", cls=GoCommand)(_print_default_config)
for _alias in ("create-default", "generate-default"):
    config_app.command(_alias, cls=GoCommand, hidden=True)(_print_default_config)
