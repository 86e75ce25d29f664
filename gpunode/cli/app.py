"""The commands and their options.

Only typer is imported here; every command imports what it needs, so ``gpunode plan --help`` loads no workflow.
"""

# No annotations from __future__ here: typer would compile each of the 90 from text, 3 ms at every start.
# ruff: noqa: I002

import copy
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from gpunode.cli.output_options import OutputOptions


# Values for shell completion; computed only on Tab.


def recipe_names() -> list[str]:
    """Return the shipped recipes; the shell completes files."""
    from gpunode import builtin

    return list(builtin.shipped_recipe_names())


def runtime_names() -> list[str]:
    """Return the values of --runtime."""
    from typing import get_args

    from gpunode.recipe import RuntimeName

    return list(get_args(RuntimeName))


def driver_choices() -> list[str]:
    """Return the values of --driver, branches by number."""
    from gpunode.catalog import branches

    return [
        "auto",
        "production",
        "lts",
        "none",
        *(str(branch.number) for branch in branches.all_branches() if branch.is_maintained),
    ]


def step_ids() -> list[str]:
    """Return the values of --only."""
    from gpunode.steps.table import STEPS

    return [step.id for step in STEPS]


def sample_nodes() -> list[str]:
    """Return the shipped samples; the shell completes files."""
    from gpunode.cli.samples import sample_capture_names

    return list(sample_capture_names())


def cause_names() -> list[str]:
    """Return the causes that doctor explains."""
    from gpunode.diagnoses import rules_by_cause

    return sorted(rules_by_cause())


T = TypeVar("T")
# The headings of ``--help``.
HELP_GROUPS = {
    "Set up": ("setup", "plan", "rehearse", "verify", "recipe", "ctk", "k8s"),
    "Look": ("status", "gpus", "log", "capture"),
    "Explain": ("doctor", "compare"),
    "Undo": ("rollback", "remove"),
}


class WrappedGroup(TyperGroup):
    """A group whose help wraps descriptions instead of truncating them, under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with its first sentence."""
        every: dict[str, Any] = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        groups = (
            HELP_GROUPS
            if set(every) == {name for names in HELP_GROUPS.values() for name in names}
            else {"Commands": every}
        )
        width = max(map(len, every))
        for title, names in groups.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", every[name].get_short_help_str(limit=1000)) for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the meaning of the exit codes below the list of all commands."""
        if ctx.parent is None:
            from gpunode.errors import exit_statuses

            formatter.write_paragraph()
            formatter.write_text(f"Exit codes: {', '.join(f'{code} {word}' for code, word in exit_statuses())}.")


