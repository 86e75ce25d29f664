"""Systemd units: from systemctl, or from systemd's folders if it does not run; and the command that starts one. Pure.

The command is read from files and not from `systemctl show`: an image has no running systemd, and `show` prints command
lines without their quotes and without the values of their variables.

shlex parses quotes as systemd does in everything that packages and administrators write. An unterminated quote makes
its line invalid, for systemd 252 too (systemd-analyze verify). An environment file has one value per line.

Source: systemd.unit(5), systemd.service(5) "Command lines", systemd.exec(5) "EnvironmentFile=".
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from gpunode.change import ServiceState
from gpunode.facts.evidence import GlobMatch
from gpunode.facts.model import Unit
from gpunode.facts.patterns import Pattern, parse_int
from gpunode.fast_dataclass import dataclass

_NO_SYSTEMD_ERRORS = ("not been booted with systemd", "Failed to connect to bus: Host is down")
_ACTIVE_STATES = frozenset({"active", "reloading", "activating"})
# A static unit cannot be enabled: something else starts it (udev starts Ubuntu's nvidia-persistenced).
_ENABLED_STATES = frozenset({"enabled", "enabled-runtime", "linked", "linked-runtime", "alias", "static", "generated"})
_SYSTEMD_TIMESTAMP = Pattern(r"\w{3} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{6})? UTC")


def reports_no_systemd(error: str) -> bool:
    """Return True if systemctl's ``error`` says that systemd does not run here."""
    return any(word in error for word in _NO_SYSTEMD_ERRORS)


def parse_units(text: str) -> Mapping[str, Unit]:
    """Parse ``systemctl show``; return each unit under all of its names.

    Raises:
        ValueError: if a block lacks its name, or a time is malformed.
    """
    units: dict[str, Unit] = {}
    for values in _split_units(text):
        if not values.get("Id"):
            raise ValueError(f"a unit without its name: {str(values)[:80]}")
        unit = _make_unit(values)
        units.update(dict.fromkeys((values["Id"], *values.get("Names", "").split()), unit))
    return units


def _split_units(text: str) -> Iterator[dict[str, str]]:
    for block in re.split(r"\n{2,}", text.strip("\n")):
        yield dict(line.partition("=")[::2] for line in block.split("\n"))


def find_properties(text: str, name: str) -> Mapping[str, str]:
    """Return the properties of the unit ``name`` in the output of ``systemctl show``; none if it is not among them."""
    return next((values for values in _split_units(text) if values.get("Id") == name), {})


def has_unit_failed(values: Mapping[str, str]) -> bool:
    """Return True if the unit has failed, or waits for systemd's next try.

    Source: systemd's table of states: "auto-restart" and, from 254 on, "auto-restart-queued" are "activating".
    """
    return values.get("ActiveState") == "failed" or values.get("SubState", "").startswith("auto-restart")


def is_unit_active(values: Mapping[str, str]) -> bool:
    """Return True if the unit runs, starts or reloads, and does not wait for systemd's next try."""
    return not has_unit_failed(values) and values.get("ActiveState", "") in _ACTIVE_STATES


def find_main_pid(text: str, name: str) -> int:
    """Return the main PID of the unit ``name`` in the output of ``systemctl show``; 0 if it does not run."""
    return parse_int(find_properties(text, name).get("MainPID", "")) or 0


def find_start_time(text: str, name: str) -> str:
    """Return the start time of the unit ``name`` (RFC 3339, UTC); empty if it does not run."""
    values = find_properties(text, name)
    match = _SYSTEMD_TIMESTAMP.fullmatch(values.get("ExecMainStartTimestamp", ""))
    is_active = values.get("ActiveState") in _ACTIVE_STATES
    return f"{match[1]}{match[2] or ''}Z".replace(" ", "T") if match and is_active else ""


