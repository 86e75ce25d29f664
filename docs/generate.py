"""Writes what the pages say that the code itself can say: references, and outputs of commands on the sample node.

``python docs/generate.py`` writes them; with ``--check`` it only says whether they are current (exit 1 when not).
"""

# ruff: noqa: INP001 - a script beside its pages, not a package

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpunode.recipe.keys import RecipeKey

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/reference"
# <!-- output of: gpunode plan … | head -20 --> and the block of text that follows it.
_OUTPUT = re.compile(
    r"(<!-- output of: (gpunode [^|\n]*?)(?: \| grep (\S+))?(?: \| head -(\d+))? -->\n```text\n)(.*?)(```\n)", re.DOTALL
)
_MADE = "<!-- Written by docs/generate.py: change the code, then run `make docs`. -->\n"


def pages() -> dict[Path, str]:
    """Every page that is made, whole or in part, with its text."""
    # It stands beside this script, which is also imported from elsewhere.
    sys.path.insert(0, str(ROOT / "docs"))
    import looks
    from recipe_schema import schema

    whole = {
        ROOT / "recipes" / "gpunode.schema.json": f"{json.dumps(schema(), indent=2)}\n",
        FOLDER / "causes.md": causes(),
        FOLDER / "cli.md": cli(),
        FOLDER / "exit-codes.md": exit_codes(),
        FOLDER / "recipes.md": recipes(),
        FOLDER / "what-doctor-looks-at.md": looks.page(_MADE),
    }
    return whole | {page: with_outputs(page.read_text("utf-8")) for page in _with_outputs()}


def _with_outputs() -> list[Path]:
    written = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in written if _OUTPUT.search(page.read_text("utf-8"))]


def with_outputs(text: str) -> str:
    """``text`` with what the named commands print now; their exit status does not matter, refusals are shown too."""
    return _OUTPUT.sub(lambda found: found[1] + _printed(found[2], found[3], found[4]) + found[6], text)


def _printed(command: str, wanted: str | None, head: str | None) -> str:
    argv = [sys.executable, "-m", *shlex.split(command)]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "110", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    # Merged and in order: a refusal stands on standard error.
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines = [line for line in done.stdout.rstrip().splitlines() if not wanted or wanted in line]
    shown = lines[: int(head)] if head else lines
    cut = ["…"] if len(shown) < len(lines) else []
    return "".join(f"{line.rstrip()}\n" for line in [*shown, *cut])


def causes() -> str:
    """The index of the causes, by layer; the package has a page of texts for each family."""
    from gpunode.diagnoses import rule_families
    from gpunode.diagnoses.stack import LAYER_TITLES

    rules = sorted((rule.cause, family.id, rule) for family in rule_families() for rule in family.rules)
    lines = [
        _MADE,
        "# Causes\n",
        "Every cause that `gpunode doctor` can name, from the PCI bus up; `gpunode doctor CAUSE` tells what to do.",
        "How one of them is chosen: [how doctor decides](../explanation/how-doctor-decides.md).",
    ]
    for layer, title in LAYER_TITLES.items():
        lines += [
            f"\n## {title[:1].upper()}{title[1:]}\n",
            "| cause | what is wrong | severity |",
            "| --- | --- | --- |",
        ]
        lines += [
            f"| [`{cause}`](../../gpunode/diagnoses/causes/{page}.md#{cause}) | {rule.title} | {rule.severity} |"
            for cause, page, rule in rules
            if rule.stack_layer == layer
        ]
    return "\n".join((*lines, f"\n{len(rules)} causes.\n"))


def cli() -> str:
    """The page of the command line: every command, argument and option, as the program itself declares them."""
    import typer

    from gpunode.cli.app import app

    root = typer.main.get_command(app)
    return "\n".join([_MADE, "# Command line", "", _CLI_INTRO, *_commands(root, "gpunode")])


_CLI_INTRO = """\
Exit codes: [exit-codes.md](exit-codes.md). What `--json` prints: [json-output.md](json-output.md).
`NO_COLOR` is honoured. `gpunode --version` prints the version.
"""


