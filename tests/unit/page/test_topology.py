from __future__ import annotations

from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.page.report import render_topology
from tests.unit.page import nodes


def test_topology_is_shown_as_nvidia_smi_says_it() -> None:
    shown = render_topology(take_snapshot(nodes.large())) or ""
    assert "How the GPUs are connected" in shown
    assert shown.count("NV18") == 8 * 7
    assert "NIC3: mlx5_3" in shown


def test_no_topology_is_shown_where_nobody_asked() -> None:
    assert render_topology(take_snapshot(nodes.evidence(("uname -r", "6.1.0-31-amd64")))) is None