app = typer.Typer(
    name="gpunode",
    help="Turn a bare Linux host into a working NVIDIA GPU node, check it, and undo it.",
    cls=WrappedGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipe_app = typer.Typer(
    cls=WrappedGroup,
    help="List, show, check or write recipes: how a node is set up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(recipe_app, name="recipe")


class LazyGroup(WrappedGroup):
    """A group that imports the module of its name when its commands are needed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name."""
        self._load_commands()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        self._load_commands()
        return super().list_commands(ctx)

    def _load_commands(self) -> None:
        if not self.commands:
            self.commands.update(typer.main.get_group(import_module(f"gpunode.cli.{self.name}").app).commands)


class CtkGroup(LazyGroup):
    """The commands of nvidia-ctk."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the group's own options as nvidia-ctk parses its global ones."""
        from gpunode.cli.goflags import translate_group_options

        return super().parse_args(ctx, translate_group_options(self.params, args))


ctk_app = typer.Typer(cls=CtkGroup, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ctk_app, name="ctk")
k8s_app = typer.Typer(
    cls=LazyGroup, help="Offer the GPUs of provisioned nodes to pods.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(k8s_app, name="k8s")


def text_option(flag: str, metavar: str, meaning: str, values: Callable[[], list[str]] | None = None) -> Any:
    """Declare a text option; the shell completes ``values``."""
    return typer.Option(flag, metavar=metavar, help=meaning, autocompletion=values)


RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a shipped recipe's name, or a .toml file", autocompletion=recipe_names)
]
RuntimeOption = Annotated[
    str, text_option("--runtime", "NAME", "containerd, docker, crio, podman or none", runtime_names)
]
DriverOption = Annotated[
    str, text_option("--driver", "VERSION", "auto, production, lts, a branch (580), a version, or none", driver_choices)
]
SourceOption = Annotated[
    str,
    text_option(
        "--driver-source",
        "SOURCE",
        "whose driver packages: nvidia, or distro for the distribution's own; default: the recipe's",
    ),
]
CudaOption = Annotated[
    str,
    text_option("--cuda-toolkit", "RELEASE", "also install a CUDA toolkit: auto, or a release (12.9); default: none"),
]
MokPasswordFileOption = Annotated[
    str,
    text_option(
        "--mok-password-file",
        "FILE",
        "take the one-time password of a Secure Boot enrolment from FILE (mode 0600, removed after use), or from "
        "/dev/stdin; without it setup shows one on the terminal",
    ),
]
RemoveRunfileOption = Annotated[
    bool,
    typer.Option(
        "--remove-runfile-driver", help="first remove a driver of NVIDIA's .run installer, with its own uninstaller"
    ),
]
UpgradeOption = Annotated[
    bool, typer.Option("--upgrade", help="upgrade driver and toolkit to the newest version of their branch")
]
LockOption = Annotated[str, text_option("--lock", "FILE", "install exactly the package versions in this lock file")]
OnlyOption = Annotated[
    list[str],
    text_option(
        "--only", "STEP", "run only this step, such as toolkit; may be repeated. `gpunode plan -v` names all", step_ids
    ),
]
RootOption = Annotated[str, text_option("--root", "DIR", "work on the system mounted at DIR, such as an image")]
# For commands that run the image's programs, such as its package manager.
ImageRootOption = Annotated[
    str,
    text_option(
        "--root", "DIR", "work on the system mounted at DIR, such as an image; its programs run as root, in namespaces"
    ),
]
GpuOption = Annotated[
    list[str],
    text_option(
        "--gpu",
        "PCI_IDS",
        "PCI ids of the GPUs to plan for: 10de:1b80[,…]; may be repeated; with setup only together with --root",
    ),
]
NodeOption = Annotated[
    str,
    text_option(
        "--node", "CAPTURE", "a capture of another node, or a shipped sample such as debian12-gtx1080", sample_nodes
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="show every step, package and new file")]
DetailOption = Annotated[bool, typer.Option("-v", "--verbose", help="show more detail")]
LockTimeoutOption = Annotated[
    int,
    typer.Option(
        "--lock-timeout", metavar="SECONDS", min=0, help="how long to wait for another gpunode or package manager"
    ),
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="do not ask before changing anything")]
DisruptionOption = Annotated[
    bool, typer.Option("--allow-disruption", help="continue even if running containers are stopped")
]
AllowLossOption = Annotated[
    bool, typer.Option("--allow-loss", help="purge old driver packages even if a rollback could not reinstall them")
]

ContextOption = Annotated[str, text_option("--context", "NAME", "kubectl context of the cluster")]
KubeconfigOption = Annotated[str, text_option("--kubeconfig", "FILE", "kubeconfig to use in place of your own")]
DebugOption = Annotated[bool, typer.Option("-d", "--debug", envvar="NVIDIA_CTK_DEBUG", help="same as --verbose")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", envvar="NVIDIA_CTK_QUIET", help="print errors only")]


def output_options(json: bool, verbose: bool = False) -> "OutputOptions":
    """Return the output options."""
    from gpunode.cli.output_options import OutputOptions

    return OutputOptions(json=json, verbose=verbose)


def build_options(ctx: Any, kind: type[T]) -> T:
    """Build the dataclass ``kind`` from the command's options of the same names."""
    options = {name: ctx.params[name] for name in getattr(kind, "__dataclass_fields__", ()) if name in ctx.params}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in options.items()})


