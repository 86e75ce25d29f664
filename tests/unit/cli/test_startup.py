from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpunode
from tests import cost

pytestmark = pytest.mark.usefixtures("allow_subprocess")

ROOT = str(Path(gpunode.__file__).parent.parent)
SAMPLE = f"{ROOT}/gpunode/samples/debian12-gtx1080"
# What a node that is as it should be does not need.
NOT_FOR_NOTHING = {
    "gpunode.facts.cuda",
    "gpunode.host.apt",
    "gpunode.host.capture",
    "gpunode.host.chroot",
    "gpunode.host.cuda",
    "gpunode.host.redact",
    "gpunode.runtimes.docker",
    "gpunode.runtimes.jsontext",
    "gpunode.runtimes.tomltext",
    "gpunode.workflow.rehearse",
    "gpunode.workflow.ctk",
    "gpunode.workflow.edits",
    "gpunode.workflow.rollback",
    "gpunode.workflow.status",
}
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
    return loaded_by(LOADED.format(arguments=", ".join(map(repr, arguments))))


def loaded_by(code: str) -> frozenset[str]:
    """As ``loaded``, for a program that ends by printing the names of all modules."""

    def modules(code: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return set(json.loads(done.stdout.splitlines()[-1]))

    return frozenset(modules(code) - modules("import json, runpy, sys\nprint(json.dumps(sorted(sys.modules)))"))


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
        "gpunode.cli.boundary",
        "gpunode.cli.completion",
        "gpunode.errors",
    }


def test_the_version_loads_nothing() -> None:
    found = loaded("--version")
    assert foreign(found) == set()
    assert ours(found) == {"gpunode", "gpunode.installed"}


def test_an_error_needs_no_workflow_and_without_a_terminal_no_rich() -> None:
    found = loaded("plan", "--no-such-option")
    assert not any(name.startswith(("gpunode.workflow", "gpunode.steps")) for name in found)
    assert not {"rich", "tomlkit", "sh", "pynvml", "distro", "yaml"} & foreign(found)


def test_a_setup_begins_with_what_a_run_without_changes_needs() -> None:
    found = loaded_by("import json, runpy, sys, gpunode.cli.setup\nprint(json.dumps(sorted(sys.modules)))")
    assert not NOT_FOR_NOTHING & found
    assert not {"rich", "tomlkit", "sh", "pynvml", "distro", "yaml"} & foreign(found)


@pytest.mark.parametrize("command", ["log", "rollback --list"])
def test_a_command_about_the_past_loads_no_editor_of_a_runtime(command: str, tmp_path: Path) -> None:
    tmp_path.joinpath("etc").mkdir()
    root = ("--root", str(tmp_path)) if command == "log" else ()
    found = loaded(*command.split(), *root)
    assert "gpunode.runtimes" in found
    assert not {f"gpunode.runtimes.{name}" for name in ("containerd", "crio", "docker", "podman", "reversal")} & found
    assert "gpunode.facts.cdi" not in found


def test_a_plan_loads_the_rules_of_the_one_runtime_that_it_is_about() -> None:
    found = loaded("plan", "containerd", "--node", SAMPLE)
    assert "gpunode.runtimes.containerd" in found
    others = ("crio", "docker", "jsontext", "podman", "removal", "reversal")
    assert not {f"gpunode.runtimes.{name}" for name in others} & found


def test_what_a_plan_costs_does_not_creep_up() -> None:
    """A new step costs what it needs. Where a limit is passed, first look for what is loaded before it is used.

    ``python -X importtime -m gpunode plan`` shows what loads what. A module that only some nodes need is imported in
    the function that uses it (decision 0005). If all of it is needed, raise the limit and say in the commit why.
    """
    done = subprocess.run([sys.executable, *cost.command("plan", "containerd", "--node", SAMPLE)],
                          capture_output=True, text=True, check=True)  # fmt: skip
    took = cost.cost(done.stdout)
    assert took.processes == ()
    assert took.patterns <= 96
    assert took.lines <= 22_600


def test_a_planned_capture_starts_no_process_and_reads_no_journal() -> None:
    found = loaded("plan", "docker", "--node", SAMPLE)
    assert not {"rich", "tomlkit", "sh", "pynvml", "distro", "yaml"} & foreign(found)
    assert not {"gpunode.host.local", "gpunode.journal.store", "gpunode.workflow.verify"} & found


def test_a_diagnosis_of_a_capture_loads_no_plan_and_nothing_that_looks_at_a_machine() -> None:
    found = ours(loaded("doctor", SAMPLE))
    parts = ("cli.session", "cli.inputs", "cli.human", "host.local", "journal", "page.report", "steps")
    assert not [name for name in found if name.startswith(tuple(f"gpunode.{part}" for part in parts))]
    assert not {"gpunode.workflow.converge", "gpunode.workflow.fleet"} & found


def test_the_child_that_asks_nvml_loads_little() -> None:
    found = loaded_by("import json, runpy, sys, gpunode.host.nvml\nprint(json.dumps(sorted(sys.modules)))")
    assert ours(found) == {"gpunode", "gpunode.host", "gpunode.host.child", "gpunode.host.nvml"}
    bare = "import sys, gpunode.host.nvml\nprint(*{'pathlib', 'typing', 'dataclasses'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({ROOT!r})\n{bare}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == ""


def test_a_render_loads_no_step_and_of_the_runtimes_one() -> None:
    found = ours(loaded("k8s", "render", "--node", SAMPLE))
    runtimes = (f"runtimes.{name}" for name in ("crio", "docker", "jsontext", "podman", "reversal", "tomltext"))
    parts = ("steps.table", "steps.selection", "steps.driver", "distros", "host.apt", "kubernetes.kind", *runtimes)
    assert not [name for name in found if name.startswith(tuple(f"gpunode.{part}" for part in parts))]


def test_a_bug_is_kept_without_the_modules_that_may_have_it() -> None:
    found = loaded_by(
        "import json, sys, gpunode.host.bugs\ngpunode.host.bugs._describe_versions()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    assert ours(found) <= {
        f"gpunode{name}" for name in ("", ".command", ".errors", ".host", ".host.bugs", ".host.ownership")
    }
    assert "distro" in foreign(found)
