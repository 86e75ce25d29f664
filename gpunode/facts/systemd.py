"""Systemd units: from systemctl, or from systemd's folders if it does not run."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Mapping

from gpunode.change import ServiceState
from gpunode.facts.evidence import Found
from gpunode.facts.model import Unit
from gpunode.facts.numbers import parse_int
from gpunode.facts.patterns import Pattern

_NO_SYSTEMD_ERRORS = ("not been booted with systemd", "Failed to connect to bus: Host is down")
_ACTIVE_STATES = frozenset({"active", "reloading", "activating"})
# A static unit cannot be enabled: something else starts it (udev starts Ubuntu's nvidia-persistenced).
_ENABLED_STATES = frozenset({"enabled", "enabled-runtime", "linked", "linked-runtime", "alias", "static", "generated"})
_STAMP = Pattern(r"\w{3} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{6})? UTC")


def reports_no_systemd(error: str) -> bool:
    """Return True if systemctl's ``error`` says that systemd does not run here."""
    return any(word in error for word in _NO_SYSTEMD_ERRORS)


def parse_units(text: str) -> Mapping[str, Unit]:
    """Parse ``systemctl show``; return each unit under all of its names.

    Raises:
        ValueError: if a block lacks its name, or a time is malformed.
    """
    found: dict[str, Unit] = {}
    for block in re.split(r"\n{2,}", text.strip("\n")):
        values = dict(line.partition("=")[::2] for line in block.split("\n"))
        if not values.get("Id"):
            raise ValueError(f"a unit without its name: {block[:80]!r}")
        unit = _make_unit(values)
        found.update(dict.fromkeys((values["Id"], *values.get("Names", "").split()), unit))
    return found


def has_unit_failed(values: Mapping[str, str]) -> bool:
    """Return True if the unit has failed, or waits for systemd's next try.

    Source: systemd's table of states: "auto-restart" and, from 254 on, "auto-restart-queued" are "activating".
    """
    return values.get("ActiveState") == "failed" or values.get("SubState", "").startswith("auto-restart")


def find_main_pid(text: str, name: str) -> int:
    """Return the main PID of the unit ``name`` in the output of ``systemctl show``; 0 if it does not run."""
    for block in re.split(r"\n{2,}", text.strip("\n")):
        values = dict(line.partition("=")[::2] for line in block.split("\n"))
        if values.get("Id") == name:
            return parse_int(values.get("MainPID", "")) or 0
    return 0


def find_start_time(text: str, name: str) -> str:
    """Return the start time of the unit ``name`` (RFC 3339, UTC); empty if it does not run."""
    for block in re.split(r"\n{2,}", text.strip("\n")):
        values = dict(line.partition("=")[::2] for line in block.split("\n"))
        if values.get("Id") == name and values.get("ActiveState") in _ACTIVE_STATES:
            match = _STAMP.fullmatch(values.get("ExecMainStartTimestamp", ""))
            return f"{match[1]}{match[2] or ''}Z".replace(" ", "T") if match else ""
    return ""


def _make_unit(values: Mapping[str, str]) -> Unit:
    load, failed = values.get("LoadState", ""), has_unit_failed(values)
    active = not failed and values.get("ActiveState", "") in _ACTIVE_STATES
    runs = active and values.get("MainPID", "0") != "0"
    return Unit(
        ServiceState(values.get("UnitFileState", "") in _ENABLED_STATES, active),
        exists=load not in {"not-found", ""},
        started_at=_parse_timestamp(values.get("ExecMainStartTimestamp", "")) if runs else None,
        masked=load == "masked",
        changed_at=_parse_timestamp(values.get("StateChangeTimestamp", "")),
        failed=failed,
        starting=not failed and values.get("ActiveState") == "activating",
    )


def _parse_timestamp(stamp: str) -> float | None:
    if stamp in {"", "n/a", "0"}:
        return None
    match = _STAMP.fullmatch(stamp)
    if match is None:
        raise ValueError(f"not a time in UTC as systemd writes it: {stamp[:80]!r}")
    # Not strptime, whose first call loads the locale and the calendar: 4 ms.
    moment = dt.datetime.fromisoformat(match[1]).replace(tzinfo=dt.timezone.utc)
    return moment.timestamp() + float(match[2] or 0)


def read_offline_units(
    names: Iterable[str], wants: Iterable[Found], etc: Iterable[Found], lib: Iterable[Found]
) -> dict[str, Unit]:
    """Read the units in ``names`` and all that have a file, without systemd; none is active."""
    wanted = {_name_of(found) for found in wants}
    own = {_name_of(found): found for found in etc}
    shipped = {_name_of(found) for found in lib}
    return {name: _make_offline_unit(name, wanted, own, shipped) for name in dict.fromkeys((*names, *own, *shipped))}


def _make_offline_unit(name: str, wanted: Collection[str], own: Mapping[str, Found], shipped: Collection[str]) -> Unit:
    masked = name in own and own[name].link == "/dev/null"
    exists = name in own or name in shipped
    return Unit(ServiceState(exists and not masked and name in wanted, active=False), exists, None, masked)


def _name_of(found: Found) -> str:
    return found.path.rpartition("/")[2]