@app.callback(invoke_without_command=False)
def main(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    """Turn a bare Linux host into a working NVIDIA GPU node, check it, and undo it."""
    del version  # __main__ handles it before typer is imported


@app.command()
def setup(
    ctx: typer.Context,
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    driver_source: SourceOption = "",
    cuda_toolkit: CudaOption = "",
    yes: YesOption = False,
    reboot: Annotated[bool, typer.Option("--reboot", help="reboot once if needed, then continue")] = False,
    allow_disruption: DisruptionOption = False,
    allow_loss: AllowLossOption = False,
    remove_runfile_driver: RemoveRunfileOption = False,
    lock_timeout: LockTimeoutOption = 600,
    upgrade: UpgradeOption = False,
    lock: LockOption = "",
    only: OnlyOption = [],  # noqa: B006 - typer's own idiom for a repeated option
    download_only: Annotated[
        bool, typer.Option("--download-only", help="download the packages for a later setup; change nothing else")
    ] = False,
    root: ImageRootOption = "/",
    gpu: GpuOption = [],  # noqa: B006
    mok_password_file: MokPasswordFileOption = "",
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", hidden=True)] = "",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Install the driver, set up containers, check that it works."""
    from gpunode.cli import setup as cli
    from gpunode.cli.inputs import RecipeOptions

    cli.setup(build_options(ctx, RecipeOptions), output_options(json, verbose), build_options(ctx, cli.SetupFlags))


@app.command()
def plan(
    ctx: typer.Context,
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    driver_source: SourceOption = "",
    cuda_toolkit: CudaOption = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit with 4 if setup would change anything, 10 if only a reboot is left")
    ] = False,
    upgrade: UpgradeOption = False,
    lock: Annotated[
        str,
        text_option(
            "--lock",
            "FILE",
            "plan with the package versions in FILE; a missing FILE is written, with --upgrade any FILE",
        ),
    ] = "",
    only: OnlyOption = [],  # noqa: B006
    allow_loss: AllowLossOption = False,
    remove_runfile_driver: RemoveRunfileOption = False,
    root: RootOption = "/",
    gpu: GpuOption = [],  # noqa: B006
    node: NodeOption = "",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show what setup would do, and why; change nothing."""
    from gpunode.cli import plan as cli
    from gpunode.cli.inputs import RecipeOptions

    options, output = build_options(ctx, RecipeOptions), output_options(json, verbose)
    cli.plan(options, output, tuple(only), node, root, ",".join(gpu), check=check, allow_loss=allow_loss)


@app.command()
def rehearse(
    ctx: typer.Context,
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    driver_source: SourceOption = "",
    cuda_toolkit: CudaOption = "",
    remove_runfile_driver: RemoveRunfileOption = False,
    node: NodeOption = "",
    gpu: GpuOption = [],  # noqa: B006
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Rehearse setup and rollback on a captured node, in memory.

    Without --node it rehearses on the shipped sample, debian12-gtx1080.
    """
    from gpunode.cli import rehearse as cli
    from gpunode.cli.inputs import RecipeOptions

    cli.rehearse(build_options(ctx, RecipeOptions), output_options(json, verbose), node, ",".join(gpu))


@app.command()
def verify(
    ctx: typer.Context,
    recipe: RecipeArgument = "",
    runtime: RuntimeOption = "",
    driver: DriverOption = "",
    driver_source: SourceOption = "",
    cuda_toolkit: CudaOption = "",
    cuda: Annotated[bool, typer.Option("--cuda", help="run a small CUDA computation on every GPU")] = False,
    container: Annotated[
        bool, typer.Option("--container", help="run a container and check that it sees the same GPUs")
    ] = False,
    json: JsonOption = False,
    verbose: DetailOption = False,
) -> None:
    """Check that this node works: driver, device files, runtime."""
    from gpunode.cli import verify as cli
    from gpunode.cli.inputs import RecipeOptions

    cli.verify(build_options(ctx, RecipeOptions), output_options(json, verbose), cuda=cuda, container=container)


@app.command()
def status(node: NodeOption = "", json: JsonOption = False, verbose: DetailOption = False) -> None:
    """Show GPUs, driver, kernels, toolkit and runtimes on one screen."""
    from gpunode.cli import status as cli

    cli.status(output_options(json, verbose), node)


@app.command()
def gpus(
    gpu: Annotated[
        list[str],
        text_option("--gpu", "GPU", "ask about this GPU instead: a PCI id (10de:1b80) or a name[,…]; may be repeated"),
    ] = [],  # noqa: B006
    node: NodeOption = "",
    json: JsonOption = False,
) -> None:
    """Show which drivers and which CUDA each GPU can use.

    With --gpu: of a GPU that is not here.
    """
    from gpunode.cli import gpus as cli

    cli.gpus(output_options(json), node, ",".join(gpu))


@app.command()
def doctor(
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CAUSE | REPORT ...]",
            help="a cause or an Xid (xid-79) to explain, or reports to diagnose: files or folders",
            autocompletion=cause_names,
        ),
    ] = None,
    html: Annotated[
        str | None, text_option("--html", "FILE", "also write a page to send to others; - writes to standard output")
    ] = None,
    prometheus: Annotated[
        str | None, text_option("--prometheus", "FILE", "also write metrics for node_exporter; FILE ends in .prom")
    ] = None,
    recipe: Annotated[
        str,
        text_option("--recipe", "RECIPE", "for a fleet: also show which nodes drifted from this recipe", recipe_names),
    ] = "",
    lock: Annotated[
        str, text_option("--lock", "FILE", "for a fleet: also show which nodes have other package versions")
    ] = "",
    node: Annotated[list[str] | None, text_option("--node", "CAPTURE", "the same as REPORT", sample_nodes)] = None,
    npd: Annotated[
        bool, typer.Option("--npd", help="print one line and exit with 0, 1 or 2, as a node-problem-detector plugin")
    ] = False,
    json: JsonOption = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="show every line that proves a cause, and what was ruled out")
    ] = False,
) -> None:
    """Diagnose this node, a capture, a pasted report or a fleet."""
    if npd:
        from gpunode.cli.monitoring import run_npd_plugin

        run_npd_plugin(alone=not (named or node or html or prometheus or recipe or lock or json or verbose))
        return
    from gpunode.cli import doctor as cli
    from gpunode.cli.samples import resolve_sample

    cli.doctor(
        tuple(map(resolve_sample, (*(named or ()), *(node or ())))),
        output_options(json, verbose),
        html=html,
        prometheus=prometheus,
        recipe=recipe,
        lock=lock,
    )


