"""Requests to the API server over HTTPS, without the cost of starting kubectl for each."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final

_MERGE: Final = "application/merge-patch+json"
_TIMEOUT_S: Final = 10


class ApiError(Exception):
    """The API server refused a request or does not answer."""


@dataclass(frozen=True, slots=True)
class Api:
    """The API server at a port of the loopback address, as the user of ``token``."""

    port: int
    certificate: Path
    token: str

    def get(self, path: str) -> dict[str, Any]:
        """Return the object or list at ``path``."""
        return self.call("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object as the server created it."""
        return self.call("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object after a merge patch."""
        return self.call("PATCH", path, body)

    def delete(self, path: str, *, grace_s: int = 0) -> None:
        """Delete the object."""
        self.call("DELETE", f"{path}?gracePeriodSeconds={grace_s}")

    def is_ready(self) -> bool:
        """True if the server serves."""
        try:
            return self._answer("GET", "/readyz", None)[0] == 200
        except (OSError, HTTPException):
            return False

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to one request.

        Raises:
            ApiError: the answer is not a success.
        """
        try:
            status, text = self._answer(method, path, body)
        except (OSError, HTTPException) as error:
            raise ApiError(f"{method} {path}: {error}") from error
        if status >= 300:
            raise ApiError(f"{method} {path}: {status}: {text}")
        found: dict[str, Any] = json.loads(text)
        return found

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S, context=context)
        kind = _MERGE if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()
