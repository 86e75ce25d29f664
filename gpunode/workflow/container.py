"""The container check of verify: a container, run as the node is configured to, sees the GPUs that NVML sees."""

from __future__ import annotations

from collections.abc import Callable

from gpunode.facts.nvml import Inventory
from gpunode.host import container
from gpunode.host.process import Runner
from gpunode.runtimes import Configured, Runtime
from gpunode.workflow.verify import Check, Effective, gpus


def container_check(runner: Runner, effective: Effective) -> Callable[[Inventory, Runtime], Check]:
    """The check for ``verify.Extra``, made with ``runner``."""

    def check(inventory: Inventory, row: Runtime) -> Check:
        found = container.check(runner, _commands(row, effective(row.id)), inventory.uuids)
        title = "a container sees the same GPUs"
        if found.passed:
            return Check("container", title, "passed", f"{gpus(len(inventory.uuids))}, by UUID, through {row.id}")
        return Check("container", title, "failed", "; ".join(found.problems), f"gpunode verify --runtime {row.id}")

    return check


def _commands(row: Runtime, configured: Configured | None) -> container.Commands:
    """Through the binary that the runtime's own configuration names, so that a wrong one shows."""
    token = container.new_token()
    if row.id == "docker":
        return container.docker(token)
    binary = configured.handlers.get("nvidia", "") if configured else ""
    return container.containerd(token, binary=binary) if binary else container.containerd(token)
