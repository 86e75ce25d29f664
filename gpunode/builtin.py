"""The shipped recipes and recipe files: from what a person types to a Recipe."""

from __future__ import annotations

import difflib
import errno
import os
import stat
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpunode import recipe
from gpunode.errors import RecipeError, UsageError
from gpunode.recipe.toml import parse

if TYPE_CHECKING:
    from importlib.abc import Traversable


def shipped_recipe_names() -> tuple[str, ...]:
    """Return the names of the shipped recipes, sorted."""
    return tuple(_load_shipped_recipes())


def shipped_recipe_text(name: str) -> str:
    """Return the shipped recipe of that name, as TOML.

    Raises:
        UsageError: there is none.
    """
    if name in _load_shipped_recipes():
        return _load_shipped_recipes()[name]
    guess = difflib.get_close_matches(name, shipped_recipe_names(), 1)
    raise UsageError(
        f"there is no recipe {name!r}" + (f"; did you mean {guess[0]}?" if guess else ""),
        why=f"shipped with gpunode: {', '.join(shipped_recipe_names())}",
        hint="name one of these, or a file by a path that ends in .toml",
    )


def load_recipe_text(name_or_path: str) -> str:
    """Return the text of a recipe, by the name of a shipped one or a path; for ``parse``.

    Raises:
        RecipeError: the file is too long or not text.
        UsageError: there is no such recipe.
        OSError: the file cannot be read.
    """
    is_path = "/" in name_or_path or name_or_path.endswith(".toml")
    return _read_recipe_file(Path(name_or_path)) if is_path else shipped_recipe_text(name_or_path)


def read_recipe(name_or_path: str) -> recipe.Recipe:
    """Read the recipe that a person named on the command line.

    Raises:
        RecipeError: it is invalid.
        UsageError: there is no such recipe.
    """
    try:
        source = load_recipe_text(name_or_path)
    except OSError as error:
        raise UsageError(
            f"cannot read the recipe {name_or_path}",
            why=error.strerror or str(error),
            hint=f"name a file that exists, or a shipped recipe, which needs none: {', '.join(shipped_recipe_names())}",
        ) from error
    return parse(source, name_or_path, load_recipe_text)


def _read_recipe_file(path: Path) -> str:
    # Non-blocking: opening a named pipe without a writer would block forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _refuse_unless_file_or_pipe(descriptor)
        os.set_blocking(descriptor, True)
        data = file.read(recipe.MAX_RECIPE_BYTES + 1)
    if len(data) > recipe.MAX_RECIPE_BYTES:
        raise RecipeError(f"longer than the {recipe.MAX_RECIPE_BYTES >> 20} MiB that a recipe may have", file=str(path))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"not text in UTF-8: {error.reason}", file=str(path), line=line) from error


def _refuse_unless_file_or_pipe(descriptor: int) -> None:
    """Accept only files, and the pipe of a shell's process substitution: ``gpunode plan <(…)``."""
    kind = os.fstat(descriptor).st_mode
    is_shells_pipe = stat.S_ISFIFO(kind) and str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:")
    if not stat.S_ISREG(kind) and not is_shells_pipe:
        names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe"}
        what = names.get(stat.S_IFMT(kind), "a device or other special file")
        raise OSError(errno.EINVAL, f"it is {what}, not a file")


@cache
def _load_shipped_recipes() -> MappingProxyType[str, str]:
    """Load the shipped recipes by name: inside an installed package, beside the package in a source tree."""
    package = Path(__file__).parent
    folder: Path | Traversable | None
    folder = next((place for place in (package / "_recipes", package.parent / "recipes") if place.is_dir()), None)
    if folder is None:
        # Only for a zipapp: importlib.resources and the modules that it loads take 5 ms.
        from importlib.resources import files

        folder = files("gpunode").joinpath("_recipes")
    found = {file.name: file for file in folder.iterdir() if file.name.endswith(".toml")}
    return MappingProxyType({name.removesuffix(".toml"): found[name].read_text("utf-8") for name in sorted(found)})