@app.command()
def compare(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="a report of a working node; - reads standard input")],
    bad: Annotated[
        str | None, typer.Argument(metavar="BAD", help="a report of a broken node (default: this machine)")
    ] = None,
    json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="also show differences that explain little")] = False,
) -> None:
    """Compare a broken node with a working one.

    The most likely explanation comes first. Exits with 4 if a difference may be the cause.
    """
    from gpunode.cli import compare as cli

    cli.compare(good, bad, output_options(json, verbose))


@app.command()
def rollback(
    ctx: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="the run to undo (default: the newest run); with --list: a file")
    ] = "",
    packages: Annotated[
        bool, typer.Option("--packages", help="also undo packages, repositories, keys, pins and units")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="list the recorded runs, or only those that changed the file")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="also restore files that were edited since; the edits are backed up")
    ] = False,
    allow_disruption: DisruptionOption = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="undo the rest where no archive has a package's former version")
    ] = False,
    yes: YesOption = False,
    lock_timeout: LockTimeoutOption = 600,
    root: ImageRootOption = "/",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
    json: JsonOption = False,
    verbose: DetailOption = False,
) -> None:
    """Restore the runtime's configuration from before a run.

    Files are restored byte for byte. --packages also undoes everything else that the run changed.
    """
    from gpunode.cli.unused_options import refuse_unused_options

    output = output_options(json, verbose)
    if list_:
        from gpunode.cli.undo import show_runs

        refuse_unused_options(ctx, "--list", {"list_", "root", "json", "verbose"})
        show_runs(output, root, run)
        return
    if context or kubeconfig or run.startswith("k"):
        from gpunode.cli import clusters

        if run.removeprefix("k").isdecimal():
            refuse_unused_options(
                ctx, f"{run}, a run that changed a cluster", {"yes", "context", "kubeconfig", "json", "verbose"}
            )
        clusters.rollback(run, clusters.ClusterRef(context, kubeconfig), output, yes=yes)
        return
    from gpunode.cli import undo

    permissions = undo.UndoPermissions(yes, packages, force, allow_disruption, allow_loss, lock_timeout)
    undo.rollback(run, output, root, permissions)