def _commands(command: Any, path: str) -> Iterator[str]:
    import typer

    context = typer.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner.hidden:
            continue
        if hasattr(inner, "commands"):
            if inner.invoke_without_command:  # a command itself, too
                yield from _command(inner, f"{path} {name}")
            yield from _commands(inner, f"{path} {name}")
        else:
            yield from _command(inner, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    from gpunode.cli.app import step_ids

    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.metavar if one.required else f"[{one.metavar}]" for one in arguments]
    yield from (f"## `{path}`", "", (command.help or "").strip(), "")
    yield from ("```text", " ".join([path, *words, "[OPTIONS]"]), "```", "")
    yield from ("| | meaning |", "| --- | --- |")
    for one in arguments:
        yield f"| `{one.metavar}` | {_cell(one.help)} |"
    for one in command.params:
        if one.param_type_name == "option" and not one.hidden:
            steps = f": {', '.join(step_ids())}" if one.metavar == "STEP" else ""
            yield f"| {_option(one)} | {_cell(one.help)}{steps} |"
    yield ""


def _option(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def exit_codes() -> str:
    """The page of the exit codes, as the errors declare them."""
    from gpunode import errors

    rows = [f"| {code} | {_cell(meaning)} |" for code, meaning in errors.exit_codes()]
    return "\n".join([_MADE, "# Exit codes", "", _EXIT_CODES_INTRO, "| exit | meaning |", "| --- | --- |", *rows, ""])


_EXIT_CODES_INTRO = """\
Every command ends with one of these. With `--json` the same number stands in the envelope as `exit_code`, and `status`
names it in one word. A command whose reader went away (`gpunode plan | head`) ends with 141, as the shell has it.
`doctor --npd` ends with 0, 1 or 2, which mean what node-problem-detector takes them for: no fault, a fault, unknown.
"""


def recipes() -> str:
    """The page of recipes: the shipped ones, and every key."""
    from gpunode import builtin
    from gpunode.recipe.keys import known_keys

    lines = [
        _MADE,
        "# Recipes",
        "",
        _RECIPES_INTRO,
        "## Shipped recipes",
        "",
        "| name | what it is for |",
        "| --- | --- |",
    ]
    lines += [
        f"| `{name}` | {_cell(builtin.read_recipe(name).description)} |" for name in builtin.shipped_recipe_names()
    ]
    lines += ["", "`gpunode recipe show NAME` prints one with its comments.", ""]
    for section, group in groupby(known_keys(), lambda key: key.section):
        title = f"[{section.replace('*', 'NAME')}]" if section else "Top of the file"
        lines += [f"## {title}", "", "| key | default | allowed | meaning |", "| --- | --- | --- | --- |"]
        lines += [_key(key) for key in group]
        lines.append("")
    return "\n".join(lines)


def _key(key: RecipeKey) -> str:
    import json

    plain = [] if key.types == (list,) else key.default
    default = "not checked" if plain is None else f"`{json.dumps(plain)}`"
    return f"| `{key.name}` | {default} | {_cell(', '.join(key.allowed))} | {_cell(key.spec.doc)} |"


_RECIPES_INTRO = """\
A recipe describes the desired state of a node, in TOML. `gpunode setup NAME` takes a shipped one,
`gpunode setup ./file.toml` your own. A recipe that `extends` another sets only what differs: key by key, also inside a
table; a list is replaced.
`gpunode recipe check FILE` names file, line, key and the allowed values of whatever is wrong in it; an unknown key is
an error, never ignored. `recipes/gpunode.schema.json` gives editors completion (`#:schema` in a recipe's first line).

```toml
#:schema ./gpunode.schema.json
schema = 1
description = "Inference nodes of rack 4"
extends = "containerd"

[driver]
version = "580"        # hold the long-term support branch

[expect]
gpus = 8
model = "A100"
```
"""


def main(arguments: list[str]) -> int:
    """Writes the pages, or names those that are not current."""
    made = pages()
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text("utf-8") != text]
    # A family that is gone leaves its page behind.
    gone = [path for path in (FOLDER / "causes").glob("*.md") if path not in made]
    if "--check" in arguments:
        for path in (*stale, *gone):
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current: run `make docs`\n")
        return 1 if stale or gone else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[path], "utf-8")
    for path in gone:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
