"""The commands below ``gpunode recipe``."""

from __future__ import annotations

from pathlib import Path

from gpunode import builtin
from gpunode.cli.compose import recipe_at, see
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.results import recipes_lines
from gpunode.cli.screen.text import BLANK, Line, line, span
from gpunode.cli.screen.words import MARKS
from gpunode.command import gpunode
from gpunode.errors import UsageError
from gpunode.recipe.toml import render
from gpunode.redaction.secrets import redact_text as redact


def list_(how: OutputOptions) -> None:
    """Lists the shipped recipes."""
    found = {name: builtin.read(name).description for name in builtin.names()}
    how.screen().put(*recipes_lines(found))
    how.answer(Envelope("recipe list", result={"recipes": found}))


def show(name: str, how: OutputOptions) -> None:
    """Prints a recipe and what it amounts to."""
    text, whole, screen = builtin.load(name), builtin.read(name), how.screen()
    screen.raw(redact(text if text.endswith("\n") else f"{text}\n"))
    screen.put(BLANK, line(span(f"# {name} with everything that it extends and all defaults:", "dim")))
    screen.raw(redact(render(whole, defaults=True)))
    how.answer(Envelope("recipe show", result={"text": text, "recipe": whole}))


def check(file: str, how: OutputOptions) -> None:
    """Says whether a recipe can be understood."""
    found = recipe_at(file)
    if found.kubernetes and found.kubernetes.stack != "none":
        from gpunode.kubernetes import checks

        checks.refuse_bad_tables(found)
    how.screen().put(*_good(f"{file}: recipe {found.name} is valid", file))
    how.answer(Envelope("recipe check", result={"recipe": found}))


def from_node(node: str, output: str, how: OutputOptions) -> None:
    """Writes the recipe that a node already fulfils."""
    from gpunode.workflow.from_node import recipe_from_node

    seen = see(node, "/", "")
    text = render(recipe_from_node(seen.facts, seen.host))
    if output:
        _write_new(Path(output), text)
        how.screen().put(*_good(f"{output} written: the recipe of this node as it is now", output))
    else:
        how.screen().raw(text)
    how.answer(Envelope("recipe from-node", result={"text": text, "file": output}))


def _good(what: str, file: str) -> tuple[Line, Line]:
    """That ``file`` holds a recipe, and what to do with it next."""
    return line(MARKS["done"], what, hang=2), line("next: ", span(str(gpunode("plan", file)), "command"))


def _write_new(path: Path, text: str) -> None:
    """Raises UsageError when there is a file already: a recipe may be somebody's work."""
    from gpunode.host.output import create

    try:
        create(path, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written",
            why=error.strerror or str(error),
            hint="name a file that does not exist yet with -o",
        ) from error
