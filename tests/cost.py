"""What a run of gpunode costs, in things that can be counted: no test asserts a time."""

from __future__ import annotations

import json
from dataclasses import dataclass

# A program that runs gpunode with its arguments, and ends with what that took as its last line.
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
print("\\n" + json.dumps([len(ours), processes, loaded]))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took.

    Attributes:
        patterns: how many regular expressions of gpunode's were compiled.
        processes: the commands that it started; the name of the call where that does not show the command.
        modules: every module that it loaded, those of a bare Python left out.
    """

    patterns: int
    processes: tuple[tuple[str, ...], ...]
    modules: frozenset[str]

    @property
    def ours(self) -> int:
        """How many modules of gpunode were loaded."""
        return sum(name.partition(".")[0] == "gpunode" for name in self.modules)


def command(*arguments: str) -> tuple[str, ...]:
    """What Python runs after its own name: gpunode with ``arguments``, counted."""
    return ("-c", _PROGRAM, *arguments)


def cost(output: str) -> Cost:
    """The cost that ``command`` printed last."""
    patterns, processes, modules = json.loads(output.splitlines()[-1])
    return Cost(patterns, tuple(map(tuple, processes)), frozenset(modules))
