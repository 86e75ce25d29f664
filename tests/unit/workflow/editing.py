"""A node for edits of a single runtime's configuration, and functions that make such edits."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.change import Change, FileChange, FileState, Trigger
from gpunode.errors import ChangeFailed
from gpunode.facts.derive import derive_runtime_facts
from gpunode.facts.evidence import Capture, GlobMatch, Ownership, Probe, encode_matches
from gpunode.journal.store import Store
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.steps.runtime import RuntimeTarget
from gpunode.workflow import ctk, ctk_plan
from gpunode.workflow.ctk import CtkVerb, EditResult
from gpunode.workflow.ctk_plan import CtkPlan
from gpunode.workflow.events import ignore_event
from tests.unit.steps.machines import machine
from tests.unit.workflow.nodes import Node

DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
RESTART = Trigger("restart", "containerd.service")
RELOAD_DOCKER, RESTART_DOCKER = Trigger("reload", "docker.service"), Trigger("restart", "docker.service")
PLAIN = b"""version = 2 # ours

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
IN_DROP_IN = DesiredConfig(binary="nvidia-container-runtime", mode="drop-in", exact=True)
IN_PLACE = replace(IN_DROP_IN, mode="in-place")
DOCKER = DesiredConfig(binary="nvidia-container-runtime", exact=True)


class Machine(Node):
    """A node in memory with globs over its files, whose commands print what a test sets."""

    def __init__(self, files: Mapping[str, FileState | bytes], says: Mapping[str, str] | None = None) -> None:
        states = {path: FileState(file) if isinstance(file, bytes) else file for path, file in files.items()}
        super().__init__(machine(files=states))
        self.says = dict(says or {})
        self.full: set[str] = set()

    def run_probe(self, probe: Probe, /) -> Capture:
        if probe.argv and (said := self.says.get(" ".join(probe.argv))) is not None:
            return Capture(probe.source, "ok", said.encode())
        if probe.glob:
            return Capture(probe.source, "ok", encode_matches(self._found(probe.glob)))
        return super().run_probe(probe)

    def _found(self, pattern: str) -> Iterator[GlobMatch]:
        for path, state in self.files.items():
            if state is not None and fnmatch.fnmatchcase(path, pattern):
                yield GlobMatch(path, data=state.content, ownership=Ownership(state.mode, state.uid, state.gid))

    def apply(self, changes: Sequence[Change], /) -> None:
        if any(isinstance(change, FileChange) and change.path in self.full for change in changes):
            raise ChangeFailed("no room", why="the test says so")
        super().apply(changes)

    @property
    def contents(self) -> dict[str, bytes]:
        return {path: state.content for path, state in self.files.items() if state is not None}


def target_of(host: Machine, desired: DesiredConfig = IN_DROP_IN, row: str = "containerd") -> RuntimeTarget:
    return ctk_plan.inspect_target(host, find_runtime(row), desired, derive_runtime_facts({}))


def plan_of(
    host: Machine, desired: DesiredConfig = IN_DROP_IN, row: str = "containerd", store: Store | None = None
) -> CtkPlan:
    trails = store.footprint().files if store else {}
    return ctk_plan.plan_configure_edit(host, target_of(host, desired, row), trails)


def made(
    host: Machine, store: Store, plan: CtkPlan, verb: CtkVerb = "configure", *, restart: bool = False
) -> EditResult:
    return ctk.apply_edit(plan, host, store, verb, ignore_event, restart=restart)


def configured(host: Machine, store: Store, desired: DesiredConfig = IN_DROP_IN, row: str = "containerd") -> EditResult:
    return made(host, store, plan_of(host, desired, row))


def unconfigured(host: Machine, store: Store, desired: DesiredConfig = IN_DROP_IN, row: str = "containerd") -> CtkPlan:
    plan = ctk_plan.plan_unconfigure_edit(host, target_of(host, desired, row), store.footprint().files)
    made(host, store, plan, "unconfigure")
    return plan
