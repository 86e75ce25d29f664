"""Messages about an edit of a single runtime's configuration."""

from __future__ import annotations

from gpunode.change import FileChange, FileState
from gpunode.cli.runtime_config import edit_result_lines
from gpunode.outcome import Planned
from gpunode.workflow.ctk import CtkVerb, EditResult
from gpunode.workflow.ctk_plan import CtkPlan

MADE = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
WRITTEN = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-nvidia.toml"
# Of a product's containerd, whose own parser is not used.
PLAN = CtkPlan("containerd", MADE, Planned((FileChange(WRITTEN, None, FileState(b"version = 3\n")),), "as a drop-in"))


def edit_text(verb: CtkVerb) -> str:
    lines = edit_result_lines(verb, PLAN, EditResult("000001-20260101T000000Z"), ("ctk",), "")
    return "\n".join(line.text for line in lines)


def test_written_file_is_named_and_not_the_generated_one() -> None:
    assert f"containerd written: {WRITTEN}" in edit_text("configure")
    assert "removed what configure added" in edit_text("unconfigure")
    assert MADE not in edit_text("configure") + edit_text("unconfigure")
