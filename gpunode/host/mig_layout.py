"""Changing a GPU's MIG layout with the child program ``gpunode.host.mig``, with rollback on failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from gpunode.change import MigChange, MigLayout
from gpunode.errors import ChangeFailed, Conflict
from gpunode.facts import nvml
from gpunode.facts.nvml import explain_error
from gpunode.host import mig
from gpunode.host.process import Runner


def apply_mig_change(runner: Runner, change: MigChange) -> None:
    """Set the GPU's layout to ``change.after``, possibly at its next reset.

    Raises:
        Conflict: if the layout was changed meanwhile.
        ChangeFailed: if the driver refused; ``why`` says if the old layout could not be restored.
    """
    answer = _run_child(runner, change)
    if answer.get("result") in {"done", "pending"}:
        return
    if answer.get("result") == "changed":
        raise Conflict(
            f"{change.gpu} got another MIG layout during the run",
            why="its MIG layout is neither the former nor the planned one; it was left as it is",
            hint="run the command again: it checks the node again and shows the change first",
        )
    raise ChangeFailed(
        f"{change.gpu} could not get its MIG layout: {change.after}",
        why=f"{_describe_cause(answer)}\n{_restore_layout(runner, change, answer)}",
        hint="if the GPU is in use, stop what uses it, monitoring agents such as DCGM included, then run the command "
        "again; this lists the processes:\nfuser -v /dev/nvidia*",
    )


def _run_child(runner: Runner, change: MigChange) -> Mapping[str, object]:
    request = {"gpu": change.gpu, "before": _encode_layout(change.before), "after": _encode_layout(change.after)}
    done = runner.run(
        mig.child_argv(), timeout_s=mig.TIMEOUT_S, stdin=json.dumps(request).encode(), survives_gpunode=True
    )
    if done.timed_out:
        return {"text": nvml.describe_hang("a call into the NVIDIA driver", f"no answer within {mig.TIMEOUT_S:g} s")}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"text": f"the child program ended: {done.last_lines()}"}


def _encode_layout(layout: MigLayout) -> dict[str, object]:
    rows = [
        {
            "profile": instance.profile,
            "start": instance.start,
            "size": instance.size,
            "compute": [int(count) for count in instance.compute],
        }
        for instance in layout.instances
    ]
    return {"enabled": layout.enabled, "instances": rows}


def _describe_cause(answer: Mapping[str, object]) -> str:
    code = answer.get("code")
    meaning = explain_error(code).meaning if isinstance(code, int) else str(answer.get("text"))
    doing = answer.get("doing")
    return f"{meaning} (to {doing})" if doing else meaning


def _restore_layout(runner: Runner, change: MigChange, failure: Mapping[str, object]) -> str:
    """Restore the old layout, and describe the outcome."""
    if "code" not in failure:
        return "the former layout was not put back, since the driver does not answer"
    back = replace(change, before=change.before, after=change.before)
    again = _run_child(runner, back)
    if again.get("result") == "changed" and isinstance(now := again.get("now"), dict):
        left = MigLayout(bool(now["enabled"]), tuple(nvml.parse_instance(row) for row in now["instances"]))
        again = _run_child(runner, replace(back, before=left))
    if again.get("result") in {"done", "pending"}:
        return f"restored: {change.before}"
    return f"the former layout ({change.before}) could not be restored: {_describe_cause(again)}"
