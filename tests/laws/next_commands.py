"""A person who follows ``next:``: the commands that messages propose, run on a node in memory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from gpunode.change import ServiceState
from gpunode.cli.screen.failures import commands_in
from gpunode.errors import GpunodeError, Undetermined
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Facts, Known, require, value_or
from gpunode.facts.project import project_changes
from gpunode.outcome import Blocked
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe, RuntimeSettings
from gpunode.runtimes import DesiredConfig, ObservedConfig, apply_edits, find_runtime
from gpunode.runtimes.file_states import contents_of_states, file_changes, states_from_facts
from gpunode.steps.kernel import plan_module_load
from gpunode.workflow.converge import project_stage, raise_refusal
from gpunode.workflow.plan import plan
from gpunode.workflow.verify import verify
from tests.unit.workflow.nodes import Node

ENDS: Final = frozenset({0, 4, 10, 11})
"""The exit codes that need no command: done, changes pending, a reboot, a drain."""
STEPS: Final = 3
SETUP: Final = "sudo gpunode setup node.toml"
"""What makes the node as the recipe wants it that was typed first."""
_NOW: Final = 2e9


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code and the output of a command on the node, and the node afterwards."""

    exit_code: int
    hint: str
    facts: Facts


Verb: TypeAlias = Callable[[Recipe, Facts], Answer]


class Answering(Node):
    """A node whose NVML answers if a driver is loaded."""

    def run_probe(self, probe: Probe, /) -> Capture:
        loaded = value_or(self.facts.loaded_driver, None)
        if probe.key != "nvml" or loaded is None:
            return super().run_probe(probe)
        gpu: dict[str, Any] = {"index": 0, "name": "Tesla T4", "uuid": "GPU-0", "pci": "0000:01:00.0", "memory_mib": 1,
                               "persistence": True, "ecc": True, "ecc_pending": True, "compute_capability": "7.5",
                               "mig": {"error": "NotSupported", "code": 3},
                               "mig_pending": {"error": "NotSupported", "code": 3}}  # fmt: skip
        answer = {"schema": 1, "driver": loaded.version, "cuda": "13.0", "nvml": f"13.{loaded.version}", "gpus": [gpu],
                  "library": "libnvidia-ml.so.1"}  # fmt: skip
        return Capture(probe.source, "ok", json.dumps(answer).encode())

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.facts = facts


def setup(recipe: Recipe, facts: Facts) -> Answer:
    """Set the node up as far as possible without a reboot, and verify it."""
    try:
        plans = plan(recipe, facts, Answering(facts))
        raise_refusal(plans)
    except GpunodeError as error:
        return Answer(error.exit_code, error.hint, facts)
    for stage in plans:
        facts = project_stage(facts, stage)
    if any(isinstance(outcome, Blocked) for outcome in _waits(recipe, facts)):
        return Answer(10, "", facts)
    return check(recipe, _started(facts, recipe.runtime.name))


def _waits(recipe: Recipe, facts: Facts) -> Iterator[object]:
    try:
        yield plan_module_load(recipe, facts)
    except Undetermined:
        return


def check(recipe: Recipe, facts: Facts) -> Answer:
    """Verify the node."""
    try:
        host, has = Answering(facts), lambda name: effective(name, facts)
        found = verify(recipe, facts, host, has, setup_command=SETUP).failure()
    except GpunodeError as error:
        found = error
    return Answer(found.exit_code if found else 0, found.hint if found else "", facts)


def effective(name: str, facts: Facts) -> ObservedConfig | None:
    """Return the daemon's configuration: its files when it started, and no runtimes if the CRI plugin is disabled."""
    row = find_runtime(name)
    files = states_from_facts(facts, row, DesiredConfig())
    said = row.inspect(contents_of_states(files), DesiredConfig())
    unit = facts.unit(row.unit)
    started_at = unit.value.started_at if isinstance(unit, Known) else None
    is_read = started_at is None or all(facts.changed_at.get(path, 0.0) <= started_at for path in files)
    return replace(said, handlers={}) if said.cri_disabled or not is_read else said


