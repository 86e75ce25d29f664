"""The MPS daemon of a live node is not taken from under the programs that compute through it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gpunode.change import Change, ServiceChange, Trigger, triggers
from gpunode.errors import DrainRequired
from gpunode.host.port import Host
from gpunode.steps.daemons import MPS_SERVICE

_RESTART: Final = Trigger("restart", MPS_SERVICE)
_ITSELF: Final = "nvidia-cuda-mps"
_SHOWN: Final = 20


def refuse_clients(host: Host, changes: Collection[Change], owed: Collection[Trigger] = ()) -> None:
    """Nothing, unless the daemon would be stopped or restarted while a process has a GPU open.

    Raises:
        DrainRequired: they are named; which of them are clients, nobody tells without asking the daemon.
    """
    services = [change for change in ServiceChange.among(changes) if change.unit == MPS_SERVICE]
    stops = any(change.before.active and not change.after.active for change in services)
    if not stops and _RESTART not in (*triggers(changes), *owed):
        return
    named = [words for words in host.workloads().gpu if _ITSELF not in words]
    if named:
        number = "1 process" if len(named) == 1 else f"{len(named)} processes"
        raise DrainRequired(
            f"stopping the MPS daemon would end what computes through it: {number} on the GPUs",
            why=f"running: {', '.join(named[:_SHOWN])}" + (" …" if len(named) > _SHOWN else ""),
            hint="end them first, or continue with --allow-disruption",
        )
