"""Requests to containerd over its socket, as from a kubelet: the few CRI calls that a container needs.

Source: cri-api v0.30, pkg/apis/runtime/v1/api.proto. Its field numbers stand here in place of generated classes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

if TYPE_CHECKING:
    from typing_extensions import Self

Value: TypeAlias = "str | int | Message | Sequence[Value]"
Message: TypeAlias = Mapping[int, Value]

_SERVICE: Final = "/runtime.v1.RuntimeService/"
_VARINT: Final = 0
_LENGTH: Final = 2
# NamespaceMode NODE: the machine's own network, so no CNI plugin is asked. ContainerState EXITED.
_NODE: Final = 2
_EXITED: Final = 2


class NoCri(Exception):
    """There is no CRI at the socket, or it refuses the request."""


@dataclass(frozen=True, slots=True)
class Told:
    """The status of the CRI plugin.

    Attributes:
        binaries: the program in each handler's options; empty for the shim's default.
    """

    default: str
    binaries: Mapping[str, str]


class Cri:
    """The CRI service at ``socket``."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: str, message: Message | None = None, *, patience_s: float = 20) -> dict[int, bytes | int]:
        """Return the answer's fields, the last of a repeated one; wait for a plugin that is still starting.

        Raises:
            NoCri: there is none, or it refuses.
        """
        return dict(decode(self._answer(method, message or {}, patience_s)))

    def told(self) -> Told:
        """Return the status of the CRI plugin.

        Raises:
            NoCri: there is none.
        """
        self.call("Version")
        verbose = decode(self._answer("Status", {1: 1}, 20))
        pairs = (dict(decode(value)) for number, value in verbose if number == 2 and isinstance(value, bytes))
        config = json.loads({text(pair[1]): text(pair[2]) for pair in pairs}["config"])["containerd"]
        handlers: dict[str, dict[str, Any]] = config["runtimes"]
        binaries = {name: str((entry.get("options") or {}).get("BinaryName", "")) for name, entry in handlers.items()}
        return Told(str(config["defaultRuntimeName"]), binaries)

    def run(self, image: str, *command: str, handler: str, logs: str) -> None:
        """Run ``command`` to its end in its own pod, with its output in ``logs``; nothing else remains.

        Args:
            handler: as a RuntimeClass names it; empty for the default one.
            logs: a folder, as the daemon sees it; the file is ``output``.

        Raises:
            NoCri: a step is refused, or the command does not end.
        """
        pod: Message = {1: {1: "lab", 2: "lab", 3: "lab"}, 3: logs, 8: {2: {1: {1: _NODE}}}}
        sandbox = text(self.call("RunPodSandbox", {1: pod, 2: handler}, patience_s=60)[1])
        try:
            container: Message = {1: {1: "one"}, 2: {1: image}, 3: command, 11: "output"}
            made = text(self.call("CreateContainer", {1: sandbox, 2: container, 3: pod})[1])
            self.call("StartContainer", {1: made})
            self._await_end(made)
        finally:
            self.call("StopPodSandbox", {1: sandbox}, patience_s=60)
            self.call("RemovePodSandbox", {1: sandbox}, patience_s=60)

    def _await_end(self, container: str) -> None:
        for _ in range(500):
            status = self.call("ContainerStatus", {1: container})[1]
            assert isinstance(status, bytes)
            if dict(decode(status)).get(3) == _EXITED:
                return
            time.sleep(0.02)
        raise NoCri(f"container {container} does not end")

    def _answer(self, method: str, message: Message, patience_s: float) -> bytes:
        ask = self._channel.unary_unary(f"{_SERVICE}{method}", request_serializer=encode)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return bytes(ask(message, timeout=patience_s))
            except grpc.RpcError as error:
                said = error.details() or ""
                # containerd 1.6 has no own error code for it.
                is_starting = error.code() is grpc.StatusCode.UNAVAILABLE or "not initialized yet" in said
                if not is_starting or time.monotonic() > deadline:
                    raise NoCri(f"{method}: {error.code().name}: {said}") from error
            time.sleep(0.02)


def encode(message: Message) -> bytes:
    """Return ``message`` as protobuf has it; a sequence is a repeated field."""
    return b"".join(_field(number, value) for number, value in message.items())


def decode(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a message, of the two wire types that CRI's answers use."""
    place = 0
    while place < len(data):
        key, place = _varint_at(data, place)
        value, place = _varint_at(data, place)
        if key & 7 == _VARINT:
            yield key >> 3, value
        else:
            assert key & 7 == _LENGTH
            yield key >> 3, data[place : place + value]
            place += value


def text(value: bytes | int) -> str:
    """Return the string of a field."""
    assert isinstance(value, bytes)
    return value.decode()


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    if isinstance(value, str):
        return _counted(number, value.encode())
    if isinstance(value, Mapping):
        return _counted(number, encode(value))
    return b"".join(_field(number, one) for one in value)


def _counted(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low = value & 0x7F
    return bytes([low]) if value == low else bytes([low | 0x80]) + _varint(value >> 7)


def _varint_at(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place
