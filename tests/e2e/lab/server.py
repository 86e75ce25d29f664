"""Repositories over HTTP on a loopback address, which tests can break."""

from __future__ import annotations

import socket
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Server:
    """Serves the files under ``root`` on a socket that already listens, until closed.

    Attributes:
        requests: the paths asked for, in order.
    """

    def __init__(self, root: Path, listening: socket.socket) -> None:
        self.requests: list[str] = []
        self._replaced: dict[str, bytes] = {}
        self._mounted: dict[str, Path] = {}
        self._gone: tuple[str, ...] = ()
        self._left: dict[str, int] = {}
        self._server = _Http(self, root, listening)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def gone(self, *prefixes: str) -> None:
        """Answer 404 from now on for everything below ``prefixes`` (everything, if none is given)."""
        self._gone = prefixes or ("/",)

    def gone_after(self, count: int, prefix: str) -> None:
        """Answer 404 below ``prefix`` after ``count`` more requests for it."""
        self._left[prefix] = count

    def replace(self, path: str, content: bytes) -> None:
        """Serve ``content`` at ``path`` from now on, whatever the folder holds."""
        self._replaced[path] = content

    def mount(self, prefix: str, folder: Path) -> None:
        """Serve the content of ``folder`` below ``prefix`` from now on."""
        self._mounted[prefix] = folder

    def restore(self) -> None:
        """Serve everything as in the folder again."""
        self._gone = ()
        self._left.clear()
        self._replaced.clear()
        self._mounted.clear()

    def located(self, path: str) -> Path | None:
        """Return the file of a mounted folder that ``path`` means, or None."""
        for prefix, folder in self._mounted.items():
            if path.startswith(f"{prefix}/"):
                return folder / path.removeprefix(f"{prefix}/")
        return None

    def answer(self, path: str) -> bytes | HTTPStatus | None:
        """Return the replacement for the file: other bytes, an error, or None."""
        self.requests.append(path)
        for prefix, count in self._left.items():
            if path.startswith(prefix):
                self._left[prefix] = count - 1
                if count <= 0:
                    return HTTPStatus.NOT_FOUND
        if path.startswith(self._gone):
            return HTTPStatus.NOT_FOUND
        return self._replaced.get(path)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # Joining the threads of kept-alive connections would wait for the client.
    block_on_close = False

    def __init__(self, owner: Server, root: Path, listening: socket.socket) -> None:
        self.owner = owner
        self.root = root
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def finish_request(self, request: Any, client_address: Any) -> None:
        _Handler(request, client_address, self, directory=str(self.root))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: apt aborts transfers by closing the connection."""


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def send_head(self) -> Any:
        answer = self.server.owner.answer(self.path)
        if isinstance(answer, HTTPStatus):
            self.send_error(answer)
            return None
        if answer is None:
            return super().send_head()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(answer)
        return None

    def translate_path(self, path: str) -> str:
        located = self.server.owner.located(path)
        return super().translate_path(path) if located is None else str(located)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: the requests are recorded instead."""
