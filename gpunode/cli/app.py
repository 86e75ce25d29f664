"""The commands: what was typed, handed to a workflow, and its answer handed to the screen or the envelope.

Only typer is imported here; every command imports what it needs, so ``gpunode plan --help`` loads no workflow.
"""

# No annotations from __future__ here: typer would compile each of 90 from its text, 3 ms at every start.
# ruff: noqa: I002

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpunode.cli import completing

app = typer.Typer(
    name="gpunode",
    help="Turn a bare Linux host into a working NVIDIA GPU node, prove it, and undo it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipe_app = typer.Typer(help="The wanted state of a node, as a file.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(recipe_app, name="recipe")


class CtkGroup(TyperGroup):
    """The commands of ``cli/ctk.py``, which is imported when one of them, or their list, is asked for."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name."""
        self._fill()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        self._fill()
        return super().list_commands(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever; the group's own options are taken as nvidia-ctk takes its global ones."""
        from gpunode.cli.goflags import of_group

        return super().parse_args(ctx, of_group(self.params, args))

    def _fill(self) -> None:
        if not self.commands:
            from gpunode.cli import ctk

            self.commands.update(ctk.commands())


ctk_app = typer.Typer(
    cls=CtkGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(ctk_app, name="ctk")

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="a shipped recipe's name, or a .toml file", autocompletion=completing.recipes
    ),
]
RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="containerd, docker, crio, podman or none",
        autocompletion=completing.runtimes,
    ),
]
DriverOption = Annotated[
    str,
    typer.Option(
        "--driver",
        metavar="WHICH",
        help="auto, production, lts, a branch (580), a version, or none",
        autocompletion=completing.drivers,
    ),
]
UpgradeOption = Annotated[
    bool, typer.Option("--upgrade", help="bring driver and toolkit to the newest of their branch")
]
LockOption = Annotated[
    str, typer.Option("--lock", metavar="FILE", help="exactly the package versions that this lock file holds")
]
OnlyOption = Annotated[
    list[str],
    typer.Option(
        "--only", metavar="STEP", help="take this step alone; may be repeated", autocompletion=completing.steps
    ),
]
RootOption = Annotated[str, typer.Option("--root", metavar="DIR", help="a mounted root instead of this machine")]
GpuOption = Annotated[str, typer.Option("--gpu", metavar="IDS", help="GPUs of the image's machine: 10de:1b80[,…]")]
NodeOption = Annotated[str, typer.Option("--node", metavar="CAPTURE", help="a captured node instead of this machine")]
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object on standard output and nothing else")]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="show steps that have nothing to do, and packages")
]
LockTimeoutOption = Annotated[
    int, typer.Option("--lock-timeout", metavar="SECONDS", min=0, help="how long to wait while others change the node")
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="do not ask before changing the node")]
DisruptionOption = Annotated[
    bool,
    typer.Option("--allow-disruption", help="go on though containers stop or processes lose the GPU"),
]

