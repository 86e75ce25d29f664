from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("allow_subprocess")

LOADED = """
import json, runpy, sys
sys.argv = ["gpunode", {arguments}]
try:
    runpy.run_module("gpunode", run_name="__main__")
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(sys.modules)))
"""


def loaded(*arguments: str) -> frozenset[str]:
    """Every module that the command line loads for ``arguments``, those of a bare Python left out."""

    def modules(code: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return set(json.loads(done.stdout.splitlines()[-1]))

    bare = modules("import json, runpy, sys\nprint(json.dumps(sorted(sys.modules)))")
    return frozenset(modules(LOADED.format(arguments=", ".join(map(repr, arguments)))) - bare)


def ours(found: frozenset[str]) -> set[str]:
    return {name for name in found if name.partition(".")[0] == "gpunode"}


def foreign(found: frozenset[str]) -> set[str]:
    return {name.partition(".")[0] for name in found} - {"gpunode"} - sys.stdlib_module_names


def test_help_loads_no_workflow_and_of_others_only_typer() -> None:
    found = loaded("plan", "--help")
    # typer's own: annotated_doc, shellingham and, before 0.26, click.
    assert foreign(found) <= {"typer", "annotated_doc", "shellingham", "click", "typing_extensions"}
    assert ours(found) == {
        "gpunode",
        "gpunode.cli",
        "gpunode.cli.app",
        "gpunode.cli.answered",
        "gpunode.cli.boundary",
        "gpunode.errors",
    }


def test_the_version_loads_nothing() -> None:
    found = loaded("--version")
    assert foreign(found) == set()
    assert ours(found) == {"gpunode"}


def test_an_error_needs_no_workflow_and_without_a_terminal_no_rich() -> None:
    found = loaded("plan", "--no-such-option")
    assert not any(name.startswith(("gpunode.workflow", "gpunode.steps")) for name in found)
    assert not {"rich", "tomlkit", "sh", "pynvml", "distro"} & foreign(found)
