from __future__ import annotations

import pytest

from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views.boards import nvml_inventory
from gpunode.facts.evidence import Capture


@pytest.mark.parametrize("data", [b"{}", b"[]", b"\0\0x", b'{"schema": 2}', b"[" * 100_000])
def test_damaged_nvml_answer_is_ignored(data: bytes) -> None:
    node = take_snapshot({"nvml": Capture("nvml", "ok", data, content_kind="table")})
    assert node.items_of("nvml")
    assert node.view(nvml_inventory) is None
