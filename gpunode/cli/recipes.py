"""The commands below ``gpunode recipe``."""

from __future__ import annotations

from pathlib import Path

from gpunode import builtin
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import load_recipe, view_node
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.text import (
    BLANK_LINE,
    STATE_MARK,
    Line,
    escape_controls,
    line,
    next_command_line,
    pad_right,
    span,
    warning_line,
)
from gpunode.command import gpunode_command
from gpunode.errors import Refused, UsageError
from gpunode.recipe.toml import render
from gpunode.redaction.secrets import redact_text as redact


def list_recipes(output: OutputOptions) -> None:
    """List the shipped recipes."""
    descriptions = {name: builtin.read_recipe(name).description for name in builtin.shipped_recipe_names()}
    width = max(map(len, descriptions), default=0)
    rows = ((span(pad_right(name, width), "bold"), f"  {description}") for name, description in descriptions.items())
    lines = (line(*row, hang=width + 2) for row in rows)
    output.open_screen().put(*lines, next_command_line("gpunode plan RECIPE"))
    output.emit(Envelope("recipe list", result={"recipes": descriptions}))


def show_recipe(name: str, output: OutputOptions) -> None:
    """Print a recipe, and the same with all defaults filled in."""
    whole, text, screen = builtin.read_recipe(name), builtin.load_recipe_text(name), output.open_screen()
    # A file from elsewhere must not send control sequences to the terminal.
    screen.print_raw("".join(f"{escape_controls(redact(row))}\n" for row in text.splitlines()))
    screen.put(BLANK_LINE, line(span(f"# {name} with everything that it extends and all defaults:", "dim")))
    screen.print_raw(redact(render(whole, defaults=True)))
    output.emit(Envelope("recipe show", result={"text": text, "recipe": whole}))


def check_recipe(file: str, output: OutputOptions) -> None:
    """Check that a recipe is valid on any node."""
    from gpunode.steps.daemons import find_mps_conflict_refusal
    from gpunode.steps.mig import wanted_layout

    recipe = load_recipe(file)
    try:
        if recipe.kubernetes and recipe.kubernetes.stack != "none":
            from gpunode.kubernetes.render import refuse_bad_tables

            refuse_bad_tables(recipe)
        wanted_layout(recipe, ())
        if refused := find_mps_conflict_refusal(recipe):
            raise refused.as_error()
    except Refused as error:
        raise Refused(f"{file}: {error.what}", why=error.why, hint=error.hint) from error
    output.open_screen().put(*_valid_recipe_lines(f"{file}: recipe {recipe.name} is valid", file))
    output.emit(Envelope("recipe check", result={"recipe": recipe}))


def write_recipe_from_node(node: str, file: str, output: OutputOptions) -> None:
    """Write a recipe that the node already matches."""
    from gpunode.workflow.from_node import note_unread_runtimes, recipe_from_node

    view = view_node(node, "/", "")
    notes = tuple(" ".join(note.split()) for note in note_unread_runtimes(view.facts))
    text = "".join(f"# {escape_controls(redact(note))}\n" for note in notes) + render(
        recipe_from_node(view.facts, view.host)
    )
    if file:
        _write_new_file(Path(file), text)
        written = _valid_recipe_lines(f"{file} written: the recipe of this node as it is now", file)
        output.open_screen().put(*written, *(warning_line(note, "warn") for note in notes))
    else:
        output.open_screen().print_raw(text)
    output.emit(Envelope("recipe from-node", notes=notes, result={"text": text, "file": file}))


def _valid_recipe_lines(what: str, file: str) -> tuple[Line, Line]:
    """Return lines that report ``file`` as valid, with the next command."""
    return line(STATE_MARK["done"], what, hang=2), next_command_line(gpunode_command("plan", file))


def _write_new_file(path: Path, text: str) -> None:
    """Write a new file; never overwrite, since a recipe may be handwritten.

    Raises:
        UsageError: if the file exists or cannot be written.
    """
    from gpunode.host.output import create_output

    try:
        create_output(path, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written",
            why=error.strerror or str(error),
            hint="name a file that does not exist yet with -o",
        ) from error
