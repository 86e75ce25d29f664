"""A check of a node or a cluster, with its result."""

from __future__ import annotations

from typing import Literal, TypeAlias

from gpunode.fast_dataclass import dataclass

CheckStatus: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        detail: what was seen.
        hint: what to do about it, if it failed.
    """

    id: str
    title: str
    status: CheckStatus
    detail: str
    hint: str = ""
