from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest

import gpunode.catalog
from gpunode.catalog import tables
from gpunode.catalog.tables import note_old_tables
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture
from gpunode.facts.model import Known

FOLDER = Path(gpunode.catalog.__file__).parent
TABLES = sorted(path.name for path in FOLDER.glob("*.csv"))


def test_expected_tables_exist() -> None:
    assert {"gpus.csv", "branches.csv", "cuda_repositories.csv", "driver_packages.csv", "vgpu_guests.csv"} <= set(
        TABLES
    )


@pytest.mark.parametrize("name", TABLES)
def test_table_names_its_source_and_date_and_has_complete_rows(name: str) -> None:
    comments = [line for line in (FOLDER / name).read_text().splitlines() if line.startswith("#")]
    rows = list(tables.rows(name))

    assert any("Source" in line for line in comments)
    assert date(2026, 11, 1) < tables.read_collection_date(name) <= datetime.now(tz=timezone.utc).date()
    assert rows
    assert all(None not in row and None not in row.values() for row in rows)


def test_outdated_tables_are_noted_by_the_date_of_the_evidence() -> None:
    oldest = min(tables.read_collection_date(name) for name in ("branches.csv", "gpus.csv", "releases.csv"))

    def notes(days: int) -> tuple[str, ...]:
        return note_old_tables(replace(derive({}), observed_on=Known(oldest + timedelta(days=days), "clock")))

    assert notes(-4000) == notes(0) == notes(90) == ()
    assert str(oldest) in notes(91)[0]
    assert "91 days later" in notes(91)[0]


@pytest.mark.parametrize(
    ("printed", "observed"),
    [("1795824000\n", date(2026, 11, 28)), ("", None), ("soon", None), ("9" * 18, None), ("9" * 5000, None)],
)
def test_evidence_date_is_the_clock_of_the_node(printed: str, observed: date | None) -> None:
    facts = derive({"clock": Capture("date --utc +%s", "ok", printed.encode())})

    assert (facts.observed_on.value if isinstance(facts.observed_on, Known) else None) == observed
    assert observed or note_old_tables(facts) == ()


def test_find_and_rows_agree() -> None:
    for row in tables.rows("gpus.csv"):
        assert tables.find("gpus.csv", row["device_id"]) == row
    for row in tables.rows("vgpu_guests.csv"):
        assert tables.find("vgpu_guests.csv", row["device_id"], row["subsystem_device"]) == row


def test_nvidia_notice_is_kept_and_the_table_marked_as_altered() -> None:
    notice = (FOLDER.parents[1] / "NOTICE").read_text()

    assert "Copyright (c) 2020 NVIDIA Corporation" in notice
    assert "This notice may not be removed or altered from any source distribution." in notice
    assert "ALTERED" in notice
    assert "ALTERED" in (FOLDER / "gpus.csv").read_text().partition("\n")[0]
