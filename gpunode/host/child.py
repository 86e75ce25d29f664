"""Child programs of gpunode: their command lines and answers.

They exist because a call into a GPU driver can block in the kernel forever. As a child, this module loads nothing
but the standard library.
"""

from __future__ import annotations

import json
import os
import sys

# Not typing's own: typing, pathlib and importlib.util would be a third of a child's cost (8 of 31 ms).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

# -I: the working folder and PYTHON* variables do not decide what root runs. -S: no .pth files, which also take time.
_ISOLATED_PYTHON_OPTIONS = ("-I", "-S")


def child_command(module: str, packages: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command that runs ``module.main()`` with this same gpunode.

    The folders (or the zipapp) of gpunode and ``packages`` are passed on, so it works from an installed environment, a
    source tree on PYTHONPATH and a zipapp.
    """
    places = dict.fromkeys(_find_path_entry(name) for name in ("gpunode", *packages))
    code = f"import sys; sys.path[:0] = sys.argv[1:]; from {module} import main; main()"
    return (sys.executable, *_ISOLATED_PYTHON_OPTIONS, "-c", code, *(place for place in places if place))


def _find_path_entry(name: str) -> str:
    """Return the entry of ``sys.path`` with ``name``; empty if none, so that the child raises ImportError."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin).absolute()
    return str(file.parent.parent if spec.submodule_search_locations else file.parent)


def print_json_answer_and_exit(make_answer: Callable[[], Mapping[str, object]]) -> NoReturn:
    """Write one JSON object to standard output and exit with status 0.

    Meanwhile, anything that a driver library prints goes to standard error. Its exit handlers do not run: like any
    other call into it, they can block.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(out, "wb") as file:
        file.write(json.dumps(make_answer(), ensure_ascii=True).encode() + b"\n")
    os._exit(0)
