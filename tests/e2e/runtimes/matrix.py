"""A program that configures each vector for the daemons below a root, and prints the daemons' verdicts.

It runs in the namespaces of a lab's node. Its arguments are ROOT, RUNTIME, and ``core`` or ``whole``; it prints a line
of JSON for each cell.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gpunode.cli import boundary
from tests.conformance.runtimes.golden import Vector, vectors
from tests.e2e.runtimes.daemons import (
    Files,
    Read,
    Root,
    Started,
    containerd_reads,
    containerd_starts,
    dockerd_reads,
    dockerd_starts,
)

_STATES: Final = ("before", "after")
OWN: Final = "own"
AUTO: Final = "auto"
# No run of gpunode: the result of nvidia-ctk.
THEIRS: Final = "theirs"
# Vectors of the core that also run in ``--mode auto``: files without a runc table, another default, schema 1 and 3,
# existing drop-ins and imports, one-line files, other distributions' files, the runtime's own dump as the source.
_AUTO_IN_CORE: Final = frozenset(
    {1, 3, 4, 10, 12, 15, 16, 18, 19, 20, 21, 22, 23, 25, 26, 29, 33, 34, 46, 55, 56, 58, 63, 74, 76, 79}
)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts on one state of the files: that of the daemon's parser, and that of the started daemon."""

    read: Read
    started: Started


@dataclass(frozen=True, slots=True)
class Cell:
    """A vector in one mode.

    Attributes:
        mode: OWN, the vector's; AUTO; or THEIRS.
        code: the exit code of gpunode.
        said: its output.
    """

    vector: str
    mode: str
    code: int
    said: str
    before: Judged
    after: Judged

    @staticmethod
    def of(line: str) -> Cell:
        """Parse the printed form."""
        told = json.loads(line)
        before, after = (Judged(Read(**told[name]["read"]), Started(**told[name]["started"])) for name in _STATES)
        return Cell(told["vector"], told["mode"], told["code"], told["said"], before, after)


def asked(runtime: str) -> list[Vector]:
    """Return the vectors of ``runtime`` that change files with which a daemon can start, without commands of a root."""
    return [
        vector
        for vector in vectors()
        if vector.runtime == runtime
        and vector.number != 61
        and not {"--dry-run", "--config-source=command"} & {*vector.told["argv"]}
    ]


def main() -> None:
    """Print the cells."""
    root, runtime, is_core = Root(Path(sys.argv[1])), sys.argv[2], sys.argv[3] == "core"
    _load(root, runtime)
    # All of them first: a process that has used gRPC cannot be forked.
    answers = [
        (vector, mode, *_answered(root, vector, mode))
        for vector in asked(runtime)
        for mode in _modes(vector, is_core=is_core)
    ]
    with ExitStack() as stack:
        if runtime == "docker":
            root.lay({})
            stack.enter_context(root.daemon("containerd"))
        judge = _Judge(root, runtime)
        for vector, mode, code, said, files in answers:
            config = vector.paths[0]
            before, after = judge.of(config, vector.files), judge.of(config, files)
            print(json.dumps(asdict(Cell(vector.folder.name, mode, code, said, before, after))), flush=True)


def _load(root: Root, runtime: str) -> None:
    """Load the modules that each child of this process would otherwise load."""
    root.lay({})
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        boundary.run_cli(["ctk", "runtime", "configure", "--runtime", runtime, "--root", str(root.path)])


def _modes(vector: Vector, *, is_core: bool) -> Iterator[str]:
    yield OWN
    if vector.runtime == "containerd" and (not is_core or vector.number in _AUTO_IN_CORE):
        yield AUTO
    if vector.told.get("cri_plugin_fails_to_load_on"):
        yield THEIRS


def _answered(root: Root, vector: Vector, mode: str) -> tuple[int, str, Files]:
    """Return gpunode's exit code, its output, and the files that it left."""
    if mode == THEIRS:
        left = zip(vector.paths, (vector.read("expected"), vector.read("expected-dropin")), strict=True)
        return 0, "", {path: data for path, data in left if data is not None}
    root.lay(vector.files)
    words = vector.argv(root.path)
    if mode == AUTO:
        words = [*words[: words.index("--mode")], "--mode", "auto"]
    with tempfile.TemporaryFile("w+") as output:
        code = _in_a_child(words, output.fileno())
        output.seek(0)
        return code, output.read(), root.files()


def _in_a_child(words: list[str], output: int) -> int:
    """Return the exit code of ``gpunode WORDS``, run in a fork of this process, so that Python starts only once."""
    from gpunode.__main__ import main as gpunode

    child = os.fork()
    if child == 0:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["gpunode", *words]
        try:
            code = gpunode()
            sys.stdout.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class _Judge:
    """Queries the daemon once for each state of the files."""

    def __init__(self, root: Root, runtime: str) -> None:
        self._root = root
        self._reads = {"containerd": containerd_reads, "docker": dockerd_reads}[runtime]
        self._starts = {"containerd": containerd_starts, "docker": dockerd_starts}[runtime]
        self._known: dict[tuple[str, frozenset[tuple[str, bytes]]], Judged] = {}

    def of(self, config: str, files: Files) -> Judged:
        """Return the daemon's verdict on ``files``, the first of which is at ``config``."""
        key = (config, frozenset(files.items()))
        if key not in self._known:
            self._root.lay(files)
            self._known[key] = Judged(self._reads(self._root, config), self._starts(self._root, config))
        return self._known[key]


if __name__ == "__main__":
    main()
