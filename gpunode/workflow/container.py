"""The container check of verify: a container, run as the node is configured to, sees the GPUs that NVML sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpunode.check import Check
from gpunode.command import sudo_gpunode
from gpunode.facts.nvml import NvmlInventory
from gpunode.host import container
from gpunode.host.process import Runner
from gpunode.runtimes import Runtime
from gpunode.workflow.driver_checks import count_gpus
from gpunode.workflow.verify import CONTAINER_TITLE, ReadEffectiveConfig


def make_container_check(
    runner: Runner, read_effective_config: ReadEffectiveConfig
) -> Callable[[NvmlInventory, Runtime], Check]:
    """Return the check for ``verify.ExtraChecks``, made with ``runner``."""
    check = partial(Check, "container", CONTAINER_TITLE)

    def run(inventory: NvmlInventory, row: Runtime) -> Check:
        commands = _container_commands(row, read_effective_config)
        if commands is None:
            hint = "start a pod that requests nvidia.com/gpu"
            return check("skipped", f"{row.id} runs containers only for a kubelet", hint)
        found = container.check_container(runner, commands, inventory.uuids)
        if found.passed:
            return check("passed", f"{count_gpus(len(inventory.uuids))}, by UUID, through {row.id}")
        return check("failed", "; ".join(found.problems), str(sudo_gpunode("doctor")))

    return run


def _container_commands(row: Runtime, read_effective_config: ReadEffectiveConfig) -> container.ContainerCommands | None:
    token = container.new_token()
    match row.client:
        case "kubelet":
            return None
        case "docker run":
            return container.docker_commands(token)
        case "podman run":
            return container.podman_commands(token)
        case "ctr run":
            # Through the binary that the runtime's own configuration names, so that a wrong one shows.
            configured = read_effective_config(row.id)
            binary = configured.handlers.get("nvidia", "") if configured else ""
            return container.containerd_commands(token, **({"binary": binary} if binary else {}))