DebugOption = Annotated[bool, typer.Option("-d", "--debug", envvar="NVIDIA_CTK_DEBUG", help="as --verbose")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", envvar="NVIDIA_CTK_QUIET", help="print errors alone")]


@app.callback(invoke_without_command=False)
def main(
    version: Annotated[bool, typer.Option("--version", help="print the version and end")] = False,
) -> None:
    """Turn a bare Linux host into a working NVIDIA GPU node, prove it, and undo it."""
    del version  # __main__ answers it before typer is imported


@app.command()
def setup(
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    yes: YesOption = False,
    reboot: Annotated[
        bool, typer.Option("--reboot", help="reboot once if that is needed, and go on afterwards")
    ] = False,
    allow_disruption: Annotated[bool, typer.Option("--allow-disruption", help="go on though containers stop")] = False,
    lock_timeout: LockTimeoutOption = 600,
    upgrade: UpgradeOption = False,
    lock: LockOption = "",
    only: OnlyOption = [],  # noqa: B006 - typer's own idiom for a repeated option
    root: RootOption = "/",
    gpu: GpuOption = "",
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", hidden=True)] = "",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Make this node work: driver, container toolkit, runtime; then prove that it does."""
    from gpunode.cli import changing
    from gpunode.cli.commands import How
    from gpunode.cli.compose import Wanted

    if resume:
        changing.refuse_other_options(resume, (recipe, runtime, driver, upgrade, lock, reboot, gpu))
    leave = changing.Leave(yes, reboot, allow_disruption, lock_timeout, resume)
    wanted = Wanted(recipe, runtime, driver, upgrade, lock)
    changing.setup(wanted, How(json=json, verbose=verbose), tuple(only), root, gpu, leave)


@app.command()
def plan(
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    check: Annotated[bool, typer.Option("--check", help="end with 4 when something is to be done")] = False,
    upgrade: UpgradeOption = False,
    lock: Annotated[
        str,
        typer.Option(
            "--lock",
            metavar="FILE",
            help="as setup's; a file that is not there is written, with --upgrade also one that is",
        ),
    ] = "",
    only: OnlyOption = [],  # noqa: B006
    root: RootOption = "/",
    gpu: GpuOption = "",
    node: NodeOption = "",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show what setup would do and why, with versions and diffs; change nothing."""
    from gpunode.cli import commands
    from gpunode.cli.compose import Wanted

    how = commands.How(json=json, verbose=verbose)
    commands.plan(Wanted(recipe, runtime, driver, upgrade, lock), how, tuple(only), node, root, gpu, check=check)


@app.command()
def rehearse(
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    node: NodeOption = "",
    gpu: GpuOption = "",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Rehearse setup, verify and rollback on a captured node, in memory (default: a shipped sample)."""
    from gpunode.cli import commands
    from gpunode.cli.compose import Wanted

    commands.rehearse(Wanted(recipe, runtime, driver), commands.How(json=json, verbose=verbose), node, gpu)


@app.command()
def verify(
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    cuda: Annotated[bool, typer.Option("--cuda", help="add two vectors on every GPU and compare the sums")] = False,
    container: Annotated[bool, typer.Option("--container", help="run a container and compare its GPUs")] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Prove that the node works: NVML, versions, device nodes, the runtime, expectations."""
    from gpunode.cli import commands
    from gpunode.cli.compose import Wanted

    how = commands.How(json=json, verbose=verbose)
    commands.verify(Wanted(recipe, runtime, driver), how, cuda=cuda, container=container)


@app.command()
def status(node: NodeOption = "", json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Show the node in one screen: GPUs, driver, kernels, toolkit, runtimes."""
    from gpunode.cli import commands

    commands.status(commands.How(json=json, verbose=verbose), node)


@app.command()
def doctor(
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CAUSE | REPORT ...]",
            help="a cause or an Xid (xid-79) to explain, or reports: files, folders",
            autocompletion=completing.causes,
        ),
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="also as one page to send around; - is standard output")
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="FILE", help="also as metrics for node_exporter: FILE ends in .prom"),
    ] = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Name the true cause for which this node, or the node of a report, does not work; change nothing."""
    from gpunode.cli import doctor as cli
    from gpunode.cli.how import How

    cli.doctor(tuple(named or ()), How(json=json, verbose=verbose), html=html, prometheus=prometheus)


@app.command()
def compare(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="a report of a node that works; - is standard input")],
    bad: Annotated[
        str | None, typer.Argument(metavar="BAD", help="one of a node that does not (default: this machine)")
    ] = None,
    json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="also differences that explain little")] = False,
) -> None:
    """Rank how a bad node differs from a good one, the likeliest explanation first; end with 4 when one may be it."""
    from gpunode.cli import compare as cli
    from gpunode.cli.how import How

    cli.compare(good, bad, How(json=json, verbose=verbose))


@app.command()
def rollback(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="the run to undo (default: the newest); with --list, a file")
    ] = "",
    packages: Annotated[
        bool, typer.Option("--packages", help="also packages, sources, keys, pins, units: all that the run changed")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="list the recorded runs, or those that changed a file")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="give up undoing RUN: its backups go, its record stays")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="also put back files edited since; the edit is backed up")
    ] = False,
    allow_disruption: DisruptionOption = False,
    yes: YesOption = False,
    lock_timeout: LockTimeoutOption = 600,
    root: RootOption = "/",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Put the runtime's configuration back as it was before a run, byte for byte; on request all of the run."""
    from gpunode.cli import commands

    how = commands.How(json=json, verbose=verbose)
    if list_:
        commands.runs(how, root, run)
        return
    from gpunode.cli import undoing

    if forget:
        undoing.forget(run, how, root, yes=yes, lock_timeout_s=lock_timeout)
        return
    undoing.rollback(run, how, root, undoing.Leave(yes, packages, force, allow_disruption, lock_timeout))