@app.command()
def remove(
    force: Annotated[
        bool, typer.Option("--force", help="also restore files whose edits cannot be separated from gpunode's lines")
    ] = False,
    allow_disruption: DisruptionOption = False,
    yes: YesOption = False,
    lock_timeout: LockTimeoutOption = 600,
    root: ImageRootOption = "/",
    json: JsonOption = False,
    verbose: DetailOption = False,
) -> None:
    """Remove everything that gpunode ever added to this node.

    Packages that other software needs are kept and listed.
    """
    from gpunode.cli import undo

    output = output_options(json, verbose)
    undo.remove(output, root, undo.UndoPermissions(yes, True, force, allow_disruption, lock_timeout_s=lock_timeout))


@app.command()
def log(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="show everything recorded about this run (default: a table of all runs)"),
    ] = "",
    root: RootOption = "/",
    json: JsonOption = False,
) -> None:
    """Show what gpunode changed here, when, and who ran it.

    With RUN: every file, package and command of that run.
    """
    from gpunode.cli import log as cli

    cli.show_log(run, output_options(json), root)


@app.command()
def capture(
    file: Annotated[str, typer.Argument(metavar="FILE", help="the .tar.gz file to write")],
    anonymize: Annotated[
        bool, typer.Option("--anonymize", help="also replace serial numbers, UUIDs, addresses, host and user names")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite FILE without asking")] = False,
    json: JsonOption = False,
) -> None:
    """Save what doctor looks at to a file, with secrets removed.

    doctor, plan, status, compare and rehearse read a capture in place of the node.
    """
    from gpunode.cli import capture as cli

    cli.capture(file, output_options(json), anonymize=anonymize, force=force)


@ctk_app.callback()
def ctk(ctx: typer.Context, debug: DebugOption = False, quiet: QuietOption = False) -> None:
    """Configure a container runtime, with nvidia-ctk's own options."""
    ctx.obj = {"debug": debug, "quiet": quiet}


@recipe_app.command("list")
def recipe_list(json: JsonOption = False) -> None:
    """List the shipped recipes."""
    from gpunode.cli import recipes

    recipes.list_recipes(output_options(json))


@recipe_app.command("show")
def recipe_show(name: RecipeArgument, json: JsonOption = False) -> None:
    """Print a recipe, then the same with everything it extends and all defaults."""
    from gpunode.cli import recipes

    recipes.show_recipe(name, output_options(json))


@recipe_app.command("check")
def recipe_check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="the recipe to check")], json: JsonOption = False
) -> None:
    """Check a recipe; show each mistake with its line, key and allowed values."""
    from gpunode.cli import recipes

    recipes.check_recipe(file, output_options(json))


@recipe_app.command("from-node")
def recipe_from_node(
    node: NodeOption = "",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="write to FILE, not to standard output")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Write a recipe that describes this node as it is.

    A plan with this recipe changes nothing.
    """
    from gpunode.cli import recipes

    recipes.write_recipe_from_node(node, output, output_options(json))


def choose_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the program with only the named command, since typer takes 1 ms for each; with all if none is named."""
    named = arguments[0] if arguments else ""
    commands = [one for one in app.registered_commands if named in {one.name, getattr(one.callback, "__name__", "")}]
    groups = [registered_group for registered_group in app.registered_groups if registered_group.name == named]
    if not commands and not groups:
        return app
    one = copy.copy(app)
    one.registered_commands, one.registered_groups = commands, groups
    return one
