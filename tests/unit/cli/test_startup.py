from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpunode
from tests import cost

pytestmark = pytest.mark.usefixtures("allow_subprocess")

ROOT = str(Path(gpunode.__file__).parent.parent)
SAMPLE = f"{ROOT}/gpunode/samples/debian12-gtx1080"
# Modules that a converged node does not need.
NOT_FOR_NOTHING = {
    "gpunode.facts.cuda",
    "gpunode.host.apt",
    "gpunode.host.capture",
    "gpunode.host.chroot",
    "gpunode.host.cuda",
    "gpunode.host.services",
    "gpunode.journal.footprint",
    "gpunode.runtimes.docker",
    "gpunode.runtimes.jsontext",
    "gpunode.runtimes.tomltext",
    "gpunode.workflow.apply",
    "gpunode.workflow.rehearse",
    "gpunode.workflow.ctk",
    "gpunode.workflow.ctk_plan",
    "gpunode.workflow.live_state",
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


def loaded_modules(*arguments: str) -> frozenset[str]:
    """Return every module that the command line loads for ``arguments``, except those of a bare Python."""
    return loaded_by(LOADED.format(arguments=", ".join(map(repr, arguments))))


def loaded_by(code: str) -> frozenset[str]:
    """Return the modules as ``loaded`` does, for a program that ends by printing the names of all modules."""

    def modules(code: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return set(json.loads(done.stdout.splitlines()[-1]))

    return frozenset(modules(code) - modules("import json, runpy, sys\nprint(json.dumps(sorted(sys.modules)))"))


def ours(found: frozenset[str]) -> set[str]:
    return {name for name in found if name.partition(".")[0] == "gpunode"}


def foreign(found: frozenset[str]) -> set[str]:
    return {name.partition(".")[0] for name in found} - {"gpunode"} - sys.stdlib_module_names


def modules_below(package: str, *names: str) -> set[str]:
    """Return the whole names of modules that exist: a renamed one must not pass as one that is not loaded."""
    modules = {f"{package}.{name}" for name in names}
    assert all(map(find_spec, modules))
    return modules


def test_help_imports_no_workflow_and_only_typer() -> None:
    found = loaded_modules("plan", "--help")
    # typer's own: annotated_doc, shellingham and, before 0.26, click.
    assert foreign(found) <= {"typer", "annotated_doc", "shellingham", "click", "typing_extensions"}
    assert ours(found) == {
        "gpunode",
        "gpunode.cli",
        "gpunode.cli.app",
        "gpunode.cli.boundary",
        "gpunode.errors",
    }


def test_version_imports_nothing() -> None:
    found = loaded_modules("--version")
    assert foreign(found) == set()
    assert ours(found) == {"gpunode", "gpunode.installed"}


def test_usage_error_imports_no_workflow_and_no_rich() -> None:
    found = loaded_modules("plan", "--no-such-option")
    assert not any(name.startswith(("gpunode.workflow", "gpunode.steps")) for name in found)
    assert not {"rich", "tomlkit", "sh", "pynvml", "distro", "yaml"} & foreign(found)


def test_setup_imports_only_what_an_unchanged_run_needs() -> None:
    found = loaded_by("import json, runpy, sys, gpunode.cli.setup\nprint(json.dumps(sorted(sys.modules)))")
    assert not NOT_FOR_NOTHING & found
    assert not {"rich", "tomlkit", "sh", "pynvml", "distro", "yaml"} & foreign(found)


@pytest.mark.parametrize("command", ["log", "rollback --list"])
def test_log_and_similar_commands_import_no_runtime_editor(command: str, tmp_path: Path) -> None:
    tmp_path.joinpath("etc").mkdir()
    root = ("--root", str(tmp_path)) if command == "log" else ()
    found = loaded_modules(*command.split(), *root)
    assert "gpunode.runtimes" in found
    editors = ("containerd", "crio", "docker", "podman", "reversal")
    assert not modules_below("gpunode.runtimes", *editors) & found
    assert "gpunode.facts.cdi" not in found


def test_plan_imports_only_the_rules_of_its_runtime() -> None:
    found = loaded_modules("plan", "containerd", "--node", SAMPLE)
    assert "gpunode.runtimes.containerd" in found
    others = ("crio", "docker", "jsontext", "podman", "removal", "reversal")
    assert not modules_below("gpunode.runtimes", *others) & found


def test_import_cost_of_a_plan_does_not_grow() -> None:
    """A new step costs what it needs. If a limit is exceeded, first look for modules loaded before their use.

    ``python -X importtime -m gpunode plan`` shows what loads what. A module that only some nodes need is imported in
    the function that uses it (decision 0005). If all of it is needed, raise the limit and say in the commit why.
    """
    done = subprocess.run([sys.executable, *cost.command("plan", "containerd", "--node", SAMPLE)],
                          capture_output=True, text=True, check=True)  # fmt: skip
    took = cost.cost(done.stdout)
    assert took.processes == ()
    assert took.patterns <= 70
    assert took.methods <= 90
    assert took.lines <= 23_800


def test_plan_of_a_capture_starts_no_process_and_reads_no_journal() -> None:
    found = loaded_modules("plan", "docker", "--node", SAMPLE)
    assert not {"rich", "tomlkit", "sh", "pynvml", "distro", "yaml"} & foreign(found)
    assert not {"gpunode.host.local", "gpunode.journal.store", "gpunode.workflow.verify"} & found


def test_diagnosis_of_a_capture_imports_no_plan_and_no_local_host() -> None:
    found = ours(loaded_modules("doctor", SAMPLE))
    parts = ("cli.session", "cli.inputs", "cli.node_screen", "host.local", "journal", "page.report", "steps.table")
    assert len([name for name in found if name.startswith("gpunode.steps.")]) <= 6  # for its notes on hazards
    assert not [name for name in found if name.startswith(tuple(modules_below("gpunode", *parts)))]
    assert not {"gpunode.workflow.converge", "gpunode.workflow.fleet"} & found


def test_nvml_child_imports_little() -> None:
    found = loaded_by("import json, runpy, sys, gpunode.host.nvml\nprint(json.dumps(sorted(sys.modules)))")
    assert ours(found) == {"gpunode", "gpunode.host", "gpunode.host.child", "gpunode.host.nvml"}
    bare = "import sys, gpunode.host.nvml\nprint(*{'pathlib', 'typing', 'dataclasses'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({ROOT!r})\n{bare}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == ""


def test_render_imports_no_steps_and_only_one_runtime() -> None:
    found = ours(loaded_modules("k8s", "render", "--node", SAMPLE))
    runtimes = (f"runtimes.{name}" for name in ("crio", "docker", "jsontext", "podman", "reversal", "tomltext"))
    parts = ("steps.table", "steps.selection", "steps.driver", "distros", "host.apt", "kubernetes.kind", *runtimes)
    assert not [name for name in found if name.startswith(tuple(modules_below("gpunode", *parts)))]


def test_bug_report_imports_few_modules() -> None:
    found = loaded_by(
        "import json, sys, gpunode.host.bugs\ngpunode.host.bugs._describe_versions()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    assert ours(found) <= {
        f"gpunode{name}" for name in ("", ".command", ".errors", ".host", ".host.bugs", ".host.ownership")
    }
    assert "distro" in foreign(found)