@app.command()
def remove(
    force: Annotated[
        bool, typer.Option("--force", help="also put back files whose edits cannot be told from gpunode's lines")
    ] = False,
    allow_disruption: DisruptionOption = False,
    yes: YesOption = False,
    lock_timeout: LockTimeoutOption = 600,
    root: RootOption = "/",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Take everything away that gpunode added to this node, whatever its age; name what stays."""
    from gpunode.cli import commands, undoing

    how = commands.How(json=json, verbose=verbose)
    undoing.remove(how, root, undoing.Leave(yes, True, force, allow_disruption, lock_timeout))


@app.command()
def log(
    run: Annotated[str, typer.Argument(metavar="RUN", help="all that is recorded of this run (default: a table)")] = "",
    root: RootOption = "/",
    json: JsonOption = False,
) -> None:
    """Show what gpunode did here, when and for whom; with RUN every file, package and command."""
    from gpunode.cli import commands

    commands.log(run, commands.How(json=json), root)


@app.command()
def capture(
    file: Annotated[str, typer.Argument(metavar="FILE", help="a .tar.gz to write, or a folder name")],
    anonymize: Annotated[
        bool, typer.Option("--anonymize", help="also replace serial numbers, UUIDs, addresses, host and user names")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite FILE without asking")] = False,
    json: JsonOption = False,
) -> None:
    """Save what doctor sees of this node, secrets redacted; it stands in for the node in doctor, plan and rehearse."""
    from gpunode.cli import commands

    commands.capture(file, commands.How(json=json), anonymize=anonymize, force=force)


@ctk_app.callback()
def ctk(ctx: typer.Context, debug: DebugOption = False, quiet: QuietOption = False) -> None:
    """Configure container runtimes and the container toolkit, as nvidia-ctk does, and leave the rest as it is."""
    ctx.obj = {"debug": debug, "quiet": quiet}


@recipe_app.command("list")
def recipe_list(json: JsonOption = False) -> None:
    """List the shipped recipes."""
    from gpunode.cli import commands

    commands.recipe_list(commands.How(json=json))


@recipe_app.command("show")
def recipe_show(name: Annotated[str, typer.Argument(metavar="RECIPE")], json: JsonOption = False) -> None:
    """Print a recipe's text, and what it amounts to with everything that it extends."""
    from gpunode.cli import commands

    commands.recipe_show(name, commands.How(json=json))


@recipe_app.command("check")
def recipe_check(file: Annotated[str, typer.Argument(metavar="FILE")], json: JsonOption = False) -> None:
    """Say whether a recipe can be understood; name file, line, key and the allowed values if not."""
    from gpunode.cli import commands

    commands.recipe_check(file, commands.How(json=json))


@recipe_app.command("from-node")
def recipe_from_node(
    node: NodeOption = "",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="write it there, not to the screen")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Write the recipe that this hand-built node already fulfils; the first plan with it is empty."""
    from gpunode.cli import commands

    commands.recipe_from_node(node, output, commands.How(json=json))
