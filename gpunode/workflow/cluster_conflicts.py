"""Refusals of fields that others own, with both values and the way on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gpunode.errors import Conflict
from gpunode.host.cluster import Body, Cluster
from gpunode.kubernetes.owned import conflict_lines
from gpunode.kubernetes.reconcile import key
from gpunode.redaction.secrets import text as redact

_MANAGER: Final = re.compile(r"conflicts? with \"([^\"]+)\"")


def conflict_error(said: str, wanted: Sequence[Body], cluster: Cluster) -> Conflict | None:
    """Return the error for a refusal by which others own fields; None where the API server says something else.

    Args:
        said: the API server's refusal.
        wanted: the objects that were applied.
        cluster: is asked for these objects as they are.
    """
    managers = dict.fromkeys(_MANAGER.findall(said))
    if not managers:
        return None
    live = cluster.get(wanted)
    if not live:  # deleted meanwhile
        return None
    lines = conflict_lines(said, wanted, live)
    named = next((one for one in live if conflict_lines(said, wanted, [one])), live[0])
    kind, namespace, name = key(named)
    where = ("--namespace", namespace) if namespace else ()
    return Conflict(
        f"{', '.join(managers)} {'own' if len(managers) > 1 else 'owns'} fields that gpunode would set",
        why=redact("\n".join(lines)) or said,
        hint="to keep these values, change the recipe; to have the recipe's, set them there yourself; then run the "
        f"same command again:\n{cluster.command('edit', kind.lower(), *where, name)}",
    )
