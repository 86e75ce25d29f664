"""Units: as systemd tells them, and as its folders tell them where no systemd runs."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Mapping

from gpunode.change import ServiceState
from gpunode.facts.evidence import Found
from gpunode.facts.model import Unit
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern

_NOT_BOOTED = ("not been booted with systemd", "Failed to connect to bus: Host is down")
_RUNS = frozenset({"active", "reloading", "activating"})
# A static unit cannot be enabled: something else starts it (udev starts Ubuntu's nvidia-persistenced).
_ENABLED = frozenset({"enabled", "enabled-runtime", "linked", "linked-runtime", "alias", "static", "generated"})
_STAMP = Pattern(r"\w{3} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{6})? UTC")


def is_absent(error: str) -> bool:
    """Whether systemctl's ``error`` says that no systemd runs here, rather than that it did not answer."""
    return any(word in error for word in _NOT_BOOTED)


def units(text: str) -> Mapping[str, Unit]:
    """The units of ``systemctl show``, under every name they have.

    Raises:
        ValueError: a block lacks its name, or a time is not as systemd writes it.
    """
    found: dict[str, Unit] = {}
    for block in re.split(r"\n{2,}", text.strip("\n")):
        values = dict(line.partition("=")[::2] for line in block.split("\n"))
        if not values.get("Id"):
            raise ValueError(f"a unit without its name: {block[:80]!r}")
        unit = _unit(values)
        found.update(dict.fromkeys((values["Id"], *values.get("Names", "").split()), unit))
    return found


def has_failed(values: Mapping[str, str]) -> bool:
    """Whether a unit of these properties could not run: it has given up, or waits for systemd's next try.

    Source: systemd's table of states: "auto-restart" and, from 254 on, "auto-restart-queued" are "activating".
    """
    return values.get("ActiveState") == "failed" or values.get("SubState", "").startswith("auto-restart")


def main_pid(text: str, name: str) -> int:
    """The main process of the unit ``name`` in what ``systemctl show`` printed; 0 where it does not run."""
    for block in re.split(r"\n{2,}", text.strip("\n")):
        values = dict(line.partition("=")[::2] for line in block.split("\n"))
        if values.get("Id") == name:
            return whole(values.get("MainPID", "")) or 0
    return 0


def started_at(text: str, name: str) -> str:
    """When the unit ``name`` was started, as RFC 3339 writes it in UTC; empty where it does not run."""
    for block in re.split(r"\n{2,}", text.strip("\n")):
        values = dict(line.partition("=")[::2] for line in block.split("\n"))
        if values.get("Id") == name and values.get("ActiveState") in _RUNS:
            match = _STAMP.fullmatch(values.get("ExecMainStartTimestamp", ""))
            return f"{match[1]}{match[2] or ''}Z".replace(" ", "T") if match else ""
    return ""


def _unit(values: Mapping[str, str]) -> Unit:
    load, failed = values.get("LoadState", ""), has_failed(values)
    active = not failed and values.get("ActiveState", "") in _RUNS
    runs = active and values.get("MainPID", "0") != "0"
    return Unit(
        ServiceState(values.get("UnitFileState", "") in _ENABLED, active),
        exists=load not in {"not-found", ""},
        started_at=_epoch(values.get("ExecMainStartTimestamp", "")) if runs else None,
        masked=load == "masked",
        changed_at=_epoch(values.get("StateChangeTimestamp", "")),
        failed=failed,
        starting=not failed and values.get("ActiveState") == "activating",
    )


def _epoch(stamp: str) -> float | None:
    if stamp in {"", "n/a", "0"}:
        return None
    match = _STAMP.fullmatch(stamp)
    if match is None:
        raise ValueError(f"not a time in UTC as systemd writes it: {stamp[:80]!r}")
    # Not strptime, whose first call loads the locale and the calendar: 4 ms.
    moment = dt.datetime.fromisoformat(match[1]).replace(tzinfo=dt.timezone.utc)
    return moment.timestamp() + float(match[2] or 0)


def offline(
    names: Iterable[str], wants: Iterable[Found], etc: Iterable[Found], lib: Iterable[Found]
) -> dict[str, Unit]:
    """The units where no systemd runs, ``names`` and all that have a file; none of them is active."""
    wanted = {_name(found) for found in wants}
    own = {_name(found): found for found in etc}
    shipped = {_name(found) for found in lib}
    return {name: _offline(name, wanted, own, shipped) for name in dict.fromkeys((*names, *own, *shipped))}


def _offline(name: str, wanted: Collection[str], own: Mapping[str, Found], shipped: Collection[str]) -> Unit:
    masked = name in own and own[name].link == "/dev/null"
    exists = name in own or name in shipped
    return Unit(ServiceState(exists and not masked and name in wanted, active=False), exists, None, masked)


def _name(found: Found) -> str:
    return found.path.rpartition("/")[2]
