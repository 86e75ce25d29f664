from __future__ import annotations

from pathlib import Path

import pytest

import gpunode.catalog
from gpunode.catalog import tables

FOLDER = Path(gpunode.catalog.__file__).parent
TABLES = sorted(path.name for path in FOLDER.glob("*.csv"))


def test_the_tables_are_here() -> None:
    assert {"gpus.csv", "branches.csv", "cuda_repositories.csv", "driver_packages.csv", "vgpu_guests.csv"} <= set(
        TABLES
    )


@pytest.mark.parametrize("name", TABLES)
def test_every_table_names_its_source_and_date_and_has_whole_rows(name: str) -> None:
    comments = [line for line in (FOLDER / name).read_text().splitlines() if line.startswith("#")]
    rows = list(tables.rows(name))

    assert any("Source" in line for line in comments)
    assert any("Collected 20" in line for line in comments)
    assert rows
    assert all(None not in row and None not in row.values() for row in rows)


def test_find_and_rows_agree() -> None:
    for row in tables.rows("gpus.csv"):
        assert tables.find("gpus.csv", row["device_id"]) == row
    for row in tables.rows("vgpu_guests.csv"):
        assert tables.find("vgpu_guests.csv", row["device_id"], row["subsystem_device"]) == row


def test_the_notice_that_nvidia_asks_for_is_kept_and_the_alteration_is_marked() -> None:
    notice = (FOLDER.parents[1] / "NOTICE").read_text()

    assert "Copyright (c) 2020 NVIDIA Corporation" in notice
    assert "This notice may not be removed or altered from any source distribution." in notice
    assert "ALTERED" in notice
    assert "ALTERED" in (FOLDER / "gpus.csv").read_text().partition("\n")[0]
