"""Fields that others own and that gpunode would set otherwise: who, and both values. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpunode.kubernetes.owned import Body, Path, field_name, fields_by_manager

_LONGEST: Final = 60
_MISSING: Final = object()


def conflict_lines(said: str, wanted: Sequence[Body], live: Sequence[Body]) -> tuple[str, ...]:
    """Return a line for each conflict: object, field, the other manager with its value, and gpunode's.

    Args:
        said: the API server's refusal, which names managers and fields, but neither objects nor values.
        wanted: the objects that were applied.
        live: these objects as they are, with their ``managedFields``.
    """
    there = {_title(one): one for one in live}
    return tuple(line for one in wanted for line in _lines(said, one, there.get(_title(one))))


def _lines(said: str, wanted: Body, live: Body | None) -> Iterator[str]:
    for manager, fields in fields_by_manager(live).items() if live else ():
        for path in sorted(fields):
            ours, theirs, name = _value(wanted, path), _value(live, path), field_name(path)
            if ours is not _MISSING and ours != theirs and f'"{manager}"' in said and f".{name}\n" in f"{said}\n":
                yield f"{_title(wanted)}, {name}: {manager} has {_short(theirs)}, gpunode would set {_short(ours)}"


def _title(body: Body) -> str:
    metadata = body["metadata"]
    return f"{body['kind']} " + "/".join(metadata[part] for part in ("namespace", "name") if part in metadata)


def _short(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= _LONGEST else f"{written[:_LONGEST]}…"


def _value(body: Any, path: Path) -> Any:
    """Return the value at a path of ``managedFields``; _MISSING where there is none."""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "f":
            body = body.get(name, _MISSING) if isinstance(body, dict) else _MISSING
        elif isinstance(body, list):
            keys = json.loads(name)
            body = next((one for one in body if one == keys or _has(one, keys)), _MISSING)
    return body


def _has(element: Any, keys: Any) -> bool:
    return isinstance(element, dict) and isinstance(keys, dict) and keys.items() <= element.items()
