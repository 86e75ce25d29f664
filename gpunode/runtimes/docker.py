"""docker's daemon.json, edited in place, with the meaning that nvidia-ctk gives its entry.

Source: nvidia-container-toolkit@v1.20.0, pkg/config/engine/docker; dockerd 28.5.2 --validate. Three of its habits are
not followed: it drops every other feature with ``cdi``, it takes numbers through floats, and it drops what follows the
first JSON value.
"""

from __future__ import annotations

import json
from typing import Any

from gpunode.errors import Refused
from gpunode.runtimes import jsontext
from gpunode.runtimes.model import DOCKER_CONFIG as CONFIG
from gpunode.runtimes.model import Configured, Wish, satisfies
from gpunode.runtimes.text import decode, encode


def inspect(data: bytes | None, path: str = CONFIG) -> Configured:
    """What daemon.json says; a missing or blank one says nothing, as dockerd has it.

    Raises:
        Refused: it is not a JSON object, or not shaped as dockerd's configuration.
    """
    text = decode(data, path)
    return _configured(_document(text, path), text, path)


def configure(data: bytes | None, wish: Wish, path: str = CONFIG) -> bytes:
    """daemon.json with the NVIDIA handler as wished; the same bytes when it is so already.

    Raises:
        Refused: the file is not a JSON object, or not shaped as dockerd's configuration.
    """
    text = decode(data, path)
    document = _document(text, path)
    configured = _configured(document, text, path)
    if satisfies(configured, wish):
        return data or b""
    edited = text if text.strip() else "{}\n"
    for where, value in _members(document, configured, wish):
        edited = jsontext.put(edited, where, value)
    return encode(edited, data)


def _members(document: dict[str, Any], configured: Configured, wish: Wish) -> list[tuple[tuple[str, ...], Any]]:
    """The members that differ from the wish, with their values; an object that is null or missing is made whole."""
    members: list[tuple[tuple[str, ...], Any]] = []
    if configured.handlers.get(wish.handler) != wish.binary:
        # "args" is nvidia-ctk's key, not dockerd's, which ignores it; kept so that the two tools agree on a file.
        members.append(_inside(document, "runtimes", wish.handler, {"args": [], "path": wish.binary}))
    if wish.default and configured.default != wish.handler:
        members.append((("default-runtime",), wish.handler))
    if wish.cdi and configured.cdi is not True:
        members.append(_inside(document, "features", "cdi", True))
    return members


def _inside(document: dict[str, Any], outer: str, key: str, value: Any) -> tuple[tuple[str, ...], Any]:
    return ((outer,), {key: value}) if document.get(outer) is None else ((outer, key), value)


def _document(text: str, path: str) -> dict[str, Any]:
    if not text.strip(" \t\r\n"):
        return {}
    try:
        document = jsontext.parse(text)
    except jsontext.Malformed as error:
        place = f"{path}:{error.line}:{error.column}" if error.line else path
        raise Refused(
            f"{place}: not valid JSON",
            why=f"{error.reason}. JSON has no comments and no trailing commas, and nothing may follow the object.",
            hint=f"correct {path}; `dockerd --validate --config-file {path}` checks it (docker 23 and later)",
        ) from error
    if not isinstance(document, dict):
        raise _misshapen(text, path, (), document, "an object")
    return document


def _misshapen(text: str, path: str, keys: tuple[str, ...], value: Any, meant: str) -> Refused:
    line, column = jsontext.position(text, keys)
    return Refused(
        f"{path}:{line}:{column}: {'.'.join(keys) or 'the file'} is not {meant}",
        why=f"it is {json.dumps(value, ensure_ascii=False)}"[:200],
        hint=f"correct {path}; dockerd cannot use it either",
    )


def _object(document: dict[str, Any], text: str, path: str, key: str) -> dict[str, Any]:
    """The object at ``key``; empty when it is missing or null."""
    found = document.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _misshapen(text, path, (key,), found, "an object")
    return found


def _configured(document: dict[str, Any], text: str, path: str) -> Configured:
    runtimes = _object(document, text, path, "runtimes")
    cdi = _object(document, text, path, "features").get("cdi")
    default = document.get("default-runtime")
    return Configured(
        handlers={name: _binary(entry) for name, entry in runtimes.items()},
        default=default if isinstance(default, str) and default else None,
        cdi=cdi if isinstance(cdi, bool) else None,
    )


def _binary(entry: Any) -> str:
    """What the runtime runs; empty for a shim without a path, and for what nvidia-ctk replaces because it is none."""
    path = entry.get("path", "") if isinstance(entry, dict) else ""
    return path if isinstance(path, str) else ""
