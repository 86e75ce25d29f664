"""Where in the stack each cause lies, and what the stack of a broken node shows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.diagnoses import diagnose, rules
from gpunode.diagnoses.model import STOREYS
from gpunode.diagnoses.snapshot import snapshot
from gpunode.diagnoses.stack import TITLES, Storey, stack
from gpunode.facts import pasted
from tests.scenarios.reports import Report, some_reports


def table() -> dict[str, str]:
    """The storey of every cause, as it was judged by hand."""
    found, storey = dict[str, str](), ""
    for line in (Path(__file__).parent / "storeys.txt").read_text().splitlines():
        if line.startswith("["):
            storey = line.strip("[]")
        elif not line.startswith("#"):
            found[line] = storey
    return found


def test_every_cause_lies_where_it_was_judged_to_lie() -> None:
    assert {cause: rule.storey for cause, rule in rules().items()} == table()


def test_every_storey_has_a_title_and_a_cause() -> None:
    assert list(TITLES) == list(STOREYS)
    assert set(table().values()) == set(STOREYS)


def shown(rows: tuple[tuple[str, str], ...]) -> dict[str, Storey]:
    """The stack of the node that these pieces show."""
    seen = snapshot(pasted.evidence(rows))
    return {storey.id: storey for storey in stack(seen, diagnose(seen))}


@pytest.mark.parametrize("report", some_reports("storeys"), ids=lambda report: report.name)
def test_the_root_cause_breaks_its_own_storey(report: Report) -> None:
    storeys = shown(tuple((piece["source"], piece["text"]) for piece in report.evidence))
    own = storeys[rules()[report.cause].storey]
    assert report.cause in own.findings
    assert [storey.id for storey in storeys.values() if report.cause in storey.findings] == [own.id]
    assert {storey.state for storey in storeys.values() if storey is not own} <= {
        *("affected", "works", "seen", "unseen", "absent")
    }


_WORKS = "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |\n"
_NONE_RUNS = "| Processes:                                                    |\n|  No running processes found      |\n"
_ONE_RUNS = "| Processes:      |\n|    0   N/A  N/A     11337      C   python3        17264MiB |\n"


@pytest.mark.parametrize(
    ("table", "seen"), [(_NONE_RUNS, "none on a GPU"), (_ONE_RUNS, "1 on the GPUs"), ("", "")], ids=["0", "1", "cut"]
)
def test_programs_on_the_gpus_are_counted(table: str, seen: str) -> None:
    assert shown((("nvidia-smi", _WORKS + table),))["programs"].seen == seen


def test_packages_are_shown_with_who_manages_them() -> None:
    listed = "ii  nvidia-driver-550  550.54.15-0ubuntu1  amd64  NVIDIA driver\nii  vim  2:9.0  amd64  editor\n"
    assert shown((("dpkg -l", listed),))["packages"].seen == "apt: 2 listed"