def follow(command: str, facts: Facts, wanted: Recipe, begin: Verb) -> Answer:
    """Run a proposed ``command``; if it is not a setup, run the first command again afterwards."""
    words = [word for word in shlex.split(command) if word != "sudo"]

    def again(changed: Facts) -> Answer:
        return begin(wanted, changed)

    match words:
        case ["gpunode", "setup", "node.toml"]:
            return setup(wanted, facts)
        case ["gpunode", "setup", *options]:
            return setup(_recipe(options), facts)
        case ["gpunode", "ctk", "runtime", "configure", *options]:
            return again(_configured(options, facts))
        case ["systemctl", "restart", unit]:
            return again(_started(facts, unit.removesuffix(".service")))
        case ["systemctl", "status", _]:
            return Answer(0, "", facts)  # it shows the reason, for a person to read
        case ["apt-mark", "unhold", *names]:
            return again(_packages(facts, {name: {"held": False} for name in names}))
        case ["apt-get", *words]:
            return again(_after_apt(words, facts))
        case ["nvidia-installer", "--uninstall"]:
            return again(replace(facts, run_installer=Known(False, "run-installer")))
        case _:
            raise AssertionError(f"nobody knows what this does to a node: {command}")


def _after_apt(words: list[str], facts: Facts) -> Facts:
    match words:
        case ["install", "--reinstall", *_]:  # of headers whose files were deleted
            kernels = require(facts.kernels, "the kernels").wanted
            return replace(facts, headers=Known(frozenset(kernels), "kernel-builds"))
        case ["purge", *names]:
            kept = {p: s for p, s in value_or(facts.packages, {}).items() if p.name not in names}
            return replace(facts, packages=Known(kept, "dpkg-status"))
        case _:
            raise AssertionError(f"nobody knows what this does to a node: apt-get {words}")


def _recipe(options: list[str]) -> Recipe:
    words = dict(zip(*[iter(" ".join(options).replace("=", " ").split())] * 2, strict=True))
    assert words.keys() <= {"--runtime", "--driver", "--only"}, options
    return Recipe("typed", runtime=RuntimeSettings(words.get("--runtime", "none")))


def _configured(options: list[str], facts: Facts) -> Facts:
    name = next(word.partition("=")[2] for word in options if word.startswith("--runtime="))
    row, desired = find_runtime(name), DesiredConfig(enable_cri="--enable-cri" in options)
    present = states_from_facts(facts, row, desired)
    edited = row.configure(contents_of_states(present), desired)
    assert apply_edits(contents_of_states(present), edited)
    changed = project_changes(facts, file_changes(edited, present, frozenset(), is_roots=True))
    return _started(changed, name) if "--restart" in options else changed


def _started(facts: Facts, name: str) -> Facts:
    fact = facts.unit(f"{name}.service")
    if not isinstance(fact, Known) or not fact.value.exists:
        return facts
    unit = replace(fact.value, state=ServiceState(enabled=True, active=True), started_at=_NOW)
    return replace(facts, units={**facts.units, f"{name}.service": Known(unit, "units")})


def _packages(facts: Facts, changes: Mapping[str, Mapping[str, object]]) -> Facts:
    assert isinstance(facts.packages, Known)
    packages = dict(facts.packages.value)
    for name, more in changes.items():
        packages[PackageId(name)] = replace(packages[PackageId(name)], **more)  # type: ignore[arg-type]
    return replace(facts, packages=Known(packages, "dpkg-status"))


def walk(begin: Verb, wanted: Recipe, facts: Facts) -> list[str]:
    """Follow the first command of each hint, until a hint has none or a person must act; return the commands.

    Raises:
        AssertionError: a command is proposed twice, or more commands than a person would follow.
    """
    done: list[str] = []
    answer = begin(wanted, facts)
    while answer.exit_code not in ENDS and (commands := commands_in(answer.hint)):
        assert commands[0] not in done, f"in a circle: {[*done, commands[0]]}"
        done.append(commands[0])
        assert len(done) <= STEPS, f"no end: {done}"
        answer = follow(commands[0], answer.facts, wanted, begin)
    return done