def _make_unit(values: Mapping[str, str]) -> Unit:
    load, failed = values.get("LoadState", ""), has_unit_failed(values)
    active = is_unit_active(values)
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
    match = _SYSTEMD_TIMESTAMP.fullmatch(stamp)
    if match is None:
        raise ValueError(f"not a time in UTC as systemd writes it: {stamp[:80]!r}")
    # Not strptime, whose first call loads the locale and the calendar: 4 ms.
    moment = dt.datetime.fromisoformat(match[1]).replace(tzinfo=dt.timezone.utc)
    return moment.timestamp() + float(match[2] or 0)


def read_offline_units(
    names: Iterable[str], wants: Iterable[GlobMatch], etc: Iterable[GlobMatch], lib: Iterable[GlobMatch]
) -> dict[str, Unit]:
    """Read the units in ``names`` and all that have a file, without systemd; none is active."""
    wanted = {_unit_name(found) for found in wants}
    own = {_unit_name(found): found for found in etc}
    shipped = {_unit_name(found) for found in lib}
    return {name: _make_offline_unit(name, wanted, own, shipped) for name in dict.fromkeys((*names, *own, *shipped))}


def _make_offline_unit(
    name: str, wanted_units: Collection[str], admin_units: Mapping[str, GlobMatch], shipped: Collection[str]
) -> Unit:
    masked = name in admin_units and admin_units[name].link == "/dev/null"
    exists = name in admin_units or name in shipped
    return Unit(ServiceState(exists and not masked and name in wanted_units, active=False), exists, None, masked)


def _unit_name(match: GlobMatch) -> str:
    return match.path.rpartition("/")[2]


# The first folder that has a file wins.
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)


@dataclass(frozen=True, slots=True)
class UnitCommand:
    """A command line that systemd starts.

    Attributes:
        argv: with its variables filled in.
        sources: the files that it comes from, the one with ExecStart first.
    """

    argv: tuple[str, ...]
    sources: tuple[str, ...]


def unit_source_patterns(
    files: Mapping[str, bytes], unit: str, folders: tuple[str, ...] = UNIT_FOLDERS
) -> tuple[str, ...]:
    """Return the paths and patterns of all files that define the start of ``unit``, as known from ``files``."""
    own = tuple(f"{folder}/{unit}" for folder in folders)
    if not any(path in files for path in own):
        return own  # drop-ins of a missing unit have no effect
    dropped_in = (f"{folder}/{unit}.d/*.conf" for folder in folders)
    return (*own, *dropped_in, *_environment_files(_service_settings(files, unit, folders)))


def is_unit_file(path: str) -> bool:
    """Return True if ``path`` is a systemd unit or drop-in."""
    return any(f"/systemd/{whose}/" in path for whose in ("system", "user"))


def find_start_command(
    files: Mapping[str, bytes], unit: str, folders: tuple[str, ...] = UNIT_FOLDERS
) -> UnitCommand | None:
    """Return the command that starts ``unit``; None if no file has one, or its quotes do not match."""
    settings = _service_settings(files, unit, folders)
    lines = ((path, split_words(line.lstrip("@-:+!|"))) for path, line in _effective_values(settings, "ExecStart"))
    starts = [(path, words) for path, words in lines if words]
    if not starts:
        return None
    origin, words = starts[0]
    variables, of_variables = _read_environment(files, settings)
    return UnitCommand(tuple(_expand_words(words, variables)), tuple(dict.fromkeys((origin, *of_variables))))


