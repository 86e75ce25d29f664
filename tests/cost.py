"""The cost of a run of gpunode in countable things: no test asserts a time."""

from __future__ import annotations

import json
from dataclasses import dataclass

# A program that runs gpunode with its arguments and prints the cost as its last line.
_PROGRAM = """
import json, re, runpy, sys
patterns, processes = [], []
compiler = re._compiler if hasattr(re, "_compiler") else re.sre_compile
compiled = compiler.compile

def counted(*arguments):
    frame = sys._getframe(1)
    while frame and frame.f_globals["__name__"].partition(".")[0] in ("re", "enum", "functools"):
        frame = frame.f_back
    patterns.append(frame.f_globals["__name__"] if frame else "")
    return compiled(*arguments)

compiler.compile = counted

def started(event, arguments):
    if event == "os.posix_spawn":
        processes.append([str(word) for word in arguments[1]])
    elif event in ("os.fork", "os.forkpty", "subprocess.Popen", "os.system"):
        processes.append([event])

before = set(sys.modules)
sys.addaudithook(started)
sys.argv[0] = "gpunode"
try:
    runpy.run_module("gpunode", run_name="__main__")
except SystemExit:
    pass
loaded = sorted(set(sys.modules) - before)
ours = [name for name in patterns if name.partition(".")[0] == "gpunode"]
files = [sys.modules[name].__file__ for name in loaded if name.partition(".")[0] == "gpunode"]
lines = sum(open(name, "rb").read().count(b"\\n") for name in files if name)
print("\\n" + json.dumps([len(ours), processes, loaded, lines]))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run.

    Attributes:
        patterns: the number of gpunode's regular expressions that were compiled.
        processes: the commands that it started, or the name of the call if the command cannot be seen.
        modules: every module that it loaded, except those of a bare Python.
        lines: the number of loaded lines of gpunode's own source.
    """

    patterns: int
    processes: tuple[tuple[str, ...], ...]
    modules: frozenset[str]
    lines: int


def command(*arguments: str) -> tuple[str, ...]:
    """Return the arguments for Python that run gpunode with ``arguments``, counted."""
    return ("-c", _PROGRAM, *arguments)


def cost(output: str) -> Cost:
    """Return the cost that ``command`` printed last."""
    patterns, processes, modules, lines = json.loads(output.splitlines()[-1])
    return Cost(patterns, tuple(map(tuple, processes)), frozenset(modules), lines)
