"""A GPU's MIG layout changed, by the child program ``gpunode.host.mig``; put back where that fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from gpunode.change import MigChange, MigLayout
from gpunode.errors import ChangeFailed, Conflict
from gpunode.facts import nvml
from gpunode.facts.nvml import explain
from gpunode.host import mig
from gpunode.host.process import Runner


def apply(runner: Runner, change: MigChange) -> None:
    """The GPU is as ``change.after`` says, or will be with its next reset.

    Raises:
        Conflict: somebody has divided it otherwise meanwhile.
        ChangeFailed: the driver refused; the former layout is there again, or ``why`` says that it is not.
    """
    answer = _asked(runner, change)
    if answer.get("result") in {"done", "pending"}:
        return
    if answer.get("result") == "changed":
        raise Conflict(
            f"{change.gpu} was divided otherwise during the run",
            why="its MIG layout is neither the former nor the planned one; it was left as it is",
            hint="run the command again; it looks anew and shows the change first",
        )
    raise ChangeFailed(
        f"{change.gpu} could not be divided: {change.after}",
        why=f"{_cause(answer)}\n{_put_back(runner, change, answer)}",
        hint="if the GPU is in use, stop what uses it, monitoring agents such as DCGM included, then run the command "
        "again; this lists the processes:\nfuser -v /dev/nvidia*",
    )


def _asked(runner: Runner, change: MigChange) -> Mapping[str, object]:
    request = {"gpu": change.gpu, "before": _plain(change.before), "after": _plain(change.after)}
    done = runner.run(mig.argv(), timeout_s=mig.TIMEOUT_S, stdin=json.dumps(request).encode(), outlives=True)
    if done.timed_out:
        return {"text": nvml.hangs("a call into the NVIDIA driver", f"no answer within {mig.TIMEOUT_S:g} s")}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"text": f"the child program ended: {done.last_lines()}"}


def _plain(layout: MigLayout) -> dict[str, object]:
    rows = [
        {"profile": one.profile, "start": one.start, "size": one.size, "compute": [int(count) for count in one.compute]}
        for one in layout.instances
    ]
    return {"enabled": layout.enabled, "instances": rows}


def _cause(answer: Mapping[str, object]) -> str:
    code = answer.get("code")
    meaning = explain(code).meaning if isinstance(code, int) else str(answer.get("text"))
    doing = answer.get("doing")
    return f"{meaning} (to {doing})" if doing else meaning


def _put_back(runner: Runner, change: MigChange, failure: Mapping[str, object]) -> str:
    """What became of the former layout, from whatever the GPU was left in."""
    if "code" not in failure:
        return "the former layout was not put back, since the driver does not answer"
    back = replace(change, before=change.before, after=change.before)
    again = _asked(runner, back)
    if again.get("result") == "changed" and isinstance(now := again.get("now"), dict):
        left = MigLayout(bool(now["enabled"]), tuple(nvml.instance(row) for row in now["instances"]))
        again = _asked(runner, replace(back, before=left))
    if again.get("result") in {"done", "pending"}:
        return f"put back: {change.before}"
    return f"the former layout ({change.before}) could not be put back: {_cause(again)}"
