"""No Xid is ignored: a code that one family leaves to another is reported somewhere."""

from __future__ import annotations

import pytest

from gpunode.catalog import tables
from tests.scenarios import reports

CODES = sorted(int(row["code"]) for row in tables.rows("xids.csv"))


@pytest.mark.parametrize("code", CODES)
def test_every_xid_alone_is_a_finding_or_an_open_question(code: int) -> None:
    line = f"[ 4242.424242] NVRM: Xid (PCI:0000:3b:00): {code}, pid='<unknown>', name=<unknown>, Ch 00000008"

    found = reports.diagnosis([{"source": "sudo dmesg", "text": line}])

    told = [gpu for finding in found.findings for gpu in finding.gpus]
    asked = [doubt.question for doubt in found.open_questions]
    assert "0000:3b:00.0" in told or any(f"Xid {code}" in question for question in asked)
