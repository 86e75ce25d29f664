"""The cost of a run of gpunode in countable things: no test asserts a time."""

from __future__ import annotations

import json
from dataclasses import dataclass

# A program that runs gpunode with its arguments and prints the cost as its last line.
_PROGRAM = """
import json, re, runpy, sys
patterns, methods, processes = [], [], []
compiler = re._compiler if hasattr(re, "_compiler") else re.sre_compile
compiled = compiler.compile

def caller(*passed):
    frame = sys._getframe(2)
    while frame and frame.f_globals["__name__"].partition(".")[0] in passed:
        frame = frame.f_back
    return frame.f_globals["__name__"] if frame else ""

def counted(*arguments):
    patterns.append(caller("re", "enum", "functools"))
    return compiled(*arguments)

compiler.compile = counted

def started(event, arguments):
    if event == "os.posix_spawn":
        processes.append([str(word) for word in arguments[1]])
    # Python 3.13 compiles an empty text for each class of which it makes no method.
    elif event == "compile" and arguments[1] == "<string>" and "return ()" not in str(arguments[0]):
        methods.append(caller("dataclasses"))
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
ours = [[name for name in names if name.partition(".")[0] == "gpunode"] for names in (patterns, methods)]
files = [sys.modules[name].__file__ for name in loaded if name.partition(".")[0] == "gpunode"]
lines = sum(open(name, "rb").read().count(b"\\n") for name in files if name)
print("\\n" + json.dumps([*map(len, ours), processes, loaded, lines]))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run.

    Attributes:
        patterns: the number of gpunode's regular expressions that were compiled.
        methods: the number of methods of gpunode's dataclasses that were compiled.
        processes: the commands that it started, or the name of the call if the command cannot be seen.
        modules: every module that it loaded, except those of a bare Python.
        lines: the number of loaded lines of gpunode's own source.
    """

    patterns: int
    methods: int
    processes: tuple[tuple[str, ...], ...]
    modules: frozenset[str]
    lines: int


def command(*arguments: str) -> tuple[str, ...]:
    """Return the arguments for Python that run gpunode with ``arguments``, counted."""
    return ("-c", _PROGRAM, *arguments)


def cost(output: str) -> Cost:
    """Return the cost that ``command`` printed last."""
    patterns, methods, processes, modules, lines = json.loads(output.splitlines()[-1])
    return Cost(patterns, methods, tuple(map(tuple, processes)), frozenset(modules), lines)
