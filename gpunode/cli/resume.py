"""Resume setup after a reboot: the command that the boot runs, and the request stored in the journal."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode import builtin
from gpunode.command import sudo_gpunode
from gpunode.errors import JournalDamaged, Refused, UsageError
from gpunode.host.ownership import explain_writable_by_others
from gpunode.journal.record import Begin
from gpunode.recipe import Recipe
from gpunode.recipe.toml import parse, read_toml, render, resolve_base

if TYPE_CHECKING:
    from gpunode.journal.store import Store

_INSTALL_FOR_ROOT_HINT = (
    "install gpunode for root: the .deb or .rpm, `sudo install gpunode.pyz /usr/local/bin/gpunode`,"
    " or `sudo make install` in its checkout"
)
_PACKAGES_IMPORTED_LATER = frozenset({"distro", "pynvml", "rich", "sh", "tomlkit"})


def hash_recipe(recipe: Recipe) -> str:
    """Return the sha256 of the recipe's meaning and its lock; comments do not count."""
    return hashlib.sha256(f"{render(recipe)}{_render_lock(recipe)}".encode()).hexdigest()


def _render_lock(recipe: Recipe) -> str:
    if not recipe.lock:
        return ""
    from gpunode import lockfile

    return lockfile.render(recipe.lock, "")


def encode_request(recipe: Recipe, proxies: Mapping[str, str]) -> bytes:
    """Encode the request to store for after the reboot: the recipe and the proxy variables.

    At boot no proxy variables are set, and a unit, which every user can read, must not contain a proxy's password.
    """
    request = {"recipe": render(recipe), "lock": _render_lock(recipe), "proxies": dict(proxies)}
    return json.dumps(request).encode()


def load_request_and_set_proxies(store: Store, run: str) -> Recipe:
    """Load the request of ``run``, and set its proxies for this process and its children."""
    recipe, proxies = load_request(store, run)
    os.environ.update(proxies)
    return recipe


def load_request(store: Store, run: str) -> tuple[Recipe, Mapping[str, str]]:
    """Return the recipe and the proxies of ``run`` from the copy that only root can read.

    Raises:
        UsageError: there is no such run, or it stored no request.
        JournalDamaged: the copy is no request.
    """
    from gpunode import lockfile

    begin = next(entry for entry in store.entries(run) if isinstance(entry, Begin))
    try:
        request = json.loads(store.read_request(run))
    except ValueError:
        request = None
    match request:
        case {"recipe": str(text), "lock": str(lock), "proxies": dict(proxies)}:
            recipe = replace(parse(text, f"the recipe of run {run}", builtin.load_recipe_text), name=begin.recipe)
            return replace(recipe, lock=lockfile.parse(lock, f"the lock of run {run}")) if lock else recipe, proxies
        case _:
            raise JournalDamaged(
                f"what was kept for run {run} is damaged, so the setup was not continued",
                why="it is not what gpunode wrote",
                hint="run `gpunode setup` with the recipe that you want",
            )


def boot_resume_command(run: str, options: Sequence[str]) -> tuple[str, ...]:
    """Return the command that resumes ``run`` at the next boot; without --reboot, so that it cannot loop.

    Python runs in isolated mode: it does not search PYTHONPATH, user packages or the working folder.
    """
    program = sys.argv[0]
    script = ("-m", "gpunode") if program.endswith("__main__.py") else (str(Path(program).absolute()),)
    return (sys.executable, "-I", *script, "setup", "--resume", run, "--yes", *options)


def refuse_unsafe_program() -> None:
    """Refuse to resume with a gpunode that root must not run unattended at boot.

    Raises:
        Refused: another user can change it, or Python would not find it then.
    """
    why = explain_program_risk(packages=True)
    if not why and os.environ.get("PYTHONPATH") and sys.argv[0].endswith("__main__.py"):
        why = "this gpunode was found through PYTHONPATH, which is not set at boot"
    if why:
        raise Refused(
            "--reboot cannot make this gpunode continue after the reboot",
            why=f"{why}; the boot would run it as root",
            hint=f"{_INSTALL_FOR_ROOT_HINT}\nor run the command without --reboot, reboot, and run it again",
        )


def explain_program_risk(*, packages: bool = False) -> str:
    """Return why a user other than root can change this gpunode; empty if none can.

    Args:
        packages: also check every file of the packages, which takes about 100 ms.
    """
    folders = (Path(folder_name) for folder_name in sys.path if folder_name and Path(folder_name).exists())
    program = (Path(sys.executable), Path(sys.argv[0]), Path(__file__).parents[1], *folders)
    files = (*program, *(_package_files() if packages else ()))
    return next(filter(None, map(explain_writable_by_others, files)), "")


def _package_files() -> Iterator[Path]:
    """Yield the files of all packages that are imported, or will be during a run."""
    for name in sorted({name.partition(".")[0] for name in sys.modules} | _PACKAGES_IMPORTED_LATER):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None) if module else find_spec(name)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            yield from (Path(folder), *Path(folder).rglob("*"))
        if spec and spec.has_location and spec.origin:
            yield Path(spec.origin)


def find_input_risks(recipe: str, lock: str) -> Iterator[str]:
    """Yield a sentence for each input file that a user other than root and the caller of sudo can change."""
    caller = os.environ.get("SUDO_UID", "")
    trusted = frozenset({0, int(caller)} if caller.isascii() and caller.isdigit() else {0})
    for place in (*_recipe_files(recipe), *([Path(lock)] if lock else ())):
        if why := explain_writable_by_others(place, trusted=trusted):
            yield f"{why}, so that user can choose what gpunode does as root with {place}"


def _recipe_files(name_or_path: str) -> Iterator[Path]:
    """Yield the recipe file at ``name_or_path`` and those that it extends; shipped recipes are not files."""
    while "/" in name_or_path or name_or_path.endswith(".toml"):
        yield Path(name_or_path)
        extends = read_toml(builtin.load_recipe_text(name_or_path), name_or_path).get("extends")
        name_or_path = resolve_base(extends, name_or_path) if isinstance(extends, str) and extends else ""


def refuse_other_options(run: str, options: Sequence[object]) -> None:
    """Refuse options that would change the request that ``--resume`` reads from the journal.

    Raises:
        UsageError: such an option was given.
    """
    if any(options):
        raise UsageError(
            "--resume takes no recipe and no option that changes the request",
            why=f"the original request is recorded with run {run}",
            hint=str(sudo_gpunode("setup", "--resume", run)),
        )