def _service_settings(files: Mapping[str, bytes], unit: str, folders: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return path, key and value of every [Service] line, in the order in which systemd reads them."""
    main = next((path for folder in folders if (path := f"{folder}/{unit}") in files), None)
    if main is None or not files[main]:  # an empty file masks the unit, drop-ins and all
        return []
    dropped_in: dict[str, str] = {}
    for folder in reversed(folders):
        drop_in_folder = f"{folder}/{unit}.d/"
        dropped_in |= {
            path.removeprefix(drop_in_folder): path
            for path in files
            if path.startswith(drop_in_folder)
            and path.endswith(".conf")
            and "/" not in path.removeprefix(drop_in_folder)
        }
    order = (main, *(path for _, path in sorted(dropped_in.items())))
    return [(path, key, value) for path in order for key, value in _parse_service_section(files[path])]


@lru_cache(maxsize=64)  # a run needs some units thirty times
def _parse_service_section(data: bytes) -> tuple[tuple[str, str], ...]:
    section, found = "", []
    for line in _join_lines(data):
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line:
            key, _, value = line.partition("=")
            found.append((key.strip(), value.strip().replace("%%", "%")))
    return tuple(found)


def _join_lines(data: bytes) -> Iterator[str]:
    """Yield the lines without comments, continued ones joined."""
    begun = ""
    for raw in data.decode("utf-8", "replace").splitlines():
        line = raw.strip()
        if not line.startswith(("#", ";")):
            begun += line.removesuffix("\\")
            if not line.endswith("\\"):
                yield begun
                begun = ""
            else:
                begun += " "
    if begun:
        yield begun.strip()


def _effective_values(settings: list[tuple[str, str, str]], name: str) -> list[tuple[str, str]]:
    """Return path and value of each effective line of a key; an empty one resets the list."""
    values: list[tuple[str, str]] = []
    for path, key, value in settings:
        if key == name:
            values = [*values, (path, value)] if value else []
    return values


def _environment_files(settings: list[tuple[str, str, str]]) -> list[str]:
    """Return the paths and patterns of the environment files."""
    named = (value.removeprefix("-").strip() for _, value in _effective_values(settings, "EnvironmentFile"))
    return [value for value in named if value.startswith("/")]


def _read_environment(
    files: Mapping[str, bytes], settings: list[tuple[str, str, str]]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the service's variables, and the files that set them."""
    variables: dict[str, str] = {}
    sources: list[str] = []
    for path, value in _effective_values(settings, "Environment"):
        variables |= {name: text for name, mark, text in (word.partition("=") for word in split_words(value)) if mark}
        sources.append(path)
    for pattern in _environment_files(settings):
        for path in sorted(fnmatch.filter(files, pattern)):
            variables |= dict(_parse_environment_file(files[path]))
            sources.append(path)
    return variables, tuple(sources)


def _parse_environment_file(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the assignments of an environment file, quoted values unquoted."""
    for line in _join_lines(data):
        name, mark, value = (part.strip() for part in line.partition("="))
        if mark:
            words = split_words(value) if value.startswith(("'", '"')) else []
            yield name, words[0] if len(words) == 1 else value


_ENVIRONMENT_VARIABLE = Pattern(r"\$\{(\w+)\}|\$\$")


def _expand_words(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Expand the variables in the command's words; ``$NAME`` alone becomes as many words as its value has."""
    for word in words:
        if word.startswith("$") and word[1:2] not in ("{", "$"):
            value = variables.get(word[1:], "")
            yield from split_words(value) or value.split()
        else:
            yield _ENVIRONMENT_VARIABLE.sub(lambda found: variables.get(found[1], "") if found[1] else "$", word)


def find_program_arguments(argv: Sequence[str], *names: str) -> Sequence[str] | None:
    """Return the words after a program's name, even if a wrapper runs it; None if it is not named.

    A shell gets the command as one word. A later word may end in the name, too, such as a folder of that name.
    """
    words = [word for one in argv for word in (split_words(one) if any(f"{n} " in one for n in names) else (one,))]
    places = [n for n, word in enumerate(words) if word.rpartition("/")[2] in names and "=" not in word]
    return words[places[0] + 1 :] if places else None


def split_words(text: str) -> list[str]:
    """Split ``text`` as a shell does; return nothing if a quote does not end."""
    try:
        return shlex.split(text)
    except ValueError:
        return []
