"""The table of faults on live nodes, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.diagnoses import rule_families
from tests.faults import FAULTS, Fault

PAGE = Path(__file__).parents[2] / "docs/reference/faults.md"
MENDED = {
    "remedy": "by its commands",
    "hand": "by its commands, and one step by hand",
    "no": "diagnosed only",
}


def row(fault: Fault) -> str:
    """Return the fault's row on the page."""
    family = next(one for one in rule_families() if any(rule.cause == fault.cause for rule in one.rules))
    place = f"../../gpunode/diagnoses/causes/{family.id}.md#{fault.cause}"
    return f"| {fault.what} | [`{fault.cause}`]({place}) | {MENDED[fault.mended]} |"


def test_fault_table_is_long_and_ids_are_unique() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    mended = [fault for fault in FAULTS if fault.mended != "no"]
    assert len(mended) / len(FAULTS) >= 0.8


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_documentation_lists_the_fault(fault: Fault) -> None:
    assert row(fault) in PAGE.read_text("utf-8").splitlines()


def test_documentation_counts_the_faults() -> None:
    mended = sum(fault.mended != "no" for fault in FAULTS)
    counted = f"{len(FAULTS)} faults, all named; {mended} of them, {mended * 100 // len(FAULTS)} %, fixed."
    assert counted in " ".join(PAGE.read_text("utf-8").split())
