"""The table of docs/reference/starting-states.md: each state whose test passes writes its row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from tests.e2e.chroot.states import STATES, State
from tests.e2e.lab.code import PROJECT

PAGE: Final = PROJECT / "docs/reference/starting-states.md"
_HEADER: Final = "| state | system | end | packages purged | date |\n| --- | --- | --- | --- | --- |\n"
_SYSTEMS: Final = {"bookworm": "Debian 12", "trixie": "Debian 13", "jammy": "Ubuntu 22.04", "noble": "Ubuntu 24.04"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, as printed."""

    what: str
    system: str
    end: str
    purged: str
    date: str

    @property
    def key(self) -> tuple[str, str]:
        """The key by which a later run finds the row."""
        return self.what, self.system


def make_row(state: State, exit_code: int, purged: int, date: str) -> Row:
    """Return the row of a run that passed."""
    end = "converged, reboot due" if state.end == "converged" and exit_code == 10 else f"{state.end} ({exit_code})"
    return Row(state.what, _SYSTEMS[state.system], end.removesuffix(" (0)"), str(purged), date)


def read_rows(page: str) -> tuple[Row, ...]:
    """Return the rows of the table in ``page``."""
    lines = takewhile(lambda line: line.startswith("|"), page.partition(_HEADER)[2].splitlines())
    return tuple(Row(*line.strip("| ").split(" | ")) for line in lines)


def write_row(page: Path, new: Row) -> None:
    """Write a row into the table of ``page``, in the order of the states; remove rows of deleted states."""
    text = page.read_text()
    old = read_rows(text)
    rows = {row.key: row for row in (*old, new)}
    kept = (rows[key] for key in map(_key, STATES) if key in rows)
    page.write_text(text.replace(_HEADER + _write_lines(old), _HEADER + _write_lines(kept)))


def _write_lines(rows: Iterable[Row]) -> str:
    return "".join(f"| {' | '.join(astuple(row))} |\n" for row in rows)


def missing_states(page: str) -> list[str]:
    """Return the states that have no row in the table."""
    there = {row.key for row in read_rows(page)}
    return [state.id for state in STATES if _key(state) not in there]


def _key(state: State) -> tuple[str, str]:
    return state.what, _SYSTEMS[state.system]
