"""ctk for podman, which has no handlers: it writes and checks a CDI specification instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.change import FileState, Trigger, triggers_of
from gpunode.cli.runtime_config import configure_command
from gpunode.errors import Refused
from gpunode.facts.model import Facts
from gpunode.host.port import TriggerResult
from gpunode.journal.store import Store
from gpunode.runtimes import find_runtime
from gpunode.workflow import ctk, ctk_plan
from gpunode.workflow.events import ignore_event
from tests.unit.workflow.nodes import Node
from tests.unit.workflow.test_cdi_checks import SPEC, THERE, node
from tests.unit.workflow.test_cdi_checks import Node as Looking

PODMAN = find_runtime("podman")


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> list[Facts]:
    """Return the facts that a survey gives: the first of the list."""
    found = [node(None)]
    for module in (ctk, ctk_plan):
        monkeypatch.setattr(module, "survey", lambda host, *, image=False: found[0])
    return found


def test_missing_podman_cdi_specification_is_written_at_once(facts: list[Facts], tmp_path: Path) -> None:
    host = Node(facts[0])
    plan = ctk_plan.plan_cdi_specification(host, PODMAN, image=False)
    assert (plan.target_name, plan.main_file, triggers_of(plan.files)) == ("podman", SPEC, (Trigger("cdi"),))
    assert (plan.trigger, ctk.explain_no_reload(plan)) == (None, "podman has no daemon")
    store = Store(tmp_path)
    done = ctk.apply_edit(plan, host, store, "configure", ignore_event)
    assert [result.trigger for result in done.trigger_results] == [Trigger("cdi")]
    assert isinstance(done.trigger_results[0], TriggerResult)
    assert SPEC not in host.files
    assert store.find_pending_triggers() == {}


def test_podman_cdi_specification_without_its_writer_is_refused(facts: list[Facts]) -> None:
    """Without nvidia-ctk nothing was written, and configure said that it was."""
    host = Node(facts[0])
    host.files["/usr/bin/nvidia-ctk"] = FileState(b"", 0o755)
    ctk_plan.refuse_missing_specification_writer(ctk_plan.plan_cdi_specification(host, PODMAN, image=False))
    del host.files["/usr/bin/nvidia-ctk"]
    plan = ctk_plan.plan_cdi_specification(host, PODMAN, image=False)
    with pytest.raises(Refused, match="nvidia-ctk is not installed") as caught:
        ctk_plan.refuse_missing_specification_writer(plan)
    install = "sudo gpunode setup --runtime=podman --only=toolkit-repository --only=toolkit"
    assert caught.value.hint.startswith(f"{install}\n")
    assert str(configure_command(plan, ("ctk", "runtime", "check"))) == install


def test_current_podman_cdi_specification_is_kept_and_checked(facts: list[Facts]) -> None:
    facts[0] = node()
    assert ctk_plan.plan_cdi_specification(Looking(), PODMAN, image=False).files == ()
    assert ctk.check_cdi_devices(Looking(), PODMAN, image=False) == ctk.ConfigStatus()
    broken = ctk.check_cdi_devices(Looking(THERE[1:]), PODMAN, image=False)
    assert f"{SPEC} names missing files: /dev/nvidia0" in broken.difference
    assert ctk.check_cdi_devices(Looking(), PODMAN, image=True).unverified == "nothing runs in an image"
