"""Generate the reference pages from the code, and the command outputs on the sample node in the other pages.

``python docs/generate.py`` writes them; with ``--check`` it only checks that they are current (exit 1 if not).
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
REFERENCE_FOLDER = ROOT / "docs/reference"
# Matches <!-- output of: gpunode plan … | head -20 --> and the block of text that follows.
_OUTPUT_BLOCK = re.compile(
    r"(<!-- output of: (gpunode [^|\n]*?)(?: \| grep (\S+))?(?: \| head -(\d+))? -->\n```text\n)(.*?)(```\n)", re.DOTALL
)
_GENERATED_NOTICE = "<!-- Written by docs/generate.py: change the code, then run `make docs`. -->\n"


def render_pages() -> dict[Path, str]:
    """Return the text of every page that is generated, completely or in part."""
    # The modules beside this script; tests also import it by its path.
    sys.path.insert(0, str(ROOT / "docs"))
    import looks
    from recipe_schema import render_schema

    generated_pages = {
        ROOT / "recipes" / "gpunode.schema.json": f"{json.dumps(render_schema(), indent=2)}\n",
        REFERENCE_FOLDER / "causes.md": render_causes(),
        REFERENCE_FOLDER / "cli.md": render_cli(),
        REFERENCE_FOLDER / "recipes.md": render_recipes(),
        REFERENCE_FOLDER / "what-doctor-looks-at.md": looks.render_page(_GENERATED_NOTICE),
    }
    return generated_pages | {page: update_outputs(page.read_text("utf-8")) for page in _list_pages_with_outputs()}


def _list_pages_with_outputs() -> list[Path]:
    written_pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in written_pages if _OUTPUT_BLOCK.search(page.read_text("utf-8"))]


def update_outputs(text: str) -> str:
    """Return ``text`` with the current output of the named commands, including refusals."""
    return _OUTPUT_BLOCK.sub(lambda match: match[1] + _run_command(match[2], match[3], match[4]) + match[6], text)


def _run_command(command: str, pattern: str | None, head: str | None) -> str:
    argv = [sys.executable, "-m", *shlex.split(command)]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "110", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    # Merge the streams in order: refusals are on standard error.
    finished = subprocess.run(
        argv, cwd=ROOT, env=environment, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines = [line for line in finished.stdout.rstrip().splitlines() if not pattern or pattern in line]
    shown_lines = lines[: int(head)] if head else lines
    ellipsis = ["…"] if len(shown_lines) < len(lines) else []
    return "".join(f"{line.rstrip()}\n" for line in [*shown_lines, *ellipsis])


def render_causes() -> str:
    """Return the index of the causes, by layer; the package has a page of texts for each family."""
    from gpunode.diagnoses import rule_families
    from gpunode.diagnoses.stack import LAYER_TITLES

    rules = sorted((rule.cause, family.id, rule) for family in rule_families() for rule in family.rules)
    lines = [
        _GENERATED_NOTICE,
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
            if rule.layer == layer
        ]
    return "\n".join((*lines, f"\n{len(rules)} causes.\n"))


def render_cli() -> str:
    """Return the page of the command line: exit codes, and every command, argument and option, as declared."""
    import typer

    from gpunode import errors
    from gpunode.cli.app import app

    root = typer.main.get_command(app)
    exit_codes = [f"| {code} | {_escape_cell(meaning)} |" for code, meaning in errors.exit_codes()]
    return "\n".join(
        [_GENERATED_NOTICE, "# Command line", "", _CLI_INTRO, *exit_codes, "", *_render_commands(root, "gpunode")]
    )


_CLI_INTRO = """\
`gpunode --version` prints the version. `NO_COLOR` switches colours off. See also [JSON output](json-output.md).

## Exit codes

Every command exits with one of these codes. `--json` has the same number in `exit_code`, and one word for it in
`status`. If the reader of a pipe ends early (`gpunode plan | head`), the exit code is 141, as in a shell.
`doctor --npd` exits with the codes of node-problem-detector: 0 for no fault, 1 for a fault, 2 for unknown.

| exit | meaning |
| --- | --- |"""


def _render_commands(command: Any, path: str) -> Iterator[str]:
    import typer

    context = typer.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner.hidden:
            continue
        if hasattr(inner, "commands"):
            if inner.invoke_without_command:  # it is a command as well
                yield from _render_command(inner, f"{path} {name}")
            yield from _render_commands(inner, f"{path} {name}")
        else:
            yield from _render_command(inner, f"{path} {name}")


def _render_command(command: Any, path: str) -> Iterator[str]:
    from gpunode.cli.app import step_ids

    arguments = [param for param in command.params if param.param_type_name == "argument"]
    words = [argument.metavar if argument.required else f"[{argument.metavar}]" for argument in arguments]
    yield from (f"## `{path}`", "", (command.help or "").strip(), "")
    yield from ("```text", " ".join([path, *words, "[OPTIONS]"]), "```", "")
    yield from ("| | meaning |", "| --- | --- |")
    for argument in arguments:
        yield f"| `{argument.metavar}` | {_escape_cell(argument.help)} |"
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            steps = f": {', '.join(step_ids())}" if option.metavar == "STEP" else ""
            yield f"| {_render_option(option)} | {_escape_cell(option.help)}{steps} |"
    yield ""


def _render_option(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def _escape_cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def render_recipes() -> str:
    """Return the page of recipes: the shipped ones, and every key."""
    from gpunode import builtin
    from gpunode.recipe.keys import known_keys

    lines = [
        _GENERATED_NOTICE,
        "# Recipes",
        "",
        _RECIPES_INTRO,
        "## Shipped recipes",
        "",
        "| name | what it is for |",
        "| --- | --- |",
    ]
    lines += [
        f"| `{name}` | {_escape_cell(builtin.read_recipe(name).description)} |"
        for name in builtin.shipped_recipe_names()
    ]
    lines += ["", "`gpunode recipe show NAME` prints one with its comments.", ""]
    for section, group in groupby(known_keys(), lambda key: key.section):
        title = f"[{section.replace('*', 'NAME')}]" if section else "Top of the file"
        lines += [f"## {title}", "", "| key | default | allowed | meaning |", "| --- | --- | --- | --- |"]
        lines += [_render_key_row(key) for key in group]
        lines.append("")
    return "\n".join(lines)


def _render_key_row(key: RecipeKey) -> str:
    import json

    default_value = [] if key.types == (list,) else key.default
    default = "not checked" if default_value is None else f"`{json.dumps(default_value)}`"
    return f"| `{key.name}` | {default} | {_escape_cell(', '.join(key.allowed_words))} | {_escape_cell(key.spec.doc)} |"


_RECIPES_INTRO = """\
A recipe describes the desired state of a node, in TOML. `gpunode setup NAME` uses a shipped one,
`gpunode setup ./file.toml` your own. A recipe that `extends` another sets only what differs: key by key, also inside a
table; a list is replaced.
`gpunode recipe check FILE` shows each mistake with its line, key and the allowed values; an unknown key is an error.
Editors complete keys with `recipes/gpunode.schema.json` (`#:schema` in a recipe's first line).

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
    """Write the outdated pages, or with ``--check`` name them."""
    texts = render_pages()
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current: run `make docs`\n")
        return 1 if stale else 0
    for path in stale:
        path.write_text(texts[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
