"""Errors about fields that others own, with both values and a way forward."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gpunode.errors import Conflict
from gpunode.host.cluster import Body, Cluster
from gpunode.kubernetes.owned import conflict_lines
from gpunode.kubernetes.reconcile import object_key
from gpunode.redaction.secrets import redact_text as redact

_MANAGER_NAME: Final = re.compile(r"conflicts? with \"([^\"]+)\"")


def conflict_error(message: str, applied: Sequence[Body], cluster: Cluster) -> Conflict | None:
    """Return the error if others own fields that were applied; None if the API server gives another reason.

    Args:
        message: the API server's error.
        applied: the objects that were applied.
        cluster: where to read them as they are.
    """
    managers = dict.fromkeys(_MANAGER_NAME.findall(message))
    if not managers:
        return None
    live = cluster.get(applied)
    if not live:  # deleted meanwhile
        return None
    lines = conflict_lines(message, applied, live)
    example = next((one for one in live if conflict_lines(message, applied, [one])), live[0])
    kind, namespace, name = object_key(example)
    where = ("--namespace", namespace) if namespace else ()
    return Conflict(
        f"{', '.join(managers)} {'own' if len(managers) > 1 else 'owns'} fields that gpunode would set",
        why=redact("\n".join(lines)) or message,
        hint="to keep these values, change the recipe; to have the recipe's, set them there yourself; then run the "
        f"same command again:\n{cluster.command('edit', kind.lower(), *where, name)}",
    )
