"""``k8s render``: recipe and captures → files on the disk, or on standard output."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from gpunode.cli.compose import recipe_at, see
from gpunode.cli.envelope import Envelope
from gpunode.cli.how import How
from gpunode.cli.screen.printer import standard_output
from gpunode.errors import Conflict, UsageError
from gpunode.host import output
from gpunode.host.capture import INDEX
from gpunode.kubernetes.forms import HEADER, files
from gpunode.kubernetes.model import ClusterNode
from gpunode.kubernetes.render import Form, rendered
from gpunode.workflow.cluster import cluster_node, host_name

_FORMS: Final[tuple[Form, ...]] = get_args(Form)
_FOLDERS: Final = ("", "manifests", "helm", "applications")
_CAPTURES: Final = (".tar.gz", ".tgz", ".json")


def render(place: str, captures: Sequence[str], out: str, form: str, how: How) -> None:
    """Renders the recipe for the nodes."""
    if form not in _FORMS:
        raise UsageError(
            f"--form cannot be {form!r}",
            why=f"it takes: {', '.join(_FORMS)}",
            hint=f"name one of these: --form {_FORMS[0]}",
        )
    recipe = recipe_at(place)
    found = rendered(recipe, list(_nodes(captures)), form)
    made = files(found, form)
    changed = _write(Path(out), made) if out else False
    if not how.json and not out:
        standard_output().raw("".join(f"# file: {path}\n{text}\n" for path, text in made.items()))
    elif out:
        how.report_screen().rendered(found, out)
    result = {"form": form, "files": made, "out": out, "notes": found.notes, "expected": found.expected}
    how.answer(Envelope("k8s render", changed=changed, result=result))


def _nodes(captures: Sequence[str]) -> Iterator[ClusterNode]:
    if not captures:
        seen = see("", "/", "")
        yield cluster_node(seen.facts, host_name(seen.evidence, os.uname().nodename))
        return
    for place in captures:
        for one in _captures_in(place):
            seen = see(one, "/", "")
            yield cluster_node(seen.facts, host_name(seen.evidence, _stem(one)))


def _captures_in(place: str) -> Iterator[str]:
    """The capture that was named, or those in the folder that was."""
    folder = Path(place)
    if not folder.is_dir() or (folder / INDEX).exists():
        yield place
        return
    found = sorted(str(one) for one in folder.iterdir() if one.name.endswith(_CAPTURES) or (one / INDEX).exists())
    if not found:
        raise UsageError(
            f"--node {place}: there is no capture in this folder",
            why=f"a capture is a file that ends in {', '.join(_CAPTURES)}, or a folder that holds {INDEX}",
            hint="name a capture that `sudo gpunode capture node.tar.gz` made on a GPU node",
        )
    yield from found


def _stem(place: str) -> str:
    name = Path(place).name
    return next((name.removesuffix(suffix) for suffix in _CAPTURES if name.endswith(suffix)), name)


def _write(folder: Path, made: Mapping[str, str]) -> bool:
    """The files stand in ``folder``, and of former renders no others; whether anything changed.

    Raises:
        Conflict: a file that gpunode did not render is in the way.
        UsageError: it cannot be written there.
    """
    try:
        ours = {path: text for path, text in _present(folder) if HEADER in text}
        for path in made:
            if path not in ours and (folder / path).exists():
                raise Conflict(
                    f"{folder / path} is not from gpunode",
                    why=f"it lacks the line {HEADER!r}",
                    hint="move it away, or name another folder with --out",
                )
        for path in (stale := sorted(ours.keys() - made.keys())):
            (folder / path).unlink()
        differing = {path: text for path, text in made.items() if ours.get(path) != text}
        for path, text in differing.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            output.replace(folder / path, text.encode(), 0o755 if path.endswith(".sh") else 0o644)
    except OSError as error:
        where = error.filename or folder
        hint = "name a folder that you may write with --out"
        raise UsageError(f"{where} cannot be written", why=error.strerror or str(error), hint=hint) from error
    return bool(stale or differing)


def _present(folder: Path) -> Iterator[tuple[str, str]]:
    """The text files that stand where rendered ones do."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(folder))
    for name in _FOLDERS:
        inner = folder / name
        for path in sorted(inner.iterdir()) if inner.is_dir() else ():
            if path.is_file() and not path.is_symlink() and path.suffix in {".yaml", ".sh"}:
                yield str(path.relative_to(folder)), path.read_text("utf-8", "replace")
