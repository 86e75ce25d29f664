"""`gpunode ctk config`: the flags of `nvidia-ctk config`, and what every command of gpunode takes.

Only typer is imported here, as in ``app``.
"""

# No annotations from __future__, as in app.
# ruff: noqa: I002

from typing import Annotated

import typer

from gpunode.cli.app import DebugOption, JsonOption, LockTimeoutOption, QuietOption, RootOption, VerboseOption
from gpunode.cli.goflags import GoCommand, GoGroup, how_asked

_FILE = "default: $NVIDIA_CTK_CONFIG_FILE_PATH, else nvidia-container-runtime/config.toml in $XDG_CONFIG_HOME or /etc"

config_app = typer.Typer(
    help="The container toolkit's own configuration: print it, or change it and keep its comments.",
    cls=GoGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
)
FileOption = Annotated[
    str, typer.Option("-c", "--config-file", "--config", metavar="FILE", help=f"the file to read ({_FILE})")
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY[=VALUE]",
        help="set a key, such as nvidia-container-cli.no-cgroups=true; items of a list stand between colons; "
        "features.NAME=nil takes a feature out; may be repeated, the last one counts",
    ),
]
InPlaceOption = Annotated[bool, typer.Option("-i", "--in-place", help="write the file that was read")]
OutputOption = Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="write it there, not to the screen")]


@config_app.callback()
def config(
    ctx: typer.Context,
    config_file: FileOption = "",
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
    """Print the toolkit's configuration, changed as --set asks; with -i or -o write it, journaled."""
    if ctx.invoked_subcommand is not None:
        return
    from gpunode.cli import toolkit_config

    where = toolkit_config.Where(config_file, output, root, in_place=in_place, lock_timeout_s=lock_timeout)
    toolkit_config.config(set_, where, how_asked(ctx))


def _default(
    ctx: typer.Context,
    output: OutputOption = "",
    root: RootOption = "/",
    lock_timeout: LockTimeoutOption = 600,
    json: JsonOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print the configuration that a new installation has; with -o write it, journaled."""
    from gpunode.cli import toolkit_config

    where = toolkit_config.Where("", output, root, lock_timeout_s=lock_timeout)
    toolkit_config.default(where, how_asked(ctx))


config_app.command("default", cls=GoCommand)(_default)
for _alias in ("create-default", "generate-default"):
    config_app.command(_alias, cls=GoCommand, hidden=True)(_default)
